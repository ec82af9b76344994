package cli

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// seconds is a duration in the unit in which a person would say it.
func seconds(s float64) string {
	switch a := math.Abs(s); {
	case a >= 100:
		return fmt.Sprintf("%.0f s", s)
	case a >= 1:
		return fmt.Sprintf("%.3g s", s)
	case a >= 1e-3:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case a >= 1e-6 || a == 0:
		return fmt.Sprintf("%.3g µs", s*1e6)
	}
	return fmt.Sprintf("%.3g ns", s*1e9)
}

// figure is x with the digits that its half-width supports: two digits of the
// half-width, three significant digits of x where there is none.
func figure(x, half float64) string {
	digits := 2
	if !(half > 0) {
		half, digits = math.Abs(x), 3
	}
	if half == 0 || math.IsInf(half, 0) {
		return fmt.Sprintf("%g", x)
	}
	decimals := digits - 1 - int(math.Floor(math.Log10(half)))
	if decimals < 0 {
		p := math.Pow10(-decimals)
		return fmt.Sprintf("%.0f", math.Round(x/p)*p)
	}
	return fmt.Sprintf("%.*f", min(decimals, 12), x)
}

// ranged is a value with its interval, "3.14 [3.05, 3.22]".
func ranged(x, lo, hi *float64) string {
	if x == nil {
		return ""
	}
	if lo == nil || hi == nil {
		return figure(*x, 0)
	}
	half := (*hi - *lo) / 2
	return fmt.Sprintf("%s [%s, %s]", figure(*x, half), figure(*lo, half), figure(*hi, half))
}

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
