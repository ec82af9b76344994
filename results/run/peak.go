package run

import "strings"

// peaks are the memory read rates of devices in GB/s (10⁹ bytes), as their vendor
// states them, by nvidia-smi's names without "NVIDIA ". Where editions of one name
// differ it is the fastest's: a bound made from it then never accuses wrongly.
var peaks = map[string]float64{
	"A100-SXM4-80GB":   2039,
	"H100 80GB HBM3":   3350,
	"H200":             4800,
	"B200":             8000,
	"B300 SXM6 AC":     8000,
	"L4":               300,
	"L40S":             864,
	"GeForce RTX 4090": 1008,
	"GeForce RTX 5090": 1792,
	"RTX PRO 6000 Blackwell Workstation Edition":       1792,
	"RTX PRO 6000 Blackwell Max-Q Workstation Edition": 1792,
}

// PeakGBs is the device's nominal memory read rate in GB/s; nil where its name is
// not one that is known.
func (g GPU) PeakGBs() *float64 {
	if peak, ok := peaks[strings.TrimPrefix(g.Name, "NVIDIA ")]; ok {
		return &peak
	}
	return nil
}

// PeakGBs is the nominal memory read rate in GB/s of the machine's GPUs, of the
// fastest where they differ; nil where there is none or one is not known.
func (e *Environment) PeakGBs() *float64 {
	if e == nil {
		return nil
	}
	var most *float64
	for _, g := range e.GPUs {
		peak := g.PeakGBs()
		if peak == nil {
			return nil
		}
		if most == nil || *peak > *most {
			most = peak
		}
	}
	return most
}
