package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/deploy"
)

func (a *app) lsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List runs, newest last",
		Example: `  twopoint ls
  twopoint ls --json | jq -r 'select(.points_failed > 0).folder'
` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := run.List(a.root)
			if err != nil {
				return trouble(err)
			}
			rows := [][]string{{"run", "experiment", "points", "ok", "state", "tags"}}
			for _, dir := range dirs {
				t, err := table.Load(dir)
				if a.json {
					row := map[string]any{"run_id": dir.ID(), "folder": string(dir)}
					if t != nil {
						r := t.Runs[0]
						maps.Copy(row, map[string]any{"run_id": r.RunID, "experiment": r.Experiment, "state": r.State,
							"points_planned": r.Planned, "points_ok": r.OK, "points_failed": r.Failed, "points_pending": r.Pending, "tags": dir.Tags()})
					}
					if err != nil { // unreadable, or damaged and read as far as that
						row["error"] = err.Error()
					}
					b, _ := json.Marshal(row)
					fmt.Fprintf(a.stdout, "%s\n", b)
					continue
				}
				if t == nil { // an unreadable run is listed as what it is
					rows = append(rows, []string{dir.ID(), "", "", "", "unreadable: " + err.Error(), ""})
					continue
				}
				r := t.Runs[0]
				state := r.State
				switch {
				case err != nil:
					state = "damaged: " + err.Error()
				case state == "":
					state = "running or cut off"
				}
				rows = append(rows, []string{dir.ID(), r.Experiment, fmt.Sprint(r.Planned), fmt.Sprint(r.OK), state, strings.Join(dir.Tags(), " ")})
			}
			if a.json {
				return nil
			}
			if len(rows) == 1 {
				fmt.Fprintf(a.stderr, "twopoint: no run below %s\n", a.root)
				return nil
			}
			fmt.Fprint(a.stdout, columns(rows))
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print one JSON object a run")
	return cmd
}

func (a *app) runNames() []string {
	names := []string{"last"}
	dirs, _ := run.List(a.root) // completion has nowhere to report to
	for _, d := range dirs {
		names = append(append(names, d.ID()), d.Tags()...)
	}
	return names
}

// find is the run that RUN names.
func (a *app) find(ref string) (run.Dir, error) {
	dir, err := run.Find(a.root, ref)
	if err != nil {
		return "", &exitError{ExitUsage, err}
	}
	return dir, nil
}

// read finds a run and its tables; of a damaged one what precedes the damage,
// said to be that.
func (a *app) read(ref string) (run.Dir, *table.Tables, error) {
	dir, err := a.find(ref)
	if err != nil {
		return "", nil, err
	}
	t, err := table.Load(dir)
	if t == nil {
		return "", nil, trouble(err)
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "twopoint: %v; what follows was read before the damage\n", err)
	}
	return dir, t, nil
}

// ref names a run so that a command finds it as typed: by its id in the usual
// folder of runs, by its path elsewhere.
func (a *app) ref(dir run.Dir) string {
	if rel, err := filepath.Rel(defaultRoot, string(dir)); err == nil && filepath.IsLocal(rel) {
		return dir.ID()
	}
	return deploy.Quote([]string{string(dir)})
}

func (a *app) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show what a run says: the answer, its table, its doubts",
		Example: `  twopoint show last
  twopoint show quick --json | jq .points
` + exitHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, t, err := a.read(args[0])
			if err != nil {
				return err
			}
			if a.json {
				return trouble(t.JSON(a.stdout))
			}
			a.summary(dir, t)
			fmt.Fprintln(a.stdout, dir)
			return nil
		},
	}
	cmd.Flags().BoolVar(&a.json, "json", false, "print runs, points and fits as one JSON object, by column names")
	return cmd
}

func (a *app) tablesCommand() *cobra.Command {
	var describe bool
	cmd := &cobra.Command{
		Use:   "tables RUN",
		Short: "Rebuild a run's Parquet tables from its events",
		Long: `Derive every table of the run again from its plan and events and replace the files.
A run that is being measured keeps its tables fresh by itself.`,
		Example: `  twopoint tables last
  twopoint tables --columns          # what every column means
` + exitHelp,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if describe {
				rows := [][]string{{"table", "column", "type", "unit", "meaning"}}
				for _, c := range table.Columns() {
					rows = append(rows, []string{c.Table, c.Name, c.Type, c.Unit, c.Meaning})
				}
				fmt.Fprint(a.stdout, columns(rows))
				return nil
			}
			if len(args) == 0 {
				return exit(ExitUsage, "name a run, such as \"twopoint tables last\"")
			}
			dir, err := a.find(args[0])
			if err != nil {
				return err
			}
			t, loadErr := table.Load(dir)
			if t == nil {
				return trouble(loadErr)
			}
			if err := t.Write(dir); err != nil {
				return trouble(err)
			}
			for _, name := range table.Names {
				fmt.Fprintln(a.stdout, dir.Table(name))
			}
			if loadErr != nil {
				return exit(ExitTrouble, "the tables hold what was read before the damage: %w", loadErr)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&describe, "columns", false, "print every table's columns with unit and meaning")
	return cmd
}
