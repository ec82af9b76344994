package cli

import (
	"fmt"
	"os"
	"runtime"

	"twopoint/results/report"
	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner/deploy"
)

// summary prints what a run says: one sentence that answers, the table, the
// doubts one line each, and what to do next. Every number is a cell of the
// tables.
func (a *app) summary(dir run.Dir, t *table.Tables) {
	w := a.stdout
	for _, line := range report.Answer(t) {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "\n%s", columns(report.Points(t.Points)))
	if len(t.Claims) > 0 {
		fmt.Fprintf(w, "\n%s\n", report.ClaimCount(t.Claims))
	}
	if doubts := report.Doubts(t); len(doubts) > 0 {
		fmt.Fprintln(w)
		for _, d := range doubts {
			fmt.Fprintln(w, "! "+d)
		}
	}
	fmt.Fprintln(w)
	for _, next := range nextCommands(a.ref(dir), dir, t) {
		fmt.Fprintln(w, "  "+next)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func nextCommands(ref string, dir run.Dir, t *table.Tables) []string {
	r := t.Runs[0]
	out := []string{"twopoint show " + ref}
	if page := dir.Path(pageName); exists(page) {
		opener := "xdg-open"
		if runtime.GOOS == "darwin" {
			opener = "open"
		}
		out = append(out, opener+" "+deploy.Quote([]string{page}))
	}
	if len(t.Claims) > 0 {
		out = append(out, "twopoint check "+ref)
	}
	if r.Pending > 0 {
		out = append(out, "twopoint resume "+ref)
	}
	if r.Failed > 0 {
		out = append(out, "twopoint resume "+ref+" --retry failed")
	}
	return append(out, fmt.Sprintf("duckdb -c \"select point_key, status, decode_tok_s from '%s'\"", dir.Table("points")))
}
