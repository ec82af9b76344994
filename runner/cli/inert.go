package cli

import (
	"io"
	"os"
	"strings"
	"unicode"
)

// inert passes text on without the control characters that a terminal obeys:
// what a spec, a server or a log says must not move the cursor. Tabs and line
// ends stay.
type inert struct{ w io.Writer }

func (i inert) Write(p []byte) (int, error) {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, string(p))
	if _, err := io.WriteString(i.w, clean); err != nil {
		return 0, err
	}
	return len(p), nil
}

// file is the file behind a writer of the program, if it is one.
func file(w io.Writer) (*os.File, bool) {
	if i, ok := w.(inert); ok {
		w = i.w
	}
	f, ok := w.(*os.File)
	return f, ok
}
