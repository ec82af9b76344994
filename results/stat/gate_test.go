package stat

import (
	"math/rand/v2"
	"strings"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
)

func TestCompare(t *testing.T) {
	ids := func(asked int, ids ...int32) event.Output { return event.Output{Asked: asked, IDs: ids} }
	text := func(asked int, tokens int64, text string) event.Output {
		return event.Output{Asked: asked, Tokens: &tokens, Text: text}
	}
	with := func(o event.Output, sha, detail string) event.Output {
		o.SHA256, o.Detail = sha, detail
		return o
	}
	for _, c := range []struct {
		name string
		x, y event.Output
		want Compared
		why  string
	}{
		{"the same", ids(4, 1, 2, 3, 4), ids(4, 1, 2, 3, 4), Compared{4, 4}, ""},
		{"equal again after a difference", ids(4, 1, 2, 3, 4), ids(4, 1, 9, 3, 4), Compared{1, 4}, ""},
		{"from the first token", ids(4, 1, 2, 3, 4), ids(4, 9, 2, 3, 4), Compared{0, 4}, ""},
		{"one ends", ids(4, 1, 2), ids(4, 1, 2, 3, 4), Compared{2, 4}, ""},
		{"both end", ids(4, 1, 2), ids(4, 1, 2), Compared{2, 2}, ""},
		{"one was asked for less", ids(2, 1, 2), ids(4, 1, 2, 3, 4), Compared{2, 2}, ""},
		{"text", text(8, 8, "the light of the sun"), text(8, 8, "the light is very re"), Compared{4, 8}, ""},
		{"equal text", text(8, 5, "the light"), text(8, 5, "the light"), Compared{5, 5}, ""},
		{"text that differs at its end", text(8, 8, "the lights"), text(8, 8, "the light"), Compared{7, 8}, ""},
		{"ids and text", ids(4, 1, 2), text(4, 4, "ab"), Compared{}, "shows no output"},
		{"nothing", ids(4), ids(4), Compared{}, "shows no output"},
		{"other prompts", with(ids(4, 1), "a", ""), with(ids(4, 1), "b", ""), Compared{}, "prompts differ"},
		{"a failure", with(ids(4), "a", "timeout"), ids(4, 1), Compared{}, "timeout"},
	} {
		got, why := Compare(c.x, c.y)
		back, _ := Compare(c.y, c.x)
		if got != c.want && c.why == "" || got != back || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %v and back %v, %q; want %v, %q", c.name, got, back, why, c.want, c.why)
		}
	}
}

// outputsAt are n outputs of 64 tokens that differ from others after so many; 64: not at all.
func outputsAt(again bool, same ...int) (out []event.Output) {
	for i, n := range same {
		o := event.Output{Prompt: i + 1, Again: again, Asked: 64, IDs: make([]int32, 64)}
		for j := n; j < 64; j++ {
			o.IDs[j] = 7
		}
		out = append(out, o)
	}
	return out
}

func TestGate(t *testing.T) {
	gate := func(lists ...[]event.Output) *event.Gate {
		g := &event.Gate{}
		for _, l := range lists {
			g.Outputs = append(g.Outputs, l...)
		}
		return g
	}
	needle := func(found ...bool) *event.Gate {
		g := &event.Gate{}
		for i := range found {
			g.Needles = append(g.Needles, event.Needle{Depth: float64(i) / 4, Found: &found[i]})
		}
		return g
	}
	agree := schema.Gate{Agreement: &schema.Agreement{Prompts: 4, Tokens: 64, OnFail: "warn"}}
	strict := schema.Gate{Agreement: &schema.Agreement{Prompts: 4, Tokens: 64, OnFail: "invalid"}}
	find := schema.Gate{Needle: &schema.Needle{Depth: []float64{0, 0.25}, Tokens: 32, OnFail: "invalid"}}
	same := gate(outputsAt(false, 64, 64, 64, 64), outputsAt(true, 64, 64, 64, 64))
	restless := gate(outputsAt(false, 64, 64, 64, 64), outputsAt(true, 3, 5, 9, 2))
	unknown := needle(true)
	unknown.Needles = append(unknown.Needles, event.Needle{Depth: 0.25, Detail: "timeout"})
	for _, c := range []struct {
		name      string
		asked     schema.Gate
		own, base *event.Gate
		baseline  bool
		codes     string // of the findings
		invalid   bool
	}{
		{"the same", agree, gate(outputsAt(false, 64, 64, 64, 64)), same, false, "", false},
		{"rounding, once", strict, gate(outputsAt(false, 64, 20, 64, 64)), same, false, "gate_differs", false},
		{"rounding, at every prompt", strict, gate(outputsAt(false, 30, 20, 55, 12)), same, false, "gate_differs", false},
		{"wrong at once", agree, gate(outputsAt(false, 0, 1, 0, 3)), same, false, "gate_disagrees", false},
		{"wrong at once, strict", strict, gate(outputsAt(false, 0, 1, 0, 3)), same, false, "gate_disagrees", true},
		{"no worse than the baseline", strict, gate(outputsAt(false, 2, 1, 6, 3)), restless, false, "gate_differs", false},
		{"the baseline", agree, same, same, true, "", false},
		{"a restless baseline", strict, restless, restless, true, "gate_differs", false},
		{"the baseline is to come", agree, same, nil, false, "gate_unknown", false},
		{"not asked yet", agree, nil, same, false, "gate_unknown", false},
		{"one prompt failed", agree, gate(outputsAt(false, 64, 64, 64)), same, false, "gate_unknown", false},
		{"found", find, needle(true, true), nil, false, "", false},
		{"lost", find, needle(true, false), needle(true, true), false, "gate_needle_failed", true},
		{"the baseline loses it too", find, needle(false, false), needle(false, true), false, "gate_needle_failed", true},
		{"one is not known", find, unknown, nil, false, "gate_unknown", true},
		{"no needle", find, nil, nil, false, "gate_unknown", true},
		{"the baseline is to come, strict", strict, same, nil, false, "gate_unknown", true},
		{"nothing is known of either", schema.Gate{Needle: &schema.Needle{Depth: []float64{0}, OnFail: "warn"}, Agreement: agree.Agreement}, nil, nil, false, "gate_unknown", false},
	} {
		g := Gate(c.asked, c.own, c.base, c.baseline)
		var codes []string
		for _, f := range g.Findings {
			codes = append(codes, string(f.Code))
		}
		if got := strings.Join(codes, ","); got != c.codes || (g.Invalid != nil) != c.invalid {
			t.Errorf("%s: %+v", c.name, g)
		}
	}
	g := Gate(agree, gate(outputsAt(false, 64, 32, 64, 0)), same, false)
	if g.Agreement == nil || *g.Agreement != 2.5/4 || g.Self == nil || *g.Self != 1 || g.Needle != nil {
		t.Errorf("shares: %+v", g)
	}
	if g := Gate(agree, same, same, true); g.Agreement != nil || *g.Self != 1 {
		t.Errorf("the baseline's shares: %+v", g)
	}
	if g := Gate(find, needle(true, false), nil, false); *g.Needle != 0.5 {
		t.Errorf("needles: %+v", g)
	}
	if !strings.Contains(Gate(find, needle(false), needle(false), false).Findings[0].Detail, "baseline does not") {
		t.Error("nothing said about the baseline's own needles")
	}
}

// Where first differences come as often as rounding may make them, false alarms
// stay rare, whatever the baseline does; a variant that goes wrong at once is
// caught with few prompts.
func TestGateFalseAlarms(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	runs := func(prompts, tokens int, chance float64) []Compared {
		list := make([]Compared, prompts)
		for i := range list {
			list[i] = Compared{0, tokens}
			for list[i].Same < tokens && rng.Float64() >= chance {
				list[i].Same++
			}
		}
		return list
	}
	const tries = 20_000
	for _, c := range []struct {
		prompts, tokens int
		self, variant   float64
		least, most     float64 // share that is called disagreeing
	}{
		{4, 64, 0, rounding, 0, 0.012},
		{2, 16, 0, rounding, 0, 0.012},
		{16, 64, 0, rounding, 0, 0.012},
		{4, 64, 0.25, 0.25, 0, 0.012},
		{4, 64, 0, 0.005, 0, 0.001},
		{4, 64, 0, 0.5, 0.85, 1},
		{4, 64, 0.01, 0.9, 0.99, 1},
		{16, 64, 0, 0.15, 0.95, 1},
	} {
		alarms := 0
		for range tries {
			if disagree(runs(c.prompts, c.tokens, c.variant), runs(c.prompts, c.tokens, c.self)) {
				alarms++
			}
		}
		share := float64(alarms) / tries
		t.Logf("%2d prompts of %d tokens, chance %.3f, the baseline's %.3f: %5.2f %% called disagreeing", c.prompts, c.tokens, c.variant, c.self, 100*share)
		if share < c.least || share > c.most {
			t.Errorf("%+v: %.4f called disagreeing", c, share)
		}
	}
}
