package runner

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/results/stat"
	"twopoint/runner/engine"
	"twopoint/runner/telemetry"
	"twopoint/schema"
	"twopoint/schema/plan"
)

func TestVisibleGPUs(t *testing.T) {
	gpus := []event.GPUReading{{Index: 0, UUID: "GPU-aa11"}, {Index: 1, UUID: "GPU-ab22"}, {Index: 2, UUID: "GPU-ac33"}, {Index: 3}}
	every := []int{0, 1, 2, 3}
	for _, c := range []struct {
		value string
		want  []int
	}{
		{"unset", every},
		{"1", []int{1}},
		{"2, 0", []int{0, 2}},
		{"", nil},
		{"-1", nil},
		{"1,7,0", []int{1}}, // CUDA stops at the first that is not there
		{"GPU-ab", []int{1}},
		{"GPU-ac33,3", []int{2, 3}},
		{"MIG-1234", every}, // a part of some GPU
		{"GPU-zz", every},
		{"NoDevFiles", every},
	} {
		t.Run(c.value, func(t *testing.T) {
			l := &life{variant: plan.Variant{Variant: schema.Variant{}}}
			t.Setenv("CUDA_VISIBLE_DEVICES", "3")
			os.Unsetenv("CUDA_VISIBLE_DEVICES")
			if c.value != "unset" {
				l.variant.Env = map[string]schema.EnvValue{"CUDA_VISIBLE_DEVICES": {Value: c.value}}
			}
			if got := slices.Sorted(maps.Keys(l.visibleGPUs(gpus))); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			t.Setenv("CUDA_VISIBLE_DEVICES", "2")
			if c.value == "unset" {
				if got := slices.Sorted(maps.Keys(l.visibleGPUs(gpus))); !slices.Equal(got, []int{2}) {
					t.Errorf("of our own environment: %v", got)
				}
			}
		})
	}
}

// busy is an engine that counts the requests under way; the first long one takes
// its time.
type busy struct {
	instant
	running *atomic.Int32
	rested  *bool
}

func (e busy) Generate(ctx context.Context, c *engine.Client, r engine.Request) event.Sample {
	e.running.Add(1)
	defer e.running.Add(-1)
	if r.MaxTokens == 33 && !*e.rested {
		*e.rested = true
		time.Sleep(2*duringEvery + duringEvery/2)
	}
	return e.instant.Generate(ctx, c, r)
}

// witness is a sensor that counts its readings and those beside a request.
type witness struct {
	running        *atomic.Int32
	total, besides atomic.Int32
}

func (w *witness) Read(context.Context) ([]event.GPUReading, []event.GPUProcess, error) {
	w.total.Add(1)
	if w.running.Load() > 0 {
		w.besides.Add(1)
	}
	return []event.GPUReading{}, []event.GPUProcess{}, nil
}

// The machine is read before and after pairs, and beside a request only where
// that enters no estimate.
func TestReadingsKeepAwayFromTimedRequests(t *testing.T) {
	dir, requests, running, rested := t.TempDir(), 0, new(atomic.Int32), false
	a := agentFor(t, dir, fmt.Sprintf(instantSpec, "33"), instant{requests: &requests})
	a.Engine = func(string) (engine.Engine, bool) {
		return busy{instant{requests: &requests}, running, &rested}, true
	}
	w := &witness{running: running}
	a.Monitor = telemetry.NewMonitor(w)
	if reason, err := a.Run(t.Context(), "start"); err != nil || reason != event.EndDone {
		t.Fatal(reason, err)
	}
	list, err := event.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	moments, after := map[string]int32{}, map[string]bool{}
	for _, e := range list {
		if r := e.Telemetry; r != nil {
			moments[r.Moment]++
			if r.Moment == event.MomentDuring && r.Role != event.RoleWarmup {
				t.Errorf("a reading during a pair of role %s", r.Role)
			}
			if r.Moment == event.MomentAfter && r.Role == event.RoleMeasure {
				after[r.PointID] = true
			}
		}
	}
	if d := moments[event.MomentDuring]; d < 1 || w.besides.Load() != d || moments[event.MomentLaunch] != 1 || len(after) != 3 {
		t.Errorf("readings %v, %d of %d beside a request, after pairs of %d points", moments, w.besides.Load(), w.total.Load(), len(after))
	}
	for _, p := range a.History.Points() {
		if len(p.Machine().Doubts) > 0 {
			t.Errorf("%s: %v", p.Key, p.Machine().Doubts)
		}
	}
}

// A stranger who is there in the middle of one pair and gone after it concerns
// that point alone.
func TestStrangerInTheMiddle(t *testing.T) {
	for _, policy := range []string{"warn", "stop"} {
		t.Run(policy, func(t *testing.T) {
			dir, requests := t.TempDir(), 0
			spec := fmt.Sprintf(instantSpec, "33")
			a := agentFor(t, dir, spec, instant{requests: &requests})
			a.Order.Plan.Host.Foreign = policy
			a.History.Plan.Host.Foreign = policy
			v := &visitor{a: a}
			a.Monitor = telemetry.NewMonitor(v)
			a.After = v.event
			if reason, err := a.Run(t.Context(), "start"); err != nil || reason != event.EndDone {
				t.Fatal(reason, err)
			}
			for _, p := range a.History.Points() {
				var doubtful, invalid int
				for _, pr := range p.Pairs() {
					if !pr.Valid() {
						invalid++
					}
					for _, d := range pr.Doubts {
						if d.Code == stat.ForeignProcess {
							doubtful++
						}
					}
				}
				want := map[string]int{}
				if p.Context == 128 {
					want[policy] = 1
				}
				if doubtful != want["warn"] || invalid != want["stop"] {
					t.Errorf("%s: %d pairs doubtful, %d invalid", p.Key, doubtful, invalid)
				}
				if found := len(p.Machine().Doubts) == 1; found != (p.Context == 128) {
					t.Errorf("%s: %v", p.Key, p.Machine().Doubts)
				}
				if status, reason, _ := p.Outcome(); status != stat.OK {
					t.Errorf("%s is %s (%s)", p.Key, status, reason)
				}
			}
		})
	}
}

// visitor is a sensor whose GPU a stranger uses in the first measured pair at
// context 128, until it has been seen there.
type visitor struct {
	a    *Agent
	here bool
	gone bool
}

func (v *visitor) event(e event.Event) error {
	if r := e.Repeat; r != nil && r.Role == event.RoleMeasure {
		v.here = v.a.History.Point(r.PointID).Context == 128
		for !v.a.Monitor.Due() { // a pair of its length would have outlasted that
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func (v *visitor) Read(context.Context) ([]event.GPUReading, []event.GPUProcess, error) {
	list := []event.GPUProcess{}
	if v.here && !v.gone {
		v.gone = true
		list = append(list, event.GPUProcess{PID: 42, Name: "train"})
	}
	return []event.GPUReading{}, list, nil
}
