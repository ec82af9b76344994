// Package history folds a run's events into what is known of each point and
// each server life. The runner reads it to decide what is done and what comes
// next; the tables are made from it. Both therefore judge by the same pairs,
// the same rules and the same arithmetic (package stat). It reads no file and
// writes none.
package history

import (
	"encoding/json"
	"time"

	"twopoint/results/event"
	"twopoint/results/stat"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// History is a plan and what has happened to it. Events are added in the order
// in which they were recorded, those of different orders in any interleaving.
type History struct {
	Plan    plan.Plan
	Runs    []event.Event // of type run: the stretches of work
	Notes   []event.Note
	Samples []event.Event // of type sample, in order
	Lives   []*Life
	First   time.Time // of the first and the last event; zero without any
	Last    time.Time

	points []*Point
	byID   map[string]*Point
	lives  map[string]*Life
}

// Life is one life of a server.
type Life struct {
	event.Deployment // what was recorded at launch, completed by the later steps
	LaunchedAt       time.Time
	Ready            bool
	Ended            bool
	Failure          *event.Failure // what it ended by, where it failed
}

// Point is a planned point and what was recorded of it.
type Point struct {
	plan.Point
	Sized   *event.Point   // token budgets, once fixed
	Stop    string         // why measuring stopped; empty: it has not
	Failure *event.Failure // its outcome, where it failed
	Skip    *event.Skip

	history *History
	pairs   map[pairKey]*Pair
	order   []pairKey
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

	ended  bool
	judged bool
}

type pairKey struct {
	role            string
	repeat, attempt int
}

// New is the history of a plan to which nothing has happened, with events added.
func New(p plan.Plan, events []event.Event) *History {
	h := &History{Plan: p, byID: make(map[string]*Point, len(p.Points)), lives: map[string]*Life{}}
	for _, pt := range p.Points {
		point := &Point{Point: pt, history: h, pairs: map[pairKey]*Pair{}}
		h.points = append(h.points, point)
		h.byID[pt.ID] = point
	}
	for _, e := range events {
		h.Add(e)
	}
	return h
}

// Points are the planned points in the plan's order.
func (h *History) Points() []*Point { return h.points }

// Point is the planned point with that id, or nil.
func (h *History) Point(id string) *Point { return h.byID[id] }

// Life is the server life with that id, or nil.
func (h *History) Life(id string) *Life { return h.lives[id] }

// Deployments is the number of server lives begun.
func (h *History) Deployments() int { return len(h.Lives) }

// Add takes one event. Events of points that the plan does not have are kept
// only as samples.
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
			p.sample(*e.Sample)
		}
	case e.Repeat != nil:
		if p := h.byID[e.Repeat.PointID]; p != nil {
			p.end(*e.Repeat)
		}
	case e.Point != nil:
		if p := h.byID[e.Point.PointID]; p != nil {
			p.step(*e.Point)
		}
	case e.Skip != nil:
		if p := h.byID[e.Skip.PointID]; p != nil {
			p.Skip = e.Skip
		}
	case e.Failure != nil:
		if l := h.lives[e.Failure.DeploymentID]; l != nil && (e.Failure.Scope == "server" || e.Failure.PointID == "") && l.Failure == nil {
			l.Failure = e.Failure
		}
		if p := h.byID[e.Failure.PointID]; p != nil {
			p.Failure = e.Failure
		}
	case e.Note != nil:
		h.Notes = append(h.Notes, *e.Note)
	}
}

func (h *History) deployment(e event.Event) {
	d := *e.Deployment
	l := h.lives[d.DeploymentID]
	if l == nil {
		l = &Life{Deployment: d, LaunchedAt: e.Time}
		h.lives[d.DeploymentID] = l
		h.Lives = append(h.Lives, l)
	}
	switch d.State {
	case "ready":
		l.Ready, l.LoadS, l.Effective = true, d.LoadS, d.Effective
	case "probed":
		l.Probe = d.Probe
	case "end":
		l.Ended = true
		l.ExitCode, l.ExitSignal, l.Expected, l.LifeS, l.LogTail = d.ExitCode, d.ExitSignal, d.Expected, d.LifeS, d.LogTail
	}
	l.State = d.State
}

func (p *Point) pair(k pairKey) *Pair {
	pr := p.pairs[k]
	if pr == nil {
		pr = &Pair{Role: k.role, Repeat: k.repeat, Attempt: k.attempt, Status: "cancelled"}
		p.pairs[k] = pr
		p.order = append(p.order, k)
	}
	return pr
}

func (p *Point) sample(s event.Sample) {
	if s.Leg != "a" && s.Leg != "b" || s.Role == event.RoleSettle {
		return
	}
	pr := p.pair(pairKey{s.Role, s.Repeat, s.Attempt})
	pr.Life, pr.judged = s.DeploymentID, false
	if len(pr.A)+len(pr.B) == 0 {
		pr.LegOrder = map[string]string{"a": "ab", "b": "ba"}[s.Leg]
	}
	if s.Leg == "a" {
		pr.A = append(pr.A, s)
	} else {
		pr.B = append(pr.B, s)
	}
}

func (p *Point) end(r event.Repeat) {
	pr := p.pair(pairKey{r.Role, r.Repeat, r.Attempt})
	pr.Life, pr.LegOrder, pr.Status, pr.ended, pr.judged = r.DeploymentID, r.Order, r.Status, true, false
}

func (p *Point) step(e event.Point) {
	switch e.State {
	case "sized":
		p.Sized = &e
	case "done":
		p.Stop = e.Stop
	case "retry": // what went wrong is forgotten, what was measured is not
		p.Failure, p.Skip, p.Stop = nil, nil, ""
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
		if pr.Status == "complete" {
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
				pr.judge(p.history.rules(p, pr.Life))
			}
			out = append(out, pr)
		}
	}
	return out
}

func (pr *Pair) judge(r stat.Rules) {
	pr.Pair, pr.judged = stat.NewPair(pr.A, pr.B, r), true
	if !pr.ended && !pr.Pair.Interrupted() {
		// Both legs are there, but not the word that the pair was whole.
		pr.Pair.Reasons = append(pr.Pair.Reasons, stat.Finding{Code: stat.Cancelled, Detail: "interrupted before the pair was recorded as complete"})
	}
}

// rules are what judging a pair of a point in a life depends on.
func (h *History) rules(p *Point, life string) stat.Rules {
	v, _ := h.Plan.Variant(p.Variant)
	r := stat.Rules{Concurrency: p.Concurrency, Length: h.Plan.Prompt.Length, Tolerance: h.Plan.Prompt.Tolerance, Flush: v.Flush, Nonce: h.Plan.Prompt.Nonce}
	if l := h.lives[life]; l != nil {
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

// Next is the number of the next pair of a role, and the attempt at it: torn
// pairs are tried again under their own number.
func (p *Point) Next(role string) (repeat, attempt int) {
	repeat, attempt = 1, 1
	for _, k := range p.order {
		if k.role != role {
			continue
		}
		switch {
		case p.pairs[k].ended && k.repeat >= repeat:
			repeat, attempt = k.repeat+1, 1
		case k.repeat == repeat && k.attempt >= attempt:
			attempt = k.attempt + 1
		}
	}
	return repeat, attempt
}

// stats are the point's measured pairs as package stat wants them.
func (p *Point) stats() []stat.Pair {
	var out []stat.Pair
	for _, pr := range p.Pairs() {
		out = append(out, pr.Pair)
	}
	return out
}

func (p *Point) repeats() schema.Repeats { return p.history.Plan.Method.TwoPoint.Repeats }

// DoneIn asks the stopping rule whether the point needs no further pair in a
// server life, and why. Where the spec asks for several lives each takes its
// share; otherwise all pairs count.
func (p *Point) DoneIn(life string) (bool, string) { return stat.Done(p.share(life)) }

// Done tells whether as many lives have served the point as the spec asks for.
func (p *Point) Done(life string) (done bool, why string) {
	served := map[string]bool{}
	for _, pr := range p.Pairs() {
		if served[pr.Life], _ = p.DoneIn(pr.Life); pr.Life == life || why == "" {
			_, why = p.DoneIn(pr.Life)
		}
	}
	n := 0
	for _, ok := range served {
		if ok {
			n++
		}
	}
	return n >= max(p.repeats().Deployments, 1), why
}

// Excess is how far the point is from the target of a server life.
func (p *Point) Excess(life string) float64 { return stat.Excess(p.share(life)) }

// share are the pairs and the rule that a server life answers for.
func (p *Point) share(life string) ([]stat.Pair, schema.Repeats) {
	rule := p.repeats()
	if rule.Deployments <= 1 {
		return p.stats(), rule
	}
	var pairs []stat.Pair
	for _, pr := range p.Pairs() {
		if pr.Life == life {
			pairs = append(pairs, pr.Pair)
		}
	}
	return pairs, stat.Share(rule)
}

// Estimate is what the point's pairs say.
func (p *Point) Estimate() stat.Point {
	var s0 *float64
	if p.Sized != nil {
		s0 = p.Sized.S0
	}
	return stat.Estimate(p.stats(), p.repeats(), s0)
}

// Drift is s_per_tok of the drift pairs over the first measured pair of the same
// life, averaged over lives; nil where none was measured.
func (p *Point) Drift() *float64 {
	first := map[string]stat.Pair{}
	for _, pr := range p.Pairs() {
		if _, ok := first[pr.Life]; !ok && pr.Valid() {
			first[pr.Life] = pr.Pair
		}
	}
	var sum, n float64
	for _, pr := range p.of(event.RoleDrift) {
		if f, ok := first[pr.Life]; ok && pr.Status == "complete" {
			if x := stat.Drift(f, pr.Pair); x != nil {
				sum, n = sum+*x, n+1
			}
		}
	}
	if n == 0 {
		return nil
	}
	mean := sum / n
	return &mean
}
