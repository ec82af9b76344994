package report

import (
	"cmp"
	"fmt"
	"slices"

	"twopoint/results/stat"
	"twopoint/results/table"
)

// Points are the points of a run as people read them, a row each below a head, dead
// ones beside the living. Columns that no point fills are left out.
func Points(points []table.PointRow) [][]string {
	rows := [][]string{{"variant", "context", "prompt tokens", "requests", "prefill tok/s", "decode tok/s", "ms/token", "ttft", "accepted", "pairs", "status"}}
	for _, p := range points {
		row := []string{p.Variant, fmt.Sprint(*p.ContextRequested), "", "", "", "", "", "", "", fmt.Sprint(p.Valid), p.Status}
		if n := p.PromptTokens; n != nil && *n != *p.ContextRequested {
			row[2] = fmt.Sprint(*n)
		}
		if c := *p.Concurrency; c > 1 {
			row[3] = fmt.Sprint(c)
		}
		if why := cmp.Or(p.FailureKind, p.Reason); why != "" && p.Status != stat.OK {
			row[10] += ": " + why
		}
		if s, lo, hi, tokS, rateLo, rateHi := DecodeOf(p); p.Status == stat.OK && s != nil {
			row[5] = WithHalf(tokS, rateLo, rateHi)
			row[6] = Number(*s*1e3, 1e3*(*hi-*lo)/2)
			if p.PrefillTokS != nil {
				row[4] = WithHalf(p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi)
			}
			if p.TTFTS != nil {
				row[7] = Seconds(*p.TTFTS)
			}
			if a := p.AcceptLength; a != nil && *a != 1 {
				row[8] = Number(*a, 0)
			}
		}
		rows = append(rows, row)
	}
	return Filled(rows)
}

// Filled leaves out the columns that no row below the head fills.
func Filled(rows [][]string) [][]string {
	out := make([][]string, len(rows))
	for c := range rows[0] {
		filled := slices.ContainsFunc(rows[1:], func(r []string) bool { return r[c] != "" })
		for i := range rows {
			if filled || len(rows) == 1 {
				out[i] = append(out[i], rows[i][c])
			}
		}
	}
	return out
}
