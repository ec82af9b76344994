// Package deploytest does to processes what tests of their end need. A process
// comes in; it never runs one itself.
package deploytest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Hold keeps a process of several threads from going away, whoever kills it, until
// release is called: a thread that is traced stays, dead, until its tracer has
// looked at it, and its process with it (ptrace(2), "Death under ptrace"). To the
// rest of the machine that is a process that survives KILL, as one does that is
// stuck in the kernel.
func Hold(t testing.TB, pid int) (release func()) {
	t.Helper()
	var threads []int
	for try := 0; len(threads) == 0 && try < 1000; try++ { // it may have begun a moment ago
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if tid, err := strconv.Atoi(e.Name()); err == nil && tid != pid {
				threads = append(threads, tid)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(threads) == 0 {
		t.Fatalf("process %d has one thread only", pid)
	}
	seized, let, gone := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		runtime.LockOSThread() // the tracer is a thread; it ends with this goroutine, and the tracing with it
		var err error
		for _, tid := range threads {
			if err = unix.PtraceSeize(tid); err != nil {
				break
			}
		}
		seized <- err
		<-let
		for _, tid := range threads {
			unix.Wait4(tid, nil, unix.WALL|unix.WNOHANG, nil)
		}
	}()
	if err := <-seized; err != nil {
		close(let)
		t.Fatalf("trace process %d: %v", pid, err)
	}
	return func() { close(let); <-gone }
}
