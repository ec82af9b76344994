package run

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"twopoint/results/durable"
)

const (
	oldID   = "20260301T120000Z-3fa9c1"
	midID   = "20260301T120000Z-a00000"
	newID   = "20260302T000000Z-000001"
	content = "{}"
)

func makeRun(t *testing.T, root, experiment, id string) Dir {
	t.Helper()
	d, err := Create(root, experiment, id, map[string]File{"plan.json": {Content: []byte(content)}, "spec/kernel/a.cu": {Content: []byte("x")}, "spec/spec.cue": {Content: []byte("y")},
		"spec/kernel/build": {Content: []byte("z"), Executable: true}, "spec/kernel/link": {Link: "build"}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNewID(t *testing.T) {
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("CET", 3600))
	id := NewID(at)
	if !idPattern.MatchString(id) || !strings.HasPrefix(id, "20260301T120000Z-") {
		t.Errorf("id %s", id)
	}
	if later := NewID(at.Add(time.Second)); later <= id {
		t.Errorf("%s does not sort after %s", later, id)
	}
	if NewID(at) == NewID(at) && NewID(at) == NewID(at) {
		t.Error("ids of one second are equal")
	}
}

func TestCreate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "runs")
	d := makeRun(t, root, "exp", oldID)
	if d.ID() != oldID || string(d) != filepath.Join(root, "exp", oldID) {
		t.Errorf("folder %s", d)
	}
	for name, want := range map[string]fs.FileMode{
		".": fs.ModeDir | 0o755, "events": fs.ModeDir | 0o755, "logs": fs.ModeDir | 0o755, "spec": fs.ModeDir | 0o755,
		"spec/kernel": fs.ModeDir | 0o755, "spec/kernel/a.cu": 0o644, "plan.json": 0o644,
		"spec/kernel/build": 0o755, "spec/kernel/link": fs.ModeSymlink | 0o777,
	} {
		info, err := os.Lstat(d.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
	if _, err := Create(root, "exp", oldID, map[string]File{"plan.json": {Content: []byte("other")}}); err == nil {
		t.Error("a run was created over another")
	}
	if b, _ := os.ReadFile(d.Path("plan.json")); string(b) != content {
		t.Errorf("the other run's plan is now %q", b)
	}
	if dirs, err := List(root); err != nil || len(dirs) != 1 {
		t.Errorf("runs %v, %v", dirs, err)
	}
	if names := entries(t, filepath.Join(root, "exp")); len(names) != 1 {
		t.Errorf("the experiment's folder has %v", names)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestCreateRefuses(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct{ experiment, id, file string }{
		{"exp", oldID, "../outside"},
		{"exp", oldID, "/etc/outside"},
		{"exp", oldID, "spec/../../x"},
		{"exp", oldID, "."},
		{"exp", oldID, ""},
		{"..", oldID, "plan.json"},
		{"a/b", oldID, "plan.json"},
		{"", oldID, "plan.json"},
		{".", oldID, "plan.json"},
		{"exp", "../x", "plan.json"},
		{"exp", "", "plan.json"},
	} {
		if d, err := Create(root, c.experiment, c.id, map[string]File{c.file: {}}); err == nil {
			t.Errorf("Create(%q, %q, %q) made %s", c.experiment, c.id, c.file, d)
		}
		if names := entries(t, root); len(names) != 0 {
			t.Errorf("Create(%q, %q, %q) left %v", c.experiment, c.id, c.file, names)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(root, "file"), "exp", oldID, nil); err == nil {
		t.Error("a run was created below a file")
	}
}

// Whenever the process ends, the run's folder is not there or has everything.
func TestCreateWholeOrNotAtAll(t *testing.T) {
	root := t.TempDir()
	steps := 0
	defer func() { durable.Step = nil }()
	durable.Step = func(op, path string, after bool) {
		steps++
		dirs, err := List(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			for _, name := range []string{"plan.json", "spec/spec.cue", "spec/kernel/a.cu", "events", "logs"} {
				if _, err := os.Stat(d.Path(name)); err != nil {
					t.Errorf("at %s of %s: %v", op, path, err)
				}
			}
		}
		if before := op == "rename" && strings.HasSuffix(path, oldID) && !after; before && len(dirs) > 0 {
			t.Error("the run is there before it is whole")
		}
	}
	makeRun(t, root, "exp", oldID)
	if steps < 20 {
		t.Errorf("%d steps seen", steps)
	}
}

func TestListIgnoresJunk(t *testing.T) {
	root := t.TempDir()
	if dirs, err := List(filepath.Join(root, "nothing")); err != nil || len(dirs) != 0 {
		t.Errorf("no folder: %v, %v", dirs, err)
	}
	want := []Dir{makeRun(t, root, "b", oldID), makeRun(t, root, "a", midID), makeRun(t, root, "a", newID)}
	for _, junk := range []string{"a/.new-123", "a/notes", "a/20260301T120000Z", "a/20260301T120000Z-3fa9c1-copy", "empty", ".hidden"} {
		if err := os.MkdirAll(filepath.Join(root, junk), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, junk := range []string{"file", "a/20260303T120000Z-3fa9c1"} { // a file with a run's name
		if err := os.WriteFile(filepath.Join(root, junk), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := List(root)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("runs %v, %v, want %v", got, err, want)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	old, mid, latest := makeRun(t, root, "b", oldID), makeRun(t, root, "a", midID), makeRun(t, root, "a", newID)
	for _, tag := range []struct {
		d    Dir
		text string
	}{{old, "paper"}, {mid, "paper"}, {old, "only"}, {mid, "20260302"}} {
		if err := tag.d.AddNote(NoteTag, tag.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := latest.AddNote(NoteText, "paper"); err != nil { // a text is no tag
		t.Fatal(err)
	}
	for ref, want := range map[string]Dir{
		"last":             latest,
		oldID:              old,
		"20260302T":        latest,
		oldID[:20]:         old,
		"paper":            mid,
		"only":             old,
		"20260302":         mid, // a tag comes before the beginning of an id
		string(old):        old,
		string(old) + "/.": old,
	} {
		if got, err := Find(root, ref); err != nil || got != want {
			t.Errorf("Find(%q) is %s (%v), want %s", ref, got, err, want)
		}
	}
	for ref, want := range map[string]string{
		"":                 "no run was named",
		"nothing":          `no run "nothing"`,
		"20260301":         "begins the ids of 2 runs",
		filepath.Dir(root): "no run",
	} {
		if got, err := Find(root, ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Find(%q) is %s (%v), want an error with %q", ref, got, err, want)
		}
	}
	if _, err := Find(filepath.Join(root, "nothing"), "last"); err == nil {
		t.Error("there is a last run where there is none")
	}
	t.Chdir(string(old))
	if got, err := Find(root, "."); err != nil || got.ID() != oldID {
		t.Errorf("Find(\".\") is %s with id %s (%v)", got, got.ID(), err)
	}
}

func TestTags(t *testing.T) {
	d := makeRun(t, t.TempDir(), "exp", oldID)
	if tags := d.Tags(); tags != nil {
		t.Errorf("tags %v of a run without any", tags)
	}
	for _, tag := range []string{"one", "two"} {
		if err := d.AddNote(NoteTag, tag); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.AddNote(NoteText, "words"); err != nil {
		t.Fatal(err)
	}
	if tags := d.Tags(); !reflect.DeepEqual(tags, []string{"one", "two"}) {
		t.Errorf("tags %v", tags)
	}
	events, err := d.Events()
	if err != nil || len(events) != 3 || events[2].Note.Text != "words" {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestEnvironment(t *testing.T) {
	d := makeRun(t, t.TempDir(), "exp", oldID)
	if e, err := d.Environment(); e != nil || err != nil {
		t.Errorf("none: %v, %v", e, err)
	}
	for text, want := range map[string]*Environment{
		`{"hostname":"box","cpu_cores":2,"gpus":null,"later":1}`: {Hostname: "box", Cores: 2},
		`{"hostname":`: nil,
	} {
		if err := durable.WriteBytes(d.Path("environment.json"), []byte(text)); err != nil {
			t.Fatal(err)
		}
		e, err := d.Environment()
		if (err == nil) != (want != nil) || !reflect.DeepEqual(e, want) {
			t.Errorf("%s: %+v, %v", text, e, err)
		}
		if err != nil && !strings.Contains(err.Error(), "environment.json") {
			t.Errorf("the error does not name the file: %v", err)
		}
	}
}

func TestPaths(t *testing.T) {
	d := Dir("/runs/exp/" + oldID)
	for got, want := range map[string]string{
		d.Journal("o1"): "events/o1.jsonl", d.Log("o1-d2"): "logs/o1-d2.log", d.Table("points"): "points.parquet", d.Path("spec", "x"): "spec/x",
	} {
		if got != string(d)+"/"+want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Files that come later stand beside those of the beginning and replace none.
func TestAdd(t *testing.T) {
	d := makeRun(t, t.TempDir(), "exp", oldID)
	same := File{Content: []byte("x")}
	if err := d.Add(map[string]File{"spec/kernel/a.cu": same, "spec/new/b.cu": {Content: []byte("b"), Executable: true}, "spec/kernel/link": {Link: "build"}}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.Path("spec/new/b.cu")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	for name, f := range map[string]File{
		"spec/spec.cue": {Content: []byte("other")}, "spec/kernel/a.cu": {Content: same.Content, Executable: true}, "spec/kernel/link": {Link: "elsewhere"}, "spec/kernel/build": {Link: "a.cu"},
	} {
		if err := d.Add(map[string]File{name: f, "spec/never": same}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(d.Path("spec/never")); err == nil {
		t.Error("a refused addition left a file")
	}
}
