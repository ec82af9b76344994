package stat

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"twopoint/results/event"
)

func f64(v float64) *float64 { return &v }

// at is a reading s seconds after some moment, of one GPU.
func at(s float64, g event.GPUReading) event.Telemetry {
	return event.Telemetry{At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(s * 1e9)), GPUs: []event.GPUReading{g}}
}

// working is a GPU under load, at a clock.
func working(mhz float64, reasons ...string) event.GPUReading {
	return event.GPUReading{SMClockMHz: f64(mhz), PowerW: f64(300), PowerLimitW: f64(700), Temperature: f64(60), ThrottleReasons: append([]string{}, reasons...)}
}

func TestMachine(t *testing.T) {
	counted := func(s float64) event.GPUReading {
		g := working(1980)
		g.ThrottledS = map[string]float64{"sw_power_cap": s, "hw_thermal_slowdown": 7}
		return g
	}
	host := func(s, others, interval float64) event.Telemetry {
		r := at(s, event.GPUReading{})
		r.GPUs, r.Host = nil, event.HostReading{CPUs: 8, OtherCPUs: &others, IntervalS: &interval}
		return r
	}
	heat := func(n int64) event.Telemetry {
		return event.Telemetry{Host: event.HostReading{ThrottleCount: &n}}
	}
	process := func(owner string) event.Telemetry {
		gpu, memory := 3, int64(8<<30)
		r := at(0, working(1980))
		r.Processes = []event.GPUProcess{{PID: 42, Name: "train", GPU: &gpu, MemoryBytes: &memory, Owner: owner}}
		return r
	}
	for _, c := range []struct {
		name   string
		spans  []Span
		doubts string // "code: part of the detail; …"
		check  func(m Machine) bool
		powerW float64
	}{
		{"nothing read", nil, "", func(m Machine) bool { return reflect.DeepEqual(m, Machine{}) }, 0},
		{"a GPU that tells nothing", []Span{{at(0, event.GPUReading{}), at(1, event.GPUReading{})}}, "", func(m Machine) bool { return reflect.DeepEqual(m, Machine{}) }, 0},
		{"steady", []Span{{at(0, working(1980)), at(1, working(1965))}}, "", func(m Machine) bool {
			return *m.SMClockMinMHz == 1965 && *m.SMClockMeanMHz == 1972.5 && *m.PowerMeanW == 300 && *m.PowerLimitMinW == 700 && *m.TemperatureMaxC == 60 &&
				m.ThrottleReasons != nil && len(m.ThrottleReasons) == 0
		}, 0},
		{"15 % down", []Span{{at(0, working(1965)), at(1, working(1860))}, {at(5, working(1700)), at(6, working(1580))}}, "clock_drift: from 1965 to 1580 MHz (-20 %)", nil, 0},
		{"up is no drift", []Span{{at(0, working(1200)), at(1, working(1980))}}, "", nil, 0},
		{"idle clocks are nobody's", []Span{{at(0, working(1980)), at(1, working(345, "gpu_idle"))}}, "", func(m Machine) bool {
			return *m.SMClockMinMHz == 1980 && len(m.ThrottleReasons) == 0
		}, 0},
		{"capped", []Span{{at(0, working(1980)), at(1, working(1900, "sw_power_cap", "sync_boost"))}}, "throttled: GPU 0 was held back: sw_power_cap in 1 readings", func(m Machine) bool {
			return reflect.DeepEqual(m.ThrottleReasons, []string{"sw_power_cap", "sync_boost"})
		}, 0},
		{"a setting is no throttling", []Span{{at(0, working(1410, "applications_clocks_setting")), at(1, working(1410, "applications_clocks_setting"))}}, "", func(m Machine) bool {
			return reflect.DeepEqual(m.ThrottleReasons, []string{"applications_clocks_setting"})
		}, 0},
		{"counted in between", []Span{{at(0, counted(100)), at(10, counted(102.5))}, {at(100, counted(150)), at(110, counted(150))}},
			"throttled: sw_power_cap for 2.5 of 20 s", func(m Machine) bool { return reflect.DeepEqual(m.ThrottleReasons, []string{"sw_power_cap"}) }, 0},
		{"counted, too short to matter", []Span{{at(0, counted(100)), at(10, counted(100.05))}}, "", func(m Machine) bool { return len(m.ThrottleReasons) == 0 }, 0},
		{"a driver loaded anew", []Span{{at(0, counted(100)), at(10, counted(0))}}, "", nil, 0},
		{"a hot CPU", []Span{{heat(5), heat(9)}, {heat(100), heat(100)}}, "throttled: slowed for heat 4 times", nil, 0},
		{"a stranger", []Span{{process(event.OwnerResident), process(event.OwnerForeign)}, {process(event.OwnerForeign)}}, "foreign_process: pid 42 (train) with 8.0 GiB on GPU 3", nil, 0},
		{"a resident", []Span{{process(event.OwnerResident), process(event.OwnerResident)}}, "", nil, 0},
		{"a stranger elsewhere", []Span{{func() event.Telemetry {
			r, elsewhere := process(event.OwnerForeign), 5
			r.Processes = append(r.Processes, event.GPUProcess{PID: 7, GPU: &elsewhere, Owner: event.OwnerOwn})
			return r
		}()}}, "", nil, 0},
		{"two GPUs", []Span{{{GPUs: []event.GPUReading{{Index: 0, ThrottleReasons: []string{"sw_power_cap"}}, {Index: 1, ThrottleReasons: []string{"hw_thermal_slowdown"}}}}}},
			"throttled: GPU 0 was held back: sw_power_cap in 1 readings; GPU 1 was held back: hw_thermal_slowdown in 1 readings", nil, 0},
		{"a busy host", []Span{{host(0, 8, 100), host(1, 0.1, 1), host(2, 1.3, 1)}}, "busy_host: used 0.7 of 8 CPUs", func(m Machine) bool { return *m.OtherCPUs > 0.69 && *m.OtherCPUs < 0.71 }, 0},
		{"a host at rest", []Span{{host(0, 0, 1), host(1, 0.39, 1)}}, "", func(m Machine) bool { return *m.OtherCPUs == 0.39 }, 0},
		{"a cap that was asked for", []Span{{at(0, working(1500, "sw_power_cap")), at(1, working(1500, "sw_power_cap"))}}, "", func(m Machine) bool {
			return reflect.DeepEqual(m.ThrottleReasons, []string{"sw_power_cap"})
		}, 700},
		{"a cap below the one asked for", []Span{{at(0, working(1500, "sw_power_cap")), at(1, working(1500))}}, "throttled: sw_power_cap in 1 readings", nil, 800},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMachine(c.spans, c.powerW)
			code, detail, _ := strings.Cut(c.doubts, ": ")
			switch {
			case c.doubts == "" && len(m.Doubts) == 0:
			case len(m.Doubts) == 1 && string(m.Doubts[0].Code) == code && strings.Contains(m.Doubts[0].Detail, detail):
			default:
				t.Errorf("doubts %v, want %q", m.Doubts, c.doubts)
			}
			if c.check != nil && !c.check(m) {
				t.Errorf("%+v", m)
			}
		})
	}
}

// The figures are those of the GPUs that the server is on.
func TestMachineOfTheServersGPUs(t *testing.T) {
	one := 1
	busy, calm := working(1500, "hw_slowdown"), working(1900)
	calm.Index = 1
	r := event.Telemetry{GPUs: []event.GPUReading{busy, calm}}
	if m := NewMachine([]Span{{r, r}}, 0); *m.SMClockMinMHz != 1500 || len(m.Doubts) != 1 {
		t.Errorf("all GPUs: %+v", m)
	}
	r.Processes = []event.GPUProcess{{PID: 7, GPU: &one, Owner: event.OwnerOwn}}
	if m := NewMachine([]Span{{r, r}}, 0); *m.SMClockMinMHz != 1900 || *m.SMClockMeanMHz != 1900 || len(m.Doubts) != 0 {
		t.Errorf("the server's: %+v", m)
	}
}
