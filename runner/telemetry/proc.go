package telemetry

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"twopoint/results/event"
)

// procfs reads what the kernel says of the machine; root is "/" but in tests.
type procfs struct{ root string }

func (p procfs) read(path string) string {
	b, err := os.ReadFile(filepath.Join(p.root, path))
	if err != nil {
		return ""
	}
	return string(b)
}

// numbers are those that the files of a pattern hold, each its only content.
func (p procfs) numbers(pattern string) (list []float64) {
	paths, _ := filepath.Glob(filepath.Join(p.root, pattern))
	for _, path := range paths {
		b, _ := os.ReadFile(path)
		if v := positive(strings.TrimSpace(string(b))); v != nil {
			list = append(list, *v)
		}
	}
	return list
}

// host is everything of a reading that needs no reading before it.
func (p procfs) host() event.HostReading {
	h := event.HostReading{CPUs: runtime.NumCPU(), CPUClockMHz: p.cpuClock(), Temperature: p.cpuTemperature()}
	// Intel's counters (Documentation/admin-guide/abi: thermal_throttle); other CPUs have none.
	if counts := p.numbers("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"); len(counts) > 0 {
		n := int64(sum(counts))
		h.ThrottleCount = &n
	}
	if f := strings.Fields(p.read("proc/loadavg")); len(f) > 0 {
		h.Load1 = positive(f[0])
	}
	for line := range strings.Lines(p.read("proc/meminfo")) {
		if kb, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64); err == nil && n >= 0 && n < 1<<50 {
				n <<= 10
				h.MemoryAvailable = &n
			}
		}
	}
	// "some avg10=0.00 avg60=0.00 …", percent (Documentation/accounting/psi.rst).
	for word := range strings.FieldsSeq(firstOf(p.read("proc/pressure/memory"))) {
		if v, ok := strings.CutPrefix(word, "avg10="); ok {
			if h.MemoryPressure = positive(v); h.MemoryPressure != nil {
				*h.MemoryPressure /= 100
			}
		}
	}
	return h
}

func firstOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// cpuClock is the mean clock: the cpufreq driver's, else what /proc/cpuinfo says.
func (p procfs) cpuClock() *float64 {
	khz := p.numbers("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
	mhz := make([]float64, len(khz))
	for i, v := range khz {
		mhz[i] = v / 1000
	}
	if len(mhz) == 0 {
		for line := range strings.Lines(p.read("proc/cpuinfo")) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "cpu MHz" {
				if v := positive(strings.TrimSpace(value)); v != nil {
					mhz = append(mhz, *v)
				}
			}
		}
	}
	if len(mhz) == 0 {
		return nil
	}
	mean := sum(mhz) / float64(len(mhz))
	return &mean
}

// cpuTemperature is that of the hottest sensor whose driver or zone is known to
// be a CPU's.
func (p procfs) cpuTemperature() *float64 {
	var found []float64
	for _, c := range []struct{ kind, values string }{
		{"sys/class/thermal/thermal_zone*/type", "temp"},
		{"sys/class/hwmon/hwmon*/name", "temp*_input"},
	} {
		paths, _ := filepath.Glob(filepath.Join(p.root, c.kind))
		for _, path := range paths {
			b, _ := os.ReadFile(path)
			kind := strings.TrimSpace(string(b))
			if !slices.Contains([]string{"x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal"}, kind) {
				continue
			}
			rel, err := filepath.Rel(p.root, filepath.Dir(path))
			if err == nil {
				found = append(found, p.numbers(filepath.Join(rel, c.values))...)
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	c := slices.Max(found) / 1000 // millidegrees
	return &c
}

// The kernel counts CPU time for programs in hundredths of a second (USER_HZ).
const ticksPerSecond = 100

// busy is the CPU time that the machine has spent working since boot, what a
// hypervisor took away included (proc_stat(5)). ok is false where the kernel
// does not count it.
func (p procfs) busy() (ticks int64, ok bool) {
	f := strings.Fields(firstOf(p.read("proc/stat")))
	if len(f) < 9 || f[0] != "cpu" {
		return 0, false
	}
	for i, s := range f[1:9] { // user nice system idle iowait irq softirq steal; guests are in user
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < 0 {
			return 0, false
		}
		if i != 3 && i != 4 {
			ticks += v
		}
	}
	return ticks, ticks > 0
}

// tree lists the processes at and below root, and the CPU time that they and
// their ended children have used.
func (p procfs) tree(root int) (pids map[int]bool, ticks int64) {
	dir, err := os.Open(filepath.Join(p.root, "proc"))
	if err != nil {
		return map[int]bool{root: true}, 0
	}
	entries, _ := dir.Readdirnames(-1)
	dir.Close()
	used, children := map[int]int64{}, map[int][]int{}
	for _, name := range entries {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, t, ok := parseStat([]byte(p.read("proc/" + name + "/stat"))); ok {
			used[pid] = t
			children[parent] = append(children[parent], pid)
		}
	}
	pids = map[int]bool{}
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		if pids[pid] { // a number used again while we read
			continue
		}
		pids[pid] = true
		ticks += used[pid]
		queue = append(queue, children[pid]...)
	}
	return pids, ticks
}

// parseStat reads /proc/PID/stat (proc_pid_stat(5)): the parent, and the time
// used by the process and the children that it has waited for.
func parseStat(b []byte) (parent int, ticks int64, ok bool) {
	i := bytes.LastIndexByte(b, ')') // the name before it can hold anything
	if i < 0 {
		return 0, 0, false
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3
	if len(f) < 15 {
		return 0, 0, false
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return 0, 0, false
	}
	for _, s := range f[11:15] { // utime stime cutime cstime
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < 0 {
			return 0, 0, false
		}
		ticks += v
	}
	return parent, ticks, true
}

// initialPIDs tells whether process numbers here are the machine's, and not
// those of a container (PROC_PID_INIT_INO of include/linux/proc_ns.h).
func (p procfs) initialPIDs() bool {
	ns, err := os.Readlink(filepath.Join(p.root, "proc/self/ns/pid"))
	return err == nil && ns == "pid:[4026531836]"
}
