package history_test

import (
	"testing"

	"twopoint/results/event"
	"twopoint/results/history/historytest"
	"twopoint/results/stat"
)

// stranger is a process of somebody else, come since the server was started.
var stranger = event.Telemetry{GPUs: []event.GPUReading{}, Processes: []event.GPUProcess{{PID: 42, Name: "train", Owner: event.OwnerForeign}}}

// A pair is judged by the readings before and after it, whichever pair they were
// made for: readings are left out where they would cost too much.
func TestReadingsAroundPairs(t *testing.T) {
	for _, policy := range []string{"warn", "stop"} {
		t.Run(policy, func(t *testing.T) {
			exp := historytest.Experiment([]int{256, 512}, historytest.Variant("fast"))
			exp.Host.Foreign = policy
			r := historytest.New(exp)
			r.Begin("start")
			d := r.Launch("fast")
			quiet := event.Telemetry{GPUs: []event.GPUReading{}, Processes: []event.GPUProcess{}}
			r.Reading(d, "", event.MomentLaunch, quiet)
			r.Reading(d, "fast/256/1", event.MomentBefore, quiet)
			for _, key := range []string{"fast/256/1", "fast/512/1"} {
				r.Pair(d, key, event.RoleMeasure)
			}
			r.Reading(d, "fast/512/1", event.MomentAfter, quiet)
			r.Pair(d, "fast/256/1", event.RoleMeasure) // 2: nobody was there before it
			r.Reading(d, "fast/256/1", event.MomentAfter, stranger)
			r.Pair(d, "fast/256/1", event.RoleMeasure) // 3: somebody was
			r.Reading(d, "fast/256/1", event.MomentAfter, quiet)
			r.Pair(d, "fast/256/1", event.RoleMeasure)
			r.Pair(d, "fast/512/1", event.RoleMeasure)
			r.Reading(d, "fast/512/1", event.MomentAfter, quiet)
			r.Pair(d, "fast/512/1", event.RoleMeasure) // not known yet
			if n := len(r.History.Readings); n != 6 {
				t.Errorf("%d readings", n)
			}
			for key, disturbed := range map[string]map[int]bool{"fast/256/1": {2: true, 3: true}, "fast/512/1": {}} {
				p := r.Point(key)
				for _, pr := range p.Pairs() {
					invalid, doubtful := !pr.Valid(), len(pr.Doubts) > 0
					if want := disturbed[pr.Repeat]; invalid != (want && policy == "stop") || doubtful != (want && policy == "warn") {
						t.Errorf("%s pair %d: reasons %v, doubts %v", key, pr.Repeat, pr.Reasons, pr.Doubts)
					}
				}
				doubts := p.Machine().Doubts
				if found := len(doubts) == 1 && doubts[0].Code == stat.ForeignProcess; found != (len(disturbed) > 0) || !found && len(doubts) > 0 {
					t.Errorf("%s: doubts %v", key, doubts)
				}
			}
			r.Done("fast/256/1", "invalid")
			if status, reason, _ := r.Point("fast/256/1").Outcome(); policy == "stop" && (status != stat.Invalid || reason != string(stat.ForeignProcess)) {
				t.Errorf("%s (%s)", status, reason)
			}
			r.Reading(d, "", event.MomentBefore, stranger)
			if prs := r.Point("fast/512/1").Pairs(); prs[len(prs)-1].Valid() != (policy == "warn") {
				t.Error("a reading that comes late does not reach the pair before it")
			}
		})
	}
}

// What is read before the launch of another life, perhaps on another day, says
// nothing about the pairs before.
func TestReadingsOfAnotherLife(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("fast")))
	clock := func(mhz float64) event.Telemetry {
		return event.Telemetry{GPUs: []event.GPUReading{{SMClockMHz: &mhz, ThrottleReasons: []string{}}}}
	}
	r.Begin("start")
	d := r.Launch("fast")
	r.Reading(d, "fast/256/1", event.MomentBefore, clock(1980))
	r.Pair(d, "fast/256/1", event.RoleMeasure)
	r.Begin("resume")
	r.Reading("o1-d2", "", event.MomentLaunch, clock(300))
	if m := r.Point("fast/256/1").Machine(); len(m.Doubts) > 0 || m.SMClockMinMHz == nil || *m.SMClockMinMHz != 1980 {
		t.Errorf("%+v", m)
	}
}

// Readings of one order say nothing about the pairs of another.
func TestReadingsOfAnotherOrder(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("fast")))
	r.Begin("start")
	d := r.Launch("fast")
	r.Pair(d, "fast/256/1", event.RoleMeasure)
	r.Order = "o2"
	r.Reading("o2-d1", "", event.MomentAfter, stranger)
	if p := r.Point("fast/256/1"); len(p.Machine().Doubts) > 0 || len(p.Pairs()[0].Doubts) > 0 {
		t.Errorf("doubts %v, %v", p.Machine().Doubts, p.Pairs()[0].Doubts)
	}
}
