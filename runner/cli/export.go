package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"twopoint/results/report"
)

func (a *app) exportCommand() *cobra.Command {
	format := report.Formats[0]
	cmd := &cobra.Command{
		Use:   "export RUN",
		Short: "Print a run's points for a paper or a spreadsheet",
		Long: `Print the points of a run: as CSV with every figure and its interval, as a Markdown
or LaTeX table with the digits that the intervals support, or as LaTeX macros, one a
figure, so that a paper's text names points and columns instead of numbers.`,
		Example: `  twopoint export last > points.csv
  twopoint export last --format latex > table.tex
  twopoint export last --format macros > numbers.tex    # \twopoint{split/512/1}{decode_tok_s}
` + exitHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(report.Formats, format) {
				return exit(ExitUsage, "--format %q: one of %s", format, strings.Join(report.Formats, ", "))
			}
			_, t, err := a.read(args[0])
			if err != nil {
				return err
			}
			return trouble(report.Export(a.stdout, t, format))
		},
	}
	cmd.Flags().StringVar(&format, "format", format, "one of "+strings.Join(report.Formats, ", "))
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(report.Formats, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
