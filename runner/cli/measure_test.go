package cli_test

import (
	"fmt"
	"strings"
	"testing"
)

// Equal prompts give equal tokens, whatever the kernel and its splits; prompts
// without a nonce are equal for a context and a leg.
func TestTokenIdentity(t *testing.T) {
	t.Parallel()
	dir := specIn(t, `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 2Ki}
	variants: {
		serial: args: kernel: "serial_perhead"
		one: args: {kernel: "split_grouped", splits: 1}
		auto: args: kernel: "split_grouped"
		paged: args: {kernel: "split_grouped", splits: 3, "page-size": 16, placement: "shuffled"}
	}
	sweep: context: [64, 512, 1024]
	prompt: nonce: false
	`+quick+`
}`)
	measured(t, dir, "run", ".")
	type place struct {
		context int64
		leg     string
	}
	outputs, count := map[place]map[string]bool{}, map[string]int{}
	for _, s := range load(t, onlyRun(t, dir)).Samples {
		if s.Role != "measure" {
			continue
		}
		p := place{*s.ContextRequested, s.Leg}
		if outputs[p] == nil {
			outputs[p] = map[string]bool{}
		}
		outputs[p][s.OutputSHA256] = true
		count[fmt.Sprint(s.Variant, p)]++
		if want := map[string]int64{"a": 1, "b": 33}[s.Leg]; *s.CompletionTokens != want || *s.PromptTokens != p.context || *s.CachedTokens != 0 {
			t.Errorf("%v of %s: %d tokens generated, prompt %d, cached %d", p, s.Variant, *s.CompletionTokens, *s.PromptTokens, *s.CachedTokens)
		}
	}
	if len(count) != 4*3*2 {
		t.Fatalf("samples of %d variants, contexts and legs, want 24: %v", len(count), count)
	}
	distinct := map[string]bool{}
	for p, hashes := range outputs {
		if len(hashes) != 1 || hashes[""] {
			t.Errorf("%v: %d different outputs", p, len(hashes))
		}
		for h := range hashes {
			distinct[h] = true
		}
	}
	if len(distinct) < 3 {
		t.Errorf("only %d different outputs over all contexts and legs: the hash says little", len(distinct))
	}
}

// With flush "never" and no nonce the prefix cache answers, and every point is
// invalid with that as its reason, never a number.
func TestCacheHitsAreInvalid(t *testing.T) {
	t.Parallel()
	dir := specIn(t, `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 1Ki, flush: "never", args: threads: 1}
	sweep: context: [64, 128]
	prompt: nonce: false
	`+quick+`
}`)
	r := twopoint(t, dir, 4, "run", ".")
	tables := load(t, onlyRun(t, dir))
	for _, p := range tables.Points {
		if p.Status != "invalid" || p.Reason != "cache_hit" || p.SPerTok != nil || p.DecodeTokS != nil || p.SPerTokRaw == nil {
			t.Errorf("%s: %s (%s), s_per_tok %v, raw %v", p.PointKey, p.Status, p.Reason, p.SPerTok, p.SPerTokRaw)
		}
		if p.CachedMax == nil || *p.CachedMax == 0 {
			t.Errorf("%s: cached tokens %v", p.PointKey, p.CachedMax)
		}
	}
	if !matches(r.stdout, `(?m)^e +64 .* invalid: cache_hit$`) || strings.Contains(r.stdout, "NaN") {
		t.Errorf("stdout:\n%s", r.stdout)
	}
}

// deployments: 3 is three lives a variant, whose means make the interval.
func TestThreeLives(t *testing.T) {
	t.Parallel()
	dir := specIn(t, `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 1Ki, args: threads: 1}
	variants: {serial: args: kernel: "serial_perhead", split: args: kernel: "split_grouped"}
	sweep: context: [64, 128]
	method: two_point: {a: 1, b: 65, warmup: false, repeats: {min: 6, max: 9, target: 0.2, deployments: 3}}
}`)
	measured(t, dir, "run", ".")
	tables := load(t, onlyRun(t, dir))
	uniqueKeys(t, tables)
	lives := map[string]int{}
	for _, d := range tables.Deployments {
		lives[d.Variant]++
	}
	if lives["serial"] != 3 || lives["split"] != 3 {
		t.Errorf("server lives: %v", lives)
	}
	for _, p := range tables.Points {
		if p.Deployments != 3 || p.Valid < 6 || p.Valid > 9 || p.Status == "ok" && p.IntervalMethod != "student-t over deployment means" {
			t.Errorf("%s: %d pairs of %d lives, %s", p.PointKey, p.Valid, p.Deployments, p.IntervalMethod)
		}
	}
}
