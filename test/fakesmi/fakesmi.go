// Package fakesmi makes a program nvidia-smi for tests, which prints what the
// test tells it to. It answers the two queries that twopoint makes as the real
// program does: in the order of the fields asked for, and with a refusal of the
// whole query where it does not know one of them.
package fakesmi

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// SMI is the program. What it prints can be changed while it is in use; a
// method is one change, seen whole or not at all.
type SMI struct {
	Dir string // of the program, to be put first in PATH
	t   testing.TB
}

// GPU is one device: values by the names of --query-gpu. Of DefaultGPU's fields
// those that a test does not set have usual values; one set to "" is a field
// that the driver does not know.
type GPU map[string]string

// Process is a line of --query-compute-apps.
type Process struct {
	PID       int
	GPU       int
	MemoryMiB int
	Name      string
}

const script = `#!/bin/sh
here=${0%/*}
echo "$*" >> "$here/calls"
[ -f "$here/do" ] && . "$here/do"
case "$1" in
--query-gpu=*) exec awk -v asked="${1#--query-gpu=}" -F';' '
	BEGIN { n = split(asked, want, ",") }
	NF {
		split("", value)
		for (i = 1; i <= NF; i++) { at = index($i, "="); value[substr($i, 1, at - 1)] = substr($i, at + 1) }
		line = ""
		for (i = 1; i <= n; i++) {
			if (value[want[i]] == "") { printf "Field \"%s\" is not a valid field to query.\n\n", want[i]; exit 2 }
			line = line (i > 1 ? ", " : "") value[want[i]]
		}
		out = out line "\n"
	}
	END { if (out != "") printf "%s", out }' "$here/gpus" ;;
--query-compute-apps=pid,gpu_uuid,used_memory,process_name) exec cat "$here/processes" ;;
esac
echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help." >&2
exit 2
`

// New makes the program with n GPUs and no process on them.
func New(t testing.TB, n int) *SMI {
	t.Helper()
	s := &SMI{Dir: t.TempDir(), t: t}
	s.write("nvidia-smi", script, 0o755)
	s.GPUs(make([]GPU, n)...)
	s.Processes()
	return s
}

// Env is an environment entry that puts the program first in PATH.
func (s *SMI) Env() string {
	return "PATH=" + s.Dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

// UUID is that of the i-th GPU.
func UUID(i int) string { return fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i) }

// DefaultGPU is the i-th GPU at work, with nothing unusual.
func DefaultGPU(i int) GPU {
	return GPU{
		"index": fmt.Sprint(i), "uuid": UUID(i), "name": "Fake H200", "memory.total": "143771", "power.limit": "700.00", "driver_version": "580.1",
		"clocks.max.sm": "1980", "clocks.max.mem": "3201", "clocks.sm": "1980", "clocks.mem": "3201", "power.draw": "310.50", "enforced.power.limit": "700.00",
		"temperature.gpu": "55", "memory.used": "1024", "utilization.gpu": "87", "clocks_event_reasons.active": "0x0000000000000000",
		"clocks_event_reasons_counters.sw_power_cap": "0", "clocks_event_reasons_counters.sw_thermal_slowdown": "0",
		"clocks_event_reasons_counters.hw_thermal_slowdown": "0", "clocks_event_reasons_counters.hw_power_brake_slowdown": "0",
	}
}

// GPUs sets all devices, with the values that differ from DefaultGPU.
func (s *SMI) GPUs(changes ...GPU) {
	s.t.Helper()
	var text strings.Builder
	for i, change := range changes {
		g := DefaultGPU(i)
		maps.Copy(g, change)
		var cells []string
		for _, name := range slices.Sorted(maps.Keys(g)) {
			cells = append(cells, name+"="+g[name])
		}
		text.WriteString(strings.Join(cells, ";") + "\n")
	}
	s.write("gpus", text.String(), 0o644)
}

// Processes sets what computes on the GPUs.
func (s *SMI) Processes(list ...Process) {
	s.t.Helper()
	var text strings.Builder
	for _, p := range list {
		fmt.Fprintf(&text, "%d, %s, %d, %s\n", p.PID, UUID(p.GPU), p.MemoryMiB, p.Name)
	}
	s.write("processes", text.String(), 0o644)
}

// Do makes the program run a line of shell first, such as "sleep 60" or
// "echo rubbish; exit 0"; an empty one ends that.
func (s *SMI) Do(line string) {
	s.t.Helper()
	s.write("do", line+"\n", 0o644)
}

// Calls are the arguments of every call so far.
func (s *SMI) Calls() []string {
	b, err := os.ReadFile(filepath.Join(s.Dir, "calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

func (s *SMI) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	path := filepath.Join(s.Dir, name)
	err := os.WriteFile(path+".new", []byte(text), mode)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
