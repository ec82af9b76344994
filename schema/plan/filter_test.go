package plan

import (
	"strings"
	"testing"

	"twopoint/schema"
)

func TestFilter(t *testing.T) {
	exp := schema.Experiment{
		Variants: []schema.Variant{
			{Name: "stock", Engine: "x"}, {Name: "split", Engine: "y"},
			{Name: "page,a", Base: "page", Engine: "x", TP: 2}, {Name: "page,b", Base: "page", Engine: "x", TP: 4},
		},
		Sweep: schema.Sweep{Context: []int{1024, 2000, 8192}, Concurrency: []int{1, 4}},
	}
	p := mustPlan(t, exp)
	key := map[string]string{}
	for _, pt := range p.Points {
		key[pt.ID] = pt.Key
	}
	for _, c := range []struct {
		only string // separated by blanks
		keys string // or the error's text after "!"
	}{
		{"variant=stock concurrency=1", "stock/1024/1 stock/2000/1 stock/8192/1"},
		{"variant=stock,split context=1Ki concurrency=4", "stock/1024/4 split/1024/4"},
		{"variant=split variant=stock context=2K concurrency=1..1", "stock/2000/1 split/2000/1"},
		{"variant=page context=8_192 concurrency=4", "page,a/8192/4 page,b/8192/4"},
		{"variant=page,b,stock context=8192 concurrency=4", "stock/8192/4 page,b/8192/4"},
		{"variant=stock context=1024..2000 concurrency=2..", "stock/1024/4 stock/2000/4"},
		{"variant=stock context=..1500,8Ki concurrency=4", "stock/1024/4 stock/8192/4"},

		{"variant", `!--only variant: write variant=NAME, context=1024..8192 or concurrency=4`},
		{"varient=a", `!--only varient=a: "varient" is no axis; they are variant, context and concurrency`},
		{"context=", `!--only context=: nothing after the =`},
		{"context=12x", `!--only context=12x: "12x" is no positive whole number`},
		{"context=0", `!--only context=0: "0" is no positive whole number`},
		{"context=99999999999Mi", `!is no positive whole number`},
		{"context=..", `!--only context=..: ".." has neither end`},
		{"context=9..1", `!--only context=9..1: "9..1" begins after its end`},
		{"context=1024,", `!--only context=1024,: "" is no positive whole number`},
		{"context=1024,1500", `!--only context=1024,1500: no point has context 1500; the plan has 1024, 2000, 8192`},
		{"concurrency=5..7", `!--only concurrency=5..7: no point has concurrency 5..7; the plan has 1, 4`},
		{"variant=stock,spilt", `!--only variant=stock,spilt: no variant "spilt"; the plan has stock, split, page,a, page,b`},
	} {
		t.Run(c.only, func(t *testing.T) {
			var only []Filter
			var ids []string
			var err error
			for _, s := range strings.Fields(c.only) {
				var f Filter
				if f, err = ParseFilter(s); err != nil {
					break
				}
				if f.String() != s {
					t.Errorf("%s prints as %s", s, f)
				}
				only = append(only, f)
			}
			if err == nil {
				ids, err = p.Filter(only)
			}
			if want, bad := strings.CutPrefix(c.keys, "!"); bad || err != nil {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s", err, want)
				}
				return
			}
			var keys []string
			for _, id := range ids {
				keys = append(keys, key[id])
			}
			if got := strings.Join(keys, " "); got != c.keys {
				t.Errorf("selects %s, want %s", got, c.keys)
			}
		})
	}
}

func TestNoFilterSelectsAll(t *testing.T) {
	p := mustPlan(t, experiment())
	if ids, err := p.Filter(nil); err != nil || len(ids) != len(p.Points) {
		t.Errorf("%d of %d points, %v", len(ids), len(p.Points), err)
	}
}

// Filters that each match something can still have nothing in common.
func TestFilterSelectsNothing(t *testing.T) {
	exp := schema.Experiment{
		Variants: []schema.Variant{{Name: "a", Engine: "x"}, {Name: "b", Engine: "y"}},
		Sweep: schema.Sweep{Context: []int{1, 2}, Concurrency: []int{1},
			Exclude: []schema.Exclude{{Variant: []string{"a"}, Context: &schema.Range{Values: []int{2}}}}},
	}
	v, _ := ParseFilter("variant=a")
	c, _ := ParseFilter("context=2")
	if _, err := mustPlan(t, exp).Filter([]Filter{v, c}); err == nil || err.Error() != "no point of the plan is left: --only variant=a --only context=2" {
		t.Error(err)
	}
}

func FuzzParseFilter(f *testing.F) {
	p := mustPlan(f, experiment())
	for _, s := range []string{"variant=a,b", "context=1..2Ki,3", "concurrency=..4", "=", "context=,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if only, err := ParseFilter(s); err == nil {
			p.Filter([]Filter{only})
		}
	})
}
