package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// superviseArg as the first argument makes a program the supervisor.
const superviseArg = "__supervise"

var supervisable atomic.Bool

// spec is the first message from the runner to the supervisor.
type spec struct {
	Marker string
	Path   string
	Argv   []string
	Env    []string
	Dir    string
	Grace  time.Duration
}

// order is every later message. The end of the pipe means orderStop.
type order string

const (
	orderStop order = "stop" // TERM, grace, KILL
	orderKill order = "kill" // KILL now
)

// report is a message from the supervisor to the runner. The first has PID and
// Start, or Errno or Err if the server could not be started; one has Exit; the
// last has Ended, when nothing of the tree is left.
type report struct {
	PID   int    `json:",omitempty"`
	Start uint64 `json:",omitempty"`
	Errno int    `json:",omitempty"`
	Err   string `json:",omitempty"`
	Exit  *Exit  `json:",omitempty"`
	Ended bool   `json:",omitempty"`
}

// MaybeSupervise must be called first thing in main, and in TestMain of packages
// that launch servers. In a process that Launch started as a supervisor it takes
// over and does not return; otherwise it returns at once and allows Launch.
func MaybeSupervise() {
	if len(os.Args) < 2 || os.Args[1] != superviseArg {
		supervisable.Store(true)
		return
	}
	if err := supervise(); err != nil {
		fmt.Fprintln(os.Stderr, "twopoint supervisor:", err)
		os.Exit(2)
	}
	os.Exit(0)
}

// supervise runs one server and ends when nothing of its tree is left.
func supervise() error {
	// The server's parent-death signal follows the thread that started it, not
	// the process, so this goroutine keeps its thread until the end.
	runtime.LockOSThread()
	closeOnExec()
	control, status := os.NewFile(3, "control"), os.NewFile(4, "status")
	in, out := json.NewDecoder(control), json.NewEncoder(status)
	var s spec
	if err := in.Decode(&s); err != nil {
		return fmt.Errorf("this is not a command to type; no instructions on descriptor 3: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	orders := make(chan order)
	go func() {
		defer close(orders)
		for {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()

	server, err := s.start()
	if err != nil {
		r := report{Err: err.Error(), Ended: true}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			r.Errno = int(errno)
		}
		return out.Encode(r)
	}
	st, _ := readStat(server)
	out.Encode(report{PID: server, Start: st.start}) // a runner that is gone is noticed on the other pipe

	var (
		reaped   = reap()
		exit     *Exit
		peakRSS  int64
		asked    bool
		ending   bool
		deadline time.Time
		again    <-chan time.Time
		r        rounds
	)
	begin := func(grace time.Duration) {
		if at := time.Now().Add(grace); !ending || at.Before(deadline) {
			deadline = at
		}
		ending, r.wait = true, 0
	}
	for {
		select {
		case o, ok := <-orders:
			asked = true
			if !ok {
				orders = nil
			}
			if o == orderKill {
				begin(0)
			} else if !ending {
				begin(s.Grace)
			}
		case <-signals: // from outside: an end, but not one that the runner asked for
			if !ending {
				begin(s.Grace)
			}
		case child, ok := <-reaped:
			if !ok {
				reaped = nil
				break
			}
			peakRSS = max(peakRSS, child.rss)
			if child.pid == server {
				exit = &Exit{Code: child.status.ExitStatus(), Asked: asked}
				if child.status.Signaled() {
					exit.Signal = unix.SignalName(child.status.Signal())
				}
				out.Encode(report{Exit: exit}) // known now, should the supervisor not see the end
				begin(min(orphanGrace, s.Grace))
			}
		case <-again:
		}
		if !ending {
			continue
		}
		// Every orphan below becomes a child of this process, so having no
		// children means that the tree is empty. The marker finds what entered
		// the tree's environment but not the tree.
		left := marked(func(m string) bool { return m == s.Marker })
		if reaped != nil {
			left = append(left, descendants(os.Getpid())...)
		} else if len(left) == 0 {
			exit.PeakRSSBytes = peakRSS
			out.Encode(report{Exit: exit, Ended: true})
			return nil
		}
		r.round(left, !time.Now().Before(deadline))
		again = time.After(r.pause())
	}
}

// start runs the server: own session, null standard input, the supervisor's
// standard output and error (the log), no other descriptor.
func (s spec) start() (int, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("open the null device: %v", err)
	}
	defer null.Close()
	return syscall.ForkExec(s.Path, s.Argv, &syscall.ProcAttr{
		Dir:   s.Dir,
		Env:   s.Env,
		Files: []uintptr{null.Fd(), 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
}

type child struct {
	pid    int
	status syscall.WaitStatus
	rss    int64 // bytes
}

// reap waits for children, own and adopted, and closes the channel when there
// are none. It may only be called once there is one.
func reap() <-chan child {
	c := make(chan child)
	go func() {
		defer close(c)
		for {
			var ws syscall.WaitStatus
			var ru syscall.Rusage
			pid, err := syscall.Wait4(-1, &ws, 0, &ru)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return
			}
			c <- child{pid, ws, ru.Maxrss * 1024}
		}
	}()
	return c
}

// closeOnExec keeps the pipes, and whatever a careless shell or make left open,
// from the server.
func closeOnExec() {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		unix.CloseOnExec(3)
		unix.CloseOnExec(4)
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		if fd, err := strconv.Atoi(n); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
