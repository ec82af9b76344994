package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"

	"twopoint/results/claim"
	"twopoint/results/stat"
	"twopoint/results/table"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"pretty": pretty,
	"deref":  func(x *float64) float64 { return *x },
	"ms":     func(x *float64) float64 { return 1e3 * *x },
	"k":      func(x *float64) float64 { return 1e6 * *x }, // of seconds a token: milliseconds a thousand
	"truth":  func(x *bool) bool { return *x },
}).Parse(pageText))

// File is a file of the spec, as it was when the run began.
type File struct{ Name, Text string }

// page is what the template shows.
type page struct {
	Run             table.RunRow
	Folder          string
	Answer          []string
	Story           template.HTML
	Doubts          []string
	Claims          []table.ClaimRow
	ClaimCount      string
	Legend          []series
	Decode, Prefill template.HTML
	Head            []string
	Rows            []row
	Fits            []table.FitRow
	Failures        []table.PointRow
	Refused         []count
	Deployments     []table.DeploymentRow
	Settings        []setting
	Spec            []File
}

type row struct {
	ID    string
	Class string
	Cells []string
}

// count is how many pairs were refused for a reason, with one as an example.
type count struct {
	Reason, Example string
	Pairs           int
}

// setting is what was asked for beside what the server says.
type setting struct{ Variant, Name, Requested, Effective string }

// Page writes a run as one HTML file that needs nothing else: no network, no other
// file. What servers said is text in it and nothing more. folder is where the run's
// tables are, story what a person wrote about the experiment (Markdown, its title
// left out), spec the files that it was planned from.
func Page(w io.Writer, t *table.Tables, folder, story string, spec []File) error {
	p := page{
		Run: t.Runs[0], Folder: folder, Answer: Answer(t), Doubts: Doubts(t), Claims: t.Claims, ClaimCount: ClaimCount(t.Claims),
		Fits: t.Fits, Deployments: t.Deployments, Spec: spec,
	}
	var html strings.Builder
	if title, rest, _ := strings.Cut(strings.TrimSpace(story), "\n"); strings.HasPrefix(title, "# ") {
		story = rest
	}
	if err := goldmark.Convert([]byte(story), &html); err != nil { // which lets no HTML through
		return err
	}
	p.Story = template.HTML(html.String())
	p.Legend, p.Decode = decodeChart(t)
	p.Prefill = prefillChart(t)
	p.Head, p.Rows = pointRows(t.Points)
	for _, pt := range t.Points {
		if pt.Status == stat.Failed || pt.Status == stat.Skipped {
			p.Failures = append(p.Failures, pt)
		}
	}
	p.Refused = refused(t.Repeats)
	p.Settings = settings(t.Settings)
	return pageTemplate.Execute(w, p)
}

// ClaimCount is every verdict with its number, the rare ones too; empty where nothing
// is claimed.
func ClaimCount(claims []table.ClaimRow) string {
	if len(claims) == 0 {
		return ""
	}
	number := map[string]int{}
	for _, c := range claims {
		number[c.Verdict]++
	}
	var parts []string
	for _, v := range claim.Verdicts {
		parts = append(parts, fmt.Sprintf("%d %s", number[v], strings.ReplaceAll(v, "_", " ")))
	}
	return fmt.Sprintf("%d claims: %s", len(claims), strings.Join(parts, ", "))
}

// contextOf is where a point stands on an axis.
func contextOf(p table.PointRow) float64 {
	if p.PromptTokens != nil {
		return float64(*p.PromptTokens)
	}
	return float64(*p.ContextRequested)
}

// decodeChart is milliseconds per token over context, a curve a variant and
// concurrency, with the fitted lines, what was published and what died.
func decodeChart(t *table.Tables) ([]series, template.HTML) {
	var list []series
	for _, points := range Curves(t.Points) {
		first := points[0]
		s := series{Name: CurveName(first.Variant, *first.Concurrency)}
		quantity := "s_per_tok"
		if first.Method == "stream" {
			quantity = "s_per_tok_stream"
		}
		for _, p := range points {
			switch perTok, lo, hi, _, _, _ := DecodeOf(p); {
			case p.Status == stat.OK && perTok != nil:
				m := mark{X: contextOf(p), Y: 1e3 * *perTok, Lo: math.NaN(), Hi: math.NaN(), Title: fmt.Sprintf("%s: %s a token", p.PointKey, Seconds(*perTok))}
				if lo != nil && hi != nil {
					m.Lo, m.Hi = 1e3**lo, 1e3**hi
					m.Title += fmt.Sprintf(", %s to %s", Seconds(*lo), Seconds(*hi))
				}
				s.Marks = append(s.Marks, m)
			case p.Status == stat.Failed:
				s.Dead = append(s.Dead, mark{X: contextOf(p), Title: fmt.Sprintf("%s: %s: %s", p.PointKey, p.FailureKind, p.FailureMessage)})
			}
		}
		for _, f := range t.Fits {
			if f.Variant == first.Variant && f.Concurrency == *first.Concurrency && f.Quantity == quantity {
				at := func(x float64) [2]float64 { return [2]float64{x, 1e3 * (*f.Alpha + *f.Beta*x)} }
				s.Line = [][2]float64{at(float64(f.ContextMin)), at(float64(f.ContextMax))}
			}
		}
		if *first.Concurrency == 1 {
			s.Published = published(t.Claims, first.Variant)
		}
		list = append(list, s)
	}
	return list, chart("milliseconds per token over context", "ms per token", list)
}

// published are the cells of publications on a variant's decode, in milliseconds per
// token.
func published(claims []table.ClaimRow, variant string) (out []mark) {
	for _, c := range claims {
		parts := strings.Split(c.ClaimID, "/")
		if len(parts) != 4 || parts[1] != c.Metric || parts[2] != variant {
			continue
		}
		x, err := strconv.ParseFloat(parts[3], 64)
		text, _, _ := strings.Cut(c.Published, " ")
		y, err2 := strconv.ParseFloat(text, 64)
		switch {
		case err != nil || err2 != nil || y <= 0:
			continue
		case c.Metric == "decode_tok_s":
			y = 1e3 / y
		case c.Metric == "s_per_tok":
			y *= 1e3
		default:
			continue
		}
		out = append(out, mark{X: x, Y: y, Lo: math.NaN(), Hi: math.NaN(), Title: fmt.Sprintf("%s: %s %s, published by %s (%s)", variant, c.Published, c.Metric, c.Source, c.Verdict)})
	}
	return out
}

func prefillChart(t *table.Tables) template.HTML {
	var list []series
	for _, points := range Curves(t.Points) {
		s := series{Name: CurveName(points[0].Variant, *points[0].Concurrency)}
		for _, p := range points {
			if p.PrefillS == nil {
				continue
			}
			m := mark{X: contextOf(p), Y: *p.PrefillS, Lo: math.NaN(), Hi: math.NaN(), Title: fmt.Sprintf("%s: prefill in %s", p.PointKey, Seconds(*p.PrefillS))}
			if p.PrefillSLo != nil && p.PrefillSHi != nil {
				m.Lo, m.Hi = *p.PrefillSLo, *p.PrefillSHi
			}
			s.Marks = append(s.Marks, m)
		}
		list = append(list, s)
	}
	return chart("prefill over context", "prefill, s", list)
}

// pointRows are all points with the doubts about each.
func pointRows(points []table.PointRow) (head []string, rows []row) {
	cells := Points(points)
	for i, p := range points {
		rows = append(rows, row{ID: p.PointKey, Class: p.Status, Cells: append(cells[i+1], strings.ReplaceAll(p.Doubts, ",", ", "))})
	}
	return append(cells[0], "doubts"), rows
}

// refused are the reasons for which pairs do not count, the commonest first.
func refused(repeats []table.RepeatRow) []count {
	byReason := map[string]*count{}
	var order []string
	for _, r := range repeats {
		if r.Valid || r.Reasons == "" {
			continue
		}
		for i, reason := range strings.Split(r.Reasons, ",") {
			c := byReason[reason]
			if c == nil {
				c = &count{Reason: reason}
				if lines := strings.Split(r.ReasonDetail, "\n"); i < len(lines) {
					c.Example = r.PointKey + ": " + lines[i]
				}
				byReason[reason] = c
				order = append(order, reason)
			}
			c.Pairs++
		}
	}
	var out []count
	for _, reason := range order {
		out = append(out, *byReason[reason])
	}
	slices.SortStableFunc(out, func(x, y count) int { return y.Pairs - x.Pairs })
	return out
}

// settings are those that were asked for and those that servers report, side by side.
func settings(rows []table.SettingRow) []setting {
	type key struct{ variant, name string }
	byKey := map[key]*setting{}
	var order []key
	for _, r := range rows {
		k := key{r.Variant, r.Name}
		if byKey[k] == nil {
			byKey[k] = &setting{Variant: r.Variant, Name: r.Name}
			order = append(order, k)
		}
		if r.Source == "requested" {
			byKey[k].Requested = r.Value
		} else {
			byKey[k].Effective = r.Value
		}
	}
	var out []setting
	for _, k := range order {
		out = append(out, *byKey[k])
	}
	return out
}

// pretty is JSON for reading; other text as it is.
func pretty(text string) string {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return text
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return text
	}
	return string(b)
}
