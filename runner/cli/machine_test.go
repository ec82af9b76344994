package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"twopoint/results/event"
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

// falling makes the SM clock fall with every call of the program.
const falling = `n=$(wc -l < "$here/calls"); sed "s/clocks.sm=[0-9]*/clocks.sm=$((n < 28 ? 1980-60*n : 300))/" "$here/gpus" > "$here/gpus.now"; mv "$here/gpus.now" "$here/gpus"`

// Clocks, power, heat and throttling are kept with every point, a clock that
// falls and a limit that binds are doubts, and a cap that was asked for stands
// beside the one in force.
func TestC56ClocksPowerAndHeat(t *testing.T) {
	t.Parallel()
	smi := fakesmi.New(t, 2)
	smi.GPUs(fakesmi.GPU{"clocks_event_reasons.active": "0x4", "temperature.gpu": "83"}, fakesmi.GPU{"power.draw": "[N/A]"})
	smi.Do(falling)
	tables, r := watched(t, smi, `power_w: 300`, 0, 3, 4)
	for _, p := range tables.Points {
		if p.GPUClockMin == nil || p.GPUClockMean == nil || *p.GPUClockMean < *p.GPUClockMin || p.GPUPower == nil || *p.GPUPower != 310.5 ||
			p.GPUPowerLimit == nil || *p.GPUPowerLimit != 700 || p.GPUTemperature == nil || *p.GPUTemperature != 83 || p.GPUThrottle != "sw_power_cap" {
			t.Errorf("%s: clocks %v, %v, power %v of %v, temperature %v, %s", p.PointKey, p.GPUClockMin, p.GPUClockMean, p.GPUPower, p.GPUPowerLimit, p.GPUTemperature, p.GPUThrottle)
		}
		if !hasWord(p.Doubts, "throttled") || !hasWord(p.Doubts, "clock_drift") || !strings.Contains(p.DoubtDetail, "the SM clock of GPU 0 fell from") {
			t.Errorf("%s: doubts %s\n%s", p.PointKey, p.Doubts, p.DoubtDetail)
		}
	}
	caps := map[string]string{}
	for _, s := range tables.Settings {
		if s.Name == "host.power_w" {
			caps[s.Source] = s.Value
		}
	}
	if caps["requested"] != "300" || caps["effective"] != "700" {
		t.Errorf("power cap in settings: %v", caps)
	}
	if remarks := tables.Runs[0].Remarks; !strings.Contains(remarks, "a cap of 300 W, which twopoint does not set: GPU 0 is capped at 700 W, GPU 1") {
		t.Errorf("remarks: %s", remarks)
	}
	devices, moments := map[string]int{}, map[string]bool{}
	for _, row := range tables.Telemetry {
		devices[row.Device]++
		moments[row.Moment] = true
		if row.Device == "gpu1" && (row.Power != nil || row.SMClock == nil || row.Reasons != "none") {
			t.Errorf("gpu1: %+v", row)
		}
	}
	if devices["host"] < 5 || devices["host"] != devices["gpu0"] || devices["gpu0"] != devices["gpu1"] || !moments["launch"] || !moments["after"] {
		t.Errorf("readings %v at %v", devices, moments)
	}
	if !strings.Contains(r.stdout, "throttled") && !strings.Contains(r.stdout, "held back") {
		t.Logf("stdout:\n%s", r.stdout)
	}
}

func hasWord(list, word string) bool {
	for _, w := range strings.Split(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// Another's process on a GPU: before the launch it is noted or keeps the server
// from being started; in the middle of a measurement it is a doubt about the
// points, or makes their pairs invalid. It is not ended, and the server's own
// process is not another's.
func TestC59NoisyNeighbours(t *testing.T) {
	t.Parallel()
	neighbour := fakesmi.Process{PID: os.Getpid(), GPU: 3, MemoryMiB: 8192, Name: "/usr/bin/train"} // it must survive the run
	named := fmt.Sprintf("pid %d (/usr/bin/train) with 8.0 GiB on GPU 3", os.Getpid())
	t.Run("before, warn", func(t *testing.T) {
		t.Parallel()
		smi := fakesmi.New(t, 4)
		smi.Processes(neighbour)
		tables, _ := watched(t, smi, `foreign: "warn"`, 0, 3, 4)
		if !strings.Contains(tables.Runs[0].Remarks, named) {
			t.Errorf("remarks %s", tables.Runs[0].Remarks)
		}
		for _, p := range tables.Points {
			if p.Pairs < 3 || strings.Contains(p.Doubts, "foreign_process") {
				t.Errorf("%s: %d pairs, doubts %s", p.PointKey, p.Pairs, p.Doubts)
			}
		}
	})
	t.Run("before, stop", func(t *testing.T) {
		t.Parallel()
		smi := fakesmi.New(t, 4)
		smi.Processes(neighbour)
		tables, _ := watched(t, smi, `foreign: "stop"`, 4)
		for _, p := range tables.Points {
			if p.Status != "failed" || p.FailureKind != "start-error" || p.FailureStage != "launch" || p.FailureScope != "host" || !strings.Contains(p.FailureMessage, named) {
				t.Errorf("%s: %s %s %s %s: %s", p.PointKey, p.Status, p.FailureKind, p.FailureStage, p.FailureScope, p.FailureMessage)
			}
		}
		if d := tables.Deployments; len(d) != 1 || d[0].PID != nil || d[0].Ready || d[0].FailureKind != "start-error" {
			t.Errorf("deployments: %+v", d)
		}
	})
	for _, policy := range []string{"warn", "stop"} {
		t.Run("during, "+policy, func(t *testing.T) {
			t.Parallel()
			smi := fakesmi.New(t, 4)
			// The server's own process is there from the first reading after the launch on,
			// another's from the eighth call on.
			smi.Do(fmt.Sprintf(`n=$(wc -l < "$here/calls"); own=$(ps -e -o pid=,ppid=,args= | awk -v top=$PPID '$2 == top || below[$2] { below[$1] = 1; if ($0 ~ /[s]erve --/) print $1 }' | tail -1)
if [ -n "$own" ]; then echo "$own, %s, 2048, own" > "$here/processes"; fi
if [ "$n" -ge 8 ]; then echo "%d, %s, 8192, /usr/bin/train" >> "$here/processes"; fi`, fakesmi.UUID(3), os.Getpid(), fakesmi.UUID(3)))
			tables, _ := watched(t, smi, `foreign: "`+policy+`"`, 0, 3, 4)
			owners := map[string]bool{}
			for _, row := range tables.Telemetry {
				var list []event.GPUProcess
				if row.Processes != "" {
					if err := json.Unmarshal([]byte(row.Processes), &list); err != nil {
						t.Fatal(err)
					}
				}
				for _, p := range list {
					owners[p.Name+" "+p.Owner] = true
				}
			}
			if len(owners) != 2 || !owners["own own"] || !owners["/usr/bin/train foreign"] {
				t.Errorf("owners %v", owners)
			}
			flagged, invalid := 0, 0
			for _, p := range tables.Points {
				if hasWord(p.Doubts, "foreign_process") && strings.Contains(p.DoubtDetail, named) {
					flagged++
				}
			}
			for _, r := range tables.Repeats {
				if hasWord(r.Reasons, "foreign_process") && !r.Valid && strings.Contains(r.ReasonDetail, named) {
					invalid++
				}
			}
			if flagged == 0 || (invalid > 0) != (policy == "stop") {
				t.Errorf("%d points flagged, %d pairs invalid", flagged, invalid)
			}
		})
	}
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
