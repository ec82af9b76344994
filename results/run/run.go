// Package run is the folder of a run: its layout, how it comes to be, and how a
// user's word for a run ("last", a tag, an id, a path) finds it. It reads and
// names files; what they mean is other packages' business.
package run

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/results/durable"
	"twopoint/results/event"
	"twopoint/schema/plan"
)

// Dir is the folder runs/<experiment>/<run-id>.
type Dir string

// NewID is a run id: UTC time and 6 random hex digits, such as
// 20260301T120000Z-3fa9c1. Ids sort by time.
func NewID(now time.Time) string {
	var b [3]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(b[:])
}

var idPattern = regexp.MustCompile(`^\d{8}T\d{6}Z-[0-9a-f]{6}$`)

// File is a file to be kept with a run: content, or the text of a symbolic link.
type File struct {
	Content    []byte
	Executable bool
	Link       string // empty: no link
}

// Create makes the folder of a run with its first files (names relative to the
// folder, such as spec/spec.cue) and its events and logs folders. The folder
// appears whole or not at all; one that is there already is an error.
func Create(root, experiment, id string, files map[string]File) (Dir, error) {
	dir, err := create(root, experiment, id, files)
	if err != nil {
		return "", fmt.Errorf("create run: %w", err)
	}
	return dir, nil
}

func create(root, experiment, id string, files map[string]File) (Dir, error) {
	for _, name := range []string{experiment, id} {
		if name == "." || !filepath.IsLocal(name) || filepath.Base(name) != name {
			return "", fmt.Errorf("%q cannot be the name of a folder", name)
		}
	}
	for name := range files {
		if name == "." || !filepath.IsLocal(name) {
			return "", fmt.Errorf("%q is not a name inside the run's folder", name)
		}
	}
	parent := filepath.Join(root, experiment)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(parent, ".new-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) // by then it has its name, or there was an error
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	folders := map[string]bool{tmp: true, filepath.Join(tmp, "events"): true, filepath.Join(tmp, "logs"): true}
	for name := range files {
		for folder := filepath.Dir(filepath.Join(tmp, name)); folder != tmp; folder = filepath.Dir(folder) {
			folders[folder] = true
		}
	}
	for folder := range folders {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return "", err
		}
	}
	for name, f := range files {
		if err := f.write(filepath.Join(tmp, name)); err != nil {
			return "", err
		}
	}
	for folder := range folders { // nested folders' own names too
		if err := durable.SyncDir(folder); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(parent, id)
	if err := durable.Rename(tmp, dir); err != nil {
		return "", err
	}
	return Dir(dir), durable.SyncDir(root) // the experiment's folder may be new
}

// Add puts more files beside those of Create. A file that the run has already is
// left alone if it is the same; if it is not, nothing is added and the error
// wraps fs.ErrExist: what was measured with it must stay.
func (d Dir) Add(files map[string]File) error {
	missing := map[string]bool{}
	for name, f := range files {
		switch same, err := f.is(d.Path(name)); {
		case errors.Is(err, fs.ErrNotExist):
			missing[name] = true
		case err != nil:
			return err
		case !same:
			return fmt.Errorf("%s: %w in the run, with other content", name, fs.ErrExist)
		}
	}
	for name := range missing {
		path := d.Path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := files[name].write(path); err != nil {
			return err
		}
		for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
			if err := durable.SyncDir(folder); err != nil {
				return err
			}
			if folder == filepath.Clean(string(d)) {
				break
			}
		}
	}
	return nil
}

// is tells whether the file at path is f.
func (f File) is(path string) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if f.Link != "" || info.Mode()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(path)
		return err == nil && link == f.Link, nil
	}
	content, err := os.ReadFile(path)
	return bytes.Equal(content, f.Content) && (info.Mode()&0o111 != 0) == f.Executable, err
}

func (f File) write(path string) error {
	if f.Link != "" {
		return os.Symlink(f.Link, path)
	}
	if err := durable.WriteBytes(path, f.Content); err != nil || !f.Executable {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Chmod(0o755); err != nil {
		return err
	}
	return durable.Sync(file)
}

// Path is a name inside the folder.
func (d Dir) Path(name ...string) string {
	return filepath.Join(append([]string{string(d)}, name...)...)
}

// ID is the run's id: the folder's name.
func (d Dir) ID() string {
	if abs, err := filepath.Abs(string(d)); err == nil { // "." has a name too
		return filepath.Base(abs)
	}
	return filepath.Base(string(d))
}

// Journal is the path of an order's events.
func (d Dir) Journal(order string) string { return d.Path("events", order+".jsonl") }

// Log is the path of a deployment's log.
func (d Dir) Log(deployment string) string { return d.Path("logs", deployment+".log") }

// Table is the path of a table.
func (d Dir) Table(name string) string { return d.Path(name + ".parquet") }

// Plan reads plan.json.
func (d Dir) Plan() (plan.Plan, error) {
	b, err := os.ReadFile(d.Path("plan.json"))
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.Decode(d.Path("plan.json"), b)
}

// Events reads all events of the run, order by order.
func (d Dir) Events() ([]event.Event, error) { return event.ReadDir(d.Path("events")) }

// Tags are the tags of the run, oldest first.
func (d Dir) Tags() []string {
	var tags []string
	events, _ := event.Read(d.Journal(NotesOrder)) // no journal, no tags
	for _, e := range events {
		if e.Note != nil && e.Note.Code == NoteTag {
			tags = append(tags, e.Note.Text)
		}
	}
	return tags
}

// NotesOrder is the journal of what people say of a run; NoteTag and NoteText
// are the codes of their notes.
const (
	NotesOrder = "notes"
	NoteTag    = "tag"
	NoteText   = "note"
)

// AddNote appends a tag or a text to the run.
func (d Dir) AddNote(code, text string) error {
	j, err := event.Open(d.Journal(NotesOrder), NotesOrder)
	if err != nil {
		return err
	}
	defer j.Close()
	return j.Record(event.Event{Type: event.TypeNote, Note: &event.Note{Code: code, Text: text}})
}

// List is every run below root, oldest first. Folders that are no run are
// passed over.
func List(root string) ([]Dir, error) {
	experiments, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dirs []Dir
	for _, e := range experiments {
		runs, err := os.ReadDir(filepath.Join(root, e.Name()))
		if err != nil {
			continue // a file beside the experiments, or one that we may not read
		}
		for _, r := range runs {
			if r.IsDir() && idPattern.MatchString(r.Name()) {
				dirs = append(dirs, Dir(filepath.Join(root, e.Name(), r.Name())))
			}
		}
	}
	slices.SortFunc(dirs, func(a, b Dir) int {
		return strings.Compare(a.ID()+string(a), b.ID()+string(b))
	})
	return dirs, nil
}

// Find is the run that ref names, in this order: a folder, "last" (the newest
// run; "last~1" is the one before it), an id, a tag (the newest run that has it), the unique beginning of an id.
func Find(root, ref string) (Dir, error) {
	if ref == "" {
		return "", errors.New("no run was named; \"last\" is the newest")
	}
	if _, err := os.Stat(filepath.Join(ref, "plan.json")); err == nil {
		return Dir(filepath.Clean(ref)), nil
	}
	dirs, err := List(root)
	if err != nil {
		return "", err
	}
	if text, is := strings.CutPrefix(ref, "last"); is && (text == "" || text[0] == '~') {
		back, err := strconv.Atoi(cmp.Or(strings.TrimPrefix(text, "~"), "0"))
		if err == nil && back >= 0 && back < len(dirs) {
			return dirs[len(dirs)-1-back], nil
		}
	}
	var byID []Dir
	for _, d := range dirs {
		if d.ID() == ref {
			return d, nil
		}
		if strings.HasPrefix(d.ID(), ref) {
			byID = append(byID, d)
		}
	}
	for _, d := range slices.Backward(dirs) {
		if slices.Contains(d.Tags(), ref) {
			return d, nil
		}
	}
	switch len(byID) {
	case 1:
		return byID[0], nil
	case 0:
		return "", fmt.Errorf("no run %q below %s; \"twopoint ls\" lists them", ref, root)
	}
	return "", fmt.Errorf("%q begins the ids of %d runs, such as %s and %s", ref, len(byID), byID[0].ID(), byID[1].ID())
}
