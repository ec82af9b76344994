// Package deploy is one life of a server on this machine: a command goes in,
// a process tree with a log, a port and an end comes out.
//
// A server is never the runner's own child. Launch starts a small supervisor
// (this same binary, see MaybeSupervise) which adopts every orphan below it and
// holds one end of a pipe to the runner. When the runner says stop, or the pipe
// closes because the runner was killed, the supervisor ends the whole tree:
// TERM, the grace time, KILL, until nothing is left, grandchildren in sessions
// of their own included. Should the supervisor itself be killed, the kernel kills
// the server's main process and the runner ends what carries the deployment's
// marker in its environment. Should both be killed at once, Leftovers finds what
// carries the marker and EndLeftovers ends it.
//
// The package never speaks HTTP, never decides whether a server is ready or why
// it failed, and never signals a process without having checked that it is the
// one it started. It needs Linux.
package deploy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command describes a server to launch.
type Command struct {
	// ID names the deployment. It begins the value of the marker variable, so
	// an ID that begins with the run's makes Leftovers(run) find all of a run.
	ID string
	// Argv is the argument vector. Argv[0] without a slash is looked up in the
	// PATH of Env, not in the runner's; a relative path is relative to Dir.
	Argv []string
	// Env is the complete environment, KEY=VALUE. It may hold secrets: it
	// reaches the supervisor through a pipe and is written nowhere. The marker
	// is added to it, and SPT_NOENV=1 unless set (see Marker).
	Env []string
	// Dir is the working directory; empty means the runner's.
	Dir string
	// LogPath takes standard output and standard error, appended, as the server
	// writes them: what it prints of its own secrets is in there, so that the file
	// is its owner's alone (mode 0600). LogTail and LogSince take secrets out.
	LogPath string
	// Grace is the time between TERM and KILL; 0 means DefaultGrace.
	Grace time.Duration
	// Redact removes secrets from text that leaves this package (log lines and
	// the argument vector in errors); nil leaves text as it is.
	Redact func(string) string
}

const (
	// DefaultGrace is the time a server gets between TERM and KILL.
	DefaultGrace = 10 * time.Second
	// orphanGrace is the same for what is left when the server's main process
	// has already ended by itself: there is nobody left to finish work for.
	orphanGrace = 2 * time.Second
	// killWait is how long Stop waits, once its context has ended, for
	// processes that were sent KILL.
	killWait = 10 * time.Second
)

// Exit is how a server's main process ended.
type Exit struct {
	// Code is the exit code; -1 where a signal ended it or nothing is known.
	Code int `json:"code"`
	// Signal is the signal that ended it, such as "SIGKILL", otherwise empty.
	Signal string `json:"signal,omitempty"`
	// Asked is true if the runner had asked for the end (Stop, the context, or
	// its own end) before the main process ended. An end that it did not ask for
	// is a failure whatever its code.
	Asked bool `json:"asked,omitempty"`
	// Lost is true where the supervisor was killed, so that code and signal are
	// unknown.
	Lost bool `json:"lost,omitempty"`
	// PeakRSSBytes is the largest resident set that any single process of the
	// tree reached, by wait4's ru_maxrss; 0 where unknown.
	PeakRSSBytes int64 `json:"peak_rss_bytes,omitempty"`
}

// String says the exit in a few words, for messages.
func (e Exit) String() string {
	switch {
	case e.Lost:
		return "exit status unknown (supervisor was killed)"
	case e.Signal != "":
		return "killed by " + e.Signal
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Errors of a launch that are the command's own fault, found in a *StartError
// with errors.Is.
var (
	ErrNotFound      = errors.New("program not found")
	ErrNotExecutable = errors.New("program cannot be executed")
	ErrBadDir        = errors.New("working directory cannot be used")
)

// StartError says that the command could not be started.
type StartError struct {
	Kind error  // ErrNotFound, ErrNotExecutable, ErrBadDir
	Line string // the argument vector, to paste into a shell, secrets removed
	Err  error  // the system's own answer
}

func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v: %v", e.Line, e.Kind, e.Err) }

// Unwrap gives both the kind and the cause.
func (e *StartError) Unwrap() []error { return []error{e.Kind, e.Err} }

// Deployment is a launched server. Its methods may be called from any goroutine.
type Deployment struct {
	command Command
	marker  string // of the marker variable: the command's ID, a dot and a random suffix
	server  Process
	log     logFile

	supervisor *exec.Cmd
	mu         sync.Mutex // guards writes to control
	control    *os.File

	done    chan struct{}
	exit    Exit  // valid once done is closed
	leftErr error // what could not be ended; valid once done is closed
}

// Launch starts the command and returns once its program runs. It says nothing
// about readiness. When ctx ends the deployment is stopped as by Stop.
//
// A command that cannot be started gives a *StartError; any other error is the
// machine's or the program's own trouble.
func Launch(ctx context.Context, c Command) (*Deployment, error) {
	if !supervisable.Load() {
		return nil, errors.New("deploy: MaybeSupervise was not called at the start of this program")
	}
	if c.ID == "" || len(c.Argv) == 0 || strings.ContainsRune(c.ID, 0) {
		return nil, errors.New("deploy: a command needs an id and an argument vector")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start deployment %s: %w", c.ID, err)
	}
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	path, err := c.resolve()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(c.Dir) // the supervisor is elsewhere
	if err != nil {
		return nil, fmt.Errorf("start deployment %s: %w", c.ID, err)
	}
	log, err := os.OpenFile(c.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start deployment %s: open its log: %w", c.ID, err)
	}
	defer log.Close()
	size, err := log.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("start deployment %s: %w", c.ID, err)
	}

	d := &Deployment{
		command: c,
		marker:  c.ID + "." + randomHex(),
		log:     logFile{path: c.LogPath, start: size, redact: c.Redact},
		done:    make(chan struct{}),
	}
	first, err := d.supervise(log, spec{
		Marker: d.marker, Path: path, Argv: c.Argv, Env: c.environment(d.marker), Dir: dir, Grace: c.Grace,
	})
	if err != nil {
		return nil, fmt.Errorf("start deployment %s: start its supervisor: %w", c.ID, err)
	}
	r, ok := <-first
	switch {
	case !ok:
		<-d.done
		return nil, fmt.Errorf("start deployment %s: its supervisor ended at once; its log ends with %q", c.ID, d.LogTail(3))
	case r.Errno != 0:
		<-d.done
		return nil, c.startError(syscall.Errno(r.Errno))
	case r.Err != "":
		<-d.done
		return nil, fmt.Errorf("start deployment %s: %s", c.ID, r.Err)
	}
	d.server = Process{PID: r.PID, Start: r.Start, Name: filepath.Base(path), Deployment: d.marker, Supervised: true}
	release := context.AfterFunc(ctx, func() { d.order(orderStop) })
	go func() { <-d.done; release() }()
	return d, nil
}

// supervise starts the supervisor and hands it the spec. The channel gives its
// first report, or is closed if it ended without one.
func (d *Deployment) supervise(log *os.File, s spec) (<-chan report, error) {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statusR, statusW, err := os.Pipe()
	if err != nil {
		controlR.Close()
		controlW.Close()
		return nil, err
	}
	// /proc/self/exe is this very program, also when its file was replaced.
	d.supervisor = &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{os.Args[0], superviseArg},
		Env:         []string{supervisesVar + "=" + d.marker},
		Dir:         "/",
		Stdout:      log,
		Stderr:      log,
		ExtraFiles:  []*os.File{controlR, statusW},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = d.supervisor.Start()
	controlR.Close() // its ends are its own: with it they close
	statusW.Close()
	if err != nil {
		controlW.Close()
		statusR.Close()
		return nil, err
	}
	d.control = controlW
	first := make(chan report, 1)
	go d.watch(statusR, first)
	d.send(s)
	return first, nil
}

// watch follows the supervisor's reports until it has ended.
func (d *Deployment) watch(status *os.File, first chan<- report) {
	d.exit = Exit{Code: -1, Lost: true}
	ended := false
	dec := json.NewDecoder(status)
	for n := 0; ; n++ {
		var r report
		if err := dec.Decode(&r); err != nil {
			break
		}
		if n == 0 {
			first <- r
		}
		if r.Exit != nil {
			d.exit = *r.Exit
		}
		ended = ended || r.Ended
	}
	status.Close()
	d.supervisor.Wait() // its status carries nothing that the reports do not
	d.mu.Lock()
	d.control.Close()
	d.mu.Unlock()
	if !ended {
		ctx, cancel := context.WithTimeout(context.Background(), killWait)
		d.leftErr = end(ctx, 0, func() []Process {
			return marked(func(m string) bool { return m == d.marker })
		})
		cancel()
	}
	close(first)
	close(d.done)
}

// send writes one message to the supervisor. An error means that it has ended,
// which watch sees for itself.
func (d *Deployment) send(message any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	json.NewEncoder(d.control).Encode(message)
}

func (d *Deployment) order(o order) { d.send(o) }

// Done is closed when the server has ended, whoever ended it, and nothing of
// its tree is left.
func (d *Deployment) Done() <-chan struct{} { return d.done }

// Exit is how the server's main process ended; valid once Done is closed.
func (d *Deployment) Exit() Exit {
	select {
	case <-d.done:
		return d.exit
	default:
		return Exit{Code: -1}
	}
}

// Stop ends the whole process tree and waits until it is gone: TERM, the grace
// time, KILL. When ctx ends first, KILL is sent at once and Stop waits a few
// seconds more; what is still there then (a process stuck in the kernel, or held
// by a debugger) is named in the error, and the supervisor goes on trying. Stop may be called any
// number of times, also after the end.
func (d *Deployment) Stop(ctx context.Context) error {
	d.order(orderStop)
	select {
	case <-d.done:
		return d.left()
	case <-ctx.Done():
	}
	d.supervisor.Process.Signal(syscall.SIGCONT) // someone may have stopped it; then no order has reached it yet
	d.order(orderKill)
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-d.done:
		return d.left()
	case <-timer.C:
		return fmt.Errorf("stop deployment %s: %w; still alive: %s", d.command.ID, ctx.Err(), list(d.living()))
	}
}

// living is what there is of the deployment, by its marker or below its
// supervisor: what is dying has no environment left to read.
func (d *Deployment) living() []Process {
	found := Leftovers(d.marker)
	for _, p := range descendants(d.supervisor.Process.Pid) {
		if !slices.ContainsFunc(found, func(f Process) bool { return f.PID == p.PID && f.Start == p.Start }) {
			found = append(found, p)
		}
	}
	return found
}

func (d *Deployment) left() error {
	if d.leftErr != nil {
		return fmt.Errorf("stop deployment %s after its supervisor was killed: %w", d.command.ID, d.leftErr)
	}
	return nil
}

// PID is the server's main process, also its process group and session.
func (d *Deployment) PID() int { return d.server.PID }

// resolve finds the program as execve and a shell would, with the command's own
// PATH and directory, so that the reason of a failure is known before the fork.
func (c Command) resolve() (string, error) {
	if c.Dir != "" {
		info, err := os.Stat(c.Dir)
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "chdir", Path: c.Dir, Err: syscall.ENOTDIR}
		}
		if err != nil {
			return "", &StartError{Kind: ErrBadDir, Line: c.line(), Err: err}
		}
	}
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(c.Dir, name)
		}
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", fmt.Errorf("start %s: %w", c.line(), err)
		}
		return abs, c.executable(abs)
	}
	path := lookup(c.Env, "PATH")
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(c.Dir, dir)
		}
		full, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		switch err := c.executable(full); {
		case err == nil:
			return full, nil
		case errors.Is(err, ErrNotExecutable) && denied == nil:
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &StartError{Kind: ErrNotFound, Line: c.line(), Err: fmt.Errorf("%s is not in PATH=%s", name, path)}
}

func (c Command) executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return &StartError{Kind: ErrNotFound, Line: c.line(), Err: err}
	case err != nil:
		return &StartError{Kind: ErrNotExecutable, Line: c.line(), Err: err}
	case info.IsDir():
		return &StartError{Kind: ErrNotExecutable, Line: c.line(), Err: &fs.PathError{Op: "exec", Path: path, Err: syscall.EISDIR}}
	case info.Mode()&0o111 == 0:
		return &StartError{Kind: ErrNotExecutable, Line: c.line(), Err: &fs.PathError{Op: "exec", Path: path, Err: syscall.EACCES}}
	}
	return nil
}

// startError sorts what the system said to fork and exec. The program exists
// (resolve looked), so ENOENT speaks of its interpreter.
func (c Command) startError(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOENT:
		return &StartError{Kind: ErrNotExecutable, Line: c.line(), Err: fmt.Errorf("its interpreter does not exist: %w", errno)}
	case syscall.EACCES, syscall.EPERM, syscall.ENOEXEC, syscall.ENOTDIR, syscall.ELOOP, syscall.ETXTBSY, syscall.EINVAL, syscall.E2BIG:
		return &StartError{Kind: ErrNotExecutable, Line: c.line(), Err: errno}
	}
	return fmt.Errorf("start %s: %w", c.line(), errno)
}

func (c Command) line() string {
	line := Quote(c.Argv)
	if c.Redact != nil {
		line = c.Redact(line)
	}
	return line
}

// environment is the command's, with the marker in it.
func (c Command) environment(marker string) []string {
	env := make([]string, 0, len(c.Env)+2)
	for _, kv := range c.Env {
		if !strings.HasPrefix(kv, Marker+"=") {
			env = append(env, kv)
		}
	}
	if lookup(env, "SPT_NOENV") == "" {
		env = append(env, "SPT_NOENV=1")
	}
	return append(env, Marker+"="+marker)
}

// lookup gives the value that a program sees: the last one of that name.
func lookup(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// Quote joins an argument vector into a line that can be pasted into a POSIX shell.
func Quote(argv []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	words := make([]string, len(argv))
	for i, w := range argv {
		if w == "" || strings.Trim(w, plain) != "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

func randomHex() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
