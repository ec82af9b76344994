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
)

// Environment is what a run keeps of the machine that measured it
// (environment.json).
type Environment struct {
	Hostname    string            `json:"hostname"`
	OS          string            `json:"os"`
	Kernel      string            `json:"kernel"`
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cpu_cores"`
	Governor    string            `json:"cpu_governor,omitempty"`
	THP         string            `json:"transparent_hugepage,omitempty"`
	MemoryBytes int64             `json:"memory_bytes"`
	Load1       *float64          `json:"load_1min,omitempty"` // load average when the run began
	GPUs        []GPU             `json:"gpus"`                // null where nvidia-smi is not there
	GPUError    string            `json:"gpu_error,omitempty"`
	Versions    map[string]string `json:"versions"` // of twopoint, Go, the GPU driver
	At          time.Time         `json:"at"`
}

// GPU is one device as nvidia-smi reports it.
type GPU struct {
	Index       int      `json:"index"`
	Name        string   `json:"name"`
	UUID        string   `json:"uuid"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
	PowerLimitW *float64 `json:"power_limit_w,omitempty"`
	MaxSMClock  *float64 `json:"max_sm_clock_mhz,omitempty"`
	MaxMemClock *float64 `json:"max_mem_clock_mhz,omitempty"`
}

// Observe reads the machine's facts. It takes at most ten seconds, which only
// a stuck GPU driver needs.
func Observe(ctx context.Context, version string) Environment {
	e := Environment{
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
	e.gpus(ctx)
	return e
}

// gpuQuery are nvidia-smi's own field names (nvidia-smi --help-query-gpu).
const gpuQuery = "index,name,uuid,memory.total,power.limit,clocks.max.sm,clocks.max.mem,driver_version"

func (e *Environment) gpus(ctx context.Context) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--query-gpu="+gpuQuery, "--format=csv,noheader,nounits").Output()
	if err != nil {
		e.GPUError = "nvidia-smi: " + err.Error()
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
func parseGPUs(text []byte) (gpus []GPU, driver string) {
	r := csv.NewReader(bytes.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, -1, true
	rows, _ := r.ReadAll()
	number := func(s string) *float64 {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return nil
		}
		return &v
	}
	gpus = []GPU{}
	for _, row := range rows {
		if len(row) != len(strings.Split(gpuQuery, ",")) {
			continue
		}
		index, err := strconv.Atoi(strings.TrimSpace(row[0]))
		if err != nil {
			continue
		}
		g := GPU{Index: index, Name: row[1], UUID: row[2], PowerLimitW: number(row[4]), MaxSMClock: number(row[5]), MaxMemClock: number(row[6])}
		if mib := number(row[3]); mib != nil {
			b := int64(*mib) << 20
			g.MemoryBytes = &b
		}
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
