package runner

import (
	"maps"
	"os"
	"slices"
	"testing"

	"twopoint/results/event"
	"twopoint/schema"
	"twopoint/schema/plan"
)

func TestVisibleGPUs(t *testing.T) {
	gpus := []event.GPUReading{{Index: 0, UUID: "GPU-aa11"}, {Index: 1, UUID: "GPU-ab22"}, {Index: 2, UUID: "GPU-ac33"}, {Index: 3}}
	every := []int{0, 1, 2, 3}
	for _, c := range []struct {
		value string
		want  []int
	}{
		{"unset", every},
		{"1", []int{1}},
		{"2, 0", []int{0, 2}},
		{"", nil},
		{"-1", nil},
		{"1,7,0", []int{1}}, // CUDA stops at the first that is not there
		{"GPU-ab", []int{1}},
		{"GPU-ac33,3", []int{2, 3}},
		{"MIG-1234", every}, // a part of some GPU
		{"GPU-zz", every},
		{"NoDevFiles", every},
	} {
		t.Run(c.value, func(t *testing.T) {
			l := &life{variant: plan.Variant{Variant: schema.Variant{}}}
			t.Setenv("CUDA_VISIBLE_DEVICES", "3")
			os.Unsetenv("CUDA_VISIBLE_DEVICES")
			if c.value != "unset" {
				l.variant.Env = map[string]schema.EnvValue{"CUDA_VISIBLE_DEVICES": {Value: c.value}}
			}
			if got := slices.Sorted(maps.Keys(l.visibleGPUs(gpus))); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			t.Setenv("CUDA_VISIBLE_DEVICES", "2")
			if c.value == "unset" {
				if got := slices.Sorted(maps.Keys(l.visibleGPUs(gpus))); !slices.Equal(got, []int{2}) {
					t.Errorf("of our own environment: %v", got)
				}
			}
		})
	}
}
