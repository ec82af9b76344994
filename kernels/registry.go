package kernels

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

var registry struct {
	sync.RWMutex
	kernels []Kernel // sorted by name
}

// Register makes a variant known by its name. It is called from the init of
// the package that implements the variant, so a name taken twice is a mistake
// of the program and panics.
func Register(k Kernel) {
	registry.Lock()
	defer registry.Unlock()
	i, found := find(k.Name())
	if found {
		panic(fmt.Sprintf("kernels: %s is registered twice", k.Name()))
	}
	registry.kernels = slices.Insert(registry.kernels, i, k)
}

// Lookup returns the variant of that name. The error names the known ones.
func Lookup(name string) (Kernel, error) {
	registry.RLock()
	defer registry.RUnlock()
	i, found := find(name)
	if !found {
		known := make([]string, len(registry.kernels))
		for i, k := range registry.kernels {
			known[i] = k.Name()
		}
		return nil, fmt.Errorf("unknown kernel %q (known: %q)", name, known)
	}
	return registry.kernels[i], nil
}

// All returns every registered variant, sorted by name.
func All() []Kernel {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Clone(registry.kernels)
}

func find(name string) (int, bool) {
	return slices.BinarySearchFunc(registry.kernels, name, func(k Kernel, n string) int {
		return cmp.Compare(k.Name(), n)
	})
}
