package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strings"

	"twopoint/results/stat"
	"twopoint/results/table"
)

// Formats are what Export writes.
var Formats = []string{"csv", "markdown", "latex", "macros"}

// quantity is a figure of a point, in the unit of its head.
type quantity struct {
	head  string
	scale float64
	of    func(table.PointRow) (x, lo, hi *float64)
}

// shown are the figures of a table for people; in the stream where the method's own
// slope is there.
var shown = []quantity{
	{"ms/token", 1e3, func(p table.PointRow) (x, lo, hi *float64) { x, lo, hi, _, _, _ = DecodeOf(p); return }},
	{"decode tok/s", 1, func(p table.PointRow) (x, lo, hi *float64) { _, _, _, x, lo, hi = DecodeOf(p); return }},
	{"prefill tok/s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi }},
	{"TTFT, ms", 1e3, func(p table.PointRow) (x, lo, hi *float64) { return p.TTFTS, p.TTFTSLo, p.TTFTSHi }},
}

// columns are the same as columns of points, each from its own.
var columns = []quantity{
	{"s_per_tok", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.SPerTok, p.SPerTokLo, p.SPerTokHi }},
	{"s_per_tok_stream", 1, func(p table.PointRow) (x, lo, hi *float64) {
		return p.SPerTokStream, p.SPerTokStreamLo, p.SPerTokStreamHi
	}},
	{"s_per_step", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.SPerStep, p.SPerStepLo, p.SPerStepHi }},
	{"decode_tok_s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.DecodeTokS, p.DecodeTokSLo, p.DecodeTokSHi }},
	{"decode_total_tok_s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.DecodeTotal, p.DecodeTotalLo, p.DecodeTotalHi }},
	{"prefill_s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.PrefillS, p.PrefillSLo, p.PrefillSHi }},
	{"prefill_tok_s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.PrefillTokS, p.PrefillTokSLo, p.PrefillTokSHi }},
	{"ttft_s", 1, func(p table.PointRow) (x, lo, hi *float64) { return p.TTFTS, p.TTFTSLo, p.TTFTSHi }},
}

// digits is a figure with as many as its interval supports, and its half-width; empty
// where there is none.
func (q quantity) digits(p table.PointRow) (x, half string) {
	v, lo, hi := q.of(p)
	if p.Status != stat.OK || v == nil {
		return "", ""
	}
	if lo == nil || hi == nil {
		return Number(q.scale**v, 0), ""
	}
	h := q.scale * (*hi - *lo) / 2
	return Number(q.scale**v, h), Number(h, h)
}

// Export writes a run's points for use elsewhere: csv with every figure and its
// interval as the tables have them, a markdown or latex table with the digits that the
// intervals support, or latex macros, one a figure.
func Export(w io.Writer, t *table.Tables, format string) error {
	switch format {
	case "csv":
		return exportCSV(w, t)
	case "markdown":
		return exportTable(w, t, "| ", " | ", " |", " ± ", func(s string) string { return strings.ReplaceAll(s, "|", `\|`) })
	case "latex":
		fmt.Fprintf(w, "%% twopoint run %s\n\\begin{tabular}{lrr%s}\n\\hline\n", t.Runs[0].RunID, strings.Repeat("r", len(shown))+"l")
		if err := exportTable(w, t, "", " & ", ` \\`, ` $\pm$ `, tex); err != nil {
			return err
		}
		_, err := fmt.Fprint(w, "\\hline\n\\end{tabular}\n")
		return err
	case "macros":
		return exportMacros(w, t)
	}
	return fmt.Errorf("no format %q; there are %s", format, strings.Join(Formats, ", "))
}

func exportCSV(w io.Writer, t *table.Tables) error {
	out := csv.NewWriter(w)
	head := []string{"run_id", "variant", "context_requested", "prompt_tokens", "concurrency", "status", "reason"}
	for _, q := range columns {
		head = append(head, q.head, q.head+"_lo", q.head+"_hi")
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

func exportTable(w io.Writer, t *table.Tables, begin, between, end, plusMinus string, escape func(string) string) error {
	line := func(cells []string) { fmt.Fprintf(w, "%s%s%s\n", begin, strings.Join(cells, between), end) }
	head := []string{"variant", "context", "requests"}
	for _, q := range shown {
		head = append(head, q.head)
	}
	line(append(head, "status"))
	if begin != "" {
		fmt.Fprintf(w, "|%s\n", strings.Repeat(" --- |", len(head)+1))
	} else {
		fmt.Fprintln(w, `\hline`)
	}
	for _, p := range t.Points {
		row := []string{escape(p.Variant), fmt.Sprint(*p.ContextRequested), fmt.Sprint(*p.Concurrency)}
		for _, q := range shown {
			x, half := q.digits(p)
			if half != "" {
				x += plusMinus + half
			}
			row = append(row, x)
		}
		status := p.Status
		if why := cmp.Or(p.FailureKind, p.Reason); why != "" && p.Status != stat.OK {
			status += ": " + why
		}
		line(append(row, escape(status)))
	}
	return nil
}

// tex escapes text for LaTeX.
var tex = strings.NewReplacer(`\`, `\textbackslash{}`, "&", `\&`, "%", `\%`, "$", `\$`, "#", `\#`, "_", `\_`, "{", `\{`, "}", `\}`, "~", `\textasciitilde{}`, "^", `\textasciicircum{}`).Replace

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
			_, err = fmt.Fprintf(w, "\\expandafter\\def\\csname twopoint:%s:%s\\endcsname{%s}\n", p.PointKey, q.head, x)
			if half != "" {
				_, err = fmt.Fprintf(w, "\\expandafter\\def\\csname twopointpm:%s:%s\\endcsname{%s}\n", p.PointKey, q.head, half)
			}
		}
	}
	return err
}
