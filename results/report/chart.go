package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// mark is a point of a chart.
type mark struct {
	X, Y   float64
	Lo, Hi float64 // NaN: no interval
	Title  string  // what a reader sees who points at it
}

// series is a curve of a chart.
type series struct {
	Name      string
	Marks     []mark
	Published []mark       // drawn hollow
	Dead      []mark       // of failed points: at the top, whatever Y says
	Line      [][2]float64 // a fit, from its first context to its last
}

// Size of a chart in its own units, and the room around the plot.
const (
	chartW, chartH                      = 860.0, 380.0
	chartLeft, chartTop, chartR, chartB = 64.0, 28.0, 16.0, 44.0
	palette                             = 8 // colours that the page defines
)

// chart draws curves over context as SVG, both axes linear from 0. Colours and fonts
// are the page's, so that it prints and turns dark with it.
func chart(label, yAxis string, list []series) template.HTML {
	maxX, maxY := 0.0, 0.0
	for _, s := range list {
		for _, m := range append(append(append([]mark{}, s.Marks...), s.Published...), s.Dead...) {
			maxX = max(maxX, m.X)
		}
		for _, m := range append(append([]mark{}, s.Marks...), s.Published...) {
			maxY = max(maxY, m.Y)
			if !math.IsNaN(m.Hi) {
				maxY = max(maxY, min(m.Hi, 2*m.Y))
			}
		}
	}
	if maxX == 0 || maxY == 0 {
		return ""
	}
	stepX, stepY := tick(maxX/6), tick(maxY/5)
	maxX, maxY = math.Ceil(maxX/stepX)*stepX, math.Ceil(maxY/stepY)*stepY
	px := func(x float64) float64 { return chartLeft + x/maxX*(chartW-chartLeft-chartR) }
	py := func(y float64) float64 { return chartH - chartB - min(y/maxY, 1)*(chartH-chartTop-chartB) }
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	esc := template.HTMLEscapeString
	add(`<svg class="chart" viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartW, chartH, esc(label))
	for x := 0.0; x <= maxX*(1+1e-9); x += stepX {
		add(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/><text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, px(x), chartTop, px(x), py(0), px(x), py(0)+16, tokens(x))
	}
	for y := 0.0; y <= maxY*(1+1e-9); y += stepY {
		add(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/><text class="tick" text-anchor="end" x="%.1f" y="%.1f">%.4g</text>`, chartLeft, py(y), chartW-chartR, py(y), chartLeft-6, py(y)+4, y)
	}
	add(`<text class="axis" text-anchor="middle" x="%.1f" y="%.1f">context, prompt tokens</text>`, (chartLeft+chartW-chartR)/2, chartH-6)
	add(`<text class="axis" x="4" y="14">%s</text>`, esc(yAxis))
	for i, s := range list {
		add(`<g class="c%d">`, i%palette)
		if len(s.Line) == 2 {
			add(`<line class="fit" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, px(s.Line[0][0]), py(s.Line[0][1]), px(s.Line[1][0]), py(s.Line[1][1]))
		}
		for _, m := range s.Marks {
			if !math.IsNaN(m.Lo) && !math.IsNaN(m.Hi) {
				add(`<line class="bar" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, px(m.X), py(max(m.Lo, 0)), px(m.X), py(m.Hi))
			}
			add(`<circle class="dot" cx="%.1f" cy="%.1f" r="4"><title>%s</title></circle>`, px(m.X), py(m.Y), esc(m.Title))
		}
		for _, m := range s.Published {
			add(`<circle class="hollow" cx="%.1f" cy="%.1f" r="5"><title>%s</title></circle>`, px(m.X), py(m.Y), esc(m.Title))
		}
		for _, m := range s.Dead {
			add(`<text class="dead" text-anchor="middle" x="%.1f" y="%.1f">✕<title>%s</title></text>`, px(m.X), chartTop+6+10*float64(i%3), esc(m.Title))
		}
		add(`</g>`)
	}
	add(`</svg>`)
	return template.HTML(b.String())
}

// tick is a step of 1, 2 or 5 times a power of ten that is at least x.
func tick(x float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= x*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// tokens is a number of tokens as an axis says it.
func tokens(x float64) string {
	if x >= 1000 && math.Mod(x, 100) == 0 {
		return fmt.Sprintf("%gk", x/1000)
	}
	return fmt.Sprintf("%g", x)
}
