package cli_test

import (
	"strings"
	"testing"

	"twopoint/results/table"
	"twopoint/test/fakesmi"
)

// watched runs a spec of four contexts beside a fake nvidia-smi and expects one
// of the exit codes.
func watched(t *testing.T, smi *fakesmi.SMI, host string, codes ...int) (*table.Tables, result) {
	t.Helper()
	dir := specIn(t, `
experiment: {
	model: "tiny-gqa"
	servers: e: {engine: "twopoint", context_length: 1Ki, args: threads: 1}
	sweep: context: [64, 96, 128, 160]
	method: two_point: {a: 1, b: 65, repeats: {min: 3, max: 4, target: 0.5}}
	host: {`+host+`}
}`)
	_, wait := start(t, dir, []string{smi.Env()}, "run", ".")
	r := wait()
	for _, c := range codes {
		if r.code == c {
			return load(t, onlyRun(t, dir)), r
		}
	}
	t.Fatalf("exit %d\nstdout:\n%s\nstderr:\n%s", r.code, r.stdout, tail(r.stderr, 20))
	return nil, r
}

// doctor names what computes on the GPUs.
func TestDoctorNamesGPUProcesses(t *testing.T) {
	t.Parallel()
	smi := fakesmi.New(t, 2)
	smi.Processes(fakesmi.Process{PID: 4242, GPU: 1, MemoryMiB: 512, Name: "train"})
	_, wait := start(t, t.TempDir(), []string{smi.Env()}, "doctor")
	if r := wait(); r.code != 0 || !strings.Contains(r.stdout, "! in use: pid 4242 (train) with 0.5 GiB on GPU 1\n") || !strings.Contains(r.stdout, "  GPU 1: Fake H200") {
		t.Errorf("exit %d\n%s", r.code, r.stdout)
	}
}

// A sensor that hangs or prints rubbish costs one note and no measurement.
func TestSensorTroubles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ do, note string }{
		"rubbish": {`printf '\001\377 rubbish\n'; exit 0`, "no reading in"},
		"no GPU":  {"echo No devices were found; exit 6", ""},
		"fails":   {"echo broken; exit 9", "broken"},
		"hangs":   {"sleep 600", "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			smi := fakesmi.New(t, 1)
			smi.Do(c.do)
			tables, _ := watched(t, smi, "", 0, 3, 4)
			remarks := tables.Runs[0].Remarks
			if c.note == "" && strings.Contains(remarks, "GPUs could not be read") || c.note != "" && strings.Count(remarks, "GPUs could not be read") != 1 || !strings.Contains(remarks, c.note) {
				t.Errorf("remarks: %s", remarks)
			}
			for _, p := range tables.Points {
				if p.Pairs < 3 || p.GPUClockMin != nil || p.GPUThrottle != "" {
					t.Errorf("%s: %d pairs, clock %v, %s", p.PointKey, p.Pairs, p.GPUClockMin, p.GPUThrottle)
				}
			}
		})
	}
}
