package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"twopoint/results/claim"
	"twopoint/runner/engine/engines"
	"twopoint/schema"
	"twopoint/schema/diag"
	"twopoint/schema/load"
	"twopoint/schema/plan"
)

// specFlags are the flags of commands that read a spec.
type specFlags struct{ set []string }

func (f *specFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "set a field of the spec before it is evaluated, as `path=value`; may be repeated")
}

// planned reads a spec and plans it. Everything that is wrong with it or
// doubtful is in the list; the plan is usable if that holds no errors. What
// this build cannot run is a warning.
func (a *app) planned(arg string, f specFlags) (*load.Loaded, plan.Plan, diag.List) {
	spec, list := load.Load(arg, load.Options{Set: f.set, Stdin: a.stdin})
	if spec == nil {
		return nil, plan.Plan{}, list
	}
	list = append(append(list, vetEngines(spec)...), vetClaims(spec)...)
	if list.HasErrors() {
		return spec, plan.Plan{}, list
	}
	p, more := plan.New(spec.Experiment, spec.Hash, plan.Options{})
	for i := range more {
		if more[i].Pos.File == "" {
			more[i].Pos = spec.Pos(more[i].Path)
		}
	}
	return spec, p, append(append(list, more...), spec.Unsupported()...)
}

// vetEngines asks each variant's engine for settings that it cannot take.
func vetEngines(spec *load.Loaded) diag.List {
	var list diag.List
	for _, v := range spec.Experiment.Variants {
		eng, ok := engines.Lookup(v.Engine)
		if !ok {
			continue // an engine of the language that this build does not speak to: load warns of it
		}
		for _, problem := range eng.Vet(v) {
			path := "variants." + v.Name + "." + problem.Path
			d := diag.Diagnostic{Path: path, Pos: spec.Pos(path), Value: problem.Value, Rule: problem.Rule, Suggest: problem.Suggest}
			// A server's setting reaches each of its variants: one line is enough.
			if !slices.ContainsFunc(list, func(e diag.Diagnostic) bool { return e.Pos == d.Pos && e.Rule == d.Rule && e.Pos.Line > 0 }) {
				list = append(list, d)
			}
		}
	}
	return list
}

// vetClaims holds what a publication states to its own table: a claim that deviates
// there was probably mistyped.
func vetClaims(spec *load.Loaded) diag.List {
	var list diag.List
	for set, p := range spec.Experiment.Published {
		for _, r := range claim.Judge(map[string]schema.Published{set: p}, claim.Printed(p)) {
			if r.Verdict == claim.Deviates || r.Verdict == claim.Invalid {
				path := "published." + set + ".claims." + strings.TrimPrefix(r.ID, set+"/")
				list = append(list, diag.Diagnostic{Severity: diag.Warning, Path: path, Pos: spec.Pos(path), Rule: "is not what the block's own table says: " + r.Detail})
			}
		}
	}
	return list
}

func (a *app) vetCommand() *cobra.Command {
	var f specFlags
	var resolved bool
	cmd := &cobra.Command{
		Use:   "vet SPEC",
		Short: "Check a spec: every mistake at once, one line each",
		Long: `Check a spec without running anything. SPEC is a folder, a .cue, .yaml or .json
file, or - for standard input. Nothing is executed and no network is needed.`,
		Example: `  twopoint vet experiments/quickstart
  twopoint vet spec.cue --set 'sweep.context=[1024, 4096]'
  twopoint vet spec.cue --resolved > resolved.json
` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, _, list := a.planned(args[0], f)
			if err := a.report(list); err != nil {
				return err
			}
			if resolved {
				_, err := a.stdout.Write(spec.Resolved)
				return trouble(err)
			}
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&resolved, "resolved", false, "print the spec as JSON with every default filled in")
	cmd.Flags().BoolVar(&a.json, "json", false, "print diagnostics as JSON lines on stdout")
	return cmd
}

// onlyFlags are the flags that restrict a plan to some of its points.
type onlyFlags struct{ only []string }

func (f *onlyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.only, "only", nil, "measure only these points, as `axis=values`: variant=a,b, context=1024..8192, concurrency=1; the others stay pending")
}

// selection is the set of points that the flags choose, nil for all, and the
// flags in words.
func (f onlyFlags) selection(p plan.Plan) (func(plan.Point) bool, string, error) {
	if len(f.only) == 0 {
		return nil, "", nil
	}
	var filters []plan.Filter
	for _, s := range f.only {
		filter, err := plan.ParseFilter(s)
		if err != nil {
			return nil, "", &exitError{ExitUsage, err}
		}
		filters = append(filters, filter)
	}
	ids, err := p.Filter(filters)
	if err != nil {
		return nil, "", &exitError{ExitUsage, err}
	}
	chosen := make(map[string]bool, len(ids))
	for _, id := range ids {
		chosen[id] = true
	}
	return func(pt plan.Point) bool { return chosen[pt.ID] }, strings.Join(f.only, " "), nil
}
