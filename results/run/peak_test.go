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

// A rate is what bus and data rate make, where a source gives these; a most that
// the vendor gives is no less.
func TestPeakIsBusTimesRate(t *testing.T) {
	for name, c := range map[string]struct {
		bits, gbitS float64 // of the bus; per pin
		most        bool
	}{
		"A100-SXM4-80GB":   {5120, 3.186, false},
		"B200":             {7680, 2 * 3.996, true},
		"L4":               {192, 2 * 6.251, false},
		"GeForce RTX 4090": {384, 21, false},
		"GeForce RTX 5090": {512, 28, false},
		"RTX PRO 6000 Blackwell Workstation Edition":       {512, 2 * 14.001, false},
		"RTX PRO 6000 Blackwell Max-Q Workstation Edition": {512, 28, false},
	} {
		got, made := peaks[name], c.bits/8*c.gbitS
		if got < 0.999*made || !c.most && got > 1.001*made {
			t.Errorf("%s: %g GB/s, bus and data rate make %g", name, got, made)
		}
	}
}
