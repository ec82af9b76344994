// Package schema is the declarative language in Go: what a spec says, after
// CUE has checked it, servers and variants have been merged and every default
// has been filled in. The CUE definitions beside it are embedded; package load
// reads a spec into these types, package plan turns them into points. This
// package holds data only.
//
// JSON names are the language's field names (docs and plan.json use them).
// Numbers inside free-form settings are json.Number, so that 0.88 reaches a
// command line as 0.88 and a 63-bit seed stays exact.
package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Experiment is a whole spec, resolved.
type Experiment struct {
	Name     string `json:"name"` // the spec's folder or file name
	Title    string `json:"title"`
	Question string `json:"question,omitempty"`

	Model  *Model `json:"model,omitempty"`
	Target Target `json:"target"`

	// Variants are resolved server configurations in the order in which the
	// spec declares them, matrix cells expanded.
	Variants []Variant `json:"variants"`
	Baseline string    `json:"baseline,omitempty"` // a variant's name

	Sweep       Sweep                `json:"sweep"`
	Prompt      Prompt               `json:"prompt"`
	Method      Method               `json:"method"`
	Budget      Budget               `json:"budget"`
	Limits      Limits               `json:"limits"`
	OnFailure   string               `json:"on_failure,omitempty"` // skip_longer | restart | stop_variant; empty: by failure kind
	Host        HostPolicy           `json:"host"`
	Gate        *Gate                `json:"gate,omitempty"`
	Expect      *Expect              `json:"expect,omitempty"`
	KernelBench *KernelBench         `json:"kernel_bench,omitempty"`
	Published   map[string]Published `json:"published,omitempty"`
}

// Variant is one resolved server configuration. What of it takes part in its
// identity is said in package plan.
type Variant struct {
	Name   string `json:"name"`
	Base   string `json:"base,omitempty"` // the declared variant that a matrix cell comes from
	Server string `json:"server"`         // the server declaration it was merged over
	Engine string `json:"engine"`         // sglang | openai | llamacpp | twopoint | …

	URL string `json:"url,omitempty"` // a server that we do not start; then nothing below that launches one is set

	ModelPath     string `json:"model_path,omitempty"`
	ServedName    string `json:"served_name,omitempty"`
	ContextLength int    `json:"context_length,omitempty"` // tokens; 0: the engine's default
	TP            int    `json:"tp,omitempty"`
	DP            int    `json:"dp,omitempty"`
	PP            int    `json:"pp,omitempty"`
	DCP           int    `json:"dcp,omitempty"`
	Host          string `json:"host,omitempty"` // address to bind; empty: 127.0.0.1
	Port          int    `json:"port,omitempty"` // 0: chosen before launch

	Args    map[string]any      `json:"args,omitempty"` // bool, string, json.Number, []any, map[string]any
	Env     map[string]EnvValue `json:"env,omitempty"`
	Command []string            `json:"command,omitempty"` // replaces the engine's launch command
	Setup   string              `json:"setup,omitempty"`   // shell line run before the command, in the same shell
	Cwd     string              `json:"cwd,omitempty"`

	Files     []string   `json:"files,omitempty"` // relative to the spec's folder
	FilesHash string     `json:"files_hash,omitempty"`
	Build     [][]string `json:"build,omitempty"`

	Container    *Container `json:"container,omitempty"`
	ReadyTimeout Duration   `json:"ready_timeout"`
	Flush        string     `json:"flush"` // auto | require | never

	Cell map[string]any `json:"cell,omitempty"` // the matrix cell's own args, for settings marked swept
}

// EnvValue is one environment variable of a server: a literal, or the name of
// a variable that holds a secret where the runner is. The secret's value never
// enters a file.
type EnvValue struct {
	Value  string `json:"value,omitempty"`
	Secret string `json:"secret,omitempty"`
}

// Container starts the server inside an image.
type Container struct {
	Image   string   `json:"image"`
	Runtime string   `json:"runtime,omitempty"` // docker | podman | apptainer
	Args    []string `json:"args,omitempty"`
}

// Target names where a work order is executed. Exactly one of the kinds is
// set; Name "local" is this machine.
type Target struct {
	Name  string         `json:"name"`
	SSH   map[string]any `json:"ssh,omitempty"`
	Slurm map[string]any `json:"slurm,omitempty"`
	Kube  map[string]any `json:"kube,omitempty"`
}

// IsLocal tells whether the order runs on this machine.
func (t Target) IsLocal() bool {
	return t.SSH == nil && t.Slurm == nil && t.Kube == nil && t.Name == "local"
}

// Model is the geometry of a language model, unsharded.
type Model struct {
	Preset string `json:"preset,omitempty"`
	Name   string `json:"name"`
	Heads  int    `json:"heads"`
	Layers Layers `json:"layers"`
	KV     KV     `json:"kv"`
	DType  string `json:"dtype"` // of the KV cache: f32 | bf16 | f16 | fp8

	ContextLength     int   `json:"context_length,omitempty"`      // the longest sequence it takes, tokens; 0: unknown
	ActiveWeightBytes int64 `json:"active_weight_bytes,omitempty"` // read for one token; 0: unknown
}

// Layers counts layers by kind. Only full attention grows with context.
type Layers struct {
	Full   int     `json:"full"`
	Window *Window `json:"window,omitempty"`
	Linear int     `json:"linear,omitempty"`
}

// Window is a number of layers that see only the last Tokens tokens.
type Window struct {
	Count  int `json:"count"`
	Tokens int `json:"tokens"`
}

// KV is the attention kind: exactly one is set.
type KV struct {
	MLA *MLA `json:"mla,omitempty"`
	GQA *GQA `json:"gqa,omitempty"`
}

// MLA stores one latent row of Rank+Rope elements a token and layer.
type MLA struct {
	Rank int `json:"rank"`
	Rope int `json:"rope"`
}

// GQA stores Heads key and Heads value rows of HeadDim elements.
type GQA struct {
	Heads   int `json:"heads"`
	HeadDim int `json:"head_dim"`
}

// Sweep is the axes; their product (or zip) is expanded in Go.
type Sweep struct {
	Context     []int     `json:"context"` // prompt tokens
	Concurrency []int     `json:"concurrency"`
	Zip         bool      `json:"zip,omitempty"`
	Exclude     []Exclude `json:"exclude,omitempty"`
}

// Exclude drops points that match all of its non-empty parts.
type Exclude struct {
	Variant     []string `json:"variant,omitempty"`
	Context     *Range   `json:"context,omitempty"`
	Concurrency *Range   `json:"concurrency,omitempty"`
}

// Matches tells whether the point is dropped. Variant may name the declared
// variant that a matrix cell comes from.
func (e Exclude) Matches(v Variant, context, concurrency int) bool {
	if len(e.Variant) > 0 && !slices.Contains(e.Variant, v.Name) && (v.Base == "" || !slices.Contains(e.Variant, v.Base)) {
		return false
	}
	return (e.Context == nil || e.Context.Contains(context)) && (e.Concurrency == nil || e.Concurrency.Contains(concurrency))
}

// Range is a set of integers: Values, or everything from Min to Max (each end
// optional, inclusive).
type Range struct {
	Values []int `json:"values,omitempty"`
	Min    *int  `json:"min,omitempty"`
	Max    *int  `json:"max,omitempty"`
}

// Contains tells whether n is in the set.
func (r Range) Contains(n int) bool {
	if len(r.Values) > 0 {
		return slices.Contains(r.Values, n)
	}
	return (r.Min == nil || n >= *r.Min) && (r.Max == nil || n <= *r.Max)
}

// NonceTokens is the length of the nonce, the fresh tokens at the start of a
// prompt. They stand first because prefix caches match from position 0: at the
// end they would prevent nothing.
const NonceTokens = 8

// Prompt says what the requests contain.
type Prompt struct {
	Source    string  `json:"source"` // text | random | file
	File      string  `json:"file,omitempty"`
	FileHash  string  `json:"file_hash,omitempty"`
	Seed      int64   `json:"seed"`
	Nonce     bool    `json:"nonce"`
	Length    string  `json:"length"`              // exact | reported; empty: exact where the engine can force it
	Tolerance float64 `json:"tolerance,omitempty"` // accepted share of prompt length off the request, for "reported"
}

// Method holds exactly one way of measuring.
type Method struct {
	TwoPoint      *TwoPoint      `json:"two_point,omitempty"`
	Stream        *Stream        `json:"stream,omitempty"`
	MultiPoint    *MultiPoint    `json:"multi_point,omitempty"`
	DecodeAtDepth *DecodeAtDepth `json:"decode_at_depth,omitempty"`
}

// Names of the methods: their fields in the language.
const (
	MethodTwoPoint      = "two_point"
	MethodStream        = "stream"
	MethodMultiPoint    = "multi_point"
	MethodDecodeAtDepth = "decode_at_depth"
)

// Name is the method's field name in the language.
func (m Method) Name() string {
	switch {
	case m.TwoPoint != nil:
		return MethodTwoPoint
	case m.Stream != nil:
		return MethodStream
	case m.MultiPoint != nil:
		return MethodMultiPoint
	case m.DecodeAtDepth != nil:
		return MethodDecodeAtDepth
	}
	return ""
}

// Legs is what the method asks of its legs, in the words of two_point: stream
// has leg b alone, with A 0; the budgets between a and b of multi_point are
// Budgets. It is zero where there is no method.
func (m Method) Legs() TwoPoint {
	switch {
	case m.TwoPoint != nil:
		return *m.TwoPoint
	case m.Stream != nil:
		return TwoPoint{B: m.Stream.Tokens, Repeats: m.Stream.Repeats, Warmup: m.Stream.Warmup, Settle: m.Stream.Settle}
	case m.MultiPoint != nil:
		return m.MultiPoint.TwoPoint
	case m.DecodeAtDepth != nil:
		d := m.DecodeAtDepth
		return TwoPoint{A: d.A, B: d.B, Repeats: d.Repeats, Warmup: d.Warmup, Settle: Settle{Mode: "none"}}
	}
	return TwoPoint{}
}

// LegCount is the number of legs of a repeat.
func (m Method) LegCount() int {
	switch {
	case m.Stream != nil:
		return 1
	case m.MultiPoint != nil:
		return m.MultiPoint.Budgets
	}
	return 2
}

// Budgets are the tokens of the legs of a repeat whose shortest and longest have
// a and b, ascending: evenly spaced, without repetition.
func (m Method) Budgets(a, b int) []int {
	n := min(m.LegCount(), b-a+1)
	if n == 1 {
		return []int{b}
	}
	out := make([]int, n)
	for i := range out {
		out[i] = a + (i*(b-a)+(n-1)/2)/(n-1)
	}
	return out
}

// TwoPoint asks for a and b tokens from the same prompt length; the difference
// of the times is b−a decode tokens.
type TwoPoint struct {
	A       int     `json:"a"`           // tokens of the short leg; 0: by the tool (1, or 33 under speculation)
	B       int     `json:"b,omitempty"` // tokens of the long leg; 0: auto
	Repeats Repeats `json:"repeats"`
	Warmup  bool    `json:"warmup"`
	Settle  Settle  `json:"settle"`
}

// MultiPoint asks for three or more budgets from a to b; a line through their
// times gives the slope, and whether they lie on one.
type MultiPoint struct {
	TwoPoint
	Budgets int `json:"budgets"` // legs of a repeat, a and b among them
}

// Stream asks for one answer and looks at the arrival of its tokens.
type Stream struct {
	Tokens  int     `json:"tokens"` // of the answer
	Repeats Repeats `json:"repeats"`
	Warmup  bool    `json:"warmup"`
	Settle  Settle  `json:"settle"`
}

// DecodeAtDepth sends the prompt once and measures pairs on its cached prefix.
type DecodeAtDepth struct {
	A       int     `json:"a"`           // as TwoPoint's
	B       int     `json:"b,omitempty"` // as TwoPoint's
	Repeats Repeats `json:"repeats"`
	Warmup  bool    `json:"warmup"`
}

// Repeats is the stopping rule of a point.
type Repeats struct {
	Min         int     `json:"min"`         // valid pairs before the target counts
	Max         int     `json:"max"`         // pairs at most
	Target      float64 `json:"target"`      // half-width of the interval over the mean, such as 0.03
	Deployments int     `json:"deployments"` // server lives that share the pairs
}

// Settle is what happens between a flush and a timed request: "request" (one
// short untimed request), "none", or a pause.
type Settle struct {
	Mode string   // request | none | wait
	Wait Duration // for wait
}

func (s Settle) MarshalText() ([]byte, error) {
	if s.Mode == "wait" {
		return s.Wait.MarshalText()
	}
	return []byte(s.Mode), nil
}

func (s *Settle) UnmarshalText(b []byte) error {
	switch string(b) {
	case "request", "none":
		*s = Settle{Mode: string(b)}
		return nil
	}
	var d Duration
	if err := d.UnmarshalText(b); err != nil {
		return fmt.Errorf("settle is \"request\", \"none\" or a duration, not %q", b)
	}
	*s = Settle{Mode: "wait", Wait: d}
	return nil
}

// Budget bounds measuring time; 0 is no bound.
type Budget struct {
	PerPoint Duration `json:"per_point,omitempty"`
	Total    Duration `json:"total,omitempty"`
}

// Limits bound one request; 0 leaves the choice to the runner, which records it.
type Limits struct {
	Connect    Duration `json:"connect,omitempty"`
	FirstToken Duration `json:"first_token,omitempty"`
	Total      Duration `json:"total,omitempty"`
}

// HostPolicy says what to do about the machine's other users and its power cap.
type HostPolicy struct {
	Foreign string  `json:"foreign"` // warn | stop
	PowerW  float64 `json:"power_w,omitempty"`
}

// Gate asks for checks of what the server answers, on separate untimed prompts,
// once a variant and context. A nil check is not asked for.
type Gate struct {
	Needle    *Needle    `json:"needle,omitempty"`
	Agreement *Agreement `json:"agreement,omitempty"`
}

// Needle plants a fact in a long text and asks for it.
type Needle struct {
	Depth  []float64 `json:"depth"`   // one check each: 0 is the beginning of the text, 1 its end
	Tokens int       `json:"tokens"`  // of the answer
	OnFail string    `json:"on_fail"` // warn | invalid
}

// Agreement compares greedy answers with the baseline's.
type Agreement struct {
	Prompts int    `json:"prompts"`
	Tokens  int    `json:"tokens"`  // of each answer
	OnFail  string `json:"on_fail"` // warn | invalid
}

// Expect holds the author's estimates, for planning time only.
type Expect struct {
	PrefillTokS float64  `json:"prefill_tok_s,omitempty"`
	DecodeTokS  float64  `json:"decode_tok_s,omitempty"`
	Load        Duration `json:"load,omitempty"`
}

// KernelBench runs attention kernels over the sweep's contexts.
type KernelBench struct {
	Variants  []string `json:"variants,omitempty"`
	Placement []string `json:"placement,omitempty"`
	PageSize  []int    `json:"page_size,omitempty"`
	QLen      []int    `json:"q_len,omitempty"`
	KVDType   []string `json:"kv_dtype,omitempty"`
	Splits    []int    `json:"splits,omitempty"` // 0: auto
	Batch     []int    `json:"batch,omitempty"`
	Threads   []int    `json:"threads,omitempty"`
	Command   []string `json:"command,omitempty"`
}

// Published is one published table: cells become claims, beside named ones.
type Published struct {
	Source     Source         `json:"source"`
	Definition string         `json:"definition,omitempty"` // of decode and prefill: twopoint | origin | …
	MeasuredOn map[string]any `json:"measured_on,omitempty"`
	Scope      Scope          `json:"scope,omitzero"`

	// Cells is metric column → variant → context label → value. A cell is a
	// number, {value, plus_minus, …} or null for "published as absent".
	Cells  map[string]map[string]map[string]any `json:"cells,omitempty"`
	Claims map[string]Claim                     `json:"claims,omitempty"`
}

// Scope says what of a publication must agree with what is measured for a verdict;
// empty: what the claim's kind asks for.
type Scope struct {
	Hardware string `json:"hardware,omitempty"` // exact | arch | any
	Model    string `json:"model,omitempty"`    // exact | shape | any
	Engine   string `json:"engine,omitempty"`   // exact | any
}

// Over is the scope with the fields that own says laid over it.
func (s Scope) Over(own Scope) Scope {
	return Scope{cmp.Or(own.Hardware, s.Hardware), cmp.Or(own.Model, s.Model), cmp.Or(own.Engine, s.Engine)}
}

// Claim is one published figure or statement with its test; which fields it has
// depends on its kind.
type Claim struct {
	Kind       string     `json:"kind"` // absolute | relative | ratio | order | shape | slope | bound | event | recompute
	Metric     string     `json:"metric,omitempty"`
	Of         any        `json:"of,omitempty"` // a variant, or several
	At         *At        `json:"at,omitempty"`
	Expect     any        `json:"expect,omitempty"` // json.Number, with the digits that are printed, or string
	Tolerance  *float64   `json:"tolerance,omitempty"`
	PlusMinus  *float64   `json:"plus_minus,omitempty"` // the source's own
	AtLeast    *float64   `json:"at_least,omitempty"`
	AtMost     *float64   `json:"at_most,omitempty"`
	Num        *At        `json:"num,omitempty"`
	Den        *At        `json:"den,omitempty"`
	Order      []string   `json:"order,omitempty"` // variants, the largest first
	Margin     *float64   `json:"margin,omitempty"`
	Slowdown   *Slowdown  `json:"slowdown,omitempty"`
	Monotone   string     `json:"monotone,omitempty"` // increasing | decreasing
	FlatWithin *float64   `json:"flat_within,omitempty"`
	LinearIn   string     `json:"linear_in,omitempty"`
	R2AtLeast  *float64   `json:"r2_at_least,omitempty"`
	Crossover  *Crossover `json:"crossover,omitempty"`

	AtMostFractionOfPeak *float64 `json:"at_most_fraction_of_peak,omitempty"`

	Event string `json:"event,omitempty"` // a failure kind, or ok
	Match string `json:"match,omitempty"` // in the failure's evidence
	Stage string `json:"stage,omitempty"`

	Formula string         `json:"formula,omitempty"`
	Inputs  map[string]any `json:"inputs,omitempty"` // json.Number

	Definition string  `json:"definition,omitempty"`
	Source     *Source `json:"source,omitempty"`
	Scope      Scope   `json:"scope,omitzero"`
	Why        string  `json:"why,omitempty"`
	Note       string  `json:"note,omitempty"`
}

// Variant is the one that a claim is of, empty where it names none or several.
func (c Claim) Variant() string {
	switch of := c.Of.(type) {
	case string:
		return of
	case []any:
		if len(of) == 1 {
			v, _ := of[0].(string)
			return v
		}
	}
	if c.At != nil {
		return c.At.Variant
	}
	return ""
}

// At chooses points of a run, by prompt tokens.
type At struct {
	Variant      string `json:"variant,omitempty"`
	Context      int    `json:"context,omitempty"` // prompt tokens
	ContextLabel string `json:"context_label,omitempty"`
	Concurrency  int    `json:"concurrency,omitempty"` // 0: 1
	QLen         int    `json:"q_len,omitempty"`
	PageSize     int    `json:"page_size,omitempty"`
	KVDType      string `json:"kv_dtype,omitempty"`
	Placement    string `json:"placement,omitempty"`
	Kernel       string `json:"kernel,omitempty"`
}

// Slowdown is how many times longer a token takes at one context than at another, in
// prompt tokens.
type Slowdown struct {
	From    int      `json:"from"`
	To      int      `json:"to"`
	AtLeast *float64 `json:"at_least,omitempty"`
	AtMost  *float64 `json:"at_most,omitempty"`
}

// Crossover is variant A ahead of B at the first of two contexts and behind it at the
// second.
type Crossover struct {
	A       string `json:"a"`
	B       string `json:"b"`
	Between []int  `json:"between"`
}

// Source says where a published number stands.
type Source struct {
	Title      string `json:"title"`
	Where      string `json:"where"`
	Date       string `json:"date,omitempty"`
	Version    string `json:"version,omitempty"`
	Licence    string `json:"licence,omitempty"`
	Confidence string `json:"confidence,omitempty"` // A | B | C
	Derived    bool   `json:"derived,omitempty"`    // computed from what is printed
}

// Duration is a time.Duration that is written as a string: "5m", "1h30m".
type Duration time.Duration

func (d Duration) String() string               { return time.Duration(d).String() }
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write \"500ms\", \"90s\", \"20m\" or \"1h30m\"", b)
	}
	*d = Duration(v)
	return nil
}

// CanonicalJSON is v with sorted keys, no spaces and numbers in one form (an
// integral number has no fraction or exponent), so that equal content has equal
// bytes however it was written. It is what identities are hashed over.
func CanonicalJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return canonical(b)
}
