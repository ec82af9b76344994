package experiments

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"twopoint/results/claim"
	"twopoint/results/stat"
	"twopoint/schema"
	"twopoint/schema/load"
)

// TestClaims: a publication reproduces itself. Every claim, typed apart from the
// table, is held to the table as it is printed and reproduced; with what it rests on
// pushed far past what it accepts, to either side, it deviates.
func TestClaims(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]bool{}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		spec, list := load.Load(e.Name(), load.Options{ConfigDir: t.TempDir()})
		if list.HasErrors() {
			t.Fatal(list)
		}
		for set, p := range spec.Experiment.Published {
			sources[p.Source.Where] = true
			t.Run(e.Name()+"/"+set, func(t *testing.T) {
				if p.Source.Where == "" || p.Source.Confidence == "" {
					t.Errorf("source %+v: where it stands and how it was read are to be said", p.Source)
				}
				if len(p.Claims) == 0 {
					t.Error("the publication makes no claim")
				}
				for _, r := range claim.Judge(map[string]schema.Published{set: p}, claim.Printed(p)) {
					if r.Verdict != claim.Reproduced {
						t.Errorf("%s is %s on its own table: %s", r.ID, r.Verdict, r.Detail)
						continue
					}
					pushed(t, set, p, r)
				}
			})
		}
	}
	if len(sources) < 10 {
		t.Errorf("%d publications, ten or more are to be here", len(sources))
	}
}

// pushed asserts that a reproduced claim can fail.
func pushed(t *testing.T, set string, p schema.Published, r claim.Result) {
	again := func(e claim.Evidence, p schema.Published) string {
		for _, x := range claim.Judge(map[string]schema.Published{set: p}, e) {
			if x.ID == r.ID {
				return x.Verdict
			}
		}
		return ""
	}
	if r.Kind == "recompute" {
		c := p.Claims[r.ID[len(set)+1:]]
		for _, factor := range []float64{0.1, 10} {
			x := c
			x.Expect = factor * (r.Lo + r.Hi) / 2
			claims := maps.Clone(p.Claims)
			claims[r.ID[len(set)+1:]] = x
			q := p
			q.Claims = claims
			if v := again(claim.Evidence{}, q); v != claim.Deviates {
				t.Errorf("%s: expecting %v it is %s", r.ID, x.Expect, v)
			}
		}
		return
	}
	deviates := 0
	for _, factor := range []float64{1e-3, 1e3} {
		e := claim.Printed(p)
		for i, f := range e.Fits {
			if f.Variant == r.Variant {
				e.Fits[i].Figures = scaled(f.Figures, factor)
			}
		}
		for i, pt := range e.Points {
			switch n := len(r.PointKeys); {
			case n == 0 || pt.Key != r.PointKeys[n/2]: // of a sweep one in the middle
			case r.Kind == "event" && pt.Status == stat.OK:
				e.Points[i].Status, e.Points[i].FailureKind = stat.Failed, "crash"
			case r.Kind == "event":
				e.Points[i].Status = stat.OK
			default:
				e.Points[i].Figures = scaled(pt.Figures, factor)
			}
		}
		if again(e, p) == claim.Deviates || r.Kind == "bound" && again(e, p) == claim.Invalid {
			deviates++
		}
	}
	want := 2
	if math.IsInf(r.Lo, 0) || math.IsInf(r.Hi, 0) || slices.Contains([]string{"order"}, r.Kind) {
		want = 1
	}
	if deviates < want {
		t.Errorf("%s: pushed to either side of %s it deviates %d times, want %d", r.ID, fmt.Sprint(r.Lo, " to ", r.Hi), deviates, want)
	}
}

func scaled(figures map[string]claim.Figure, factor float64) map[string]claim.Figure {
	out := map[string]claim.Figure{}
	for name, f := range figures {
		out[name] = claim.Figure{Value: f.Value * factor, Lo: f.Lo * factor, Hi: f.Hi * factor, By: f.By}
	}
	return out
}
