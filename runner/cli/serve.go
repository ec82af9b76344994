package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"twopoint/runner/serve"
)

// serveCommand hands its words to the embedded server, which spells its flags
// as SGLang does.
func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run the embedded inference server: a small random-weight model, computed for real",
		Long: `A small inference server with a random-weight transformer on twopoint's own
attention kernels: paged KV cache, radix prefix cache, continuous batching,
streaming. It speaks SGLang's native and OpenAI's interfaces. Its time is real
compute. "twopoint serve --help" lists its flags.`,
		Example: `  twopoint serve --model-path tiny-gqa --port 30000
  twopoint serve --model-path tiny-mla --kernel serial_perhead --page-size 1 --placement shuffled`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := serve.Run(cmd.Context(), args, a.stdout, a.stderr); code != 0 {
				return &exitError{code: code}
			}
			return nil
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			fmt.Fprintf(a.stdout, "twopoint %s %s %s/%s", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						fmt.Fprintf(a.stdout, " %.12s", s.Value)
					}
				}
			}
			fmt.Fprintln(a.stdout)
			return nil
		},
	}
}
