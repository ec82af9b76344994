// Package claim judges what publications say by what was measured. Published
// tables and statements of a plan come in, beside points, fits and facts about
// the machine as the tables have them; one verdict a claim goes out. It measures
// nothing, and no verdict changes a figure.
package claim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"twopoint/results/stat"
	"twopoint/schema"
)

// Verdicts, a closed list. With the interval I of what was measured and the range R
// that the claim accepts, a claim is reproduced if I lies within R, deviates if they
// do not meet, and is inconclusive otherwise. Without an interval nothing is
// reproduced, but for events and recomputed figures.
const (
	Reproduced   = "reproduced"
	Deviates     = "deviates"
	Inconclusive = "inconclusive"
	OutOfScope   = "out_of_scope" // other hardware, model or engine than the claim is about
	NotMeasured  = "not_measured"
	Invalid      = "invalid" // the measurement is not valid, or breaches a physical bound
)

// Verdicts in the order in which they are counted.
var Verdicts = []string{Reproduced, Deviates, Inconclusive, OutOfScope, NotMeasured, Invalid}

// What an interval is.
const (
	ByPairs    = "student-t"
	ByPrinted  = "printed ±"
	ByRounding = "rounding" // half a unit of the last printed digit
)

// Figure is a value with its interval.
type Figure struct {
	Value  float64
	Lo, Hi float64 // both NaN: none
	By     string  // ByPairs | ByPrinted | ByRounding
}

// Point is what is known of one point.
type Point struct {
	Key         string
	Variant     string
	Engine      string
	Tokens      float64 // of the prompt, as counted, else as asked for
	Concurrency int64

	Status                    string // stat.OK to stat.Pending
	Reason                    string
	FailureKind, FailureStage string
	Evidence                  string            // lines of the failure's log
	Figures                   map[string]Figure // by column name; only where Status is stat.OK
}

// Fit is the line over context of a variant.
type Fit struct {
	Variant                string
	Engine                 string
	Concurrency            int64
	ContextMin, ContextMax float64
	Figures                map[string]Figure // Slope, ReadRate
	PeakGBs                float64           // at which the device can read; 0: not known
}

// Metrics of a line rather than a point.
const (
	Slope    = "context_slope_s" // seconds that one more context token adds to a token
	ReadRate = "kv_stream_gb_s"
)

// Evidence is all that claims are held to.
type Evidence struct {
	Points []Point
	Fits   []Fit
	Model  string   // as the spec names it
	GPUs   []string // one name a device
	CPU    string
	Dummy  bool // weights are random: the shape is the model's, its output is not

	// Published marks a table that stands in for a run of its own: it is within the
	// scope of its claims by definition.
	Published bool
}

// Result is one claim with its verdict.
type Result struct {
	ID         string // set/claim, or set/metric/variant/tokens of a cell
	Set        string
	Kind       string
	Metric     string
	Variant    string // where the claim is about one
	PointKeys  []string
	Verdict    string
	Detail     string
	Published  string  // the figure or statement as it is printed
	Measured   *Figure // what it was compared with; nil: nothing
	Lo, Hi     float64 // the accepted range, ±Inf where open; NaN: none
	Definition string
	Source     schema.Source
	Why        string
}

// Judge gives every claim of the published tables its verdict: named ones, and one
// for each cell. They come by set and name.
func Judge(published map[string]schema.Published, e Evidence) []Result {
	var out []Result
	for _, set := range slices.Sorted(maps.Keys(published)) {
		p := published[set]
		for _, id := range slices.Sorted(maps.Keys(p.Claims)) {
			out = append(out, judge(set, id, p, p.Claims[id], e))
		}
		for _, metric := range slices.Sorted(maps.Keys(p.Cells)) {
			for _, variant := range slices.Sorted(maps.Keys(p.Cells[metric])) {
				cells := p.Cells[metric][variant]
				for _, tokens := range slices.SortedFunc(maps.Keys(cells), byNumber) {
					if c, ok := cellClaim(metric, variant, tokens, cells[tokens]); ok {
						out = append(out, judge(set, metric+"/"+variant+"/"+tokens, p, c, e))
					}
				}
			}
		}
	}
	return out
}

func byNumber(x, y string) int {
	a, _ := strconv.Atoi(x)
	b, _ := strconv.Atoi(y)
	return cmp.Or(cmp.Compare(a, b), cmp.Compare(x, y))
}

// cellClaim is what a printed cell claims; ok is false for one that is printed as
// absent.
func cellClaim(metric, variant, tokens string, cell any) (c schema.Claim, ok bool) {
	n, err := strconv.Atoi(tokens)
	if err != nil {
		return c, false
	}
	c = schema.Claim{Kind: "relative", Metric: metric, At: &schema.At{Variant: variant, Context: n}}
	if m, is := cell.(map[string]any); is {
		cell = m["value"]
		if x, is := number(m["plus_minus"]); is {
			c.PlusMinus = &x
		}
	}
	if metric == "event" {
		c.Kind = "event"
		c.Event, ok = cell.(string)
		return c, ok
	}
	c.Expect = cell
	_, ok = number(cell)
	return c, ok
}

func judge(set, id string, p schema.Published, c schema.Claim, e Evidence) Result {
	j := &judgement{
		c: c, e: e, scope: p.Scope.Over(c.Scope), measuredOn: p.MeasuredOn,
		r: Result{
			ID: set + "/" + id, Set: set, Kind: c.Kind, Metric: c.Metric, Definition: cmp.Or(c.Definition, p.Definition),
			Source: p.Source, Why: c.Why, Lo: math.NaN(), Hi: math.NaN(),
		},
	}
	if c.Source != nil {
		j.r.Source = *c.Source
	}
	switch c.Kind {
	case "absolute", "relative":
		j.figure()
	case "ratio":
		j.ratio()
	case "order":
		j.order()
	case "shape":
		j.shape()
	case "slope":
		j.slope()
	case "bound":
		j.bound()
	case "event":
		j.event()
	case "recompute":
		j.recompute()
	default:
		j.say(NotMeasured, "a claim of kind %q has no test", c.Kind)
	}
	return j.r
}

// judgement is a claim under judgement.
type judgement struct {
	c          schema.Claim
	e          Evidence
	scope      schema.Scope
	measuredOn map[string]any
	r          Result
}

func (j *judgement) say(verdict, format string, args ...any) {
	j.r.Verdict, j.r.Detail = verdict, fmt.Sprintf(format, args...)
}

// hold compares a figure with the accepted range.
func (j *judgement) hold(f Figure, lo, hi float64) {
	j.r.Measured, j.r.Lo, j.r.Hi = &f, lo, hi
	j.r.Verdict = within(f, lo, hi)
	j.r.Detail = fmt.Sprintf("%s, accepted: %s", f, span(lo, hi))
}

func within(f Figure, lo, hi float64) string {
	switch {
	case math.IsNaN(f.Lo) || math.IsNaN(f.Hi):
		return Inconclusive
	case f.Lo >= lo && f.Hi <= hi:
		return Reproduced
	case f.Hi < lo || f.Lo > hi:
		return Deviates
	}
	return Inconclusive
}

// String is the figure with its interval, to four digits.
func (f Figure) String() string {
	if math.IsNaN(f.Lo) {
		return fmt.Sprintf("%.5g without an interval", f.Value)
	}
	return fmt.Sprintf("%.5g [%.5g, %.5g]", f.Value, f.Lo, f.Hi)
}

func span(lo, hi float64) string {
	switch {
	case math.IsInf(lo, -1) && math.IsInf(hi, 1):
		return "anything"
	case math.IsInf(lo, -1):
		return fmt.Sprintf("at most %.5g", hi)
	case math.IsInf(hi, 1):
		return fmt.Sprintf("at least %.5g", lo)
	}
	return fmt.Sprintf("%.5g to %.5g", lo, hi)
}

// nearTokens is how far the prompt of a point may be from the one that a claim
// names: a publication's label and its tokens can differ by a third.
const nearTokens = 0.05

// point finds the point that a claim speaks of. Otherwise it says why there is
// none, as a verdict.
func (j *judgement) point(at schema.At) (Point, bool) {
	variant := at.Variant
	if variant == "" {
		for _, p := range j.e.Points {
			if variant != "" && p.Variant != variant {
				j.say(NotMeasured, "the claim does not say which variant it is about")
				return Point{}, false
			}
			variant = p.Variant
		}
	}
	j.r.Variant = variant
	concurrency := int64(max(at.Concurrency, 1))
	var best Point
	candidates, off := 0, math.Inf(1)
	for _, p := range j.e.Points {
		if p.Variant != variant || p.Concurrency != concurrency {
			continue
		}
		candidates++
		if d := math.Abs(p.Tokens/float64(at.Context) - 1); at.Context == 0 || d < off {
			best, off = p, d
		}
	}
	switch {
	case candidates == 0:
		j.say(NotMeasured, "no point of %s at concurrency %d", cmp.Or(variant, "any variant"), concurrency)
		return best, false
	case at.Context == 0 && candidates > 1:
		j.say(NotMeasured, "the claim does not say at which context")
		return best, false
	case at.Context > 0 && off > nearTokens:
		j.say(NotMeasured, "the point of %s nearest to %d tokens has %.0f", variant, at.Context, best.Tokens)
		return best, false
	}
	j.r.PointKeys = append(j.r.PointKeys, best.Key)
	return best, true
}

// value is the figure of a metric at a point within the scope, or a verdict why
// there is none.
func (j *judgement) value(p Point, metric string) (Figure, bool) {
	if f, ok := p.Figures[metric]; ok && p.Status == stat.OK {
		return f, true
	}
	switch p.Status {
	case stat.OK:
		j.say(NotMeasured, "%s has no %s", p.Key, metric)
	case stat.Unresolved:
		j.say(Inconclusive, "%s is unresolved (%s)", p.Key, p.Reason)
	case stat.Invalid:
		j.say(Invalid, "%s is invalid (%s)", p.Key, p.Reason)
	default:
		j.say(NotMeasured, "%s is %s (%s)", p.Key, p.Status, cmp.Or(p.FailureKind, p.Reason, "nothing was measured"))
	}
	return Figure{}, false
}

// at is the figure of the claim's metric at a place: of a point, or of the line
// through a variant's points.
func (j *judgement) at(at schema.At) (Figure, bool) {
	if j.c.Metric == Slope || j.c.Metric == ReadRate {
		f, ok := j.fit(cmp.Or(at.Variant, j.variant()), int64(max(at.Concurrency, 1)))
		return f.Figures[j.c.Metric], ok
	}
	p, ok := j.point(at)
	if !ok || !j.inScope(p.Engine) {
		return Figure{}, false
	}
	return j.value(p, j.c.Metric)
}

func (j *judgement) figure() {
	expect, digits, ok := j.expected()
	if !ok {
		return
	}
	f, ok := j.at(j.where())
	if !ok {
		return
	}
	tol := j.tolerance(expect)
	if t := j.c.Tolerance; t != nil && j.c.Kind == "absolute" {
		tol = *t
	} else if t != nil {
		tol = *t * math.Abs(expect)
	}
	tol = max(tol, digits) // a claim is no finer than it is printed
	j.hold(f, expect-tol, expect+tol)
}

// Default tolerances (published.md, "claim format"): of a figure of the same engine
// in another version, of one that is defined otherwise, of a ratio, and of a slope.
const (
	otherVersion    = 0.10
	otherDefinition = 0.25
	ofRatio         = 0.15
	ofSlope         = 0.25
)

// tolerance is the default for a figure.
func (j *judgement) tolerance(expect float64) float64 {
	spread := 0.0
	if pm := j.c.PlusMinus; pm != nil {
		spread = 3 * *pm
	}
	if j.c.Kind == "absolute" {
		return spread
	}
	share := otherVersion
	if definedOtherwise(j.c.Metric, j.r.Definition) {
		share = otherDefinition
	}
	return max(spread, share*math.Abs(expect))
}

// definedOtherwise tells whether a source computes a metric in another way than
// twopoint. The origin's script did for prefill alone.
func definedOtherwise(metric, definition string) bool {
	switch definition {
	case "", "twopoint", "two_point":
		return false
	case "origin":
		return strings.HasPrefix(metric, "prefill_")
	}
	return true
}

func (j *judgement) where() schema.At {
	if j.c.At == nil {
		return schema.At{}
	}
	return *j.c.At
}

// expected is the published figure and half a unit of its last digit.
func (j *judgement) expected() (x, half float64, ok bool) {
	x, ok = number(j.c.Expect)
	if !ok {
		j.say(NotMeasured, "the claim states no number to expect")
		return 0, 0, false
	}
	j.r.Published = fmt.Sprint(j.c.Expect)
	if pm := j.c.PlusMinus; pm != nil {
		j.r.Published += fmt.Sprintf(" ± %g", *pm)
	}
	return x, Rounding(j.c.Expect), true
}

// limits is the accepted range of a claim that states bounds, else a figure and a
// share of it.
func (j *judgement) limits(share float64) (lo, hi float64, ok bool) {
	lo, hi = math.Inf(-1), math.Inf(1)
	if j.c.AtLeast != nil || j.c.AtMost != nil {
		if x := j.c.AtLeast; x != nil {
			lo = *x
		}
		if x := j.c.AtMost; x != nil {
			hi = *x
		}
		j.r.Published = span(lo, hi)
		return lo, hi, true
	}
	expect, half, ok := j.expected()
	if t := j.c.Tolerance; t != nil {
		share = *t
	}
	tol := max(share*math.Abs(expect), half)
	return expect - tol, expect + tol, ok
}

func (j *judgement) ratio() {
	lo, hi, ok := j.limits(ofRatio)
	if !ok {
		return
	}
	if j.c.Num == nil || j.c.Den == nil {
		j.say(NotMeasured, "a ratio needs num and den")
		return
	}
	num, ok := j.at(*j.c.Num)
	if !ok {
		return
	}
	den, ok := j.at(*j.c.Den)
	if !ok {
		return
	}
	j.r.Variant = ""
	j.hold(over(num, den), lo, hi)
}

// over is the ratio of two independent positive figures. Its interval adds theirs in
// quadrature, in logarithms.
func over(x, y Figure) Figure {
	r := Figure{Value: x.Value / y.Value, Lo: math.NaN(), Hi: math.NaN(), By: x.By}
	if x.Lo > 0 && y.Lo > 0 {
		r.Lo = r.Value * math.Exp(-math.Hypot(math.Log(x.Value/x.Lo), math.Log(y.Hi/y.Value)))
		r.Hi = r.Value * math.Exp(math.Hypot(math.Log(x.Hi/x.Value), math.Log(y.Value/y.Lo)))
	}
	return r
}

// margin of an order, where a claim states none.
const margin = 0.02

func (j *judgement) order() {
	if len(j.c.Order) < 2 {
		j.say(NotMeasured, "an order needs two variants or more")
		return
	}
	j.r.Published = strings.Join(j.c.Order, " > ")
	least := 1 + margin
	if j.c.Margin != nil {
		least = 1 + *j.c.Margin
	}
	var pairs []step
	var before Figure
	for i, v := range j.c.Order {
		at := j.where()
		at.Variant = v
		f, ok := j.at(at)
		if !ok {
			return
		}
		if i > 0 {
			pairs = append(pairs, step{fmt.Sprintf("%s over %s", j.c.Order[i-1], v), over(before, f), least, math.Inf(1)})
		}
		before = f
	}
	j.r.Variant = ""
	j.all(pairs)
}

// step is one of several comparisons that a claim makes at once.
type step struct {
	what   string
	f      Figure
	lo, hi float64
}

// all holds a claim to its weakest comparison: it deviates where one does, and is
// reproduced where all are.
func (j *judgement) all(steps []step) {
	rank := []string{Deviates, Inconclusive, Reproduced}
	worst := slices.MinFunc(steps, func(x, y step) int {
		return cmp.Compare(slices.Index(rank, within(x.f, x.lo, x.hi)), slices.Index(rank, within(y.f, y.lo, y.hi)))
	})
	j.hold(worst.f, worst.lo, worst.hi)
	j.r.Detail = worst.what + ": " + j.r.Detail
}

func (j *judgement) slope() {
	lo, hi, ok := j.limits(ofSlope)
	if !ok {
		return
	}
	j.c.Metric = cmp.Or(j.c.Metric, Slope)
	f, ok := j.fit(j.variant(), int64(max(j.where().Concurrency, 1)))
	if !ok {
		return
	}
	j.hold(f.Figures[j.c.Metric], lo, hi)
	if arm := f.ContextMax - f.ContextMin; arm < leverArm && j.r.Verdict != Deviates {
		j.say(Inconclusive, "contexts are %.0f tokens apart: a slope needs %d", arm, leverArm)
	}
}

// fit is the line of a variant that has the claim's metric.
func (j *judgement) fit(variant string, concurrency int64) (Fit, bool) {
	j.r.Variant = variant
	i := slices.IndexFunc(j.e.Fits, func(f Fit) bool {
		_, has := f.Figures[j.c.Metric]
		return f.Variant == variant && f.Concurrency == concurrency && has
	})
	if i < 0 {
		j.say(NotMeasured, "no line over context with %s of %s at concurrency %d", j.c.Metric, cmp.Or(variant, "one variant"), concurrency)
		return Fit{}, false
	}
	return j.e.Fits[i], j.inScope(j.e.Fits[i].Engine)
}

// leverArm is the least distance between contexts over which a slope says
// something (published.md).
const leverArm = 8_000

// variant is the one that a claim is of, else the only one there is.
func (j *judgement) variant() string {
	v := j.c.Variant()
	if v == "" {
		for _, p := range j.e.Points {
			if v != "" && v != p.Variant {
				return ""
			}
			v = p.Variant
		}
	}
	j.r.Variant = v
	return v
}

func (j *judgement) engine(variant string) string {
	for _, p := range j.e.Points {
		if p.Variant == variant {
			return p.Engine
		}
	}
	return ""
}

// bound holds figures to what physics allows: one beyond it is no deviation but a
// wrong measurement.
func (j *judgement) bound() {
	lo, hi, ok := j.limits(0)
	if !ok {
		return
	}
	f, ok := j.at(j.where())
	if !ok {
		return
	}
	if j.hold(f, lo, hi); j.r.Verdict == Deviates {
		j.r.Verdict = Invalid
	}
}

func (j *judgement) event() {
	j.r.Published = j.c.Event
	p, ok := j.point(j.where())
	if !ok || !j.inScope(p.Engine) {
		return
	}
	got := p.Status
	if p.Status == stat.Failed {
		got = p.FailureKind
	}
	switch {
	case p.Status == stat.Pending || p.Status == stat.Skipped:
		j.say(NotMeasured, "%s is %s", p.Key, p.Status)
	case j.c.Event == stat.OK && (p.Status == stat.Invalid || p.Status == stat.Unresolved):
		j.say(Inconclusive, "%s is %s (%s): the server lived, and nothing more is known", p.Key, p.Status, p.Reason)
	case got != j.c.Event:
		j.say(Deviates, "%s is %s", p.Key, got)
	case j.e.Published: // a table prints neither stage nor log
		j.say(Reproduced, "%s is printed as %s", p.Key, got)
	case j.c.Stage != "" && p.FailureStage != j.c.Stage:
		j.say(Deviates, "%s is %s, in stage %s", p.Key, got, p.FailureStage)
	case j.c.Match != "" && !strings.Contains(p.Evidence, j.c.Match):
		j.say(Inconclusive, "%s is %s, and its evidence does not say %q", p.Key, got, j.c.Match)
	default:
		j.say(Reproduced, "%s is %s", p.Key, got)
	}
}

func (j *judgement) recompute() {
	expect, half, ok := j.expected()
	if !ok {
		return
	}
	inputs := map[string]Figure{}
	for name, n := range j.c.Inputs {
		x, ok := number(n)
		if !ok {
			j.say(NotMeasured, "input %s is no number", name)
			return
		}
		inputs[name] = Figure{Value: x, Lo: x - Rounding(n), Hi: x + Rounding(n), By: ByRounding}
	}
	f, err := evaluate(j.c.Formula, inputs)
	if err != nil {
		j.say(NotMeasured, "formula %q: %v", j.c.Formula, err)
		return
	}
	if t := j.c.Tolerance; t != nil {
		half = max(half, *t*math.Abs(expect))
	}
	if j.hold(f, expect-half, expect+half); j.r.Verdict == Inconclusive && !math.IsNaN(f.Lo) {
		j.r.Verdict = Reproduced // the two ranges of rounding meet
	}
}
