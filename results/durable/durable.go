// Package durable writes files so that they are valid at every instant: the old
// content or the new content is there, whole, whenever the machine stops. Every
// fsync and rename of a run's files goes through it.
package durable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Step is called before and after each step that makes something durable, with
// the step's name ("fsync" or "rename") and the file. It is nil except in tests
// that end the process there.
var Step func(op, path string, after bool)

func step(op, path string, do func() error) error {
	if Step != nil {
		Step(op, path, false)
	}
	err := do()
	if Step != nil && err == nil {
		Step(op, path, true)
	}
	return err
}

// File is what Sync needs of an *os.File.
type File interface {
	Name() string
	Sync() error
}

// Sync flushes an open file to the disk.
func Sync(f File) error { return step("fsync", f.Name(), f.Sync) }

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return Sync(d)
}

// Rename replaces newPath by oldPath, both in one file system, and makes that
// durable.
func Rename(oldPath, newPath string) error {
	if err := step("rename", newPath, func() error { return os.Rename(oldPath, newPath) }); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(newPath))
}

// Write makes the file at path hold what write produces: under a temporary name
// in the same folder, fsynced, renamed. On any error the old file stays and the
// temporary one is removed.
//
// The file gets mode 0644, whatever the umask, so that others may read results.
func Write(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { // all no-ops once the file has its name; they also serve a panic in write
		f.Close()
		os.Remove(f.Name())
	}()
	if err := fill(f, write); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func fill(f *os.File, write func(io.Writer) error) error {
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<18)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := Sync(f); err != nil {
		return err
	}
	return f.Close()
}

// WriteBytes is Write for content that is already there.
func WriteBytes(path string, content []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// Sweep removes what Write leaves in a folder when the process is killed in the
// middle of it. Only for a folder's sole writer.
func Sweep(dir string) error {
	stale, err := fs.Glob(os.DirFS(dir), ".*.tmp-*")
	for _, name := range stale {
		err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
	}
	return err
}
