package serve

import (
	"context"
	"errors"
	"log"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"twopoint/runner/serve/kv"
	"twopoint/runner/serve/model"
)

// errStopped answers requests that come after the scheduler has ended.
var errStopped = errors.New("server is shutting down")

// scheduler forms batches and computes them. One goroutine, in run, owns the
// pool, the prefix cache and the passes; everybody else talks to it through the
// inbox. Between two steps sequences join and leave: each turn of the loop
// computes one chunk of prompts, if any wait, and then one decode step.
type scheduler struct {
	pool    *kv.Pool
	tree    *kv.Tree // nil when the prefix cache is off
	pass    *model.Pass
	prefill model.Attention
	decode  model.Attention
	vocab   int
	chunk   int // most prompt tokens in a step; 0 is no limit
	running int // most sequences admitted at once

	waiting []*sequence // first come, first served; retracted ones in front
	filling []*sequence // admitted, prompt not yet computed
	active  []*sequence // decoding
	flushes []flush
	batch   []model.Run
	members []*sequence // of batch

	window struct {
		since  time.Time
		tokens int
	}
	log *log.Logger

	mu    sync.Mutex // guards what follows
	inbox []func()   // run between steps
	ended bool
	stats stats
	wake  chan struct{} // has room for one: the inbox is not empty
}

// stats are counters since the start and gauges of now.
type stats struct {
	Running, Queued           int
	UsedTokens, CachedKV      int // tokens in pages handed out; those of them that only the prefix cache holds
	PromptTokens, Cached      int64
	Generated, Retracted      int64
	Requests, Aborted         int64
	GenThroughput             float64 // tokens per second over the last decode steps
	TTFTSum, E2ESum           float64 // seconds
	TTFTCount, E2ECount       int64
	PrefillSteps, DecodeSteps int64
}

type flush struct {
	deadline time.Time
	reply    chan flushed
}

type flushed struct {
	ok              bool
	queued, running int
}

// do has f run by the scheduler's goroutine between two steps.
func (s *scheduler) do(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errStopped
	}
	s.inbox = append(s.inbox, f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// submit queues a sequence; its handler then follows q.notify.
func (s *scheduler) submit(q *sequence) error {
	return s.do(func() { s.waiting = append(s.waiting, q) })
}

// abort ends every sequence that match accepts.
func (s *scheduler) abort(match func(*sequence) bool, message string) error {
	return s.do(func() { s.abortAll(match, message, 499) })
}

// flush empties the prefix cache, waiting up to timeout for the work to end.
func (s *scheduler) flush(timeout time.Duration) (flushed, error) {
	f := flush{deadline: time.Now().Add(timeout), reply: make(chan flushed, 1)}
	if err := s.do(func() { s.flushes = append(s.flushes, f) }); err != nil {
		return flushed{}, err
	}
	return <-f.reply, nil
}

func (s *scheduler) snapshot() stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *scheduler) idle() bool { return len(s.waiting)+len(s.filling)+len(s.active) == 0 }

// run computes until ctx ends, then aborts what is left and returns nil. Any
// other end is an error: a *kv.MapError when the system refused memory.
func (s *scheduler) run(ctx context.Context) (err error) {
	defer func() {
		s.mu.Lock()
		s.ended = true
		left := s.inbox
		s.inbox = nil
		s.mu.Unlock()
		for _, f := range left {
			f()
		}
		if err == nil {
			s.abortAll(func(*sequence) bool { return true }, errStopped.Error(), 503)
		}
		for _, f := range s.flushes {
			f.reply <- flushed{}
		}
	}()
	for {
		if s.idle() && len(s.flushes) == 0 {
			select {
			case <-s.wake:
			case <-ctx.Done():
				return nil
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		s.mu.Lock()
		inbox := s.inbox
		s.inbox = nil
		s.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		s.answerFlushes()
		err := s.prefillStep(ctx)
		if err == nil {
			err = s.decodeStep(ctx)
		}
		if ctx.Err() != nil {
			return nil // whatever the interrupted step made of it
		}
		if err != nil {
			return err
		}
		s.report()
	}
}

func (s *scheduler) answerFlushes() {
	s.flushes = slices.DeleteFunc(s.flushes, func(f flush) bool {
		if s.idle() {
			if s.tree != nil {
				s.tree.Flush()
			}
			f.reply <- flushed{ok: true}
			return true
		}
		if time.Now().Before(f.deadline) {
			return false
		}
		f.reply <- flushed{queued: len(s.waiting), running: len(s.filling) + len(s.active)}
		return true
	})
}

func (s *scheduler) abortAll(match func(*sequence) bool, message string, status int) {
	for _, list := range []*[]*sequence{&s.waiting, &s.filling, &s.active} {
		*list = slices.DeleteFunc(*list, func(q *sequence) bool {
			if !match(q) {
				return false
			}
			s.finish(q, &finish{kind: "abort", message: message, status: status})
			return true
		})
	}
}

// alloc appends n pages to q's table, at the expense of unused prefixes.
func (s *scheduler) alloc(q *sequence, n int) error {
	if short := n - s.pool.Available(); short > 0 && s.tree != nil {
		s.tree.Evict(short)
	}
	table, err := s.pool.Alloc(q.table, n)
	q.table = table
	return err
}

// admit gives q the pages of its prompt, starting with those that the prefix
// cache holds, and reports whether there was room.
func (s *scheduler) admit(q *sequence) (bool, error) {
	if q.caches(s) {
		// The last token is always computed: its logits are wanted.
		q.node, q.table = s.tree.Match(q.space, q.tokens[:len(q.tokens)-1], q.table[:0])
		q.owned = len(q.table)
	}
	need := (len(q.tokens)+s.pool.PageSize-1)/s.pool.PageSize - len(q.table)
	room := s.pool.Available()
	if s.tree != nil {
		room += s.tree.Evictable()
	}
	// A page for each sequence that decodes saves most retractions; one that was
	// retracted waits until there is room for all that it may still generate.
	reserve := len(s.active)
	if q.generated() > 0 {
		reserve += (q.maxNew-q.generated())/s.pool.PageSize + 1
	}
	if room < need+reserve && len(s.active)+len(s.filling) > 0 {
		s.release(q)
		return false, nil
	}
	if err := s.alloc(q, need); err != nil {
		return false, err
	}
	q.stored = q.owned * s.pool.PageSize
	return true, nil
}

func (q *sequence) caches(s *scheduler) bool { return s.tree != nil && !q.noCache }

// keep hands q's whole pages to the prefix cache.
func (s *scheduler) keep(q *sequence) {
	if !q.caches(s) {
		return
	}
	whole := q.stored / s.pool.PageSize
	node := s.tree.Insert(q.space, q.tokens[:whole*s.pool.PageSize], q.table[:whole])
	s.unlock(q)
	q.node, q.owned = node, whole
}

func (s *scheduler) unlock(q *sequence) {
	if q.node != nil {
		s.tree.Unlock(q.node)
		q.node = nil
	}
}

// release takes all pages from q.
func (s *scheduler) release(q *sequence) {
	s.unlock(q)
	s.pool.Free(q.table[q.owned:])
	q.table, q.owned, q.stored = q.table[:0], 0, 0
}

// finish leaves q's rows to the prefix cache and tells its handler.
func (s *scheduler) finish(q *sequence, why *finish) {
	if len(q.table) > 0 {
		s.keep(q)
	}
	s.release(q)
	now := time.Now()
	s.mu.Lock()
	s.stats.Requests++
	if why.kind == "abort" {
		s.stats.Aborted++
	}
	s.stats.E2ESum += now.Sub(q.arrived).Seconds()
	s.stats.E2ECount++
	s.mu.Unlock()
	q.publish(func(p *snapshot) { p.finish, p.finished, p.out = why, now, q.tokens[q.prompt:] })
}

// prefillStep computes the next chunk of prompts.
func (s *scheduler) prefillStep(ctx context.Context) error {
	budget := s.chunk
	if budget <= 0 {
		budget = math.MaxInt
	}
	s.batch, s.members = s.batch[:0], s.members[:0]
	take := func(q *sequence) {
		n := min(len(q.tokens)-q.stored, budget)
		budget -= n
		s.batch = append(s.batch, model.Run{
			Tokens: q.tokens[q.stored : q.stored+n], Start: q.stored, Table: q.table,
			Logits: q.stored+n == len(q.tokens),
		})
		s.members = append(s.members, q)
	}
	for _, q := range s.filling {
		if budget > 0 {
			take(q)
		}
	}
	for budget > 0 && len(s.waiting) > 0 && len(s.filling)+len(s.active) < s.running {
		q := s.waiting[0]
		ok, err := s.admit(q)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.filling = append(s.filling, q)
		first := q.generated() == 0
		if first {
			cached := q.stored
			q.publish(func(p *snapshot) { p.cached = cached })
		}
		s.mu.Lock()
		if first {
			s.stats.PromptTokens += int64(q.prompt)
			s.stats.Cached += int64(q.stored)
		}
		s.mu.Unlock()
		take(q)
	}
	if len(s.batch) == 0 {
		return nil
	}
	logits, err := s.pass.Forward(ctx, s.batch, model.KV{PageSize: s.pool.PageSize, Pages: s.pool.Pages}, s.prefill)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stats.PrefillSteps++
	s.mu.Unlock()
	for i, q := range s.members {
		q.stored += len(s.batch[i].Tokens)
		if !s.batch[i].Logits {
			continue
		}
		s.filling = slices.DeleteFunc(s.filling, func(x *sequence) bool { return x == q })
		s.keep(q)
		s.accept(q, logits[:s.vocab])
		logits = logits[s.vocab:]
	}
	runtime.Gosched() // let handlers write before the next step takes the cores
	return nil
}

// decodeStep computes one more token of every active sequence.
func (s *scheduler) decodeStep(ctx context.Context) error {
	if len(s.active) == 0 {
		s.window.tokens = 0
		return nil
	}
	if s.window.tokens == 0 {
		s.window.since = time.Now()
	}
	if err := s.extendTables(); err != nil {
		return err
	}
	if len(s.active) == 0 {
		return nil
	}
	s.batch, s.members = s.batch[:0], append(s.members[:0], s.active...)
	for _, q := range s.members {
		s.batch = append(s.batch, model.Run{Tokens: q.tokens[q.stored:], Start: q.stored, Table: q.table, Logits: true})
	}
	logits, err := s.pass.Forward(ctx, s.batch, model.KV{PageSize: s.pool.PageSize, Pages: s.pool.Pages}, s.decode)
	if err != nil {
		return err
	}
	s.active = s.active[:0]
	for i, q := range s.members {
		q.stored++
		s.accept(q, logits[i*s.vocab:(i+1)*s.vocab])
	}
	s.mu.Lock()
	s.stats.DecodeSteps++
	s.window.tokens += len(s.members)
	if s.stats.DecodeSteps%40 == 0 {
		s.stats.GenThroughput = float64(s.window.tokens) / time.Since(s.window.since).Seconds()
		s.window.tokens = 0
	}
	s.mu.Unlock()
	runtime.Gosched()
	return nil
}

// extendTables gives each active sequence room for its next row, retracting
// the youngest where the pool has none left.
func (s *scheduler) extendTables() error {
	for i := 0; i < len(s.active); i++ {
		q := s.active[i]
		if q.stored < len(q.table)*s.pool.PageSize {
			continue
		}
		err := s.alloc(q, 1)
		for errors.Is(err, kv.ErrFull) && len(s.active) > i+1 {
			s.retract(len(s.active) - 1)
			err = s.alloc(q, 1)
		}
		switch {
		case errors.Is(err, kv.ErrFull) && len(s.active)+len(s.filling) > 1:
			s.retract(i)
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// retract takes the pages from active sequence i and queues it again in front;
// it will be computed anew, tokens generated so far included.
func (s *scheduler) retract(i int) {
	q := s.active[i]
	s.active = slices.Delete(s.active, i, i+1)
	s.release(q)
	s.waiting = slices.Insert(s.waiting, 0, q)
	s.mu.Lock()
	s.stats.Retracted++
	s.mu.Unlock()
	s.log.Printf("KV cache pool is full. Retract requests. #retracted_reqs: 1, #running-req: %d", len(s.active))
	q.publish(func(p *snapshot) { p.retractions++ })
}

// accept appends the likeliest token to q, whose prompt is computed, and puts q
// among the active or finishes it.
func (s *scheduler) accept(q *sequence, logits []float32) {
	now := time.Now()
	if q.maxNew > 0 {
		best := int32(-1)
		for t, v := range logits {
			if (best < 0 || v > logits[best]) && !(q.minNew > 0 && q.forbidden(int32(t))) {
				best = int32(t)
			}
		}
		q.tokens = append(q.tokens, best)
		first := q.generated() == 1
		s.mu.Lock()
		s.stats.Generated++
		if first {
			s.stats.TTFTSum += now.Sub(q.arrived).Seconds()
			s.stats.TTFTCount++
		}
		s.mu.Unlock()
	}
	why := q.verdict()
	var likely []likelihood
	if q.logprobs && q.maxNew > 0 {
		likely = likelihoods(logits, q.tokens[len(q.tokens)-1], q.top)
	}
	if why == nil {
		s.active = append(s.active, q)
	}
	q.publish(func(p *snapshot) {
		p.out = q.tokens[q.prompt:]
		if likely != nil {
			p.likely = append(p.likely, likely)
		}
	})
	if why != nil {
		s.finish(q, why)
	}
}

// likelihoods returns the chosen token's log probability and then those of the
// top likeliest tokens.
func likelihoods(logits []float32, chosen int32, top int) []likelihood {
	peak := float64(slices.Max(logits))
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - peak)
	}
	norm := peak + math.Log(sum)
	all := make([]likelihood, len(logits))
	for t, v := range logits {
		all[t] = likelihood{int32(t), float64(v) - norm}
	}
	out := []likelihood{all[chosen]}
	slices.SortStableFunc(all, func(a, b likelihood) int {
		switch {
		case a.log > b.log:
			return -1
		case a.log < b.log:
			return 1
		}
		return 0
	})
	return append(out, all[:min(top, len(all))]...)
}

// report refreshes the gauges.
func (s *scheduler) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Running, s.stats.Queued = len(s.filling)+len(s.active), len(s.waiting)
	s.stats.UsedTokens = s.pool.Used() * s.pool.PageSize
	s.stats.CachedKV = 0
	if s.tree != nil {
		s.stats.CachedKV = s.tree.Evictable() * s.pool.PageSize
	}
}
