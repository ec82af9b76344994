package llamacpp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/schema"
)

// captured is where the answers of a real llama-server lie, with the requests
// that they answer in exchanges.json.
const captured = "../../../test/real/testdata/llamacpp"

// replay serves captured answers: routes maps METHOD /path to a file, with a
// status other than 200 before it where there is one ("501 erase.json").
func replay(t *testing.T, routes map[string]string) *engine.Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, ok := routes[r.Method+" "+r.URL.Path]
		if !ok {
			t.Errorf("unexpected request: %s %s", r.Method, r.URL.Path)
			return
		}
		status := 200
		if rest, is := strings.CutPrefix(file, "501 "); is {
			status, file = 501, rest
		} else if rest, is := strings.CutPrefix(file, "503 "); is {
			status, file = 503, rest
		} else if rest, is := strings.CutPrefix(file, "400 "); is {
			status, file = 400, rest
		}
		b, err := os.ReadFile(filepath.Join(captured, file))
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if strings.HasSuffix(file, ".sse") {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		w.WriteHeader(status)
		w.Write(b)
	}))
	t.Cleanup(s.Close)
	c, err := engine.NewClient(s.URL, "", engine.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func generate(t *testing.T, file string, n int) event.Sample {
	t.Helper()
	c := replay(t, map[string]string{"POST /completion": file})
	return Engine{}.Generate(t.Context(), c, engine.Request{IDs: make([]int32, 24), MaxTokens: n, Stream: true, NoReuse: true})
}

// TestCaptured reads what a real server answered. The expected figures are its
// own, as they stand in the files.
func TestCaptured(t *testing.T) {
	for _, c := range []struct {
		file   string
		n      int
		tokens []int32 // in each chunk; nil: not streamed
		cached int64
		finish string
	}{
		{"completion_stream.sse", 5, []int32{1, 1, 1, 1, 1}, 0, "length"},
		{"completion_stream_fields.sse", 5, []int32{1, 1, 1, 1, 1}, 0, "length"},
		{"completion_stream_timings.sse", 3, []int32{1, 1, 1}, 0, "length"},
		{"completion_stream_progress.sse", 3, []int32{1, 1, 1}, 0, "length"},
		{"completion_stream_held_back.sse", 12, []int32{1, 4, 1, 1, 1, 2, 1, 1}, 0, "length"},
		{"completion_stream_cached.sse", 5, []int32{1, 1, 1, 1, 1}, 0, "length"},
		{"completion.json", 5, nil, 0, "length"},
		{"completion_cached.json", 5, nil, 23, "length"},
		{"completion_fields.json", 5, nil, 0, "length"},
	} {
		s := generate(t, c.file, c.n)
		if s.Error != "" || s.Finish != c.finish {
			t.Errorf("%s: %q %q, finish %q", c.file, s.Error, s.Detail, s.Finish)
			continue
		}
		if *s.PromptTokens != 24 || *s.CompletionTokens != int64(c.n) || *s.CachedTokens != c.cached {
			t.Errorf("%s: prompt %d, completion %d, cached %d", c.file, *s.PromptTokens, *s.CompletionTokens, *s.CachedTokens)
		}
		if !slices.Equal(s.ChunkTokens, c.tokens) || s.Streamed != (c.tokens != nil) {
			t.Errorf("%s: chunks of %v", c.file, s.ChunkTokens)
		}
		if s.ServerPrefillS == nil || s.ServerDecodeSPerTok == nil || *s.ServerPrefillS <= 0 || *s.ServerDecodeSPerTok <= 0 {
			t.Errorf("%s: server's times %v %v", c.file, s.ServerPrefillS, s.ServerDecodeSPerTok)
		}
	}
	// predicted_ms covers one step less than predicted_n: 0.785 ms for 5 tokens.
	if s := generate(t, "completion_stream_fields.sse", 5); *s.ServerDecodeSPerTok != 0.785/1e3/4 {
		t.Errorf("decode %v s a token", *s.ServerDecodeSPerTok)
	}
	if s := generate(t, "completion_one_token.json", 1); s.Error != "" || s.ServerDecodeSPerTok != nil {
		t.Errorf("one token: %q, decode %v", s.Error, s.ServerDecodeSPerTok)
	}
	if a, b := generate(t, "completion_stream.sse", 5), generate(t, "completion.json", 5); a.OutputSHA256 == "" || a.OutputSHA256 != b.OutputSHA256 {
		t.Errorf("output %s streamed, %s whole", a.OutputSHA256, b.OutputSHA256)
	}
	if a, b := generate(t, "completion_stream_timings.sse", 3), generate(t, "completion_stream_progress.sse", 3); a.OutputSHA256 != b.OutputSHA256 {
		t.Error("ids in progress reports are taken for output")
	}
	s := generate(t, "completion_context_full.json", 5)
	if s.Error != "" || *s.CompletionTokens != 2 || len(s.Notes) != 1 {
		t.Errorf("context full: %+v", s)
	}
	s = generate(t, "400 completion_stream_context_exceeded.json", 5)
	if s.Error != "http-error" || s.HTTPStatus != 400 || !strings.Contains(s.Detail, "exceeds the available context size") {
		t.Errorf("context exceeded: %+v", s)
	}
}

func TestCapturedControl(t *testing.T) {
	ctx := t.Context()
	loading := replay(t, map[string]string{"GET /health": "503 health_loading.json"})
	if err := (Engine{}).Ready(ctx, loading, schema.Variant{}); !errors.Is(err, engine.ErrNotYet) || !strings.Contains(err.Error(), "Loading model") {
		t.Errorf("loading: %v", err)
	}
	ready := replay(t, map[string]string{
		"GET /health": "health.json", "GET /v1/models": "models.json", "GET /props": "props.json", "GET /slots": "slots.json",
		"POST /completion": "completion_one_token.json", "POST /slots/0": "erase.json", "POST /tokenize": "tokenize.json",
	})
	if err := (Engine{}).Ready(ctx, ready, schema.Variant{}); err != nil {
		t.Errorf("ready: %v", err)
	}
	info, err := Engine{}.Info(ctx, ready, schema.Variant{})
	if err != nil || info.Model == "" || info.ContextLimit != 8192 || info.KVPoolTokens != 0 || info.TP != 0 || !strings.HasPrefix(info.Version, "b") || info.Speculative == nil || *info.Speculative {
		t.Errorf("info: %+v, %v", info, err)
	}
	if err := (Engine{}).WaitIdle(ctx, ready); err != nil {
		t.Errorf("idle: %v", err)
	}
	if ids, err := (Engine{}).Tokenize(ctx, ready, "x"); err != nil || len(ids) == 0 {
		t.Errorf("tokenize: %v %v", ids, err)
	}
	if f := (Engine{}).Flush(ctx, ready); f.OK == nil || !*f.OK {
		t.Errorf("flush: %+v", f)
	}
	unable := replay(t, map[string]string{"GET /props": "props.json", "POST /slots/0": "501 erase_unsupported.json"})
	if f := (Engine{}).Flush(ctx, unable); f.OK == nil || *f.OK || f.Status != 501 {
		t.Errorf("flush without the switch: %+v", f)
	}
}

// FuzzParse holds that no event, whatever its bytes, ends the program or lets a
// negative count through.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(captured, "completion*.json"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no captured answers: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"stop":true,"tokens_predicted":-3,"timings":{"cache_n":-1,"prompt_n":0,"predicted_n":5,"predicted_ms":1,"draft_n":9,"draft_n_accepted":8}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p parser
		var s event.Sample
		for range 2 {
			if part, err := p.parse(data, &s); err == nil && part.Tokens < 0 {
				t.Errorf("%d tokens in %q", part.Tokens, data)
			}
		}
		for _, n := range []*int64{s.PromptTokens, s.CompletionTokens, s.CachedTokens, s.Steps} {
			if n != nil && *n < 0 {
				t.Errorf("count %d from %q", *n, data)
			}
		}
	})
}
