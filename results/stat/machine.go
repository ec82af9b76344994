package stat

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"twopoint/results/event"
)

// Doubts about a point that come from the machine's sensors.
const (
	// Throttled: a GPU's clocks were held back by power or heat, or a CPU core was
	// slowed for heat, while the point was measured.
	Throttled Code = "throttled"
	// ClockDrift: a GPU's clock fell while the point was measured.
	ClockDrift Code = "clock_drift"
	// BusyHost: other processes used the machine's CPUs.
	BusyHost Code = "busy_host"
)

// ForeignProcess: another process computed on a GPU. A reason against a pair
// where the spec says that others stop a measurement, else a doubt.
const ForeignProcess Code = "foreign_process"

// clockFall is the share by which a clock has to fall below the point's first
// reading to be called drift: boost clocks move by one or two of their steps of
// 15 MHz all the time, and 1 % of clock is 1 % of the answer at most.
const clockFall = 0.05

// throttledShare is the share of the time around a pair for which a limit has to
// hold a GPU's clocks, by the driver's own count, before it is mentioned.
const throttledShare = 0.01

// busyCPUs is the CPU time of others, in CPUs, above which the host is busy: a
// fifth of one CPU, or a twentieth of many.
func busyCPUs(cpus int) float64 { return max(0.2, 0.05*float64(cpus)) }

// limits are the throttle reasons that a load meets; the others are settings,
// or say that nothing runs.
var limits = []string{"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}

// Span is the readings from the last one before a pair to the first one after
// it, in order. Pairs that follow each other quickly share one.
type Span []event.Telemetry

// Foreign names the processes on GPUs that came while the span was measured. Of
// the GPUs only those count that the server is on, where that is known.
func (s Span) Foreign() []string {
	ours := serversGPUs([]Span{s})
	var list []string
	for _, t := range s {
		for _, p := range t.Processes {
			if p.Owner != event.OwnerForeign || ours != nil && p.GPU != nil && !ours[*p.GPU] {
				continue
			}
			if text := Describe(p); !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

// Describe names a process on a GPU for people.
func Describe(p event.GPUProcess) string {
	text := fmt.Sprintf("pid %d", p.PID)
	if p.Name != "" {
		text += fmt.Sprintf(" (%s)", p.Name)
	}
	if p.MemoryBytes != nil {
		text += fmt.Sprintf(" with %.1f GiB", float64(*p.MemoryBytes)/(1<<30))
	}
	if p.GPU != nil {
		text += fmt.Sprintf(" on GPU %d", *p.GPU)
	}
	return text
}

// Machine is what the readings around a point's pairs say. Figures of GPUs are
// over those that the server's processes are on, where that is known, else over
// all; clocks leave out readings of an idle GPU. What no sensor told is nil.
type Machine struct {
	SMClockMinMHz   *float64
	SMClockMeanMHz  *float64
	PowerMeanW      *float64 // of one GPU
	PowerLimitMinW  *float64 // the cap in force
	TemperatureMaxC *float64
	ThrottleReasons []string // all that were seen or counted, but gpu_idle; empty: none; nil: not reported
	OtherCPUs       *float64 // CPUs in use by processes outside the run, on average
	Doubts          []Finding
}

// NewMachine sums up the spans of a point's pairs. powerW is the power cap that
// was asked for, 0 for none: that it binds where it is in force is no doubt.
func NewMachine(spans []Span, powerW float64) Machine {
	var m Machine
	ours := serversGPUs(spans)
	gpus := map[int]*track{}
	var mhz, watts, caps, degrees []float64
	told := true // by every GPU in every reading
	for _, s := range spans {
		for i, t := range s {
			for _, g := range t.GPUs {
				if ours != nil && !ours[g.Index] {
					continue
				}
				if gpus[g.Index] == nil {
					gpus[g.Index] = &track{held: map[string]float64{}, seen: map[string]int{}}
				}
				if before := gpu(s, i-1, g.Index); before != nil {
					gpus[g.Index].count(*before, g, t.At.Sub(s[i-1].At).Seconds())
				}
				gpus[g.Index].read(g)
				if !slices.Contains(g.ThrottleReasons, idleGPU) {
					mhz = with(mhz, g.SMClockMHz)
				}
				watts, caps, degrees = with(watts, g.PowerW), with(caps, g.PowerLimitW), with(degrees, g.Temperature)
				told = told && g.ThrottleReasons != nil
			}
		}
	}
	m.SMClockMinMHz, m.SMClockMeanMHz = least(mhz), average(mhz)
	m.PowerMeanW, m.PowerLimitMinW = average(watts), least(caps)
	if len(degrees) > 0 {
		m.TemperatureMaxC = finite(slices.Max(degrees))
	}
	capAsked := powerW > 0 && m.PowerLimitMinW != nil && SameCap(powerW, *m.PowerLimitMinW)
	for _, index := range slices.Sorted(maps.Keys(gpus)) {
		all, limits := gpus[index].reasons(capAsked)
		m.ThrottleReasons = append(m.ThrottleReasons, all...)
		if len(limits) > 0 {
			m.doubt(Throttled, "GPU %d was held back: %s", index, strings.Join(limits, ", "))
		}
	}
	switch {
	case len(m.ThrottleReasons) > 0:
		slices.Sort(m.ThrottleReasons)
		m.ThrottleReasons = slices.Compact(m.ThrottleReasons)
	case told && len(gpus) > 0:
		m.ThrottleReasons = []string{}
	}
	for _, index := range slices.Sorted(maps.Keys(gpus)) {
		if k := gpus[index]; k.least < (1-clockFall)*k.first {
			m.doubt(ClockDrift, "the SM clock of GPU %d fell from %.0f to %.0f MHz (%.0f %%)", index, k.first, k.least, 100*(k.least/k.first-1))
		}
	}
	var foreign []string
	for _, s := range spans {
		foreign = append(foreign, s.Foreign()...)
	}
	slices.Sort(foreign)
	if foreign = slices.Compact(foreign); len(foreign) > 0 {
		m.doubt(ForeignProcess, "another process computed on a GPU: %s", strings.Join(foreign, "; "))
	}
	m.host(spans)
	return m
}

func (m *Machine) doubt(c Code, format string, args ...any) {
	m.Doubts = add(m.Doubts, Finding{c, fmt.Sprintf(format, args...)})
}

// host sums up what the spans say of the machine's CPUs.
func (m *Machine) host(spans []Span) {
	var otherS, intervalS float64
	var throttles int64
	cpus := 0
	for _, s := range spans {
		for i := 1; i < len(s); i++ {
			before, h := s[i-1].Host, s[i].Host
			if h.OtherCPUs != nil && h.IntervalS != nil {
				otherS += *h.OtherCPUs * *h.IntervalS
				intervalS += *h.IntervalS
				cpus = h.CPUs
			}
			if h.ThrottleCount != nil && before.ThrottleCount != nil {
				throttles += max(*h.ThrottleCount-*before.ThrottleCount, 0)
			}
		}
	}
	if throttles > 0 {
		m.doubt(Throttled, "CPU cores were slowed for heat %d times", throttles)
	}
	if intervalS > 0 {
		m.OtherCPUs = finite(otherS / intervalS)
	}
	if m.OtherCPUs != nil && *m.OtherCPUs > busyCPUs(cpus) {
		m.doubt(BusyHost, "other processes used %.2g of %d CPUs", *m.OtherCPUs, cpus)
	}
}

// idleGPU is the throttle reason of a GPU that has nothing to do.
const idleGPU = "gpu_idle"

// track is what the readings around a point's pairs say of one GPU.
type track struct {
	first, least float64            // SM clock under load, MHz; 0: none was read
	seen         map[string]int     // throttle reasons: in how many readings
	held         map[string]float64 // the same by the driver's count, seconds
	spanS        float64            // that the count is over
}

func (k *track) read(g event.GPUReading) {
	for _, r := range g.ThrottleReasons {
		k.seen[r]++
	}
	if c := g.SMClockMHz; c != nil && !slices.Contains(g.ThrottleReasons, idleGPU) {
		if k.first == 0 {
			k.first, k.least = *c, *c
		}
		k.least = min(k.least, *c)
	}
}

func (k *track) count(before, now event.GPUReading, s float64) {
	k.spanS += s
	for r, total := range now.ThrottledS {
		if was, ok := before.ThrottledS[r]; ok && total > was {
			k.held[r] += total - was
		}
	}
}

// reasons are all throttle reasons that were seen, or counted for long enough, and
// in words those of them that are limits, less a power cap that was asked for.
func (k *track) reasons(capAsked bool) (all, limiting []string) {
	for _, r := range slices.Sorted(maps.Keys(union(k.seen, k.held))) {
		counted := k.held[r] > throttledShare*k.spanS
		if r == idleGPU || k.seen[r] == 0 && !counted {
			continue
		}
		all = append(all, r)
		switch {
		case !slices.Contains(limits, r), r == "sw_power_cap" && capAsked:
		case counted:
			limiting = append(limiting, fmt.Sprintf("%s for %.3g of %.3g s", r, k.held[r], k.spanS))
		default:
			limiting = append(limiting, fmt.Sprintf("%s in %d readings", r, k.seen[r]))
		}
	}
	return all, limiting
}

// SameCap tells whether a power cap in force is the one asked for; drivers round.
func SameCap(askedW, inForceW float64) bool { return math.Abs(askedW-inForceW) <= 0.5 }

// serversGPUs are the GPUs that processes of the run were seen on; nil: none.
func serversGPUs(spans []Span) map[int]bool {
	var ours map[int]bool
	for _, s := range spans {
		for _, t := range s {
			for _, p := range t.Processes {
				if p.Owner == event.OwnerOwn && p.GPU != nil {
					if ours == nil {
						ours = map[int]bool{}
					}
					ours[*p.GPU] = true
				}
			}
		}
	}
	return ours
}

// gpu is a device in one reading of a span, nil where it is not there.
func gpu(s Span, at, index int) *event.GPUReading {
	if at < 0 {
		return nil
	}
	for i := range s[at].GPUs {
		if g := &s[at].GPUs[i]; g.Index == index {
			return g
		}
	}
	return nil
}

func with(list []float64, x *float64) []float64 {
	if x != nil && finite(*x) != nil {
		list = append(list, *x)
	}
	return list
}

func least(list []float64) *float64 {
	if len(list) == 0 {
		return nil
	}
	return finite(slices.Min(list))
}

func average(list []float64) *float64 {
	var sum float64
	for _, x := range list {
		sum += x
	}
	if len(list) == 0 {
		return nil
	}
	return finite(sum / float64(len(list)))
}

func union[K comparable, A, B any](a map[K]A, b map[K]B) map[K]bool {
	all := make(map[K]bool, len(a)+len(b))
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}
