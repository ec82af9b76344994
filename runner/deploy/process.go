package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Marker is the environment variable that every process of a deployment
// inherits. It is read back from /proc/PID/environ, which Python's setproctitle
// (used by SGLang and vLLM workers) overwrites unless SPT_NOENV is set
// (py-setproctitle, README).
const Marker = "TWOPOINT_DEPLOYMENT"

// supervisesVar is in the supervisor's own environment, with the same value.
const supervisesVar = "TWOPOINT_SUPERVISES"

// Process identifies a process: a number alone may be used again, together with
// the start time it is not.
type Process struct {
	PID        int
	Start      uint64 // clock ticks after boot (field 22 of /proc/PID/stat)
	Name       string // the kernel's name for it, at most 15 bytes
	Deployment string // value of its marker variable, where that was read
	Supervised bool   // the deployment's supervisor still lives above it and will end it
}

func (p Process) String() string { return fmt.Sprintf("pid %d (%s)", p.PID, p.Name) }

func list(ps []Process) string {
	names := make([]string, len(ps))
	for i, p := range ps {
		names[i] = p.String()
	}
	return strings.Join(names, ", ")
}

// Leftovers lists the living processes whose marker begins with prefix; an empty
// prefix gives everything that any runner of this user left or is still running.
func Leftovers(prefix string) []Process {
	return marked(func(m string) bool { return strings.HasPrefix(m, prefix) })
}

// EndLeftovers ends the processes whose marker begins with prefix and whose
// supervisor is gone: TERM, grace, KILL, until none is left or ctx ends. What a
// living supervisor looks after is left to it.
func EndLeftovers(ctx context.Context, prefix string, grace time.Duration) error {
	return end(ctx, grace, func() []Process {
		var orphans []Process
		for _, p := range Leftovers(prefix) {
			if !p.Supervised {
				orphans = append(orphans, p)
			}
		}
		return orphans
	})
}

// AwaitGone waits until no process lives whose marker begins with prefix,
// whoever ends it; the error, when ctx ends first, names those that are left.
func AwaitGone(ctx context.Context, prefix string) error {
	var r rounds
	for {
		left := Leftovers(prefix)
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			id := left[0].Deployment
			return fmt.Errorf("left over from %s, still alive: %s", id[:max(0, strings.LastIndexByte(id, '.'))], list(left))
		case <-time.After(r.pause()):
		}
	}
}

// end signals what find gives until it gives nothing twice in a row: a process
// that forks while /proc is being read can hide from one look.
func end(ctx context.Context, grace time.Duration, find func() []Process) error {
	deadline := time.Now().Add(grace)
	var r rounds
	for empty := 0; ; {
		left := find()
		if len(left) > 0 {
			empty = 0
		} else if empty++; empty == 2 {
			return nil
		}
		err := r.round(left, !time.Now().Before(deadline))
		select {
		case <-ctx.Done():
			if len(left) == 0 {
				return nil
			}
			return fmt.Errorf("%s still alive: %w", list(left), errors.Join(ctx.Err(), err))
		case <-time.After(r.pause()):
		}
	}
}

// rounds remembers who has had TERM and how long to wait for the next look.
type rounds struct {
	termed map[[2]uint64]bool
	wait   time.Duration
}

func (r *rounds) round(ps []Process, kill bool) (err error) {
	if r.termed == nil {
		r.termed = map[[2]uint64]bool{}
	}
	for _, p := range ps {
		key := [2]uint64{uint64(p.PID), p.Start}
		switch {
		case kill:
			err = errors.Join(err, p.signal(unix.SIGKILL))
		case !r.termed[key]:
			r.termed[key] = true
			err = errors.Join(err, p.signal(unix.SIGTERM))
		}
	}
	return err
}

func (r *rounds) pause() time.Duration {
	r.wait = min(max(r.wait*3/2, 10*time.Millisecond), 250*time.Millisecond)
	return r.wait
}

// signal reaches p or nothing: the descriptor is opened first and holds whatever
// process has the number; if that still has p's start time it is p. A process
// that is gone is no error.
func (p Process) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == nil {
		defer unix.Close(fd)
	} else if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if s, ok := readStat(p.PID); !ok || s.start != p.Start {
		return nil
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	} else { // kernels before 5.3 have no pidfd_open
		err = unix.Kill(p.PID, sig)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%v to %v: %w", unix.SignalName(sig), p, err)
	}
	return nil
}

// descendants lists the living processes below root.
func descendants(root int) []Process {
	stats := map[int]stat{}
	children := map[int][]int{}
	for _, pid := range pids() {
		if s, ok := readStat(pid); ok {
			stats[pid] = s
			children[s.parent] = append(children[s.parent], pid)
		}
	}
	var found []Process
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		queue = append(queue, children[pid]...)
		if s := stats[pid]; s.alive {
			found = append(found, Process{PID: pid, Start: s.start, Name: s.name})
		}
	}
	return found
}

// marked lists the living processes whose marker satisfies match.
func marked(match func(string) bool) []Process {
	var found []Process
	for _, pid := range pids() {
		before, ok := readStat(pid)
		if !ok || !before.alive {
			continue
		}
		m, ok := envValue(pid, Marker)
		if !ok || !match(m) {
			continue
		}
		// The environment is this process's only if nobody took the number meanwhile.
		if after, ok := readStat(pid); ok && after.start == before.start {
			found = append(found, Process{
				PID: pid, Start: before.start, Name: before.name, Deployment: m, Supervised: supervised(before.parent, m),
			})
		}
	}
	return found
}

// supervised tells whether pid or one of its ancestors is the supervisor of the
// deployment with that marker.
func supervised(pid int, marker string) bool {
	for depth := 0; pid > 1 && depth < 1000; depth++ {
		if m, ok := envValue(pid, supervisesVar); ok && m == marker {
			return true
		}
		s, ok := readStat(pid)
		if !ok {
			return false
		}
		pid = s.parent
	}
	return false
}

type stat struct {
	name   string
	alive  bool
	parent int
	start  uint64
}

// readStat parses /proc/PID/stat (proc_pid_stat(5)); the name in parentheses may
// itself hold parentheses and spaces.
func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 0 || to < from {
		return stat{}, false
	}
	f := strings.Fields(string(b[to+1:])) // f[0] is field 3
	if len(f) < 20 {
		return stat{}, false
	}
	parent, err1 := strconv.Atoi(f[1])
	threads, err2 := strconv.Atoi(f[17])
	start, err3 := strconv.ParseUint(f[19], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return stat{}, false
	}
	// A zombie with more than one thread is a process whose main thread ended.
	alive := (f[0] != "Z" && f[0] != "X") || threads > 1
	return stat{name: strings.ToValidUTF8(string(b[from+1:to]), "�"), alive: alive, parent: parent, start: start}, true
}

func envValue(pid int, name string) (string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(name+"=")); ok {
			return string(v), true
		}
	}
	return "", false
}

func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	found := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			found = append(found, pid)
		}
	}
	return found
}
