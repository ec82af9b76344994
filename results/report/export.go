package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strings"

	"twopoint/results/table"
)

// Formats are what Export writes.
var Formats = []string{"csv", "markdown", "latex", "macros"}

// quantity is a figure of a point.
type quantity struct {
	column string
	of     func(table.PointRow) (x, lo, hi *float64)
}

// columns are the figures of a point that are exported, by their columns.
var columns = []quantity{
	{"s_per_tok", func(p table.PointRow) (x, lo, hi *float64) { return p.SPerTok, p.SPerTokLo, p.SPerTokHi }},
	{"s_per_tok_stream", func(p table.PointRow) (x, lo, hi *float64) {
		return p.SPerTokStream, p.SPerTokStreamLo, p.SPerTokStreamHi
	}},
	{"s_per_step", func(p table.PointRow) (x, lo, hi *float64) { return p.SPerStep, p.SPerStepLo, p.SPerStepHi }},
	{"decode_tok_s", func(p table.PointRow) (x, lo, hi *float64) { return p.DecodeTokS, p.DecodeTokSLo, p.DecodeTokSHi }},
	{"decode_total_tok_s", func(p table.PointRow) (x, lo, hi *float64) { return p.DecodeTotal, p.DecodeTotalLo, p.DecodeTotalHi }},
	{"prefill_s", func(p table.PointRow) (x, lo, hi *float64) { return p.PrefillS, p.PrefillSLo, p.PrefillSHi }},
	{"prefill_tok_s", func(p table.PointRow) (x, lo, hi *float64) { return p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi }},
	{"ttft_s", func(p table.PointRow) (x, lo, hi *float64) { return p.TTFTS, p.TTFTSLo, p.TTFTSHi }},
}

// digits is a figure with as many as its interval supports, and its half-width; empty
// where there is none.
func (q quantity) digits(p table.PointRow) (x, half string) {
	v, lo, hi := q.of(p)
	if v == nil {
		return "", ""
	}
	if lo == nil || hi == nil {
		return Number(*v, 0), ""
	}
	h := (*hi - *lo) / 2
	return Number(*v, h), Number(h, h)
}

// Export writes a run's points for use elsewhere: csv with every figure and its
// interval as the tables have them, a markdown or latex table with the digits that the
// intervals support, or latex macros, one a figure.
func Export(w io.Writer, t *table.Tables, format string) error {
	switch format {
	case "csv":
		return exportCSV(w, t)
	case "markdown":
		return exportMarkdown(w, t)
	case "latex":
		return exportLaTeX(w, t)
	case "macros":
		return exportMacros(w, t)
	}
	return fmt.Errorf("no format %q; there are %s", format, strings.Join(Formats, ", "))
}

func exportCSV(w io.Writer, t *table.Tables) error {
	out := csv.NewWriter(w)
	head := []string{"run_id", "variant", "context_requested", "prompt_tokens", "concurrency", "status", "reason"}
	for _, q := range columns {
		head = append(head, q.column, q.column+"_lo", q.column+"_hi")
	}
	out.Write(head)
	exact := func(x *float64) string {
		if x == nil {
			return ""
		}
		return fmt.Sprint(*x)
	}
	for _, p := range t.Points {
		row := []string{p.RunID, p.Variant, fmt.Sprint(*p.ContextRequested), "", fmt.Sprint(*p.Concurrency), p.Status, cmp.Or(p.FailureKind, p.Reason)}
		if p.PromptTokens != nil {
			row[3] = fmt.Sprint(*p.PromptTokens)
		}
		for _, q := range columns {
			x, lo, hi := q.of(p)
			row = append(row, exact(x), exact(lo), exact(hi))
		}
		out.Write(row)
	}
	out.Flush()
	return out.Error()
}

func exportMarkdown(w io.Writer, t *table.Tables) (err error) {
	for i, row := range Points(t.Points) {
		for k := range row {
			row[k] = strings.ReplaceAll(row[k], "|", `\|`)
		}
		_, err = fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			_, err = fmt.Fprintf(w, "|%s\n", strings.Repeat(" --- |", len(row)))
		}
	}
	return err
}

func exportLaTeX(w io.Writer, t *table.Tables) (err error) {
	for i, row := range Points(t.Points) {
		if i == 0 {
			fmt.Fprintf(w, "%% twopoint run %s\n\\begin{tabular}{l%sl}\n\\hline\n", t.Runs[0].RunID, strings.Repeat("r", len(row)-2))
		}
		for k := range row {
			row[k] = tex(row[k])
		}
		fmt.Fprintln(w, strings.Join(row, " & ")+` \\`)
		if i == 0 {
			fmt.Fprintln(w, `\hline`)
		}
	}
	_, err = fmt.Fprint(w, "\\hline\n\\end{tabular}\n")
	return err
}

// tex escapes text for LaTeX.
var tex = strings.NewReplacer(`\`, `\textbackslash{}`, "&", `\&`, "%", `\%`, "$", `\$`, "#", `\#`, "_", `\_`, "{", `\{`, "}", `\}`, "~", `\textasciitilde{}`, "^", `\textasciicircum{}`, "±", `$\pm$`).Replace

// exportMacros makes \twopoint{point}{figure} say a figure, and \twopointpm its
// half-width. A name of a macro holds no digits, hence \csname.
func exportMacros(w io.Writer, t *table.Tables) error {
	_, err := fmt.Fprintf(w, `%% twopoint run %s: \twopoint{variant/context/requests}{figure}, and \twopointpm for half its interval
\providecommand{\twopoint}[2]{\csname twopoint:#1:#2\endcsname}
\providecommand{\twopointpm}[2]{\csname twopointpm:#1:#2\endcsname}
`, t.Runs[0].RunID)
	for _, p := range t.Points {
		for _, q := range columns {
			x, half := q.digits(p)
			if x == "" {
				continue
			}
			_, err = fmt.Fprintf(w, "\\expandafter\\def\\csname twopoint:%s:%s\\endcsname{%s}\n", p.PointKey, q.column, x)
			if half != "" {
				_, err = fmt.Fprintf(w, "\\expandafter\\def\\csname twopointpm:%s:%s\\endcsname{%s}\n", p.PointKey, q.column, half)
			}
		}
	}
	return err
}
