package stat

import (
	"testing"

	"twopoint/results/event"
)

func TestProbeVerdict(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	s := func(total float64, cached *int64) event.Sample {
		return event.Sample{TotalS: total, CachedTokens: cached, PromptTokens: n(1000), ContextRequested: 1000, Flush: &event.Flush{Method: "test"}}
	}
	for _, c := range []struct {
		name     string
		samples  []event.Sample
		proven   string
		template int64
	}{
		{"counts: hit, then cold", []event.Sample{s(1, n(0)), s(0.1, n(990)), s(1, n(0))}, "yes", 0},
		{"counts: flush does nothing", []event.Sample{s(1, n(0)), s(0.1, n(990)), s(0.1, n(990))}, "no", 0},
		{"counts: no cache at all", []event.Sample{s(1, n(0)), s(1, n(0)), s(1, n(0))}, "unknown", 0},
		{"counts: a template stays", []event.Sample{s(1, n(16)), s(0.1, n(990)), s(1, n(16))}, "yes", 16},
		{"counts win over times", []event.Sample{s(1, n(0)), s(0.1, n(990)), s(0.1, n(0))}, "yes", 0},
		{"times: hit, then cold", []event.Sample{s(1, nil), s(0.1, nil), s(0.97, nil)}, "yes", 0},
		{"times: flush does nothing", []event.Sample{s(1, nil), s(0.1, nil), s(0.1, nil)}, "no", 0},
		{"times: between", []event.Sample{s(1, nil), s(0.1, nil), s(0.7, nil)}, "unknown", 0},
		{"times: no hit to be seen", []event.Sample{s(1, nil), s(0.9, nil), s(1, nil)}, "unknown", 0},
		{"cut short", []event.Sample{s(1, n(3))}, "unknown", 3},
		{"nothing", nil, "unknown", 0},
		{"not flushed", []event.Sample{s(1, n(0)), s(0.1, n(990)), {TotalS: 1, CachedTokens: n(0)}}, "unknown", 0},
		{"never flushed, times show hits", []event.Sample{s(1, nil), s(0.1, nil), {TotalS: 0.1}}, "no", 0},
		{"never flushed, counts show hits", []event.Sample{s(1, n(0)), s(0.1, n(990)), {TotalS: 0.1, CachedTokens: n(990)}}, "no", 0},
	} {
		if v := ProbeVerdict(c.samples, true); v.Proven != c.proven || v.Template != c.template {
			t.Errorf("%s: proven %q, template %d; want %q, %d", c.name, v.Proven, v.Template, c.proven, c.template)
		}
	}
	// Without a nonce the first prompt may have been cached by an earlier run.
	if v := ProbeVerdict([]event.Sample{s(0.1, n(990)), s(0.1, n(990)), s(0.1, n(990))}, false); v.Template != 0 || v.Proven != "no" {
		t.Errorf("no nonce: %+v", v)
	}
	// Half of a fresh prompt in the cache is no template.
	if v := ProbeVerdict([]event.Sample{s(0.5, n(500)), s(0.1, n(990)), s(0.5, n(500))}, true); v.Template != 0 || v.Proven != "no" {
		t.Errorf("half of the prompt: %+v", v)
	}
}

func TestABlockIsBelievedWithinReason(t *testing.T) {
	for page, want := range map[int64]int64{0: 1, 1: 1, 64: 64, 1024: 1024, 1025: 1, 1 << 60: 1, -5: 1} {
		if got := (Rules{Page: page}).cold(event.Sample{ContextRequested: 8192}); got != want {
			t.Errorf("page %d: %d cached tokens allowed, want %d", page, got, want)
		}
	}
}
