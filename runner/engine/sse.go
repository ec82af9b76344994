package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line, and the longest joined data of one event, that
// a stream may hold.
const MaxLine = 16 << 20

// readSize is of the buffers that an answer passes through, bytes: some tens of
// events, so that a short answer costs no more than it needs.
const readSize = 8 << 10

// ErrLongLine is the end of a stream that holds a line beyond MaxLine.
var ErrLongLine = fmt.Errorf("a line of the stream is longer than %d MiB", MaxLine>>20)

// Frame is one event of a stream.
type Frame struct {
	Name string  // of "event:", usually empty
	Data []byte  // the data lines, joined by newlines; valid until the next call
	AtS  float64 // the clock when the last data line was complete
	Cut  bool    // the stream ended within the event's last line
}

// Frames reads server-sent events as the HTML standard defines them (section
// 9.2.6, event stream interpretation): comments are skipped, one space after a
// colon is optional, lines end with LF or CRLF. A bare CR is not taken for an
// end of line: no server sends it and JSON holds none. Unlike a browser it also
// returns an event that the end of the stream completes, since servers leave
// out the last blank line. It uses at most about 2·MaxLine of memory.
type Frames struct {
	// Lines takes every line that is not blank for an event of its own: the
	// newline-delimited JSON of Ollama. It is set before the first Next.
	Lines bool

	r     *bufio.Reader
	clock func() float64
	line  []byte
	data  []byte
	begun bool
}

// NewFrames reads events from r. clock is asked for the time whenever a data
// line is complete; it may be nil.
func NewFrames(r io.Reader, clock func() float64) *Frames {
	if clock == nil {
		clock = func() float64 { return 0 }
	}
	return &Frames{r: bufio.NewReaderSize(r, readSize), clock: clock}
}

// Next returns the next event that has a data line. io.EOF is the clean end;
// any other error is that of the reader underneath, or ErrLongLine.
func (f *Frames) Next() (Frame, error) {
	var ev Frame
	f.data = f.data[:0]
	has := false
	for {
		line, whole, err := f.readLine()
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			if errors.Is(err, io.EOF) && has {
				ev.Data = f.data
				return ev, nil
			}
			return Frame{}, err
		}
		if !f.begun {
			f.begun = true
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if f.Lines && len(line) > 0 {
			return Frame{Data: line, AtS: f.clock(), Cut: !whole}, nil
		}
		if len(line) == 0 {
			if has {
				ev.Data = f.data
				return ev, nil
			}
			ev = Frame{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if has {
				f.data = append(f.data, '\n')
			}
			if len(f.data)+len(value) > MaxLine {
				return Frame{}, ErrLongLine
			}
			f.data = append(f.data, value...)
			has = true
			ev.AtS = f.clock()
			ev.Cut = !whole
		case "event":
			ev.Name = string(value)
		}
	}
}

// readLine returns a line without its end, and whether it had one.
func (f *Frames) readLine() (line []byte, whole bool, err error) {
	f.line = f.line[:0]
	for {
		part, err := f.r.ReadSlice('\n')
		if len(f.line)+len(part) > MaxLine {
			return nil, false, ErrLongLine
		}
		if len(f.line) > 0 || err != nil {
			f.line = append(f.line, part...)
			part = f.line
		}
		switch {
		case err == nil:
			part = part[:len(part)-1]
			return bytes.TrimSuffix(part, []byte("\r")), true, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		default:
			return part, false, err
		}
	}
}
