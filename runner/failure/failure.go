// Package failure says what went wrong. What was seen of one failure goes in:
// the stage, how the process ended, the log's lines, what the client met on the
// wire, and facts that the runner knows. A kind out of a closed list comes out,
// with how far the damage reaches, a signature to group by, and the lines that
// prove it.
//
// The package is pure: it reads no file, asks no server and decides nothing
// about what to do next. All text matching of the project is in its table
// (rules.go). No single source is trusted: servers end with code 0 when their
// engine dies, kill themselves with signal 9, and print out-of-memory lines that
// they recover from.
package failure

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is a failure_kind, a value of the events, the tables and event claims.
type Kind string

// The closed list of kinds.
const (
	GPUOOM          Kind = "gpu-oom"          // the device has no memory left and the server is lost
	HostOOM         Kind = "host-oom"         // the machine, a cgroup or an address-space limit had no memory left
	Killed          Kind = "killed"           // ended from outside by a signal, without evidence of why
	KVExhausted     Kind = "kv-exhausted"     // the KV pool cannot hold what was asked
	Shm             Kind = "shm"              // shared memory (/dev/shm) is too small
	ContextTooLong  Kind = "context-too-long" // refused: the prompt is above the server's limit
	TruncatedPrompt Kind = "truncated-prompt" // the server shortened the prompt in silence
	IllegalAccess   Kind = "illegal-access"   // a kernel broke: illegal address, assert, launch failure
	NCCL            Kind = "nccl"             // collective communication failed
	Crash           Kind = "crash"            // the server ended or went dead, for a reason that no other kind names
	Hang            Kind = "hang"             // no token by the derived deadline, and a one-token probe unanswered
	Timeout         Kind = "timeout"          // a limit passed
	NotReady        Kind = "not-ready"        // not answering by ready_timeout
	StartError      Kind = "start-error"      // could not be built or started, or ended before it was ready
	PortInUse       Kind = "port-in-use"
	BadFlag         Kind = "bad-flag"      // the server refused its command line
	LeftOver        Kind = "left-over"     // something of an earlier deployment is still there
	FlushRefused    Kind = "flush-refused" // the prefix cache could not be emptied
	HTTPError       Kind = "http-error"    // an answer with an error status, or an error event in a stream
	RequestOOM      Kind = "request-oom"   // out of memory for this request; the server goes on
	StreamCut       Kind = "stream-cut"    // the answer ended before its end
	BadResponse     Kind = "bad-response"  // an answer that cannot be understood
	Unreachable     Kind = "unreachable"   // no connection to the server
	LinkLost        Kind = "link-lost"     // the way to the machine broke, the server may be well
	TimeLimit       Kind = "time-limit"    // the scheduler's or the command line's time is over
	Cancelled       Kind = "cancelled"     // a person ended it
)

// Kinds lists every kind, in the order of the documentation.
var Kinds = []Kind{
	GPUOOM, HostOOM, Killed, KVExhausted, Shm, ContextTooLong, TruncatedPrompt, IllegalAccess, NCCL, Crash, Hang, Timeout,
	NotReady, StartError, PortInUse, BadFlag, LeftOver, FlushRefused, HTTPError, RequestOOM, StreamCut, BadResponse,
	Unreachable, LinkLost, TimeLimit, Cancelled,
}

// SkipLonger tells whether, with on_failure unset, points at least as long and
// as concurrent are skipped: the same want of memory or room would end them too.
func (k Kind) SkipLonger() bool {
	return slices.Contains([]Kind{GPUOOM, HostOOM, Killed, KVExhausted, ContextTooLong}, k)
}

// Stage is a failure_stage: what was going on.
type Stage string

// The stages, in the order in which a deployment goes through them.
const (
	Build    Stage = "build"
	Launch   Stage = "launch"
	Load     Stage = "load"
	Warmup   Stage = "warmup"
	Flush    Stage = "flush"
	Prefill  Stage = "prefill"
	Decode   Stage = "decode"
	Teardown Stage = "teardown"
)

// starting is before the server was ready.
func (s Stage) starting() bool { return s == Build || s == Launch || s == Load }

// Scope is a failure_scope: how far the damage reaches.
type Scope string

// The scopes, from the smallest.
const (
	Request Scope = "request" // this request; the server goes on
	Server  Scope = "server"  // this deployment
	Host    Scope = "host"    // anything on this machine
	Link    Scope = "link"    // the way there
)

// Transport is what the client met on the wire.
type Transport string

// What a client can meet; the zero value is nothing unusual.
const (
	Refused    Transport = "refused"     // connection refused
	NoRoute    Transport = "no-route"    // no such host, no route, connect time-out
	Reset      Transport = "reset"       // connection reset by peer
	EOF        Transport = "eof"         // closed where an answer or more of it was due
	TimedOut   Transport = "timeout"     // the client's own limit
	HTTP       Transport = "http"        // an error status; see HTTPStatus and Body
	ErrorEvent Transport = "error-event" // status 200, then an error or an abort in the stream; its text is Body
	Cut        Transport = "cut"         // a clean close without the end mark
	Malformed  Transport = "malformed"   // cannot be parsed, or above a size cap
)

// Fact is something that the runner knows otherwise than from log or wire.
type Fact string

// The facts. Their text, where there is one, is shown as evidence.
const (
	WasCancelled     Fact = "cancelled"        // a person or a signal ended the run
	TimeIsUp         Fact = "time-limit"       // the scheduler's or the command line's limit
	LostLink         Fact = "link-lost"        // the connection to the machine broke
	FoundLeftOver    Fact = "left-over"        // text: whose
	PortTaken        Fact = "port-taken"       // text: by whom
	BuildFailed      Fact = "build-failed"     // a build or set-up command failed; its output is Log
	LaunchFailed     Fact = "launch-failed"    // the program could not be started; text: why
	ReadyTimeout     Fact = "ready-timeout"    // not ready within ready_timeout
	RefusedFlush     Fact = "flush-refused"    // text: the server's words
	ShortPrompt      Fact = "prompt-truncated" // fewer prompt tokens counted than were sent
	NoToken          Fact = "no-token"         // the derived no-token deadline passed
	LimitPassed      Fact = "limit"            // a limit of the spec passed; text: which
	ProbeAnswered    Fact = "probe-answered"   // after the failure, a one-token request was answered
	ProbeUnanswered  Fact = "probe-unanswered" // after the failure, it was not
	OOMKill          Fact = "oom-kill"         // cgroup counter, kernel log, container or job state; text: which
	SupervisorKilled Fact = "supervisor-lost"  // what watched the server was killed, the exit status is unknown
)

// State is what is known of the server's process.
type State string

// The states; the zero value is a server that we did not start.
const (
	Unknown State = ""
	Running State = "running"
	Ended   State = "ended"
)

// Exit is how the server's main process ended.
type Exit struct {
	State  State
	Code   int    // of a process that ended by itself; 128 + n is read as signal n
	Signal string // such as "SIGKILL"
	Asked  bool   // we had asked for it: then the status says nothing
}

// Observation is all that was seen of one failure.
type Observation struct {
	Stage      Stage
	Exit       Exit
	Log        []string // in time order, from the start of the stage or point on: older lines mislead
	Transport  Transport
	Error      string // the transport error's text
	HTTPStatus int
	Body       string // of the error answer or event, or its beginning
	Facts      map[Fact]string
}

// Finding is what the failure was.
type Finding struct {
	Kind      Kind
	Scope     Scope
	Signature string   // stable over runs: a rule's name, or a message without its numbers
	Message   string   // one line for people
	Evidence  []string // at most MaxEvidence lines of at most MaxLine bytes, valid UTF-8
}

// Bounds of what a Finding carries.
const (
	MaxEvidence = 20
	MaxLine     = 500
)

// Bounds of what is looked at.
const (
	maxLines = 20000 // of the log, its last
	maxMatch = 4096  // bytes of a line, its beginning and end
)

func (o *Observation) has(f Fact) bool { _, ok := o.Facts[f]; return ok }

// died: the process ended and nobody had asked for it, whatever its code.
func (o *Observation) died() bool {
	return o.Exit.State == Ended && !o.Exit.Asked || o.has(SupervisorKilled)
}

// answers: the server is known to go on.
func (o *Observation) answers() bool {
	return !o.died() && o.has(ProbeAnswered)
}

// down: the server ended, or no longer answers as far as is known.
func (o *Observation) down() bool {
	if o.died() || o.has(ProbeUnanswered) || o.has(ReadyTimeout) {
		return true
	}
	return !o.has(ProbeAnswered) && slices.Contains([]Transport{Refused, Reset, EOF}, o.Transport)
}

// clientError: the server understood and refused; its log is beside the point.
func (o *Observation) clientError() bool {
	return o.Transport == HTTP && o.HTTPStatus >= 400 && o.HTTPStatus < 500 && !o.has(ReadyTimeout)
}

// signal is the name of the signal that ended the process, also where a shell or
// a container turned it into a code above 128.
func (e Exit) signal() string {
	if e.State != Ended || e.Signal != "" {
		return e.Signal
	}
	return map[int]string{
		129: "SIGHUP", 130: "SIGINT", 131: "SIGQUIT", 132: "SIGILL", 133: "SIGTRAP", 134: "SIGABRT",
		135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM",
	}[e.Code]
}

func (o *Observation) exitWords() string {
	switch sig := o.Exit.signal(); {
	case o.has(SupervisorKilled):
		return "the server's exit status is unknown: its supervisor was killed"
	case o.Exit.State == Running:
		return "the server's process is still running"
	case o.Exit.State != Ended:
		return ""
	case sig != "" && o.Exit.Signal == "":
		return fmt.Sprintf("the server ended with exit code %d (%s)", o.Exit.Code, sig)
	case sig != "":
		return "the server was ended by " + sig
	}
	return fmt.Sprintf("the server ended with exit code %d", o.Exit.Code)
}

// Classify names the failure. It never panics and always gives a kind; what
// nothing explains is a crash with its evidence.
func Classify(o Observation) Finding {
	if len(o.Log) > maxLines {
		o.Log = o.Log[len(o.Log)-maxLines:]
	}
	s := newScan(&o)
	for _, g := range table {
		if g.when != nil && !g.when(&o) {
			continue
		}
		if m, ok := s.pick(g); ok {
			return s.finding(m)
		}
	}
	return s.finding(match{rule: rule{kind: Crash, scope: Server, signature: "unknown"}, line: none})
}

// match is a rule that applies, with the text that made it apply.
type match struct {
	rule
	line int    // index into the log; none, or body
	text string // what was matched, or a fact's text
}

const (
	none = -1
	body = 1 << 40 // later than any line
)

// scan holds the texts as they are matched.
type scan struct {
	o     *Observation
	lines []text
	body  text
	// recovered lines were followed by the server's word that it goes on.
	recovered map[int]bool
}

type text struct{ cased, lower string }

func newText(s string) text {
	if len(s) > maxMatch {
		s = s[:maxMatch/2] + " … " + s[len(s)-maxMatch/2:]
	}
	return text{s, strings.ToLower(s)}
}

func newScan(o *Observation) *scan {
	s := &scan{o: o, lines: make([]text, len(o.Log)), body: newText(o.Error + "\n" + o.Body), recovered: map[int]bool{}}
	for i, l := range o.Log {
		s.lines[i] = newText(l)
	}
	for i, l := range s.lines {
		if recovery.in(l) != "" {
			for j := max(0, i-recoveryReach); j <= i; j++ {
				s.recovered[j] = true
			}
		}
	}
	return s
}

// pick gives the group's match: in table order, or the earliest or latest in time.
func (s *scan) pick(g group) (match, bool) {
	best, found := match{}, false
	for _, r := range g.rules {
		m, ok := s.apply(r, g.pick == latest)
		if !ok {
			continue
		}
		switch {
		case !found, g.pick == earliest && m.line < best.line, g.pick == latest && m.line > best.line:
			best, found = m, true
		}
		if g.pick == inOrder {
			break
		}
	}
	return best, found
}

// apply tests one rule. All its conditions must hold; of its texts one must match.
func (s *scan) apply(r rule, last bool) (match, bool) {
	o := s.o
	switch {
	case r.fact != "" && !o.has(r.fact),
		r.starting && !o.Stage.starting(),
		len(r.transport) > 0 && !slices.Contains(r.transport, o.Transport),
		len(r.signals) > 0 && !slices.Contains(r.signals, o.Exit.signal()),
		r.when != nil && !r.when(o):
		return match{}, false
	}
	m := match{rule: r, line: none, text: o.Facts[r.fact]}
	if r.log == nil && r.body == nil {
		return m, true
	}
	for n := range s.lines {
		i := n
		if last {
			i = len(s.lines) - 1 - n
		}
		if s.recovered[i] {
			continue
		}
		if hit := r.log.in(s.lines[i]); hit != "" {
			m.line, m.text = i, hit
			return m, true
		}
	}
	if hit := r.body.in(s.body); hit != "" {
		m.line, m.text = body, hit
		return m, true
	}
	return match{}, false
}

func (s *scan) finding(m match) Finding {
	o := s.o
	f := Finding{Kind: m.kind, Scope: m.scope, Signature: m.signature}
	if f.Scope == "" {
		f.Scope = Server
		if o.answers() {
			f.Scope = Request
		}
	}
	if f.Scope == Request && f.Kind == GPUOOM {
		f.Kind = RequestOOM
	}
	switch f.Signature {
	case "": // rules for what has no name of its own
		f.Signature = generalise(m.text)
	case bySignal:
		f.Signature = clean(o.Exit.signal(), 120)
	case byCode:
		f.Signature = fmt.Sprintf("exit code %d", o.Exit.Code)
	case byStatus:
		f.Signature = fmt.Sprintf("http %d", o.HTTPStatus)
	}
	if f.Signature == "" {
		f.Signature = string(f.Kind)
	}

	var parts []string
	add := func(text string) {
		if text = clean(text, MaxLine); text != "" && !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
	}
	if m.line >= 0 && m.line < len(o.Log) {
		add(strings.TrimSpace(o.Log[m.line]))
	} else {
		add(m.text)
	}
	if len(parts) == 0 && o.Transport != "" {
		add(s.wire())
	}
	if o.died() || len(parts) == 0 {
		add(o.exitWords())
	}
	if f.Kind == Killed && o.Exit.signal() == "SIGKILL" {
		add("nothing says why: want of host memory is the usual reason")
	}
	if m.line >= 0 && m.line < len(o.Log) {
		if fit := fitting.FindStringSubmatch(s.lines[m.line].cased); fit != nil {
			parts[0] = clean(parts[0], MaxLine-100)
			add("a context of " + fit[1] + " tokens would fit")
		}
	}
	f.Message = clean(strings.Join(parts, "; "), MaxLine)

	add = func(text string) {
		if text = clean(text, MaxLine); text != "" && len(f.Evidence) < MaxEvidence {
			f.Evidence = append(f.Evidence, text)
		}
	}
	facts := make([]string, 0, len(o.Facts))
	for k, v := range o.Facts {
		if v != "" {
			facts = append(facts, string(k)+": "+v)
		}
	}
	slices.Sort(facts)
	for _, v := range facts[:min(len(facts), 4)] {
		add(v)
	}
	if o.Transport != "" {
		add(s.wire())
	}
	from, to := max(0, len(o.Log)-12), len(o.Log)
	if m.line >= 0 && m.line < len(o.Log) {
		from, to = max(0, m.line-2), min(len(o.Log), m.line+10)
	}
	for _, l := range o.Log[from:to] {
		add(l)
	}
	return f
}

// wire says in one line what the client met.
func (s *scan) wire() string {
	words := string(s.o.Transport)
	if s.o.HTTPStatus != 0 {
		words = fmt.Sprintf("%s %d", words, s.o.HTTPStatus)
	}
	for _, t := range []string{s.o.Error, s.o.Body} {
		if t = strings.TrimSpace(t); t != "" {
			words += ": " + clean(t, MaxLine)
		}
	}
	return words
}

// clean makes text one line of valid UTF-8, at most limit bytes, no control
// characters.
func clean(s string, limit int) string {
	if len(s) > 4*limit { // so that a huge line costs nothing
		s = s[:4*limit]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n':
			return ' '
		case r < ' ' || r == 0x7f:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
	if len(s) <= limit {
		return s
	}
	const more = "…"
	return strings.ToValidUTF8(s[:limit-len(more)], "") + more
}
