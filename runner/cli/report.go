package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"twopoint/results/durable"
	"twopoint/results/report"
	"twopoint/results/run"
	"twopoint/results/table"
)

// pageName is the page in a run's folder.
const pageName = "notebook.html"

// narrative is what a person wrote about an experiment, beside its spec: it goes onto
// the page.
const narrative = "notebook.md"

func (a *app) reportCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "report RUN",
		Short: "Write a run as one HTML page",
		Long: `Write what a run says as one HTML file that needs no network and no other file:
the answer, the verdicts on published figures, decode and prefill over context,
failures, every point, how far to trust it and what was run. The path of the page is
the last line on stdout.`,
		Example: `  twopoint report last
  twopoint report last --to collapse.html
` + exitHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, t, err := a.read(args[0])
			if err != nil {
				return err
			}
			path, err := a.page(dir, t, to)
			if err != nil {
				return trouble(err)
			}
			fmt.Fprintln(a.stdout, path)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "file to write (default: "+pageName+" in the run's folder)")
	return cmd
}

// maxSpecFile is what the page shows of a file of the spec.
const maxSpecFile = 256 << 10

// page writes a run's page and returns where it is.
func (a *app) page(dir run.Dir, t *table.Tables, to string) (string, error) {
	if to == "" {
		to = dir.Path(pageName)
	}
	var spec []report.File
	story := ""
	root := dir.Path("spec")
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxSpecFile))
		name, _ := filepath.Rel(root, path)
		if name == narrative {
			story = string(b)
		} else {
			spec = append(spec, report.File{Name: name, Text: string(b)})
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		return "", err
	}
	return to, durable.Write(to, func(w io.Writer) error { return report.Page(w, t, string(dir), story, spec) })
}
