// Package event is the truth of a run: what happened, in the order in which it
// was recorded, one JSON object a line, on disk before the next step is taken.
// The runner writes events, everything else is derived from them by pure
// functions. The package knows the events and their journal and computes no
// figure.
//
// Times of durations are float64 seconds from a monotonic clock. A pointer that
// is nil means "not reported", never 0.
package event

import (
	"encoding/json"
	"time"
)

// Version is the version of the event format (docs/events.md).
const Version = 1

// Type names the payload of an event.
type Type string

// The closed set of event types.
const (
	TypeRun        Type = "run"
	TypeDeployment Type = "deployment"
	TypeSample     Type = "sample"
	TypeRepeat     Type = "repeat"
	TypePoint      Type = "point"
	TypeSkip       Type = "skip"
	TypeFlush      Type = "flush"
	TypeFailure    Type = "failure"
	TypeKernel     Type = "kernel"
	TypeTelemetry  Type = "telemetry"
	TypeNote       Type = "note"
)

// Event is the envelope and exactly one payload, the one that Type names. On
// disk the payload stands under the type's name:
// {"v":1,"order":"o1","seq":7,"time":"…Z","type":"sample","sample":{…}}.
type Event struct {
	V     int       `json:"v"`
	Order string    `json:"order"` // the work order; one writer each
	Seq   int64     `json:"seq"`   // 1, 2, 3, … within the order
	Time  time.Time `json:"time"`  // UTC, for people; no figure is computed from it
	Type  Type      `json:"type"`

	Run        *Run        `json:"run,omitempty"`
	Deployment *Deployment `json:"deployment,omitempty"`
	Sample     *Sample     `json:"sample,omitempty"`
	Repeat     *Repeat     `json:"repeat,omitempty"`
	Point      *Point      `json:"point,omitempty"`
	Skip       *Skip       `json:"skip,omitempty"`
	Flush      *Flush      `json:"flush,omitempty"`
	Failure    *Failure    `json:"failure,omitempty"`
	Telemetry  *Telemetry  `json:"telemetry,omitempty"`
	Note       *Note       `json:"note,omitempty"`

	// Kernel is one row of the kernel bench, as the bench writes it: the journal
	// only keeps it.
	Kernel json.RawMessage `json:"kernel,omitempty"`
}

// Reasons of an end of work, the better one first.
const (
	EndDone        = "done"
	EndBudget      = "budget"
	EndTimeLimit   = "time-limit"
	EndInterrupted = "interrupted"
	EndError       = "error"
)

// States of a run.
const (
	RunStart  = "start"
	RunResume = "resume"
	RunExtend = "extend"
	RunEnd    = "end"
)

// Run is a beginning or an end of work on an order.
type Run struct {
	RunID   string `json:"run_id"`
	State   string `json:"state"` // RunStart to RunEnd
	Version string `json:"version,omitempty"`
	Only    string `json:"only,omitempty"`   // the --only filters of this stretch
	Reason  string `json:"reason,omitempty"` // of an end: EndDone to EndError
	Detail  string `json:"detail,omitempty"`
}

// States of a deployment, in their order.
const (
	DeploymentLaunch = "launch"
	DeploymentReady  = "ready"
	DeploymentProbed = "probed"
	DeploymentEnd    = "end"
)

// Deployment is a step in one life of a server.
type Deployment struct {
	DeploymentID string `json:"deployment_id"` // o1-d1, o1-d2, … ; names the log
	Variant      string `json:"variant"`
	VariantID    string `json:"variant_id"`
	State        string `json:"state"` // DeploymentLaunch to DeploymentEnd

	// launch
	Argv    []string `json:"argv,omitempty"` // secrets replaced by their names
	Managed bool     `json:"managed"`        // false: a server that we did not start
	Host    string   `json:"host,omitempty"`
	Port    int      `json:"port,omitempty"`
	PID     int      `json:"pid,omitempty"`
	Limits  *Limits  `json:"limits,omitempty"`

	// ready
	LoadS     *float64       `json:"load_s,omitempty"` // launch to first answered token
	Effective map[string]any `json:"effective,omitempty"`

	// probed
	Probe *Probe `json:"probe,omitempty"`

	// end
	ExitCode   *int     `json:"exit_code,omitempty"`
	ExitSignal string   `json:"exit_signal,omitempty"`
	Expected   bool     `json:"expected,omitempty"` // we asked it to end
	LifeS      *float64 `json:"life_s,omitempty"`
	LogTail    []string `json:"log_tail,omitempty"`
}

// Limits are the time limits in force on timed requests, those that the spec sets
// and those that twopoint chose.
type Limits struct {
	ConnectS    float64  `json:"connect_s"`
	FirstTokenS *float64 `json:"first_token_s,omitempty"` // absent: the deadline without a token alone
	TotalS      *float64 `json:"total_s,omitempty"`       // absent: none

	// Without a new token a request may go for NoTokenS, NoTokenPerPromptTokenS for
	// each prompt token and, where the answer does not stream, NoTokenPerTokenS for
	// each token asked for.
	NoTokenS               float64 `json:"no_token_s"`
	NoTokenPerPromptTokenS float64 `json:"no_token_per_prompt_token_s"`
	NoTokenPerTokenS       float64 `json:"no_token_per_token_s"`
}

// Probe is the verdict of the cache probe: cold, same again, flush, same again.
type Probe struct {
	Context    int      `json:"context"`
	HitRatio   *float64 `json:"hit_ratio,omitempty"`   // TTFT of the repetition over the cold one
	FlushRatio *float64 `json:"flush_ratio,omitempty"` // TTFT after the flush over the cold one
	HitCached  *int64   `json:"hit_cached,omitempty"`  // cached tokens reported for the repetition
	Flushed    *int64   `json:"flushed_cached,omitempty"`
	Template   int64    `json:"template_tokens"`        // what a cold prompt may report as cached: a prefix common to all; 0: nothing, or nothing is reported
	Proven     string   `json:"flush_proven,omitempty"` // yes | no | unknown
}

// Roles of a sample.
const (
	RoleMeasure = "measure"
	RoleWarmup  = "warmup"
	RolePilot   = "pilot"
	RoleProbe   = "probe"
	RoleSettle  = "settle"
	RoleGate    = "gate"
	RoleDrift   = "drift"
	RolePrime   = "prime" // puts a prompt into the prefix cache, for legs that run on it
	RoleCold    = "cold"  // a two-point pair beside a method that measures on a cached prefix
)

// Sample is one request, as measured and as the server reported it.
type Sample struct {
	DeploymentID string `json:"deployment_id"`
	PointID      string `json:"point_id,omitempty"`
	Role         string `json:"role"`
	Repeat       int    `json:"repeat"`        // 1, 2, …; 0 where the role has none
	Attempt      int    `json:"attempt"`       // 1, or more after a torn or resumed repeat
	Leg          string `json:"leg,omitempty"` // a | b; cold | again | flushed in the cache probe; needle@0.5, agree1, … of a gate
	Slot         int    `json:"slot"`          // 0 … concurrency−1
	Second       bool   `json:"second"`        // this leg ran second in its pair

	ContextRequested int `json:"context_requested"`
	TokensRequested  int `json:"tokens_requested"`

	Start    time.Time `json:"start"`              // wall clock, for people
	ConnectS float64   `json:"connect_s"`          // before the clock starts
	OffsetS  *float64  `json:"offset_s,omitempty"` // from the first byte of the leg's earliest request to this one's, same monotonic clock; nil at concurrency 1
	TotalS   float64   `json:"total_s"`            // first byte written to last byte read
	HeaderS  *float64  `json:"header_s,omitempty"`
	TTFTS    *float64  `json:"ttft_s,omitempty"` // first byte written to first token read, where it streams
	Streamed bool      `json:"streamed"`
	Buffered bool      `json:"buffered,omitempty"` // the stream arrived at once: its inner times mean nothing

	PromptTokens     *int64 `json:"prompt_tokens,omitempty"`
	CompletionTokens *int64 `json:"completion_tokens,omitempty"`
	CachedTokens     *int64 `json:"cached_tokens,omitempty"`
	Steps            *int64 `json:"steps,omitempty"`       // forward passes of decode, where reported
	Retractions      *int64 `json:"retractions,omitempty"` // times the request was preempted

	// LoadS is what the server spent loading the model within this request, which
	// the request's time holds; nil where it loaded nothing or does not say.
	LoadS *float64 `json:"load_s,omitempty"`

	ChunkS      []float64 `json:"chunk_s,omitempty"`      // arrival of each chunk with tokens, after the first byte written
	ChunkTokens []int32   `json:"chunk_tokens,omitempty"` // tokens in it, where known

	ServerTotalS        *float64 `json:"server_total_s,omitempty"`          // the server's own latency
	ServerPrefillS      *float64 `json:"server_prefill_s,omitempty"`        // the server's own prefill time
	ServerDecodeSPerTok *float64 `json:"server_decode_s_per_tok,omitempty"` // the server's own decode time per token

	Finish       string `json:"finish,omitempty"` // length | stop | abort | …
	OutputSHA256 string `json:"output_sha256,omitempty"`

	// Began is when the first byte was written, with its monotonic reading, from
	// which OffsetS is made; never written to disk.
	Began time.Time `json:"-"`

	// What was generated, for those who look at it before the sample is recorded
	// (gates): never written to disk, at most 64 KiB and 16,384 ids.
	OutputText string  `json:"-"`
	OutputIDs  []int32 `json:"-"`

	HTTPStatus int `json:"http_status,omitempty"`

	Flush *Flush `json:"flush,omitempty"` // of the flush before this request, where one was asked for

	Error     string   `json:"error,omitempty"`     // failure_kind of the request; empty when it was answered whole
	Limit     string   `json:"limit,omitempty"`     // of a timeout: connect | first_token | total, or no_token: derived, not set by anyone
	Detail    string   `json:"detail,omitempty"`    // the server's or transport's words, bounded
	Transport string   `json:"transport,omitempty"` // how the exchange broke: refused | no-route | reset | eof | timeout | http | error-event | cut | malformed
	Notes     []string `json:"notes,omitempty"`     // what the adapter had to do or doubts, such as "no end marker"
}

// Flush is one attempt to empty the prefix cache, with its verdict.
type Flush struct {
	DeploymentID string  `json:"deployment_id,omitempty"`
	Method       string  `json:"method"`   // the route or switch used
	Attempts     int     `json:"attempts"` // requests made
	WaitS        float64 `json:"wait_s"`   // from first attempt to verdict
	Status       int     `json:"status,omitempty"`
	OK           *bool   `json:"ok,omitempty"` // nil: the engine gives no verdict
	Detail       string  `json:"detail,omitempty"`
}

// Ends of a pair.
const (
	RepeatComplete  = "complete"
	RepeatFailed    = "failed"
	RepeatCancelled = "cancelled"
)

// Repeat ends one pair. Its legs are the samples of the same point, repeat,
// attempt and role; a pair without this event is torn.
type Repeat struct {
	DeploymentID string `json:"deployment_id"`
	PointID      string `json:"point_id"`
	Role         string `json:"role"` // measure | warmup | pilot | drift
	Repeat       int    `json:"repeat"`
	Attempt      int    `json:"attempt"`
	A            int    `json:"a"` // tokens asked for
	B            int    `json:"b"`
	Order        string `json:"order"`  // ab | ba
	Status       string `json:"status"` // RepeatComplete to RepeatCancelled
}

// States of a point.
const (
	PointSized = "sized" // its token budgets are fixed
	PointDone  = "done"
	PointRetry = "retry"
	PointGate  = "gate" // its output gate was answered
)

// Point is a step in the life of a point.
type Point struct {
	PointID string `json:"point_id"`
	State   string `json:"state"` // PointSized to PointGate

	// sized: the token budgets are fixed for the point
	A       int      `json:"a,omitempty"`
	B       int      `json:"b,omitempty"`
	S0      *float64 `json:"s0_s,omitempty"`     // pilot's seconds per token
	JitterS *float64 `json:"jitter_s,omitempty"` // j of design.md 6
	Capped  string   `json:"capped,omitempty"`   // what kept b below what the target asks for

	// done
	Stop string `json:"stop,omitempty"` // target | max | invalid | budget

	// gate: what was answered to the gate of the point's variant and context
	Gate *Gate `json:"gate,omitempty"`
}

// Gate is what the output checks of a variant and context came to. Whether
// outputs agree with the baseline's is found out when both are known.
type Gate struct {
	DeploymentID string   `json:"deployment_id"`
	Attempt      int      `json:"attempt"` // of its samples
	Needles      []Needle `json:"needles,omitempty"`
	Outputs      []Output `json:"outputs,omitempty"`
}

// Needle is one question for a fact that stood in the prompt.
type Needle struct {
	Depth  float64 `json:"depth"` // where it stood: 0 the beginning, 1 the end
	Fact   string  `json:"fact"`
	Found  *bool   `json:"found,omitempty"`  // nil: not known
	Answer string  `json:"answer,omitempty"` // its beginning
	Detail string  `json:"detail,omitempty"` // why it is not known
}

// Output is what was generated greedily for a prompt that all variants get.
type Output struct {
	Prompt int     `json:"prompt"`           // 1, 2, …
	Again  bool    `json:"again,omitempty"`  // the same prompt once more, to the same server
	SHA256 string  `json:"prompt_sha256"`    // of the prompt: outputs of different prompts do not compare
	Asked  int     `json:"asked"`            // tokens
	Tokens *int64  `json:"tokens,omitempty"` // as the server counted
	IDs    []int32 `json:"ids,omitempty"`    // where the server gives them: at most Asked
	Text   string  `json:"text,omitempty"`   // where the server gives it, bounded
	Detail string  `json:"detail,omitempty"` // why there is no output
}

// Reasons of a skip. Others are policies of the spec: skip_longer, stop_variant.
const (
	SkipBudget = "budget"
	SkipNoRoom = "no_room" // the server has none for the point's answers or requests
)

// Skip records a planned point that will not be measured, and why.
type Skip struct {
	PointID string `json:"point_id"`
	Reason  string `json:"reason"`            // SkipBudget, SkipNoRoom, or the policy behind it
	Because string `json:"because,omitempty"` // point_id of the failure behind it
	Detail  string `json:"detail,omitempty"`
}

// Failure is an outcome: what went wrong, where, with evidence (design.md 7).
type Failure struct {
	DeploymentID string   `json:"deployment_id,omitempty"`
	PointID      string   `json:"point_id,omitempty"`
	Variant      string   `json:"variant,omitempty"`
	Kind         string   `json:"failure_kind"`
	Stage        string   `json:"failure_stage"` // build | launch | load | warmup | flush | prefill | decode | teardown
	Scope        string   `json:"failure_scope"` // request | server | host | link
	Signature    string   `json:"signature,omitempty"`
	Message      string   `json:"message,omitempty"`  // one line for people
	Evidence     []string `json:"evidence,omitempty"` // the log's own lines
	ExitCode     *int     `json:"exit_code,omitempty"`
	ExitSignal   string   `json:"exit_signal,omitempty"`
	HTTPStatus   int      `json:"http_status,omitempty"`
}

// Moments of a telemetry reading.
const (
	MomentLaunch = "launch" // just before a server is started, or first spoken to where it is not ours
	MomentBefore = "before" // before a pair
	MomentDuring = "during" // in the course of a pair that enters no estimate
	MomentAfter  = "after"  // after a pair
)

// Telemetry is one reading of the machine's sensors. What a sensor does not tell
// is nil.
type Telemetry struct {
	DeploymentID string    `json:"deployment_id"`
	PointID      string    `json:"point_id,omitempty"` // of the pair that it was made for
	Role         string    `json:"role,omitempty"`
	Repeat       int       `json:"repeat,omitempty"`
	Moment       string    `json:"moment"`
	At           time.Time `json:"at"`     // UTC; the event's own time can be later
	TookS        float64   `json:"took_s"` // what the reading cost, outside all timed requests

	Host      HostReading  `json:"host"`
	GPUs      []GPUReading `json:"gpus,omitzero"`      // nil: no nvidia-smi, or it did not answer; empty: it lists none
	Processes []GPUProcess `json:"processes,omitzero"` // nil: not known
	Error     string       `json:"error,omitempty"`    // why GPUs or processes are not known although nvidia-smi is there
}

// HostReading is what the kernel says of the machine.
type HostReading struct {
	CPUs            int      `json:"cpus"`                     // logical CPUs
	CPUClockMHz     *float64 `json:"cpu_clock_mhz,omitempty"`  // mean over logical CPUs
	Temperature     *float64 `json:"temperature_c,omitempty"`  // of the hottest CPU sensor
	ThrottleCount   *int64   `json:"throttle_count,omitempty"` // times that a core was slowed for heat, since boot
	Load1           *float64 `json:"load_1min,omitempty"`
	MemoryAvailable *int64   `json:"memory_available_bytes,omitempty"`
	MemoryPressure  *float64 `json:"memory_pressure,omitempty"` // share of the last 10 s in which something waited for memory
	IntervalS       *float64 `json:"interval_s,omitempty"`      // that other_cpus is over: at least half a second
	OtherCPUs       *float64 `json:"other_cpus,omitempty"`      // CPUs in use by others over the interval: 0.5 is half of one
}

// GPUReading is one device as nvidia-smi reports it.
type GPUReading struct {
	Index       int      `json:"index"`
	UUID        string   `json:"uuid,omitempty"`
	SMClockMHz  *float64 `json:"sm_clock_mhz,omitempty"`
	MemClockMHz *float64 `json:"mem_clock_mhz,omitempty"`
	PowerW      *float64 `json:"power_w,omitempty"`
	PowerLimitW *float64 `json:"power_limit_w,omitempty"` // the cap in force
	Temperature *float64 `json:"temperature_c,omitempty"`
	MemoryUsed  *int64   `json:"memory_used_bytes,omitempty"`
	Utilisation *float64 `json:"utilisation,omitempty"` // share of the driver's last sampling period with a kernel running

	// ThrottleReasons are what holds the clocks below their maximum, by the driver's
	// names (sw_power_cap, hw_thermal_slowdown, gpu_idle, …); nil: not reported.
	ThrottleReasons []string `json:"throttle_reasons,omitzero"`
	// ThrottledS is the time in which each limit held the clocks since the driver
	// was loaded, where the driver counts it.
	ThrottledS map[string]float64 `json:"throttled_s,omitempty"`
}

// GPUProcess is a process that computes on a GPU.
type GPUProcess struct {
	PID         int    `json:"pid"`
	GPU         *int   `json:"gpu,omitempty"` // index
	Name        string `json:"name,omitempty"`
	MemoryBytes *int64 `json:"memory_bytes,omitempty"`
	Owner       string `json:"owner"` // own: of this run | resident: there before the server | foreign: come since
}

// Owners of a process on a GPU.
const (
	OwnerOwn      = "own"
	OwnerResident = "resident"
	OwnerForeign  = "foreign"
)

// Note is a doubt or a fact for the reader that concerns a run, a variant or a
// point.
type Note struct {
	Code    string `json:"code"` // stable, such as "b-too-small"
	PointID string `json:"point_id,omitempty"`
	Variant string `json:"variant,omitempty"`
	Text    string `json:"text"`
}
