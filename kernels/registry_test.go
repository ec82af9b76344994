package kernels_test

import (
	"slices"
	"strings"
	"testing"

	"twopoint/kernels"
)

func TestRegistry(t *testing.T) {
	var names []string
	for _, k := range kernels.All() {
		names = append(names, k.Name())
		got, err := kernels.Lookup(k.Name())
		if err != nil || got != k {
			t.Errorf("Lookup(%q) = %v, %v", k.Name(), got, err)
		}
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "ref_f64") {
		t.Errorf("names are %q", names)
	}
	if _, err := kernels.Lookup("split_groupd"); err == nil || !strings.Contains(err.Error(), "split_grouped") {
		t.Errorf("error %v does not name the known ones", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name was registered twice")
		}
	}()
	kernels.Register(kernels.All()[0])
}

func TestPlace(t *testing.T) {
	identity, err := kernels.Place(kernels.Identity, 100, 7)
	if err != nil {
		t.Fatal(err)
	}
	a, err := kernels.Place(kernels.Shuffled, 100, 7)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := kernels.Place(kernels.Shuffled, 100, 7)
	other, _ := kernels.Place(kernels.Shuffled, 100, 8)
	switch {
	case !slices.Equal(a, again):
		t.Error("the same seed gave another table")
	case slices.Equal(a, other):
		t.Error("another seed gave the same table")
	case slices.Equal(a, identity):
		t.Error("shuffled is identity")
	}
	slices.Sort(a)
	if !slices.Equal(a, identity) {
		t.Error("shuffled is no permutation")
	}
	if _, err := kernels.Place("scattered", 1, 0); err == nil {
		t.Error("an unknown placement was taken")
	}
}
