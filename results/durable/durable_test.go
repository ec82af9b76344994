package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// names are what is in a folder, hidden files too.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWrite(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "points.parquet")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := WriteBytes(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := content(t, path); got != text {
			t.Errorf("holds %q, want %q", got, text)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	if got := names(t, filepath.Dir(path)); !reflect.DeepEqual(got, []string{"points.parquet"}) {
		t.Errorf("the folder has %v", got)
	}
}

// Content is on disk before it gets its name, and the name before Write returns.
func TestStepsInOrder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var got []string
	Step = func(op, at string, after bool) {
		state := ""
		if b, err := os.ReadFile(path); err == nil {
			state = string(b)
		}
		what := strings.TrimPrefix(at, dir)
		if strings.Contains(what, ".tmp-") {
			what = "temporary"
		}
		got = append(got, fmt.Sprintf("%s %s after=%v file=%q", op, what, after, state))
	}
	defer func() { Step = nil }()
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`fsync temporary after=false file="old"`,
		`fsync temporary after=true file="old"`,
		`rename /f after=false file="old"`,
		`rename /f after=true file="new"`,
		`fsync  after=false file="new"`,
		`fsync  after=true file="new"`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A step that fails is not said to be done.
func TestFailedStep(t *testing.T) {
	var got []string
	Step = func(op, _ string, after bool) { got = append(got, fmt.Sprint(op, after)) }
	defer func() { Step = nil }()
	if err := Rename(filepath.Join(t.TempDir(), "nothing"), filepath.Join(t.TempDir(), "f")); err == nil {
		t.Error("nothing was renamed")
	}
	if !reflect.DeepEqual(got, []string{"renamefalse"}) {
		t.Errorf("steps %v", got)
	}
}

func TestFailureKeepsTheOldFile(t *testing.T) {
	full := errors.New("no space left on device")
	for name, write := range map[string]func(io.Writer) error{
		"at once": func(io.Writer) error { return full },
		"after some bytes": func(w io.Writer) error {
			w.Write(make([]byte, 1<<20))
			return full
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			if err := WriteBytes(path, []byte("old")); err != nil {
				t.Fatal(err)
			}
			if err := Write(path, write); !errors.Is(err, full) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v", err)
			}
			if got := names(t, filepath.Dir(path)); content(t, path) != "old" || len(got) != 1 {
				t.Errorf("holds %q beside %v", content(t, path), got)
			}
		})
	}
	t.Run("panic", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		func() {
			defer func() { recover() }()
			Write(path, func(io.Writer) error { panic("a bug") })
			t.Error("the panic was swallowed")
		}()
		if got := names(t, filepath.Dir(path)); len(got) != 0 {
			t.Errorf("%v is left", got)
		}
	})
	t.Run("no folder", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "missing", "f")
		if err := WriteBytes(path, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a folder has the name", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.MkdirAll(filepath.Join(path, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := WriteBytes(path, nil); err == nil {
			t.Error("a folder was replaced by a file")
		}
		if got := names(t, filepath.Dir(path)); len(got) != 1 {
			t.Errorf("the folder has %v", got)
		}
	})
}

// A real refusal of the system to take more bytes, in a process of its own
// whose files are limited in size.
func TestFileSizeLimit(t *testing.T) {
	const env = "DURABLE_TEST_PATH"
	if path := os.Getenv(env); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 16, Max: 1 << 16}); err != nil {
			t.Fatal(err)
		}
		if err := WriteBytes(path, make([]byte, 1<<20)); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("error %v", err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := WriteBytes(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFileSizeLimit$")
	cmd.Env = append(os.Environ(), env+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := names(t, filepath.Dir(path)); content(t, path) != "old" || len(got) != 1 {
		t.Errorf("holds %q beside %v", content(t, path), got)
	}
}
