package run

import "strings"

// peaks are the memory read rates of devices in GB/s (10⁹ bytes), as their vendor
// states them, by nvidia-smi's names without "NVIDIA ". Where editions of one name
// differ, or the vendor gives a most, it is the fastest: a bound made from it then
// never accuses wrongly. A device whose figure no source gives is not here.
//
// The sources, looked up in December 2026, quote NVIDIA's data sheets; the sheets
// themselves were not at hand. Where bus and data rate are given too, the test
// computes the rate from them.
var peaks = map[string]float64{
	"A100-SXM4-80GB":   2039, // A100 data sheet 1758950 r4, by glennklockwood.com/garden/processors/A100; svethardware.cz 55366 (5120 bit at 3.186 Gbit/s)
	"H100 80GB HBM3":   3350, // that is the SXM5 edition: morphllm.com/nvidia-h200 and openmetal.io after NVIDIA's page of the H200, which compares both
	"H200":             4800, // the same; SXM and NVL alike
	"B200":             8000, // "up to": glennklockwood.com/garden/processors/B200 and docs.vultr.com. The driver's bus and clock make 7672 (pytorch/ao pull request 4002)
	"B300 SXM6 AC":     8000, // "up to": glennklockwood.com/garden/processors/B300, acecloud.ai/blog/nvidia-hgx-b300
	"L4":               300,  // aiwiki.ai/wiki/nvidia_l4 and store.sourcecode.com (192 bit, 6251 MHz)
	"L40S":             864,  // the data sheet's table at mullet.se, product 355414; store.sourcecode.com
	"GeForce RTX 4090": 1008, // thefpsreview.com, specifications (384 bit at 21 Gbit/s)
	"GeForce RTX 5090": 1792, // Linux Format, May 2025 (512 bit at 28 Gbit/s)
	"RTX PRO 6000 Blackwell Workstation Edition":       1792, // itdaily.com and purepc.pl, March 2025 (512 bit; nvidia-smi's 14001 MHz)
	"RTX PRO 6000 Blackwell Max-Q Workstation Edition": 1792, // purepc.pl, March 2025: the same memory
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
