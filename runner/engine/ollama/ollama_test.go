package ollama

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/enginetest"
	"twopoint/schema"
	"twopoint/test/standin"
)

// replay serves what Ollama 0.17.4 answered, as it lies in testdata. Generate
// requests get the named files in turn; a file may have a status before it.
func replay(t *testing.T, ps string, generated ...string) (*engine.Client, func() []generate) {
	t.Helper()
	var mu sync.Mutex
	var bodies []generate
	gone := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, file := 200, map[string]string{"/api/version": "version.json", "/api/tags": "tags.json", "/api/ps": ps, "/api/show": "show.json"}[r.URL.Path]
		if mu.Lock(); gone && r.URL.Path == "/api/ps" {
			file = "ps_empty.json"
		}
		mu.Unlock()
		if r.URL.Path == "/api/generate" {
			raw, _ := io.ReadAll(r.Body)
			var g generate
			if err := json.Unmarshal(raw, &g); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if file = "no_model.json"; len(bodies) < len(generated) {
				file = generated[len(bodies)]
			}
			bodies = append(bodies, g)
			gone = file == "unload.json"
		}
		for prefix, code := range map[string]int{"400 ": 400, "404 ": 404, "500 ": 500} {
			if rest, is := strings.CutPrefix(file, prefix); is {
				status, file = code, rest
			}
		}
		b, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if strings.HasSuffix(file, ".ndjson") {
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		w.WriteHeader(status)
		w.Write(b)
	}))
	t.Cleanup(s.Close)
	return enginetest.Client(t, s.URL, "", engine.Limits{}), func() []generate {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(bodies)
	}
}

func ask(t *testing.T, file string, n int, stream bool) event.Sample {
	t.Helper()
	c, _ := replay(t, "ps.json", file)
	return Engine{}.Generate(t.Context(), c, engine.Request{Model: "tiny:latest", Text: "Light is refracted by glass.", MaxTokens: n, Stream: stream})
}

// TestCaptured reads what a real server answered. The expected figures are its
// own, as they stand in the files.
func TestCaptured(t *testing.T) {
	s := ask(t, "stream.ndjson", 5, true)
	if s.Error != "" || s.Finish != "length" || !s.Streamed || len(s.ChunkS) != 5 || s.ChunkTokens != nil || s.TTFTS == nil {
		t.Errorf("stream: %+v", s)
	}
	if *s.PromptTokens != 30 || *s.CompletionTokens != 5 || s.CachedTokens != nil || s.Steps != nil || s.LoadS != nil {
		t.Errorf("stream: prompt %v, completion %v, cached %v, steps %v, load %v", *s.PromptTokens, *s.CompletionTokens, s.CachedTokens, s.Steps, s.LoadS)
	}
	if *s.ServerPrefillS != 0.005601829 || *s.ServerDecodeSPerTok != 0.037620917/4 || *s.ServerTotalS != 0.045154898 {
		t.Errorf("stream: server's times %v %v %v", *s.ServerPrefillS, *s.ServerDecodeSPerTok, *s.ServerTotalS)
	}
	whole := ask(t, "whole.json", 5, false)
	if whole.Error != "" || whole.Streamed || whole.TTFTS != nil || whole.OutputSHA256 == "" || whole.OutputSHA256 != s.OutputSHA256 {
		t.Errorf("whole: %+v", whole)
	}
	if one := ask(t, "stream_one.ndjson", 1, true); one.Error != "" || *one.CompletionTokens != 1 || one.ServerDecodeSPerTok != nil {
		t.Errorf("one token: %+v", one)
	}
	if s := ask(t, "stream_reload.ndjson", 2, true); s.Error != "" || s.LoadS == nil || *s.LoadS != 0.279609057 {
		t.Errorf("a load within a request: %+v", s)
	}
	s = ask(t, "stream_repeats.ndjson", 90, true)
	if s.Error != "stream-cut" || s.Transport != "cut" || !strings.Contains(s.Detail, "Ollama ends an answer") || s.CompletionTokens != nil {
		t.Errorf("a degenerate answer: %+v", s)
	}
	s = ask(t, "stream_crash.ndjson", 3000, true)
	if s.Error != "http-error" || s.Transport != "error-event" || !strings.Contains(s.Detail, "encountered while running the model") {
		t.Errorf("a crash: %+v", s)
	}
	s = ask(t, "400 too_long.json", 3, true)
	if s.Error != "http-error" || s.HTTPStatus != 400 || !strings.Contains(s.Detail, "exceeds the context length") {
		t.Errorf("too long: %+v", s)
	}
	if s := ask(t, "load.json", 3, true); s.Error != "http-error" {
		t.Errorf("a load in place of an answer: %+v", s)
	}
}

func TestCapturedControl(t *testing.T) {
	v := schema.Variant{ModelPath: "tiny", ContextLength: 4096}
	c, bodies := replay(t, "ps.json", "load.json", "load.json", "whole.json")
	if err := (Engine{}).Ready(t.Context(), c, v); err != nil {
		t.Fatalf("ready: %v", err)
	}
	for i, b := range bodies() { // the options of loads are those of requests
		if b.Options.NumCtx != 4096 || b.KeepAlive != -1 || b.Shift || b.Truncate || b.Stream {
			t.Errorf("request %d: %+v", i, b)
		}
	}
	info, err := Engine{}.Info(t.Context(), c, v)
	if err != nil || info.Model != "tiny:latest" || info.ContextLimit != 4096 || info.TokenIDs || info.ExactLength || info.CachedCount || !info.FlushReloads {
		t.Errorf("info: %+v, %v", info, err)
	}
	if info.Settings["model_info.llama.block_count"] != json.Number("4") || info.Settings["details.family"] != "llama" || info.Settings["size_vram"] != json.Number("0") {
		t.Errorf("settings: %v", info.Settings)
	}
	c, _ = replay(t, "ps.json", "load.json")
	if err := (Engine{}).Ready(t.Context(), c, schema.Variant{ModelPath: "tiny", ContextLength: 9999}); err == nil || errors.Is(err, engine.ErrNotYet) {
		t.Errorf("a context beyond the model's: %v", err)
	}
	c, _ = replay(t, "ps.json", "404 no_model.json")
	if err := (Engine{}).Ready(t.Context(), c, schema.Variant{ModelPath: "nosuch"}); err == nil || errors.Is(err, engine.ErrNotYet) {
		t.Errorf("no such model: %v", err)
	}
	c, bodies = replay(t, "ps.json", "unload.json", "load.json", "whole.json")
	if f := (Engine{}).Flush(t.Context(), c); f.OK == nil || !*f.OK || f.Status != 200 {
		t.Errorf("flush: %+v", f)
	}
	if b := bodies(); len(b) != 3 || b[0].KeepAlive != 0 || b[0].Prompt != "" || b[1].Options.NumCtx != 4096 {
		t.Errorf("flush: %+v", b)
	}
	c, _ = replay(t, "ps.json", "load.json")
	if f := (Engine{}).Flush(t.Context(), c); f.OK == nil || *f.OK {
		t.Errorf("a flush that did not unload: %+v", f)
	}
	c, bodies = replay(t, "ps_empty.json")
	s := Engine{}.Generate(t.Context(), c, engine.Request{Model: "tiny", Text: "x", MaxTokens: 2})
	if s.Error != "http-error" || len(bodies()) != 0 || !strings.Contains(s.Detail, "not loaded") {
		t.Errorf("without a loaded model: %+v", s)
	}
	if f := (Engine{}).Flush(t.Context(), c); f.OK == nil || *f.OK {
		t.Errorf("flush without a model: %+v", f)
	}
}

// TestStandin runs what every adapter must do against a server that behaves, and
// holds that its times reach the sample.
func TestStandin(t *testing.T) {
	script := standin.Script{Face: "ollama", Model: "tiny", Limit: 2048, Clock: standin.Clock{PrefillTokS: 50_000, StepS: 0.002}}
	_, url := standin.Open(t, script)
	enginetest.Run(t, Engine{}, func(*testing.T) enginetest.Server {
		return enginetest.Server{URL: url, Variant: schema.Variant{ModelPath: "tiny", ContextLength: 2048}}
	})
	c := enginetest.Client(t, url, "", engine.Limits{})
	s := Engine{}.Generate(t.Context(), c, engine.Request{Model: "tiny", Text: "Light is refracted by glass.", MaxTokens: 17, Stream: true})
	if s.ServerDecodeSPerTok == nil || *s.ServerDecodeSPerTok < 0.0019 || *s.ServerDecodeSPerTok > 0.0021 { // scripted, not measured
		t.Errorf("the server's own time per token: %+v", s)
	}
	// The model stays for a moment after it was unloaded.
	for range 3 {
		f := Engine{}.Flush(t.Context(), c)
		s := Engine{}.Generate(t.Context(), c, engine.Request{Model: "tiny", Text: "Light is refracted.", MaxTokens: 2, Stream: true})
		if f.OK == nil || !*f.OK || s.Error != "" || s.LoadS != nil {
			t.Errorf("flush %+v, then %q %q", f, s.Error, s.Detail)
		}
	}
}

func TestVet(t *testing.T) {
	for _, c := range []struct {
		v    schema.Variant
		path string
	}{
		{schema.Variant{ModelPath: "m"}, ""},
		{schema.Variant{ModelPath: "m", Env: map[string]schema.EnvValue{"OLLAMA_FLASH_ATTENTION": {Value: "1"}}}, ""},
		{schema.Variant{URL: "http://box:11434", ServedName: "m"}, ""},
		{schema.Variant{}, "model_path"},
		{schema.Variant{ModelPath: "m", ServedName: "x"}, "served_name"},
		{schema.Variant{ModelPath: "m", TP: 2}, "tp"},
		{schema.Variant{ModelPath: "m", Args: map[string]any{"flash-attention": true}}, "args"},
		{schema.Variant{ModelPath: "m", Args: map[string]any{"flash-attention": false}}, "args"},
		{schema.Variant{ModelPath: "m", Args: map[string]any{"gone": nil}}, ""},
		{schema.Variant{ModelPath: "m", Env: map[string]schema.EnvValue{"OLLAMA_HOST": {Value: "x"}}}, "env.OLLAMA_HOST"},
	} {
		c.v.Engine = "ollama"
		got := ""
		for _, p := range (Engine{}).Vet(c.v) {
			got = p.Path
		}
		if got != c.path {
			t.Errorf("%+v: problem at %q, want %q", c.v, got, c.path)
		}
	}
}

// FuzzParse holds that no line, whatever its bytes, ends the program or lets a
// negative count or time through.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.ndjson")
	if err != nil || len(files) == 0 {
		f.Fatalf("no captured answers: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f.Add([]byte(line))
		}
	}
	f.Add([]byte(`{"done":true,"eval_count":-3,"eval_duration":-1,"prompt_eval_count":0,"load_duration":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p parser
		var s event.Sample
		for range 2 {
			if part, err := p.parse(data, &s); err == nil && part.Tokens > 0 {
				t.Errorf("%d tokens in %q: Ollama does not say so", part.Tokens, data)
			}
		}
		for _, n := range []*int64{s.PromptTokens, s.CompletionTokens} {
			if n != nil && *n < 0 {
				t.Errorf("count %d from %q", *n, data)
			}
		}
		for _, x := range []*float64{s.ServerTotalS, s.ServerPrefillS, s.ServerDecodeSPerTok, s.LoadS} {
			if x != nil && *x <= 0 {
				t.Errorf("time %v from %q", *x, data)
			}
		}
	})
}
