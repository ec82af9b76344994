package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"twopoint/results/compare"
	"twopoint/results/report"
	"twopoint/results/table"
)

// compareFlags say what is compared and what is too slow.
type compareFlags struct {
	metric          string
	same, threshold percent
}

func (f *compareFlags) add(cmd *cobra.Command) {
	f.same = compare.Margin
	cmd.Flags().StringVar(&f.metric, "metric", "decode", "what is compared: "+strings.Join(table.Compared, ", "))
	cmd.Flags().Var(&f.same, "same", "points whose ratio lies within this margin are the same")
	cmd.Flags().Var(&f.threshold, "threshold", "exit with 1 where a point is slower by at least this")
	cmd.RegisterFlagCompletionFunc("metric", cobra.FixedCompletions(table.Compared, cobra.ShellCompDirectiveNoFileComp))
}

// percent is a share, written as 5% or 0.05.
type percent float64

func (p *percent) String() string { return fmt.Sprintf("%g%%", 100*float64(*p)) }
func (p *percent) Type() string   { return "percent" }
func (p *percent) Set(s string) error {
	text, is := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(text, 64)
	if is {
		x /= 100
	}
	if err != nil || !(x > 0) || x > 10 {
		return errors.New("a share above 0, such as 5% or 0.05")
	}
	*p = percent(x)
	return nil
}

func (a *app) compareCommand() *cobra.Command {
	var flags compareFlags
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two runs point by point",
		Long: `Join two runs on the readable names of their points (variant/context/concurrency)
and judge run B by run A, point by point: faster, slower, same, ambiguous or not
comparable. The ratio's interval is corrected for the number of points. Of a run with
fewer than three server lives it is widened by 2 %, since its figures know nothing of
what differs from start to start.`,
		Example: `  twopoint compare last~1 last
  twopoint compare before after --metric prefill
  twopoint compare main-build this-build --threshold 5% || echo slower
` + claimExits,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.runArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var sides [2]*table.Tables
			for i, ref := range args {
				var err error
				if _, sides[i], err = a.read(ref); err != nil {
					return err
				}
			}
			return a.compare(args[0], args[1], sides[0], sides[1], flags)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print one JSON object a point")
	return cmd
}

// compare prints how run b compares with run a.
func (a *app) compare(nameA, nameB string, ta, tb *table.Tables, f compareFlags) error {
	if !slices.Contains(table.Compared, f.metric) {
		return exit(ExitUsage, "--metric %q: one of %s", f.metric, strings.Join(table.Compared, ", "))
	}
	ratios := compare.Points(ta.ToCompare(f.metric), tb.ToCompare(f.metric), float64(f.same))
	if a.json {
		if err := a.ratioLines(ratios); err != nil {
			return trouble(err)
		}
	} else {
		a.comparison(nameA, nameB, table.Differences(ta, tb), ratios, f)
	}
	for _, r := range ratios {
		if f.threshold > 0 && r.Verdict == compare.Slower && 1/r.Speedup-1 >= float64(f.threshold) {
			return &exitError{code: ExitClaim}
		}
	}
	return nil
}

// mostDifferences are listed, of which most are settings that follow from another.
const mostDifferences = 20

func (a *app) comparison(nameA, nameB string, differences []table.Difference, ratios []compare.Ratio, f compareFlags) {
	w := a.stdout
	number := map[string]int{}
	for _, r := range ratios {
		number[r.Verdict]++
	}
	var parts []string
	for _, v := range compare.Verdicts {
		parts = append(parts, fmt.Sprintf("%d %s", number[v], v))
	}
	fmt.Fprintf(w, "%s against %s by %s, %d points: %s\n", nameB, nameA, f.metric, len(ratios), strings.Join(parts, ", "))
	if len(differences) > 0 {
		rows := [][]string{{"differs", nameA, nameB}}
		for _, d := range differences[:min(len(differences), mostDifferences)] {
			rows = append(rows, []string{d.What, orNone(d.A), orNone(d.B)})
		}
		fmt.Fprintf(w, "\n%s", columns(rows))
		if more := len(differences) - mostDifferences; more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	rows := [][]string{{"point", nameA, nameB, "speed", "interval", "verdict", ""}}
	for _, r := range ratios {
		row := []string{r.Key, "", "", "", "", r.Verdict, r.Why}
		if r.Verdict != compare.NotComparable {
			x, y := r.A.Of, r.B.Of
			if r.PerStep {
				x, y, row[6] = r.A.PerStep, r.B.PerStep, "per step: accept lengths differ"
			}
			row[1], row[2], row[3] = report.Seconds(*x.Mean), report.Seconds(*y.Mean), fmt.Sprintf("%.3f", r.Speedup)
			row[4] = fmt.Sprintf("%.3f to %.3f", r.Lo, r.Hi)
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(w, "\n%s", columns(report.Filled(rows)))
	for _, c := range compare.Crossovers(ratios) {
		first, then := "ahead", "behind"
		if c.Before == compare.Slower {
			first, then = then, first
		}
		fmt.Fprintf(w, "! %s: %s is %s at %d tokens and %s at %d\n", report.CurveName(c.Variant, c.Concurrency), nameB, first, c.From, then, c.To)
	}
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func (a *app) ratioLines(ratios []compare.Ratio) error {
	enc := json.NewEncoder(a.stdout)
	known := func(x float64) any {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return x
	}
	for _, r := range ratios {
		err := enc.Encode(map[string]any{
			"point_key": r.Key, "variant": r.Variant, "context_requested": r.Context, "concurrency": r.Concurrency,
			"speedup": known(r.Speedup), "speedup_lo": known(r.Lo), "speedup_hi": known(r.Hi), "p": known(r.P), "per_step": r.PerStep, "verdict": r.Verdict, "why": r.Why,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
