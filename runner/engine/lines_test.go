package engine

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func lineFrames(r io.Reader) (data []string, err error) {
	f := NewFrames(r, nil)
	f.Lines = true
	for {
		ev, err := f.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return data, err
		}
		text := string(ev.Data)
		if ev.Cut {
			text += "|cut"
		}
		data = append(data, text)
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"plain", "{\"a\":1}\n{\"b\":2}\n", []string{`{"a":1}`, `{"b":2}`}},
		{"crlf and blank lines", "a\r\n\r\n\nb\n\n", []string{"a", "b"}},
		{"no last newline", "a\nb", []string{"a", "b|cut"}},
		{"like server-sent events", "data: a\n: c\n", []string{"data: a", ": c"}},
		{"byte order mark", "\xef\xbb\xbfa\n", []string{"a"}},
		{"empty", "", nil},
	} {
		for split, r := range map[string]io.Reader{
			"whole": strings.NewReader(c.in), "bytewise": iotest.OneByteReader(strings.NewReader(c.in)),
		} {
			if got, err := lineFrames(r); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s, %s: %q, %v, want %q", c.name, split, got, err, c.want)
			}
		}
	}
	if _, err := lineFrames(strings.NewReader(strings.Repeat("x", MaxLine+1))); !errors.Is(err, ErrLongLine) {
		t.Errorf("a line beyond the bound: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := lineFrames(broken); !errors.Is(err, io.ErrUnexpectedEOF) || !slices.Equal(got, []string{"a"}) {
		t.Errorf("a cut connection: %q, %v", got, err)
	}
}

// FuzzLines checks that reading does not depend on how bytes are split, and that
// no byte is lost but ends of line.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"response\":\"x\"}\r\n\n{\"done\":true}"))
	f.Add([]byte("\xef\xbb\xbf\n\r\n\r"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, err := lineFrames(bytes.NewReader(in))
		split, err2 := lineFrames(iotest.OneByteReader(bytes.NewReader(in)))
		if !slices.Equal(whole, split) || err != nil || err2 != nil {
			t.Errorf("%q %v, but bytewise %q %v", whole, err, split, err2)
		}
		size := 0
		for _, l := range whole {
			size += len(strings.TrimSuffix(l, "|cut"))
		}
		if missing := len(in) - size; missing > 2*bytes.Count(in, []byte("\n"))+len("\xef\xbb\xbf") {
			t.Errorf("%d of %d bytes came back from %q", size, len(in), in)
		}
	})
}
