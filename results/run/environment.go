package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Environment is what a run keeps of the machine that measured it
// (environment.json).
type Environment struct {
	Hostname    string            `json:"hostname"`
	OS          string            `json:"os"`
	Kernel      string            `json:"kernel"`
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cpu_cores"`
	Governor    string            `json:"cpu_governor,omitempty"`
	THP         string            `json:"transparent_hugepage,omitempty"`
	MemoryBytes int64             `json:"memory_bytes"`
	Load1       *float64          `json:"load_1min,omitempty"` // load average when the run began
	GPUs        []GPU             `json:"gpus"`                // null where nvidia-smi is not there
	GPUError    string            `json:"gpu_error,omitempty"`
	Versions    map[string]string `json:"versions"` // of twopoint, Go, the GPU driver
	At          time.Time         `json:"at"`
}

// GPU is one device as nvidia-smi reports it.
type GPU struct {
	Index       int      `json:"index"`
	Name        string   `json:"name"`
	UUID        string   `json:"uuid"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
	PowerLimitW *float64 `json:"power_limit_w,omitempty"`
	MaxSMClock  *float64 `json:"max_sm_clock_mhz,omitempty"`
	MaxMemClock *float64 `json:"max_mem_clock_mhz,omitempty"`
}

// Environment reads environment.json; nil where the run has none.
func (d Dir) Environment() (*Environment, error) {
	b, err := os.ReadFile(d.Path("environment.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var e Environment
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path("environment.json"), err)
	}
	return &e, nil
}
