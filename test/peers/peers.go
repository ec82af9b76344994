// Package peers runs other people's benchmark clients against a server, for
// comparison on the same server in the same run. A peer's name and what to ask
// come in; the figures that it reports and the CPU time that it took go out. It
// installs nothing: setup.sh does. It judges no figure.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names are the peers that can be run, as setup.sh takes them.
var Names = []string{"llama-benchy", "guidellm", "aiperf"}

// ErrMissing is what Run's error wraps where a peer is not installed.
var ErrMissing = errors.New("not installed")

// Ask is what a peer is to do.
type Ask struct {
	URL         string // of the server, without /v1
	Model       string
	Prompt      int // tokens
	Tokens      int // of each answer
	Requests    int // in all; a multiple of Concurrency
	Concurrency int
}

// Figures are what a peer reports of one Ask, and what that took.
type Figures struct {
	Version      string
	TTFTS        *float64 // mean time to first token, seconds
	DecodeTokS   *float64 // decode rate of a request, tokens a second, by the peer's own definition
	WallS        float64
	UserS        float64 // CPU time of the peer and all that it started
	SystemS      float64
	RequestsDone int
}

// CPUS is the CPU time, seconds.
func (f Figures) CPUS() float64 { return f.UserS + f.SystemS }

// tokenizer is the name of the one that setup.sh makes.
const tokenizer = "twopoint/bytes"

// Run has the peer do what is asked. real is the folder that setup.sh installs
// into. Where the peer fails, the error holds its last lines.
func Run(ctx context.Context, real, name string, a Ask) (Figures, error) {
	venv, err := filepath.Abs(filepath.Join(real, "venv-peers-"+name))
	if err != nil {
		return Figures{}, err
	}
	installed, err := os.ReadFile(filepath.Join(venv, "installed"))
	if err != nil {
		return Figures{}, fmt.Errorf("%s: %w (test/peers/setup.sh)", name, ErrMissing)
	}
	dir, err := os.MkdirTemp("", "twopoint-peer-")
	if err != nil {
		return Figures{}, err
	}
	defer os.RemoveAll(dir)
	var words []string
	var read func() (Figures, error)
	n := strconv.Itoa
	out := filepath.Join(dir, "out.json")
	switch name {
	case "llama-benchy":
		book, stop, err := library()
		if err != nil {
			return Figures{}, err
		}
		defer stop()
		words = []string{"--base-url", a.URL + "/v1", "--model", a.Model, "--tokenizer", tokenizer, "--pp", n(a.Prompt), "--tg", n(a.Tokens),
			"--runs", n(max(1, a.Requests/a.Concurrency)), "--concurrency", n(a.Concurrency), "--no-warmup", "--skip-coherence", "--latency-mode", "none",
			"--no-adapt-prompt", "--exact-tg", "--no-cache", "--book-url", book, "--format", "json", "--save-result", out}
		read = func() (Figures, error) { return benchy(out, a) }
	case "guidellm":
		words = []string{"run", "--backend", "kind=openai_http,target=" + a.URL + ",model=" + a.Model, "--profile", "kind=concurrent,streams=" + n(a.Concurrency),
			"--constraint", "kind=max_requests,count=" + n(a.Requests), "--tokenizer", "kind=huggingface_auto,model=" + tokenizer,
			"--data", fmt.Sprintf("kind=synthetic_text,prompt_tokens=%d,output_tokens=%d", a.Prompt, a.Tokens),
			"--output", "kind=json,path=" + out, "--disable-console", "--disable-progress"}
		read = func() (Figures, error) { return guidellm(out) }
	case "aiperf":
		words = []string{"profile", "-m", a.Model, "--url", a.URL, "--endpoint-type", "completions", "--streaming", "--tokenizer", tokenizer,
			"--concurrency", n(a.Concurrency), "--request-count", n(a.Requests), "--isl", n(a.Prompt), "--osl", n(a.Tokens),
			"--extra-inputs", "ignore_eos:true", "--artifact-dir", dir, "--ui", "none"}
		read = func() (Figures, error) { return aiperf(filepath.Join(dir, "profile_export_aiperf.json")) }
	default:
		return Figures{}, fmt.Errorf("no peer %q", name)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(venv, "bin", name), words...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append(os.Environ(), "HF_HOME="+filepath.Join(venv, "hf"), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "NO_PROXY=*")
	began := time.Now()
	said, err := cmd.CombinedOutput()
	wall := time.Since(began).Seconds()
	if err != nil {
		return Figures{}, fmt.Errorf("%s: %w: %s", name, err, lastLine(said))
	}
	f, err := read()
	if err != nil {
		return Figures{}, fmt.Errorf("%s: %w: %s", name, err, lastLine(said))
	}
	f.Version = strings.TrimSpace(string(installed))
	f.WallS, f.UserS, f.SystemS = wall, cmd.ProcessState.UserTime().Seconds(), cmd.ProcessState.SystemTime().Seconds()
	return f, nil
}

func lastLine(said []byte) string {
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	return lines[len(lines)-1]
}

// library serves a book of made-up words, which llama-benchy takes its prompts
// from.
func library() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var book strings.Builder
	for i := range 60_000 {
		book.WriteString(strconv.FormatInt(int64(i)*2654435761%1_000_003, 36) + " ")
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(book.String())) })}
	go s.Serve(l)
	return "http://" + l.Addr().String() + "/book.txt", func() { s.Close() }, nil
}

func load(path string, to any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return errors.New("it has written no result")
	}
	return json.Unmarshal(b, to)
}

// positive is x times by, or nil where there is no x.
func positive(x, by float64) *float64 {
	if !(x > 0) {
		return nil
	}
	x *= by
	return &x
}

func benchy(path string, a Ask) (f Figures, err error) {
	type mean struct{ Mean float64 }
	var out struct {
		Benchmarks []struct {
			TG   mean  `json:"tg_req_throughput"`
			TTFT *mean `json:"e2e_ttft"`
		}
	}
	if err := load(path, &out); err != nil {
		return f, err
	}
	if len(out.Benchmarks) != 1 {
		return f, errors.New("its result holds no benchmark")
	}
	b := out.Benchmarks[0]
	f.DecodeTokS = positive(b.TG.Mean, 1)
	if b.TTFT != nil {
		f.TTFTS = positive(b.TTFT.Mean, 1e-3)
	}
	f.RequestsDone = max(1, a.Requests/a.Concurrency) * a.Concurrency
	return f, nil
}

func guidellm(path string) (f Figures, err error) {
	type figure struct{ Successful struct{ Mean float64 } }
	var out struct {
		Benchmarks []struct {
			Metrics struct {
				TTFT  figure                   `json:"time_to_first_token_ms"`
				ITL   figure                   `json:"inter_token_latency_ms"`
				Total struct{ Successful int } `json:"request_totals"`
			}
		}
	}
	if err := load(path, &out); err != nil {
		return f, err
	}
	if len(out.Benchmarks) != 1 {
		return f, errors.New("its result holds no benchmark")
	}
	m := out.Benchmarks[0].Metrics
	f.TTFTS, f.RequestsDone = positive(m.TTFT.Successful.Mean, 1e-3), m.Total.Successful
	if itl := m.ITL.Successful.Mean; itl > 0 {
		f.DecodeTokS = positive(1e3/itl, 1)
	}
	return f, nil
}

func aiperf(path string) (f Figures, err error) {
	type figure struct{ Avg float64 }
	var out struct {
		TTFT     figure `json:"time_to_first_token"`
		ITL      figure `json:"inter_token_latency"`
		Requests figure `json:"request_count"`
	}
	if err := load(path, &out); err != nil {
		return f, err
	}
	f.TTFTS, f.RequestsDone = positive(out.TTFT.Avg, 1e-3), int(out.Requests.Avg)
	if out.ITL.Avg > 0 {
		f.DecodeTokS = positive(1e3/out.ITL.Avg, 1)
	}
	return f, nil
}
