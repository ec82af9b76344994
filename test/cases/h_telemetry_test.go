package cases

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"twopoint/results/event"
	"twopoint/test/fakesmi"
	"twopoint/test/standin"
)

// Machine and neighbours.

// falling makes the SM clock fall with every call of nvidia-smi, so that a second try
// would find it down already.
const falling = `n=$(wc -l < "$here/calls"); sed "s/clocks.sm=[0-9]*/clocks.sm=$((n < 13 ? 1980-40*n : 1480))/" "$here/gpus" > "$here/gpus.now"; mv "$here/gpus.now" "$here/gpus"`

func TestC56ClocksPowerAndHeat(t *testing.T) {
	t.Parallel()
	smi := fakesmi.New(t, 1)
	smi.GPUs(fakesmi.GPU{"clocks_event_reasons.active": "0x4", "temperature.gpu": "83"})
	smi.Do(falling)
	script := standin.Script{Clock: standin.Clock{DriftPerRequest: 0.006, DriftMost: 0.4}} // a pair is four requests
	o := measureOnce(t, experiment(`servers: s: `+managed(t, "sglang", script, ""), `host: power_w: 300`,
		`method: two_point: {a: 1, b: 17, repeats: {min: 10, max: 10, target: 0.01}}`), smi.Env())
	p := o.point(t, "s/1000/1")
	if p.GPUClockMin == nil || *p.GPUClockMin >= 1900 || p.GPUClockMean == nil || *p.GPUClockMean <= *p.GPUClockMin || p.GPUPower == nil || *p.GPUPower != 310.5 ||
		p.GPUPowerLimit == nil || *p.GPUPowerLimit != 700 || p.GPUTemperature == nil || *p.GPUTemperature != 83 || p.GPUThrottle != "sw_power_cap" {
		t.Errorf("clocks %v, %v, power %v of %v, temperature %v, throttle reasons %s", p.GPUClockMin, p.GPUClockMean, p.GPUPower, p.GPUPowerLimit, p.GPUTemperature, p.GPUThrottle)
	}
	if !strings.Contains(o.Stdout, "300 W") {
		t.Error("the summary does not say that the cap was not applied")
	}
	for _, d := range []string{"trend", "throttled", "clock_drift"} {
		if !has(p.Doubts, d) {
			t.Errorf("no doubt %s: %s\n%s", d, p.Doubts, p.DoubtDetail)
		}
	}
	caps := map[string]string{}
	for _, s := range o.Settings {
		if s.Name == "host.power_w" {
			caps[s.Source] = s.Value
		}
	}
	if caps["requested"] != "300" || caps["effective"] != "700" {
		t.Errorf("power cap in settings: %v", caps)
	}
	if !strings.Contains(o.Runs[0].Remarks, "a cap of 300 W, which twopoint does not set: GPU 0 is capped at 700 W") {
		t.Errorf("remarks: %s", o.Runs[0].Remarks)
	}
	readings, moments := map[string]int{}, map[string]bool{}
	for _, r := range o.Telemetry {
		readings[r.Device]++
		moments[r.Moment] = true
	}
	if readings["gpu0"] < 3 || readings["gpu0"] != readings["host"] || !moments["launch"] || !moments["after"] {
		t.Errorf("readings %v, at %v", readings, moments)
	}
}

// stranger is a process of somebody else.
func stranger(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("somebody's process was ended: %v", err)
		}
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// neighbours makes the fake sensor list the server's own process once it runs,
// and a stranger in the first reading after the fourth measured pair, which is
// the first of the fourth point, and in no other. The journal, below the current
// folder, tells it where the run is.
func neighbours(pid int) string {
	return fmt.Sprintf(`case "$1" in --query-compute-apps=*)
journal=$(echo runs/*/*/events/o1.jsonl)
cat "$here/residents" > "$here/processes" 2>/dev/null || : > "$here/processes"
own=$(sed -n 's/.*"state":"launch".*"pid":\([0-9]*\).*/\1/p' "$journal" 2>/dev/null | tail -n 1)
[ -n "$own" ] && echo "$own, %[1]s, 2048, server" >> "$here/processes"
if [ ! -e "$here/came" ] && [ "$(grep -c '"type":"repeat".*"role":"measure"' "$journal")" -ge 4 ]; then
	: > "$here/came"
	echo "%[2]d, %[1]s, 8192, /usr/bin/train" >> "$here/processes"
fi ;; esac`, fakesmi.UUID(3), pid)
}

// beside are the points that had requests between the reading that saw a
// stranger and the one before it: it came at some time in between.
func beside(o outcome) map[string]bool {
	points := map[string]bool{}
	var before time.Time
	for _, r := range o.Telemetry {
		if r.Device != "gpu3" {
			continue
		}
		if *r.Foreign > 0 {
			for _, s := range o.Samples {
				if s.StartedAt.After(before) && s.StartedAt.Before(r.At) && s.PointKey != "" {
					points[s.PointKey] = true
				}
			}
		}
		before = r.At
	}
	return points
}

const points = `sweep: context: [1000, 1100, 1200, 1300, 1400]`

func TestC59NoisyNeighbours(t *testing.T) {
	t.Parallel()
	named := func(cmd *exec.Cmd, name string) string {
		return fmt.Sprintf("pid %d (%s) with 8.0 GiB on GPU 3", cmd.Process.Pid, name)
	}
	server := func(t *testing.T) string { return `servers: s: ` + managed(t, "sglang", standin.Script{}, "") }
	t.Run("before, stop", func(t *testing.T) {
		t.Parallel()
		resident := stranger(t)
		smi := fakesmi.New(t, 4)
		smi.Processes(fakesmi.Process{PID: resident.Process.Pid, GPU: 3, MemoryMiB: 8192, Name: "/usr/bin/serve"})
		o := measure(t, experiment(server(t), `host: foreign: "stop"`, quick), smi.Env())
		p := o.status(t, "s/1000/1", "failed", "start-error")
		if p.FailureStage != "launch" || p.FailureScope != "host" || !strings.Contains(p.FailureMessage, named(resident, "/usr/bin/serve")) || o.Exit != 4 {
			t.Errorf("exit %d, stage %s, scope %s: %s", o.Exit, p.FailureStage, p.FailureScope, p.FailureMessage)
		}
		if d := o.Deployments; len(d) != 1 || d[0].PID != nil {
			t.Errorf("a server was started: %+v", d)
		}
	})
	for _, policy := range []string{"warn", "stop"} {
		t.Run("during, "+policy, func(t *testing.T) {
			t.Parallel()
			newcomer := stranger(t)
			smi := fakesmi.New(t, 4)
			hook := neighbours(newcomer.Process.Pid)
			var resident *exec.Cmd
			if policy == "warn" { // with "stop" the server would not be started beside it
				resident = stranger(t)
				hook = fmt.Sprintf("echo '%d, %s, 8192, /usr/bin/serve' > \"$here/residents\"\n", resident.Process.Pid, fakesmi.UUID(3)) + hook
			}
			smi.Do(hook)
			o := measureOnce(t, experiment(server(t), points, `host: foreign: "`+policy+`"`,
				`method: two_point: {a: 1, b: 17, repeats: {min: 3, max: 6, target: 0.5}}`), smi.Env())
			if resident != nil && !strings.Contains(o.Runs[0].Remarks, named(resident, "/usr/bin/serve")) {
				t.Errorf("remarks: %s", o.Runs[0].Remarks)
			}
			there := beside(o)
			if !there["s/1300/1"] || len(there) == len(o.Points) {
				t.Fatalf("the stranger was there beside %v", there)
			}
			for _, p := range o.Points {
				disturbed := there[p.PointKey]
				if flagged := has(p.Doubts, "foreign_process"); flagged != disturbed || flagged && !strings.Contains(p.DoubtDetail, named(newcomer, "/usr/bin/train")) {
					t.Errorf("%s: doubts %s\n%s", p.PointKey, p.Doubts, p.DoubtDetail)
				}
				if p.Status != "ok" && !(disturbed && policy == "stop") {
					t.Errorf("%s is %s (%s)", p.PointKey, p.Status, p.Reason)
				}
			}
			invalid := 0
			for _, r := range o.Repeats {
				if !r.Valid {
					invalid++
					if !there[r.PointKey] || r.Repeat != 1 || r.Reasons != "foreign_process" || !strings.Contains(r.ReasonDetail, named(newcomer, "/usr/bin/train")) {
						t.Errorf("%s pair %d: %s: %s", r.PointKey, r.Repeat, r.Reasons, r.ReasonDetail)
					}
				}
			}
			if want := map[string]int{"stop": len(there)}[policy]; invalid != want {
				t.Errorf("%d pairs invalid, want %d", invalid, want)
			}
			owners := map[string]bool{}
			for _, r := range o.Telemetry {
				var list []event.GPUProcess
				if r.Processes != "" {
					if err := json.Unmarshal([]byte(r.Processes), &list); err != nil {
						t.Fatal(err)
					}
				}
				for _, p := range list {
					owners[p.Name+" "+p.Owner] = true
				}
			}
			if !owners["server own"] || owners["server foreign"] || !owners["/usr/bin/train foreign"] || owners["/usr/bin/serve resident"] != (policy == "warn") {
				t.Errorf("owners %v", owners)
			}
		})
	}
}
