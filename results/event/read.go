package event

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// DamageError is a line of a journal that no crash of ours explains: it is not
// an event although more lines follow, or it is one out of order. Events before
// it are intact.
type DamageError struct {
	Path   string
	Line   int   // from 1
	Offset int64 // bytes before the line
	Err    error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s:%d: damaged journal at byte %d: %v", e.Path, e.Line, e.Offset, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// ErrNewer is wrapped by the error for an event of a later format version.
var ErrNewer = fmt.Errorf("written in a newer event format than %d; upgrade twopoint to read it", Version)

// Read returns the events of the journal at path. A torn tail is dropped: its
// event was never promised. On damage (*DamageError) and on a newer format
// (ErrNewer) it returns the intact events before it together with the error.
//
// Fields and types that this version does not know are no error; an event of an
// unknown type has its envelope and no payload. Numbers in free-form values
// (deployment.effective) are json.Number.
func Read(path string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer f.Close()
	events, _, err := readAll(f, path)
	return events, err
}

func readAll(r io.Reader, path string) (events []Event, end cursor, err error) {
	rd := newReader(r, path, cursor{})
	for {
		e, err := rd.next()
		switch err {
		case nil:
			events = append(events, e)
		case io.EOF, errTorn:
			return events, rd.at, nil
		default:
			return events, rd.at, err
		}
	}
}

// ReadDir returns the events of all journals (*.jsonl) in dir, sorted by order
// and sequence number; o2 comes before o10. No clock takes part. Of damaged
// journals it returns what Read does, and their errors joined.
func ReadDir(dir string) ([]Event, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read journals: %w", err)
	}
	var all []Event
	var errs []error
	owner := map[string]string{} // order → path
	for _, entry := range entries {
		if entry.IsDir() || filepath.Ext(entry.Name()) != ".jsonl" {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		events, err := Read(path)
		if err != nil {
			errs = append(errs, err)
		}
		if len(events) == 0 {
			continue
		}
		if other, dup := owner[events[0].Order]; dup {
			errs = append(errs, fmt.Errorf("%s and %s are both journals of order %s: the second is left out", other, path, events[0].Order))
			continue
		}
		owner[events[0].Order] = path
		all = append(all, events...)
	}
	slices.SortStableFunc(all, func(a, b Event) int {
		return cmp.Or(
			cmp.Compare(len(a.Order), len(b.Order)),
			cmp.Compare(a.Order, b.Order),
			cmp.Compare(a.Seq, b.Seq))
	})
	return all, errors.Join(errs...)
}

// followEvery is how often Follow looks for new lines.
const followEvery = 100 * time.Millisecond

// Follow yields the events of the journal at path, those on disk and then new
// ones as they are recorded, until ctx ends; what is on disk by then is still
// yielded. It waits for a file that does not exist yet. An error is yielded
// once and ends the sequence. It is for showing progress: an event whose Record
// failed after all may have been seen.
func Follow(ctx context.Context, path string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var at cursor
		damagedAt := int64(-1)
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for {
			last := ctx.Err() != nil
			stopped := false
			next, err := readFrom(path, at, func(e Event) bool {
				stopped = !yield(e, nil)
				return !stopped
			})
			if stopped {
				return
			}
			at = next
			var damage *DamageError
			switch {
			case err == nil:
				damagedAt = -1
			case errors.As(err, &damage) && !last && damagedAt != at.off:
				// A torn tail that a new writer is just replacing can look
				// damaged; real damage is still there at the next look.
				damagedAt = at.off
			default:
				yield(Event{}, err)
				return
			}
			if last {
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
}

// readFrom hands on the intact events of path after at, until keep says false,
// and tells where they end. A file that does not exist has none.
func readFrom(path string, at cursor, keep func(Event) bool) (cursor, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && at.seq == 0 {
			return at, nil
		}
		return at, fmt.Errorf("follow journal: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return at, fmt.Errorf("follow journal: %w", err)
	}
	if info.Size() < at.off {
		return at, fmt.Errorf("follow journal: %s lost bytes that were read before", path)
	}
	if _, err := f.Seek(at.off, io.SeekStart); err != nil {
		return at, fmt.Errorf("follow journal: %w", err)
	}
	r := newReader(f, path, at)
	for {
		e, err := r.next()
		if err == io.EOF || err == errTorn {
			return r.at, nil
		}
		if err != nil || !keep(e) {
			return r.at, err
		}
	}
}

// cursor is the end of the intact events read so far.
type cursor struct {
	off   int64 // bytes
	line  int   // lines
	order string
	seq   int64
}

// reader reads a journal line by line.
type reader struct {
	in   *bufio.Reader
	path string
	at   cursor
}

func newReader(r io.Reader, path string, at cursor) *reader {
	return &reader{in: bufio.NewReaderSize(r, 64<<10), path: path, at: at}
}

// errTorn is the end of a journal whose last line was cut off by a crash.
var errTorn = errors.New("torn tail")

// next is the next intact event. The end is io.EOF, or errTorn if one bad line
// stands there: one without its newline, or one that is no JSON and has at most
// NUL bytes after it. Each event is on disk before the next is written, so a
// crash cannot leave more than that; anything else is a *DamageError.
func (r *reader) next() (Event, error) {
	line, err := r.line()
	var e Event
	switch {
	case err == io.EOF && len(line) == 0:
		return Event{}, io.EOF
	case err == io.EOF:
		return Event{}, errTorn
	case err == nil:
		e, err = decode(line)
	}
	switch {
	case err == nil && e.Seq != r.at.seq+1:
		err = fmt.Errorf("sequence number %d follows %d", e.Seq, r.at.seq)
	case err == nil && r.at.seq > 0 && e.Order != r.at.order:
		err = fmt.Errorf("order %q in the journal of order %q", e.Order, r.at.order)
	case err == nil:
		r.at = cursor{off: r.at.off + int64(len(line)), line: r.at.line + 1, order: e.Order, seq: e.Seq}
		return e, nil
	}
	var failed *readError
	if errors.As(err, &failed) {
		return Event{}, fmt.Errorf("read journal %s: %w", r.path, failed.error)
	}
	if errors.Is(err, ErrNewer) {
		return Event{}, fmt.Errorf("%s:%d: %w", r.path, r.at.line+1, err)
	}
	if errors.Is(err, errNotJSON) {
		tail, err := r.onlyNULs()
		if err != nil {
			return Event{}, fmt.Errorf("read journal %s: %w", r.path, err)
		}
		if tail {
			return Event{}, errTorn
		}
	}
	return Event{}, &DamageError{Path: r.path, Line: r.at.line + 1, Offset: r.at.off, Err: err}
}

// errNotJSON is wrapped for a line that a torn write may have left.
var errNotJSON = errors.New("not a JSON object")

// readError is trouble of the machine, not of the journal.
type readError struct{ error }

// line is the next line with its newline. At the end of the file it is what is
// left, with io.EOF. A line beyond MaxLine is read over and not JSON.
func (r *reader) line() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.in.ReadSlice('\n')
		if long = long || len(line)+len(part) > MaxLine; long {
			line, part = line[:1], nil
		}
		line = append(line, part...)
		switch {
		case err == bufio.ErrBufferFull:
		case err == nil && long:
			return nil, fmt.Errorf("%w: longer than %d bytes", errNotJSON, MaxLine)
		case err == nil, err == io.EOF:
			return line, err
		default:
			return nil, &readError{err}
		}
	}
}

// onlyNULs reads on until a byte that is not NUL and tells whether there is none.
func (r *reader) onlyNULs() (bool, error) {
	for {
		switch b, err := r.in.ReadByte(); {
		case err == io.EOF:
			return true, nil
		case err != nil:
			return false, err
		case b != 0:
			return false, nil
		}
	}
}

// decode reads a line. Its errors wrap errNotJSON or ErrNewer, or say what kind
// of object stands there instead of an event.
func decode(line []byte) (Event, error) {
	var e Event
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	err := dec.Decode(&e)
	if err == nil && e.V == Version && len(bytes.TrimSpace(line[dec.InputOffset():])) == 0 {
		if e.Order == "" || e.Seq < 1 {
			return Event{}, errors.New("no event: order or seq is missing")
		}
		if e.Type.known() {
			err = e.check()
		}
		return e, err
	}
	// A newer format may not fit our types; its version can still be read.
	var envelope struct{ V json.Number }
	if bad := json.Unmarshal(line, &envelope); bad != nil {
		return Event{}, fmt.Errorf("%w: %v", errNotJSON, bad)
	}
	if v, _ := envelope.V.Int64(); v > Version {
		return Event{}, fmt.Errorf("version %d: %w", v, ErrNewer)
	}
	if err == nil {
		err = fmt.Errorf("version %d", e.V)
	}
	return Event{}, fmt.Errorf("no event: %w", err)
}
