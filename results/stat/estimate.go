package stat

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"twopoint/schema"
)

// The closed set of states of a planned point.
const (
	OK         = "ok"
	Unresolved = "unresolved"
	Invalid    = "invalid"
	Failed     = "failed"
	Skipped    = "skipped"
	Pending    = "pending"
)

const (
	maxInvalidShare  = 0.20 // more invalid pairs than this make the point invalid
	maxHalfWidth     = 0.25 // of the expected seconds per token; wider is unresolved
	maxOwnHalfWidth  = 0.05 // the same, where nothing but the estimate itself says what to expect
	livesForInterval = 3    // server lives from which the interval is over their means
)

// Values is what a point measured. DecodeTokS and PrefillTokS are the inverses
// of SPerTok and PrefillS, not means of rates; so is DecodeStreamTokS. All are
// per request but for DecodeTotalTokS.
type Values struct {
	Main Figure // what the method estimates, in seconds per token

	SPerTok, SPerStep, SPerTokServer, SPerTokStream, MakespanSPerTok Figure
	PrefillS, TTFTS, TPOTS, ITLS                                     Figure

	DecodeTokS, DecodeTotalTokS, DecodeStreamTokS, PrefillTokS Figure

	AcceptLength     Figure
	PromptTokens     *float64 // mean over pairs
	TokensA, TokensB *float64 // generated, mean over pairs

	expect *float64 // seconds per token in the stream, mean over pairs, by which an interval is judged
}

// Point is the estimate of a point. Values are nil unless Status is ok; Raw then
// holds what was measured all the same: by the valid pairs of an unresolved
// point, by every finished pair of an invalid one.
type Point struct {
	Status string // ok | unresolved | invalid
	Reason Code   // of the status; empty when ok
	Detail string // the numbers behind the reason

	N            int // valid pairs
	NInvalid     int
	NInterrupted int // torn or cancelled pairs, which count as neither
	Deployments  int // server lives among the valid pairs

	Level  float64
	Method string

	Values *Values
	Raw    *Values

	Reasons map[Code]int // invalid pairs by reason; a pair may have several
	Doubts  []Finding    // of the point, then of its valid pairs, one line a code
}

// Estimate summarises the finished pairs of a point: those of role measure. s0 is
// the pilot's seconds per token, nil where there was none or none that is positive
// (see expected).
//
// The estimate is the mean of the valid pairs' slopes, none left out, with
// Student's t. The interval is over the means of deployments where the rule asks
// for three or more of them.
func Estimate(pairs []Pair, rule schema.Repeats, s0 *float64) Point {
	pt := Point{Level: Level, Method: MethodPairs, Reasons: map[Code]int{}}
	if rule.Deployments >= livesForInterval {
		pt.Method = MethodDeployments
	}
	valid, finished := split(pairs)
	pt.N, pt.NInvalid, pt.NInterrupted = len(valid), len(finished)-len(valid), len(pairs)-len(finished)
	pt.Deployments = len(lives(valid))
	for _, p := range finished {
		for _, f := range p.Reasons {
			pt.Reasons[f.Code]++
		}
	}

	v := values(valid, rule)
	pt.decide(v, finished, rule, s0)
	switch pt.Status {
	case OK:
		pt.Values = &v
	case Invalid:
		v = values(finished, rule)
		fallthrough
	default:
		pt.Raw = &v
	}
	pt.collectDoubts(v, valid)
	return pt
}

// split separates the valid pairs from all that were not interrupted.
func split(pairs []Pair) (valid, finished []*Pair) {
	for i := range pairs {
		p := &pairs[i]
		if p.Interrupted() {
			continue
		}
		finished = append(finished, p)
		if p.Valid() && p.Main != nil {
			valid = append(valid, p)
		}
	}
	return valid, finished
}

func (pt *Point) decide(v Values, finished []*Pair, rule schema.Repeats, s0 *float64) {
	unresolved := func(c Code, format string, args ...any) {
		pt.Status, pt.Reason, pt.Detail = Unresolved, c, fmt.Sprintf(format, args...)
	}
	f := v.Main
	switch {
	case tooManyInvalid(pt.NInvalid, len(finished)):
		pt.Status = Invalid
		pt.Reason = commonest(pt.Reasons)
		pt.Detail = fmt.Sprintf("%d of %d pairs are invalid, %d by %s%s", pt.NInvalid, len(finished), pt.Reasons[pt.Reason], pt.Reason, after(": ", detailOf(finished, pt.Reason)))
	case pt.N < minInterval:
		unresolved(TooFewPairs, "%d valid pairs, %d needed", pt.N, minInterval)
	case rule.Deployments >= livesForInterval && pt.Deployments < livesForInterval:
		unresolved(TooFewDeployments, "%d server lives, %d needed for an interval over them", pt.Deployments, livesForInterval)
	case f.Mean == nil || f.Interval == nil:
		unresolved(NotPositive, "the slopes have no finite mean")
	case *f.Mean <= 0:
		unresolved(NotPositive, "the mean of %d slopes is %.4g s per token", pt.N, *f.Mean)
	default:
		expect, share := expected(v, s0)
		if half := f.Interval.HalfWidth(); half > share*expect {
			unresolved(WideInterval, "%.4g ± %.2g s per token, where %.4g is expected", *f.Mean, half, expect)
			return
		}
		pt.Status = OK
	}
}

// expected is the seconds per token by which a half-width is judged, and the
// share of it that is allowed. A mean judged by itself passes more easily when
// chance makes it large, and the points that pass are then too slow on average:
// by 6 % where two in five pass at a quarter, in simulation. Without a pilot the
// pairs' in-stream figure stands in, which a prefill that wanders does not move;
// without that the mean itself, under a limit that makes little of the effect.
func expected(v Values, s0 *float64) (expect, share float64) {
	if x := positive(s0); x != nil {
		return *x, maxHalfWidth
	}
	if x := positive(v.expect); x != nil {
		return *x, maxHalfWidth
	}
	return *v.Main.Mean, maxOwnHalfWidth
}

func tooManyInvalid(invalid, finished int) bool {
	return float64(invalid) > maxInvalidShare*float64(finished)+1e-9
}

func commonest(reasons map[Code]int) Code {
	var best Code
	for _, c := range invalidating {
		if reasons[c] > reasons[best] {
			best = c
		}
	}
	return best
}

// detailOf is the first detail of a reason by repeat, as an example.
func detailOf(pairs []*Pair, c Code) string {
	detail, at := "", math.MaxInt
	for _, p := range pairs {
		for _, f := range p.Reasons {
			if f.Code == c && (p.Repeat < at || p.Repeat == at && f.Detail < detail) {
				detail, at = f.Detail, p.Repeat
			}
		}
	}
	return detail
}

func lives(pairs []*Pair) map[string][]*Pair {
	m := map[string][]*Pair{}
	for _, p := range pairs {
		m[p.DeploymentID] = append(m[p.DeploymentID], p)
	}
	return m
}

// figure summarises one quantity of pairs, over deployment means where the rule
// says so.
func figure(pairs []*Pair, rule schema.Repeats, get func(*Pair) *float64) Figure {
	collect := func(ps []*Pair) (xs []float64) {
		for _, p := range ps {
			if x := get(p); x != nil {
				xs = append(xs, *x)
			}
		}
		return xs
	}
	if rule.Deployments < livesForInterval {
		return newFigure(collect(pairs))
	}
	var means []float64
	for _, ps := range lives(pairs) {
		if m := newFigure(collect(ps)).Mean; m != nil {
			means = append(means, *m)
		}
	}
	return newFigure(means)
}

func values(pairs []*Pair, rule schema.Repeats) Values {
	fig := func(get func(*Pair) *float64) Figure { return figure(pairs, rule, get) }
	mean := func(get func(*Pair) *float64) *float64 { return fig(get).Mean }
	v := Values{
		Main:            fig(func(p *Pair) *float64 { return p.Main }),
		SPerTok:         fig(func(p *Pair) *float64 { return p.SPerTok }),
		SPerStep:        fig(func(p *Pair) *float64 { return p.SPerStep }),
		SPerTokServer:   fig(func(p *Pair) *float64 { return p.SPerTokServer }),
		SPerTokStream:   fig(func(p *Pair) *float64 { return p.SPerTokStream }),
		MakespanSPerTok: fig(func(p *Pair) *float64 { return p.MakespanSPerTok }),
		PrefillS:        fig(func(p *Pair) *float64 { return p.PrefillS }),
		TTFTS:           fig(func(p *Pair) *float64 { return p.TTFTS }),
		TPOTS:           fig(func(p *Pair) *float64 { return p.TPOTS }),
		ITLS:            fig(func(p *Pair) *float64 { return p.ITLS }),
		AcceptLength:    fig(func(p *Pair) *float64 { return p.AcceptLength }),
		PromptTokens:    mean((*Pair).promptTokens),
		expect:          mean(func(p *Pair) *float64 { return p.expect }),
		TokensA:         mean(func(p *Pair) *float64 { return p.A.Tokens }),
		TokensB:         mean(func(p *Pair) *float64 { return p.B.Tokens }),
	}
	v.DecodeTokS = v.SPerTok.rate(1)
	if len(pairs) > 0 {
		c := float64(pairs[0].Requests)
		v.DecodeTotalTokS = v.SPerTok.rate(c)
		if v.PromptTokens != nil {
			v.PrefillTokS = v.PrefillS.rate(c * *v.PromptTokens)
		}
	}
	v.DecodeStreamTokS = v.SPerTokStream.rate(1)
	return v
}

// doubtLevel is the significance at which a point's pairs are said to depend on
// their order or to drift.
const doubtLevel = 0.01

// minTrend is the number of pairs from which a trend can be told from noise.
const minTrend = 6

func (pt *Point) collectDoubts(v Values, valid []*Pair) {
	doubt := func(c Code, format string, args ...any) {
		pt.Doubts = append(pt.Doubts, Finding{c, fmt.Sprintf(format, args...)})
	}
	var ab, ba []float64
	for _, p := range valid {
		if p.Order == "ba" {
			ba = append(ba, *p.Main)
		} else {
			ab = append(ab, *p.Main)
		}
	}
	if differ(ab, ba) {
		doubt(OrderEffect, "%.4g s per token with leg a first, %.4g with leg b first", *newFigure(ab).Mean, *newFigure(ba).Mean)
	}
	if len(valid) >= minTrend {
		if perRepeat, found := trend(valid); found {
			doubt(Trend, "seconds per token change by %+.2g %% a repeat", 100*perRepeat / *newFigure(slopes(valid)).Mean)
		}
	}
	if v.Main.Disagree && pt.Status == OK {
		doubt(MedianDisagrees, "mean %.4g and median %.4g s per token", *v.Main.Mean, *v.Main.Median)
	}
	if o := v.SPerTokServer; apart(v.Main, o) {
		doubt(SecondOpinion, "%.4g s per token, %.4g by the server's own timings", *v.Main.Mean, *o.Mean)
	}
	if p, found := lackOfFit(valid); found {
		doubt(LackOfFit, "the times of %d budgets do not lie on a line (p = %.2g)", 2+len(valid[0].Mid), p)
	}
	if pt.Deployments == 1 {
		doubt(OneServerLife, "all %d pairs ran in one life of the server", len(valid))
	}
	var codes []Code
	number, example := map[Code]int{}, map[Code]string{}
	for _, p := range valid {
		for _, f := range p.Doubts {
			if number[f.Code] == 0 {
				codes = append(codes, f.Code)
			}
			if e, ok := example[f.Code]; !ok || f.Detail < e {
				example[f.Code] = f.Detail
			}
			number[f.Code]++
		}
	}
	slices.Sort(codes)
	for _, c := range codes {
		doubt(c, "%d of %d pairs: %s", number[c], len(valid), example[c])
	}
}

func slopes(pairs []*Pair) (xs []float64) {
	for _, p := range pairs {
		xs = append(xs, *p.Main)
	}
	return xs
}

// secondOpinion is how far the mean of a second opinion may lie from the figure
// itself before it is said, where their intervals do not meet either.
const secondOpinion = 0.05

func apart(x, y Figure) bool {
	if x.Interval == nil || y.Interval == nil {
		return false
	}
	d := math.Abs(*x.Mean - *y.Mean)
	return d > x.Interval.HalfWidth()+y.Interval.HalfWidth() && d > secondOpinion*math.Abs(*x.Mean)
}

// differ is Welch's t test for two means at doubtLevel.
func differ(xs, ys []float64) bool {
	if len(xs) < 2 || len(ys) < 2 {
		return false
	}
	slices.Sort(xs)
	slices.Sort(ys)
	mx, sx := moments(xs)
	my, sy := moments(ys)
	vx, vy := sx*sx/float64(len(xs)), sy*sy/float64(len(ys))
	d := math.Abs(mx - my)
	if d <= 1e-9*(math.Abs(mx)+math.Abs(my)) {
		return false
	}
	df := welch(vx, float64(len(xs)-1), vy, float64(len(ys)-1))
	return significant(d, math.Sqrt(vx+vy), df)
}

// welch is the Welch–Satterthwaite number of degrees of freedom of a sum of two
// independent variances.
func welch(v1, df1, v2, df2 float64) float64 {
	df := (v1 + v2) * (v1 + v2) / (v1*v1/df1 + v2*v2/df2)
	if math.IsNaN(df) || math.IsInf(df, 0) {
		return df1 + df2
	}
	return max(df, min(df1, df2))
}

func significant(d, se, df float64) bool {
	if se <= 0 {
		return d > 0
	}
	return 2*distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Survival(d/se) < doubtLevel
}

// trend is the slope of s_per_tok over the number of the repeat, by least
// squares, and whether it differs from zero.
func trend(pairs []*Pair) (perRepeat float64, found bool) {
	pairs = slices.Clone(pairs)
	slices.SortStableFunc(pairs, func(p, q *Pair) int {
		return cmp.Or(cmp.Compare(p.Repeat, q.Repeat), cmp.Compare(p.Attempt, q.Attempt), cmp.Compare(*p.Main, *q.Main))
	})
	n := float64(len(pairs))
	var mx, my float64
	for _, p := range pairs {
		mx += float64(p.Repeat) / n
		my += *p.Main / n
	}
	var sxx, sxy float64
	for _, p := range pairs {
		sxx += (float64(p.Repeat) - mx) * (float64(p.Repeat) - mx)
		sxy += (float64(p.Repeat) - mx) * (*p.Main - my)
	}
	if sxx == 0 {
		return 0, false
	}
	b := sxy / sxx
	var rss float64
	for _, p := range pairs {
		e := *p.Main - my - b*(float64(p.Repeat)-mx)
		rss += e * e
	}
	if math.Abs(b)*math.Sqrt(sxx) <= 1e-9*math.Abs(my) {
		return b, false
	}
	return b, significant(math.Abs(b), math.Sqrt(rss/(n-2)/sxx), n-2)
}

// lackOfFit tests whether the mean times of three or more budgets lie on a
// straight line, against the scatter of single times about those means: the
// classical F test of lack of fit against pure error, with k − 2 and k·(n − 1)
// degrees for k budgets and n repeats (Draper and Smith, Applied Regression
// Analysis, section 2.1). A difference that is common to all legs of a repeat is
// taken out first: it moves the line and does not bend it.
func lackOfFit(pairs []*Pair) (p float64, found bool) {
	if len(pairs) < 2 || len(pairs[0].Mid) == 0 {
		return 0, false
	}
	k, n := 2+len(pairs[0].Mid), len(pairs)
	tokens, sums := make([]float64, k), make([]float64, k)
	rows := make([][]float64, n)
	for i, pr := range pairs {
		xs, ys := pr.line()
		if len(xs) != k || i > 0 && !slices.Equal(xs, tokens) {
			return 0, false // budgets that differ are no repetitions
		}
		copy(tokens, xs)
		centre := mean(ys)
		rows[i] = make([]float64, k)
		for j, y := range ys {
			rows[i][j] = y - centre
			sums[j] += (y - centre) / float64(n)
		}
	}
	mx := mean(tokens)
	var sxx, sxy float64
	for j, x := range tokens {
		sxx += (x - mx) * (x - mx)
		sxy += (x - mx) * sums[j]
	}
	var lack, pure, size float64
	for j, x := range tokens {
		e := sums[j] - sxy/sxx*(x-mx)
		lack += float64(n) * e * e
		for _, row := range rows {
			pure += (row[j] - sums[j]) * (row[j] - sums[j])
			size += row[j] * row[j]
		}
	}
	df1, df2 := float64(k-2), float64((k-1)*(n-1)) // a degree a repeat goes to its centre
	if lack <= 1e-18*size {
		return 1, false
	}
	if pure <= 0 {
		return 0, true
	}
	p = distuv.F{D1: df1, D2: df2}.Survival(lack / df1 / (pure / df2))
	return p, p < doubtLevel
}

// Facts are what happened to a planned point beside its pairs, as the events say
// after the last retry.
type Facts struct {
	Failure string // failure_kind of a failure that ended the point; a request's own failure is a pair's reason
	Skip    string // why the point was not tried
	Done    bool   // nothing more is to be measured: target, max or budget reached, or too many pairs invalid
}

// Status is the final state of a planned point with its reason: a failure or a
// skip before any estimate, and pending until the point is done.
func Status(pt Point, f Facts) (status, reason string) {
	switch {
	case f.Failure != "":
		return Failed, f.Failure
	case f.Skip != "":
		return Skipped, f.Skip
	case !f.Done:
		return Pending, ""
	}
	return pt.Status, string(pt.Reason)
}

// Drift is s_per_tok of the pair measured at the end of a deployment over that
// of its first pair at the same point; 1 is no drift. It is nil unless both are
// valid and positive.
func Drift(first, last Pair) *float64 {
	if !first.Valid() || !last.Valid() || positive(first.Main) == nil || positive(last.Main) == nil {
		return nil
	}
	return finite(*last.Main / *first.Main)
}

// SameAcceptLength tells whether rows with these numbers of tokens a step may be
// compared in tokens per second: they agree within 5 %. Otherwise only seconds
// per step compare. One that is not reported speaks against nothing.
func SameAcceptLength(x, y *float64) bool {
	return x == nil || y == nil || math.Abs(*x-*y) <= 0.05*max(*x, *y)
}

// Faster is how many times less time v takes than base for a token, or, where
// their accept lengths differ, for a step (perStep). It is nil where either has
// no such figure.
func Faster(base, v *Values) (ratio *float64, perStep bool) {
	if base == nil || v == nil {
		return nil, false
	}
	x, y := base.Main.Mean, v.Main.Mean
	if perStep = !SameAcceptLength(base.AcceptLength.Mean, v.AcceptLength.Mean); perStep {
		x, y = base.SPerStep.Mean, v.SPerStep.Mean
	}
	if positive(x) == nil || positive(y) == nil {
		return nil, perStep
	}
	return finite(*x / *y), perStep
}
