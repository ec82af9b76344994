package cli

import (
	"strings"
	"testing"
)

func TestInert(t *testing.T) {
	var out strings.Builder
	n, err := inert{&out}.Write([]byte("a\x1b[2J\tµ ±\u009b31m\r\n"))
	if want := "a\uFFFD[2J\tµ ±\uFFFD31m\uFFFD\n"; out.String() != want || err != nil || n != len("a\x1b[2J\tµ ±\u009b31m\r\n") {
		t.Errorf("wrote %q, %d, %v; want %q", out.String(), n, err, want)
	}
}
