package cli

import (
	"fmt"
	"slices"
	"strings"

	"twopoint/results/run"
	"twopoint/results/stat"
	"twopoint/results/table"
)

// summary prints what a run says: one sentence that answers, the table, the
// doubts one line each, and what to do next. Every number is a cell of the
// tables.
func (a *app) summary(dir run.Dir, t *table.Tables) {
	w := a.stdout
	for _, line := range answer(t) {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "\n%s", pointTable(t.Points))
	if doubts := doubts(t); len(doubts) > 0 {
		fmt.Fprintln(w)
		for _, d := range doubts {
			fmt.Fprintln(w, "! "+d)
		}
	}
	fmt.Fprintln(w)
	for _, next := range nextCommands(a.ref(dir), dir, t) {
		fmt.Fprintln(w, "  "+next)
	}
}

// answer says in one sentence a variant how speed falls with context, and how
// the context slopes compare.
func answer(t *table.Tables) []string {
	var out []string
	for _, name := range variantsOf(t.Points) {
		var ok []table.PointRow
		for _, p := range t.Points {
			if p.Variant == name && p.Status == stat.OK {
				ok = append(ok, p)
			}
		}
		if len(ok) == 0 {
			continue
		}
		slices.SortStableFunc(ok, func(x, y table.PointRow) int { return int(*x.ContextRequested - *y.ContextRequested) })
		first, last := ok[0], ok[len(ok)-1]
		s := fmt.Sprintf("%s: decode %s tok/s at %d tokens of context", name, rate(first), *first.ContextRequested)
		if len(ok) > 1 {
			s += fmt.Sprintf(", %s at %d", rate(last), *last.ContextRequested)
		}
		for _, f := range t.Fits {
			if f.Variant != name || f.Quantity != "s_per_tok" {
				continue
			}
			s += fmt.Sprintf("; a context token adds %s", perContext(f))
			if f.KVStream != nil {
				s += fmt.Sprintf(" (extra context read at %s GB/s)", figure(*f.KVStream, 0))
			}
			if f.BetaGain != nil {
				s += fmt.Sprintf(", %s times less than with %s", ranged(f.BetaGain, f.BetaGainLo, f.BetaGainHi), f.Against)
			}
		}
		out = append(out, s+".")
	}
	if len(out) == 0 {
		out = append(out, "No point could be measured.")
	}
	return out
}

func rate(p table.PointRow) string {
	half := 0.0
	if p.DecodeTokSLo != nil && p.DecodeTokSHi != nil {
		half = (*p.DecodeTokSHi - *p.DecodeTokSLo) / 2
	}
	return figure(*p.DecodeTokS, half)
}

// perContext is a context slope in microseconds with its interval.
func perContext(f table.FitRow) string {
	us := func(x *float64) *float64 {
		v := *x * 1e6
		return &v
	}
	return ranged(us(f.Beta), us(f.BetaLo), us(f.BetaHi)) + " µs"
}

func variantsOf(points []table.PointRow) []string {
	var names []string
	for _, p := range points {
		if !slices.Contains(names, p.Variant) {
			names = append(names, p.Variant)
		}
	}
	return names
}

// pointTable is one line a planned point: dead points stand beside the living.
func pointTable(points []table.PointRow) string {
	rows := [][]string{{"variant", "context", "prefill tok/s", "decode tok/s", "ms/token", "ttft", "pairs", "status"}}
	for _, p := range points {
		row := []string{p.Variant, fmt.Sprint(*p.ContextRequested), "", "", "", "", fmt.Sprint(p.Valid), p.Status}
		if p.Status == stat.OK {
			if p.PrefillTokS != nil {
				row[2] = withHalf(p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi)
			}
			row[3] = withHalf(p.DecodeTokS, p.DecodeTokSLo, p.DecodeTokSHi)
			ms := *p.SPerTok * 1e3
			row[4] = figure(ms, 1e3*(*p.SPerTokHi-*p.SPerTokLo)/2)
			if p.TTFTS != nil {
				row[5] = seconds(*p.TTFTS)
			}
		} else if p.Reason != "" {
			row[7] += ": " + p.Reason
		}
		rows = append(rows, row)
	}
	return columns(rows)
}

// withHalf is "value ± half-width".
func withHalf(x, lo, hi *float64) string {
	if lo == nil || hi == nil {
		return figure(*x, 0)
	}
	half := (*hi - *lo) / 2
	return figure(*x, half) + " ± " + figure(half, half)
}

// doubts are what a reader must know before using a number, one line each.
func doubts(t *table.Tables) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	said := map[string]bool{} // evidence: a variant that could not start gives all its points the same
	for _, p := range t.Points {
		switch p.Status {
		case stat.Failed:
			add("%s failed: %s in %s: %s", p.PointKey, p.FailureKind, p.FailureStage, p.FailureMessage)
			if line := firstLine(p.Evidence); line != "" && !said[line] {
				said[line] = true
				add("  evidence: %s", line)
			}
		case stat.Invalid, stat.Unresolved:
			add("%s is %s (%s): %s", p.PointKey, p.Status, p.Reason, firstLine(p.Detail))
		case stat.Skipped:
			add("%s was skipped: %s", p.PointKey, firstLine(p.Detail))
		}
	}
	out = append(out, pointDoubts(t.Points)...)
	for _, f := range t.Fits {
		if f.Quantity != "s_per_tok" {
			continue
		}
		if f.Scaled != nil && *f.Scaled {
			add("%s: the line over context misses its points by more than their scatter; its intervals are widened for it", f.Variant)
		}
		if f.Doubts != "" {
			add("%s: the server contradicts the spec in %s; the read rate takes the server's word", f.Variant, f.Doubts)
		}
	}
	if r := t.Runs[0]; r.Pending > 0 {
		add("%d of %d points are pending", r.Pending, r.Planned)
	}
	return out
}

// pointDoubts are the doubts about points that have a value: one line a doubt,
// with the points that it concerns and the numbers behind it at the first.
func pointDoubts(points []table.PointRow) []string {
	var order []string
	keys, details := map[string][]string{}, map[string]string{}
	for _, p := range points {
		if p.Status != stat.OK || p.Doubts == "" {
			continue
		}
		lines := strings.Split(p.DoubtDetail, "\n")
		for i, code := range strings.Split(p.Doubts, ",") {
			if keys[code] == nil {
				order = append(order, code)
				if i < len(lines) {
					details[code] = lines[i]
				}
			}
			keys[code] = append(keys[code], p.PointKey)
		}
	}
	var out []string
	for _, code := range order {
		where := strings.Join(keys[code], ", ")
		if code == string(stat.OneServerLife) {
			out = append(out, "one server life: the intervals know nothing of what differs from start to start (method.two_point.repeats.deployments: 3 would)")
			continue
		}
		if len(keys[code]) > 3 {
			where = fmt.Sprintf("%s and %d more", strings.Join(keys[code][:2], ", "), len(keys[code])-2)
		}
		out = append(out, fmt.Sprintf("%s: %s: %s", where, code, details[code]))
	}
	return out
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func nextCommands(ref string, dir run.Dir, t *table.Tables) []string {
	r := t.Runs[0]
	out := []string{"twopoint show " + ref}
	if r.Pending > 0 {
		out = append(out, "twopoint resume "+ref)
	}
	if r.Failed > 0 {
		out = append(out, "twopoint resume "+ref+" --retry failed")
	}
	return append(out, fmt.Sprintf("duckdb -c \"select point_key, status, decode_tok_s from '%s'\"", dir.Table("points")))
}
