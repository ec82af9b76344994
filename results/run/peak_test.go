package run

import "testing"

func TestPeak(t *testing.T) {
	for name, c := range map[string]struct {
		env  *Environment
		want float64 // 0: not known
	}{
		"nothing known":  {nil, 0},
		"no GPU":         {&Environment{}, 0},
		"one":            {&Environment{GPUs: []GPU{{Name: "NVIDIA H200"}}}, 4800},
		"the fastest":    {&Environment{GPUs: []GPU{{Name: "NVIDIA L4"}, {Name: "NVIDIA L40S"}}}, 864},
		"one is unknown": {&Environment{GPUs: []GPU{{Name: "NVIDIA H200"}, {Name: "NVIDIA H200 of tomorrow"}}}, 0},
	} {
		if got := c.env.PeakGBs(); (got == nil) != (c.want == 0) || got != nil && *got != c.want {
			t.Errorf("%s: %v GB/s, want %g", name, got, c.want)
		}
	}
}
