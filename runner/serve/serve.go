// Package serve is the embedded inference server: a small random-weight
// transformer, computed for real by the kernels of package kernels, behind
// SGLang's native and OpenAI's HTTP interfaces. Requests come in over HTTP and
// token streams go out. Its time is compute: it never sleeps, and it never
// scripts latency or misbehaviour.
//
// Handlers (http.go, openai.go) turn requests into sequences; the scheduler's
// one goroutine (sched.go) batches them over the KV pool and the radix tree
// (package kv) and computes passes (package model). A handler shares nothing
// with the scheduler but a sequence's published snapshot.
package serve

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"runtime"
	"time"

	"twopoint/kernels"
	_ "twopoint/kernels/cpu" // registers the variants
	"twopoint/runner/serve/kv"
	"twopoint/runner/serve/model"
	"twopoint/runner/serve/token"
)

// Version is what /server_info reports.
const Version = "0.1.0"

// prefillKernel computes the prompts of every variant, so that variants differ
// in decode alone.
const prefillKernel = "prefill_tiled"

// Options are a server's settings; the flag of each is the name that SGLang
// gives it, where SGLang has it.
type Options struct {
	ModelPath         string // a preset of package model
	ServedModelName   string // "" is ModelPath
	RandomSeed        uint64 // of the weights
	Host              string
	Port              int
	ContextLength     int // tokens of prompt and output together
	PageSize          int // tokens
	MaxTotalTokens    int // size of the KV pool
	MaxRunning        int // sequences computed at once
	ChunkedPrefill    int // most prompt tokens in one step; -1 is no limit
	DisableRadixCache bool
	EnableCacheReport bool // cached tokens in the usage of /v1/completions
	StreamInterval    int  // tokens per streamed chunk after the first
	Incremental       bool // /generate streams what is new instead of everything so far
	Kernel            string
	Splits            int // parts of the KV range; 0 lets the kernel choose
	Threads           int // 0 is one for each processor
	Placement         kv.Placement
	MemLimit          int64 // bytes of address space beyond the start; 0 is no limit
}

// Defaults are the settings that flags start from.
func Defaults() Options {
	return Options{
		ModelPath: "tiny-gqa", Host: "127.0.0.1", Port: 30000,
		ContextLength: 32768, PageSize: 1, MaxTotalTokens: 131072, MaxRunning: 32, ChunkedPrefill: 2048,
		StreamInterval: 1, Kernel: "split_grouped", Placement: kv.Identity, RandomSeed: 1,
	}
}

// Server is a model that is ready to answer. Its Handler answers only while
// Loop runs.
type Server struct {
	opt   Options
	log   *log.Logger
	sched *scheduler
	start time.Time
	ready time.Duration
}

// New builds the model and an empty pool. Log lines go to logs.
func New(o Options, logs io.Writer) (*Server, error) {
	start := time.Now()
	if o.ServedModelName == "" {
		o.ServedModelName = o.ModelPath
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		// The largest context has 1 GiB of rotary angles, the largest pool 0.5 GiB of free lists.
		{"context-length", o.ContextLength, 2, 1 << 22}, {"max-total-tokens", o.MaxTotalTokens, 2, 1 << 26},
		{"page-size", o.PageSize, 1, 1 << 20}, {"max-running-requests", o.MaxRunning, 1, 1 << 12},
		{"chunked-prefill-size", o.ChunkedPrefill, -1, 1 << 22}, {"stream-interval", o.StreamInterval, 1, math.MaxInt},
		{"splits", o.Splits, 0, kernels.MaxSplits}, {"threads", o.Threads, 1, 1 << 10},
	} {
		if f.value < f.min || f.value > f.max {
			return nil, fmt.Errorf("argument --%s: invalid value %d: not in %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	geometry, err := model.Preset(o.ModelPath)
	if err != nil {
		return nil, err
	}
	decode, err := attention(o.Kernel, geometry.Shape, 1, o)
	if err != nil {
		return nil, fmt.Errorf("argument --kernel: %w", err)
	}
	prefill, err := attention(prefillKernel, geometry.Shape, 2, o)
	if err != nil {
		return nil, err
	}
	prefill.Options.Splits = 0
	pool, err := kv.NewPool(o.MaxTotalTokens, o.PageSize, geometry.Layers, geometry.Shape.RowElems(), o.Placement)
	if err != nil {
		return nil, err
	}
	m := model.New(geometry, o.RandomSeed, o.ContextLength, func(t int32) bool { return !token.Printable(t) })
	s := &Server{opt: o, log: log.New(logs, "", 0), start: start}
	s.sched = &scheduler{
		log:  s.log,
		pool: pool, pass: model.NewPass(m, o.Threads, min(max(o.ChunkedPrefill, 1), o.ContextLength)), prefill: prefill, decode: decode,
		vocab: geometry.Vocab, chunk: max(o.ChunkedPrefill, 0), running: o.MaxRunning, wake: make(chan struct{}, 1),
	}
	if !o.DisableRadixCache {
		s.sched.tree = kv.NewTree(pool)
	}
	return s, nil
}

func attention(name string, shape kernels.Shape, qLen int, o Options) (model.Attention, error) {
	k, err := kernels.Lookup(name)
	if err != nil {
		return model.Attention{}, err
	}
	if err := k.Supports(shape, qLen); err != nil {
		return model.Attention{}, fmt.Errorf("%s does not support %s: %w", name, o.ModelPath, err)
	}
	return model.Attention{Kernel: k, Options: kernels.Options{Splits: o.Splits, Threads: o.Threads}}, nil
}

// Loop computes requests until ctx ends; those still at work are then aborted.
// An error means that the server cannot go on.
func (s *Server) Loop(ctx context.Context) error { return s.sched.run(ctx) }

// Close gives the KV pool back, after Loop has returned.
func (s *Server) Close() error { return s.sched.pool.Close() }

// warm has Loop compute one prompt and two tokens, so that no request pays for
// first calls, and leaves nothing in the cache.
func (s *Server) warm(ctx context.Context) error {
	p := params{maxNew: 2, ignoreEOS: true, noCache: true}
	q := newSequence("warmup", token.Encode("The capital city of France is"), p, time.Now())
	if err := s.sched.submit(q); err != nil {
		return err
	}
	f, err := s.wait(ctx, q)
	if err != nil {
		return err
	}
	if f.finish.kind == "abort" {
		return fmt.Errorf("warm-up request: %s", f.finish.message)
	}
	s.ready = time.Since(s.start)
	return nil
}

// wait returns q's last snapshot, or aborts q and returns ctx's error.
func (s *Server) wait(ctx context.Context, q *sequence) (snapshot, error) {
	for {
		select {
		case <-q.notify:
			if snap := q.read(); snap.finish != nil {
				return snap, nil
			}
		case <-ctx.Done():
			s.drop(q)
			return snapshot{}, ctx.Err()
		}
	}
}

// drop aborts q because nobody reads it any more.
func (s *Server) drop(q *sequence) {
	// After the scheduler's end nothing is left to abort.
	_ = s.sched.abort(func(x *sequence) bool { return x == q }, "client disconnected")
}

// maxInput is the longest prompt that leaves room for a token.
func (s *Server) maxInput() int { return min(s.opt.ContextLength, s.sched.pool.Tokens()) - 1 }
