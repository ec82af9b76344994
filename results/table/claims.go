package table

import (
	"math"
	"reflect"
	"strings"

	"twopoint/results/claim"
)

// claims are the verdicts on what the plan's publications say, by the rows of points
// and fits.
func (d *deriver) claims(points []PointRow, fits []FitRow) []ClaimRow {
	if len(d.h.Plan.Published) == 0 {
		return nil
	}
	var rows []ClaimRow
	for _, r := range claim.Judge(d.h.Plan.Published, d.evidence(points, fits)) {
		row := ClaimRow{
			runKey: d.id, ClaimID: r.ID, Set: r.Set, Kind: r.Kind, Metric: r.Metric, Variant: r.Variant, PointKeys: strings.Join(r.PointKeys, ","),
			Verdict: r.Verdict, Detail: r.Detail, Published: r.Published, AcceptedLo: bounded(r.Lo), AcceptedHi: bounded(r.Hi), Definition: r.Definition,
			Source: r.Source.Title, Where: r.Source.Where, Date: r.Source.Date, Confidence: r.Source.Confidence, Why: r.Why,
		}
		if m := r.Measured; m != nil {
			row.Measured, row.MeasuredLo, row.MeasuredHi, row.Interval = bounded(m.Value), bounded(m.Lo), bounded(m.Hi), m.By
			if row.MeasuredLo == nil {
				row.Interval = ""
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func bounded(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// evidence is what claims are held to.
func (d *deriver) evidence(points []PointRow, fits []FitRow) claim.Evidence {
	var e claim.Evidence
	if m := d.h.Plan.Model; m != nil {
		e.Model = m.Name
	}
	if d.env != nil {
		e.CPU = d.env.CPU
		for _, g := range d.env.GPUs {
			e.GPUs = append(e.GPUs, g.Name)
		}
	}
	for _, l := range d.h.Lives {
		if f, _ := l.Effective["load_format"].(string); f == "dummy" || d.h.Variant(l.Variant).Engine == "twopoint" {
			e.Dummy = true
		}
	}
	for _, p := range points {
		c := claim.Point{
			Key: p.PointKey, Variant: p.Variant, Engine: p.Engine, Tokens: float64(*p.ContextRequested), Concurrency: *p.Concurrency, Status: p.Status, Reason: p.Reason,
			FailureKind: p.FailureKind, FailureStage: p.FailureStage, Evidence: p.Evidence, Figures: figures(p),
		}
		if p.PromptTokens != nil {
			c.Tokens = float64(*p.PromptTokens)
		}
		e.Points = append(e.Points, c)
	}
	for _, f := range fits {
		if f.Quantity == "s_per_step" || f.Beta == nil {
			continue
		}
		c := claim.Fit{Variant: f.Variant, Engine: d.h.Variant(f.Variant).Engine, Concurrency: f.Concurrency, ContextMin: float64(f.ContextMin), ContextMax: float64(f.ContextMax), Figures: map[string]claim.Figure{}}
		c.Figures[claim.Slope] = figure(f.Beta, f.BetaLo, f.BetaHi)
		if f.PeakGBs != nil {
			c.PeakGBs = *f.PeakGBs
		}
		e.Fits = append(e.Fits, c)
	}
	for _, f := range fits { // read at steps, which is what the rate is of
		if f.Quantity != "s_per_step" || f.KVStream == nil {
			continue
		}
		for i := range e.Fits {
			if e.Fits[i].Variant == f.Variant && e.Fits[i].Concurrency == f.Concurrency {
				e.Fits[i].Figures[claim.ReadRate] = figure(f.KVStream, f.KVStreamLo, f.KVStreamHi)
			}
		}
	}
	return e
}

// figures are the columns of a point, with the intervals that stand beside them.
func figures(p PointRow) map[string]claim.Figure {
	out := map[string]claim.Figure{}
	v := reflect.ValueOf(p)
	columns := map[string]*float64{}
	for _, c := range columnsOf("points", v.Type()) {
		if x, is := v.FieldByIndex(c.index).Interface().(*float64); is {
			columns[c.Name] = x
		}
	}
	for name, x := range columns {
		if x != nil {
			out[name] = figure(x, columns[name+"_lo"], columns[name+"_hi"])
		}
	}
	return out
}

func figure(x, lo, hi *float64) claim.Figure {
	f := claim.Figure{Value: *x, Lo: math.NaN(), Hi: math.NaN(), By: claim.ByPairs}
	if lo != nil && hi != nil {
		f.Lo, f.Hi = *lo, *hi
	}
	return f
}
