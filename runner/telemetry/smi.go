package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"twopoint/results/event"
)

// Sensor reads the GPUs of a machine.
type Sensor interface {
	// Read tells the state of every GPU and what computes on them. Without an
	// error, lists that are nil mean that the machine has no such sensor, empty
	// ones that there is nothing. With an error, what could be read is returned
	// beside it. It returns soon after ctx ends.
	Read(ctx context.Context) ([]event.GPUReading, []event.GPUProcess, error)
}

// NvidiaSMI is the sensor that NVIDIA's driver comes with: the program
// nvidia-smi, found in PATH, asked for CSV. The zero value is ready. The field
// names are the program's own (nvidia-smi --help-query-gpu and
// --help-query-compute-apps).
type NvidiaSMI struct {
	fields []gpuField // as this driver knows them; nil: not asked yet
}

// gpuField is a value of --query-gpu.
type gpuField struct {
	name  string
	older string // by which drivers know it that do not know the name
	set   func(*event.GPUReading, string)
}

// limits of what is taken from the program, whatever it prints.
const (
	maxOutput    = 1 << 20
	maxGPUs      = 256
	maxProcesses = 1024
	maxName      = 256
)

func gpuFields() []gpuField {
	fields := []gpuField{
		{name: "index", set: func(g *event.GPUReading, s string) {
			g.Index = -1
			if n, err := strconv.Atoi(s); err == nil && n >= 0 && n < maxGPUs {
				g.Index = n
			}
		}},
		{name: "uuid", set: func(g *event.GPUReading, s string) {
			if !strings.HasPrefix(s, "[") {
				g.UUID = bounded(s)
			}
		}},
		{name: "clocks.sm", set: func(g *event.GPUReading, s string) { g.SMClockMHz = positive(s) }},
		{name: "clocks.mem", set: func(g *event.GPUReading, s string) { g.MemClockMHz = positive(s) }},
		{name: "power.draw", set: func(g *event.GPUReading, s string) { g.PowerW = positive(s) }},
		{name: "enforced.power.limit", set: func(g *event.GPUReading, s string) { g.PowerLimitW = positive(s) }},
		{name: "temperature.gpu", set: func(g *event.GPUReading, s string) { g.Temperature = positive(s) }},
		{name: "memory.used", set: func(g *event.GPUReading, s string) { g.MemoryUsed = mebibytes(s) }},
		{name: "utilization.gpu", set: func(g *event.GPUReading, s string) {
			if v := positive(s); v != nil && *v <= 100 {
				*v /= 100
				g.Utilisation = v
			}
		}},
		{name: "clocks_event_reasons.active", older: "clocks_throttle_reasons.active", // renamed with driver 535
			set: func(g *event.GPUReading, s string) { g.ThrottleReasons = reasons(s) }},
	}
	// Microseconds, which drivers count since 580 or 595, depending on the branch.
	for _, limit := range []string{"sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"} {
		fields = append(fields, gpuField{name: "clocks_event_reasons_counters." + limit, set: func(g *event.GPUReading, s string) {
			if v := positive(strings.TrimSuffix(s, " us")); v != nil {
				if g.ThrottledS == nil {
					g.ThrottledS = map[string]float64{}
				}
				g.ThrottledS[limit] = *v / 1e6
			}
		}})
	}
	return fields
}

var refused = regexp.MustCompile(`Field "([^"\n]{1,100})" is not a valid field`)

// Read implements Sensor. A field that the driver does not know makes the
// program refuse the whole query; it is left out from then on.
func (n *NvidiaSMI) Read(ctx context.Context) ([]event.GPUReading, []event.GPUProcess, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil, nil
	}
	if n.fields == nil {
		n.fields = gpuFields()
	}
	var gpus []event.GPUReading
	for {
		var out []byte
		out, err = output(ctx, path, "--query-gpu="+names(n.fields), "--format=csv,noheader,nounits")
		if err == nil {
			gpus, err = parseReadings(out, n.fields)
			break
		}
		if bytes.Contains(bytes.ToLower(out), []byte("no devices were found")) {
			return []event.GPUReading{}, []event.GPUProcess{}, nil
		}
		m := refused.FindSubmatch(out)
		if m == nil {
			return nil, nil, err
		}
		at := slices.IndexFunc(n.fields, func(f gpuField) bool { return f.name == string(m[1]) })
		if at < 1 { // without an index a line belongs to no GPU
			return nil, nil, err
		}
		if f := &n.fields[at]; f.older != "" {
			f.name, f.older = f.older, ""
		} else {
			n.fields = slices.Delete(n.fields, at, at+1)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := output(ctx, path, "--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv,noheader,nounits")
	if err != nil {
		return gpus, nil, err
	}
	processes, err := parseProcesses(out, gpus)
	return gpus, processes, err
}

func names(fields []gpuField) string {
	var list []string
	for _, f := range fields {
		list = append(list, f.name)
	}
	return strings.Join(list, ",")
}

// parseReadings reads the CSV of --query-gpu. Lines without an index are passed
// over; an output of nothing else is an error.
func parseReadings(text []byte, fields []gpuField) ([]event.GPUReading, error) {
	gpus := []event.GPUReading{}
	var odd string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		cells := strings.Split(line, ",")
		g := event.GPUReading{Index: -1}
		if len(cells) == len(fields) {
			for i, f := range fields {
				f.set(&g, strings.TrimSpace(cells[i]))
			}
		}
		if g.Index < 0 || slices.ContainsFunc(gpus, func(o event.GPUReading) bool { return o.Index == g.Index }) {
			odd = line
			continue
		}
		gpus = append(gpus, g)
	}
	if len(gpus) == 0 && odd != "" {
		return nil, fmt.Errorf("nvidia-smi: no reading in %q", bounded(odd))
	}
	return gpus, nil
}

// parseProcesses reads the CSV of --query-compute-apps. The name comes last: it
// can hold commas, which the program does not quote.
func parseProcesses(text []byte, gpus []event.GPUReading) ([]event.GPUProcess, error) {
	list := []event.GPUProcess{}
	var odd string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.Contains(strings.ToLower(line), "no running processes") {
			continue
		}
		cells := strings.SplitN(line, ",", 4)
		pid, err := strconv.Atoi(strings.TrimSpace(cells[0]))
		if len(cells) != 4 || err != nil || pid <= 0 {
			odd = line
			continue
		}
		if len(list) == maxProcesses {
			break
		}
		p := event.GPUProcess{PID: pid, MemoryBytes: mebibytes(strings.TrimSpace(cells[2]))}
		if name := strings.TrimSpace(cells[3]); !strings.HasPrefix(name, "[") {
			p.Name = bounded(name)
		}
		uuid := strings.TrimSpace(cells[1])
		for _, g := range gpus {
			if g.UUID != "" && g.UUID == uuid {
				p.GPU = &g.Index
			}
		}
		list = append(list, p)
	}
	if len(list) == 0 && odd != "" {
		return nil, fmt.Errorf("nvidia-smi: no process in %q", bounded(odd))
	}
	return list, nil
}

// throttleReasons are the bits of clocks_event_reasons.active (NVML reference,
// nvmlClocksEventReasons).
var throttleReasons = []string{
	"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
	"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
}

// reasons names the bits of a mask; nil where it is none. A bit without a name
// stands for itself.
func reasons(s string) []string {
	mask, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return nil
	}
	list := []string{}
	for bit := range 64 {
		switch {
		case mask>>bit&1 == 0:
		case bit < len(throttleReasons):
			list = append(list, throttleReasons[bit])
		default:
			list = append(list, fmt.Sprintf("%#x", uint64(1)<<bit))
		}
	}
	return list
}

// positive is a finite number from 0 on; nil for [N/A] and the like.
func positive(s string) *float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return nil
	}
	return &v
}

func mebibytes(s string) *int64 {
	v := positive(s)
	if v == nil || *v > 1<<32 {
		return nil
	}
	b := int64(*v) << 20
	return &b
}

// bounded is foreign text as it can be kept and shown.
func bounded(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// output is what a program prints, standard error after standard output, at most
// maxOutput bytes of each. When ctx ends the program and what it started are
// killed; one that the kernel holds (a stuck driver) is left alone.
func output(ctx context.Context, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	stdout, stderr := &capped{}, &capped{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 100 * time.Millisecond
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(time.Second):
			return nil, fmt.Errorf("nvidia-smi: %w, and it cannot be killed", ctx.Err())
		}
	}
	text := slices.Concat(stdout.buf, stderr.buf)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("nvidia-smi did not answer: %w", ctx.Err())
	case stdout.full || stderr.full:
		return nil, fmt.Errorf("nvidia-smi: more than %d bytes of output", maxOutput)
	case err != nil:
		line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		return text, fmt.Errorf("nvidia-smi: %w: %s", err, bounded(line))
	}
	return stdout.buf, nil
}

// capped keeps what fits and refuses the rest. It has no ReadFrom, by which
// io.Copy would go around Write.
type capped struct {
	buf  []byte
	full bool
}

func (c *capped) Write(b []byte) (int, error) {
	if len(c.buf)+len(b) > maxOutput {
		c.full = true
		return 0, io.ErrShortWrite
	}
	c.buf = append(c.buf, b...)
	return len(b), nil
}
