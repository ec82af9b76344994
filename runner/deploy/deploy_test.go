package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"twopoint/runner/deploy/deploytest"
)

// The test binary is runner, supervisor and every misbehaving server.
func TestMain(m *testing.M) {
	MaybeSupervise()
	if len(os.Args) > 2 && os.Args[1] == "__server" {
		server(os.Args[2], os.Args[3:])
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "__runner" {
		runner(os.Args[2], os.Args[3])
		return
	}
	os.Exit(m.Run())
}

// server is a server that behaves as mode says; "pids" files collect who must be
// gone in the end.
func server(mode string, args []string) {
	switch mode {
	case "wait": // an honest server
		note(args[0])
		forever()
	case "stubborn": // ignores TERM
		signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
		note(args[0])
		forever()
	case "fork": // makes the next server an orphan in a session of its own, and ends
		spawn(os.Environ(), args...)
	case "tree": // honest itself, with children of every kind
		tree(args[0])
		note(args[0])
		forever()
	case "tree-exit": // the same, but ends by itself when told
		tree(args[0])
		note(args[0])
		await(args[1])
		os.Exit(7)
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "signal": // by a shell: Go turns some signals into a panic of its own
		syscall.Exec("/bin/sh", []string{"sh", "-c", "kill -" + args[0] + " $$"}, os.Environ())
	case "print":
		os.Stdout.WriteString(args[0])
	case "fds":
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			link, err := os.Readlink("/proc/self/fd/" + e.Name())
			runtimes := strings.HasPrefix(link, "anon_inode:") || strings.HasPrefix(link, "/proc/") || strings.HasPrefix(link, "/sys/fs/cgroup/")
			if err == nil && !runtimes {
				fmt.Println(e.Name(), link)
			}
		}
		sid, _ := unix.Getsid(0)
		fmt.Println("leader", sid == os.Getpid(), unix.Getpgrp() == os.Getpid())
	default:
		panic("no such server: " + mode)
	}
}

// treeSize is the number of processes that "tree" notes, itself included.
const treeSize = 4

func tree(pids string) {
	spawn(os.Environ(), "wait", pids)
	spawn(os.Environ(), "fork", "stubborn", pids)          // setsid + double fork, ignores TERM
	spawn([]string{"PATH=/bin"}, "fork", "stubborn", pids) // the same without the marker
}

func spawn(env []string, args ...string) {
	c := exec.Command("/proc/self/exe", append([]string{"__server"}, args...)...)
	c.Env = env
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		panic(err)
	}
}

// runner launches a tree and then ends in a way that runs no code of ours.
func runner(mode, dir string) {
	_, err := Launch(context.Background(), serverCommand(dir, "tree", filepath.Join(dir, "pids")))
	if err != nil {
		panic(err)
	}
	await(filepath.Join(dir, "go"))
	if mode == "panic" {
		panic("on purpose")
	}
	forever()
}

func note(file string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	s, _ := readStat(os.Getpid())
	fmt.Fprintf(f, "%d %d\n", os.Getpid(), s.start)
	f.Close()
}

func await(file string) {
	for {
		if _, err := os.Stat(file); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// forever waits as a program that has something to wait for: without cgo Go
// ends one that has nothing.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// testID is a deployment's name that no other test, and no other run of the tests, uses.
func testID(dir string) string { return "test" + dir + "/server" }

func serverCommand(dir, mode string, args ...string) Command {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Command{
		ID:      testID(dir),
		Argv:    append([]string{exe, "__server", mode}, args...),
		Env:     os.Environ(),
		LogPath: filepath.Join(dir, "server.log"),
		Grace:   300 * time.Millisecond,
	}
}

func launch(t *testing.T, ctx context.Context, c Command) *Deployment {
	t.Helper()
	d, err := Launch(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// eventually waits for what must come, with a bound that only a hang reaches.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

func finish(t *testing.T, d *Deployment) Exit {
	t.Helper()
	select {
	case <-d.Done():
		return d.Exit()
	case <-time.After(60 * time.Second):
		t.Fatal("the deployment does not end")
		return Exit{}
	}
}

// noted waits until n processes have written themselves down.
func noted(t *testing.T, file string, n int) []Process {
	t.Helper()
	var ps []Process
	eventually(t, fmt.Sprintf("%d processes in %s", n, file), func() bool {
		ps = nil
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			var p Process
			if _, err := fmt.Sscanf(line, "%d %d\n", &p.PID, &p.Start); err == nil {
				ps = append(ps, p)
			}
		}
		return len(ps) == n
	})
	for _, p := range ps {
		if !lives(p) {
			t.Fatalf("%v should be alive", p)
		}
	}
	return ps
}

func lives(p Process) bool {
	s, ok := readStat(p.PID)
	return ok && s.alive && s.start == p.Start
}

func gone(t *testing.T, ps []Process) {
	t.Helper()
	for _, p := range ps {
		if lives(p) {
			t.Errorf("%v is still alive", p)
		}
	}
}

func TestStopEndsTheTree(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	d := launch(t, t.Context(), serverCommand(dir, "tree", pids))
	ps := noted(t, pids, treeSize)
	if !slices.ContainsFunc(ps, func(p Process) bool { return p.PID == d.PID() && p.Start == d.server.Start }) {
		t.Errorf("server %v is not among %v", d.server, ps)
	}
	var left []Process
	// All but the one that dropped its environment, once the go-betweens have ended.
	eventually(t, "the leftovers to be three", func() bool {
		left = Leftovers(testID(dir))
		return len(left) == treeSize-1
	})
	for _, p := range left {
		if !p.Supervised || p.Deployment != d.marker {
			t.Errorf("%+v is not seen as supervised", p)
		}
	}
	if err := EndLeftovers(t.Context(), d.marker, 0); err != nil {
		t.Error(err)
	}
	for _, p := range ps {
		if !lives(p) {
			t.Errorf("%v was ended although its supervisor lives", p)
		}
	}

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := AwaitGone(short, testID(dir)); err == nil || !strings.Contains(err.Error(), "left over from "+testID(dir)+", still alive: pid ") {
		t.Errorf("AwaitGone of a living tree: %v", err)
	}

	var wg sync.WaitGroup
	for range 3 { // at once, from several goroutines
		wg.Go(func() {
			if err := d.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	gone(t, ps)
	if e := finish(t, d); e.Signal != "SIGTERM" || e.Code != -1 || !e.Asked || e.Lost || e.PeakRSSBytes == 0 {
		t.Errorf("Exit = %+v", e)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Errorf("Stop after the end: %v", err)
	}
	if err := AwaitGone(t.Context(), testID(dir)); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "server.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log, which may hold secrets: %v, %v", info.Mode(), err)
	}
}

func TestStopWithEndedContextKillsAtOnce(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	c := serverCommand(dir, "stubborn", pids)
	c.Grace = time.Hour
	d := launch(t, t.Context(), c)
	ps := noted(t, pids, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	gone(t, ps)
	if e := finish(t, d); e.Signal != "SIGKILL" || !e.Asked {
		t.Errorf("Exit = %+v", e)
	}
}

func TestContextEndsTheTree(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	ctx, cancel := context.WithCancel(t.Context())
	d := launch(t, ctx, serverCommand(dir, "tree", pids))
	ps := noted(t, pids, treeSize)
	cancel()
	if e := finish(t, d); !e.Asked {
		t.Errorf("Exit = %+v", e)
	}
	gone(t, ps)
	if _, err := Launch(ctx, serverCommand(dir, "exit", "0")); !errors.Is(err, context.Canceled) {
		t.Errorf("Launch with an ended context: %v", err)
	}
}

func TestRunnerDies(t *testing.T) {
	for _, mode := range []string{"kill", "panic"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			r := exec.Command("/proc/self/exe", "__runner", mode, dir)
			if err := r.Start(); err != nil {
				t.Fatal(err)
			}
			ps := noted(t, filepath.Join(dir, "pids"), treeSize)
			if mode == "kill" {
				r.Process.Kill()
			} else if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			r.Wait()
			eventually(t, "the tree of a dead runner to end", func() bool { return !slices.ContainsFunc(ps, lives) })
			eventually(t, "its supervisor to end", func() bool { return len(supervisors("test/"+filepath.Base(dir))) == 0 })
		})
	}
}

// The runner may be killed at any moment of a launch.
func TestRunnerKilledWhileLaunching(t *testing.T) {
	for i := range 8 {
		dir := t.TempDir()
		r := exec.Command("/proc/self/exe", "__runner", "kill", dir)
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		r.Process.Kill()
		r.Wait()
		prefix := testID(dir)
		quiet := 0 // looks in a row without anything: a process between fork and exec shows nothing
		eventually(t, "everything to end", func() bool {
			b, _ := os.ReadFile(filepath.Join(dir, "pids"))
			n := len(supervisors(prefix)) + len(Leftovers(prefix))
			for line := range strings.Lines(string(b)) {
				var p Process
				if _, err := fmt.Sscanf(line, "%d %d\n", &p.PID, &p.Start); err == nil && lives(p) {
					n++
				}
			}
			if quiet++; n > 0 {
				quiet = 0
			}
			return quiet == 5
		})
	}
}

// supervisors lists the living supervisors of deployments whose marker begins with prefix.
func supervisors(prefix string) (found []Process) {
	for _, pid := range pids() {
		if m, ok := envValue(pid, supervisesVar); ok && strings.HasPrefix(m, prefix) {
			if s, ok := readStat(pid); ok && s.alive {
				found = append(found, Process{PID: pid, Start: s.start, Deployment: m})
			}
		}
	}
	return found
}

func TestSupervisorKilled(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	d := launch(t, t.Context(), serverCommand(dir, "tree", pids))
	ps := noted(t, pids, treeSize)
	sup := supervisors(d.marker)
	if len(sup) != 1 {
		t.Fatalf("supervisors = %v", sup)
	}
	if err := sup[0].signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := finish(t, d); !e.Lost || e.Code != -1 || e.Asked {
		t.Errorf("Exit = %+v", e)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	// What dropped its environment can no longer be told from a stranger.
	var unmarked []Process
	for _, p := range ps {
		if lives(p) {
			unmarked = append(unmarked, p)
		}
	}
	if len(unmarked) > 1 {
		t.Errorf("still alive: %v", unmarked)
	}
	for _, p := range unmarked {
		p.signal(unix.SIGKILL)
	}
}

func TestExits(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want Exit
	}{
		"code 0":  {[]string{"exit", "0"}, Exit{Code: 0}},
		"code 3":  {[]string{"exit", "3"}, Exit{Code: 3}},
		"kill":    {[]string{"signal", "9"}, Exit{Code: -1, Signal: "SIGKILL"}},
		"segv":    {[]string{"signal", "11"}, Exit{Code: -1, Signal: "SIGSEGV"}},
		"hangup":  {[]string{"signal", "1"}, Exit{Code: -1, Signal: "SIGHUP"}},
		"orphans": {[]string{"fork", "stubborn", "PIDS"}, Exit{Code: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i := range tc.args {
				if tc.args[i] == "PIDS" {
					tc.args[i] = filepath.Join(dir, "pids")
				}
			}
			d := launch(t, t.Context(), serverCommand(dir, tc.args[0], tc.args[1:]...))
			got := finish(t, d)
			got.PeakRSSBytes = 0
			if got != tc.want {
				t.Errorf("Exit = %+v, want %+v", got, tc.want)
			}
			if left := Leftovers(d.marker); len(left) != 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func TestServerExitEndsItsTree(t *testing.T) {
	dir := t.TempDir()
	pids, leave := filepath.Join(dir, "pids"), filepath.Join(dir, "leave")
	d := launch(t, t.Context(), serverCommand(dir, "tree-exit", pids, leave))
	ps := noted(t, pids, treeSize)
	if err := os.WriteFile(leave, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if e := finish(t, d); e.Code != 7 || e.Asked {
		t.Errorf("Exit = %+v", e)
	}
	gone(t, ps)
}

func TestServerInheritsNothing(t *testing.T) {
	// A descriptor without close-on-exec, as a careless parent leaves it.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	leaked, err := unix.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	dir := t.TempDir()
	d := launch(t, t.Context(), serverCommand(dir, "fds"))
	finish(t, d)
	log := filepath.Join(dir, "server.log")
	want := []string{"0 /dev/null", "1 " + log, "2 " + log, "leader true true"}
	if got := d.LogTail(20); !slices.Equal(got, want) {
		t.Errorf("descriptors = %q, want %q", got, want)
	}
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	c := serverCommand(dir, "")
	c.Argv = []string{"env"}
	c.Env = []string{"PATH=/usr/bin:/bin", "A=1", Marker + "=somebody else's"}
	d := launch(t, t.Context(), c)
	finish(t, d)
	got := d.LogTail(20)
	slices.Sort(got)
	want := []string{"A=1", "PATH=/usr/bin:/bin", "SPT_NOENV=1", Marker + "=" + d.marker}
	if !slices.Equal(got, want) {
		t.Errorf("environment = %q, want %q", got, want)
	}
}

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "no program\n", 0o644)
	noformat := write("noformat", "no program\n", 0o755)
	nointerp := write("nointerp", "#!/does/not/exist\n", 0o755)
	write("it's", "x", 0o644)
	for name, tc := range map[string]struct {
		argv []string
		dir  string
		kind error
		text string
	}{
		"not in PATH":        {[]string{"no-such-server", "--port", "1"}, "", ErrNotFound, "start no-such-server --port 1: program not found: no-such-server is not in PATH=/usr/bin:" + dir},
		"no file":            {[]string{dir + "/none"}, "", ErrNotFound, "program not found"},
		"below a file":       {[]string{plain + "/none"}, "", ErrNotFound, "program not found"},
		"not executable":     {[]string{plain, "a b"}, "", ErrNotExecutable, "'a b': program cannot be executed"},
		"denied in PATH":     {[]string{"it's"}, "", ErrNotExecutable, `start 'it'\''s': program cannot be executed`},
		"a directory":        {[]string{dir}, "", ErrNotExecutable, "is a directory"},
		"no format":          {[]string{noformat}, "", ErrNotExecutable, "exec format error"},
		"no interpreter":     {[]string{nointerp}, "", ErrNotExecutable, "interpreter does not exist"},
		"no directory":       {[]string{"env"}, dir + "/none", ErrBadDir, "no such file"},
		"dir is a file":      {[]string{"env"}, plain, ErrBadDir, "not a directory"},
		"secret is not said": {[]string{"no-such-server", "--api-key", "hunter2222"}, "", ErrNotFound, "--api-key [secret KEY]: program"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Command{ID: "test/start", Argv: tc.argv, Env: []string{"PATH=/usr/bin:" + dir}, Dir: tc.dir,
				LogPath: filepath.Join(dir, "log"), Redact: Redactor(map[string]string{"KEY": "hunter2222"})}
			_, err := Launch(t.Context(), c)
			var start *StartError
			if !errors.As(err, &start) || !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Launch = %v, want %v with %q", err, tc.kind, tc.text)
			}
		})
	}
	t.Run("log cannot be written", func(t *testing.T) {
		_, err := Launch(t.Context(), Command{ID: "test/start", Argv: []string{"/bin/true"}, LogPath: dir + "/none/log"})
		var start *StartError
		if err == nil || errors.As(err, &start) || !strings.Contains(err.Error(), "open its log") {
			t.Errorf("Launch = %v", err)
		}
	})
}

func TestDir(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "serve"), []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		program, dir, want string
	}{
		"the runner's":                     {filepath.Join(dir, "serve"), "", here},
		"a program relative to it":         {"./serve", dir, dir},
		"itself relative, and the program": {"./serve", relative, dir},
	} {
		t.Run(name, func(t *testing.T) {
			d := launch(t, t.Context(), Command{ID: "test/dir", Argv: []string{tc.program}, Dir: tc.dir, LogPath: filepath.Join(t.TempDir(), "log")})
			if e := finish(t, d); e.Code != 0 {
				t.Errorf("Exit = %+v", e)
			}
			if got := d.LogTail(1); !slices.Equal(got, []string{tc.want}) {
				t.Errorf("ran in %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLogTail(t *testing.T) {
	const secret = "sk-0123456789abcdef"
	long := strings.Repeat("é", 150<<10) // 300 KiB
	for name, tc := range map[string]struct {
		text string
		n    int
		want []string
	}{
		"last lines":         {"one\ntwo\nthree\n", 2, []string{"two", "three"}},
		"no final newline":   {"one\ntwo", 5, []string{"one", "two"}},
		"nothing":            {"", 5, nil},
		"invalid utf-8":      {"a\xff\xfeb\xc3\n", 5, []string{"a�b�"}},
		"control characters": {"\x1b[1;36m(Worker pid=7)\x1b[0;0m a\x00b\tc\r\n", 5, []string{"(Worker pid=7) ab\tc"}},
		"progress bar":       {"load:  0%\rload: 50%\rload: 100%\nok\n", 5, []string{"load: 100%", "ok"}},
		"secret":             {"key " + secret + " and " + secret + "\n", 5, []string{"key [secret KEY] and [secret KEY]"}},
		"secret in colour":   {"key " + secret[:5] + "\x1b[0m" + secret[5:] + "\n", 5, []string{"key [secret KEY]"}},
		"secret with NULs":   {"key " + secret[:5] + "\x00" + secret[5:] + "\n", 5, []string{"key [secret KEY]"}},
		"wrapped secret":     {"key " + secret[:9] + "\n   " + secret[9:] + " end\n", 5, []string{"key [secret KEY] end"}},
		"half a secret":      {"key " + secret[:12], 5, []string{"key [secret KEY]"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tc.text), 0o644); err != nil {
				t.Fatal(err)
			}
			l := logFile{path: path, redact: Redactor(map[string]string{"KEY": secret, "SHORT": "a", "EMPTY": ""})}
			if got := l.lines(0, tc.n); !slices.Equal(got, tc.want) {
				t.Errorf("lines = %q, want %q", got, tc.want)
			}
		})
	}
	for name, text := range map[string]string{
		"long line":               "first\n" + long + "\nlast\n",
		"long secret line":        "first\n" + strings.Repeat(secret+" ", 20<<10) + "\nlast\n",
		"longer than the window":  strings.Repeat(long, 5),
		"secret across its edge":  strings.Repeat(secret, (logWindow/len(secret))+1000),
		"secrets across its edge": strings.Repeat(secret+"\n", (logWindow/len(secret))+1000),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			l := logFile{path: path, redact: Redactor(map[string]string{"KEY": secret})}
			got := l.lines(0, 100000)
			if len(got) == 0 {
				t.Fatal("no lines")
			}
			for _, line := range got {
				if len(line) > lineMax || !utf8.ValidString(line) {
					t.Errorf("a line of %d bytes, valid %v", len(line), utf8.ValidString(line))
				}
				if strings.Contains(line, "sk-") || strings.Contains(line, "9abcdef") {
					t.Fatalf("a piece of the secret in %.200q", line)
				}
			}
		})
	}
}

// A part of a log that begins or ends within a secret shows no piece of it.
func TestSecretAtTheBorders(t *testing.T) {
	const secret = "sk-0123456789abcdef"
	text := "one\nkey " + secret + " and\n" + secret + "\nlast\n"
	path := filepath.Join(t.TempDir(), "log")
	l := logFile{path: path, redact: Redactor(map[string]string{"KEY": secret})}
	for end := range len(text) + 1 {
		if err := os.WriteFile(path, []byte(text[:end]), 0o600); err != nil {
			t.Fatal(err)
		}
		for from := range end {
			for _, line := range l.lines(int64(from), 10) {
				for n := 8; n <= len(secret); n++ {
					for at := 0; at+n <= len(secret); at++ {
						if strings.Contains(line, secret[at:at+n]) {
							t.Fatalf("%d to %d: %q", from, end, line)
						}
					}
				}
			}
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.lines(int64(strings.Index(text, " and")), 10); !slices.Equal(got, []string{" and", "[secret KEY]", "last"}) {
		t.Errorf("%q", got)
	}
}

func TestRedactorKnowsForms(t *testing.T) {
	r := Redactor(map[string]string{"PEM": "-----BEGIN KEY-----\nab/c+d==\n-----END KEY-----", "Q": `a"quoted\secret`})
	for text, want := range map[string]string{
		`{"key":"-----BEGIN KEY-----\nab/c+d==\n-----END KEY-----"}`: `{"key":"[secret PEM]"}`,
		"-----BEGIN KEY-----\n  ab/c+d==\n  -----END KEY-----":       "[secret PEM]",
		`{"q":"a\"quoted\\secret"}`:                                  `{"q":"[secret Q]"}`,
		"?q=a%22quoted%5Csecret&x":                                   "?q=[secret Q]&x",
		`cut here: a"quoted\se…`:                                     "cut here: [secret Q]…",
		"nothing":                                                    "nothing",
	} {
		if got := r(text); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

func TestRedactorTakesTheLongest(t *testing.T) {
	for range 20 { // map order is random
		r := Redactor(map[string]string{"A": "token", "B": "token-and-more", "C": "tok"})
		if got, want := r("token-and-more token tok"), "[secret B] [secret A] tok"; got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

func TestLogIsAppendedAndTailIsOurs(t *testing.T) {
	dir := t.TempDir()
	c := serverCommand(dir, "print", "ours\n")
	if err := os.WriteFile(c.LogPath, []byte("another life\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := launch(t, t.Context(), c)
	finish(t, d)
	if got := d.LogTail(10); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("LogTail = %q", got)
	}
	if got := d.LogSince(d.LogMark(), 10); got != nil {
		t.Errorf("LogSince(end) = %q", got)
	}
	if got := d.LogSince(0, 10); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("LogSince(0) = %q", got)
	}
	if b, _ := os.ReadFile(c.LogPath); string(b) != "another life\nours\n" {
		t.Errorf("log = %q", b)
	}
}

func TestQuote(t *testing.T) {
	argv := []string{"a", "", "b c", "it's", "$HOME", "--x=1", `back\slash`, "*", "new\nline", "ünï"}
	out, err := exec.Command("sh", "-c", `for a in `+Quote(argv)+`; do printf '%s\0' "$a"; done`).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, argv) {
		t.Errorf("a shell reads %q, want %q", got, argv)
	}
}

// A supervisor that someone stopped does not keep its tree alive.
func TestStoppedSupervisor(t *testing.T) {
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	d := launch(t, t.Context(), serverCommand(dir, "tree", pids))
	ps := noted(t, pids, treeSize)
	if err := d.supervisor.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := d.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	gone(t, ps)
}

// A process that KILL does not end is named, does not hold Stop up for ever, and
// is ended once it can be.
func TestSurvivesKill(t *testing.T) {
	t.Parallel() // it waits for killWait
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	d := launch(t, t.Context(), serverCommand(dir, "wait", pids))
	ps := noted(t, pids, 1)
	release := sync.OnceFunc(deploytest.Hold(t, d.PID()))
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := d.Stop(ctx)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("still alive: pid %d (", d.PID())) {
		t.Errorf("Stop: %v", err)
	}
	if !lives(ps[0]) {
		t.Error("the test held nothing")
	}
	select {
	case <-d.Done():
		t.Error("done, with a process left")
	default:
	}
	release()
	if e := finish(t, d); e.Signal == "" || !e.Asked {
		t.Errorf("Exit = %+v", e)
	}
	if err := d.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	gone(t, ps)
}

// Whatever a server prints is bounded, valid UTF-8, and shows no secret.
func FuzzLog(f *testing.F) {
	const secret = "sk-0123456789abcdef"
	for _, text := range []string{
		"plain\n", "key " + secret + "\n", secret[:9] + "\n  " + secret[9:] + "\n", secret[:5] + "\x1b[0m" + secret[5:], "\r\r\n\xff\xfe\x00\x1b]0;title\a",
		strings.Repeat("é", 3000), "50%\r100%\n" + secret[:12], "\x1b[" + secret, "…" + secret[:10] + "…",
	} {
		f.Add(text, 3)
	}
	path := filepath.Join(f.TempDir(), "log")
	l := logFile{path: path, redact: Redactor(map[string]string{"KEY": secret})}
	f.Fuzz(func(t *testing.T, text string, from int) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		lines := l.lines(int64(max(from, 0)), 50)
		if len(lines) > 50 {
			t.Errorf("%d lines", len(lines))
		}
		for _, line := range lines {
			if len(line) > lineMax || !utf8.ValidString(line) || strings.ContainsAny(line, "\n\r\x00\x1b") {
				t.Errorf("a line of %d bytes: %.200q", len(line), line)
			}
			if strings.Contains(line, secret) {
				t.Errorf("a secret in %q", line)
			}
		}
	})
}
