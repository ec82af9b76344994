// Command mkgguf writes a small random-weight model as a GGUF file that real
// inference servers load. It prints the file's path and size.
//
//	mkgguf -o tiny.gguf -layers 4 -width 128
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"twopoint/test/gguf"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "mkgguf:", err)
		os.Exit(2)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	m := gguf.Small()
	fs := flag.NewFlagSet("mkgguf", flag.ContinueOnError)
	fs.SetOutput(stderr)
	out := fs.String("o", "", "the `file` to write (required)")
	fs.StringVar(&m.Name, "name", m.Name, "general.name")
	fs.Uint64Var(&m.Seed, "seed", m.Seed, "seed of the weights")
	fs.IntVar(&m.Layers, "layers", m.Layers, "layers")
	fs.IntVar(&m.Width, "width", m.Width, "embedding length")
	fs.IntVar(&m.Heads, "heads", m.Heads, "query heads")
	fs.IntVar(&m.KVHeads, "kv-heads", m.KVHeads, "key-value heads")
	fs.IntVar(&m.FFN, "ffn", m.FFN, "feed-forward length")
	fs.IntVar(&m.Context, "context", m.Context, "trained context in tokens")
	fs.BoolVar(&m.RawBytes, "raw-bytes", m.RawBytes, "also say bytes that are no UTF-8 on their own")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *out == "" || fs.NArg() > 0 {
		return fmt.Errorf("usage: mkgguf -o FILE [flags]; -h lists them")
	}
	size, err := write(*out, m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s %d bytes\n", *out, size)
	return err
}

// write puts the model at path in one step, so that a server never finds half
// of a file.
func write(path string, m gguf.Model) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err = m.Write(f); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if err = f.Chmod(0o644); err != nil {
		return 0, err
	}
	if err = f.Close(); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(f.Name(), path)
}
