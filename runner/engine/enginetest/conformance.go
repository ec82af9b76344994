// Package enginetest holds what every engine adapter must do, as tests. An
// adapter and a running server come in, verdicts go out. It measures nothing and
// has no server of its own: the scripted one is test/standin.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/schema"
)

// Server is a running server that an adapter is tried against.
type Server struct {
	URL     string
	Variant schema.Variant // as it would be launched; ModelPath or ServedName names its model
	Key     string
}

// Run tries what every adapter must do against a server that behaves: ready,
// information, exact counts, one output for one prompt however it is streamed, a
// cold cache where it is asked for, refusals and interruptions as samples. open
// is called once for each part and may return the same server.
func Run(t *testing.T, e engine.Engine, open func(t *testing.T) Server) {
	start := func(t *testing.T) (*engine.Client, schema.Variant, engine.Info) {
		t.Helper()
		s := open(t)
		c := Client(t, s.URL, s.Key, engine.Limits{})
		info, err := e.Info(t.Context(), c, s.Variant)
		if err != nil {
			t.Fatalf("info: %v", err)
		}
		return c, s.Variant, info
	}

	t.Run("ready", func(t *testing.T) {
		s := open(t)
		c := Client(t, s.URL, s.Key, engine.Limits{})
		if err := e.Ready(t.Context(), c, s.Variant); err != nil {
			t.Fatal(err)
		}
		other := s.Variant
		other.ServedName, other.ModelPath = "another-model", "another-model"
		if err := e.Ready(t.Context(), c, other); err == nil || errors.Is(err, engine.ErrNotYet) {
			t.Errorf("with another model expected: %v, want a final error", err)
		}
		nobody := Client(t, "http://"+closedPort(t), "", engine.Limits{})
		if err := e.Ready(t.Context(), nobody, s.Variant); !errors.Is(err, engine.ErrNotYet) {
			t.Errorf("with nothing listening: %v, want ErrNotYet", err)
		}
	})

	t.Run("info", func(t *testing.T) {
		_, _, info := start(t)
		if info.Model == "" || info.ContextLimit <= 0 {
			t.Errorf("model %q, context limit %d", info.Model, info.ContextLimit)
		}
		for k, v := range info.Settings {
			if s, is := v.(string); is && s == "hush" {
				t.Errorf("setting %s holds a secret", k)
			}
		}
	})

	t.Run("generate", func(t *testing.T) {
		c, _, info := start(t)
		for _, n := range []int{1, 2, 17} {
			r := ask(info, 1, 40, n)
			r.NoReuse, r.Salt = true, "s1"
			s := e.Generate(t.Context(), c, r)
			Whole(t, s, len(r.IDs), n)
			if !s.Streamed || s.TTFTS == nil || *s.TTFTS <= 0 || *s.TTFTS > s.TotalS || s.HeaderS == nil {
				t.Errorf("n=%d: streamed %v, ttft %v, header %v, total %v", n, s.Streamed, s.TTFTS, s.HeaderS, s.TotalS)
			}
			if len(s.ChunkS) == 0 || len(s.ChunkS) > n || !slices.IsSorted(s.ChunkS) {
				t.Errorf("n=%d: chunks at %v", n, s.ChunkS)
			}
			sum := int32(0)
			for _, k := range s.ChunkTokens {
				sum += k
			}
			if s.ChunkTokens != nil && int(sum) != n {
				t.Errorf("n=%d: chunks hold %v tokens", n, s.ChunkTokens)
			}
			r.Stream, r.Salt = false, "s2"
			whole := e.Generate(t.Context(), c, r)
			Whole(t, whole, len(r.IDs), n)
			if whole.TTFTS != nil || whole.Streamed {
				t.Errorf("n=%d: an answer that does not stream has ttft %v", n, whole.TTFTS)
			}
			if s.OutputSHA256 == "" || s.OutputSHA256 != whole.OutputSHA256 {
				t.Errorf("n=%d: output %q streamed, %q whole", n, s.OutputSHA256, whole.OutputSHA256)
			}
		}
	})

	t.Run("cold", func(t *testing.T) {
		c, _, info := start(t)
		if !info.CachedCount {
			return
		}
		for i, salt := range []string{"a", "b"} {
			r := ask(info, 2, 70, 2)
			r.NoReuse, r.Salt = true, salt
			s := e.Generate(t.Context(), c, r)
			Whole(t, s, len(r.IDs), 2)
			if s.CachedTokens == nil || *s.CachedTokens != 0 {
				t.Errorf("request %d: cached tokens %v, want 0", i, show(s.CachedTokens))
			}
		}
	})

	t.Run("flush", func(t *testing.T) {
		c, _, info := start(t)
		flusher, is := e.(engine.Flusher)
		if !is || !info.CachedCount {
			return
		}
		cached := func() int64 {
			r := ask(info, 3, 70, 2)
			s := e.Generate(t.Context(), c, r)
			Whole(t, s, len(r.IDs), 2)
			if s.CachedTokens == nil {
				t.Fatal("no cached tokens reported")
			}
			return *s.CachedTokens
		}
		cached()
		if warm := cached(); info.EngineDefault && warm == 0 {
			t.Error("the same prompt again hits nothing")
		}
		f := flusher.Flush(t.Context(), c)
		if f.Status == http.StatusNotFound || f.Status == http.StatusNotImplemented {
			if f.OK == nil || *f.OK || f.Detail == "" {
				t.Errorf("without the route: %+v", f)
			}
			return
		}
		if f.OK == nil || !*f.OK || f.Attempts < 1 || f.Method == "" {
			t.Fatalf("flush: %+v", f)
		}
		if cold := cached(); cold != 0 {
			t.Errorf("after a flush %d tokens were cached", cold)
		}
	})

	t.Run("tokenize", func(t *testing.T) {
		c, _, _ := start(t)
		if tok, is := e.(engine.Tokenizer); is {
			ids, err := tok.Tokenize(t.Context(), c, "Light is refracted.")
			again, err2 := tok.Tokenize(t.Context(), c, "Light is refracted.")
			if err != nil || err2 != nil || len(ids) == 0 || !slices.Equal(ids, again) {
				t.Errorf("%v %v, then %v %v", ids, err, again, err2)
			}
		}
	})

	t.Run("idle", func(t *testing.T) {
		c, _, _ := start(t)
		if idler, is := e.(engine.Idler); is {
			if err := idler.WaitIdle(t.Context(), c); err != nil && !errors.Is(err, engine.ErrUnknown) {
				t.Error(err)
			}
		}
	})

	t.Run("refused", func(t *testing.T) {
		c, _, info := start(t)
		s := e.Generate(t.Context(), c, ask(info, 4, info.ContextLimit+10, 4))
		if s.Error != "http-error" || s.Detail == "" {
			t.Errorf("a prompt beyond the limit: error %q, detail %q", s.Error, s.Detail)
		}
	})

	t.Run("cancelled", func(t *testing.T) {
		c, _, info := start(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		s := e.Generate(ctx, c, ask(info, 5, 30, 4))
		if s.Error != "cancelled" || !strings.Contains(s.Detail, "enough") {
			t.Errorf("error %q, detail %q", s.Error, s.Detail)
		}
	})
}

// Client returns a client for the server at url.
func Client(t testing.TB, url, key string, limits engine.Limits) *engine.Client {
	t.Helper()
	c, err := engine.NewClient(url, key, limits)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask is a streamed request for n tokens with a prompt of at least so many
// tokens, as ids where the server takes them.
func ask(info engine.Info, seed, prompt, n int) engine.Request {
	r := engine.Request{Model: info.Model, MaxTokens: n, Stream: true}
	if ids := Prompt(seed, prompt); info.TokenIDs {
		r.IDs = ids
	} else {
		for _, id := range ids {
			r.Text += fmt.Sprintf(" %d", id)
		}
	}
	return r
}

// Prompt is n token ids, different for each seed from the first on.
func Prompt(seed, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(3 + (seed*37+i*11)%200)
	}
	return ids
}

// Whole checks a sample that was answered whole: no error, the counts exact
// where they are reported, the finish reason "length". A prompt of 0 is one of a
// length that nobody knows.
func Whole(t testing.TB, s event.Sample, prompt, n int) {
	t.Helper()
	if s.Error != "" {
		t.Fatalf("error %q: %s", s.Error, s.Detail)
	}
	if s.PromptTokens != nil && prompt > 0 && *s.PromptTokens != int64(prompt) {
		t.Errorf("%d prompt tokens, want %d", *s.PromptTokens, prompt)
	}
	if s.CompletionTokens != nil && *s.CompletionTokens != int64(n) {
		t.Errorf("%d completion tokens, want %d", *s.CompletionTokens, n)
	}
	if s.Finish != "length" {
		t.Errorf("finish %q, want length", s.Finish)
	}
	if s.TotalS <= 0 || s.ConnectS < 0 || s.Start.IsZero() || time.Since(s.Start) < 0 {
		t.Errorf("total %v s, connect %v s, start %v", s.TotalS, s.ConnectS, s.Start)
	}
}

func show(n *int64) any {
	if n == nil {
		return "not reported"
	}
	return *n
}

func closedPort(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
