package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"twopoint/results/event"
	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
)

// load is what a client process has to do, and is told as JSON.
type load struct {
	URL      string
	Engine   string
	Streams  int
	Requests int // in all
	Prompt   int // token ids
	Tokens   int // of each answer
}

// cost is what it took, as the process itself sees it.
type cost struct {
	Requests int
	Tokens   int64
	WallS    float64
	UserS    float64
	SystemS  float64
	Failed   string // what went wrong first
}

func (c cost) cpuS() float64 { return c.UserS + c.SystemS }

// run sends the requests of a load and prints the cost of doing so, without that
// of starting.
func (l load) run() error {
	e, ok := engines.Lookup(l.Engine)
	if !ok {
		return fmt.Errorf("no engine %q", l.Engine)
	}
	c, err := engine.NewClient(l.URL, "", engine.Limits{})
	if err != nil {
		return err
	}
	prompts := make([][]int32, l.Streams)
	for i := range prompts {
		prompts[i] = make([]int32, l.Prompt)
		for j := range prompts[i] {
			prompts[i][j] = rand.Int32N(150_000)
		}
	}
	ask := func(slot int) event.Sample {
		prompts[slot][0] = rand.Int32N(150_000)
		return e.Generate(context.Background(), c, engine.Request{Model: "standin", IDs: prompts[slot], MaxTokens: l.Tokens, Stream: true, Slot: slot})
	}
	ask(0)
	var out cost
	var left atomic.Int64
	left.Store(int64(l.Requests))
	var mu sync.Mutex
	var all sync.WaitGroup
	user, system := used()
	began := time.Now()
	for slot := range l.Streams {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				s := ask(slot)
				mu.Lock()
				out.Requests++
				if s.CompletionTokens != nil {
					out.Tokens += *s.CompletionTokens
				}
				if s.Error != "" && out.Failed == "" {
					out.Failed = s.Error + ": " + s.Detail
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	out.WallS = time.Since(began).Seconds()
	u, s := used()
	out.UserS, out.SystemS = u-user, s-system
	return json.NewEncoder(os.Stdout).Encode(out)
}

// used is the CPU time of this process so far.
func used() (userS, systemS float64) {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano()).Seconds(), time.Duration(r.Stime.Nano()).Seconds()
}
