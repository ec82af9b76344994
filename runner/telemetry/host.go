// Package telemetry observes the machine on which servers run. It changes no
// setting and ends no process. What a machine does not tell is absent, never 0.
package telemetry

import (
	"bytes"
	"context"
	"encoding/csv"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"twopoint/results/run"
)

// Observe reads the machine's facts. It takes at most ten seconds, which only
// a stuck GPU driver needs.
func Observe(ctx context.Context, version string) run.Environment {
	e := run.Environment{
		OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), At: time.Now().UTC(),
		Governor: firstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		THP:      chosen(firstLine("/sys/kernel/mm/transparent_hugepage/enabled")),
		Versions: map[string]string{"twopoint": version, "go": runtime.Version()},
	}
	e.Hostname, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	e.CPU = field("/proc/cpuinfo", "model name")
	if kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		e.MemoryBytes = kb * 1024
	}
	if f := strings.Fields(firstLine("/proc/loadavg")); len(f) > 0 {
		if v, err := strconv.ParseFloat(f[0], 64); err == nil {
			e.Load1 = &v
		}
	}
	observeGPUs(ctx, &e)
	return e
}

// gpuQuery are nvidia-smi's own field names (nvidia-smi --help-query-gpu).
const gpuQuery = "index,name,uuid,memory.total,power.limit,clocks.max.sm,clocks.max.mem,driver_version"

func observeGPUs(ctx context.Context, e *run.Environment) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := output(ctx, path, "--query-gpu="+gpuQuery, "--format=csv,noheader,nounits")
	if err != nil {
		e.GPUError = err.Error()
		return
	}
	var driver string
	e.GPUs, driver = parseGPUs(out)
	if driver != "" {
		e.Versions["nvidia-driver"] = driver
	}
}

// parseGPUs reads the CSV of gpuQuery; lines of another shape are passed over,
// values such as [N/A] are absent.
func parseGPUs(text []byte) (gpus []run.GPU, driver string) {
	r := csv.NewReader(bytes.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, -1, true
	rows, _ := r.ReadAll()
	number := func(s string) *float64 { return positive(strings.TrimSpace(s)) }
	gpus = []run.GPU{}
	for _, row := range rows {
		if len(row) != len(strings.Split(gpuQuery, ",")) {
			continue
		}
		index, err := strconv.Atoi(strings.TrimSpace(row[0]))
		if err != nil {
			continue
		}
		g := run.GPU{Index: index, Name: row[1], UUID: row[2], MemoryBytes: mebibytes(strings.TrimSpace(row[3])),
			PowerLimitW: number(row[4]), MaxSMClock: number(row[5]), MaxMemClock: number(row[6])}
		gpus, driver = append(gpus, g), row[7]
	}
	return gpus, driver
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

// chosen is the bracketed word of a sysfs choice such as "always [madvise] never".
func chosen(s string) string {
	_, rest, ok := strings.Cut(s, "[")
	if !ok {
		return s
	}
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// field is the value of the first "name : value" line.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
