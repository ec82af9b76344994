package failure

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// corpus is one file of testdata/cases: "key: value" lines, "---", the log.
type corpus struct {
	Observation
	want     Finding
	evidence []string
}

func parse(t testing.TB, file string) corpus {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, log, ok := strings.Cut(string(b), "---\n")
	if !ok {
		t.Fatalf("%s: no --- line", file)
	}
	c := corpus{Observation: Observation{Facts: map[Fact]string{}}}
	if log != "" {
		c.Log = strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	}
	for line := range strings.Lines(head) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Fatalf("%s: %q", file, line)
		}
		switch key {
		case "stage":
			c.Stage = Stage(value)
		case "exit":
			value, c.Exit.Asked = strings.CutPrefix(value, "asked ")
			what, arg, _ := strings.Cut(value, " ")
			c.Exit.State = Ended
			switch what {
			case "running":
				c.Exit.State = Running
			case "code":
				if c.Exit.Code, err = strconv.Atoi(arg); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
			case "signal":
				c.Exit.Code, c.Exit.Signal = -1, arg
			case "ended":
			default:
				t.Fatalf("%s: exit %q", file, value)
			}
		case "transport":
			c.Transport = Transport(value)
		case "error":
			c.Error = value
		case "status":
			if c.HTTPStatus, err = strconv.Atoi(value); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		case "body":
			c.Body = value
		case "fact":
			name, text, _ := strings.Cut(value, " ")
			c.Facts[Fact(name)] = text
		case "kind":
			c.want.Kind = Kind(value)
		case "scope":
			c.want.Scope = Scope(value)
		case "signature":
			c.want.Signature = value
		case "evidence":
			c.evidence = append(c.evidence, value)
		default:
			t.Fatalf("%s: unknown key %q", file, key)
		}
	}
	return c
}

func files(t testing.TB) []string {
	t.Helper()
	fs, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(fs) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	return fs
}

func TestCorpus(t *testing.T) {
	seen := map[Kind]bool{}
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			c := parse(t, file)
			got := Classify(c.Observation)
			if got.Kind != c.want.Kind || got.Scope != c.want.Scope || got.Signature != c.want.Signature {
				t.Errorf("got %s, %s, %q\nwant %s, %s, %q\nevidence %q", got.Kind, got.Scope, got.Signature,
					c.want.Kind, c.want.Scope, c.want.Signature, got.Evidence)
			}
			seen[c.want.Kind] = true
			sound(t, got)
			if got.Message == "" && len(c.Log) == 0 && c.Exit.State != Unknown {
				t.Error("no message")
			}
			for _, want := range c.evidence {
				if !strings.Contains(strings.Join(got.Evidence, "\n"), want) {
					t.Errorf("evidence %q lacks %q", got.Evidence, want)
				}
			}
		})
	}
	for _, k := range Kinds {
		if !seen[k] {
			t.Errorf("no case gives %s", k)
		}
	}
}

// sound checks what holds for every finding.
func sound(t *testing.T, f Finding) {
	t.Helper()
	if !slices.Contains(Kinds, f.Kind) {
		t.Errorf("kind %q is not in the closed list", f.Kind)
	}
	if !slices.Contains([]Scope{Request, Server, Host, Link}, f.Scope) {
		t.Errorf("scope %q", f.Scope)
	}
	if f.Signature == "" || len(f.Signature) > MaxLine || strings.ContainsRune(f.Signature, 0) || !utf8.ValidString(f.Signature) {
		t.Errorf("signature %q", f.Signature)
	}
	if len(f.Evidence) > MaxEvidence {
		t.Errorf("%d lines of evidence", len(f.Evidence))
	}
	for _, l := range append(f.Evidence, f.Message) {
		if len(l) > MaxLine || !utf8.ValidString(l) || strings.ContainsAny(l, "\n\r\x00") {
			t.Errorf("a line of %d bytes: %.100q", len(l), l)
		}
	}
}

// Every rule of the table names a kind and a scope that exist.
func TestTableIsClosed(t *testing.T) {
	if len(Kinds) != 26 {
		t.Errorf("%d kinds, the closed list has 26", len(Kinds))
	}
	for _, g := range table {
		for _, r := range g.rules {
			if !slices.Contains(Kinds, r.kind) {
				t.Errorf("rule %q gives %q", r.signature, r.kind)
			}
			if r.signature == "" && r.log == nil {
				t.Errorf("a rule for %s has no signature and no text to take it from", r.kind)
			}
		}
	}
}

func TestSkipLonger(t *testing.T) {
	var got []Kind
	for _, k := range Kinds {
		if k.SkipLonger() {
			got = append(got, k)
		}
	}
	if want := []Kind{GPUOOM, HostOOM, Killed, KVExhausted, ContextTooLong}; !slices.Equal(got, want) {
		t.Errorf("skip_longer after %v, want %v", got, want)
	}
}

// The first root cause in time wins, whatever the table's order.
func TestFirstInTime(t *testing.T) {
	oom, fault := "CUDA out of memory. Tried to allocate 1 GiB", "an illegal memory access was encountered"
	for _, tc := range []struct {
		log  []string
		want Kind
	}{
		{[]string{oom, fault}, GPUOOM},
		{[]string{fault, oom}, IllegalAccess},
	} {
		got := Classify(Observation{Stage: Decode, Log: tc.log, Exit: Exit{State: Ended, Code: 1}})
		if got.Kind != tc.want || !slices.Contains(got.Evidence, tc.log[0]) {
			t.Errorf("%q gives %+v, want %s", tc.log, got, tc.want)
		}
	}
}

// A long log stays cheap and its evidence is found wherever it stands in a line.
func TestLargeInput(t *testing.T) {
	log := make([]string, 60000)
	for i := range log {
		log[i] = fmt.Sprintf("INFO step %d took 12 ms", i)
	}
	log[59000] = strings.Repeat("x", 300<<10) + " torch.OutOfMemoryError: CUDA out of memory"
	got := Classify(Observation{Stage: Decode, Log: log, Exit: Exit{State: Ended, Signal: "SIGKILL"}})
	if got.Kind != GPUOOM {
		t.Errorf("got %+v", got.Kind)
	}
	sound(t, got)
}

func FuzzClassify(f *testing.F) {
	for _, file := range files(f) {
		c := parse(f, file)
		f.Add(string(c.Stage), string(c.Transport), c.Exit.Signal, c.Exit.Code, c.HTTPStatus, c.Body, strings.Join(c.Log, "\n"), uint32(7))
	}
	for _, s := range signatures(f) {
		o := s.observation(f)
		f.Add(string(o.Stage), string(o.Transport), o.Exit.Signal, o.Exit.Code, o.HTTPStatus, o.Body, strings.Join(o.Log, "\n"), uint32(7))
	}
	facts := []Fact{WasCancelled, TimeIsUp, LostLink, FoundLeftOver, PortTaken, BuildFailed, LaunchFailed, ReadyTimeout, RefusedFlush,
		ShortPrompt, NoToken, LimitPassed, ProbeAnswered, ProbeUnanswered, OOMKill, SupervisorKilled}
	f.Fuzz(func(t *testing.T, stage, transport, signal string, code, status int, body, log string, bits uint32) {
		o := Observation{
			Stage: Stage(stage), Transport: Transport(transport), HTTPStatus: status, Body: body, Error: signal,
			Log:   strings.Split(log, "\n"),
			Exit:  Exit{State: []State{Unknown, Running, Ended, Ended}[bits&3], Code: code, Signal: signal, Asked: bits&4 != 0},
			Facts: map[Fact]string{},
		}
		for i, fact := range facts {
			if bits>>(i+3)&1 != 0 {
				o.Facts[fact] = body
			}
		}
		first := Classify(o)
		sound(t, first)
		if again := Classify(o); fmt.Sprint(again) != fmt.Sprint(first) {
			t.Errorf("not the same twice: %v, %v", first, again)
		}
	})
}
