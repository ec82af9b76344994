package telemetry

import (
	"context"
	"testing"
)

func TestObserve(t *testing.T) {
	e := Observe(context.Background(), "v-test")
	if e.Hostname == "" || e.Kernel == "" || e.CPU == "" || e.Cores < 1 || e.MemoryBytes < 1<<20 || e.Load1 == nil {
		t.Errorf("facts are missing: %+v", e)
	}
	if e.Versions["twopoint"] != "v-test" || e.Versions["go"] == "" {
		t.Errorf("versions: %v", e.Versions)
	}
}

func TestParseGPUs(t *testing.T) {
	gpus, driver := parseGPUs([]byte("0, NVIDIA H200, GPU-aa, 143771, 700.00, 1980, 3201, 570.124\n" +
		"1, NVIDIA H200, GPU-bb, [N/A], [Not Supported], 1980, 3201, 570.124\nno devices were found\n"))
	if len(gpus) != 2 || driver != "570.124" {
		t.Fatalf("gpus %+v, driver %q", gpus, driver)
	}
	if g := gpus[0]; g.Index != 0 || g.Name != "NVIDIA H200" || g.MemoryBytes == nil || *g.MemoryBytes != 143771<<20 || *g.PowerLimitW != 700 {
		t.Errorf("first: %+v", g)
	}
	if g := gpus[1]; g.MemoryBytes != nil || g.PowerLimitW != nil || g.UUID != "GPU-bb" {
		t.Errorf("what a device does not tell is absent: %+v", g)
	}
	if gpus, _ := parseGPUs(nil); gpus == nil || len(gpus) != 0 {
		t.Errorf("a driver without devices is an empty list, not null: %v", gpus)
	}
}

func FuzzParseGPUs(f *testing.F) {
	f.Add([]byte("0, A, B, 1, 2, 3, 4, 5\n"))
	f.Fuzz(func(t *testing.T, b []byte) { parseGPUs(b) })
}
