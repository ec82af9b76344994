//go:build real

// Package real checks, against a llama-server that setup.sh installed, the
// facts that the llamacpp adapter is built on, and keeps what that server
// really answered in testdata/llamacpp, where the adapter's own tests read it.
//
//	test/real/setup.sh && go test -tags real ./test/real
//	go test -tags real ./test/real -run TestRecorded -update
//
// Nothing here measures speed. A missing server is a failure, never a skip.
package real

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"twopoint/test/gguf"
)

// benchFlags are what a benchmark server on a small CPU machine should run
// with; docs/engines-llamacpp.md gives the reason for each.
var benchFlags = []string{
	"--ctx-size", "8192", "--parallel", "1", "--threads", "1", "--flash-attn", "on",
	"--fit", "off", "--cache-ram", "0", "--no-ui", "--verbosity", "4", "--metrics", "--slot-save-path", ".",
}

func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("TWOPOINT_LLAMA_SERVER")
	if path == "" {
		path = "../../.real/bin/llama-server"
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("no llama-server, run test/real/setup.sh first: %v", err)
	}
	return path
}

// model writes m as name.gguf into dir.
func model(t *testing.T, dir, name string, m gguf.Model) {
	t.Helper()
	m.Name = name
	f, err := os.Create(filepath.Join(dir, name+".gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// server is one life of a llama-server.
type server struct {
	t    *testing.T
	url  string
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has ended
	log  *logBuffer
}

// launch starts the server in dir, so that paths in its answers and log are
// relative and the same on every machine, and ends it with the test.
func launch(t *testing.T, dir, port string, args ...string) *server {
	t.Helper()
	return launchIn(t, dir, port, append([]string{binary(t), "--host", "127.0.0.1", "--port", port}, args...))
}

func launchIn(t *testing.T, dir, port string, argv []string) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, url: "http://127.0.0.1:" + port, done: make(chan struct{}), log: &logBuffer{}}
	s.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	s.cmd.Dir = dir
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log.String())
		}
	})
	return s
}

// start launches a server and waits until it can generate. It returns with it
// the answers that /health gave meanwhile.
func start(t *testing.T, dir string, args ...string) (*server, []answer) {
	t.Helper()
	s := launch(t, dir, freePort(t), args...)
	var seen []answer
	deadline := time.After(time.Minute)
	for {
		if a, err := s.do("GET", "/health", nil); err == nil {
			if len(seen) == 0 || seen[len(seen)-1].status != a.status {
				seen = append(seen, a)
			}
			if a.status == http.StatusOK {
				return s, seen
			}
		}
		select {
		case <-s.done:
			t.Fatalf("the server ended: %v", s.cmd.ProcessState)
		case <-deadline:
			t.Fatal("the server did not get ready within a minute")
		case <-time.After(time.Millisecond):
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// answer is one HTTP response.
type answer struct {
	status      int
	contentType string
	body        []byte
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}

// do sends a body: nil, raw bytes, or anything that marshals to JSON.
func (s *server) do(method, path string, body any) (answer, error) {
	raw, isRaw := body.([]byte)
	if !isRaw && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return answer{}, err
		}
	}
	req, err := http.NewRequest(method, s.url+path, bytes.NewReader(raw))
	if err != nil {
		return answer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), b}, err
}

func (s *server) mustDo(method, path string, body any) answer {
	s.t.Helper()
	a, err := s.do(method, path, body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

type object = map[string]any

// completion is what the tests read of /completion's final object.
type completion struct {
	Content   string  `json:"content"`
	Tokens    []int32 `json:"tokens"`
	Stop      bool    `json:"stop"`
	StopType  string  `json:"stop_type"`
	Truncated bool    `json:"truncated"`
	Predicted int     `json:"tokens_predicted"`
	Evaluated int     `json:"tokens_evaluated"`
	Timings   *struct {
		CacheN     int     `json:"cache_n"`
		PromptN    int     `json:"prompt_n"`
		PredictedN int     `json:"predicted_n"`
		PromptMS   float64 `json:"prompt_ms"`
	} `json:"timings"`
	Progress *object `json:"prompt_progress"`
}

// complete asks for n tokens after the prompt, greedily, with changes laid
// over that request.
func (s *server) complete(prompt []int32, n int, changes object) (final completion, events []completion) {
	s.t.Helper()
	req := object{"prompt": prompt, "n_predict": n, "ignore_eos": true, "temperature": 0, "return_tokens": true}
	for k, v := range changes {
		req[k] = v
	}
	a := s.mustDo("POST", "/completion", req)
	if a.status != http.StatusOK {
		s.t.Fatalf("status %d: %s", a.status, a.body)
	}
	if req["stream"] != true {
		if err := json.Unmarshal(a.body, &final); err != nil {
			s.t.Fatal(err)
		}
		return final, nil
	}
	for _, data := range sse(a.body) {
		var c completion
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			s.t.Fatalf("%v in event %q", err, data)
		}
		events = append(events, c)
	}
	if len(events) == 0 {
		s.t.Fatal("a stream without events")
	}
	return events[len(events)-1], events[:len(events)-1]
}

// sse gives the data of a complete event stream's events.
func sse(body []byte) (data []string) {
	for event := range strings.SplitSeq(string(body), "\n\n") {
		if d, ok := strings.CutPrefix(strings.TrimSpace(event), "data: "); ok {
			data = append(data, d)
		}
	}
	return data
}

// prompt is n printable tokens; another slot is another prompt from its first
// token on.
func prompt(n, slot int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(gguf.VocabularySize - 1 - (i*i%11+i*7+slot)%29)
	}
	return ids
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (s *server) waitEnd() int {
	s.t.Helper()
	select {
	case <-s.done:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		s.t.Fatal("the server did not end within a minute")
		return -1
	}
}
