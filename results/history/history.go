// Package history folds a run's events into what is known of each point and
// each server life. The runner reads it to decide what is done and what comes
// next; the tables are made from it. Both therefore judge by the same pairs,
// the same rules and the same arithmetic (package stat). It reads no file and
// writes none.
package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"twopoint/results/event"
	"twopoint/results/stat"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// History is a plan and what has happened to it. Events are added in the order
// in which they were recorded, those of different orders in any interleaving.
// What it hands out is to be read only.
type History struct {
	Plan     plan.Plan
	Runs     []event.Event // of type run: the stretches of work
	Notes    []event.Note
	Samples  []event.Event // of type sample, in order
	Lives    []*Life
	Readings []event.Event // of type telemetry, in order
	First    time.Time     // of the first and the last event; zero without any
	Last     time.Time

	points   []*Point
	ends     map[sweep][]*Point // of each sweep: its shortest and longest context
	byID     map[string]*Point
	byCell   map[cell]*Point
	lives    map[string]*Life
	variants map[string]plan.Variant
	watches  map[string]*watch // by order
	gates    gates
}

// Life is one life of a server. One whose runner was killed has no end.
type Life struct {
	event.Deployment           // what was recorded at launch, completed by the later steps
	LaunchedAt       time.Time // zero where it failed before the launch was recorded
	Ready            bool
	Ended            bool
	Failure          *event.Failure // what it failed by: the first that was recorded

	again *Point // measured once more at the life's end
}

// Point is a planned point and what was recorded of it.
type Point struct {
	plan.Point
	Sized   *event.Point   // token budgets, once fixed
	Stop    string         // why measuring stopped; empty: it has not
	Failure *event.Failure // its outcome, where it failed
	Skip    *event.Skip    // its outcome, where it was not tried
	Notes   []event.Note   // what was noted about it

	PrimeS float64 // the longest time to first token of requests that put its prompt into the cache, seconds

	history  *History
	pairs    map[pairKey]*Pair
	order    []pairKey
	estimate *stat.Point // of the pairs so far; nil: to be made
}

// Pair is one pair of a point with its samples and what they say.
type Pair struct {
	stat.Pair
	Role     string
	Repeat   int
	Attempt  int
	LegOrder string // ab | ba
	Life     string // deployment_id
	Status   string // complete | failed | cancelled; a torn pair is cancelled
	A, B     []event.Sample

	span       stat.Span        // the machine's readings around it
	mid        [][]event.Sample // of legs m1, m2, …
	ended      bool
	judged     bool
	superseded bool // tried again since, or about to be: it enters no figure
}

type pairKey struct {
	role            string
	repeat, attempt int
}

// New is the history of a plan to which nothing has happened, with events added.
func New(p plan.Plan, events []event.Event) *History {
	h := &History{Plan: p, byID: make(map[string]*Point, len(p.Points)), byCell: make(map[cell]*Point, len(p.Points)), lives: map[string]*Life{}, gates: gates{}, variants: make(map[string]plan.Variant, len(p.Variants))}
	for _, v := range p.Variants {
		h.variants[v.Name] = v
	}
	for _, pt := range p.Points {
		point := &Point{Point: pt, history: h, pairs: map[pairKey]*Pair{}}
		h.points = append(h.points, point)
		h.byID[pt.ID] = point
		h.byCell[cell{pt.Variant, pt.Context, pt.Concurrency}] = point
	}
	h.ends = ends(h.points)
	for _, e := range events {
		h.Add(e)
	}
	return h
}

// Points are the planned points in the plan's order.
func (h *History) Points() []*Point { return h.points }

// Beside is the point of another variant at the same context and concurrency;
// nil where there is none, or for the point's own variant.
func (h *History) Beside(p *Point, variant string) *Point {
	if variant == p.Variant {
		return nil
	}
	return h.byCell[cell{variant, p.Context, p.Concurrency}]
}

type cell struct {
	variant              string
	context, concurrency int
}

// Point is the planned point with that id, or nil.
func (h *History) Point(id string) *Point { return h.byID[id] }

// Variant is the plan's variant of that name; its ID is empty where there is none.
func (h *History) Variant(name string) plan.Variant { return h.variants[name] }

// Life is the server life with that id, or nil.
func (h *History) Life(id string) *Life { return h.lives[id] }

// Deployments is the number of server lives begun.
func (h *History) Deployments() int { return len(h.Lives) }

// Add takes one event. Events of points that the plan does not have are kept
// only as samples. The first outcome of a point stands until it is tried again:
// a failure after the point was done concerns the server alone.
func (h *History) Add(e event.Event) {
	if h.First.IsZero() || e.Time.Before(h.First) {
		h.First = e.Time
	}
	if e.Time.After(h.Last) {
		h.Last = e.Time
	}
	switch {
	case e.Run != nil:
		h.Runs = append(h.Runs, e)
	case e.Deployment != nil:
		h.deployment(e)
	case e.Sample != nil:
		h.Samples = append(h.Samples, e)
		if p := h.byID[e.Sample.PointID]; p != nil {
			p.sample(e.Sample)
		}
	case e.Repeat != nil:
		if p := h.byID[e.Repeat.PointID]; p != nil {
			h.ended(e.Order, p, p.end(*e.Repeat))
		}
	case e.Point != nil:
		if p := h.byID[e.Point.PointID]; p != nil {
			p.step(*e.Point)
		}
	case e.Skip != nil:
		if p := h.byID[e.Skip.PointID]; p != nil && p.Open() {
			p.Skip = e.Skip
		}
	case e.Failure != nil:
		h.failure(e.Failure)
	case e.Telemetry != nil:
		h.telemetry(e)
	case e.Note != nil:
		h.Notes = append(h.Notes, *e.Note)
		if p := h.byID[e.Note.PointID]; p != nil {
			p.Notes = append(p.Notes, *e.Note)
		}
	}
}

// failure gives a failure to the life that ended by it and to its point. A life
// that failed before its launch was recorded begins with it.
func (h *History) failure(f *event.Failure) {
	if p := h.byID[f.PointID]; p != nil && p.Open() {
		p.Failure = f
	}
	if f.DeploymentID == "" || f.PointID != "" && f.Scope == "request" {
		return
	}
	l := h.lives[f.DeploymentID]
	if l == nil {
		l = h.life(event.Deployment{DeploymentID: f.DeploymentID, Variant: f.Variant, VariantID: h.variants[f.Variant].ID, Managed: h.variants[f.Variant].URL == ""})
	}
	if l.Failure == nil {
		l.Failure = f
	}
}

func (h *History) life(d event.Deployment) *Life {
	l := &Life{Deployment: d}
	h.lives[d.DeploymentID] = l
	h.Lives = append(h.Lives, l)
	return l
}

func (h *History) deployment(e event.Event) {
	d := *e.Deployment
	l := h.lives[d.DeploymentID]
	if l == nil {
		l = h.life(d)
	}
	switch d.State {
	case event.DeploymentLaunch:
		l.Deployment, l.LaunchedAt = d, e.Time
	case event.DeploymentReady:
		l.Ready, l.LoadS, l.Effective = true, d.LoadS, d.Effective
	case event.DeploymentProbed:
		l.Probe = d.Probe
	case event.DeploymentEnd:
		l.Ended = true
		l.ExitCode, l.ExitSignal, l.Expected, l.LifeS, l.LogTail = d.ExitCode, d.ExitSignal, d.Expected, d.LifeS, d.LogTail
	}
	l.State = d.State
}

// pair is the pair of that key. A new attempt takes the place of those before it.
func (p *Point) pair(k pairKey, life string) *Pair {
	p.estimate = nil
	pr := p.pairs[k]
	if pr == nil {
		pr = &Pair{Role: k.role, Repeat: k.repeat, Attempt: k.attempt, Status: event.RepeatCancelled}
		for _, other := range p.order {
			if earlier := p.pairs[other]; other.role == k.role && other.repeat == k.repeat && earlier.Status != event.RepeatComplete {
				earlier.superseded = true
			}
		}
		p.pairs[k] = pr
		p.order = append(p.order, k)
	}
	pr.Life, pr.judged = life, false
	if l := p.history.lives[life]; l != nil && k.role == event.RoleDrift {
		l.again = p
	}
	return pr
}

func (p *Point) sample(s *event.Sample) {
	switch {
	case s.Role == event.RolePrime && s.TTFTS != nil:
		p.PrimeS = max(p.PrimeS, *s.TTFTS)
		return
	case s.Role == event.RoleGate:
		c := p.history.checks(p)
		c.attempts = max(c.attempts, s.Attempt)
		return
	case s.Role == event.RolePrime, s.Role == event.RoleSettle:
		return
	}
	var mid int
	if n, err := fmt.Sscanf(s.Leg, "m%d", &mid); s.Leg != "a" && s.Leg != "b" && (n != 1 || err != nil || mid < 1 || mid > maxMid) {
		return
	}
	pr := p.pair(pairKey{s.Role, s.Repeat, s.Attempt}, s.DeploymentID)
	if pr.LegOrder == "" {
		pr.LegOrder = map[string]string{"a": "ab", "b": "ba"}[s.Leg]
	}
	switch s.Leg {
	case "a":
		pr.A = append(pr.A, *s)
	case "b":
		pr.B = append(pr.B, *s)
	default:
		for len(pr.mid) < mid {
			pr.mid = append(pr.mid, nil)
		}
		pr.mid[mid-1] = append(pr.mid[mid-1], *s)
	}
}

// maxMid bounds the legs between a and b of a pair.
const maxMid = 1000

func (p *Point) end(r event.Repeat) *Pair {
	pr := p.pair(pairKey{r.Role, r.Repeat, r.Attempt}, r.DeploymentID)
	pr.LegOrder, pr.Status, pr.ended = r.Order, r.Status, true
	return pr
}

func (p *Point) step(e event.Point) {
	p.estimate = nil
	switch e.State {
	case event.PointSized:
		p.Sized = &e
	case event.PointDone:
		p.Stop = cmp.Or(e.Stop, event.PointDone)
	case event.PointGate:
		if c := p.history.checks(p); c.result == nil {
			c.result = e.Gate
		}
	case event.PointRetry: // what went wrong is forgotten, what was measured is not
		p.Failure, p.Skip, p.Stop = nil, nil, ""
		for _, pr := range p.pairs {
			pr.superseded = pr.superseded || pr.Status != event.RepeatComplete
		}
	}
}

// Open tells whether the point has no outcome yet.
func (p *Point) Open() bool { return p.Stop == "" && p.Failure == nil && p.Skip == nil }

// Pairs are the point's measured pairs, torn ones included, in order.
func (p *Point) Pairs() []*Pair { return p.of(event.RoleMeasure) }

// Pilots are the complete pilot pairs.
func (p *Point) Pilots() []stat.Pair {
	var out []stat.Pair
	for _, pr := range p.of(event.RolePilot) {
		if pr.Status == event.RepeatComplete {
			out = append(out, pr.Pair)
		}
	}
	return out
}

func (p *Point) of(role string) []*Pair {
	var out []*Pair
	for _, k := range p.order {
		if k.role == role {
			pr := p.pairs[k]
			if !pr.judged {
				pr.judge(p.history.rules(p, pr))
				pr.disturb(p.history.Plan.Host.Foreign)
			}
			out = append(out, pr)
		}
	}
	return out
}

func (pr *Pair) judge(r stat.Rules) {
	pr.Pair, pr.judged = stat.NewPair(pr.A, pr.B, r, pr.mid...), true
	pr.Pair.Order = cmp.Or(pr.LegOrder, pr.Pair.Order) // what ran first is on record
	if (!pr.ended || pr.Status == event.RepeatCancelled) && !pr.Pair.Interrupted() {
		// Both legs are there, but not the word that the pair was whole.
		pr.Pair.Reasons = append(pr.Pair.Reasons, stat.Finding{Code: stat.Cancelled, Detail: "interrupted before the pair was recorded as complete"})
	}
}

// rules are what judging a pair of a point depends on. A life is ready and probed
// before its first pair.
func (h *History) rules(p *Point, pr *Pair) stat.Rules {
	r := stat.Rules{
		Method: h.Plan.Method.Name(), Concurrency: p.Concurrency, Length: h.Plan.Prompt.Length, Tolerance: h.Plan.Prompt.Tolerance,
		Flush: h.variants[p.Variant].Flush, Nonce: h.Plan.Prompt.Nonce,
	}
	if pr.Role == event.RoleCold {
		r.Method = schema.MethodTwoPoint
	}
	if l := h.lives[pr.Life]; l != nil {
		r.Probe = l.Probe
		r.Page = int64(number(l.Effective["page_size"]))
		if s, ok := l.Effective["speculative"].(bool); ok {
			r.Speculative = &s
		}
		if exact, ok := l.Effective["exact_length"].(bool); ok && !exact && r.Length == "" {
			r.Length = "reported"
		}
	}
	return r
}

// number reads a number of an event's free-form settings; 0 where there is none.
func number(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	case int:
		return float64(v)
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return 0
		}
		return f
	}
	return 0
}

// Next is the number of the next pair of a role, and the attempt at it: a pair
// that did not become complete is tried again under its own number. A key that
// has a sample never comes again.
func (p *Point) Next(role string) (repeat, attempt int) {
	done := true
	for _, k := range p.order {
		switch pr := p.pairs[k]; {
		case k.role != role || k.repeat < repeat:
		case k.repeat > repeat:
			repeat, attempt, done = k.repeat, k.attempt, pr.Status == event.RepeatComplete
		default:
			attempt, done = max(attempt, k.attempt), done || pr.Status == event.RepeatComplete
		}
	}
	if done {
		return repeat + 1, 1
	}
	return repeat, attempt + 1
}

// stats are the pairs that count, of one life or (life "") of all, as package
// stat wants them.
func (p *Point) stats(life string) []stat.Pair {
	var out []stat.Pair
	for _, pr := range p.Pairs() {
		if !pr.superseded && (life == "" || pr.Life == life) {
			out = append(out, pr.Pair)
		}
	}
	return out
}

func (p *Point) repeats() schema.Repeats { return p.history.Plan.Method.Legs().Repeats }

// DoneIn asks the stopping rule whether the point needs no further pair in a
// server life, and why. Where the spec asks for several lives each takes its
// share; otherwise all pairs count.
func (p *Point) DoneIn(life string) (bool, string) { return stat.Done(p.share(life)) }

// Done tells whether as many lives have served the point as the spec asks for,
// and why the last of them needed no further pair; life is asked first.
func (p *Point) Done(life string) (done bool, why string) {
	served := 0
	asked := map[string]bool{}
	for _, pr := range p.Pairs() {
		if asked[pr.Life] {
			continue
		}
		asked[pr.Life] = true
		if enough, reason := p.DoneIn(pr.Life); enough {
			served++
			if why == "" || pr.Life == life {
				why = reason
			}
		}
	}
	if served < max(p.repeats().Deployments, 1) {
		return false, ""
	}
	return true, why
}

// Excess is how far the point is from the target of a server life.
func (p *Point) Excess(life string) float64 { return stat.Excess(p.share(life)) }

// TooSmall tells in a line that the b that was given cannot resolve the answer (see
// stat.TooSmall); empty: it can, b is the tool's choice, or that was noted already.
// Of several requests the window rate decides, and over several lives their means:
// neither has an error that falls with b alone.
func (p *Point) TooSmall() string {
	m := p.history.Plan.Method
	if m.Legs().B == 0 || m.Stream != nil || p.Concurrency > 1 || p.repeats().Deployments > 1 ||
		slices.ContainsFunc(p.Notes, func(n event.Note) bool { return n.Code == string(stat.BTooSmall) }) {
		return ""
	}
	return stat.TooSmall(p.stats(""), p.repeats())
}

// share are the pairs and the rule that a server life answers for.
func (p *Point) share(life string) ([]stat.Pair, schema.Repeats) {
	rule := p.repeats()
	if rule.Deployments <= 1 {
		return p.stats(""), rule
	}
	return p.stats(life), stat.Share(rule)
}

// Estimate is what the point's pairs say. Pairs that were tried again are left
// out.
func (p *Point) Estimate() stat.Point {
	if p.estimate == nil {
		var s0 *float64
		if p.Sized != nil {
			s0 = p.Sized.S0
		}
		e := stat.Estimate(p.stats(""), p.repeats(), s0)
		p.estimate = &e
	}
	if p.history.Plan.Method.DecodeAtDepth != nil {
		return p.gated(p.history.coldChecked(p))
	}
	return p.gated(*p.estimate)
}

// Outcome is the point's status (stat.OK to stat.Pending) with its reason and
// the words or numbers behind the reason.
func (p *Point) Outcome() (status, reason, detail string) {
	e := p.Estimate()
	f := stat.Facts{Done: p.Stop != ""}
	detail = e.Detail
	switch {
	case p.Failure != nil:
		f.Failure, detail = p.Failure.Kind, p.Failure.Message
	case p.Skip != nil:
		f.Skip, detail = p.Skip.Reason, p.Skip.Detail
	case !f.Done:
		detail = ""
	}
	status, reason = stat.Status(e, f)
	return status, reason, detail
}

// Drift is the point that a life measured once more at its end, and its
// s_per_tok then over that of the life's first valid pair there. Either is nil
// where there is none.
func (l *Life) Drift() (p *Point, ratio *float64) {
	if l.again == nil {
		return nil, nil
	}
	for _, first := range l.again.Pairs() {
		if first.Life != l.DeploymentID || !first.Valid() {
			continue
		}
		for _, last := range l.again.of(event.RoleDrift) {
			if last.Life == l.DeploymentID && last.Status == event.RepeatComplete {
				ratio = stat.Drift(first.Pair, last.Pair)
			}
		}
		break
	}
	return l.again, ratio
}
