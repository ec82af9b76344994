package enginetest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
	"twopoint/runner/engine/enginetest"
	"twopoint/schema"
	"twopoint/test/standin"
)

const model = "standin"

var variant = schema.Variant{ServedName: model}

// faces are what the stand-in shows to each adapter: the plain OpenAI adapter is
// given vLLM, which has all the routes that it knows.
var faces = map[string]string{"sglang": "sglang", "openai": "vllm", "llamacpp": "llamacpp"}

// open starts a stand-in for an adapter. Where the script says nothing of time
// there is next to none in it.
func open(t testing.TB, dialect string, s standin.Script) (*standin.Server, string) {
	t.Helper()
	s.Face = faces[dialect]
	if s.Limit == 0 {
		s.Limit = 4096
	}
	if s.Clock.PrefillTokS == 0 {
		s.Clock.PrefillTokS = 1e9
	}
	if s.Clock.StepS == 0 {
		s.Clock.StepS = 1e-5
	}
	return standin.Open(t, s)
}

// clientOf is a client without a key and limits for a stand-in of a script.
func clientOf(t testing.TB, dialect string, s standin.Script) *engine.Client {
	t.Helper()
	_, url := open(t, dialect, s)
	return enginetest.Client(t, url, "", engine.Limits{})
}

func adapter(t testing.TB, name string) engine.Engine {
	t.Helper()
	e, ok := engines.Lookup(name)
	if !ok {
		t.Fatalf("no engine %q", name)
	}
	return e
}

func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		dialect string
		script  standin.Script
	}{
		"sglang":                {"sglang", standin.Script{}},
		"sglang/delta":          {"sglang", standin.Script{Stream: standin.Stream{Delta: true}}},
		"sglang/chunk/bytewise": {"sglang", standin.Script{Stream: standin.Stream{PerChunk: 3, Bytewise: true}}},
		"sglang/chunk/delta":    {"sglang", standin.Script{Stream: standin.Stream{PerChunk: 3, Delta: true}}},
		"sglang/key":            {"sglang", standin.Script{Key: "hush"}},
		"openai":                {"openai", standin.Script{}},
		"openai/no ids":         {"openai", standin.Script{Stream: standin.Stream{NoIDs: true}}},
		"openai/chunk/crlf":     {"openai", standin.Script{Stream: standin.Stream{PerChunk: 2, EOL: "\r\n", Field: "data:"}}},
		"llamacpp":              {"llamacpp", standin.Script{}},
		"llamacpp/comment":      {"llamacpp", standin.Script{Stream: standin.Stream{Preamble: ": hello\n\n"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := open(t, c.dialect, c.script)
			enginetest.Run(t, adapter(t, c.dialect), func(*testing.T) enginetest.Server {
				return enginetest.Server{URL: url, Variant: variant, Key: c.script.Key}
			})
		})
	}
}

// ask sends one streamed request of n tokens to a stand-in and returns the sample.
func ask(t *testing.T, dialect string, script standin.Script, n int, limits engine.Limits) event.Sample {
	t.Helper()
	_, url := open(t, dialect, script)
	return send(t, dialect, enginetest.Client(t, url, "", limits), n)
}

func send(t *testing.T, dialect string, c *engine.Client, n int) event.Sample {
	t.Helper()
	return adapter(t, dialect).Generate(t.Context(), c, engine.Request{Model: model, IDs: enginetest.Prompt(7, 50), MaxTokens: n, Stream: true})
}

func each(t *testing.T, run func(t *testing.T, dialect string)) {
	for d := range faces {
		t.Run(d, func(t *testing.T) { run(t, d) })
	}
}

func TestC01FlushIsRefusedThenAccepted(t *testing.T) {
	for _, dialect := range []string{"sglang", "openai"} {
		t.Run(dialect, func(t *testing.T) {
			flusher := adapter(t, dialect).(engine.Flusher)
			got := flusher.Flush(t.Context(), clientOf(t, dialect, standin.Script{Flush: standin.Flush{Refuse: 3}}))
			if got.OK == nil || !*got.OK || got.Attempts != 4 || got.Status != 200 || got.WaitS <= 0 {
				t.Errorf("%+v", got)
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("out of patience"))
			defer cancel()
			got = flusher.Flush(ctx, clientOf(t, dialect, standin.Script{Flush: standin.Flush{Refuse: -1}}))
			if got.OK == nil || *got.OK || got.Attempts < 2 || got.Attempts > 8 {
				t.Errorf("refused for ever: %+v", got)
			}
			if dialect == "sglang" && !strings.Contains(got.Detail, "pending work") {
				t.Errorf("the server's words are lost: %q", got.Detail)
			}
		})
	}
}

func TestC03NoFlushRoute(t *testing.T) {
	for dialect, want := range map[string][]string{
		"sglang":   {"/flush_cache", "404"},
		"openai":   {"/reset_prefix_cache", "404", "VLLM_SERVER_DEV_MODE"},
		"llamacpp": {"501", "--slot-save-path"},
	} {
		got := adapter(t, dialect).(engine.Flusher).Flush(t.Context(), clientOf(t, dialect, standin.Script{Flush: standin.Flush{NoRoute: true}}))
		if got.OK == nil || *got.OK || got.Status == 0 {
			t.Errorf("%s: %+v", dialect, got)
		}
		for _, w := range want {
			if !strings.Contains(got.Detail, w) {
				t.Errorf("%s: %q lacks %q", dialect, got.Detail, w)
			}
		}
	}
	empty := clientOf(t, "openai", standin.Script{Flush: standin.Flush{Body: " "}})
	if got := adapter(t, "openai").(engine.Flusher).Flush(t.Context(), empty); got.OK != nil || got.Status != 200 {
		t.Errorf("an empty answer is no verdict: %+v", got)
	}
}

func TestC04CachedNotReportedIsNotZero(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		if s := ask(t, dialect, standin.Script{Cache: standin.Cache{Report: "omit"}}, 3, engine.Limits{}); s.CachedTokens != nil {
			t.Errorf("not reported became %d", *s.CachedTokens)
		}
		c := clientOf(t, dialect, standin.Script{})
		if s := send(t, dialect, c, 3); s.CachedTokens == nil || *s.CachedTokens != 0 {
			t.Errorf("0 became %v", s.CachedTokens)
		}
		if s := send(t, dialect, c, 3); s.CachedTokens == nil || *s.CachedTokens != 49 {
			t.Errorf("49 became %v", s.CachedTokens)
		}
	})
}

func TestC07StoppedEarly(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		s := ask(t, dialect, standin.Script{Answer: standin.Answer{Stop: 9}}, 17, engine.Limits{})
		if s.Error != "" || *s.CompletionTokens != 9 || s.Finish != "stop" || s.TokensRequested != 17 {
			t.Errorf("%+v", s)
		}
	})
}

func TestC08OneChunkIsNotOneToken(t *testing.T) {
	for _, delta := range []bool{false, true} {
		for _, dialect := range []string{"sglang", "openai"} {
			s := ask(t, dialect, standin.Script{Stream: standin.Stream{PerChunk: 4, Delta: delta}}, 17, engine.Limits{})
			if s.Error != "" || *s.CompletionTokens != 17 || !slices.Equal(s.ChunkTokens, []int32{1, 3, 4, 4, 4, 1}) {
				t.Errorf("%s: %v tokens in chunks of %v", dialect, s.CompletionTokens, s.ChunkTokens)
			}
		}
	}
	// Without ids or counts the number in a chunk is not known.
	s := ask(t, "openai", standin.Script{Stream: standin.Stream{PerChunk: 4, NoIDs: true}}, 17, engine.Limits{})
	if s.ChunkTokens != nil || len(s.ChunkS) != 6 || *s.CompletionTokens != 17 {
		t.Errorf("%v in %d chunks", s.ChunkTokens, len(s.ChunkS))
	}
}

func TestC10ReasoningIsGeneratedToo(t *testing.T) {
	for _, field := range []string{"reasoning_content", "reasoning"} {
		c := clientOf(t, "openai", standin.Script{
			Answer: standin.Answer{NoRoute: []string{"/v1/completions"}}, Stream: standin.Stream{Reasoning: field, EmptyRole: true}, Clock: standin.Clock{ExtraS: 0.020},
		})
		s := adapter(t, "openai").Generate(t.Context(), c, engine.Request{Model: model, Text: "Why is the sky blue?", MaxTokens: 17, Stream: true})
		if s.Error != "" || len(s.ChunkS) != 17 || *s.CompletionTokens != 17 || s.OutputSHA256 == "" {
			t.Errorf("%s: %+v", field, s)
		}
		if !slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "/v1/completions") }) {
			t.Errorf("%s: notes %q", field, s.Notes)
		}
	}
}

func TestC11TheFirstEventIsNotAToken(t *testing.T) {
	s := ask(t, "openai", standin.Script{Stream: standin.Stream{EmptyRole: true}, Clock: standin.Clock{ExtraS: 0.050}}, 17, engine.Limits{})
	if s.Error != "" || len(s.ChunkS) != 17 || *s.CompletionTokens != 17 {
		t.Errorf("%+v", s)
	}
	if *s.TTFTS < 0.050 { // the server's own pause: not a matter of speed
		t.Errorf("ttft %v s is before the first token", *s.TTFTS)
	}
}

func TestC14NoUsageOrTheOptionRefused(t *testing.T) {
	s := ask(t, "openai", standin.Script{Counts: standin.Counts{NoUsage: true}, Stream: standin.Stream{NoIDs: true}}, 17, engine.Limits{})
	if s.Error != "" || s.CompletionTokens != nil || s.PromptTokens != nil || s.CachedTokens != nil || len(s.ChunkS) != 17 {
		t.Errorf("no usage: %+v", s)
	}
	for _, status := range []int{400, 422} {
		srv, url := open(t, "openai", standin.Script{Answer: standin.Answer{Refuse: []string{"stream_options"}, RefuseStatus: status}})
		c := enginetest.Client(t, url, "", engine.Limits{})
		for range 2 {
			s = send(t, "openai", c, 5)
			if s.Error != "" || s.HTTPStatus != 200 || !slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "stream_options") }) {
				t.Errorf("status %d: %+v", status, s)
			}
		}
		if n := len(srv.Bodies()); n != 3 { // one retry, remembered
			t.Errorf("status %d: %d requests, want 3", status, n)
		}
	}
	srv, url := open(t, "openai", standin.Script{Answer: standin.Answer{Refuse: []string{"prompt"}}})
	s = send(t, "openai", enginetest.Client(t, url, "", engine.Limits{}), 5)
	if n := len(srv.Bodies()); s.Error != "http-error" || s.HTTPStatus != 400 || n != 1 {
		t.Errorf("a field that is not optional: %+v after %d requests", s, n)
	}
}

func TestC16ReadyTooEarly(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		c := clientOf(t, dialect, standin.Script{Life: standin.Life{LoadAnswers: 3}})
		for i := range 3 {
			if err := adapter(t, dialect).Ready(t.Context(), c, variant); !errors.Is(err, engine.ErrNotYet) {
				t.Errorf("try %d: %v", i, err)
			}
		}
		if err := adapter(t, dialect).Ready(t.Context(), c, variant); err != nil {
			t.Error(err)
		}
		empty := clientOf(t, dialect, standin.Script{Life: standin.Life{NoModels: true}})
		if err := adapter(t, dialect).Ready(t.Context(), empty, variant); !errors.Is(err, engine.ErrNotYet) {
			t.Errorf("an empty list of models: %v", err)
		}
	})
}

func TestC20ErrorsInsideTheAnswer(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		for _, at := range []int{1, 6} {
			s := ask(t, dialect, standin.Script{Stream: standin.Stream{ErrorAt: at}}, 17, engine.Limits{})
			if s.Error != "http-error" || s.HTTPStatus != 200 || s.Detail != "CUDA out of memory" {
				t.Errorf("at %d: %q %d %q", at, s.Error, s.HTTPStatus, s.Detail)
			}
		}
	})
	s := ask(t, "sglang", standin.Script{Stream: standin.Stream{Abort: "out of pages"}}, 5, engine.Limits{})
	if s.Error != "http-error" || s.Finish != "abort" || s.Detail != "aborted by the server (400): out of pages" {
		t.Errorf("abort: %q %q %q", s.Error, s.Finish, s.Detail)
	}
}

func TestC23KeepAliveComments(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		preamble := ":\n\n: ping\n\nevent: ping\ndata:\n\nid: 3\nretry: 10\n\n"
		for _, st := range []standin.Stream{
			{Preamble: preamble}, {Preamble: preamble, Field: "data:"}, {Preamble: preamble, EOL: "\r\n"}, {Preamble: preamble, Bytewise: true},
		} {
			st.Comments = true
			s := ask(t, dialect, standin.Script{Stream: st, Clock: standin.Clock{ExtraS: 0.030}}, 5, engine.Limits{})
			enginetest.Whole(t, s, 50, 5)
			if len(s.ChunkS) != 5 || *s.TTFTS < 0.030 {
				t.Errorf("%d chunks, ttft %v", len(s.ChunkS), *s.TTFTS)
			}
		}
	})
}

func TestC25OneLongLine(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		enginetest.Whole(t, ask(t, dialect, standin.Script{Stream: standin.Stream{Padding: 300 << 10}}, 5, engine.Limits{}), 50, 5)
		s := ask(t, dialect, standin.Script{Stream: standin.Stream{Padding: engine.MaxLine + 1}}, 5, engine.Limits{})
		if s.Error != "bad-response" || s.Detail != engine.ErrLongLine.Error() {
			t.Errorf("%q %q", s.Error, s.Detail)
		}
	})
}

func TestC27HowAStreamMayEnd(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		for _, c := range []struct {
			end         string
			kind        string // "" is whole
			detail      string
			note        string
			notLlamacpp bool // its last event is all in one
		}{
			{end: ""},
			{end: "no-done", note: "no end marker", notLlamacpp: true},
			{end: "done-only", note: "no finish reason", notLlamacpp: true},
			{end: "null-finish", note: "no finish reason", notLlamacpp: true},
			{end: "early", kind: "stream-cut", detail: "closed early after 5 of 17 tokens"},
			{end: "fin", kind: "stream-cut", detail: "closed early after 5 of 17 tokens"},
			{end: "reset", kind: "stream-cut", detail: "reset after 5 of 17 tokens"},
		} {
			if c.notLlamacpp && dialect == "llamacpp" {
				continue
			}
			s := ask(t, dialect, standin.Script{Stream: standin.Stream{End: c.end, Cut: 5}, Clock: standin.Clock{StepS: 0.001}}, 17, engine.Limits{})
			if want := map[string]string{"early": "cut", "fin": "eof", "reset": "reset"}[c.end]; s.Transport != want {
				t.Errorf("end %q: transport %q, want %q", c.end, s.Transport, want)
			}
			if s.Error != c.kind || s.Detail != c.detail {
				t.Errorf("end %q: %q %q, want %q %q", c.end, s.Error, s.Detail, c.kind, c.detail)
			}
			noted := slices.ContainsFunc(s.Notes, func(n string) bool { return strings.HasPrefix(n, c.note) })
			if c.note != "" && !noted || c.note == "" && len(s.Notes) > 0 {
				t.Errorf("end %q: notes %q, want %q", c.end, s.Notes, c.note)
			}
		}
	})
	// Without its last event an answer of llama.cpp is cut, whatever came before.
	if s := ask(t, "llamacpp", standin.Script{Stream: standin.Stream{End: "no-done"}}, 5, engine.Limits{}); s.Error != "stream-cut" {
		t.Errorf("%q %q", s.Error, s.Detail)
	}
}

// proxied counts what reaches the proxy that the environment names for all
// tests; Go reads these variables once.
var proxied atomic.Int64

func TestMain(m *testing.M) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied.Add(1)
		w.WriteHeader(503)
	}))
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		os.Setenv(name, proxy.URL)
	}
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

func TestC28NoProxyForAnyAddress(t *testing.T) {
	_, url := open(t, "sglang", standin.Script{})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "localhost"} {
		c := enginetest.Client(t, "http://"+net.JoinHostPort(host, port), "", engine.Limits{})
		if err := adapter(t, "sglang").Ready(t.Context(), c, variant); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		enginetest.Whole(t, send(t, "sglang", c, 2), 50, 2)
		if strings.Contains(c.Base(), "0.0.0.0") {
			t.Errorf("connects to %s", c.Base())
		}
	}
	// Go's own rules send this name through the proxy.
	c := enginetest.Client(t, "http://twopoint.invalid:80", "", engine.Limits{Connect: 2 * time.Second})
	if s := send(t, "sglang", c, 2); s.HTTPStatus != 0 || s.Error == "" {
		t.Errorf("a name that does not exist answered: %+v", s)
	}
	if status, err := c.Do(t.Context(), 3*time.Second, "GET", "/", nil, nil); status != 0 || err == nil {
		t.Errorf("a name that does not exist answered %d, %v", status, err)
	}
	if n := proxied.Load(); n > 0 {
		t.Errorf("%d requests went to the proxy", n)
	}
	for base, want := range map[string]string{
		"http://[::]:9": "http://[::1]:9", "http://0.0.0.0:9/base/": "http://127.0.0.1:9/base", "http://host": "http://host:80",
	} {
		if got := enginetest.Client(t, base, "", engine.Limits{}).Base(); got != want {
			t.Errorf("%s became %s, want %s", base, got, want)
		}
	}
}

func TestC29AFreshConnectionForEachRequest(t *testing.T) {
	srv, url := open(t, "openai", standin.Script{})
	c := enginetest.Client(t, url, "", engine.Limits{})
	for range 10 {
		s := send(t, "openai", c, 2)
		enginetest.Whole(t, s, 50, 2)
		if s.ConnectS <= 0 {
			t.Errorf("connect %v s", s.ConnectS)
		}
	}
	for range 5 {
		if _, err := c.Do(t.Context(), time.Minute, "GET", "/health", nil, nil); err != nil {
			t.Error(err)
		}
	}
	if n := srv.Conns(); n != 15 {
		t.Errorf("%d connections for 15 requests", n)
	}
}

func TestC30LimitsAreNamed(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		// Comments every 5 ms keep the connection alive and extend no limit.
		hung := standin.Script{Stream: standin.Stream{Stall: 2, Comments: true}, Clock: standin.Clock{StepS: 0.001}}
		s := ask(t, dialect, hung, 9, engine.Limits{Total: 150 * time.Millisecond})
		if s.Error != "timeout" || s.Limit != "total" || !strings.Contains(s.Detail, "150ms") || !strings.Contains(s.Detail, "after 2 of 9") {
			t.Errorf("total: %q %q %q", s.Error, s.Limit, s.Detail)
		}
		slow := standin.Script{Stream: standin.Stream{Comments: true}, Clock: standin.Clock{ExtraS: 60}}
		s = ask(t, dialect, slow, 2, engine.Limits{FirstToken: 100 * time.Millisecond})
		if s.Error != "timeout" || s.Limit != "first_token" || s.TTFTS != nil || s.TotalS < 0.1 {
			t.Errorf("first token: %q %q %q", s.Error, s.Limit, s.Detail)
		}
		// An event without a token is no token.
		if dialect == "openai" {
			slow.Stream.EmptyRole = true
			if s := ask(t, dialect, slow, 2, engine.Limits{FirstToken: 100 * time.Millisecond}); s.Limit != "first_token" {
				t.Errorf("after an empty event: %q %q", s.Limit, s.Detail)
			}
		}
		// The first token's limit is over once it has come.
		steady := standin.Script{Clock: standin.Clock{StepS: 0.020}}
		enginetest.Whole(t, ask(t, dialect, steady, 8, engine.Limits{FirstToken: 100 * time.Millisecond}), 50, 8)
	})
}

func TestC31BufferedStream(t *testing.T) {
	each(t, func(t *testing.T, dialect string) {
		s := ask(t, dialect, standin.Script{Stream: standin.Stream{Held: -1}, Clock: standin.Clock{ExtraS: 0.100}}, 17, engine.Limits{})
		enginetest.Whole(t, s, 50, 17)
		if !s.Buffered {
			t.Errorf("not seen: chunks at %v of %v", s.ChunkS, s.TotalS)
		}
		if s := ask(t, dialect, standin.Script{Clock: standin.Clock{StepS: 0.003}}, 17, engine.Limits{}); s.Buffered {
			t.Errorf("seen in a proper stream: chunks at %v of %v", s.ChunkS, s.TotalS)
		}
	})
}

func TestTheKeyStaysSecret(t *testing.T) {
	const key = "sk-very-secret"
	each(t, func(t *testing.T, dialect string) {
		_, url := open(t, dialect, standin.Script{Key: "another"}) // its 401 repeats the header
		c := enginetest.Client(t, url, key, engine.Limits{})
		s := send(t, dialect, c, 2)
		err := adapter(t, dialect).Ready(t.Context(), c, variant)
		if err == nil || errors.Is(err, engine.ErrNotYet) || s.Error == "" {
			t.Errorf("refused key: %v, %q", err, s.Error)
		}
		if strings.Contains(fmt.Sprint(err, s.Detail), key) {
			t.Errorf("the key shows: %v, %q", err, s.Detail)
		}
	})
	if _, err := engine.NewClient("http://user:"+key+"@host:1", "", engine.Limits{}); err == nil || strings.Contains(err.Error(), key) {
		t.Errorf("user and password in a url: %v", err)
	}
}

func TestNoGoroutineOutlivesARequest(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, st := range []standin.Stream{{}, {End: "reset", Cut: 2}, {Stall: 2, Comments: true}, {Padding: engine.MaxLine + 1}, {ErrorAt: 2}} {
		t.Run("", func(t *testing.T) {
			ask(t, "sglang", standin.Script{Stream: st}, 9, engine.Limits{Total: 200 * time.Millisecond})
		})
	}
	for try := 0; runtime.NumGoroutine() > before; try++ {
		if try == 200 {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// BenchmarkStream is the client's cost for a streamed token, server included:
// both run in this process.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		dialect string
		delta   bool
	}{{"sglang", false}, {"sglang", true}, {"openai", false}, {"llamacpp", false}} {
		b.Run(fmt.Sprintf("dialect=%s/delta=%v/tokens=512", c.dialect, c.delta), func(b *testing.B) {
			client := clientOf(b, c.dialect, standin.Script{Stream: standin.Stream{Delta: c.delta}, Clock: standin.Clock{Instant: true}})
			e := adapter(b, c.dialect)
			for b.Loop() {
				s := e.Generate(b.Context(), client, engine.Request{Model: model, IDs: enginetest.Prompt(7, 50), MaxTokens: 512, Stream: true})
				if s.Error != "" {
					b.Fatal(s.Error, s.Detail)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/token")
		})
	}
}
