package report

import (
	"bytes"
	"encoding/csv"
	"io"
	"strings"
	"testing"

	"twopoint/results/history/historytest"
	"twopoint/results/table"
)

// Every format holds every point, figures of ok ones alone, and no name can break it.
func TestExport(t *testing.T) {
	r := historytest.Eventful()
	tables := table.Derive(r.ID, r.History, nil)
	tables.Points[0].Variant = `a|b_&,"c"`
	for _, format := range Formats {
		var b bytes.Buffer
		if err := Export(&b, tables, format); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s:\n%s", format, text)
		}
		lines := strings.Count(text, "\n")
		switch format {
		case "csv":
			rows, err := csv.NewReader(&b).ReadAll()
			if err != nil || len(rows) != 1+len(tables.Points) || rows[1][1] != tables.Points[0].Variant {
				t.Errorf("%d rows, %v", len(rows), err)
			}
			for i, p := range tables.Points {
				if ok := p.Status == "ok"; (rows[i+1][7] != "") != (p.SPerTok != nil) || !ok && rows[i+1][7] != "" {
					t.Errorf("%s (%s): %q", p.PointKey, p.Status, rows[i+1][7])
				}
			}
		case "markdown":
			if lines != 2+len(tables.Points) || !strings.Contains(text, `a\|b_&`) || !strings.Contains(text, " ± ") || !strings.Contains(text, "gpu-oom") {
				t.Errorf("%d lines:\n%s", lines, text)
			}
		case "latex":
			if lines != 7+len(tables.Points) || !strings.Contains(text, `a|b\_\&`) || !strings.Contains(text, `$\pm$`) {
				t.Errorf("%d lines:\n%s", lines, text)
			}
		case "macros":
			if !strings.Contains(text, `\csname twopoint:remote/256/1:decode_tok_s\endcsname{`) || strings.Contains(text, "fast/8192/1") {
				t.Errorf("macros:\n%s", text)
			}
		}
	}
	if err := Export(io.Discard, tables, "docx"); err == nil {
		t.Error("an unknown format is no error")
	}
}
