package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"twopoint/results/compare"
	"twopoint/results/stat"
)

// Compared are the metrics by which runs are compared: seconds per token (of the
// method stream those in the stream), seconds until the first token, and of the
// prefill.
var Compared = []string{"decode", "ttft", "prefill"}

// ToCompare are the run's points by a metric of Compared.
func (t *Tables) ToCompare(metric string) []compare.Point {
	var out []compare.Point
	for _, p := range t.Points {
		c := compare.Point{
			Key: p.PointKey, Variant: p.Variant, Context: *p.ContextRequested, Concurrency: *p.Concurrency, Status: p.Status, Reason: cmp.Or(p.FailureKind, p.Reason),
			Method: p.Method, PromptTokens: p.PromptTokens, N: p.Valid, Lives: p.Deployments,
		}
		if p.IntervalMethod == stat.MethodDeployments {
			c.N = p.Deployments
		}
		switch {
		case metric == "ttft":
			c.Of = compare.Quantity{Mean: p.TTFTS, Lo: p.TTFTSLo, Hi: p.TTFTSHi}
		case metric == "prefill":
			c.Of = compare.Quantity{Mean: p.PrefillS, Lo: p.PrefillSLo, Hi: p.PrefillSHi}
		case p.SPerTok == nil && p.SPerTokStream != nil && p.Method == "stream":
			c.Of = compare.Quantity{Mean: p.SPerTokStream, Lo: p.SPerTokStreamLo, Hi: p.SPerTokStreamHi}
		default:
			c.Of, c.AcceptLength = compare.Quantity{Mean: p.SPerTok, Lo: p.SPerTokLo, Hi: p.SPerTokHi}, p.AcceptLength
			c.PerStep = compare.Quantity{Mean: p.SPerStep, Lo: p.SPerStepLo, Hi: p.SPerStepHi}
		}
		out = append(out, c)
	}
	return out
}

// Difference is something in which two runs were not alike.
type Difference struct {
	What string // column of runs, or variant, setting and where it comes from
	A, B string // empty: absent
}

// passing are words in the names of what a server says of itself that differ from
// start to start of the same server.
var passing = []string{"port", "startup_time", "uptime", "throughput", "pid"}

// Differences are those of the environment and of how it was measured, and of the
// settings of variants that both runs have.
func Differences(a, b *Tables) []Difference {
	var out []Difference
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, Difference{what, x, y})
		}
	}
	x, y := a.Runs[0], b.Runs[0]
	differ("experiment", x.Experiment, y.Experiment)
	differ("method", x.Method, y.Method)
	differ("hostname", x.Hostname, y.Hostname)
	differ("cpu", x.CPU, y.CPU)
	differ("cpu_cores", number(x.Cores), number(y.Cores))
	differ("gpu", x.GPU, y.GPU)
	differ("tool_version", x.ToolVersion, y.ToolVersion)
	type key struct{ variant, source, name string }
	settings := func(t *Tables) (map[key]string, map[string]bool) {
		values, variants := map[key]string{}, map[string]bool{}
		for _, s := range t.Settings {
			values[key{s.Variant, s.Source, s.Name}] = s.Value
			variants[s.Variant] = true
		}
		return values, variants
	}
	vx, hasX := settings(a)
	vy, hasY := settings(b)
	keys := map[key]bool{}
	for k := range vx {
		keys[k] = hasY[k.variant]
	}
	for k := range vy {
		keys[k] = hasX[k.variant]
	}
	sorted := slices.SortedFunc(maps.Keys(keys), func(p, q key) int {
		return cmp.Or(cmp.Compare(p.variant, q.variant), -cmp.Compare(p.source, q.source), cmp.Compare(p.name, q.name)) // requested first
	})
	for _, k := range sorted {
		if keys[k] && !slices.ContainsFunc(passing, func(word string) bool { return strings.Contains(k.name, word) }) {
			differ(fmt.Sprintf("%s: %s (%s)", k.variant, k.name, k.source), vx[k], vy[k])
		}
	}
	return out
}

func number(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
