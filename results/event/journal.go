package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"twopoint/results/durable"
)

// MaxLine is the longest line of a journal in bytes, with its newline. It
// bounds what a reader allocates for a damaged file.
const MaxLine = 64 << 20

// ErrLocked is what Create and Open wrap when another writer has the journal.
var ErrLocked = errors.New("another process is writing it")

// Journal appends events of one order to its file. It is the file's only
// writer, which an flock asserts for as long as it is open. Its methods may be
// called from several goroutines.
type Journal struct {
	path, order string

	mu     sync.Mutex
	f      file
	seq    int64 // of the last event on disk
	off    int64 // bytes up to and including it
	broken error // why the file's end is unknown; set for good
}

// file is what a journal needs of an *os.File opened with O_APPEND.
type file interface {
	io.WriteCloser
	durable.File
	Truncate(size int64) error
}

// Create makes the journal of an order at path, which must not exist yet. Its
// folder must exist. When Create returns, the file's name is on disk.
func Create(path, order string) (*Journal, error) {
	return open(path, order, os.O_EXCL)
}

// Open goes on with the journal at path, or makes it where there is none. A
// torn tail, the trace of a crash in mid-write, is cut off first. Damage before
// the tail (*DamageError), a newer format (ErrNewer) and a journal of another
// order are errors, and the file stays as it is.
func Open(path, order string) (*Journal, error) {
	return open(path, order, 0)
}

func open(path, order string, flag int) (_ *Journal, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|flag, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("lock journal %s: %w", path, err)
	}
	r := newReader(f, path, cursor{})
	for err == nil {
		_, err = r.next()
	}
	if err != io.EOF && err != errTorn {
		return nil, err
	}
	if r.at.seq > 0 && r.at.order != order {
		return nil, fmt.Errorf("journal %s holds order %q, not %q", path, r.at.order, order)
	}
	if err == errTorn {
		if err := f.Truncate(r.at.off); err != nil {
			return nil, fmt.Errorf("cut the torn tail of journal %s: %w", path, err)
		}
	}
	if err := durable.Sync(f); err != nil {
		return nil, fmt.Errorf("sync journal %s: %w", path, err)
	}
	if r.at.seq == 0 { // perhaps new: its name must survive a crash too
		if err := durable.SyncDir(filepath.Dir(path)); err != nil {
			return nil, fmt.Errorf("sync folder of a journal: %w", err)
		}
	}
	return &Journal{path: path, order: order, f: f, seq: r.at.seq, off: r.at.off}, nil
}

// Record is Append for those who have no use for the stamps.
func (j *Journal) Record(events ...Event) error {
	_, err := j.Append(events...)
	return err
}

// Append stamps the events with version, order, the next sequence numbers and
// the time, and appends them with one write and one fsync; what the caller put
// there is ignored. The events as they are on disk are returned. When there is
// an error none of them is in the journal, the file is as it was before, and
// Append may be tried again; only if the file could not be cut back does every
// later call fail as well.
func (j *Journal) Append(events ...Event) ([]Event, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil || len(events) == 0 {
		return nil, j.broken
	}
	stamped := make([]Event, len(events))
	now := time.Now().UTC().Truncate(time.Microsecond)
	var lines []byte
	for i, e := range events {
		e.V, e.Order, e.Seq, e.Time = Version, j.order, j.seq+int64(i)+1, now
		line, err := encode(e)
		if err != nil {
			return nil, fmt.Errorf("record %s event in %s: %w", e.Type, j.path, err)
		}
		stamped[i], lines = e, append(lines, line...)
	}
	_, err := j.f.Write(lines)
	if err == nil {
		err = durable.Sync(j.f)
	}
	if err != nil {
		err = fmt.Errorf("record events in %s: %w", j.path, err)
		cut := j.f.Truncate(j.off)
		if cut == nil {
			cut = durable.Sync(j.f)
		}
		if cut != nil {
			j.broken = fmt.Errorf("journal %s cannot be cut back to its last event, reopen it: %w", j.path, cut)
			err = errors.Join(err, j.broken)
		}
		return nil, err
	}
	j.seq += int64(len(events))
	j.off += int64(len(lines))
	return stamped, nil
}

// Close gives the journal up. Every recorded event is on disk already.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken == nil {
		j.broken = fmt.Errorf("journal %s: %w", j.path, os.ErrClosed)
	}
	return j.f.Close()
}

// encode is the event's line. Invalid UTF-8 in strings becomes U+FFFD; a NaN or
// an infinity is an error that names its field.
func encode(e Event) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		if where := notFinite(reflect.ValueOf(e), ""); where != "" {
			return nil, fmt.Errorf("%s: a value that was not measured is left out", where)
		}
		return nil, err
	}
	if b.Len() > MaxLine {
		return nil, fmt.Errorf("%d bytes, a line holds %d", b.Len(), MaxLine)
	}
	return b.Bytes(), nil
}

// payloads tells for each type whether the event carries its payload.
func (e Event) payloads() map[Type]bool {
	return map[Type]bool{
		TypeRun: e.Run != nil, TypeDeployment: e.Deployment != nil, TypeSample: e.Sample != nil,
		TypeRepeat: e.Repeat != nil, TypePoint: e.Point != nil, TypeSkip: e.Skip != nil,
		TypeFlush: e.Flush != nil, TypeFailure: e.Failure != nil, TypeKernel: e.Kernel != nil,
		TypeTelemetry: e.Telemetry != nil, TypeNote: e.Note != nil,
	}
}

// known tells whether this version knows the type.
func (t Type) known() bool {
	_, ok := Event{}.payloads()[t]
	return ok
}

// check tells whether the event carries the payload that its type names, alone.
func (e Event) check() error {
	has := e.payloads()
	if !has[e.Type] {
		return fmt.Errorf("type %q without its payload", e.Type)
	}
	for t, set := range has {
		if set && t != e.Type {
			return fmt.Errorf("type %q with the payload of %q", e.Type, t)
		}
	}
	return nil
}

// notFinite finds the first NaN or infinity in v and says where it is, in JSON
// names: "sample.chunk_s[3] is NaN". It is empty if all numbers are finite.
func notFinite(v reflect.Value, path string) string {
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprintf("%s is %v", strings.TrimPrefix(path, "."), f)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return notFinite(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if where := notFinite(v.Field(i), path+"."+name); where != "" {
					return where
				}
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if where := notFinite(v.Index(i), fmt.Sprintf("%s[%d]", path, i)); where != "" {
				return where
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if where := notFinite(v.MapIndex(k), fmt.Sprintf("%s.%v", path, k)); where != "" {
				return where
			}
		}
	}
	return ""
}
