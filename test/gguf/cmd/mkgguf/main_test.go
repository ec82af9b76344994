package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunWritesOneFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	var out bytes.Buffer
	if err := run([]string{"-o", path, "-layers", "1", "-width", "32"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() == 0 || !strings.HasPrefix(out.String(), path+" ") {
		t.Errorf("size %d, output %q", info.Size(), out.String())
	}
	if names := list(t, dir); len(names) != 1 {
		t.Errorf("folder holds %v", names)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	for _, args := range [][]string{
		{"-layers", "1"},
		{"-o", "m.gguf", "extra"},
		{"-o", "m.gguf", "-heads", "3"},
		{"-o", "missing/m.gguf"},
		{"-no-such-flag"},
	} {
		dir := t.TempDir()
		t.Chdir(dir)
		if err := run(args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
		if names := list(t, dir); len(names) != 0 {
			t.Errorf("%v left %v", args, names)
		}
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
