package telemetry

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/test/fakesmi"
)

// installed makes a fake nvidia-smi and puts it in PATH.
func installed(t *testing.T, gpus int) *fakesmi.SMI {
	t.Helper()
	s := fakesmi.New(t, gpus)
	t.Setenv("PATH", s.Dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return s
}

func TestNvidiaSMI(t *testing.T) {
	s := installed(t, 2)
	s.GPUs(fakesmi.GPU{"clocks_event_reasons.active": "0x0000000000000024", "clocks_event_reasons_counters.sw_power_cap": "1500000"},
		fakesmi.GPU{"power.draw": "[N/A]", "temperature.gpu": "[Not Supported]", "clocks_event_reasons.active": "[N/A]", "utilization.gpu": "[Unknown Error]"})
	s.Processes(fakesmi.Process{PID: 11, GPU: 1, MemoryMiB: 8192, Name: "/usr/bin/python3, or so"})
	gpus, processes, err := new(NvidiaSMI).Read(t.Context())
	if err != nil || len(gpus) != 2 || len(processes) != 1 {
		t.Fatalf("%v, %v, %v", gpus, processes, err)
	}
	g := gpus[0]
	if *g.SMClockMHz != 1980 || *g.MemClockMHz != 3201 || *g.PowerW != 310.5 || *g.PowerLimitW != 700 || *g.Temperature != 55 ||
		*g.MemoryUsed != 1<<30 || *g.Utilisation != 0.87 || g.UUID != fakesmi.UUID(0) || g.ThrottledS["sw_power_cap"] != 1.5 ||
		!reflect.DeepEqual(g.ThrottleReasons, []string{"sw_power_cap", "sw_thermal_slowdown"}) {
		t.Errorf("first GPU: %+v", g)
	}
	if g := gpus[1]; g.Index != 1 || g.PowerW != nil || g.Temperature != nil || g.ThrottleReasons != nil || g.Utilisation != nil || g.SMClockMHz == nil {
		t.Errorf("what a device does not tell is nil: %+v", g)
	}
	if p := processes[0]; p.PID != 11 || *p.GPU != 1 || *p.MemoryBytes != 8<<30 || p.Name != "/usr/bin/python3, or so" {
		t.Errorf("process: %+v", p)
	}
}

// An older driver refuses a query for a field that it does not know.
func TestNvidiaSMIOlderDrivers(t *testing.T) {
	s := installed(t, 0)
	s.GPUs(fakesmi.GPU{"clocks_event_reasons.active": "", "clocks_throttle_reasons.active": "0x8",
		"clocks_event_reasons_counters.sw_power_cap": "", "clocks_event_reasons_counters.hw_power_brake_slowdown": "", "utilization.gpu": ""})
	n := new(NvidiaSMI)
	for range 2 {
		gpus, _, err := n.Read(t.Context())
		if err != nil || len(gpus) != 1 {
			t.Fatalf("%v, %v", gpus, err)
		}
		if g := gpus[0]; g.Utilisation != nil || !reflect.DeepEqual(g.ThrottleReasons, []string{"hw_slowdown"}) || len(g.ThrottledS) != 2 || *g.SMClockMHz != 1980 {
			t.Errorf("%+v", g)
		}
	}
	queries := 0
	for _, c := range s.Calls() {
		if strings.HasPrefix(c, "--query-gpu") {
			queries++
		}
	}
	if queries != 6 { // four refusals, of which nothing is asked again
		t.Errorf("%d queries:\n%s", queries, strings.Join(s.Calls(), "\n"))
	}
}

func TestNvidiaSMITroubles(t *testing.T) {
	for _, c := range []struct {
		name, do string
		gpus     int // -1: nil
		err      string
	}{
		{"no GPU", "echo No devices were found; exit 6", 0, ""},
		{"no driver", `echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9`, -1, "communicate"},
		{"rubbish", `printf '\377\000 rubbish\n'; exit 0`, -1, "no reading"},
		{"half a line", `echo "0, GPU-1, 1980"; exit 0`, -1, "no reading"},
		{"nothing", "exit 0", 0, ""},
		{"an endless line", "exec cat /dev/zero", -1, "bytes of output"},
		{"a flood", "exec yes 0,1,2,3,4,5,6,7,8,9", -1, "bytes of output"},
		{"a hang", `sleep 60 & echo $! > "$here/child"; wait`, -1, "deadline"},
		{"a hang that ignores signals", `trap '' TERM INT; sleep 60 & echo $! > "$here/child"; wait`, -1, "deadline"},
		{"a signal", "kill -9 $$", -1, "killed"},
		{"every field refused", `echo 'Field "index" is not a valid field to query.'; exit 2`, -1, "not a valid field"},
		{"an unknown field refused", `echo 'Field "nonsense" is not a valid field to query.'; exit 2`, -1, "not a valid field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := installed(t, 1)
			s.Do(c.do)
			limit := time.Minute
			if c.err == "deadline" {
				limit = 500 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			gpus, _, err := new(NvidiaSMI).Read(ctx)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if (gpus == nil) != (c.gpus < 0) || len(gpus) != max(c.gpus, 0) {
				t.Errorf("GPUs %v", gpus)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			if b, err := os.ReadFile(filepath.Join(s.Dir, "child")); err == nil {
				pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
				for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil && state(pid) != "Z"; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("what the program started goes on")
					}
				}
			}
		})
	}
}

// state is a process's state letter.
func state(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:min(len(rest), 1)]
}

// Without the program there is no sensor, which is no error.
func TestNvidiaSMIAbsent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if gpus, processes, err := new(NvidiaSMI).Read(t.Context()); gpus != nil || processes != nil || err != nil {
		t.Errorf("%v, %v, %v", gpus, processes, err)
	}
}

func FuzzParseReadings(f *testing.F) {
	f.Add([]byte("0, GPU-1, 1980, 3201, 310.5, 700, 55, 1024, 87, 0x24, 0, 0, 0, 0\n"), []byte("11, GPU-1, 8192, python\n"))
	f.Add([]byte("0, GPU-1, NaN, Inf, -1, 1e400, , 1e30, 870, 0xffffffffffffffff, -0, 0x, 1e, nan\n"), []byte("1, , -1, \n-1,a,b,c\n"))
	f.Fuzz(func(t *testing.T, readings, apps []byte) {
		gpus, err := parseReadings(readings, gpuFields())
		if (gpus == nil) != (err != nil) {
			t.Errorf("%v, %v", gpus, err)
		}
		seen := map[int]bool{}
		for _, g := range gpus {
			for _, v := range []*float64{g.SMClockMHz, g.MemClockMHz, g.PowerW, g.PowerLimitW, g.Temperature, g.Utilisation} {
				if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0) || *v < 0) {
					t.Errorf("%+v holds %v", g, *v)
				}
			}
			if g.Index < 0 || seen[g.Index] || len(g.UUID) > 3*maxName || len(g.ThrottleReasons) > 64 || g.MemoryUsed != nil && *g.MemoryUsed < 0 {
				t.Errorf("%+v", g)
			}
			seen[g.Index] = true
		}
		processes, err := parseProcesses(apps, gpus)
		if (processes == nil) != (err != nil) || len(processes) > maxProcesses {
			t.Errorf("%v, %v", processes, err)
		}
		for _, p := range processes {
			if p.PID <= 0 || len(p.Name) > 3*maxName || p.MemoryBytes != nil && *p.MemoryBytes < 0 || p.GPU != nil && !seen[*p.GPU] {
				t.Errorf("%+v", p)
			}
		}
	})
}

// scripted is a sensor that gives what the test puts in it.
type scripted struct {
	processes []event.GPUProcess
	err       error
	calls     int
}

func (s *scripted) Read(context.Context) ([]event.GPUReading, []event.GPUProcess, error) {
	s.calls++
	if s.err != nil {
		return nil, nil, s.err
	}
	return []event.GPUReading{{Index: 0}}, append([]event.GPUProcess{}, s.processes...), nil
}

func (s *scripted) list(pids ...int) {
	s.processes = nil
	for _, pid := range pids {
		s.processes = append(s.processes, event.GPUProcess{PID: pid})
	}
}

// Process numbers far above those that exist.
const stranger, another, third = 1<<22 + 1, 1<<22 + 2, 1<<22 + 3

func TestOwners(t *testing.T) {
	owners := func(r event.Telemetry) (out []string) {
		for _, p := range r.Processes {
			out = append(out, p.Owner)
		}
		return out
	}
	check := func(t *testing.T, r event.Telemetry, want ...string) {
		t.Helper()
		if got := owners(r); !reflect.DeepEqual(got, want) {
			t.Errorf("owners %v, want %v", got, want)
		}
	}
	own, resident, foreign := event.OwnerOwn, event.OwnerResident, event.OwnerForeign
	for _, numbers := range []struct {
		name string
		ns   string // of the process numbers
	}{{"of the machine", "pid:[4026531836]"}, {"of a container", "pid:[4026532999]"}} {
		t.Run(numbers.name, func(t *testing.T) {
			root := t.TempDir()
			os.MkdirAll(filepath.Join(root, "proc/self/ns"), 0o755)
			if err := os.Symlink(numbers.ns, filepath.Join(root, "proc/self/ns/pid")); err != nil {
				t.Fatal(err)
			}
			s := &scripted{}
			m := NewMonitor(s)
			m.fs = procfs{root}
			container := numbers.ns != "pid:[4026531836]"

			s.list(stranger)
			check(t, m.Launch(t.Context(), true), resident)
			s.list(stranger, another)
			if container { // it appeared while our server loaded, under a number that is not ours
				check(t, m.Read(t.Context()), resident, own)
			} else {
				check(t, m.Read(t.Context()), resident, foreign)
			}
			s.list(stranger, third)
			check(t, m.Read(t.Context()), resident, foreign)
			s.list(m.self, third) // where one number is ours all can be compared
			check(t, m.Read(t.Context()), own, foreign)

			check(t, m.Launch(t.Context(), true), own, resident) // it has been there before this server
			s.list(m.self, another)
			if container {
				check(t, m.Read(t.Context()), own, own) // once ours, always ours
			} else {
				check(t, m.Read(t.Context()), own, foreign)
			}

			s.list(stranger) // a server that is not ours may be what is there
			check(t, m.Launch(t.Context(), false), resident)
			s.list(stranger, third)
			check(t, m.Read(t.Context()), resident, foreign)
		})
	}
}

// A sensor that fails three times in a row is asked no more.
func TestGivesUp(t *testing.T) {
	s := &scripted{err: os.ErrDeadlineExceeded}
	m := NewMonitor(s)
	said := 0
	for range 6 {
		if r := m.Read(t.Context()); r.Error != "" {
			said++
		} else if r.GPUs != nil || r.Host.CPUs == 0 {
			t.Errorf("%+v", r)
		}
	}
	if s.calls != giveUp || said != giveUp {
		t.Errorf("asked %d times, %d errors", s.calls, said)
	}
}

// A reading is due once it costs no more than its share of the time.
func TestDue(t *testing.T) {
	m := NewMonitor(&scripted{})
	if !m.Due() {
		t.Error("the first reading is due")
	}
	m.last, m.took = time.Now(), time.Hour
	if m.Due() {
		t.Error("a second reading is due at once")
	}
	m.alarmed = true
	if !m.Due() {
		t.Error("nobody looks whether a stranger has gone")
	}
	m.alarmed = false
	m.last = time.Now().Add(-share * time.Hour)
	if !m.Due() {
		t.Error("no reading is due after its share of the time")
	}
}

func TestHostReadings(t *testing.T) {
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := procfs{root}
	if h := p.host(); h.CPUs != runtime.NumCPU() || h.CPUClockMHz != nil || h.Temperature != nil || h.ThrottleCount != nil || h.Load1 != nil || h.MemoryAvailable != nil || h.MemoryPressure != nil {
		t.Errorf("a machine that tells nothing: %+v", h)
	}
	put("proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2000.5\n\nprocessor : 1\ncpu MHz\t\t: 3000.5\n")
	put("proc/loadavg", "1.25 0.5 0.1 2/300 4242\n")
	put("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:     64 kB\n")
	put("proc/pressure/memory", "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00 avg60=0 avg300=0 total=0\n")
	put("sys/class/thermal/thermal_zone0/type", "acpitz\n")
	put("sys/class/thermal/thermal_zone0/temp", "99000\n")
	put("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n")
	put("sys/class/thermal/thermal_zone1/temp", "61000\n")
	put("sys/class/hwmon/hwmon3/name", "coretemp\n")
	put("sys/class/hwmon/hwmon3/temp1_input", "62500\n")
	put("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n")
	put("sys/devices/system/cpu/cpu11/thermal_throttle/core_throttle_count", "4\n")
	h := p.host()
	if *h.CPUClockMHz != 2500.5 || *h.Load1 != 1.25 || *h.MemoryAvailable != 64<<10 || *h.MemoryPressure != 0.125 || *h.Temperature != 62.5 || *h.ThrottleCount != 7 {
		t.Errorf("%v %v %v %v %v %v", *h.CPUClockMHz, *h.Load1, *h.MemoryAvailable, *h.MemoryPressure, *h.Temperature, *h.ThrottleCount)
	}
	put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1200000\n")
	if h := p.host(); *h.CPUClockMHz != 1200 {
		t.Errorf("the driver's clock is %v", *h.CPUClockMHz)
	}
}

// Other processes' CPU time is the machine's less that of our tree, over at
// least half a second.
func TestOtherCPUs(t *testing.T) {
	root := t.TempDir()
	set := func(idle, busy, own, child int) {
		t.Helper()
		stat := func(ppid, ticks int) string {
			return "1 (a) b) S " + strconv.Itoa(ppid) + " 0 0 0 0 0 0 0 0 0 " + strconv.Itoa(ticks) + " 0 0 0 20 0 1 0 100 0 0"
		}
		for path, text := range map[string]string{
			"proc/stat":    "cpu  " + strconv.Itoa(busy) + " 0 0 " + strconv.Itoa(idle) + " 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\n",
			"proc/10/stat": stat(1, own), "proc/11/stat": stat(10, child), "proc/12/stat": stat(11, 5), "proc/13/stat": stat(1, 1000), "proc/self/stat": "no number",
		} {
			path = filepath.Join(root, path)
			os.MkdirAll(filepath.Dir(path), 0o755)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := NewMonitor(&scripted{})
	m.fs, m.self = procfs{root}, 10
	set(100, 1000, 50, 40)
	if r := m.Launch(t.Context(), true); r.Host.OtherCPUs != nil {
		t.Errorf("the first reading has nothing to compare with: %v", *r.Host.OtherCPUs)
	}
	set(100, 1010, 50, 40)
	if r := m.Read(t.Context()); r.Host.OtherCPUs != nil {
		t.Errorf("too short a time says nothing: %v", *r.Host.OtherCPUs)
	}
	m.counted = m.counted.Add(-2 * time.Second)
	set(100, 1000+200, 50+30, 40+70) // of 2 s of CPU time in 2 s, 1 s was ours
	r := m.Read(t.Context())
	if r.Host.OtherCPUs == nil || math.Abs(*r.Host.OtherCPUs**r.Host.IntervalS-1) > 0.01 || !m.own[12] || m.own[13] {
		t.Errorf("%+v, own %v", r.Host, m.own)
	}
	m.counted = m.counted.Add(-2 * time.Second)
	set(100, 2000, 0, 0) // a tree whose time went back
	if r := m.Read(t.Context()); r.Host.OtherCPUs != nil {
		t.Errorf("%v", *r.Host.OtherCPUs)
	}
	m.Launch(t.Context(), false)
	m.counted = m.counted.Add(-2 * time.Second)
	set(100, 3000, 0, 0)
	if r := m.Read(t.Context()); r.Host.OtherCPUs != nil {
		t.Errorf("the time of a server that is not ours counts as that of others: %v", *r.Host.OtherCPUs)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 10 0 0 0 0 0 0 0 0 0 7 8 9 1 20 0 1 0 100 0 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, ticks, ok := parseStat(b); !ok && ticks != 0 {
			t.Errorf("%d ticks", ticks)
		}
	})
}

// The numbers of this very machine make sense.
func TestThisMachine(t *testing.T) {
	p := procfs{"/"}
	if busy, ok := p.busy(); ok && busy <= 0 {
		t.Errorf("busy %d", busy)
	}
	pids, _ := p.tree(os.Getpid())
	if !pids[os.Getpid()] || pids[1] && os.Getpid() != 1 {
		t.Errorf("tree %v", pids)
	}
}
