package event

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite golden files")

func ptr[T any](v T) *T { return &v }

// examples holds one event of each type, with every field that its type has in
// use somewhere.
var examples = []Event{
	{Type: TypeRun, Run: &Run{RunID: "20260301T120000Z-a1b2c3", State: "start", Version: "0.1.0", Only: "context=1024..8192"}},
	{Type: TypeDeployment, Deployment: &Deployment{DeploymentID: "o1-d1", Variant: "split", VariantID: "0123456789ab", State: "ready",
		Managed: true, Host: "127.0.0.1", Port: 30000, PID: 4242, LoadS: ptr(1.25),
		Effective: map[string]any{"attention_backend": "triton", "page_size": json.Number("16"), "radix_cache": true}}},
	{Type: TypeSample, Sample: &Sample{DeploymentID: "o1-d1", PointID: "ba9876543210", Role: RoleMeasure, Repeat: 1, Attempt: 1, Leg: "b", Second: true,
		ContextRequested: 1024, TokensRequested: 33, Start: time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC), ConnectS: 0.0002, TotalS: 0.81, HeaderS: ptr(0.0011),
		TTFTS: ptr(0.21), Streamed: true, PromptTokens: ptr(int64(1024)), CompletionTokens: ptr(int64(33)), CachedTokens: ptr(int64(0)),
		ChunkS: []float64{0.21, 0.8}, ChunkTokens: []int32{1, 32}, Finish: "length", HTTPStatus: 200,
		Flush: &Flush{Method: "/flush_cache", Attempts: 1, WaitS: 0.003, Status: 200, OK: ptr(true)}}},
	{Type: TypeRepeat, Repeat: &Repeat{DeploymentID: "o1-d1", PointID: "ba9876543210", Role: RoleMeasure, Repeat: 1, Attempt: 1, A: 1, B: 33, Order: "ab", Status: "complete"}},
	{Type: TypePoint, Point: &Point{PointID: "ba9876543210", State: "sized", A: 1, B: 33, S0: ptr(0.0187), JitterS: ptr(0.0021)}},
	{Type: TypeSkip, Skip: &Skip{PointID: "00ff00ff00ff", Reason: "skip_longer", Because: "ba9876543210"}},
	{Type: TypeFlush, Flush: &Flush{DeploymentID: "o1-d1", Method: "/flush_cache", Attempts: 3, WaitS: 1.5, Status: 400, OK: ptr(false), Detail: "pending requests"}},
	{Type: TypeFailure, Failure: &Failure{DeploymentID: "o1-d1", PointID: "00ff00ff00ff", Variant: "split", Kind: "gpu-oom", Stage: "prefill", Scope: "server",
		Signature: "torch-oom", Message: "the server ran out of GPU memory", Evidence: []string{"torch.OutOfMemoryError: <CUDA out of memory> & more"}, ExitCode: ptr(1)}},
	{Type: TypeKernel, Kernel: json.RawMessage(`{"variant":"split_grouped"}`)},
	{Type: TypeTelemetry, Telemetry: &Telemetry{DeploymentID: "o1-d1", PointID: "ba9876543210", Role: RoleMeasure, Repeat: 1, Moment: MomentAfter,
		At: time.Date(2026, 3, 1, 12, 0, 9, 0, time.UTC), TookS: 0.06,
		Host: HostReading{CPUs: 64, CPUClockMHz: ptr(3100.5), Temperature: ptr(61.0), ThrottleCount: ptr(int64(0)), Load1: ptr(2.5), MemoryAvailable: ptr(int64(1 << 37)),
			MemoryPressure: ptr(0.0), IntervalS: ptr(4.2), OtherCPUs: ptr(0.11)},
		GPUs: []GPUReading{{Index: 3, UUID: "GPU-d3", SMClockMHz: ptr(1605.0), MemClockMHz: ptr(3201.0), PowerW: ptr(412.5), PowerLimitW: ptr(600.0), Temperature: ptr(84.0),
			MemoryUsed: ptr(int64(1 << 36)), Utilisation: ptr(0.97), ThrottleReasons: []string{"sw_power_cap"}, ThrottledS: map[string]float64{"sw_power_cap": 11.5}}},
		Processes: []GPUProcess{{PID: 4242, GPU: ptr(3), Name: "python3", MemoryBytes: ptr(int64(1 << 33)), Owner: OwnerForeign}}}},
	{Type: TypeNote, Note: &Note{Code: "b-too-small", PointID: "ba9876543210", Variant: "split", Text: "b − a = 8 cannot resolve the answer"}},
	{Type: TypePoint, Point: &Point{PointID: "ba9876543210", State: "gate", Gate: &Gate{DeploymentID: "o1-d1", Attempt: 1,
		Needles: []Needle{{Depth: 0.5, Fact: "The secret code of Norwich is 482913.", Found: ptr(true), Answer: " 482913."}},
		Outputs: []Output{
			{Prompt: 1, SHA256: strings.Repeat("0f", 32), Asked: 4, Tokens: ptr(int64(4)), IDs: []int32{311, 42, 7, 19}, Text: " of the light"},
			{Prompt: 1, Again: true, SHA256: strings.Repeat("0f", 32), Asked: 4, Detail: "timeout: limit total of 1m0s passed before the answer"}}}}},
}

// write records events in a new journal of order o1 and returns its path.
func write(t testing.TB, events ...Event) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	j, err := Create(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if err := j.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func note(text string) Event { return Event{Type: TypeNote, Note: &Note{Code: "n", Text: text}} }

func TestGolden(t *testing.T) {
	var got bytes.Buffer
	for i, e := range examples {
		e.V, e.Order, e.Seq = Version, "o1", int64(i+1)
		e.Time = time.Date(2026, 3, 1, 12, 0, i, 0, time.UTC)
		line, err := encode(e)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(line)
	}
	golden := filepath.Join("testdata", "o1.jsonl")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("event lines changed (-update rewrites %s):\n%s", golden, got.Bytes())
	}

	events, err := Read(golden)
	if err != nil || len(events) != len(examples) {
		t.Fatalf("read %d events, %v", len(events), err)
	}
	types := map[Type]bool{}
	for i, e := range events {
		types[e.Type] = true
		e.V, e.Order, e.Seq, e.Time = 0, "", 0, time.Time{}
		if !reflect.DeepEqual(e, examples[i]) {
			t.Errorf("event %d read back as\n%+v, want\n%+v", i+1, e, examples[i])
		}
	}
	if n := len(Event{}.payloads()); len(types) != n {
		t.Errorf("%d of %d types have a golden line", len(types), n)
	}
}

// The page names every field and shows the golden lines.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/o1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(golden) {
		if !bytes.Contains(page, line) {
			t.Errorf("docs/events.md lacks the golden line %s", line)
		}
	}
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "-" && !bytes.Contains(page, []byte("`"+name+"`")) {
				t.Errorf("docs/events.md does not explain `%s` of %v", name, typ)
			}
			inner := f.Type
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && inner.PkgPath() == typ.PkgPath() {
				walk(inner)
			}
		}
	}
	walk(reflect.TypeFor[Event]())
}

func TestRecordStampsAndContinues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	before := time.Now().UTC().Truncate(time.Microsecond)
	for round := range 3 {
		j, err := Open(path, "o1")
		if err != nil {
			t.Fatal(err)
		}
		e := note(fmt.Sprint(round))
		e.V, e.Order, e.Seq = 9, "theirs", 77
		if err := j.Record(e); err != nil {
			t.Fatal(err)
		}
		j.Close()
		if err := j.Record(e); !errors.Is(err, os.ErrClosed) {
			t.Errorf("record after close: %v", err)
		}
	}
	events, err := Read(path)
	if err != nil || len(events) != 3 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, e := range events {
		if e.V != Version || e.Order != "o1" || e.Seq != int64(i+1) || e.Time.Before(before) || e.Time.Location() != time.UTC || e.Note.Text != fmt.Sprint(i) {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

func TestOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	j, err := Create(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "o1"); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("second writer: %v", err)
	}
	if err := j.Record(note("still mine")); err != nil {
		t.Error(err)
	}
	j.Close()
	if _, err := Create(path, "o1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a journal: %v", err)
	}
	if _, err := Open(path, "o2"); err == nil || !strings.Contains(err.Error(), `order "o1"`) {
		t.Errorf("open as another order: %v", err)
	}
	if events, err := Read(path); err != nil || len(events) != 1 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestRecordFromManyGoroutines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	j, err := Create(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := j.Record(note("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	j.Close()
	if events, err := Read(path); err != nil || len(events) != 40 {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestRecordRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	j, err := Create(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for name, c := range map[string]struct {
		e    Event
		want string
	}{
		"nan":         {Event{Type: TypeSample, Sample: &Sample{TotalS: math.NaN()}}, "sample.total_s is NaN"},
		"inf pointer": {Event{Type: TypePoint, Point: &Point{S0: ptr(math.Inf(1))}}, "point.s0_s is +Inf"},
		"in a list":   {Event{Type: TypeSample, Sample: &Sample{ChunkS: []float64{1, math.Inf(-1)}}}, "sample.chunk_s[1] is -Inf"},
		"in a map":    {Event{Type: TypeDeployment, Deployment: &Deployment{Effective: map[string]any{"x": []any{math.NaN()}}}}, "deployment.effective.x[0] is NaN"},
		"no payload":  {Event{Type: TypeRun}, `type "run" without its payload`},
		"no type":     {Event{Run: &Run{}}, `type "" without its payload`},
		"two":         {Event{Type: TypeRun, Run: &Run{}, Note: &Note{}}, `type "run" with the payload of "note"`},
		"too long":    {note(strings.Repeat("x", MaxLine)), "a line holds"},
	} {
		if err := j.Record(c.e); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := j.Record(note("bad \xff utf-8\nsecond line")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !utf8.Valid(data) || bytes.Count(data, []byte("\n")) != 1 {
		t.Errorf("journal is %q, %v", data, err)
	}
	events, err := Read(path)
	if err != nil || len(events) != 1 || events[0].Seq != 1 || events[0].Note.Text != "bad � utf-8\nsecond line" {
		t.Errorf("%+v, %v", events, err)
	}
}

// At every cut, and with what a crash may leave after it, Read gives a prefix
// and Open goes on behind it.
func TestEveryCut(t *testing.T) {
	data, err := os.ReadFile("testdata/o1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := Read("testdata/o1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	for cut := range len(data) + 1 {
		lines := bytes.Count(data[:cut], []byte("\n"))
		for _, tail := range []string{"", "\x00", "\x00\x00\x00\n", "\x00\x00\n\x00"} {
			if cut > 0 && data[cut-1] != '\n' && tail == "" && cut%7 != 0 && cut < len(data)-200 {
				continue // fsync is slow: every seventh cut inside a line will do
			}
			if tail != "" && cut%97 != 0 && (cut == 0 || data[cut-1] != '\n') {
				continue
			}
			if err := os.WriteFile(path, append(data[:cut:cut], tail...), 0o644); err != nil {
				t.Fatal(err)
			}
			events, err := Read(path)
			if err != nil || len(events) != lines || lines > 0 && !reflect.DeepEqual(events, whole[:lines]) {
				t.Fatalf("cut at %d with tail %q: %d events instead of %d, %v", cut, tail, len(events), lines, err)
			}
			j, err := Open(path, "o1")
			if err != nil {
				t.Fatalf("cut at %d with tail %q: %v", cut, tail, err)
			}
			if err := j.Record(note("after")); err != nil {
				t.Fatal(err)
			}
			j.Close()
			events, err = Read(path)
			if err != nil || len(events) != lines+1 || events[lines].Note.Text != "after" || events[lines].Seq != int64(lines+1) {
				t.Fatalf("cut at %d with tail %q: after recording %d events, %v", cut, tail, len(events), err)
			}
		}
	}
}

// The same prefix property at every single byte, without the disk.
func TestEveryCutRead(t *testing.T) {
	data, err := os.ReadFile("testdata/o1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(data) + 1 {
		events, end, err := readAll(bytes.NewReader(data[:cut]), "x")
		lines := bytes.Count(data[:cut], []byte("\n"))
		if err != nil || len(events) != lines || end.off != int64(bytes.LastIndexByte(data[:cut], '\n')+1) {
			t.Fatalf("cut at %d: %d events up to byte %d, %v", cut, len(events), end.off, err)
		}
	}
}

func TestDamage(t *testing.T) {
	good := func(seq int) string {
		return fmt.Sprintf(`{"v":1,"order":"o1","seq":%d,"time":"2026-03-01T12:00:00Z","type":"note","note":{"code":"n","text":"t"}}`+"\n", seq)
	}
	one := good(1)
	for name, c := range map[string]struct {
		text   string
		events int
		line   int
		offset int
		want   string
	}{
		"half a line":         {one + good(2)[:20] + "\n" + good(3), 1, 2, len(one), "not a JSON object"},
		"blank line":          {one + "\n" + good(2), 1, 2, len(one), "not a JSON object"},
		"nul then event":      {one + "\x00\x00\n" + good(2), 1, 2, len(one), "not a JSON object"},
		"two bad lines":       {one + "{\n{\n", 1, 2, len(one), "not a JSON object"},
		"text after":          {one + strings.TrimSuffix(good(2), "\n") + "}\n" + good(3), 1, 2, len(one), "not a JSON object"},
		"gap":                 {one + good(3), 1, 2, len(one), "sequence number 3 follows 1"},
		"twice":               {one + one, 1, 2, len(one), "sequence number 1 follows 1"},
		"starts late":         {good(2), 0, 1, 0, "sequence number 2 follows 0"},
		"other order":         {one + strings.Replace(good(2), "o1", "o2", 1), 1, 2, len(one), `order "o2"`},
		"no payload":          {one + `{"v":1,"order":"o1","seq":2,"type":"sample"}` + "\n", 1, 2, len(one), `type "sample" without its payload`},
		"no envelope":         {one + `{"a":1}` + "\n", 1, 2, len(one), "no event"},
		"whole, of odd types": {one + strings.Replace(good(2), `"t"`, "5", 1), 1, 2, len(one), "no event"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "o1.jsonl")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			events, err := Read(path)
			var d *DamageError
			if !errors.As(err, &d) {
				t.Fatalf("read: %v", err)
			}
			if d.Path != path || d.Line != c.line || d.Offset != int64(c.offset) || !strings.Contains(d.Error(), c.want) || len(events) != c.events {
				t.Errorf("%d events, %v", len(events), d)
			}
			if _, err := Open(path, "o1"); !errors.As(err, &d) {
				t.Errorf("open: %v", err)
			}
			if data, _ := os.ReadFile(path); string(data) != c.text {
				t.Error("open changed a damaged journal")
			}
		})
	}
}

func TestVersions(t *testing.T) {
	path := write(t, note("old"))
	add := func(line string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	add(`{"v":1,"order":"o1","seq":2,"time":"2026-03-01T12:00:00Z","type":"note","note":{"code":"n","text":"t","mood":3},"extra":{}}`)
	add(`{"v":1,"order":"o1","seq":3,"time":"2026-03-01T12:00:00Z","type":"surprise","surprise":{}}`)
	events, err := Read(path)
	if err != nil || len(events) != 3 || events[1].Note.Text != "t" || events[2].Type != "surprise" {
		t.Fatalf("%+v, %v", events, err)
	}
	for _, line := range []string{
		`{"v":2,"order":"o1","seq":4,"type":"note","note":{"code":"n","text":"t"}}`,
		`{"v":2,"order":7,"seq":"four"}`,
	} {
		add(line)
		events, err = Read(path)
		if !errors.Is(err, ErrNewer) || len(events) != 3 || !strings.Contains(err.Error(), "upgrade twopoint") || !strings.Contains(err.Error(), path+":4") {
			t.Errorf("%d events, %v", len(events), err)
		}
		if _, err := Open(path, "o1"); !errors.Is(err, ErrNewer) {
			t.Errorf("open: %v", err)
		}
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= 3; i++ {
			add(fmt.Sprintf(`{"v":1,"order":"o1","seq":%d,"type":"note","note":{}}`, i))
		}
	}
}

// A line without end is read over in bounded memory: damage in the middle, a
// torn tail at the end.
func TestLongLine(t *testing.T) {
	path := write(t, note("first"))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()+MaxLine+1); err != nil { // a hole reads as NULs
		t.Fatal(err)
	}
	if events, err := Read(path); err != nil || len(events) != 1 {
		t.Errorf("torn: %d events, %v", len(events), err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, "\n{}\n")
	f.Close()
	var d *DamageError
	if events, err := Read(path); !errors.As(err, &d) || len(events) != 1 || d.Line != 2 {
		t.Errorf("damaged: %d events, %v", len(events), err)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	for _, order := range []string{"o10", "o2", "o1"} {
		j, err := Create(filepath.Join(dir, order+".jsonl"), order)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if err := j.Record(note(fmt.Sprint(order, i))); err != nil {
				t.Fatal(err)
			}
		}
		j.Close()
	}
	if err := os.WriteFile(filepath.Join(dir, "other.txt"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	texts := func(events []Event) (s string) {
		for _, e := range events {
			s += " " + e.Note.Text
		}
		return strings.TrimSpace(s)
	}
	events, err := ReadDir(dir)
	if got := texts(events); err != nil || got != "o10 o11 o20 o21 o100 o101" {
		t.Errorf("%s, %v", got, err)
	}

	data, err := os.ReadFile(filepath.Join(dir, "o2.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "p.jsonl"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	if err := os.WriteFile(filepath.Join(dir, "o1.jsonl"), bytes.ReplaceAll(append(lines[0][:len(lines[0]):len(lines[0])], lines[0]...), []byte(`"o2"`), []byte(`"o1"`)), 0o644); err != nil {
		t.Fatal(err)
	}
	events, err = ReadDir(dir)
	var d *DamageError
	if got := texts(events); !errors.As(err, &d) || !strings.Contains(err.Error(), "both journals of order o2") || got != "o20 o20 o21 o100 o101" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := ReadDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
}

var errFault = errors.New("injected fault")

// faulty is a journal's file that fails at the step-th operation: a write
// leaves part of its bytes, a sync leaves what was written. After a crash
// nothing works any more; otherwise only that one operation fails.
type faulty struct {
	*os.File
	step, at int
	part     float64
	crash    bool
}

func (f *faulty) fails() bool {
	f.step++
	return f.step == f.at || f.crash && f.step > f.at
}

func (f *faulty) Write(b []byte) (int, error) {
	if f.fails() {
		n := 0
		if f.step == f.at {
			n, _ = f.File.Write(b[:int(f.part*float64(len(b)))])
		}
		return n, errFault
	}
	return f.File.Write(b)
}

func (f *faulty) Sync() error {
	if f.fails() {
		return errFault
	}
	return f.File.Sync()
}

func (f *faulty) Truncate(n int64) error {
	if f.fails() {
		return errFault
	}
	return f.File.Truncate(n)
}

// A failed write or sync leaves a valid file and a usable journal; a crash at
// any step leaves a file that reads and goes on.
func TestFaults(t *testing.T) {
	const records = 3
	for _, crash := range []bool{false, true} {
		for at := 1; at <= 2*records; at++ {
			for _, part := range []float64{0, 0.5, 1} {
				path := filepath.Join(t.TempDir(), "o1.jsonl")
				j, err := Create(path, "o1")
				if err != nil {
					t.Fatal(err)
				}
				j.f = &faulty{File: j.f.(*os.File), at: at, part: part, crash: crash}
				var promised []string
				for i := range records {
					if err := j.Record(note(fmt.Sprint(i))); err == nil {
						promised = append(promised, fmt.Sprint(i))
					} else if !errors.Is(err, errFault) || !strings.Contains(err.Error(), path) {
						t.Fatal(err)
					}
				}
				j.Close()
				if !crash && len(promised) != records-1 {
					t.Errorf("fault at %d: %d records worked", at, len(promised))
				}
				events, err := Read(path)
				if err != nil {
					t.Fatalf("crash %v at %d: %v", crash, at, err)
				}
				// An event whose sync never returned may still be there.
				if n := len(events); n != len(promised) && !(crash && n == len(promised)+1) {
					t.Errorf("crash %v at %d, part %v: %d events of %d promised", crash, at, part, n, len(promised))
				}
				for i, text := range promised {
					if events[i].Note.Text != text {
						t.Errorf("crash %v at %d: event %d is %q, want %q", crash, at, i, events[i].Note.Text, text)
					}
				}
				j, err = Open(path, "o1")
				if err != nil {
					t.Fatal(err)
				}
				if err := j.Record(note("after")); err != nil {
					t.Fatal(err)
				}
				j.Close()
				if again, err := Read(path); err != nil || len(again) != len(events)+1 {
					t.Errorf("crash %v at %d: %d events after reopening, %v", crash, at, len(again), err)
				}
			}
		}
	}
}

func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, note("kept"))
	j, err := Open(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	disk := j.f
	j.f = fullDisk{full, disk}
	if err := j.Record(note("lost")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full disk: %v", err)
	}
	j.f = disk
	if err := j.Record(note("later")); err != nil {
		t.Error(err)
	}
	j.Close()
	full.Close()
	events, err := Read(path)
	if err != nil || len(events) != 2 || events[1].Seq != 2 || events[1].Note.Text != "later" {
		t.Errorf("%+v, %v", events, err)
	}
}

// fullDisk writes to the kernel's always-full device, the rest to the journal.
type fullDisk struct {
	io.Writer
	file
}

func (f fullDisk) Write(b []byte) (int, error) { return f.Writer.Write(b) }

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(seen)
		for e, err := range Follow(ctx, path) {
			if err != nil {
				t.Error(err)
				return
			}
			seen <- e.Note.Text
		}
	})
	for round := range 2 { // the second opens behind a torn tail
		j, err := Open(path, "o1")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			text := fmt.Sprint(round, i)
			if err := j.Record(note(text)); err != nil {
				t.Fatal(err)
			}
			if got := <-seen; got != text {
				t.Errorf("followed %q, want %q", got, text)
			}
		}
		if _, err := j.f.Write([]byte(`{"v":1,"ord`)); err != nil {
			t.Fatal(err)
		}
		j.Close()
	}
	j, err := Open(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Record(note("last")); err != nil {
		t.Fatal(err)
	}
	cancel() // what is on disk is still yielded
	if got := <-seen; got != "last" {
		t.Errorf("after cancel %q", got)
	}
	j.Close()
	wg.Wait()
	if _, more := <-seen; more {
		t.Error("follow went on")
	}
}

func TestFollowDamage(t *testing.T) {
	path := write(t, note("first"))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, "junk\njunk\n")
	f.Close()
	var events int
	var errs []error
	for _, err := range Follow(context.Background(), path) {
		if err != nil {
			errs = append(errs, err)
		} else {
			events++
		}
	}
	var d *DamageError
	if events != 1 || len(errs) != 1 || !errors.As(errs[0], &d) {
		t.Errorf("%d events, %v", events, errs)
	}
}

// A writer killed with -9 has kept every promise, and the next one goes on.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o1.jsonl")
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriterProcess$")
		cmd.Env = append(os.Environ(), "TWOPOINT_JOURNAL="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		promised := 0
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "recorded %d", &promised); err != nil {
				t.Errorf("writer said %q", lines.Text())
			}
			if promised%(7+round) == 0 {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()
		events, err := Read(path)
		if err != nil || promised == 0 || len(events) < promised {
			t.Fatalf("round %d: %d events of %d promised, %v", round, len(events), promised, err)
		}
	}
}

// TestWriterProcess is the writer that TestKilledWriter starts and kills.
func TestWriterProcess(t *testing.T) {
	path := os.Getenv("TWOPOINT_JOURNAL")
	if path == "" {
		return
	}
	j, err := Open(path, "o1")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if err := j.Record(note(strings.Repeat("x", 5000))); err != nil {
			t.Fatal(err)
		}
		fmt.Println("recorded", j.seq)
	}
}

func FuzzRead(f *testing.F) {
	golden, err := os.ReadFile("testdata/o1.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden, 0, []byte(nil))
	f.Add(golden, 300, []byte("\x00\x00\n"))
	f.Add(golden, len(golden), []byte(`{"v":2}`+"\n"))
	f.Add([]byte("\n\n"), 1, []byte("{}\n{\n"))
	f.Fuzz(func(t *testing.T, data []byte, cut int, tail []byte) {
		if cut >= 0 && cut < len(data) {
			data = append(data[:cut:cut], tail...)
		}
		events, end, err := readAll(bytes.NewReader(data), "f")
		for i, e := range events {
			if e.Seq != int64(i+1) || e.Order != events[0].Order || e.Type.known() && e.check() != nil {
				t.Fatalf("event %d is %+v", i, e)
			}
		}
		var d *DamageError
		if errors.As(err, &d) && d.Offset != end.off {
			t.Fatalf("damage at %d, intact up to %d", d.Offset, end.off)
		}
		again, _, err := readAll(bytes.NewReader(data[:end.off]), "f")
		if err != nil || !reflect.DeepEqual(again, events) {
			t.Fatalf("the intact part reads as %d events, %v", len(again), err)
		}
		for _, e := range events { // what was read can be written
			if _, err := encode(e); e.Type.known() && err != nil {
				t.Fatalf("%+v: %v", e, err)
			}
		}
	})
}
