package cpu

import (
	"fmt"
	"sync/atomic"
)

// paths are the implementations that this processor can run, fastest first.
var paths = append(machinePaths(), generic)

// path is the implementation in use.
var path atomic.Pointer[inner]

func init() { path.Store(paths[0]) }

// Paths returns the names of the implementations of the inner loops that this
// processor can run, fastest first: "avx512", "avx2", "generic".
func Paths() []string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = p.name
	}
	return names
}

// Path is the name of the implementation that launches use.
func Path() string { return path.Load().name }

// ForcePath makes launches that begin from now on use one of Paths; the empty
// name means the fastest. It is for comparisons and tests: all paths compute
// the same to within rounding.
func ForcePath(name string) error {
	if name == "" {
		path.Store(paths[0])
		return nil
	}
	for _, p := range paths {
		if p.name == name {
			path.Store(p)
			return nil
		}
	}
	return fmt.Errorf("no %q path on this processor (there are: %q)", name, Paths())
}
