// Package engine speaks to inference servers: one implementation per server
// program, over one HTTP client that takes its clock readings at the socket. A
// launch command and a request come in; an argument vector and a Sample with
// raw readings and the server's own counts go out. It starts no process,
// computes no figure and judges no sample.
package engine

import (
	"context"
	"errors"

	"twopoint/results/event"
	"twopoint/schema"
)

// Engine is what every server program can do. Abilities that not all have are
// the extra interfaces below. Implementations hold no state and are safe for
// concurrent use.
type Engine interface {
	// Name is the value of the language's field engine.
	Name() string

	// Vet finds settings that this engine cannot take: args that typed fields
	// own, false where there is no negative form, missing fields. It is pure.
	Vet(v schema.Variant) []Problem

	// Args is the command line that starts the variant listening on host and
	// port, and the environment variables that the adapter itself needs,
	// as KEY=VALUE. It is pure: equal input, equal output. Placeholders {files},
	// {port} and {workdir} are left for the caller.
	Args(v schema.Variant, host string, port int) (argv, env []string, err error)

	// Ready returns nil once the expected model answers one token here. It
	// tries once and returns promptly; the caller repeats it. ErrNotYet wraps
	// what a starting server answers; any other error is final.
	Ready(ctx context.Context, c *Client, v schema.Variant) error

	// Info reads what the server says of itself.
	Info(ctx context.Context, c *Client, v schema.Variant) (Info, error)

	// Generate sends one request and reads the answer to its end. It always
	// returns a sample: what went wrong stands in Error and Detail. Fields that
	// the caller owns (role, point, repeat, leg, slot) are left empty.
	Generate(ctx context.Context, c *Client, r Request) event.Sample
}

// Flusher empties the server's prefix cache and says whether it worked. It
// waits for the server to be idle, with back-off, within ctx.
type Flusher interface {
	Flush(ctx context.Context, c *Client) event.Flush
}

// Tokenizer turns text into token ids with the server's own vocabulary, without
// adding special tokens.
type Tokenizer interface {
	Tokenize(ctx context.Context, c *Client, text string) ([]int32, error)
}

// Idler waits until the server has no request running or queued, for at most
// as long as ctx lasts, and never while a timed request is under way.
type Idler interface {
	WaitIdle(ctx context.Context, c *Client) error
}

// ErrNotYet is what Ready's error wraps while a server is still starting.
var ErrNotYet = errors.New("not ready yet")

// ErrUnreadable is what Ready's error wraps where a server answers with something
// that waiting will not change: a compressed answer, or not what its protocol says.
var ErrUnreadable = errors.New("the answer cannot be understood")

// ErrUnknown is what WaitIdle's error wraps where the server does not say
// whether it is idle.
var ErrUnknown = errors.New("the server does not say")

// Problem is a setting that an engine cannot take.
type Problem struct {
	Path    string // below the variant, such as args.port
	Value   string // as written
	Rule    string // what would be right
	Suggest string
}

// Info is what a server says of itself, as far as it does. Zero values mean
// "not reported".
type Info struct {
	Version       string
	Model         string // the name to send with requests
	ContextLimit  int    // tokens of prompt and answer together
	KVPoolTokens  int64
	Slots         int    // requests that it serves at once, where their number is fixed
	Backend       string // attention backend in use
	PageSize      int
	KVDType       string
	TP, DP, DCP   int            // tensor, data and decode-context parallelism; TP is that of attention
	Speculative   *bool          // a forward pass can yield several tokens; nil: not reported
	TokenIDs      bool           // takes prompts as token ids
	ExactLength   bool           // can be made to generate exactly the number asked for
	CachedCount   bool           // reports cached prompt tokens with each answer
	EngineDefault bool           // its prefix cache is on by default
	CountsWhole   bool           // counts come only with answers that do not stream
	FlushReloads  bool           // a flush loads the model anew, after which all is slow at first: only for flush "require"
	Advice        []string       // server switches that would let it report more, one sentence each
	Settings      map[string]any // everything else that is worth keeping, flat: string, bool, json.Number
}

// Request is one generation.
type Request struct {
	Model     string
	IDs       []int32 // the prompt as token ids; nil when Text is used
	Text      string
	MaxTokens int
	Stream    bool

	// Slot tells simultaneous requests apart, from 0; engines with numbered
	// slots pin the request to it.
	Slot int

	// Begin, where set, is called once the connection stands and returns when the
	// request may be sent: simultaneous requests wait there for each other. A
	// request that has to be repeated calls it again.
	Begin func()

	// KeepOutput asks for what was generated in the sample's OutputText and
	// OutputIDs.
	KeepOutput bool

	// NoReuse asks for the engine's per-request switch against prefix reuse
	// (a salt, cache_prompt:false), where it has one.
	NoReuse bool
	// Salt is unique to the request; engines with a cache namespace use it when
	// NoReuse is set.
	Salt string
}
