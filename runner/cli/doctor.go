package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"twopoint/results/stat"
	"twopoint/runner/deploy"
	"twopoint/runner/telemetry"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine: what would disturb a measurement or keep one from starting",
		Long: `Look at this machine and change nothing. Lines marked ! name what would disturb a
measurement, and what to do about it.`,
		Example: "  twopoint doctor\n" + exitHelp,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			e := telemetry.Observe(cmd.Context(), Version)
			w := a.stdout
			say := func(mark, format string, args ...any) { fmt.Fprintf(w, mark+" "+format+"\n", args...) }
			say(" ", "%s, %s, kernel %s", e.Hostname, e.OS, e.Kernel)
			say(" ", "%s, %d logical CPUs, %.1f GiB of memory", e.CPU, e.Cores, float64(e.MemoryBytes)/(1<<30))
			if e.Governor != "" && e.Governor != "performance" {
				say("!", "CPU governor %q: clocks move with load; \"performance\" holds them", e.Governor)
			}
			if e.Load1 != nil && *e.Load1 > 0.3*float64(e.Cores) {
				say("!", "load average %.2f on %d CPUs: something else is running", *e.Load1, e.Cores)
			}
			switch {
			case e.GPUError != "":
				say("!", "GPUs: %s", e.GPUError)
			case e.GPUs == nil:
				say(" ", "no nvidia-smi: no NVIDIA GPU can be seen")
			}
			for _, g := range e.GPUs {
				say(" ", "GPU %d: %s (%s)", g.Index, g.Name, g.UUID)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			_, processes, _ := new(telemetry.NvidiaSMI).Read(ctx) // an error has been said above
			cancel()
			for _, p := range processes {
				say("!", "in use: %s", stat.Describe(p))
			}
			for _, program := range []string{"python3", "sglang", "llama-server"} {
				if path, err := exec.LookPath(program); err == nil {
					say(" ", "%s: %s", program, path)
				} else {
					say(" ", "%s: not in PATH", program)
				}
			}
			var proxies []string
			for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
				if os.Getenv(name) != "" {
					proxies = append(proxies, name)
				}
			}
			if len(proxies) > 0 {
				say(" ", "%s set: twopoint uses no proxy for its measurements", strings.Join(proxies, ", "))
			}
			var fs unix.Statfs_t
			if err := unix.Statfs(existing(a.root), &fs); err == nil {
				free := float64(fs.Bavail) * float64(fs.Bsize) / (1 << 30)
				mark := " "
				if free < 1 {
					mark = "!"
				}
				say(mark, "%.1f GiB free for runs in %s", free, a.root)
			}
			left := deploy.Leftovers("")
			for _, p := range left {
				say("!", "left over: %s of deployment %s", p, p.Deployment)
			}
			if len(left) == 0 {
				say(" ", "no server of an earlier run is left")
			}
			return nil
		},
	}
}

// existing is path, or the current folder where it is not there yet.
func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return "."
	}
	return path
}
