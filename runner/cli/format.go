package cli

import (
	"strings"
	"unicode/utf8"
)

// columns aligns rows of cells; numbers to the right. The first row is the
// heading.
func columns(rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	width, right := make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for i := range width {
		right[i] = i > 0 && len(rows) > 1 // the first column holds names, whatever they begin with
		for r, row := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
			if r > 0 && row[i] != "" && !strings.ContainsAny(row[i][:1], "0123456789-±") {
				right[i] = false
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if right[i] {
				cell = pad + cell
			} else {
				cell += pad
			}
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
