package plan

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"twopoint/schema"
)

func TestRoundTrip(t *testing.T) {
	exp := experiment()
	exp.Expect = &schema.Expect{PrefillTokS: 1000.5, DecodeTokS: 20, Load: 1}
	exp.Gate = &schema.Gate{Needle: &schema.Needle{Depth: []float64{0.5}, Tokens: 32, OnFail: "warn"}}
	exp.KernelBench = &schema.KernelBench{Splits: []int{0, 4}}
	exp.Sweep.Exclude = []schema.Exclude{{Variant: []string{"split"}}}
	p, _ := New(exp, "sha256:spec", Options{Seed: 3})
	first, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode("plan.json", first)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, p) {
		t.Errorf("decoded\n%+v\nwant\n%+v", back, p)
	}
	second, err := back.Encode()
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("encoding again gave other bytes, %v", err)
	}
	golden(t, "plan.json", first)
}

func TestDecodeErrors(t *testing.T) {
	good, err := mustPlan(t, experiment()).Encode()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) []byte {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("the plan does not contain %s", old)
		}
		return bytes.Replace(good, []byte(old), []byte(new), 1)
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"empty":          {nil, "runs/x/plan.json: damaged at byte 0: "},
		"cut":            {good[:500], "runs/x/plan.json: damaged at byte 500: "},
		"NULs":           {append(good[:40:40], 0, 0), "runs/x/plan.json: damaged at byte 41: "},
		"text after":     {append(good[:len(good):len(good)], '{'), "damaged at byte "},
		"odd type":       {edit(`"seed": 1`, `"seed": "one"`), "damaged at byte "},
		"no format":      {[]byte(`{}`), "not a plan: it has no format number"},
		"newer format":   {[]byte(`{"format": 2, "points": {"moved": true}}`), "plan format 2, this twopoint follows plans up to format 1: upgrade twopoint"},
		"unknown field":  {edit(`"seed": 1`, `"seed": 1, "sede": 2`), `unknown field "sede"`},
		"same point":     {edit("33be8004e58c", "b32fd4af4d8f"), "stock/2848/1 has no id or one that is taken"},
		"lost variant":   {edit(`"name": "stock"`, `"name": "stick"`), `point stock/1424/1 is of variant "stock", which is not in the plan`},
		"two names":      {edit(`"name": "stock"`, `"name": "split"`), `variant "split" has no id, no name or a name that is taken`},
		"no context":     {edit(`"context": 1424`, `"context": 0`), "stock/1424/1 has context 0"},
		"lost in order":  {edit("   \"variants\": [\n    \"", "   \"variants\": [\n    \"gone\",\n    \""), `order o1 deploys variant "gone"`},
		"order sans id":  {edit(`"id": "o1"`, `"id": ""`), `order "" has no id`},
		"settle unknown": {edit(`"settle": "request"`, `"settle": "later"`), `settle is "request", "none" or a duration`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode("runs/x/plan.json", c.text)
			if err == nil || !strings.HasPrefix(err.Error(), "runs/x/plan.json: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// Whatever stands in a plan.json, reading it ends, and what reads well reads
// the same from what is written.
func FuzzDecode(f *testing.F) {
	exp := experiment()
	exp.Variants, exp.Sweep.Context = exp.Variants[1:2], exp.Sweep.Context[:1]
	p, _ := New(exp, "", Options{})
	text, err := p.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"format":1,"variants":null,"points":[{"point_id":"a"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Decode("plan.json", text)
		if err != nil {
			return
		}
		p.Cost()
		first, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode("plan.json", first)
		if err != nil {
			t.Fatalf("%v in\n%s", err, first)
		}
		if second, err := again.Encode(); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%v:\n%s\nbecame\n%s", err, first, second)
		}
	})
}
