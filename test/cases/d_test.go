package cases

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twopoint/test/standin"
)

// Transport.

// engines are the adapters whose streams are server-sent events.
var engines = []string{"sglang", "vllm", "llamacpp"}

func TestC23KeepAliveComments(t *testing.T) {
	t.Parallel()
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: engine, Stream: standin.Stream{
				Preamble: ":\n\n: ping\n\nevent: ping\ndata:\n\n", Comments: true, Field: "data:", EOL: "\r\n", TwoLines: true,
			}})
			o := measure(t, spec(url, engine, quick))
			o.became(t, "s", "1000 measured")
			for _, s := range o.samples("s/1000/1", "measure", "b") {
				if s.FailureKind != "" || s.TTFTS == nil || *s.TTFTS < 0.095 || s.CompletionTokens == nil || *s.CompletionTokens != 17 || len(s.ChunkS) != 17 {
					t.Errorf("%s %s: TTFT %v, %v tokens in %d chunks", s.FailureKind, s.Detail, s.TTFTS, s.CompletionTokens, len(s.ChunkS))
				}
			}
		})
	}
}

func TestC25OneLongLine(t *testing.T) {
	t.Parallel()
	t.Run("300 KiB", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "vllm", Stream: standin.Stream{Padding: 300 << 10}})
		o := measure(t, spec(url, "vllm", quick))
		o.became(t, "s", "1000 measured")
		for _, s := range o.samples("s/1000/1", "measure", "b") {
			if s.CompletionTokens == nil || *s.CompletionTokens != 17 || s.Finish != "length" {
				t.Errorf("%v tokens, finish %q: what follows the line is lost", s.CompletionTokens, s.Finish)
			}
		}
	})
	t.Run("600 MiB", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, standin.Script{Face: "vllm", When: []standin.When{{MinContext: 2000, MaxContext: 2000, Then: standin.Then(`{"stream": {"flood": 629145600}}`)}}})
		o := measure(t, spec(url, "vllm", quick+"\n\tsweep: context: [1000, 2000, 3000]"))
		o.became(t, "s", "1000 measured, 2000 failed bad-response, 3000 measured")
		if p := o.point(t, "s/2000/1"); !strings.Contains(p.FailureMessage, "MiB") {
			t.Errorf("the cap is not named: %s", p.FailureMessage)
		}
		if o.PeakRSSBytes == 0 || o.PeakRSSBytes > 320<<20 {
			t.Errorf("the runner grew to %d MiB", o.PeakRSSBytes>>20)
		}
	})
}

func TestC27HowAStreamMayEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ end, point, transport, words string }{
		{"", "measured", "", ""},
		{"no-done", "measured", "", "no end marker"},
		{"done-only", "measured", "", "no finish reason"},
		{"null-finish", "measured", "", "no finish reason"},
		{"early", "failed stream-cut", "cut", "closed early after 5 of 17 tokens"},
		{"fin", "failed stream-cut", "eof", "closed early after 5 of 17 tokens"},
		{"reset", "failed stream-cut", "reset", "reset after 5 of 17 tokens"},
	} {
		for _, engine := range []string{"sglang", "vllm"} {
			t.Run(engine+" "+c.end, func(t *testing.T) {
				t.Parallel()
				_, url := standin.Open(t, standin.Script{Face: engine, When: []standin.When{
					{MinTokens: 17, Then: standin.Then(fmt.Sprintf(`{"stream": {"end": %q, "cut": 5}}`, c.end))},
				}})
				o := measure(t, spec(url, engine, quick))
				o.became(t, "s", "1000 "+c.point)
				seen := 0
				for _, s := range o.Samples {
					if s.PointKey != "s/1000/1" || s.TokensRequested == nil || *s.TokensRequested != 17 {
						continue
					}
					seen++
					if s.Transport != c.transport || !strings.Contains(s.Detail+s.Notes, c.words) {
						t.Errorf("transport %q: %s\n%s", s.Transport, s.Detail, s.Notes)
					}
					if c.transport != "" && s.CompletionTokens != nil && *s.CompletionTokens != 5 {
						t.Errorf("%d tokens are on record of a stream that was cut after 5", *s.CompletionTokens)
					}
				}
				if seen == 0 {
					t.Error("no request of leg b is on record")
				}
			})
		}
	}
}

func TestC28ProxyVariables(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(503)
	}))
	t.Cleanup(proxy.Close)
	listen := func(t *testing.T, address string) (port string) {
		t.Helper()
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- standin.New(standin.Script{}, nil).Serve(ctx, listener) }()
		t.Cleanup(func() { stop(); <-done })
		_, port, _ = net.SplitHostPort(listener.Addr().String())
		return port
	}
	for _, bad := range []string{proxy.URL, "http://:"} {
		for host, bound := range map[string]string{"127.0.0.1": "127.0.0.1:0", "0.0.0.0": "0.0.0.0:0", "[::1]": "[::1]:0", "localhost": "127.0.0.1:0"} {
			t.Run(bad+" "+host, func(t *testing.T) {
				t.Parallel()
				url := "http://" + host + ":" + listen(t, bound)
				o := measure(t, spec(url, "sglang", quick), "HTTP_PROXY="+bad, "http_proxy="+bad, "HTTPS_PROXY="+bad, "ALL_PROXY="+bad, "NO_PROXY=")
				o.became(t, "s", "1000 measured")
				for _, s := range o.Samples {
					if s.ConnectS == nil || *s.ConnectS > 1 {
						t.Errorf("connecting took %v s", s.ConnectS)
					}
				}
			})
		}
	}
	t.Run("a server of ours", func(t *testing.T) {
		t.Parallel()
		o := measure(t, experiment("servers: s: "+managed(t, "vllm", standin.Script{}, `host: "0.0.0.0"`), quick), "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "NO_PROXY=")
		o.became(t, "s", "1000 measured")
	})
	t.Cleanup(func() {
		if n := asked.Load(); n > 0 {
			t.Errorf("%d requests went to the proxy", n)
		}
	})
}

func TestC29ThePooledConnectionWasClosed(t *testing.T) {
	t.Parallel()
	srv, url := standin.Open(t, standin.Script{Clock: standin.Clock{StepS: 0.005}, Life: standin.Life{IdleCloseS: 0.2}})
	o := measure(t, spec(url, "sglang", `method: two_point: {a: 1, b: 17, settle: "200ms", repeats: {min: 25, max: 25, target: 0.0001}}`))
	o.became(t, "s", "1000 measured")
	legs := o.samples("s/1000/1", "measure", "")
	for _, s := range legs {
		if s.FailureKind != "" || s.ConnectS == nil || *s.ConnectS <= 0 {
			t.Errorf("%s: %s, connected in %v s", s.FailureKind, s.Detail, s.ConnectS)
		}
	}
	if len(legs) != 50 || srv.Conns() < len(o.Samples) {
		t.Errorf("%d requests timed; %d connections for %d requests in all", len(legs), srv.Conns(), len(o.Samples))
	}
}

func TestC30AHiddenTimeLimit(t *testing.T) {
	t.Parallel()
	inForce := func(t *testing.T, o outcome, first, total *float64) {
		t.Helper()
		same := func(got, want *float64) bool {
			return got == nil && want == nil || got != nil && want != nil && *got == *want
		}
		five, minutes, per := 5.0, 300.0, 0.02
		for _, d := range o.Deployments {
			if !same(d.LimitConnectS, &five) || !same(d.LimitFirstS, first) || !same(d.LimitTotalS, total) || !same(d.LimitNoTokenS, &minutes) || !same(d.LimitPerTokenS, &per) {
				t.Errorf("limits on record: connect %v, first token %v, total %v, no token %v and %v a prompt token",
					d.LimitConnectS, d.LimitFirstS, d.LimitTotalS, d.LimitNoTokenS, d.LimitPerTokenS)
			}
		}
	}
	// The twelfth request is a leg of the first pair or of a later one.
	slow := standin.Script{Face: "vllm", When: []standin.When{{MinContext: 1000, MaxContext: 1000, From: 12, To: 12, Then: standin.Then(`{"clock": {"extra_s": 31}}`)}}}
	t.Run("no limit", func(t *testing.T) {
		t.Parallel()
		_, url := standin.Open(t, slow)
		o := measure(t, spec(url, "vllm", quick))
		o.became(t, "s", "1000 measured")
		long := 0
		for _, s := range o.Samples {
			if s.FailureKind != "" {
				t.Errorf("%s: %s", s.FailureKind, s.Detail)
			}
			if s.TotalS != nil && *s.TotalS > 31 {
				long++
			}
		}
		if long != 1 {
			t.Errorf("%d requests of more than 31 s are on record", long)
		}
		inForce(t, o, nil, nil)
	})
	one := 1.0
	for _, limit := range []string{"first_token", "total"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: "vllm", When: []standin.When{{MinContext: 2000, MaxContext: 2000, Then: standin.Then(`{"clock": {"extra_s": 3}}`)}}})
			o := measure(t, spec(url, "vllm", quick+"\n\tsweep: context: [1000, 2000, 3000]\n\tlimits: "+limit+`: "1s"`))
			o.became(t, "s", "1000 measured, 2000 failed timeout, 3000 measured")
			if p := o.point(t, "s/2000/1"); !strings.Contains(p.FailureMessage, limit) || !strings.Contains(p.FailureMessage, "1s") || p.FailureScope != "request" {
				t.Errorf("scope %s: %s", p.FailureScope, p.FailureMessage)
			}
			hit := 0
			for _, s := range o.Samples {
				if s.FailureKind == "timeout" && s.Limit == limit {
					hit++
				}
			}
			if hit != 1 {
				t.Errorf("%d requests that hit the limit are on record", hit)
			}
			if limit == "total" {
				inForce(t, o, nil, &one)
			} else {
				inForce(t, o, &one, nil)
			}
		})
	}
}

func TestC31AProxyCollectsTheStream(t *testing.T) {
	t.Parallel()
	for _, held := range []int{-1, 16384} {
		t.Run(fmt.Sprint(held), func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: "vllm", Stream: standin.Stream{Held: held}})
			o := measure(t, spec(url, "vllm", quick))
			o.became(t, "s", "1000 measured")
			p := o.point(t, "s/1000/1")
			if !has(p.Doubts, "buffered_stream") || p.TTFTS != nil || p.TTFTSRaw != nil || p.ITLS != nil || p.TPOTS != nil || p.DecodeStream != nil {
				t.Errorf("doubts %s; TTFT %v, ITL %v, TPOT %v, in-stream %v", p.Doubts, p.TTFTS, p.ITLS, p.TPOTS, p.DecodeStream)
			}
			if p.Status == "ok" {
				near(t, "decode_tok_s", p.DecodeTokS, 50, p.DecodeTokSLo, p.DecodeTokSHi)
			}
			for _, s := range o.samples("s/1000/1", "measure", "b") {
				if !s.Buffered {
					t.Error("not seen as buffered")
				}
			}
		})
	}
}

// A proxy that lets go a few tokens at a time is no better: what the stream alone
// can tell is not told, and several requests have no window rate.
func TestC31AProxyLetsGoAFewTokensAtATime(t *testing.T) {
	t.Parallel()
	const rest = `warmup: false, repeats: {min: 3, max: 3, target: 0.5}}`
	for name, c := range map[string]struct {
		engine, fields, status, reason string
		held                           int
	}{
		"openai":            {"openai", "method: two_point: {a: 1, b: 33, " + rest, "ok", "", 1000},
		"vllm":              {"vllm", "method: two_point: {a: 1, b: 33, " + rest, "ok", "", 4000},
		"llamacpp":          {"llamacpp", "method: multi_point: {a: 1, b: 33, budgets: 3, " + rest, "ok", "", 1000},
		"ollama":            {"ollama", "method: two_point: {a: 1, b: 33, " + rest, "ok", "", 500},
		"auto":              {"vllm", "method: two_point: {" + rest, "ok", "", 1000},
		"stream":            {"openai", "method: stream: {tokens: 33, " + rest, "invalid", "no_stream", 1000},
		"four":              {"openai", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: two_point: {a: 1, b: 65, " + rest, "invalid", "not_concurrent", 500},
		"four, long":        {"vllm", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: two_point: {" + rest, "ok", "", 4000}, // a step in 500
		"four, multi_point": {"vllm", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: multi_point: {a: 1, b: 65, budgets: 3, " + rest, "invalid", "not_concurrent", 1000},
		"four, at depth":    {"vllm", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: decode_at_depth: {a: 1, b: 65, " + rest, "invalid", "not_concurrent", 1000},
		"four, stream":      {"openai", "sweep: {context: [1000], concurrency: [4]}\n\tmethod: stream: {tokens: 65, " + rest, "invalid", "not_concurrent", 1000},
		"part of an event":  {"openai", "method: stream: {tokens: 33, " + rest, "invalid", "no_stream", 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := standin.Open(t, standin.Script{Face: c.engine, Cache: standin.Cache{Block: 16}, Clock: standin.Clock{StepS: 0.010}, Stream: standin.Stream{Held: c.held}})
			o := measure(t, spec(url, c.engine, c.fields))
			p := o.status(t, o.Points[0].PointKey, c.status, c.reason)
			if p.SPerTok != nil {
				near(t, "s_per_tok", p.SPerTok, 0.010, p.SPerTokLo, p.SPerTokHi)
			}
			if p.TTFTS != nil || p.TTFTSRaw != nil || p.ITLS != nil || p.TPOTS != nil {
				t.Errorf("TTFT %v, ITL %v, TPOT %v", p.TTFTS, p.ITLS, p.TPOTS)
			}
			if name == "four, long" {
				near(t, "decode_stream_tok_s", p.DecodeStream, 100)
			} else if p.DecodeStream != nil {
				t.Errorf("in-stream rate %v", *p.DecodeStream)
			}
			if c.status == "ok" && !has(p.Doubts, "buffered_stream") {
				t.Errorf("doubts %q", p.Doubts)
			}
		})
	}
}

// What ends the first requests, before any point is measured, is named as it would
// be at a point, and at once.
func TestC27TheFirstRequestsFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		face, fields, kind string
		script             standin.Script
	}{
		"limit":         {"ollama", `limits: first_token: "20ms"`, "timeout", standin.Script{Clock: standin.Clock{PrefillTokS: 2000}}},
		"cut":           {"ollama", "", "stream-cut", standin.Script{Stream: standin.Stream{End: "reset"}}},
		"compressed":    {"openai", "", "bad-response", standin.Script{Stream: standin.Stream{Gzip: true}}},
		"out of memory": {"ollama", "", "request-oom", standin.Script{When: []standin.When{{MinContext: 50, Then: standin.Then(`{"answer": {"status": 500, "body": "CUDA out of memory"}}`)}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.script.Face = c.face
			_, url := standin.Open(t, c.script)
			began := time.Now()
			o := measure(t, spec(url, c.face, quick+"\n\t"+c.fields))
			p := o.status(t, "s/1000/1", "failed", c.kind)
			if took := time.Since(began); took > 30*time.Second { // the wait for a server to be ready is a minute
				t.Errorf("%s after %v: %s", p.Reason, took, p.Detail)
			}
		})
	}
}
