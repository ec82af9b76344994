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

func frames(r io.Reader) (data []string, err error) {
	f := NewFrames(r, nil)
	for {
		ev, err := f.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return data, err
		}
		text := string(ev.Data)
		if ev.Name != "" {
			text = ev.Name + "|" + text
		}
		if ev.Cut {
			text += "|cut"
		}
		data = append(data, text)
	}
}

func TestFrames(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"no space", "data:a\n\n", []string{"a"}},
		{"two spaces", "data:  a\n\n", []string{" a"}},
		{"crlf", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"mixed ends", "data: a\r\n\ndata: b\n\r\n", []string{"a", "b"}},
		{"comments", ":\n\n: ping\n\ndata: a\n: within\n\n", []string{"a"}},
		{"empty data", "event: ping\ndata:\n\ndata: a\n\n", []string{"ping|", "a"}},
		{"no data", "event: ping\n\nid: 7\n\ndata: a\n\n", []string{"a"}},
		{"several lines", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"named", "event: error\ndata: x\n\n", []string{"error|x"}},
		{"name is of one event", "event: x\n\ndata: a\n\n", []string{"a"}},
		{"no last blank line", "data: a\n\ndata: [DONE]\n", []string{"a", "[DONE]"}},
		{"no last newline", "data: a\n\ndata: [DONE]", []string{"a", "[DONE]|cut"}},
		{"bare field", "data\n\n", []string{""}},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{"a"}},
		{"unknown fields", "datax: q\nretry: 3\ndata: a\n\n", []string{"a"}},
		{"empty", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for split, r := range map[string]io.Reader{
				"whole": strings.NewReader(c.in), "bytewise": iotest.OneByteReader(strings.NewReader(c.in)),
			} {
				if got, err := frames(r); err != nil || !slices.Equal(got, c.want) {
					t.Errorf("%s: %q, %v; want %q", split, got, err, c.want)
				}
			}
		})
	}
}

// endless is a stream that never has a newline, and counts what is taken.
type endless struct{ taken int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.taken += len(p)
	return len(p), nil
}

func TestFramesStopAtTheCap(t *testing.T) {
	e := &endless{}
	if _, err := frames(e); !errors.Is(err, ErrLongLine) || e.taken > MaxLine+1<<20 {
		t.Errorf("%v after %d bytes", err, e.taken)
	}
	long := "data: " + strings.Repeat("y", 300<<10)
	if got, err := frames(strings.NewReader(long + "\n\n")); err != nil || len(got) != 1 || len(got[0]) != 300<<10 {
		t.Errorf("300 KiB: %d events, %v", len(got), err)
	}
	many := strings.Repeat("data: "+strings.Repeat("z", 1<<20)+"\n", 17)
	if _, err := frames(strings.NewReader(many)); !errors.Is(err, ErrLongLine) {
		t.Errorf("17 MiB of data lines: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := frames(broken); !errors.Is(err, io.ErrUnexpectedEOF) || !slices.Equal(got, []string{"a"}) {
		t.Errorf("a cut connection: %q, %v", got, err)
	}
}

// FuzzFrames checks that reading does not depend on how bytes are split and
// that what was written as data comes back.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\n: c\n\nevent: e\ndata\ndata:b"))
	f.Add([]byte("\xef\xbb\xbf\n\r\n\r"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, err := frames(bytes.NewReader(in))
		split, err2 := frames(iotest.OneByteReader(bytes.NewReader(in)))
		if !slices.Equal(whole, split) || (err == nil) != (err2 == nil) {
			t.Errorf("%q %v, but bytewise %q %v", whole, err, split, err2)
		}
		var out bytes.Buffer
		for line := range bytes.SplitSeq(in, []byte("\n")) {
			out.WriteString("data: " + string(line) + "\n")
		}
		out.WriteString("\n")
		want := strings.ReplaceAll(string(in), "\r\n", "\n")
		want = strings.TrimSuffix(want, "\r")
		back, err := frames(&out)
		if err != nil || len(back) != 1 || back[0] != want {
			t.Errorf("%q came back as %q, %v", want, back, err)
		}
	})
}

func BenchmarkFrames(b *testing.B) {
	event := []byte(`data: {"text":" t123","output_ids":[123],"meta_info":{"prompt_tokens":1424,"completion_tokens":17}}` + "\n\n")
	in := bytes.Repeat(event, 1000)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		f := NewFrames(bytes.NewReader(in), nil)
		for {
			if _, err := f.Next(); err != nil {
				break
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/event")
}
