package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asServer makes the test binary a server, for tests of whole processes.
const asServer = "TWOPOINT_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		os.Exit(Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process is a server in a process of its own.
type process struct {
	cmd  *exec.Cmd
	url  string
	log  chan string // the log's lines after the ready line
	body bytes.Buffer
}

// launch starts a server and waits for its ready line.
func launch(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"--port", "0"}, args...)...)
	cmd.Env = append(os.Environ(), asServer+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, log: make(chan string, 1000)}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "Listening on "); ok {
			p.url = url
		}
		if lines.Text() == "The server is fired up and ready to roll!" {
			break
		}
	}
	if p.url == "" {
		t.Fatal("the server ended before it was ready")
	}
	go func() {
		defer close(p.log)
		for lines.Scan() {
			p.log <- lines.Text()
		}
	}()
	return p
}

// rest drains the log until the process closes it, and returns its exit state.
func (p *process) rest() ([]string, syscall.WaitStatus) {
	var out []string
	for line := range p.log {
		out = append(out, line)
	}
	p.cmd.Wait()
	return out, p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (p *process) generate(seed, n int) (*http.Response, error) {
	data, err := json.Marshal(object{"input_ids": prompt(uint64(seed), n), "sampling_params": object{"max_new_tokens": 2, "ignore_eos": true}})
	if err != nil {
		return nil, err
	}
	resp, err := http.Post(p.url+"/generate", "application/json", bytes.NewReader(data))
	if err == nil {
		_, err = io.Copy(&p.body, resp.Body)
		resp.Body.Close()
	}
	return resp, err
}

// static builds this test as the product is built: with cgo or the race detector
// the C library's threads and the detector's shadow would hit the limit first.
func static(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "serve.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

func TestMemoryLimitKills(t *testing.T) {
	binary := static(t)
	for _, limit := range []string{"9Mi", "24Mi"} {
		for _, model := range []string{"tiny-gqa", "tiny-mla"} {
			t.Run(model+"/"+limit, func(t *testing.T) {
				p := launch(t, binary, "--mem-limit", limit, "--model", model, "--context-length", "200000", "--max-total-tokens", "400000", "--kernel", "split_grouped")
				// Prefixes stay in the pool, so that it grows request by request.
				answered := 0
				for {
					resp, err := p.generate(answered, 1000)
					if err != nil {
						break
					}
					if resp.StatusCode != 200 {
						t.Fatalf("%s %s", resp.Status, &p.body)
					}
					answered++
				}
				log, status := p.rest()
				if !status.Signaled() || status.Signal() != syscall.SIGKILL {
					t.Errorf("exit %v, want a kill; log %q", status, log)
				}
				want := regexp.MustCompile(`^out of memory: cannot map [0-9]+ bytes of KV cache: cannot allocate memory$`)
				if len(log) == 0 || !want.MatchString(log[len(log)-1]) {
					t.Errorf("log ends with %q", log)
				}
				if answered < 2 {
					t.Errorf("the server died at request %d", answered+1)
				}
			})
		}
	}
}

func TestTermEndsGracefully(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := launch(t, os.Args[0])
		answer := make(chan string)
		go func() {
			data := `{"input_ids":[1,2,3],"stream":true,"sampling_params":{"max_new_tokens":30000,"ignore_eos":true}}`
			resp, err := http.Post(p.url+"/generate", "application/json", strings.NewReader(data))
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			started := false
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 4<<20)
			last := ""
			for lines.Scan() {
				if !started {
					started = true
					answer <- ""
				}
				if lines.Text() != "" {
					last = lines.Text()
				}
			}
			answer <- last
		}()
		if early := <-answer; early != "" {
			t.Fatal(early)
		}
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if last := <-answer; last != "data: [DONE]" {
			t.Errorf("%v: the stream ends with %q", sig, last)
		}
		log, status := p.rest()
		if !status.Exited() || status.ExitStatus() != 0 {
			t.Errorf("%v: exit %v, log %q", sig, status, log)
		}
	}
}

func TestCommandLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown flag":    {[]string{"--mem-fraction-static", "0.9"}, 2, "error: unrecognized arguments: --mem-fraction-static\n"},
		"argument":        {[]string{"tiny-gqa"}, 2, "error: unrecognized arguments: tiny-gqa\n"},
		"no integer":      {[]string{"--page-size", "x"}, 2, "error: invalid argument \"x\" for \"--page-size\""},
		"placement":       {[]string{"--placement", "random"}, 2, "invalid choice"},
		"size":            {[]string{"--mem-limit", "9Ti"}, 2, "not a size"},
		"size overflow":   {[]string{"--mem-limit", "9999999999Gi"}, 2, "not a size"},
		"port in use":     {[]string{"--port", port}, 1, "address already in use"},
		"unknown model":   {[]string{"--model-path", "gpt"}, 1, "model \"gpt\" not found; there are tiny-gqa, tiny-mla, small-gqa"},
		"unknown kernel":  {[]string{"--kernel", "fast"}, 1, "argument --kernel: unknown kernel \"fast\""},
		"no page":         {[]string{"--page-size", "0"}, 1, "argument --page-size: invalid value 0: not in 1 to"},
		"page over pool":  {[]string{"--page-size", "4096", "--max-total-tokens", "100"}, 1, "no room for a page"},
		"negative splits": {[]string{"--splits", "-1"}, 1, "argument --splits"},
		"too many splits": {[]string{"--splits", "5000"}, 1, "argument --splits: invalid value 5000"},
		"help":            {[]string{"--help"}, 0, "--chunked-prefill-size"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var stdout, stderr bytes.Buffer
			if code := Run(ctx, c.args, &stdout, &stderr); code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			out := &stderr
			if c.code == 0 {
				out = &stdout
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("%q lacks %q", out, c.want)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "12": 12, "3K": 3000, "3Ki": 3072, "64Mi": 64 << 20, "1G": 1e9, "2Gi": 2 << 30} {
		var got sizeFlag
		if err := got.Set(in); err != nil || int64(got) != want {
			t.Errorf("%q is %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "K", "1.5M", "-1", "1i", "1MB", "1KM"} {
		if err := new(sizeFlag).Set(in); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}
