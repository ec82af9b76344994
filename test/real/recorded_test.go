//go:build real

package real

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"twopoint/test/gguf"
)

var update = flag.Bool("update", false, "rewrite testdata/llamacpp with what the server answers")

const recordings = "testdata/llamacpp"

// exchange is one request whose answer is kept. Its file holds the body as it
// came; exchanges.json holds this with the status.
type exchange struct {
	File        string `json:"file"`
	Server      string `json:"server"` // bench (benchFlags), plain (the model alone) or bytes (benchFlags, a model with RawBytes)
	Method      string `json:"method"`
	Path        string `json:"path"`
	Request     any    `json:"request,omitempty"`
	Status      int    `json:"status"`
	ContentType string `json:"content_type"`
}

func exchanges() []exchange {
	ask := func(n int, changes object) object {
		req := object{"prompt": prompt(24, 0), "n_predict": n, "ignore_eos": true, "temperature": 0}
		for k, v := range changes {
			req[k] = v
		}
		return req
	}
	long := func(n int) object {
		return object{"prompt": fmt.Sprintf("(%d ids)", n), "n_predict": 2, "ignore_eos": true}
	}
	streaming := object{"stream": true, "return_tokens": true, "cache_prompt": false}
	with := func(o object, k string, v any) object {
		c := object{k: v}
		for k, v := range o {
			c[k] = v
		}
		return c
	}
	fields := []string{"stop", "stop_type", "truncated", "tokens_predicted", "tokens_evaluated", "timings"}
	post := func(file, path string, body any) exchange {
		return exchange{File: file, Server: "bench", Method: "POST", Path: path, Request: body}
	}
	get := func(file, server, path string) exchange {
		return exchange{File: file, Server: server, Method: "GET", Path: path}
	}
	bytes := post("completion_stream_held_back.sse", "/completion", ask(12, with(with(streaming, "temperature", 3), "seed", 5)))
	bytes.Server = "bytes"
	noErase := post("erase_unsupported.json", "/slots/0?action=erase", nil)
	noErase.Server = "plain"
	return []exchange{
		post("completion.json", "/completion", ask(5, object{"return_tokens": true, "cache_prompt": false})),
		post("completion_cached.json", "/completion", ask(5, object{"return_tokens": true})),
		post("completion_fields.json", "/completion", ask(5, object{"cache_prompt": false, "response_fields": fields})),
		post("completion_one_token.json", "/completion", ask(1, object{"cache_prompt": false, "response_fields": fields})),
		post("completion_stream.sse", "/completion", ask(5, streaming)),
		post("completion_stream_cached.sse", "/completion", ask(5, with(streaming, "cache_prompt", true))),
		post("completion_stream_fields.sse", "/completion", ask(5, with(streaming, "response_fields", fields))),
		post("completion_stream_timings.sse", "/completion", ask(3, with(streaming, "timings_per_token", true))),
		post("completion_stream_progress.sse", "/completion", ask(3, with(streaming, "return_progress", true))),
		bytes,
		post("completion_context_exceeded.json", "/completion", long(9000)),
		post("completion_stream_context_exceeded.json", "/completion", with(long(9000), "stream", true)),
		post("completion_context_full.json", "/completion", with(with(long(8190), "n_predict", 20), "response_fields", fields)),
		post("completion_empty_prompt.json", "/completion", object{"prompt": []int32{}}),
		post("completion_bad_token.json", "/completion", object{"prompt": []int32{1, 2, 99999}}),
		post("openai_completion.json", "/v1/completions", object{"model": "tiny", "prompt": prompt(24, 0), "max_tokens": 3, "ignore_eos": true, "temperature": 0, "cache_prompt": false}),
		post("openai_completion_stream.sse", "/v1/completions", object{"model": "tiny", "prompt": prompt(24, 0), "max_tokens": 3, "ignore_eos": true, "temperature": 0, "stream": true, "stream_options": object{"include_usage": true}}),
		post("tokenize.json", "/tokenize", object{"content": "Plain English text.", "add_special": false}),
		post("tokenize_pieces.json", "/tokenize", object{"content": "the cat", "add_special": true, "with_pieces": true}),
		post("detokenize.json", "/detokenize", object{"tokens": []int32{259, 279, 267, 264}}),
		post("erase.json", "/slots/0?action=erase", nil),
		post("erase_bad_action.json", "/slots/0?action=drop", nil),
		noErase,
		get("props.json", "bench", "/props"),
		get("slots.json", "bench", "/slots"),
		get("models.json", "bench", "/v1/models"),
		get("metrics.txt", "bench", "/metrics"),
		get("metrics_unsupported.json", "plain", "/metrics"),
		get("health.json", "bench", "/health"),
		get("not_found.json", "bench", "/no/such/path"),
	}
}

// TestRecorded replays every recorded exchange: the server installed still
// answers with the same status, the same fields and the same events. Numbers
// and texts may differ.
func TestRecorded(t *testing.T) {
	dir := t.TempDir()
	raw := gguf.Small()
	raw.RawBytes = true
	model(t, dir, "tiny", gguf.Small())
	model(t, dir, "bytes", raw)
	servers := map[string]*server{}
	servers["bench"], _ = start(t, dir, append([]string{"--model", "tiny.gguf", "--alias", "tiny"}, benchFlags...)...)
	servers["plain"], _ = start(t, dir, "--model", "tiny.gguf")
	servers["bytes"], _ = start(t, dir, append([]string{"--model", "bytes.gguf", "--alias", "bytes"}, benchFlags...)...)

	list := exchanges()
	for i := range list {
		x := &list[i]
		t.Run(x.File, func(t *testing.T) {
			body := x.Request
			if req, ok := body.(object); ok {
				var n int
				if text, ok := req["prompt"].(string); ok {
					fmt.Sscanf(text, "(%d ids)", &n)
					sent := object{}
					for k, v := range req {
						sent[k] = v
					}
					sent["prompt"] = prompt(n, 3)
					body = sent
				}
			}
			a := servers[x.Server].mustDo(x.Method, x.Path, body)
			x.Status, x.ContentType = a.status, a.contentType
			record(t, x.File, a.body)
		})
	}
	index, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	// One line a number is no reading matter.
	index = regexp.MustCompile(`\[[\s\d,]+\]`).ReplaceAllFunc(index, func(b []byte) []byte {
		return []byte(strings.Join(strings.Fields(string(b)), " "))
	})
	path := filepath.Join(recordings, "exchanges.json")
	if *update {
		write(t, path, append(index, '\n'))
	}
	if want := read(t, path); string(index)+"\n" != string(want) {
		t.Errorf("requests, statuses or content types differ from %s; -update writes\n%s", path, index)
	}
}

// record compares the shape of a body with the recorded one, or records it.
func record(t *testing.T, file string, body []byte) {
	t.Helper()
	path := filepath.Join(recordings, file)
	if *update {
		write(t, path, body)
		return
	}
	got, want := shape(t, file, body), shape(t, file, read(t, path))
	if got != want {
		t.Errorf("%s has changed its shape:\n%s\nwas\n%s", file, got, want)
	}
}

// shape is a body less its numbers and texts.
func shape(t *testing.T, file string, body []byte) string {
	t.Helper()
	switch filepath.Ext(file) {
	case ".json":
		return jsonShape(t, body)
	case ".sse":
		var lines []string
		for _, data := range sse(body) {
			if data != "[DONE]" {
				data = jsonShape(t, []byte(data))
			}
			lines = append(lines, data)
		}
		return strings.Join(lines, "\n")
	}
	// Logs and metrics: the words of each line, without numbers.
	numbers := regexp.MustCompile(` *[0-9][0-9.]*`)
	return numbers.ReplaceAllString(string(body), " #")
}

func jsonShape(t *testing.T, body []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	var walk func(v any) string
	walk = func(v any) string {
		switch v := v.(type) {
		case map[string]any:
			var parts []string
			for k, e := range v {
				parts = append(parts, k+":"+walk(e))
			}
			slices.Sort(parts)
			return "{" + strings.Join(parts, " ") + "}"
		case []any:
			var parts []string
			for _, e := range v {
				parts = append(parts, walk(e))
			}
			return "[" + strings.Join(slices.Compact(parts), " ") + "]"
		case nil:
			return "null"
		}
		return fmt.Sprintf("%T", v)
	}
	return walk(v)
}

// plainLog is a server's log without its own port, its times and what it says
// about the machine's processor.
func plainLog(s *server) string {
	log := strings.ReplaceAll(s.log.String(), strings.TrimPrefix(s.url, "http://127.0.0.1:"), "PORT")
	log = regexp.MustCompile(`(?m)^.*(system_info: |  - CPU ).*\n`).ReplaceAllString(log, "")
	return regexp.MustCompile(`(?m)^\d+\.\d+\.\d+\.\d+ `).ReplaceAllString(log, "0.00.000.000 ")
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
