package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"twopoint/results/table"
)

// methodSpec measures one small server with a method, alone and with four
// requests at a time.
func methodSpec(method string) string {
	return `
experiment: {
	model: "small-gqa"
	servers: e: {engine: "twopoint", context_length: 2Ki, args: {threads: 1, "max-running-requests": 4}}
	sweep: {context: [256, 512], concurrency: [1, 4]}
	method: ` + method + `
}`
}

const someRepeats = `repeats: {min: 3, max: 4, target: 0.3}`

// Each method fills the columns that it measures and leaves the others null;
// requests of a leg run together, each with a prompt of its own.
func TestMethods(t *testing.T) {
	t.Parallel()
	for method, c := range map[string]struct {
		spec  string
		legs  []string
		check func(t *testing.T, p table.PointRow, r table.RepeatRow)
	}{
		"two_point": {`two_point: {a: 1, b: 257, ` + someRepeats + `}`, []string{"a", "b"}, func(t *testing.T, p table.PointRow, r table.RepeatRow) {
			buffered := strings.Contains(r.Doubts, "buffered_stream") // on a busy machine
			if r.SPerTok == nil || r.SPerStep == nil || r.PrefillS == nil || r.SPerTokStream == nil && !buffered || strings.Contains(r.Doubts, "few_steps") || (r.Makespan == nil) != (*p.Concurrency == 1) {
				t.Errorf("%s: %+v", p.PointKey, r)
			}
		}},
		"multi_point": {`multi_point: {a: 1, b: 257, budgets: 4, ` + someRepeats + `}`, []string{"a", "b", "m1", "m2"}, func(t *testing.T, p table.PointRow, r table.RepeatRow) {
			if r.SPerTok == nil || r.PrefillS == nil {
				t.Errorf("%s: %+v", p.PointKey, r)
			}
		}},
		"stream": {`stream: {tokens: 257, ` + someRepeats + `}`, []string{"b"}, func(t *testing.T, p table.PointRow, r table.RepeatRow) {
			if r.SPerTok != nil || r.PrefillS != nil || r.SPerTokStream == nil || r.TTFTS == nil && !strings.Contains(r.Doubts, "buffered_stream") || p.SPerTok != nil || p.DecodeTokS != nil || p.SPerTokStreamRaw == nil || p.A != nil && *p.A != 0 {
				t.Errorf("%s: %+v %+v", p.PointKey, p, r)
			}
		}},
		"decode_at_depth": {`decode_at_depth: {a: 1, b: 257, ` + someRepeats + `}`, []string{"a", "b"}, func(t *testing.T, p table.PointRow, r table.RepeatRow) {
			if r.SPerTok == nil || r.PrefillS != nil || r.TTFTS != nil || p.PrefillS != nil || p.TTFTSRaw != nil || r.CachedA == nil || *r.CachedA != *p.ContextRequested-1 || *r.CachedB != *r.CachedA {
				t.Errorf("%s: %+v %+v", p.PointKey, p, r)
			}
		}},
	} {
		t.Run(method, func(t *testing.T) {
			dir := specIn(t, methodSpec(c.spec))
			measured(t, dir, "run", ".")
			tables := load(t, onlyRun(t, dir))
			uniqueKeys(t, tables)
			points := map[string]table.PointRow{}
			for _, p := range tables.Points {
				points[p.PointKey] = p
				// On a busy machine requests that should run together may not, and pieces of a stream may arrive at once.
				busy := p.Reason == "not_concurrent" || p.Reason == "no_stream"
				if p.Method != method || !busy && (p.Valid < 3 || p.Status != "ok" && p.Status != "unresolved") {
					t.Errorf("%s of %s: %s (%s), %d repeats: %s", p.PointKey, p.Method, p.Status, p.Reason, p.Valid, p.Detail)
				}
			}
			checked := 0
			for _, r := range tables.Repeats {
				if r.Valid {
					checked++
					c.check(t, points[r.PointKey], r)
				}
			}
			if checked == 0 {
				t.Error("no valid repeat")
			}
			type request struct {
				point       string
				repeat, try int64
				leg         string
			}
			slots, prompts := map[request]int64{}, map[string]map[int64]bool{}
			legs := map[string]bool{}
			for _, s := range tables.Samples {
				if s.Role == "prime" || s.Role == "cold" {
					legs[s.Role] = true
				}
				if s.Role != "measure" {
					continue
				}
				legs[s.Leg] = true
				slots[request{s.PointKey, s.Repeat, s.Attempt, s.Leg}]++
				if (s.OffsetS == nil) != (*s.Concurrency == 1) {
					t.Errorf("%s: offset_s %v with %d requests", s.PointKey, s.OffsetS, *s.Concurrency)
				}
				k := fmt.Sprint(s.PointKey, s.Slot)
				if prompts[k] == nil {
					prompts[k] = map[int64]bool{}
				}
				prompts[k][*s.PromptTokens] = true
			}
			for k, n := range slots {
				if n != *points[k.point].Concurrency {
					t.Errorf("%v has %d requests, want %d", k, n, *points[k.point].Concurrency)
				}
			}
			for _, leg := range c.legs {
				if !legs[leg] {
					t.Errorf("no leg %s", leg)
				}
			}
			if depth := method == "decode_at_depth"; legs["prime"] != depth || legs["cold"] != depth {
				t.Errorf("roles and legs: %v", legs)
			}
		})
	}
}
