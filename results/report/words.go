// Package report says in words and on a page what a run's tables hold. Every number
// is a cell of the tables, with the digits that its interval supports; nothing is
// computed here that a table does not have.
package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"twopoint/results/stat"
	"twopoint/results/table"
	"twopoint/schema"
)

// Seconds is a duration in the unit in which a person would say it.
func Seconds(s float64) string {
	switch a := math.Abs(s); {
	case a >= 100:
		return fmt.Sprintf("%.0f s", s)
	case a >= 1:
		return fmt.Sprintf("%.3g s", s)
	case a >= 1e-3:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case a >= 1e-6 || a == 0:
		return fmt.Sprintf("%.3g µs", s*1e6)
	}
	return fmt.Sprintf("%.3g ns", s*1e9)
}

// Number is x with the digits that its half-width supports: two digits of the
// half-width, three significant digits of x where there is none.
func Number(x, half float64) string {
	digits := 2
	if !(half > 0) {
		half, digits = math.Abs(x), 3
	}
	if half == 0 || math.IsInf(half, 0) {
		return fmt.Sprintf("%g", x)
	}
	decimals := digits - 1 - int(math.Floor(math.Log10(half)))
	if decimals < 0 {
		p := math.Pow10(-decimals)
		return fmt.Sprintf("%.0f", math.Round(x/p)*p)
	}
	return fmt.Sprintf("%.*f", min(decimals, 12), x)
}

// Ranged is a value with its interval, "3.14 [3.05, 3.22]".
func Ranged(x, lo, hi *float64) string {
	if x == nil {
		return ""
	}
	if lo == nil || hi == nil {
		return Number(*x, 0)
	}
	half := (*hi - *lo) / 2
	return fmt.Sprintf("%s [%s, %s]", Number(*x, half), Number(*lo, half), Number(*hi, half))
}

// WithHalf is "value ± half-width".
func WithHalf(x, lo, hi *float64) string {
	if lo == nil || hi == nil {
		return Number(*x, 0)
	}
	half := (*hi - *lo) / 2
	return Number(*x, half) + " ± " + Number(half, half)
}

// Answer says in one sentence a variant how speed falls with context, and how
// the context slopes compare.
func Answer(t *table.Tables) []string {
	var out []string
	for _, group := range Curves(t.Points) {
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
		name := CurveName(first.Variant, *first.Concurrency)
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
					s += fmt.Sprintf(" (extra context read at %s GB/s)", Number(*f.KVStream, 0))
				}
				if f.BetaGain != nil {
					s += ", " + times(f) + f.Against
				}
			} else if f.Quantity == "s_per_step" && *f.Beta != 0 && stepsDiffer(t.Fits, f) {
				s += fmt.Sprintf("; to a step %s", perContext(f))
				if f.BetaGain != nil {
					s += ", " + times(f) + f.Against + " (accept lengths differ: only steps compare)"
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

// times is how a context slope compares, the larger over the smaller.
func times(f table.FitRow) string {
	if *f.BetaGain >= 1 {
		return Ranged(f.BetaGain, f.BetaGainLo, f.BetaGainHi) + " times less than with "
	}
	inverse := func(x *float64) *float64 {
		if x == nil || *x <= 0 {
			return nil
		}
		y := 1 / *x
		return &y
	}
	return Ranged(inverse(f.BetaGain), inverse(f.BetaGainHi), inverse(f.BetaGainLo)) + " times more than with "
}

// stepsDiffer tells whether a variant's steps are not its tokens, or may not be
// compared by them: its slope over tokens is another than that over steps.
func stepsDiffer(fits []table.FitRow, step table.FitRow) bool {
	return slices.ContainsFunc(fits, func(f table.FitRow) bool {
		return f.Variant == step.Variant && f.Concurrency == step.Concurrency && f.Quantity == "s_per_tok" && (f.Doubts != "" || math.Abs(*f.Beta-*step.Beta) > 1e-6*math.Abs(*step.Beta))
	})
}

// Curves are the points of each variant at each concurrency.
func Curves(points []table.PointRow) [][]table.PointRow {
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

// CurveName is what people call a variant at a concurrency.
func CurveName(variant string, concurrency int64) string {
	if concurrency > 1 {
		return fmt.Sprintf("%s, %d requests at a time", variant, concurrency)
	}
	return variant
}

// DecodeOf is what the point's method estimates, in seconds per token with its
// interval, and the rate that this is with its own.
func DecodeOf(p table.PointRow) (s, sLo, sHi, tokS, lo, hi *float64) {
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
	_, _, _, v, lo, hi := DecodeOf(p)
	half := 0.0
	if lo != nil && hi != nil {
		half = (*hi - *lo) / 2
	}
	return Number(*v, half)
}

// perContext is a context slope in microseconds with its interval.
func perContext(f table.FitRow) string {
	us := func(x *float64) *float64 {
		v := *x * 1e6
		return &v
	}
	return Ranged(us(f.Beta), us(f.BetaLo), us(f.BetaHi)) + " µs"
}

// Doubts are what a reader must know before using a number, one line each.
func Doubts(t *table.Tables) []string {
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
		if line := CurveName(f.Variant, f.Concurrency) + ": " + fmt.Sprintf(format, args...); !said[line] {
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
			stat.InterceptTooLow, Seconds(*f.AlphaHi), Seconds(*f.WeightsS), Number(*f.PeakGBs, 0))
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
