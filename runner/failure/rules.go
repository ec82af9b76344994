package failure

import (
	"regexp"
	"strings"
)

// rule is a line of the table. Every condition that is set must hold; of the
// texts, one must match.
type rule struct {
	signature string // "" takes the matched text without its numbers
	kind      Kind
	scope     Scope // "" is the server, or the request where the server is known to go on

	fact      Fact
	starting  bool // only before the server was ready
	transport []Transport
	signals   []string
	when      func(*Observation) bool
	log       patterns // on single log lines
	body      patterns // on the answer's body and the transport error
}

// Signatures that are made from the observation.
const (
	bySignal = "\x00signal"
	byCode   = "\x00code"
	byStatus = "\x00status"
)

// group is a part of the table. The first group with a match decides.
type group struct {
	pick  order
	when  func(*Observation) bool
	rules []rule
}

type order int

const (
	inOrder  order = iota // the first rule
	earliest              // the match that is first in time, then the first rule
	latest                // the match that is last in time, then the first rule
)

// patterns are regular expressions. One without capitals is matched on the text
// in lower case, one with capitals on the text as it is.
type patterns []pattern

type pattern struct {
	re    *regexp.Regexp
	cased bool
}

func regexps(exprs ...string) patterns {
	ps := make(patterns, len(exprs))
	for i, e := range exprs {
		ps[i] = pattern{regexp.MustCompile(e), strings.ToLower(e) != e}
	}
	return ps
}

// in gives the first match in t; "" is none.
func (ps patterns) in(t text) string {
	for _, p := range ps {
		s := t.lower
		if p.cased {
			s = t.cased
		}
		if loc := p.re.FindStringIndex(s); loc != nil && loc[1] > loc[0] {
			if p.cased || len(t.cased) == len(t.lower) { // lower case may change the length
				return t.cased[loc[0]:loc[1]]
			}
			return s[loc[0]:loc[1]]
		}
	}
	return ""
}

// Texts that engines, runtimes and systems print. Sources are the engines' own
// code as collected in the project's engine notes, sections 2.2, 2.7, 3.2, 3.7,
// 4.2, 4.7, 5 and 10; where another program prints a line it is named.
var (
	gpuMemory = regexps(
		`torch\.(cuda\.)?outofmemoryerror`, `cuda out of memory`, `hip out of memory`, `cuda error: out of memory`,
		`cuda_error_out_of_memory`, `cuda runtime error in .*out of memory`, `cudamalloc failed`, `hipmalloc failed`, `out of device memory`, `erroroutofdevicememory`,
		`cublas_status_alloc_failed`, `llama-server reported out-of-memory`, `runtime oom detected`,
	)
	hostMemory = regexps(
		`cannot map \d+ bytes of kv cache`,                             // the embedded server
		`fatal error: runtime: (out of memory|cannot allocate memory)`, // Go
		`runtime: (out of memory|cannot allocate)`,                     // Go
		`\bMemoryError\b`, `std::bad_alloc`, `defaultcpuallocator: .*allocate`, // Python, C++, PyTorch on CPU
		`ggml_aligned_malloc: insufficient memory`, `failed to allocate .*cpu.* buffer`, `cpu_buffer_type_alloc_buffer: failed`, // ggml
		`out of memory: killed process`, `memory cgroup out of memory`, `oomkilled`, `oom-kill:`, // kernel, containers
		`detected \d+ oom[-_ ]kill event`, // Slurm
		`cannot allocate memory`,          // errno ENOMEM
	)
	kvPool = regexps(
		`out of memory\. (please )?try to lower your batch size`, `alloc_req_slots runs out of memory`,
		`not enough memory\. please try to increase --mem-fraction-static`, `larger than the available kv cache memory`,
		`maximum number of tokens that can be stored in kv cache`, `no available memory for the cache blocks`,
		`free memory on device .* is less than desired`, `no enough gpu memory for`,
		`failed to find a memory slot for batch`, // llama.cpp
	)
	sharedMemory = regexps(
		`error while creating shared memory segment`, `failed to extend /dev/shm/`, `insufficient shared memory`, `unable to (open|resize|mmap) shared memory`,
		`unable to write to file </torch_`, `unable to allocate shared memory`, `/dev/shm.*no space left on device`, `no space left on device.*/dev/shm`,
	)
	kernelFault = regexps(
		`illegal memory access`, `device-side assert triggered`, `misaligned address`, `unspecified launch failure`,
		`an illegal instruction was encountered`, `cuda_error_illegal_address`, `memory access fault by gpu`,
	)
	collective = regexps(
		`watchdog caught collective operation timeout`, `nccl(unhandledcuda|system|internal|remote|invalidusage)error`, `nccl error`,
		`nccl watchdog`, `distbackenderror`,
	)
	watchdog = regexps(`watchdog timeout`, `health check failed\. server couldn't get a response`)
	portText = regexps(
		`address already in use`, `failed to bind socket to`, `exiting due to http server error`, `couldn't bind`, `eaddrinuse`,
	)
	flagText = regexps(
		`unrecognized arguments`, `invalid choice`, `error: invalid argument`, `no such option`, `unknown attention backend`,
		`the following arguments are required`, `error: argument .*(expected|invalid|not allowed)`, // argparse
		`unknown (shorthand )?flag`, `flag provided but not defined`, `invalid argument ".*" for ".*" flag`, `flag needs an argument`, // Go
	)
	startText = regexps( // on one line the first of these is the signature
		`cannot open shared object file`, `undefined symbol`, `modulenotfounderror`, `importerror`,
		`not a valid model identifier`, `repository not found`, `model '.*' not found`, `failed to load model`, `error loading model`,
		`exiting due to model loading error`, `engine core initialization failed`, `initialization failed\. warmup error`,
		`no such file or directory`, `permission denied`, `command not found`,
	)
	exception = regexps(`\b(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b(?:: .*)?$`) // Python's last line of a traceback
	assertion = regexps(
		`GGML_ASSERT\(.*`, `^panic: .*`, `^fatal error: .*`, `\bAssertion .* failed`, `terminate called after throwing`, `capture cuda graph failed`,
	)
	deadEngine = regexps(
		`scheduler hit an exception`, `enginecore encountered an issue`, `enginedeaderror`, `model runner has unexpectedly stopped`,
		`traceback \(most recent call last\)`, `llama-server process has terminated`, `engine (process )?is (dead|gone)`,
	)
	childText = regexps( // Ollama, whose own process lives on and starts another
		`model runner has unexpectedly stopped`, `llama-server process has terminated`, `error was encountered while running the model`,
	)
	contextText = regexps(
		`context length`, `exceed_context_size_error`, `exceeds the available context size`, `max_model_len`,
		`longer than the model's context`, `exceeds the maximum allowed length`, `longer than the context`, `context window`,
		`should not exceed max_(seq_len|num_tokens)`, `max_seq_len \(\d+\) - .splited_prompt_len`, // TensorRT-LLM
	)
	// fitting is the context that vLLM says would fit, where it cannot serve the one asked for.
	fitting    = regexp.MustCompile(`(?:estimated maximum model length is|tokens that can be stored in KV cache) \(?(\d+)`)
	memoryText = append(regexps(`out of memory`, `out-of-memory`, `\boom\b`), gpuMemory...)

	// recovery follows lines about memory that did no harm: ggml tries a smaller
	// graph, and says so a few lines later.
	recovery      = regexps(`retrying without`, `retrying with (a )?smaller`)
	recoveryReach = 6
)

// table is the whole of what the package knows, in the order in which it is asked.
var table = []group{
	// What the runner knows for certain.
	{rules: []rule{
		{signature: "cancelled", kind: Cancelled, scope: Request, fact: WasCancelled},
		{signature: "time-limit", kind: TimeLimit, scope: Host, fact: TimeIsUp},
		{signature: "link-lost", kind: LinkLost, scope: Link, fact: LostLink},
		{signature: "left-over", kind: LeftOver, scope: Host, fact: FoundLeftOver},
		{signature: "port-taken", kind: PortInUse, scope: Host, fact: PortTaken},
		{signature: "cannot-start", kind: StartError, scope: Server, fact: LaunchFailed},
		{signature: "oom-kill", kind: HostOOM, scope: Server, fact: OOMKill, when: (*Observation).died},
		{signature: "flush-refused", kind: FlushRefused, scope: Request, fact: RefusedFlush},
		{signature: "prompt-truncated", kind: TruncatedPrompt, scope: Request, fact: ShortPrompt},
	}},
	// What the server said of this one request. Words about the context length
	// count in an answer only: logs print them at every start.
	{when: func(o *Observation) bool { return !o.died() }, rules: []rule{
		{signature: "context-length", kind: ContextTooLong, scope: Request, when: (*Observation).clientError, body: contextText},
		{signature: "kv-pool", kind: KVExhausted, transport: []Transport{HTTP, ErrorEvent}, when: (*Observation).answers, body: kvPool},
		{signature: "request-memory", kind: RequestOOM, scope: Request, transport: []Transport{HTTP, ErrorEvent}, when: (*Observation).answers, body: memoryText},
		{signature: "request-memory", kind: RequestOOM, scope: Request, transport: []Transport{ErrorEvent},
			when: func(o *Observation) bool { return !o.has(ProbeUnanswered) }, body: memoryText},
		{signature: "context-length", kind: ContextTooLong, scope: Request, transport: []Transport{ErrorEvent}, body: contextText},
		{signature: byStatus, kind: HTTPError, scope: Request, when: (*Observation).clientError},
		{signature: "malformed", kind: BadResponse, scope: Request, transport: []Transport{Malformed}},
	}},
	// Root causes: what came first in time made the rest.
	{pick: earliest, when: consultLog, rules: []rule{
		{signature: "shared-memory", kind: Shm, log: sharedMemory, body: sharedMemory},
		{signature: "device-memory", kind: GPUOOM, log: gpuMemory, body: gpuMemory},
		{signature: "kv-pool", kind: KVExhausted, log: kvPool, body: kvPool},
		{signature: "host-memory", kind: HostOOM, log: hostMemory},
		{signature: "kernel-fault", kind: IllegalAccess, log: kernelFault, body: kernelFault},
		{signature: "job-time-limit", kind: TimeLimit, scope: Host, log: regexps(`due to time limit`)}, // Slurm
		{signature: "address-in-use", kind: PortInUse, starting: true, log: portText},
		{signature: "command-line", kind: BadFlag, starting: true, log: flagText},
	}},
	// What often follows from another rank's root cause, so it is asked later.
	{pick: earliest, when: consultLog, rules: []rule{
		{signature: "collective", kind: NCCL, log: collective, body: collective},
	}},
	{pick: earliest, when: (*Observation).down, rules: []rule{
		{signature: "watchdog", kind: Hang, log: watchdog},
	}},
	// A start that failed. Warnings about optional modules come before the line
	// that ended it, so the last line counts.
	{pick: latest, when: func(o *Observation) bool { return o.Stage.starting() && (o.down() || o.has(BuildFailed)) }, rules: []rule{
		{kind: StartError, scope: Server, log: startText},
	}},
	{rules: []rule{{signature: "build", kind: StartError, scope: Server, fact: BuildFailed}}},
	// A crash that left words.
	{pick: earliest, when: (*Observation).down, rules: []rule{
		{kind: Crash, scope: Server, log: exception},
		{kind: Crash, scope: Server, log: assertion},
	}},
	{pick: earliest, when: (*Observation).down, rules: []rule{
		{signature: "engine-dead", kind: Crash, scope: Server, log: deadEngine, body: deadEngine},
	}},
	{rules: []rule{{signature: "engine-dead", kind: Crash, scope: Server, transport: []Transport{HTTP, ErrorEvent}, body: childText}}},
	// An end without words. A server that sends itself SIGINT (TensorRT-LLM) or
	// ends with code 0 (vLLM) has crashed; KILL, TERM and HUP come from outside.
	{when: (*Observation).died, rules: []rule{
		{signature: "supervisor", kind: Killed, scope: Server, fact: SupervisorKilled},
		{signature: bySignal, kind: Killed, scope: Server, signals: []string{"SIGKILL", "SIGTERM", "SIGHUP"}},
		{signature: bySignal, kind: Crash, scope: Server, when: func(o *Observation) bool { return o.Exit.signal() != "" }},
		{signature: byCode, kind: StartError, scope: Server, starting: true},
		{signature: byCode, kind: Crash, scope: Server},
	}},
	// Time.
	{rules: []rule{
		{signature: "not-ready", kind: NotReady, scope: Server, fact: ReadyTimeout},
		{signature: "no-token", kind: Hang, scope: Server, fact: NoToken, when: func(o *Observation) bool { return o.has(ProbeUnanswered) }},
		{signature: "no-token", kind: Timeout, fact: NoToken},
		{signature: "limit", kind: Timeout, scope: Server, fact: LimitPassed, when: func(o *Observation) bool { return o.has(ProbeUnanswered) }},
		{signature: "limit", kind: Timeout, scope: Request, fact: LimitPassed},
		{signature: "limit", kind: Timeout, scope: Request, transport: []Transport{TimedOut}},
	}},
	// The wire alone.
	{rules: []rule{
		{signature: byStatus, kind: HTTPError, scope: Server, transport: []Transport{HTTP}, when: func(o *Observation) bool { return o.has(ProbeUnanswered) }},
		{signature: byStatus, kind: HTTPError, scope: Request, transport: []Transport{HTTP}},
		{signature: "error-event", kind: HTTPError, scope: Request, transport: []Transport{ErrorEvent}},
		{signature: "closed-early", kind: StreamCut, scope: Request, transport: []Transport{Cut}},
		{signature: "eof", kind: StreamCut, transport: []Transport{EOF}},
		{signature: "reset", kind: StreamCut, transport: []Transport{Reset}},
		{signature: "malformed", kind: BadResponse, scope: Request, transport: []Transport{Malformed}},
		{signature: "refused", kind: Unreachable, scope: Server, transport: []Transport{Refused}},
		{signature: "no-route", kind: Unreachable, scope: Link, transport: []Transport{NoRoute}},
	}},
}

// consultLog: the log may hold the cause. Not where the server understood a
// request and refused it, or where only the client's own limit passed and the
// server goes on.
func consultLog(o *Observation) bool {
	return o.died() || !o.clientError() && !(o.answers() && (o.Transport == TimedOut || o.has(LimitPassed)))
}

var (
	address = regexp.MustCompile(`0x[0-9a-fA-F]+`)
	number  = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
)

// generalise takes out of a message what differs from run to run.
func generalise(s string) string {
	s = address.ReplaceAllString(s, "#")
	s = number.ReplaceAllString(s, "#")
	return clean(strings.TrimSpace(s), 120)
}
