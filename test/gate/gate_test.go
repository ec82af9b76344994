// Package gate shows that the output gate catches an attention kernel that is
// wrong. The kernel exists in this test's binary only, which stands in for the
// program: a run of the embedded server, through the production adapter, with
// right kernels and the wrong one as variants.
package gate

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"twopoint/kernels"
	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/cli"
	"twopoint/runner/deploy"
)

// With a command of the program as its first argument this binary is the program
// itself, the wrong kernel among its own.
func TestMain(m *testing.M) {
	deploy.MaybeSupervise()
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		os.Exit(m.Run())
	}
	kernels.Register(lastPageLost{})
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// lastPageLost is serial attention that does not read the last page of the cache,
// as a kernel with an error in its tail handling does.
type lastPageLost struct{}

func (lastPageLost) Name() string { return "last_page_lost" }

func (lastPageLost) Supports(s kernels.Shape, _ int) error { return s.Validate() }

func (lastPageLost) Attend(ctx context.Context, out kernels.Output, q kernels.Query, kv *kernels.PagedKV, o kernels.Options) (kernels.Traffic, error) {
	right, err := kernels.Lookup("serial_perhead")
	if err != nil {
		return kernels.Traffic{}, err
	}
	short := *kv
	if whole := (kv.Len - 1) / kv.PageSize * kv.PageSize; whole > 0 {
		short.Len = whole
	}
	return right.Attend(ctx, out, q, &short, o)
}

const spec = `
experiment: {
	servers: s: {engine: "twopoint", model_path: "tiny-gqa", context_length: 4096, args: {"page-size": 64, "max-total-tokens": 8192}}
	variants: {
		split:  args: kernel: "split_grouped"
		serial: args: kernel: "serial_perhead"
		four:   args: {kernel: "split_grouped", splits: 4}
		lost:   args: kernel: "last_page_lost"
	}
	baseline: "split"
	sweep: context: [100, 1000]
	method: two_point: {a: 1, b: 17, warmup: false, settle: "none", repeats: {min: 3, max: 3, target: 0.9}}
	gate: agreement: {prompts: 8, on_fail: "invalid"}
}
`

func TestWrongKernelIsCaught(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "spec.cue"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "run", ".")
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v\n%s%s", runErr, &stdout, &stderr)
		}
	})
	dirs, err := run.List(filepath.Join(dir, "runs"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%d runs: %v", len(dirs), err)
	}
	tables, err := table.Load(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(tables.Points) != 8 {
		t.Fatalf("%d points", len(tables.Points))
	}
	has := func(p table.PointRow, code string) bool { return strings.Contains(","+p.Doubts+",", ","+code+",") }
	for _, p := range tables.Points {
		show := func(x *float64) any {
			if x == nil {
				return nil
			}
			return *x
		}
		t.Logf("%-14s %-10s agreement %v, the baseline's %v  %s", p.PointKey, p.Status, show(p.GateAgreement), show(p.GateSelf), p.DoubtDetail)
		if p.GateSelf == nil || *p.GateSelf < 0.5 || has(p, "gate_unknown") || p.GateNeedle != nil {
			t.Errorf("%s: the baseline agrees with itself to %v; needle %v", p.PointKey, show(p.GateSelf), show(p.GateNeedle))
		}
		if (p.GateAgreement == nil) != (p.Variant == "split") {
			t.Errorf("%s: agreement %v", p.PointKey, show(p.GateAgreement))
		}
		if p.Variant == "lost" {
			if !has(p, "gate_disagrees") || p.Status == "ok" || p.SPerTok != nil {
				t.Errorf("%s is %s (%s) with doubts %s", p.PointKey, p.Status, p.Reason, p.Doubts)
			}
			if p.Status == "invalid" && p.Reason != "gate_disagrees" {
				t.Errorf("%s is invalid for %s", p.PointKey, p.Reason)
			}
		} else if has(p, "gate_disagrees") || p.Reason == "gate_disagrees" {
			t.Errorf("%s: a right kernel is called wrong: %s", p.PointKey, p.DoubtDetail)
		}
	}
	requests := map[string]int{}
	for _, s := range tables.Samples {
		if s.Role == "gate" {
			requests[s.PointKey]++
		}
	}
	for _, p := range tables.Points {
		want := 8
		if p.Variant == "split" {
			want = 16
		}
		if requests[p.PointKey] != want {
			t.Errorf("%s: %d requests of the gate, want %d", p.PointKey, requests[p.PointKey], want)
		}
	}
	if !strings.Contains(stdout.String(), "gate_disagrees") {
		t.Error("the summary does not say so")
	}
}
