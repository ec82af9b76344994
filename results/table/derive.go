package table

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/run"
	"twopoint/results/stat"
	"twopoint/schema"
	"twopoint/schema/plan"
)

// Derive makes the tables of a run. env may be nil. The tables share memory with
// the history, which is not to change before they are written.
func Derive(runID string, h *history.History, env *run.Environment) *Tables {
	d := deriver{id: runKey{runID, SchemaVersion}, h: h, env: env}
	t := &Tables{
		Deployments: d.deployments(), Samples: d.samples(), Repeats: d.repeats(), Points: d.points(), Settings: d.settings(), Telemetry: d.telemetry(),
		meta: map[string]string{"run_id": runID, "spec_hash": h.Plan.SpecHash, "schema_version": strconv.Itoa(SchemaVersion)},
	}
	t.Fits = d.fits()
	t.Claims = d.claims(t.Points, t.Fits)
	t.Runs = []RunRow{d.run(t.Points)}
	if v := t.Runs[0].ToolVersion; v != "" {
		t.meta["tool_version"] = v
	}
	for _, c := range Columns() {
		t.Columns = append(t.Columns, ColumnRow{runKey: d.id, Table: c.Table, Column: c.Name, Type: c.Type, Unit: c.Unit, Meaning: c.Meaning})
	}
	return t
}

type deriver struct {
	id  runKey
	h   *history.History
	env *run.Environment // nil: not known
}

// model is what the spec names, or else the variant's own.
func (d *deriver) model(v plan.Variant) string {
	name := ""
	if m := d.h.Plan.Model; m != nil {
		name = m.Name
	}
	return cmp.Or(name, v.ServedName, v.ModelPath)
}

func (d *deriver) key(p plan.Point) pointKey {
	v := d.h.Variant(p.Variant)
	return pointKey{
		PointID: p.ID, PointKey: p.Key, Variant: p.Variant, Engine: v.Engine, Model: d.model(v),
		ContextRequested: count(p.Context), Concurrency: count(p.Concurrency),
	}
}

func (d *deriver) run(points []PointRow) RunRow {
	p, env := d.h.Plan, d.env
	r := RunRow{
		runKey: d.id, Experiment: p.Experiment, Title: p.Title, Question: p.Question, SpecHash: p.SpecHash, Method: p.Method.Name(),
		StartedAt: d.h.First, EndedAt: d.h.Last, Baseline: p.Baseline, Seed: p.Seed, Planned: int64(len(p.Points)),
	}
	var targets []string
	for _, o := range p.Orders {
		targets = append(targets, o.Target.Name)
	}
	r.Target = list(targets)
	d.stretches(&r)
	var tags, notes, remarks []string
	for _, n := range d.h.Notes {
		switch n.Code {
		case run.NoteTag:
			tags = append(tags, n.Text)
		case run.NoteText:
			notes = append(notes, n.Text)
		default:
			remarks = append(remarks, n.Text)
		}
	}
	r.Tags, r.Notes, r.Remarks = jsonList(tags), jsonList(notes), jsonList(remarks)
	of := map[string]*int64{
		stat.OK: &r.OK, stat.Unresolved: &r.Unresolved, stat.Invalid: &r.Invalid,
		stat.Failed: &r.Failed, stat.Skipped: &r.Skipped, stat.Pending: &r.Pending,
	}
	for _, pt := range points {
		*of[pt.Status]++
	}
	if p.Model != nil {
		r.SpecModel = jsonText(p.Model)
	}
	if env != nil {
		r.Hostname, r.CPU, r.Cores, r.MemoryBytes = env.Hostname, env.CPU, positive(int64(env.Cores)), positive(env.MemoryBytes)
		r.Environment = jsonText(env)
		if env.GPUs != nil {
			r.GPUs = count(len(env.GPUs))
		}
		var names []string
		for _, g := range env.GPUs {
			names = append(names, g.Name)
		}
		r.GPU = list(names)
	}
	return r
}

// endings are the ways in which a stretch ends, the better one first.
var endings = []string{event.EndDone, event.EndBudget, event.EndTimeLimit, event.EndInterrupted, event.EndError}

// stretches fills what the beginnings and ends of work say. Several orders are
// several stretches at a time: their number is that of the order begun most
// often, and the run's state is the worst.
func (d *deriver) stretches(r *RunRow) {
	last, begun := map[string]string{}, map[string]int64{}
	var versions []string
	for _, e := range d.h.Runs {
		last[e.Order] = e.Run.Reason
		if e.Run.State != event.RunEnd {
			begun[e.Order]++
			versions = append(versions, e.Run.Version)
			last[e.Order] = "" // running, or cut off
		}
	}
	r.ToolVersion = list(versions)
	worst := -1
	for order, reason := range last {
		r.Stretches = max(r.Stretches, begun[order])
		if reason == "" {
			worst = len(endings)
		} else {
			worst = max(worst, slices.Index(endings, reason))
		}
	}
	if 0 <= worst && worst < len(endings) {
		r.State = endings[worst]
	}
}

func (d *deriver) deployments() []DeploymentRow {
	var rows []DeploymentRow
	for _, l := range d.h.Lives {
		v := d.h.Variant(l.Variant)
		r := DeploymentRow{
			runKey: d.id, DeploymentID: l.DeploymentID, Variant: l.Variant, VariantID: l.VariantID, Engine: v.Engine, Model: d.model(v),
			Managed: l.Managed, Argv: jsonList(l.Argv), Host: l.Host, Port: positive(int64(l.Port)), PID: positive(int64(l.PID)), LaunchedAt: l.LaunchedAt,
			Ready: l.Ready, LoadS: l.LoadS, LifeS: l.LifeS,
			ServerVersion: text(l.Effective["version"]), Backend: text(l.Effective["attention_backend"]), KVDType: text(l.Effective["kv_dtype"]),
			PageSize: integer(l.Effective["page_size"]), KVPoolTokens: integer(l.Effective["kv_pool_tokens"]), ContextLimit: integer(l.Effective["context_limit"]),
			ExitSignal: l.ExitSignal, LogTail: strings.Join(l.LogTail, "\n"),
		}
		if m := l.Limits; m != nil {
			r.LimitConnectS, r.LimitFirstS, r.LimitTotalS, r.LimitNoTokenS, r.LimitPerTokenS = &m.ConnectS, m.FirstTokenS, m.TotalS, &m.NoTokenS, &m.NoTokenPerPromptTokenS
			r.LimitTokenS = &m.NoTokenPerTokenS
		}
		if p, ratio := l.Drift(); p != nil {
			r.DriftPoint, r.DriftRatio = p.Key, ratio
		}
		if l.Probe != nil {
			r.ProbeHitRatio, r.ProbeFlush, r.FlushProven = l.Probe.HitRatio, l.Probe.FlushRatio, l.Probe.Proven
			r.ProbeHitCached, r.ProbeFlushed, r.ProbeTemplate = l.Probe.HitCached, l.Probe.Flushed, &l.Probe.Template
		}
		if l.Ended {
			r.Expected = &l.Expected
		}
		if l.ExitCode != nil {
			r.ExitCode = count(*l.ExitCode)
		}
		if f := l.Failure; f != nil {
			r.FailureKind, r.FailureStage, r.FailureMessage, r.Evidence = f.Kind, f.Stage, f.Message, strings.Join(f.Evidence, "\n")
		}
		rows = append(rows, r)
	}
	return rows
}

func (d *deriver) samples() []SampleRow {
	rows := make([]SampleRow, 0, len(d.h.Samples))
	type visit struct {
		life, point, role string
		slot              int
	}
	visits := map[visit]int64{}
	for _, e := range d.h.Samples {
		s := e.Sample
		r := SampleRow{
			runKey: d.id, DeploymentID: s.DeploymentID, Role: s.Role, Repeat: int64(s.Repeat), Attempt: int64(s.Attempt), Leg: s.Leg, Slot: int64(s.Slot), Second: s.Second,
			StartedAt: s.Start, OffsetS: s.OffsetS, TokensRequested: positive(int64(s.TokensRequested)), PromptTokens: s.PromptTokens, CompletionTokens: s.CompletionTokens,
			CachedTokens: s.CachedTokens, LoadS: s.LoadS, Steps: s.Steps, Retractions: s.Retractions, HeaderS: s.HeaderS, TTFTS: s.TTFTS,
			Streamed: s.Streamed, Buffered: s.Buffered, ServerTotalS: s.ServerTotalS, ServerPrefillS: s.ServerPrefillS, ServerDecode: s.ServerDecodeSPerTok,
			ChunkS: s.ChunkS, ChunkTokens: s.ChunkTokens, Finish: s.Finish, OutputSHA256: s.OutputSHA256, HTTPStatus: positive(int64(s.HTTPStatus)),
			FailureKind: s.Error, Limit: s.Limit, Transport: s.Transport, Detail: s.Detail, Notes: strings.Join(s.Notes, "\n"),
		}
		if p := d.h.Point(s.PointID); p != nil {
			r.pointKey = d.key(p.Point)
		} else if l := d.h.Life(s.DeploymentID); l != nil {
			v := d.h.Variant(l.Variant)
			r.Variant, r.Engine, r.Model = l.Variant, v.Engine, d.model(v)
		}
		r.ContextRequested = positive(int64(s.ContextRequested))
		if s.Role == event.RoleSettle || s.Role == event.RolePrime { // pairs of every role have such, which only their order tells apart
			at := visit{s.DeploymentID, s.PointID, s.Role, s.Slot}
			visits[at]++
			r.Repeat, r.Attempt = visits[at], 1
		}
		if s.TotalS > 0 {
			r.TotalS, r.ConnectS = &s.TotalS, &s.ConnectS
		}
		if f := s.Flush; f != nil {
			r.FlushMethod, r.FlushOK, r.FlushAttempts, r.FlushWaitS, r.FlushStatus = f.Method, f.OK, count(f.Attempts), &f.WaitS, positive(int64(f.Status))
			r.FlushDetail = f.Detail
		}
		rows = append(rows, r)
	}
	return rows
}

func (d *deriver) repeats() []RepeatRow {
	var rows []RepeatRow
	for _, p := range d.h.Points() {
		for _, pr := range p.Pairs() {
			r := RepeatRow{
				runKey: d.id, pointKey: d.key(p.Point), Repeat: int64(pr.Repeat), Attempt: int64(pr.Attempt), DeploymentID: pr.Life, Order: pr.LegOrder,
				Status: pr.Status, Valid: pr.Valid(), TA: pr.Pair.A.TimeS, TB: pr.Pair.B.TimeS,
				TokensA: whole(pr.Pair.A.Tokens), TokensB: whole(pr.Pair.B.Tokens), PromptTokens: whole(pr.Pair.A.PromptTokens), PromptTokensB: whole(pr.Pair.B.PromptTokens),
				CachedA: pr.Pair.A.CachedTokens, CachedB: pr.Pair.B.CachedTokens,
				TTFTA: pr.Pair.A.TTFTS, StepsA: pr.Pair.A.Steps, StepsB: pr.Pair.B.Steps,
				SPerTok: pr.SPerTok, SPerTokStream: pr.SPerTokStream, DecodeTokS: pr.DecodeTokS, DecodeTotal: pr.DecodeTotalTokS, Makespan: pr.MakespanSPerTok, AcceptLength: pr.AcceptLength, PrefillS: pr.PrefillS, PrefillTokS: pr.PrefillTokS, TTFTS: pr.TTFTS, TPOTS: pr.TPOTS,
				ITLS: pr.ITLS, DecodeStream: pr.DecodeStreamTokS, SPerStep: pr.SPerStep, SPerTokServer: pr.SPerTokServer,
			}
			r.Reasons, r.ReasonDetail = findings(pr.Reasons)
			r.Doubts, _ = findings(pr.Doubts)
			rows = append(rows, r)
		}
	}
	return rows
}

func (d *deriver) points() []PointRow {
	rows := make([]PointRow, 0, len(d.h.Points()))
	for _, p := range d.h.Points() {
		rows = append(rows, d.point(p))
	}
	return rows
}

func (d *deriver) point(p *history.Point) PointRow {
	r := PointRow{runKey: d.id, pointKey: d.key(p.Point), VariantID: d.h.Variant(p.Variant).ID, Method: d.h.Plan.Method.Name(), Stop: p.Stop}
	e := p.Estimate()
	r.Pairs, r.Valid, r.Deployments = int64(e.N+e.NInvalid), int64(e.N), int64(e.Deployments)
	if p.Sized != nil {
		r.A, r.B, r.S0, r.JitterS, r.Capped = count(p.Sized.A), count(p.Sized.B), p.Sized.S0, p.Sized.JitterS, p.Sized.Capped
	}
	r.Status, r.Reason, r.Detail = p.Outcome()
	if f := p.Failure; f != nil {
		r.FailureKind, r.FailureStage, r.FailureScope, r.Signature, r.FailureMessage = f.Kind, f.Stage, f.Scope, f.Signature, f.Message
		r.Evidence, r.ExitSignal, r.HTTPStatus = strings.Join(f.Evidence, "\n"), f.ExitSignal, positive(int64(f.HTTPStatus))
		if f.ExitCode != nil {
			r.ExitCode = count(*f.ExitCode)
		}
	}
	if p.Skip != nil {
		r.SkippedBecause = p.Skip.Because
	}
	if g := p.Gate(); g != nil {
		r.GateNeedle, r.GateAgreement, r.GateSelf = g.Needle, g.Agreement, g.Self
	}
	m := p.Machine()
	r.GPUClockMin, r.GPUClockMean, r.GPUPower, r.GPUPowerLimit, r.GPUTemperature = m.SMClockMinMHz, m.SMClockMeanMHz, m.PowerMeanW, m.PowerLimitMinW, m.TemperatureMaxC
	r.GPUThrottle, r.OtherCPUs = reasonsText(m.ThrottleReasons), m.OtherCPUs
	doubts := slices.Concat(e.Doubts, m.Doubts)
	for _, n := range p.Notes {
		doubts = append(slices.Clip(doubts), stat.Finding{Code: stat.Code(n.Code), Detail: n.Text})
	}
	if q := d.h.Beside(p, d.h.Plan.Baseline); q != nil && e.Values != nil && q.Estimate().Values != nil {
		if detail := acceptLengthDiffers([]*history.Point{q}, []*history.Point{p}); detail != "" {
			doubts = append(slices.Clip(doubts), stat.Finding{Code: stat.AcceptLengthDiffers, Detail: detail})
		}
	}
	r.Doubts, r.DoubtDetail = findings(doubts)

	raw := e.Values
	if raw == nil {
		raw = e.Raw
	}
	if raw != nil {
		r.PromptTokens, r.CachedMax = whole(raw.PromptTokens), cachedMax(p, e.Status == stat.Invalid)
		r.SPerTokRaw, r.DecodeTokSRaw, r.PrefillSRaw, r.PrefillTokRaw, r.TTFTSRaw = raw.SPerTok.Mean, raw.DecodeTokS.Mean, raw.PrefillS.Mean, raw.PrefillTokS.Mean, raw.TTFTS.Mean
		r.SPerStepRaw, r.SPerTokStreamRaw = raw.SPerStep.Mean, raw.SPerTokStream.Mean
	}
	if r.Status != stat.OK {
		return r
	}
	v := e.Values
	r.IntervalMethod, r.IntervalLevel = e.Method, &e.Level
	r.SPerTok, r.SPerTokSD, r.SPerTokMedian = v.SPerTok.Mean, v.SPerTok.SD, v.SPerTok.Median
	r.SPerTokLo, r.SPerTokHi = ends(v.SPerTok.Interval)
	r.SPerTokMedianLo, r.SPerTokMedianHi = ends(v.SPerTok.MedianInterval)
	r.SPerTokStream, r.SPerTokStreamSD = v.SPerTokStream.Mean, v.SPerTokStream.SD
	r.SPerTokStreamLo, r.SPerTokStreamHi = ends(v.SPerTokStream.Interval)
	r.DecodeStreamLo, r.DecodeStreamHi = ends(v.DecodeStreamTokS.Interval)
	r.DecodeTokS, r.PrefillS, r.PrefillTokS, r.TTFTS = v.DecodeTokS.Mean, v.PrefillS.Mean, v.PrefillTokS.Mean, v.TTFTS.Mean
	r.DecodeTokSLo, r.DecodeTokSHi = ends(v.DecodeTokS.Interval)
	r.PrefillSLo, r.PrefillSHi = ends(v.PrefillS.Interval)
	r.PrefillTokSLo, r.PrefillTokSHi = ends(v.PrefillTokS.Interval)
	r.TTFTSLo, r.TTFTSHi = ends(v.TTFTS.Interval)
	r.DecodeTotal = v.DecodeTotalTokS.Mean
	r.DecodeTotalLo, r.DecodeTotalHi = ends(v.DecodeTotalTokS.Interval)
	r.SPerStepLo, r.SPerStepHi = ends(v.SPerStep.Interval)
	r.AcceptLength, r.Makespan = v.AcceptLength.Mean, v.MakespanSPerTok.Mean
	r.TPOTS, r.ITLS, r.DecodeStream, r.SPerStep, r.SPerTokServer = v.TPOTS.Mean, v.ITLS.Mean, v.DecodeStreamTokS.Mean, v.SPerStep.Mean, v.SPerTokServer.Mean
	return r
}

// cachedMax is the largest cached count of the pairs behind the point's figures:
// the valid ones, or all where too many are invalid.
func cachedMax(p *history.Point, all bool) *int64 {
	var most *int64
	for _, pr := range p.Pairs() {
		if !all && !pr.Valid() {
			continue
		}
		for _, l := range pr.Pair.Legs() {
			if c := l.CachedTokens; c != nil && (most == nil || *c > *most) {
				most = c
			}
		}
	}
	return most
}

// fits are the lines through ok points of a variant and concurrency. Slopes are
// compared with another variant's (see against).
func (d *deriver) fits() []FitRow {
	type group struct {
		variant     string
		concurrency int
	}
	var order []group
	points := map[group][]*history.Point{}
	for _, p := range d.h.Points() {
		if status, _, _ := p.Outcome(); status != stat.OK {
			continue
		}
		g := group{p.Variant, p.Concurrency}
		if points[g] == nil {
			order = append(order, g)
		}
		points[g] = append(points[g], p)
	}
	fitted := map[group]map[string]stat.Fit{}
	quantities := []struct {
		name string
		of   func(*stat.Values) stat.Figure
	}{
		{"s_per_tok", func(v *stat.Values) stat.Figure { return v.SPerTok }},
		{"s_per_step", func(v *stat.Values) stat.Figure { return v.SPerStep }},
		{"s_per_tok_stream", func(v *stat.Values) stat.Figure { return v.SPerTokStream }},
	}
	if d.h.Plan.Method.Stream == nil {
		quantities = quantities[:2] // the method's own slopes
	}
	for _, g := range order {
		fitted[g] = map[string]stat.Fit{}
		for _, q := range quantities {
			var fps []stat.FitPoint
			for _, p := range points[g] {
				v := p.Estimate().Values
				if v.PromptTokens == nil || v.TokensB == nil {
					continue
				}
				from := 1.0 // an answer's own stream starts at its first token
				if v.TokensA != nil {
					from = *v.TokensA
				}
				if fp, ok := stat.NewFitPoint(*v.PromptTokens, from, *v.TokensB, q.of(v)); ok {
					fps = append(fps, fp)
				}
			}
			if f, ok := stat.FitLine(fps); ok {
				fitted[g][q.name] = f
			}
		}
	}
	var rows []FitRow
	for _, g := range order {
		for _, q := range quantities {
			f, ok := fitted[g][q.name]
			if !ok {
				continue
			}
			r := d.fit(g.variant, g.concurrency, q.name, f)
			against := d.against(g.variant)
			if base, ok := fitted[group{against, g.concurrency}][q.name]; ok && g.variant != against {
				if detail := acceptLengthDiffers(points[group{against, g.concurrency}], points[g]); detail != "" && q.name != "s_per_step" {
					r.Doubts = strings.TrimPrefix(r.Doubts+","+string(stat.AcceptLengthDiffers), ",")
				} else if gain, ok := stat.SlopeRatio(base, f); ok {
					r.Against, r.BetaGain = against, &gain.Value
					r.BetaGainLo, r.BetaGainHi = ends(gain.Interval)
				}
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// acceptLengthDiffers names the first context at which two variants' ok points
// accept tokens at different lengths; empty: none.
func acceptLengthDiffers(base, points []*history.Point) string {
	for _, p := range points {
		for _, q := range base {
			x, y := p.Estimate().Values.AcceptLength.Mean, q.Estimate().Values.AcceptLength.Mean
			if p.Context == q.Context && !stat.SameAcceptLength(x, y) {
				return fmt.Sprintf("%.3g tokens a step, %.3g with %s: compare seconds per step", *x, *y, q.Variant)
			}
		}
	}
	return ""
}

// against is the variant whose context slope a variant's is compared with: the
// baseline, or else the variant declared before it, so that a spec whose
// variants each change one thing shows what each change gives.
func (d *deriver) against(variant string) string {
	if d.h.Plan.Baseline != "" {
		return d.h.Plan.Baseline
	}
	before := ""
	for _, v := range d.h.Plan.Variants {
		if v.Name == variant {
			break
		}
		before = v.Name
	}
	return before
}

func (d *deriver) fit(variant string, concurrency int, quantity string, f stat.Fit) FitRow {
	level := stat.Level
	r := FitRow{
		runKey: d.id, VariantID: d.h.Variant(variant).ID, Variant: variant, Concurrency: int64(concurrency), Quantity: quantity, Contexts: int64(f.K),
		Alpha: &f.Alpha.Value, AlphaLo: &f.Alpha.Interval.Lo, AlphaHi: &f.Alpha.Interval.Hi,
		Beta: &f.Beta.Value, BetaLo: &f.Beta.Interval.Lo, BetaHi: &f.Beta.Interval.Hi,
		Level: &level, Chi2: f.Chi2, DF: count(int(math.Round(f.DF))), Scaled: &f.Scaled,
	}
	for i, res := range f.Residuals {
		c := int64(math.Round(res.Context))
		if i == 0 || c < r.ContextMin {
			r.ContextMin = c
		}
		r.ContextMax = max(r.ContextMax, c)
	}
	if f.Exponent != nil {
		r.Exponent = &f.Exponent.Value
		r.ExponentLo, r.ExponentHi = ends(&f.Exponent.Interval)
	}
	if k := f.Knee; k != nil {
		r.Knee, r.KneeP, r.BetaBelow, r.BetaAbove = &k.Depth, &k.P, &k.SlopeBelow, &k.SlopeAbove
	}
	if len(f.Steps) > 0 {
		r.Steps = jsonText(steps(f.Steps))
	}
	// Where it is known that nothing is speculated a step is a token, so that either slope is one of steps.
	if m := d.h.Plan.Model; m != nil && (quantity == "s_per_step" || d.stepIsToken(variant)) {
		s := d.sharding(variant, *m)
		r.KVDoubts = strings.Join(slices.Compact(s.contradicted), ",")
		if kv, err := stat.KVStreamGBs(s.model, f, s.tp, s.dcp, s.dp, concurrency); err == nil && s.known {
			r.KVStream, r.KVBytes = &kv.GBs, &kv.KVBytes
			r.KVStreamLo, r.KVStreamHi = ends(kv.Interval)
		}
		if v := d.h.Variant(variant); s.known && v.URL == "" && v.Engine != "twopoint" { // which computes on the CPU
			r.PeakGBs = d.env.PeakGBs()
			r.WeightsS = stat.WeightsS(m.ActiveWeightBytes, s.tp, r.PeakGBs)
			if stat.BelowWeights(f, r.WeightsS) {
				r.Doubts = string(stat.InterceptTooLow)
			}
		}
	}
	return r
}

// sharding is how a server lays out its KV cache.
type sharding struct {
	model        schema.Model
	tp, dp, dcp  int
	contradicted []string // settings in which the server contradicts the spec, or says something that is not known
	known        bool     // whether a rate can be made from it
}

// kvTypes are servers' names of the types that a model's KV cache can have.
var kvTypes = map[string]string{
	"f32": "f32", "float32": "f32", "f16": "f16", "float16": "f16", "half": "f16", "bf16": "bf16", "bfloat16": "bf16",
	"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}

// sharding is what the variant's server says of itself, and for the rest what the
// spec says. What neither does is 1 where twopoint started the server, and not known
// otherwise.
func (d *deriver) sharding(variant string, m schema.Model) sharding {
	v := d.h.Variant(variant)
	s := sharding{model: m, tp: v.TP, dp: v.DP, dcp: v.DCP, known: true}
	for _, name := range []string{"cache-type-k", "cache-type-v", "ctk", "ctv"} { // llama-server does not report what it made of these
		switch asked := text(v.Args[name]); {
		case asked == "":
		case kvTypes[strings.ToLower(asked)] == "":
			s.known, s.contradicted = false, append(s.contradicted, "kv_dtype")
		default:
			s.model.DType = kvTypes[strings.ToLower(asked)]
		}
	}
	for _, l := range d.h.Lives {
		if l.Variant != variant {
			continue
		}
		for name, n := range map[string]*int{"tp": &s.tp, "dp": &s.dp, "dcp": &s.dcp} {
			if said := integer(l.Effective[name]); said != nil && int(*said) != *n {
				if *n != 0 {
					s.contradicted = append(s.contradicted, name)
				}
				*n = int(*said)
			}
		}
		switch said := strings.ToLower(text(l.Effective["kv_dtype"])); {
		case said == "" || said == "auto" || kvTypes[said] == s.model.DType:
		case kvTypes[said] == "": // a type of unknown size
			s.known, s.contradicted = false, append(s.contradicted, "kv_dtype")
		default:
			s.model.DType, s.contradicted = kvTypes[said], append(s.contradicted, "kv_dtype")
		}
	}
	if v.URL != "" && s.tp == 0 { // a server that we did not start may be split over any number of devices
		s.known = false
	}
	slices.Sort(s.contradicted)
	return s
}

// steps are jumps between neighbouring contexts as they stand in a cell.
func steps(list []stat.Step) []map[string]float64 {
	var out []map[string]float64
	for _, s := range list {
		out = append(out, map[string]float64{"from": s.From, "to": s.To, "ratio": s.Ratio, "excess": s.Excess})
	}
	return out
}

// stepIsToken tells whether the variant's server said that it does not speculate.
func (d *deriver) stepIsToken(variant string) bool {
	said := false
	for _, l := range d.h.Lives {
		if s, says := l.Effective["speculative"].(bool); says && l.Variant == variant {
			if s {
				return false
			}
			said = true
		}
	}
	return said
}

func (d *deriver) settings() []SettingRow {
	type setting struct{ name, source string }
	values := map[setting]map[string]string{} // per variant
	var order []setting
	put := func(variant, name, source string, value any) {
		k := setting{name, source}
		if values[k] == nil {
			values[k] = map[string]string{}
			order = append(order, k)
		}
		values[k][variant] = text(value)
	}
	for _, v := range d.h.Plan.Variants {
		for _, f := range requested(v) {
			put(v.Name, f.name, "requested", f.value)
		}
		if w := d.h.Plan.Host.PowerW; w > 0 {
			put(v.Name, "host.power_w", "requested", w)
		}
		if w := d.powerLimit(v.Name); w != nil {
			put(v.Name, "host.power_w", "effective", w)
		}
	}
	spoke := map[string]bool{}
	for _, l := range d.h.Lives {
		spoke[l.Variant] = spoke[l.Variant] || l.Ready
		for _, name := range slices.Sorted(maps.Keys(l.Effective)) {
			put(l.Variant, name, "effective", l.Effective[name])
		}
	}
	slices.SortStableFunc(order, func(a, b setting) int {
		return cmp.Or(strings.Compare(b.source, a.source), strings.Compare(a.name, b.name)) // requested first
	})
	var rows []SettingRow
	for _, k := range order {
		// What a spec leaves out differs from what it says; a server that has not
		// spoken yet says nothing.
		distinct := map[string]bool{}
		for _, v := range d.h.Plan.Variants {
			if value, ok := values[k][v.Name]; ok {
				distinct["="+value] = true
			} else if k.source == "requested" || spoke[v.Name] {
				distinct[""] = true
			}
		}
		for _, v := range d.h.Plan.Variants {
			value, ok := values[k][v.Name]
			if !ok {
				continue
			}
			r := SettingRow{runKey: d.id, Variant: v.Name, Name: k.name, Value: value, Source: k.source, Swept: len(distinct) > 1}
			if f, err := strconv.ParseFloat(value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
				r.ValueNum = &f
			}
			rows = append(rows, r)
		}
	}
	return rows
}

type namedValue struct {
	name  string
	value any
}

// requested are a variant's settings: typed fields by their name, args as
// args.<key>, environment as env.<NAME>, secrets by name.
func requested(v plan.Variant) []namedValue {
	var out []namedValue
	add := func(name string, value any, absent bool) {
		if !absent {
			out = append(out, namedValue{name, value})
		}
	}
	add("engine", v.Engine, false)
	add("url", v.URL, v.URL == "")
	add("model_path", v.ModelPath, v.ModelPath == "")
	add("served_name", v.ServedName, v.ServedName == "")
	for name, n := range map[string]int{"context_length": v.ContextLength, "tp": v.TP, "dp": v.DP, "pp": v.PP, "dcp": v.DCP} {
		add(name, n, n == 0)
	}
	add("flush", v.Flush, v.Flush == "")
	add("command", v.Command, v.Command == nil)
	add("setup", v.Setup, v.Setup == "")
	add("files_hash", v.FilesHash, v.FilesHash == "")
	add("build", v.Build, v.Build == nil)
	if v.Container != nil {
		add("container", v.Container, false)
	}
	for key, value := range v.Args {
		add("args."+key, value, false)
	}
	for key, e := range v.Env {
		if e.Secret != "" {
			add("env."+key, "secret "+e.Secret, false)
		} else {
			add("env."+key, e.Value, false)
		}
	}
	slices.SortFunc(out, func(a, b namedValue) int { return strings.Compare(a.name, b.name) })
	return out
}

func findings(fs []stat.Finding) (codes, details string) {
	var c, det []string
	for _, f := range fs {
		if !slices.Contains(c, string(f.Code)) {
			c = append(c, string(f.Code))
		}
		det = append(det, f.Detail)
	}
	return strings.Join(c, ","), strings.Join(det, "\n")
}

func ends(i *stat.Interval) (lo, hi *float64) {
	if i == nil {
		return nil, nil
	}
	return &i.Lo, &i.Hi
}

func count(n int) *int64 {
	v := int64(n)
	return &v
}

// positive is n, or nil where 0 stands for "none".
func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}

// whole is a mean count as a count: exact where all requests agree, which the
// engines that take token ids ensure.
func whole(x *float64) *int64 {
	if x == nil {
		return nil
	}
	return count(int(math.Round(*x)))
}

// text is a free-form value as it stands in a cell: strings bare, everything
// else as JSON.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	return jsonText(v)
}

func integer(v any) *int64 {
	n, err := strconv.ParseFloat(text(v), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > 1<<53 {
		return nil
	}
	return count(int(n))
}

func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

func jsonList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return jsonText(list)
}

// list is the different words of a list in their order, none of them empty.
func list(words []string) string {
	var out []string
	for _, w := range words {
		if w != "" && !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return strings.Join(out, ", ")
}
