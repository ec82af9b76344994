package historytest

import (
	"twopoint/results/event"
	"twopoint/schema"
)

// Eventful is a run with every kind of outcome: two orders, a runner that was
// killed in the middle of a pair, a server that died, a retry, a server that
// could not be launched, and one that is only measured. By point:
//
//	fast/256/1    ok, and measured once more at the end of the life
//	fast/512/1    invalid: the cache answered
//	fast/1024/1   ok over a torn pair and two lives
//	fast/2048/1   failed with a pair, then tried again: ok
//	fast/4096/1   skipped
//	fast/8192/1   failed: gpu-oom after one pair
//	other/256/1   unresolved: two pairs
//	other/512/1   invalid: no counts of tokens
//	other/1024/1  ok with buffered streams
//	other/2048/1  ok with one cached pair of six
//	other/4096/1  pending with one pair
//	other/8192/1  pending
//	remote/…      ok at 256 to 2048 on a server that reports no cached counts; failed before any pair at 4096; pending at 8192
func Eventful() *Run {
	remote := schema.Variant{Name: "remote", Server: "remote", Engine: "openai", URL: "http://10.0.0.7:8000", Flush: "never"}
	exp := Experiment([]int{256, 512, 1024, 2048, 4096, 8192}, Variant("fast"), Variant("other"), remote)
	exp.Baseline = "other"
	exp.Model = &schema.Model{Name: "tiny", Heads: 8, Layers: schema.Layers{Full: 2}, KV: schema.KV{GQA: &schema.GQA{Heads: 2, HeadDim: 32}}, DType: "f32"}
	r := New(exp)
	cached := func(s *event.Sample) bool { s.CachedTokens = ptr(int64(s.ContextRequested - 8)); return true }
	uncounted := func(s *event.Sample) bool { s.CompletionTokens = nil; return true }
	buffered := func(s *event.Sample) bool { s.Buffered = true; return true }
	silent := func(s *event.Sample) bool { s.CachedTokens, s.Flush = nil, nil; return true }
	killed := func(s *event.Sample) bool { return !s.Second }
	oom := func(s *event.Sample) bool {
		s.Error, s.Transport, s.Detail, s.TotalS, s.TTFTS, s.CompletionTokens, s.ChunkS, s.ChunkTokens = "gpu-oom", "reset", "connection reset", 0, nil, nil, nil, nil
		return true
	}

	r.Begin("start")
	d1 := r.Launch("fast")
	r.Measure(d1, "fast/256/1", 3)
	r.Measure(d1, "fast/512/1", 3, cached)
	r.Sized("fast/1024/1")
	r.Pair(d1, "fast/1024/1", event.RoleMeasure)
	r.Pair(d1, "fast/1024/1", event.RoleMeasure, killed)

	r.Begin("resume")
	d2 := r.Launch("fast")
	r.Pair(d2, "fast/1024/1", event.RoleMeasure)
	r.Pair(d2, "fast/1024/1", event.RoleMeasure)
	r.Done("fast/1024/1", "target")
	r.Sized("fast/2048/1")
	r.Pair(d2, "fast/2048/1", event.RoleMeasure, oom)
	r.Fail(d2, "fast/2048/1", "gpu-oom")
	r.Skip("fast/4096/1", "fast/2048/1")
	r.Crash(d2, "SIGKILL")
	d3 := r.Launch("other")
	r.Sized("other/256/1")
	r.Pair(d3, "other/256/1", event.RolePilot)
	r.Pair(d3, "other/256/1", event.RoleMeasure)
	r.Pair(d3, "other/256/1", event.RoleMeasure)
	r.Done("other/256/1", "budget")
	clock := func(mhz float64, reasons ...string) event.Telemetry {
		return event.Telemetry{GPUs: []event.GPUReading{{Index: 3, UUID: "GPU-d3", SMClockMHz: &mhz, PowerW: ptr(412.5), PowerLimitW: ptr(600.0), Temperature: ptr(71.0),
			MemoryUsed: ptr(int64(1 << 33)), ThrottleReasons: append([]string{}, reasons...), ThrottledS: map[string]float64{"sw_power_cap": 1.5}}}, Processes: []event.GPUProcess{}}
	}
	r.Reading(d3, "other/512/1", event.MomentBefore, clock(1980))
	r.Measure(d3, "other/512/1", 3, uncounted)
	later := clock(1500, "sw_power_cap")
	later.Processes = append(later.Processes, event.GPUProcess{PID: 4242, GPU: ptr(3), Name: "python3", MemoryBytes: ptr(int64(1 << 33)), Owner: event.OwnerForeign})
	r.Reading(d3, "other/512/1", event.MomentAfter, later)
	r.Measure(d3, "other/1024/1", 3, buffered)
	r.Sized("other/2048/1")
	r.Pair(d3, "other/2048/1", event.RoleMeasure, cached)
	r.Measure(d3, "other/2048/1", 5)
	r.Sized("other/4096/1")
	r.Pair(d3, "other/4096/1", event.RoleMeasure)
	r.Pair(d3, "other/256/1", event.RoleDrift)
	r.Add(event.Event{Type: event.TypeNote, Note: &event.Note{Code: "b-too-small", PointID: r.Point("other/256/1").ID, Text: "b does not resolve the answer"}})
	r.Stop(d3)
	r.End("time-limit")

	r.Begin("resume")
	r.Retry("fast/2048/1")
	r.Retry("fast/2048/1")
	d4 := r.Launch("fast")
	r.Measure(d4, "fast/2048/1", 3)
	r.Sized("fast/8192/1")
	r.Pair(d4, "fast/8192/1", event.RoleMeasure)
	r.Pair(d4, "fast/8192/1", event.RoleMeasure, oom)
	r.Fail(d4, "fast/8192/1", "gpu-oom")
	r.Crash(d4, "SIGKILL")
	d5 := r.Launch("fast")
	r.Pair(d5, "fast/256/1", event.RoleMeasure)
	r.Pair(d5, "fast/256/1", event.RoleDrift)
	r.Fail(d5, "fast/256/1", "crash") // after the point was done
	r.Stop(d5)
	r.Add(event.Event{Type: event.TypeFailure, Failure: &event.Failure{DeploymentID: "o1-d6", Variant: "other", Kind: "left-over", Stage: "launch", Scope: "host", Message: "pid 12 of an earlier life is left"}})
	r.step(event.Deployment{DeploymentID: "o1-d6", Variant: "other", VariantID: r.History.Variant("other").ID, State: "end", Expected: true, LifeS: ptr(0.1)})
	r.End("done")

	r.Order = "o2"
	r.Begin("start")
	d7 := r.Launch("remote")
	for _, key := range []string{"remote/256/1", "remote/512/1", "remote/1024/1", "remote/2048/1"} {
		r.Measure(d7, key, 4, silent)
	}
	r.Add(event.Event{Type: event.TypeFailure, Failure: &event.Failure{DeploymentID: d7, PointID: r.Point("remote/4096/1").ID, Variant: "remote", Kind: "context-too-long", Stage: "prefill", Scope: "request", HTTPStatus: 400, Message: "too long"}})
	r.step(event.Deployment{DeploymentID: d7, Variant: "remote", VariantID: r.History.Variant("remote").ID, State: "end", Expected: true, LifeS: ptr(9.0)})
	r.End("interrupted")

	r.Order = "notes"
	r.Add(event.Event{Type: event.TypeNote, Note: &event.Note{Code: "tag", Text: "paper"}})
	r.Add(event.Event{Type: event.TypeNote, Note: &event.Note{Code: "note", Text: "fans were loud"}})
	return r
}
