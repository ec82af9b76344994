package serve

import (
	"strings"
	"sync"
	"time"

	"twopoint/runner/serve/kv"
	"twopoint/runner/serve/token"
)

// params are what a request asks of the generation of one sequence.
type params struct {
	maxNew    int
	minNew    int // no end of sequence before this many tokens
	ignoreEOS bool
	stopIDs   []int32
	stops     []string
	space     string // namespace of the prefix cache
	noCache   bool   // neither reads nor leaves prefixes
	logprobs  bool
	top       int // alternatives to report with each token
}

// finish is why a sequence ended, in the words of SGLang's finish_reason.
type finish struct {
	kind    string // length, stop, abort
	matched any    // of a stop: the id or the text that matched
	message string // of an abort
	status  int    // of an abort: the HTTP status that fits
}

// likelihood is a token with the natural logarithm of its probability.
type likelihood struct {
	token int32
	log   float64
}

// sequence is one prompt on its way through the scheduler. The fields after mu
// are published by the scheduler and read by the handler; those before belong
// to the handler until Submit and to the scheduler after it.
type sequence struct {
	params
	id      string
	arrived time.Time

	tokens []int32 // prompt and generated tokens
	prompt int     // length of the prompt
	stored int     // tokens whose KV rows are in pages
	table  []int32 // pages
	owned  int     // leading pages of table that belong to the prefix cache
	node   *kv.Node

	mu     sync.Mutex
	notify chan struct{} // has room for one: something was published
	snap   snapshot
}

// snapshot is what a handler sees of a sequence.
type snapshot struct {
	out         []int32 // generated so far; never written again
	likely      [][]likelihood
	cached      int // prompt tokens taken from the prefix cache
	retractions int
	finish      *finish
	finished    time.Time
}

func newSequence(id string, prompt []int32, p params, arrived time.Time) *sequence {
	tokens := make([]int32, len(prompt), len(prompt)+p.maxNew)
	copy(tokens, prompt)
	return &sequence{params: p, id: id, arrived: arrived, tokens: tokens, prompt: len(prompt), notify: make(chan struct{}, 1)}
}

func (q *sequence) read() snapshot {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.snap
}

// publish changes what handlers see and wakes the one that waits.
func (q *sequence) publish(change func(*snapshot)) {
	q.mu.Lock()
	change(&q.snap)
	q.mu.Unlock()
	select {
	case q.notify <- struct{}{}:
	default:
	}
}

func (q *sequence) generated() int { return len(q.tokens) - q.prompt }

// forbidden reports whether t may not be generated now, because it would end
// the sequence too early.
func (q *sequence) forbidden(t int32) bool {
	return q.generated() < q.minNew && q.ends(t)
}

func (q *sequence) ends(t int32) bool {
	for _, s := range q.stopIDs {
		if s == t {
			return true
		}
	}
	return t == token.End && !q.ignoreEOS
}

// verdict returns why the sequence ends with its last token, or nil.
func (q *sequence) verdict() *finish {
	n := q.generated()
	if n > 0 {
		last := q.tokens[len(q.tokens)-1]
		if q.ends(last) {
			return &finish{kind: "stop", matched: last}
		}
		if n >= q.minNew {
			for _, s := range q.stops {
				// Every token but End spells at least one byte.
				tail := q.tokens[max(q.prompt, len(q.tokens)-len(s)):]
				if strings.Contains(token.Decode(tail), s) {
					return &finish{kind: "stop", matched: s}
				}
			}
		}
	}
	if n >= q.maxNew {
		return &finish{kind: "length"}
	}
	return nil
}
