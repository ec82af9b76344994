package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"twopoint/results/claim"
	"twopoint/results/report"
	"twopoint/results/table"
)

func (a *app) checkCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "check RUN",
		Short: "Hold a run to the published figures of its spec",
		Long: `Give every published figure and statement of the run's spec its verdict:

  reproduced     what was measured, with its interval, lies within what the claim accepts
  deviates       it lies outside
  inconclusive   it does neither, or has no interval
  out_of_scope   the claim is about other hardware, another model or engine
  not_measured   the run has no such point or figure
  invalid        the measurement is not valid, or breaches a physical bound

A claim that deviates or is invalid makes the exit code 1; with --strict any that is
not reproduced does.`,
		Example: `  twopoint check last
  twopoint check last --strict && echo all of it is reproduced
  twopoint check last --json | jq -r 'select(.verdict == "deviates").claim_id'
` + claimExits,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, t, err := a.read(args[0])
			if err != nil {
				return err
			}
			if a.json {
				if err := t.JSONLines(a.stdout, "claims"); err != nil {
					return trouble(err)
				}
			} else {
				a.verdicts(t.Claims)
			}
			for _, c := range t.Claims {
				if c.Verdict == claim.Deviates || c.Verdict == claim.Invalid || strict && c.Verdict != claim.Reproduced {
					return &exitError{code: ExitClaim}
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "ask that every claim is reproduced")
	cmd.Flags().BoolVar(&a.json, "json", false, "print one JSON object a claim, by column names")
	return cmd
}

// verdicts prints every claim, and how many there are of each verdict.
func (a *app) verdicts(claims []table.ClaimRow) {
	if len(claims) == 0 {
		fmt.Fprintln(a.stdout, "The spec publishes no figures.")
		return
	}
	rows := [][]string{{"verdict", "claim", "published", "why"}}
	for _, c := range claims {
		rows = append(rows, []string{c.Verdict, c.ClaimID, c.Published, c.Detail})
	}
	fmt.Fprintf(a.stdout, "%s\n%s\n", columns(rows), report.ClaimCount(claims))
}
