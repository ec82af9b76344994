package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet/file"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/history/historytest"
	"twopoint/results/run"
	"twopoint/results/stat"
	"twopoint/schema"
)

func environment() *run.Environment {
	return &run.Environment{Hostname: "box", CPU: "a CPU", Cores: 2, MemoryBytes: 1 << 34, GPUs: []run.GPU{{Name: "H100"}, {Name: "H100", Index: 1}}}
}

func eventful(t *testing.T) (*historytest.Run, *Tables) {
	t.Helper()
	r := historytest.Eventful()
	return r, Derive(r.ID, r.History, environment())
}

// Every row of an eventful run, without what is null: the golden file is where a
// change of any derived value shows. Figures are cut to six digits; ids have
// golden files of their own.
func TestRowsGolden(t *testing.T) {
	_, tables := eventful(t)
	elsewhere := map[string]bool{"run_id": true, "schema_version": true, "point_id": true, "variant_id": true, "skipped_because": true}
	var b bytes.Buffer
	for _, name := range Names {
		if name == "columns" {
			continue // the schema's golden file has them
		}
		rows := tables.rows(name)
		fmt.Fprintf(&b, "%s: %d rows\n", name, rows.Len())
		for i := range rows.Len() {
			if name == "samples" && i > 40 {
				break
			}
			for _, c := range columnsOf(name, rows.Type().Elem()) {
				if v := shown(rows.Index(i).FieldByIndex(c.index)); v != "" && !elsewhere[c.Name] {
					fmt.Fprintf(&b, " %s=%s", c.Name, v)
				}
			}
			b.WriteByte('\n')
		}
	}
	golden(t, "testdata/eventful.golden", b.Bytes())
}

func shown(v reflect.Value) string {
	switch x := expected(v).(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(x, 'g', 6, 64)
	case string:
		return strconv.Quote(x)
	case time.Time:
		return x.Format(time.RFC3339Nano)
	case []any:
		return fmt.Sprintf("[%d]", len(x))
	default:
		return fmt.Sprint(x)
	}
}

func pointRow(t *testing.T, tables *Tables, key string) PointRow {
	t.Helper()
	for _, r := range tables.Points {
		if r.PointKey == key {
			return r
		}
	}
	t.Fatalf("no point %s", key)
	return PointRow{}
}

func TestStatuses(t *testing.T) {
	_, tables := eventful(t)
	for key, want := range map[string]PointRow{
		"fast/256/1":    {Status: stat.OK},
		"fast/512/1":    {Status: stat.Invalid, Reason: "cache_hit"},
		"fast/1024/1":   {Status: stat.OK},
		"fast/2048/1":   {Status: stat.OK},
		"fast/4096/1":   {Status: stat.Skipped, Reason: "skip_longer"},
		"fast/8192/1":   {Status: stat.Failed, Reason: "gpu-oom"},
		"other/256/1":   {Status: stat.Unresolved, Reason: "too_few_pairs"},
		"other/512/1":   {Status: stat.Invalid, Reason: "count_missing"},
		"other/1024/1":  {Status: stat.OK},
		"other/2048/1":  {Status: stat.OK},
		"other/4096/1":  {Status: stat.Pending},
		"other/8192/1":  {Status: stat.Pending},
		"remote/256/1":  {Status: stat.OK},
		"remote/4096/1": {Status: stat.Failed, Reason: "context-too-long"},
		"remote/8192/1": {Status: stat.Pending},
	} {
		if got := pointRow(t, tables, key); got.Status != want.Status || got.Reason != want.Reason {
			t.Errorf("%s is %s (%s), want %s (%s)", key, got.Status, got.Reason, want.Status, want.Reason)
		}
	}
	r := tables.Runs[0]
	if r.Planned != 18 || r.OK != 9 || r.Unresolved != 1 || r.Invalid != 2 || r.Failed != 2 || r.Skipped != 1 || r.Pending != 3 {
		t.Errorf("the run counts %d: %d ok, %d unresolved, %d invalid, %d failed, %d skipped, %d pending", r.Planned, r.OK, r.Unresolved, r.Invalid, r.Failed, r.Skipped, r.Pending)
	}
}

// At every moment of the run keys are unique, a key once written stays, and the
// values of a point that is not ok are null.
func TestEveryMoment(t *testing.T) {
	r := historytest.Eventful()
	before := map[string]map[string]bool{}
	for n := 0; n <= len(r.Events); n++ {
		if n < len(r.Events) && r.Events[n].Type == event.TypeSample && n%4 != 0 {
			continue // of the many samples a quarter will do
		}
		tables := Derive(r.ID, history.New(r.Plan, r.Events[:n]), environment())
		checkValues(t, n, tables.Points)
		for _, a := range Abouts {
			if a.Table == "columns" && n > 0 {
				continue
			}
			seen := checkKeys(t, n, a, tables.rows(a.Table))
			for k := range before[a.Table] {
				if !seen[k] && a.Table != "fits" && a.Table != "columns" {
					t.Fatalf("after %d events: %s lost %s", n, a.Table, k)
				}
			}
			before[a.Table] = seen
		}
	}
}

func checkKeys(t *testing.T, n int, a About, rows reflect.Value) map[string]bool {
	t.Helper()
	var key [][]int
	for _, c := range columnsOf(a.Table, rows.Type().Elem()) {
		if slices.Contains(a.Key, c.Name) {
			key = append(key, c.index)
		}
	}
	seen := map[string]bool{}
	for i := range rows.Len() {
		var k strings.Builder
		for _, index := range key {
			k.WriteString(shown(rows.Index(i).FieldByIndex(index)) + "|")
		}
		if seen[k.String()] {
			t.Fatalf("after %d events: %s has %s twice", n, a.Table, k.String())
		}
		seen[k.String()] = true
	}
	return seen
}

// checkValues looks at the columns between the first value and the failure's:
// what was measured of a point that is not ok stands in _raw columns alone.
func checkValues(t *testing.T, n int, points []PointRow) {
	t.Helper()
	cols := columnsOf("points", reflect.TypeFor[PointRow]())
	at := func(name string) int {
		return slices.IndexFunc(cols, func(c Column) bool { return c.Name == name })
	}
	for _, row := range points {
		for _, c := range cols[at("s_per_tok"):at("failure_kind")] {
			null := reflect.ValueOf(row).FieldByIndex(c.index).IsZero()
			switch base, raw := strings.CutSuffix(c.Name, "_raw"); {
			case raw && at(base) < 0:
				t.Fatalf("%s has no column beside it", c.Name)
			case raw && null && row.Valid > 0 && base != "ttft_s" && base != "s_per_tok_stream":
				t.Fatalf("after %d events: %s has valid pairs and no %s", n, row.PointKey, c.Name)
			case !raw && row.Status == stat.OK && c.Name == "s_per_tok" && null:
				t.Fatalf("after %d events: %s is ok and has no %s", n, row.PointKey, c.Name)
			case !raw && row.Status != stat.OK && !null:
				t.Fatalf("after %d events: %s is %s and has %s", n, row.PointKey, row.Status, c.Name)
			}
		}
	}
}

func TestDeadPointsKeepTheirEvidence(t *testing.T) {
	_, tables := eventful(t)
	dead := pointRow(t, tables, "fast/8192/1")
	if dead.FailureKind != "gpu-oom" || dead.ExitSignal != "SIGKILL" || dead.ExitCode != nil || !strings.HasPrefix(dead.Evidence, "line one\n") || dead.Detail == "" {
		t.Errorf("failed point: %+v", dead)
	}
	if dead.SPerTok != nil || dead.SPerTokRaw == nil || dead.Stop != "" {
		t.Errorf("failed point: s_per_tok %v, raw %v, stop %q", dead.SPerTok, dead.SPerTokRaw, dead.Stop)
	}
	skipped := pointRow(t, tables, "fast/4096/1")
	if skipped.SkippedBecause != pointRow(t, tables, "fast/2048/1").PointID || skipped.Pairs != 0 || skipped.SPerTokRaw != nil {
		t.Errorf("skipped point: %+v", skipped)
	}
	if again := pointRow(t, tables, "fast/2048/1"); again.FailureKind != "" || again.Pairs != 3 {
		t.Errorf("a point tried again still has its failure %q and %d pairs", again.FailureKind, again.Pairs)
	}
	if request := pointRow(t, tables, "remote/4096/1"); request.HTTPStatus == nil || *request.HTTPStatus != 400 || request.ExitCode != nil {
		t.Errorf("refused request: %+v", request)
	}
}

func TestNotReportedIsNull(t *testing.T) {
	_, tables := eventful(t)
	uncounted := pointRow(t, tables, "other/512/1")
	if uncounted.SPerTok != nil || uncounted.SPerTokRaw != nil || uncounted.DecodeTokSRaw != nil {
		t.Error("a decode rate without counts of tokens")
	}
	buffered := pointRow(t, tables, "other/1024/1")
	if buffered.SPerTok == nil || buffered.TTFTS != nil || buffered.TTFTSRaw != nil || buffered.ITLS != nil || buffered.DecodeStream != nil || !strings.Contains(buffered.Doubts, "buffered_stream") {
		t.Errorf("buffered streams: %+v", buffered)
	}
	silent := pointRow(t, tables, "remote/256/1")
	if silent.SPerTok == nil || silent.CachedMax != nil {
		t.Errorf("no cached counts: s_per_tok %v, cached %v", silent.SPerTok, silent.CachedMax)
	}
	if ok := pointRow(t, tables, "fast/256/1"); ok.CachedMax == nil || *ok.CachedMax != 0 {
		t.Errorf("a reported count of 0 is %v", ok.CachedMax)
	}
	if hit := pointRow(t, tables, "fast/512/1"); hit.CachedMax == nil || *hit.CachedMax != 504 {
		t.Errorf("the hits of an invalid point are %v, want 504", hit.CachedMax)
	}
	if one := pointRow(t, tables, "other/2048/1"); one.CachedMax == nil || *one.CachedMax != 0 || one.Pairs != 6 || one.Valid != 5 {
		t.Errorf("one cached pair of six: cached %v, %d pairs, %d valid", one.CachedMax, one.Pairs, one.Valid)
	}
	for _, s := range tables.Samples {
		if s.FailureKind != "" && (s.TotalS != nil || s.ConnectS != nil || s.CompletionTokens != nil || s.ChunkS != nil) {
			t.Errorf("a request without an answer has times or counts: %+v", s)
		}
		if s.Role == event.RoleProbe && (s.PointID != "" || s.Concurrency != nil || s.Variant == "" || s.ContextRequested == nil) {
			t.Errorf("probe request: %+v", s)
		}
	}
	for _, d := range tables.Deployments {
		switch d.DeploymentID {
		case "o1-d1": // its runner was killed
			if d.Expected != nil || d.LifeS != nil || d.ExitCode != nil || d.ExitSignal != "" || d.FailureKind != "" {
				t.Errorf("life without an end: %+v", d)
			}
		case "o1-d6": // never launched
			if !d.LaunchedAt.IsZero() || d.Ready || d.PID != nil || d.LoadS != nil || d.FailureKind != "left-over" || d.Variant != "other" || d.VariantID == "" {
				t.Errorf("life without a launch: %+v", d)
			}
		case "o2-d7":
			if d.Managed || d.Argv != "" || d.Port != nil || d.FailureKind != "" {
				t.Errorf("a server that we did not start: %+v", d)
			}
		}
	}
}

func TestRun(t *testing.T) {
	_, tables := eventful(t)
	r := tables.Runs[0]
	if r.State != "interrupted" { // o1 is done, o2 is not
		t.Errorf("state %q", r.State)
	}
	if r.Stretches != 3 || r.ToolVersion != "1.0.0" || r.Target != "local" || r.GPU != "H100" || r.GPUs == nil || *r.GPUs != 2 {
		t.Errorf("run: %+v", r)
	}
	if r.Tags != `["paper"]` || r.Notes != `["fans were loud"]` || r.Remarks != `["b does not resolve the answer"]` {
		t.Errorf("tags %s, notes %s, remarks %s", r.Tags, r.Notes, r.Remarks)
	}
	if p := pointRow(t, tables, "other/256/1"); !strings.Contains(p.Doubts, "b-too-small") {
		t.Errorf("a note about a point is not among its doubts: %q", p.Doubts)
	}
	bare := Derive("x", history.New(historytest.Eventful().Plan, nil), nil).Runs[0]
	if bare.State != "" || bare.Stretches != 0 || bare.Cores != nil || bare.GPUs != nil || bare.Environment != "" || bare.Pending != bare.Planned || !bare.StartedAt.IsZero() {
		t.Errorf("a run to which nothing has happened: %+v", bare)
	}
}

func TestState(t *testing.T) {
	type step struct{ order, state string }
	for want, steps := range map[string][]step{
		"done":       {{"o1", "start"}, {"o1", "done"}},
		"budget":     {{"o1", "start"}, {"o1", "done"}, {"o2", "start"}, {"o2", "budget"}},
		"error":      {{"o1", "start"}, {"o1", "error"}, {"o2", "start"}, {"o2", "interrupted"}},
		"":           {{"o1", "start"}, {"o1", "error"}, {"o2", "start"}},
		"time-limit": {{"o1", "start"}, {"o1", "resume"}, {"o1", "time-limit"}},
	} {
		r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v")))
		for _, s := range steps {
			r.Order = s.order
			if s.state == "start" || s.state == "resume" {
				r.Begin(s.state)
			} else {
				r.End(s.state)
			}
		}
		if got := Derive(r.ID, r.History, nil).Runs[0].State; got != want {
			t.Errorf("state %q after %v, want %q", got, steps, want)
		}
	}
}

func TestSettings(t *testing.T) {
	a, b := historytest.Variant("a"), historytest.Variant("b")
	a.Args = map[string]any{"page-size": 16, "only-a": true, "ratio": "auto", "list": []any{1, "x"}}
	b.Args = map[string]any{"page-size": 64, "ratio": 0.5, "list": []any{1, "x"}}
	a.Env = map[string]schema.EnvValue{"KEY": {Secret: "TOKEN"}, "SEED": {Value: "4873214862074861312"}}
	r := historytest.New(historytest.Experiment([]int{256}, a, b))
	r.Launch("a")
	got := map[string]SettingRow{}
	for _, s := range Derive(r.ID, r.History, nil).Settings {
		got[s.Source+" "+s.Variant+" "+s.Name] = s
	}
	for key, want := range map[string]SettingRow{
		"requested a args.page-size": {Value: "16", ValueNum: new(16.0), Swept: true},
		"requested b args.page-size": {Value: "64", ValueNum: new(64.0), Swept: true},
		"requested a args.only-a":    {Value: "true", Swept: true},
		"requested a args.ratio":     {Value: "auto", Swept: true},
		"requested b args.ratio":     {Value: "0.5", ValueNum: new(0.5), Swept: true},
		"requested a args.list":      {Value: `[1,"x"]`},
		"requested a env.KEY":        {Value: "secret TOKEN", Swept: true},
		"requested a env.SEED":       {Value: "4873214862074861312", ValueNum: new(4873214862074861312.0), Swept: true},
		"requested a engine":         {Value: "twopoint"},
		"effective a page_size":      {Value: "16", ValueNum: new(16.0)}, // b has not spoken yet
		"effective a speculative":    {Value: "false"},
	} {
		s, ok := got[key]
		if !ok {
			t.Errorf("no setting %s", key)
			continue
		}
		if s.Value != want.Value || !reflect.DeepEqual(s.ValueNum, want.ValueNum) || s.Swept != want.Swept {
			t.Errorf("%s: %q, %v, swept=%v, want %q, %v, swept=%v", key, s.Value, s.ValueNum, s.Swept, want.Value, want.ValueNum, want.Swept)
		}
	}
	if _, ok := got["requested b args.only-a"]; ok {
		t.Error("a setting that a variant leaves out has a row")
	}
}

func TestFits(t *testing.T) {
	_, tables := eventful(t)
	var remote []FitRow
	for _, f := range tables.Fits {
		if f.Variant == "fast" || f.Variant == "other" {
			t.Errorf("a line through fewer than 4 ok points: %+v", f)
		}
		if f.Variant == "remote" {
			remote = append(remote, f)
		}
	}
	if len(remote) != 2 {
		t.Fatalf("%d fits of remote, want s_per_tok and s_per_step", len(remote))
	}
	f := remote[0]
	if f.Contexts != 4 || f.ContextMin != 256 || f.ContextMax != 2048 || f.BetaLo == nil || f.Against != "" {
		t.Errorf("fit: %+v", f)
	}
	if *f.Beta < 0.8*historytest.PerContextToken || *f.Beta > 1.2*historytest.PerContextToken {
		t.Errorf("context slope %g, want about %g", *f.Beta, historytest.PerContextToken)
	}
	// 2 full layers, 2·2·32 elements of 4 bytes a token, over the slope.
	if f.KVBytes == nil || *f.KVBytes != 2*2*2*32*4 || f.KVStream == nil || *f.KVStream < 0.8*1024e-9/1e-6 || *f.KVStream > 1.2*1024e-9/1e-6 {
		t.Errorf("KV bytes %v, stream %v", f.KVBytes, f.KVStream)
	}
}

// The KV stream rests on what the server says of itself, in the words in which an
// adapter passes it on; where that is not known there is none.
func TestSharding(t *testing.T) {
	exp := func(change func(*schema.Variant)) schema.Experiment {
		v := historytest.Variant("v")
		v.TP = 2
		change(&v)
		e := historytest.Experiment([]int{256, 512, 1024, 2048}, v)
		e.Model = &schema.Model{Name: "tiny", Layers: schema.Layers{Full: 1}, KV: schema.KV{GQA: &schema.GQA{Heads: 8, HeadDim: 64}}, DType: "bf16"}
		return e
	}
	same := func(*schema.Variant) {}
	there := func(v *schema.Variant) { v.URL, v.TP = "http://10.0.0.7:8000", 0 }
	for name, c := range map[string]struct {
		variant func(*schema.Variant)
		said    map[string]any
		bytes   float64 // 0: not known
		dp      float64
		doubts  string
	}{
		"silent":               {same, map[string]any{"kv_dtype": "auto"}, 2 * 4 * 64 * 2, 1, ""},
		"may speculate":        {same, map[string]any{"kv_dtype": "auto"}, 0, 1, ""},
		"agrees":               {same, map[string]any{"tp": json.Number("2"), "kv_dtype": "bfloat16"}, 2 * 4 * 64 * 2, 1, ""},
		"differs":              {same, map[string]any{"tp": int64(4), "kv_dtype": "fp8_e4m3"}, 2 * 2 * 64, 1, "kv_dtype,tp"},
		"splits the context":   {same, map[string]any{"dcp": int64(2)}, 2 * 4 * 64 * 2 / 2, 1, ""},
		"has replicas":         {same, map[string]any{"dp": int64(8)}, 2 * 4 * 64 * 2, 8, ""},
		"a type of no size":    {same, map[string]any{"kv_dtype": "fp8_ds_mla"}, 0, 1, "kv_dtype"},
		"a quantised cache":    {func(v *schema.Variant) { v.Args = map[string]any{"cache-type-k": "q8_0"} }, map[string]any{}, 0, 1, "kv_dtype"},
		"another type, asked":  {func(v *schema.Variant) { v.Args = map[string]any{"cache-type-k": "f32"} }, map[string]any{}, 2 * 4 * 64 * 4, 1, ""},
		"there, and tells":     {there, map[string]any{"tp": int64(2)}, 2 * 4 * 64 * 2, 1, ""},
		"there, and tells not": {there, map[string]any{}, 0, 1, ""},
	} {
		r := historytest.New(exp(c.variant))
		life := r.Launch("v")
		d := r.History.Life(life).Deployment
		if name != "may speculate" {
			c.said["speculative"] = false
		}
		d.State, d.Effective = "ready", c.said
		r.Add(event.Event{Type: event.TypeDeployment, Deployment: &d})
		for _, p := range r.History.Points() {
			r.Measure(life, p.Key, 3)
		}
		fits := Derive(r.ID, r.History, nil).Fits
		if len(fits) == 0 || (fits[0].KVBytes == nil) != (c.bytes == 0) || c.bytes != 0 && *fits[0].KVBytes != c.bytes || fits[0].KVDoubts != c.doubts {
			t.Errorf("%s: fits %+v, want %g bytes and %q", name, fits, c.bytes, c.doubts)
			continue
		}
		if c.bytes == 0 {
			continue
		}
		if want := 1e-9 / c.dp * c.bytes / *fits[0].Beta; *fits[0].KVStream < 0.999*want || *fits[0].KVStream > 1.001*want {
			t.Errorf("%s: %g GB/s, want %g", name, *fits[0].KVStream, want)
		}
	}
}

// An intercept that leaves no time for reading the weights is a doubt, where the
// GPU is known and the server computes on it.
func TestInterceptAgainstWeights(t *testing.T) {
	of := func(name string) *run.Environment {
		return &run.Environment{GPUs: []run.GPU{{Name: name}, {Index: 1, Name: name}}}
	}
	for name, c := range map[string]struct {
		engine string
		bytes  int64
		env    *run.Environment
		weight float64 // seconds; 0: null
		doubts string
	}{
		"too low":            {"sglang", 4800e9, of("NVIDIA H200"), 0.5, "intercept_too_low"},
		"enough":             {"sglang", 48e6, of("NVIDIA H200"), 5e-6, ""},
		"weights not known":  {"sglang", 0, of("NVIDIA H200"), 0, ""},
		"device not known":   {"sglang", 4800e9, of("NVIDIA Z1"), 0, ""},
		"no environment":     {"sglang", 4800e9, nil, 0, ""},
		"computes elsewhere": {"twopoint", 4800e9, of("NVIDIA H200"), 0, ""},
	} {
		v := historytest.Variant("v")
		v.Engine, v.TP = c.engine, 2
		exp := historytest.Experiment([]int{256, 512, 1024, 2048}, v)
		exp.Model = &schema.Model{Name: "tiny", Layers: schema.Layers{Full: 1}, KV: schema.KV{GQA: &schema.GQA{Heads: 8, HeadDim: 64}}, DType: "bf16", ActiveWeightBytes: c.bytes}
		r := historytest.New(exp)
		life := r.Launch("v")
		for _, p := range r.History.Points() {
			r.Measure(life, p.Key, 3)
		}
		f := Derive(r.ID, r.History, c.env).Fits[0]
		if (f.WeightsS == nil) != (c.weight == 0) || f.WeightsS != nil && math.Abs(*f.WeightsS-c.weight) > 1e-9 || f.Doubts != c.doubts {
			t.Errorf("%s: weights %v s, doubts %q", name, f.WeightsS, f.Doubts)
		}
	}
}

func TestSlopesAreCompared(t *testing.T) {
	exp := historytest.Experiment([]int{256, 512, 1024, 2048}, historytest.Variant("a"), historytest.Variant("b"))
	exp.Baseline = "b"
	r := historytest.New(exp)
	for _, v := range []string{"a", "b"} {
		life := r.Launch(v)
		for _, p := range r.History.Points() {
			if p.Variant == v {
				r.Measure(life, p.Key, 4)
			}
		}
	}
	for _, f := range Derive(r.ID, r.History, nil).Fits {
		switch {
		case f.Variant == "a" && (f.Against != "b" || f.BetaGain == nil || f.BetaGainLo == nil || *f.BetaGain < 0.8 || *f.BetaGain > 1.2):
			t.Errorf("a against b: %+v", f)
		case f.Variant == "b" && (f.Against != "" || f.BetaGain != nil):
			t.Errorf("the baseline against itself: %+v", f)
		}
	}
}

func TestConcurrentRequests(t *testing.T) {
	exp := historytest.Experiment([]int{256}, historytest.Variant("v"))
	exp.Sweep.Concurrency = []int{4}
	r := historytest.New(exp)
	r.Measure(r.Launch("v"), "v/256/4", 3)
	tables := Derive(r.ID, r.History, nil)
	p := tables.Points[0]
	if p.Status != stat.OK || p.DecodeTotal == nil || *p.DecodeTotal < 3.9**p.DecodeTokS || *p.DecodeTotal > 4.1**p.DecodeTokS || p.Makespan == nil {
		t.Errorf("4 requests at a time: %s (%s), decode %v per request, %v in total, makespan %v", p.Status, p.Detail, p.DecodeTokS, p.DecodeTotal, p.Makespan)
	}
	if n := len(tables.Repeats); n != 3 {
		t.Errorf("%d repeats, want one a pair", n)
	}
}

// newRun is a run's folder with the events of a made-up run in its journals.
func newRun(t *testing.T, r *historytest.Run) run.Dir {
	t.Helper()
	text, err := r.Plan.Encode()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := run.Create(t.TempDir(), r.Plan.Experiment, r.ID, map[string]run.File{"plan.json": {Content: text}, "environment.json": {Content: []byte(`{"hostname":"box","cpu_cores":2}`)}})
	if err != nil {
		t.Fatal(err)
	}
	journals := map[string]*event.Journal{}
	for _, e := range r.Events {
		j := journals[e.Order]
		if j == nil {
			if j, err = event.Open(dir.Journal(e.Order), e.Order); err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			journals[e.Order] = j
		}
		if err := j.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Tables from the files of a run are those from its events, but for the time
// at which they were recorded.
func TestLoad(t *testing.T) {
	r, want := eventful(t)
	dir := newRun(t, r)
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Samples {
		got.Samples[i].StartedAt = got.Samples[i].StartedAt.UTC()
		want.Samples[i].StartedAt = want.Samples[i].StartedAt.UTC()
		for _, s := range []*string{&got.Samples[i].Detail, &want.Samples[i].Detail} {
			*s = strings.ToValidUTF8(*s, "\uFFFD")
		}
	}
	for i := range got.Points {
		want.Points[i].Evidence = strings.ToValidUTF8(want.Points[i].Evidence, "\uFFFD")
	}
	for _, name := range []string{"samples", "repeats", "points", "fits", "settings"} {
		g, w := got.rows(name), want.rows(name)
		if g.Len() != w.Len() {
			t.Fatalf("%s: %d rows, want %d", name, g.Len(), w.Len())
		}
		for i := range g.Len() {
			if !reflect.DeepEqual(g.Index(i).Interface(), w.Index(i).Interface()) {
				t.Fatalf("%s, row %d:\n got %+v\nwant %+v", name, i, g.Index(i), w.Index(i))
			}
		}
	}

	renamed := run.Dir(filepath.Join(filepath.Dir(string(dir)), "my copy"))
	if err := os.Rename(string(dir), string(renamed)); err != nil {
		t.Fatal(err)
	}
	if got, err = Load(renamed); err != nil || got.Runs[0].RunID != r.ID {
		t.Errorf("a renamed folder is run %q (%v), want %q", got.Runs[0].RunID, err, r.ID)
	}

	// Damage in the middle: what precedes it is still shown, with the error.
	journal := renamed.Journal("o1")
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines[20] = []byte("not an event\n")
	if err := os.WriteFile(journal, bytes.Join(lines, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err = Load(renamed)
	if err == nil || got == nil || len(got.Samples) == 0 || len(got.Samples) >= len(want.Samples) {
		t.Errorf("damaged events: error %v", err)
	}

	if _, err := Load(run.Dir(t.TempDir())); err == nil {
		t.Error("a folder without a plan gives tables")
	}
}

func TestWrite(t *testing.T) {
	r, tables := eventful(t)
	dir := newRun(t, r)
	for range 2 { // over nothing, then over the old files
		if err := tables.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	for _, e := range entries {
		files[e.Name()] = true
	}
	for _, name := range Names {
		if !files[name+".parquet"] {
			t.Fatalf("no %s.parquet", name)
		}
		sameRows(t, tables, name)
		if !bytes.Equal(write(t, tables, name), write(t, tables, name)) {
			t.Errorf("%s: the same rows give two different files", name)
		}
		content, err := os.ReadFile(dir.Table(name))
		if err != nil {
			t.Fatal(err)
		}
		pf, err := file.NewParquetReader(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		meta := pf.MetaData().KeyValueMetadata()
		for key, want := range map[string]string{"run_id": r.ID, "spec_hash": "0123456789ab", "tool_version": "1.0.0", "schema_version": "1"} {
			if got := meta.FindValue(key); got == nil || *got != want {
				t.Errorf("%s.parquet: %s is %v, want %q", name, key, got, want)
			}
		}
	}
	if want := len(Names) + len([]string{"plan.json", "environment.json", "events", "logs"}); len(entries) != want {
		t.Errorf("the folder has %d entries, want %d: %v", len(entries), want, entries)
	}
}

// When the system takes no more bytes, the tables that are there stay. It is a
// process of its own whose files are limited in size.
func TestNoSpace(t *testing.T) {
	const env = "TABLE_TEST_DIR"
	if dir := os.Getenv(env); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 10, Max: 1 << 10}); err != nil {
			t.Fatal(err)
		}
		_, tables := eventful(t)
		if err := tables.Write(run.Dir(dir)); !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), ".parquet") {
			t.Errorf("error %v", err)
		}
		return
	}
	r, tables := eventful(t)
	dir := run.Dir(t.TempDir())
	if err := tables.Write(dir); err != nil {
		t.Fatal(err)
	}
	before := Derive(r.ID, r.History, environment())
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoSpace$")
	cmd.Env = append(os.Environ(), env+"="+string(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	entries, err := os.ReadDir(string(dir))
	if err != nil || len(entries) != len(Names) {
		t.Fatalf("the folder has %v (%v)", entries, err)
	}
	for _, name := range Names {
		got, err := os.ReadFile(dir.Table(name))
		if err != nil || !bytes.Equal(got, write(t, before, name)) {
			t.Errorf("%s.parquet changed (%v)", name, err)
		}
	}
}

func TestJSON(t *testing.T) {
	_, tables := eventful(t)
	var b bytes.Buffer
	if err := tables.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string][]map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 4 || len(got["runs"]) != 1 || len(got["points"]) != 18 || len(got["fits"]) != len(tables.Fits) {
		t.Errorf("%d tables: %d runs, %d points, %d fits", len(got), len(got["runs"]), len(got["points"]), len(got["fits"]))
	}
	dead := got["points"][5]
	if value, ok := dead["decode_tok_s"]; !ok || value != nil || dead["point_key"] != "fast/8192/1" || dead["failure_kind"] != "gpu-oom" || dead["n_pairs"] != 2.0 {
		t.Errorf("a failed point: %v", dead)
	}
	for _, c := range Columns() {
		if c.Table == "points" {
			if _, ok := dead[c.Name]; !ok {
				t.Errorf("no %s", c.Name)
			}
		}
	}
}

// BenchmarkTables derives and writes the tables of a run of 100 points with 10
// pairs each.
func BenchmarkTables(b *testing.B) {
	contexts := make([]int, 100)
	for i := range contexts {
		contexts[i] = 512 + 64*i
	}
	r := historytest.New(historytest.Experiment(contexts, historytest.Variant("v")))
	life := r.Launch("v")
	for _, p := range r.History.Points() {
		r.Measure(life, p.Key, 10)
	}
	dir := run.Dir(b.TempDir())
	b.Run("points=100/pairs=10", func(b *testing.B) {
		for b.Loop() {
			h := history.New(r.Plan, r.Events)
			if err := Derive(r.ID, h, environment()).Write(dir); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/100, "µs/point")
	})
}

// TestC58WallClock: a wall clock that is set back in the middle of a run changes no
// figure, for none is computed from it.
func TestC58WallClock(t *testing.T) {
	r, want := eventful(t)
	var events []event.Event
	for i, e := range r.Events {
		if i > len(r.Events)/2 {
			e.Time = e.Time.Add(-300 * time.Millisecond)
			if e.Sample != nil {
				s := *e.Sample
				s.Start = s.Start.Add(-300 * time.Millisecond)
				e.Sample = &s
			}
		}
		events = append(events, e)
	}
	got := Derive(r.ID, history.New(r.Plan, events), environment())
	for name, pair := range map[string][2]any{"points": {got.Points, want.Points}, "repeats": {got.Repeats, want.Repeats}, "fits": {got.Fits, want.Fits}} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s depend on the wall clock", name)
		}
	}
}
