package failure

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// signature is a line of testdata/signatures.txt.
type signature struct {
	where, text string
	kind        Kind
	scope       Scope
}

func signatures(t testing.TB) []signature {
	t.Helper()
	b, err := os.ReadFile("testdata/signatures.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []signature
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.SplitN(line+" ", " | ", 4)
		if len(f) != 4 {
			t.Fatalf("%q has %d fields", line, len(f))
		}
		out = append(out, signature{where: f[0], kind: Kind(f[1]), scope: Scope(f[2]), text: strings.TrimSpace(f[3])})
	}
	return out
}

// observation is the failure that the line speaks of.
func (s signature) observation(t testing.TB) Observation {
	t.Helper()
	o := Observation{Stage: Prefill, Exit: Exit{State: Running}, Facts: map[Fact]string{}}
	where, arg, _ := strings.Cut(s.where, " ")
	number, _ := strconv.Atoi(arg)
	switch where {
	case "load":
		o.Stage, o.Exit, o.Log = Load, Exit{State: Ended, Code: 1}, []string{s.text}
	case "run":
		o.Exit, o.Log, o.Transport = Exit{State: Ended, Signal: "SIGKILL", Code: -1}, []string{s.text}, EOF
	case "gone-on", "silent":
		o.Log, o.Transport, o.HTTPStatus = []string{s.text}, HTTP, 500
	case "body", "dead-body":
		o.Transport, o.HTTPStatus, o.Body = HTTP, number, s.text
	case "event":
		o.Transport, o.HTTPStatus, o.Body = ErrorEvent, 200, s.text
	case "code":
		o.Exit, o.Transport = Exit{State: Ended, Code: number}, EOF
	case "signal":
		o.Exit, o.Transport = Exit{State: Ended, Code: -1, Signal: arg}, EOF
	default:
		t.Fatalf("where is %q?", s.where)
	}
	switch where {
	case "silent", "dead-body":
		o.Facts[ProbeUnanswered] = ""
	case "gone-on", "body", "event":
		o.Facts[ProbeAnswered] = ""
	}
	return o
}

// Every text that an engine is known to print becomes what it means, and is
// handed on as evidence.
func TestSignatures(t *testing.T) {
	for _, s := range signatures(t) {
		got := Classify(s.observation(t))
		sound(t, got)
		if got.Kind != s.kind || got.Scope != s.scope {
			t.Errorf("%s: %s\n\tis %s, %s (%s), want %s, %s", s.where, s.text, got.Kind, got.Scope, got.Signature, s.kind, s.scope)
		}
		if words := clean(s.text, 60); !strings.Contains(strings.Join(got.Evidence, "\n"), strings.TrimSuffix(words, "…")) {
			t.Errorf("%s: %s\n\tis not among the evidence %q", s.where, s.text, got.Evidence)
		}
	}
}

// vLLM says which context would fit: a person should not have to search for it.
func TestFittingContext(t *testing.T) {
	for _, line := range []string{
		"ValueError: To serve at least one request with the models's max seq len (262144), (48.00 GiB KV cache is needed, which is larger than the available KV cache memory (30.00 GiB). Based on the available memory, the estimated maximum model length is 163840. " + strings.Repeat("Try this. ", 100),
		"ValueError: The model's max seq len (262144) is larger than the maximum number of tokens that can be stored in KV cache (163840). Try increasing",
	} {
		got := Classify(Observation{Stage: Load, Exit: Exit{State: Ended, Code: 1}, Log: []string{line}})
		if !strings.Contains(got.Message, "a context of 163840 tokens would fit") {
			t.Errorf("%s", got.Message)
		}
		sound(t, got)
	}
}
