package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"twopoint/results/run"
	"twopoint/results/stat"
	"twopoint/results/table"
	"twopoint/schema"
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
	if len(t.Claims) > 0 {
		fmt.Fprintf(w, "\n%s\n", claimCount(t.Claims))
	}
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
	for _, group := range curves(t.Points) {
		var ok []table.PointRow
		for _, p := range group {
			if p.Status == stat.OK {
				ok = append(ok, p)
			}
		}
		if len(ok) == 0 {
			continue
		}
		slices.SortStableFunc(ok, func(x, y table.PointRow) int { return int(*x.ContextRequested - *y.ContextRequested) })
		first, last := ok[0], ok[len(ok)-1]
		speed, quantity := "decode %s tok/s", "s_per_tok"
		if first.Method == schema.MethodStream {
			speed, quantity = "decode (in the stream) %s tok/s", "s_per_tok_stream"
		}
		name := curveName(first.Variant, *first.Concurrency)
		if *first.Concurrency > 1 {
			speed += " each"
		}
		s := fmt.Sprintf("%s: "+speed+" at %d tokens of context", name, rate(first), *first.ContextRequested)
		if len(ok) > 1 {
			s += fmt.Sprintf(", %s at %d", rate(last), *last.ContextRequested)
		}
		for _, f := range t.Fits {
			if f.Variant != first.Variant || f.Concurrency != *first.Concurrency {
				continue
			}
			if f.Quantity == quantity {
				s += fmt.Sprintf("; a context token adds %s", perContext(f))
				if f.KVStream != nil {
					s += fmt.Sprintf(" (extra context read at %s GB/s)", figure(*f.KVStream, 0))
				}
				if f.BetaGain != nil {
					s += fmt.Sprintf(", %s times less than with %s", ranged(f.BetaGain, f.BetaGainLo, f.BetaGainHi), f.Against)
				}
			} else if f.Quantity == "s_per_step" && *f.Beta != 0 && stepsDiffer(t.Fits, f) {
				s += fmt.Sprintf("; to a step %s", perContext(f))
				if f.BetaGain != nil {
					s += fmt.Sprintf(", %s times less than with %s (accept lengths differ: only steps compare)", ranged(f.BetaGain, f.BetaGainLo, f.BetaGainHi), f.Against)
				}
			}
		}
		out = append(out, s+".")
	}
	if len(out) == 0 {
		out = append(out, "No point could be measured.")
	}
	return out
}

// stepsDiffer tells whether a variant's steps are not its tokens, or may not be
// compared by them: its slope over tokens is another than that over steps.
func stepsDiffer(fits []table.FitRow, step table.FitRow) bool {
	return slices.ContainsFunc(fits, func(f table.FitRow) bool {
		return f.Variant == step.Variant && f.Concurrency == step.Concurrency && f.Quantity == "s_per_tok" && (f.Doubts != "" || math.Abs(*f.Beta-*step.Beta) > 1e-6*math.Abs(*step.Beta))
	})
}

// curves are the points of each variant at each concurrency.
func curves(points []table.PointRow) [][]table.PointRow {
	type curve struct {
		variant     string
		concurrency int64
	}
	var order []curve
	byCurve := map[curve][]table.PointRow{}
	for _, p := range points {
		c := curve{p.Variant, *p.Concurrency}
		if byCurve[c] == nil {
			order = append(order, c)
		}
		byCurve[c] = append(byCurve[c], p)
	}
	out := make([][]table.PointRow, len(order))
	for i, c := range order {
		out[i] = byCurve[c]
	}
	return out
}

// curveName is what people call a variant at a concurrency.
func curveName(variant string, concurrency int64) string {
	if concurrency > 1 {
		return fmt.Sprintf("%s, %d requests at a time", variant, concurrency)
	}
	return variant
}

// decodeOf is what the point's method estimates, in seconds per token with its
// interval, and the rate that this is with its own.
func decodeOf(p table.PointRow) (s, sLo, sHi, tokS, lo, hi *float64) {
	s, sLo, sHi = p.SPerTok, p.SPerTokLo, p.SPerTokHi
	if p.Method == schema.MethodStream {
		s, sLo, sHi = p.SPerTokStream, p.SPerTokStreamLo, p.SPerTokStreamHi
	}
	inverse := func(x *float64) *float64 {
		if x == nil || *x <= 0 {
			return nil
		}
		v := 1 / *x
		return &v
	}
	return s, sLo, sHi, inverse(s), inverse(sHi), inverse(sLo)
}

func rate(p table.PointRow) string {
	_, _, _, v, lo, hi := decodeOf(p)
	half := 0.0
	if lo != nil && hi != nil {
		half = (*hi - *lo) / 2
	}
	return figure(*v, half)
}

// perContext is a context slope in microseconds with its interval.
func perContext(f table.FitRow) string {
	us := func(x *float64) *float64 {
		v := *x * 1e6
		return &v
	}
	return ranged(us(f.Beta), us(f.BetaLo), us(f.BetaHi)) + " µs"
}

// pointTable is one line a planned point: dead points stand beside the living.
func pointTable(points []table.PointRow) string {
	rows := [][]string{{"variant", "context", "requests", "prefill tok/s", "decode tok/s", "ms/token", "ttft", "accepted", "pairs", "status"}}
	for _, p := range points {
		row := []string{p.Variant, fmt.Sprint(*p.ContextRequested), "", "", "", "", "", "", fmt.Sprint(p.Valid), p.Status}
		if c := *p.Concurrency; c > 1 {
			row[2] = fmt.Sprint(c)
		}
		if p.Status == stat.OK {
			if p.PrefillTokS != nil {
				row[3] = withHalf(p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi)
			}
			s, sLo, sHi, tokS, lo, hi := decodeOf(p)
			row[4] = withHalf(tokS, lo, hi)
			row[5] = figure(*s*1e3, 1e3*(*sHi-*sLo)/2)
			if p.TTFTS != nil {
				row[6] = seconds(*p.TTFTS)
			}
			if a := p.AcceptLength; a != nil && *a != 1 {
				row[7] = figure(*a, 0)
			}
		} else if p.Reason != "" {
			row[9] += ": " + p.Reason
		}
		rows = append(rows, row)
	}
	return columns(withoutEmpty(rows))
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
			if line := lastWords(p); line != "" && !said[line] {
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
		out = append(out, fitDoubts(f, said)...)
	}
	r := t.Runs[0]
	if r.Pending > 0 {
		add("%d of %d points are pending", r.Pending, r.Planned)
	}
	var remarks []string
	if json.Unmarshal([]byte(r.Remarks), &remarks) == nil {
		slices.Sort(remarks)
		for _, text := range slices.Compact(remarks) {
			ofPoint := func(p table.PointRow) bool { return strings.Contains(p.DoubtDetail, text) }
			if !slices.ContainsFunc(t.Points, ofPoint) {
				add("%s", text)
			}
		}
	}
	return out
}

// fitDoubts are the doubts about a line over context that said does not hold yet: the
// lines of one curve over tokens and over steps often share them.
func fitDoubts(f table.FitRow, said map[string]bool) (out []string) {
	add := func(format string, args ...any) {
		if line := curveName(f.Variant, f.Concurrency) + ": " + fmt.Sprintf(format, args...); !said[line] {
			said[line] = true
			out = append(out, line)
		}
	}
	if f.Scaled != nil && *f.Scaled {
		add("the line over context misses its points by more than their scatter; its intervals are widened for it")
	}
	if f.KVDoubts != "" {
		add("the server contradicts the spec in %s; the read rate takes the server's word", f.KVDoubts)
	}
	if slices.Contains(strings.Split(f.Doubts, ","), string(stat.InterceptTooLow)) {
		add("%s: the line leaves a step at most %s at no context, and reading the weights alone takes %s (GPU at %s GB/s)",
			stat.InterceptTooLow, seconds(*f.AlphaHi), seconds(*f.WeightsS), figure(*f.PeakGBs, 0))
	}
	return out
}

// pointDoubts are the doubts about points that have a value, and what the output
// gate found whatever they have: one line a doubt, with the points that it
// concerns and the numbers behind it at the first.
func pointDoubts(points []table.PointRow) []string {
	var order []string
	keys, details := map[string][]string{}, map[string]string{}
	for _, p := range points {
		if p.Doubts == "" {
			continue
		}
		lines := strings.Split(p.DoubtDetail, "\n")
		for i, code := range strings.Split(p.Doubts, ",") {
			if p.Status != stat.OK && (!strings.HasPrefix(code, "gate_") || code == p.Reason) {
				continue
			}
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
			out = append(out, fmt.Sprintf("one server life: the intervals know nothing of what differs from start to start (method.%s.repeats.deployments: 3 would)", points[0].Method))
			continue
		}
		if len(keys[code]) > 3 {
			where = fmt.Sprintf("%s and %d more", strings.Join(keys[code][:2], ", "), len(keys[code])-2)
		}
		out = append(out, fmt.Sprintf("%s: %s: %s", where, code, details[code]))
	}
	return out
}

// lastWords are the end of a failure's evidence, usually the log's last line, that
// its message does not say already.
func lastWords(p table.PointRow) string {
	for _, line := range slices.Backward(strings.Split(p.Evidence, "\n")) {
		if strings.TrimSpace(line) != "" && !strings.Contains(line, p.FailureMessage) && !strings.Contains(p.FailureMessage, line) {
			return line
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func nextCommands(ref string, dir run.Dir, t *table.Tables) []string {
	r := t.Runs[0]
	out := []string{"twopoint show " + ref}
	if len(t.Claims) > 0 {
		out = append(out, "twopoint check "+ref)
	}
	if r.Pending > 0 {
		out = append(out, "twopoint resume "+ref)
	}
	if r.Failed > 0 {
		out = append(out, "twopoint resume "+ref+" --retry failed")
	}
	return append(out, fmt.Sprintf("duckdb -c \"select point_key, status, decode_tok_s from '%s'\"", dir.Table("points")))
}
