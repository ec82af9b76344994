package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/report"
	"twopoint/results/stat"
	"twopoint/schema/plan"
)

// view shows the progress of a run from its events. It is told of each event
// once that is on disk and in the history.
type view interface {
	event(e event.Event)
	close()
}

// newView chooses: the event stream on stdout for --json, a live table where
// stderr is a terminal, otherwise one plain line per finished pair.
func (a *app) newView(h *history.History, selected func(plan.Point) bool) view {
	if a.json {
		return jsonView{a.stdout}
	}
	p := &progress{w: a.stderr, h: h, selected: selected, began: time.Now(), cost: map[string]time.Duration{}}
	if f, ok := file(a.stderr); ok && term.IsTerminal(int(f.Fd())) {
		return &liveView{progress: p, file: f}
	}
	return plainView{p}
}

type jsonView struct{ w io.Writer }

func (v jsonView) event(e event.Event) {
	b, err := json.Marshal(e)
	if err == nil {
		fmt.Fprintf(v.w, "%s\n", b)
	}
}

func (jsonView) close() {}

// progress is what both human views know: what happens now, and how long pairs
// take.
type progress struct {
	w        io.Writer
	h        *history.History
	selected func(plan.Point) bool
	began    time.Time
	now      string // what is happening
	pairAt   time.Time
	cost     map[string]time.Duration // of the latest pair at a point
}

// line is the plain line of an event; empty for events that need none.
func (p *progress) line(e event.Event) string {
	switch {
	case e.Deployment != nil:
		d := e.Deployment
		p.pairAt = time.Now()
		switch d.State {
		case event.DeploymentLaunch:
			p.now = "starting " + d.Variant
			if !d.Managed {
				return fmt.Sprintf("%s: measuring the server that is there", d.Variant)
			}
			if d.PID == 0 { // it could not be started: a failure says why
				return ""
			}
			return fmt.Sprintf("%s: server started (%s, pid %d, port %d)", d.Variant, d.DeploymentID, d.PID, d.Port)
		case event.DeploymentReady:
			p.now = "probing the prefix cache of " + d.Variant
			if d.LoadS != nil {
				return fmt.Sprintf("%s: ready after %s", d.Variant, report.Seconds(*d.LoadS))
			}
		case event.DeploymentProbed:
			return fmt.Sprintf("%s: a flush empties the prefix cache: %s", d.Variant, d.Probe.Proven)
		case event.DeploymentEnd:
			if !d.Expected && d.Managed {
				return fmt.Sprintf("%s: the server ended by itself (%s)", d.Variant, exitWords(d))
			}
		}
	case e.Repeat != nil:
		r := e.Repeat
		pt := p.h.Point(r.PointID)
		if pt == nil {
			return ""
		}
		took := time.Since(p.pairAt)
		p.pairAt = time.Now()
		p.now = pt.Key
		if r.Status != event.RepeatComplete || r.Role != event.RoleMeasure {
			return ""
		}
		p.cost[pt.ID] = took
		return p.pairLine(pt)
	case e.Point != nil && e.Point.State == event.PointDone:
		if pt := p.h.Point(e.Point.PointID); pt != nil {
			return fmt.Sprintf("%s: done (%s), %s", pt.Key, e.Point.Stop, statusWords(pt))
		}
	case e.Point != nil && e.Point.State == event.PointGate:
		if pt := p.h.Point(e.Point.PointID); pt != nil {
			return fmt.Sprintf("%s: answers checked, %s", pt.Key, gateWords(pt))
		}
	case e.Failure != nil:
		f := e.Failure
		where := f.Variant
		if pt := p.h.Point(f.PointID); pt != nil {
			where = pt.Key
		} else if f.PointID != "" {
			return ""
		}
		return fmt.Sprintf("%s: %s in %s: %s", where, f.Kind, f.Stage, f.Message)
	case e.Skip != nil:
		if pt := p.h.Point(e.Skip.PointID); pt != nil {
			return fmt.Sprintf("%s: skipped (%s: %s)", pt.Key, e.Skip.Reason, e.Skip.Detail)
		}
	case e.Note != nil:
		return "note: " + e.Note.Text
	}
	return ""
}

// pairLine is the curve's newest figure.
func (p *progress) pairLine(pt *history.Point) string {
	pairs := pt.Pairs()
	last := pairs[len(pairs)-1]
	rule := p.h.Plan.Method.Legs().Repeats
	var b strings.Builder
	fmt.Fprintf(&b, "%s: pair %d (%d to %d)", pt.Key, len(pairs), rule.Min, rule.Max)
	if !last.Valid() {
		fmt.Fprintf(&b, " invalid: %s (%s)", last.Reasons[0].Code, last.Reasons[0].Detail)
		return b.String()
	}
	if last.Main != nil {
		fmt.Fprintf(&b, " %s/tok", report.Seconds(*last.Main))
	}
	if last.PrefillTokS != nil {
		fmt.Fprintf(&b, ", prefill %s tok/s", report.Number(*last.PrefillTokS, 0))
	}
	if e := pt.Estimate(); e.Values != nil && e.Values.Main.Interval != nil {
		f := e.Values.Main
		fmt.Fprintf(&b, "; mean %s/tok ± %.1f %%", report.Seconds(*f.Mean), 100*f.Interval.HalfWidth() / *f.Mean)
	}
	return b.String()
}

// eta estimates what is left from the pairs measured so far: a point not seen
// yet is taken to cost what the nearest context did, in proportion. It is 0
// before the first measured pair.
func (p *progress) eta() time.Duration {
	if len(p.cost) == 0 {
		return 0
	}
	rule := p.h.Plan.Method.Legs().Repeats
	var left time.Duration
	for _, pt := range p.h.Points() {
		if !pt.Open() || p.selected != nil && !p.selected(pt.Point) {
			continue
		}
		one, ok := p.cost[pt.ID]
		pairs := max(rule.Min-len(pt.Pairs()), 1)
		if !ok {
			one = p.nearest(pt)
			pairs += 1 + plan.PilotPairs // a warm-up before them
		}
		left += time.Duration(pairs) * one
	}
	return left
}

func (p *progress) nearest(pt *history.Point) time.Duration {
	var best *history.Point
	for _, q := range p.h.Points() {
		if _, ok := p.cost[q.ID]; ok && (best == nil || abs(q.Context-pt.Context) < abs(best.Context-pt.Context)) {
			best = q
		}
	}
	return time.Duration(float64(p.cost[best.ID]) * float64(pt.Context) / float64(best.Context))
}

func abs(n int) int { return max(n, -n) }

type plainView struct{ *progress }

func (v plainView) event(e event.Event) {
	if line := v.line(e); line != "" {
		fmt.Fprintf(v.w, "%s %s\n", time.Now().Format("15:04:05"), line)
	}
}

func (plainView) close() {}

// liveView is a table of the curve so far that is drawn over itself, with what
// is happening below it. Lines of lasting interest scroll above.
type liveView struct {
	*progress
	file  *os.File
	drawn int // lines on the screen that will be drawn over
	last  time.Time
}

func (v *liveView) event(e event.Event) {
	line := v.line(e)
	lasting := line != "" && (e.Failure != nil || e.Skip != nil || e.Note != nil || e.Deployment != nil && e.Deployment.State == event.DeploymentEnd)
	if !lasting && e.Repeat == nil && time.Since(v.last) < 100*time.Millisecond {
		return
	}
	v.last = time.Now()
	var b strings.Builder
	v.erase(&b)
	width, height, err := term.GetSize(int(v.file.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	if lasting {
		fmt.Fprintf(&b, "%s %s\n", time.Now().Format("15:04:05"), line)
	}
	lines := strings.Split(strings.TrimRight(curve(v.h, height-4), "\n"), "\n")
	lines = append(lines, v.status())
	for _, l := range lines {
		fmt.Fprintln(&b, clip(l, width-1))
	}
	v.drawn = len(lines)
	io.WriteString(v.w, b.String())
}

func (v *liveView) status() string {
	eta := "unknown before the first pair"
	if left := v.eta(); left > 0 {
		eta = "about " + left.Round(time.Second).String()
	}
	return fmt.Sprintf("%s · %v so far · left: %s", v.now, time.Since(v.began).Round(time.Second), eta)
}

func (v *liveView) erase(b *strings.Builder) {
	if v.drawn > 0 {
		fmt.Fprintf(v.file, "\x1b[%dA\x1b[J", v.drawn) // past inert: these are ours
	}
	v.drawn = 0
}

func (v *liveView) close() {
	var b strings.Builder
	v.erase(&b)
	io.WriteString(v.w, b.String())
}

func clip(s string, width int) string {
	r := []rune(s)
	if width > 1 && len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}

// curve is the live table: points that have a pair or an outcome, the last of
// them where the screen is too small for all. Columns that would say nothing are
// left out.
func curve(h *history.History, most int) string {
	var rows [][]string
	for _, pt := range h.Points() {
		n := len(pt.Pairs())
		if n == 0 && pt.Open() {
			continue
		}
		e := pt.Estimate()
		row := []string{pt.Variant, fmt.Sprint(pt.Context), fmt.Sprint(pt.Concurrency), "", "", "", "", "", fmt.Sprint(n), statusWords(pt)}
		if pt.Concurrency == 1 {
			row[2] = ""
		}
		v := e.Values
		if v == nil {
			v = e.Raw
		}
		if v != nil && v.Main.Mean != nil {
			row[3] = report.Seconds(*v.Main.Mean)
			if i := v.Main.Interval; i != nil && *v.Main.Mean > 0 {
				row[4] = fmt.Sprintf("±%.1f %%", 100*i.HalfWidth() / *v.Main.Mean)
			}
			if v.PrefillTokS.Mean != nil {
				row[5] = report.Number(*v.PrefillTokS.Mean, 0)
			}
			if a := v.AcceptLength.Mean; a != nil && *a != 1 {
				row[6] = report.Number(*a, 0)
			}
		}
		if base := h.Beside(pt, h.Plan.Baseline); base != nil && e.Values != nil {
			if ratio, perStep := stat.Faster(base.Estimate().Values, e.Values); ratio != nil {
				row[7] = report.Number(*ratio, 0) + "x"
				if perStep {
					row[7] += " a step"
				}
			}
		}
		rows = append(rows, row)
	}
	if len(rows) > most && most > 0 {
		rows = rows[len(rows)-most:]
	}
	head := []string{"variant", "context", "requests", "per token", "", "prefill tok/s", "accepted", "baseline", "pairs", "status"}
	return columns(report.Filled(append([][]string{head}, rows...)))
}

func statusWords(pt *history.Point) string {
	status, reason, _ := pt.Outcome()
	switch {
	case status == stat.Pending:
		return "measuring"
	case status == stat.Invalid && reason == string(stat.GateUnknown):
		if due, _ := pt.GateDue(); due {
			return "its answers are to be checked"
		}
		return status + ": " + reason
	case status != stat.OK && reason != "":
		return status + ": " + reason
	}
	return status
}

// gateWords is what the output checks of a point came to.
func gateWords(pt *history.Point) string {
	g := pt.Gate()
	if g == nil || len(g.Findings) == 0 {
		return "nothing found"
	}
	var out []string
	for _, f := range g.Findings {
		out = append(out, fmt.Sprintf("%s: %s", f.Code, f.Detail))
	}
	return strings.Join(out, "; ")
}

func exitWords(d *event.Deployment) string {
	switch {
	case d.ExitSignal != "":
		return d.ExitSignal
	case d.ExitCode != nil:
		return fmt.Sprintf("exit code %d", *d.ExitCode)
	}
	return "exit status unknown"
}
