package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/schema"
)

// limited is an instant server that says what it has room for.
type limited struct {
	instant
	limit, pool, slots int
	speculative        bool
}

func (e limited) Info(context.Context, *engine.Client, schema.Variant) (engine.Info, error) {
	return engine.Info{Model: "instant", ContextLimit: e.limit, KVPoolTokens: int64(e.pool), Slots: e.slots, TokenIDs: true, ExactLength: true, CachedCount: true, Speculative: &e.speculative}, nil
}

// A point whose legs find no room is skipped, and the others are measured.
func TestNoRoom(t *testing.T) {
	for name, c := range map[string]struct {
		method string // and what else the spec says
		server limited
		want   []string
	}{
		"below the context limit":         {`two_point: {repeats: {min: 3, max: 3}}`, limited{limit: 256 + 65}, []string{"64 ok", "128 ok", "256 skipped no_room"}},
		"in the b that was given":         {`two_point: {b: 17, repeats: {min: 3, max: 3}}`, limited{limit: 1 << 20, speculative: true}, []string{"64 skipped no_room", "128 skipped no_room", "256 skipped no_room"}},
		"a short stream needs no leg a":   {`stream: {tokens: 17, repeats: {min: 3, max: 3}}`, limited{limit: 1 << 20, speculative: true}, []string{"64 ok", "128 ok", "256 ok"}},
		"in the slots":                    {"two_point: {b: 33, repeats: {min: 3, max: 3}}\n\tsweep: concurrency: [1, 4]", limited{limit: 1 << 20, slots: 3}, []string{"64 ok", "128 ok", "256 ok", "64 skipped no_room", "128 skipped no_room", "256 skipped no_room"}},
		"a pool is the server's business": {`two_point: {repeats: {min: 3, max: 3}}`, limited{limit: 1 << 20, pool: 100}, []string{"64 ok", "128 ok", "256 ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, requests := t.TempDir(), 0
			spec := fmt.Sprintf(instantSpec, `"auto"`)
			spec = spec[:strings.Index(spec, "method:")] + "method: " + c.method + "\n}"
			c.server.requests = &requests
			a := agentFor(t, dir, spec, c.server.instant)
			a.Engine = func(string) (engine.Engine, bool) { return c.server, true }
			if reason, err := a.Run(t.Context(), "start"); err != nil || reason != event.EndDone {
				t.Fatal(reason, err)
			}
			var got []string
			for _, p := range a.History.Points() {
				status, reason, _ := p.Outcome()
				got = append(got, strings.TrimRight(fmt.Sprintf("%d %s %s", p.Context, status, reason), " "))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A b that was given and cannot resolve the answer is noted once, while measuring,
// and is a doubt about the point; one that can is not.
func TestBTooSmallIsNoted(t *testing.T) {
	dir, requests := t.TempDir(), 0
	rough := func(context, n int) float64 { // only at 128
		if context == 128 {
			return 100e-6 * (1 + 0.4*float64(n%5))
		}
		return 100e-6
	}
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, "17"), instant{perToken: rough, requests: &requests})
	if _, err := a.Run(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	for _, p := range a.History.Points() {
		want := 0
		if p.Context == 128 {
			want = 1
		}
		if len(p.Notes) != want || want == 1 && (p.Notes[0].Code != "b-too-small" || !strings.Contains(p.Notes[0].Text, "b − a = 16 is too small")) {
			t.Errorf("%s: %+v", p.Key, p.Notes)
		}
	}
}
