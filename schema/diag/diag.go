// Package diag is how twopoint tells a user what is wrong with a spec or a
// command line: all mistakes at once, one line each, in the user's own terms.
// It holds values only; it finds nothing and prints nothing.
package diag

import (
	"fmt"
	"sort"
	"strings"
)

// Severity says what a diagnostic stops.
type Severity int

const (
	Error   Severity = iota // the spec cannot be planned or run
	Warning                 // it can, but something is doubtful or not yet possible
	Hint                    // it can; perhaps something else was meant
)

func (s Severity) String() string { return [...]string{"error", "warning", "hint"}[s] }

// Pos is a place in a file of the user; the zero value is "no place known".
// Line and Column count from 1, Column in bytes.
type Pos struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

func (p Pos) String() string {
	if p.File == "" {
		return ""
	}
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Diagnostic is one mistake or doubt. Its one-line form is
//
//	spec.cue:31:9: sweep.context[3]: 300000 is above the model's 262144 (…); did you mean …?
type Diagnostic struct {
	Severity Severity
	Pos      Pos    // the user's own value
	Path     string // data path below experiment, such as variants.split.port
	Value    string // the offending value as written; empty where nothing was written
	Rule     string // what is wrong and what would be right, a sentence without a full stop
	Suggest  string // the near miss that was probably meant, or empty
	Also     []Pos  // other places of the user that take part, such as a limit's
}

// String is the diagnostic in one line, without the severity.
func (d Diagnostic) String() string {
	var b strings.Builder
	for _, part := range []string{d.Pos.String(), d.Path} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	if d.Value != "" {
		b.WriteString(d.Value + ": ")
	}
	b.WriteString(d.Rule)
	for i, p := range d.Also {
		b.WriteString(map[bool]string{true: " (see ", false: ", "}[i == 0] + p.String())
	}
	if len(d.Also) > 0 {
		b.WriteString(")")
	}
	if d.Suggest != "" {
		b.WriteString("; did you mean " + d.Suggest + "?")
	}
	return b.String()
}

// List is what a stage found. The zero value is "nothing".
type List []Diagnostic

// HasErrors tells whether anything in the list stops the spec.
func (l List) HasErrors() bool {
	for _, d := range l {
		if d.Severity == Error {
			return true
		}
	}
	return false
}

// Sort orders by file, line, column, path and severity, so that output is
// stable whatever found the mistakes first.
func (l List) Sort() {
	sort.SliceStable(l, func(i, j int) bool {
		a, b := l[i], l[j]
		switch {
		case a.Pos.File != b.Pos.File:
			return a.Pos.File < b.Pos.File
		case a.Pos.Line != b.Pos.Line:
			return a.Pos.Line < b.Pos.Line
		case a.Pos.Column != b.Pos.Column:
			return a.Pos.Column < b.Pos.Column
		case a.Path != b.Path:
			return a.Path < b.Path
		}
		return a.Severity < b.Severity
	})
}

// Error lists the errors one per line; a List with errors can travel as one.
func (l List) Error() string {
	var lines []string
	for _, d := range l {
		if d.Severity == Error {
			lines = append(lines, d.String())
		}
	}
	return strings.Join(lines, "\n")
}
