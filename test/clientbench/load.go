package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime/pprof"
	"strings"
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
	Engine   string // empty: nothing that understands the answer, see bare
	Streams  int
	Requests int    // in all
	Prompt   int    // token ids
	Tokens   int    // of each answer
	Profile  string // file that a CPU profile is written to; empty: none
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
	ask, err := l.asker()
	if err != nil {
		return err
	}
	ask(0)
	if l.Profile != "" {
		f, err := os.Create(l.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
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

// asker returns what makes one request, of a slot, and reads the answer.
func (l load) asker() (func(slot int) event.Sample, error) {
	prompts := make([][]int32, l.Streams)
	for i := range prompts {
		prompts[i] = make([]int32, l.Prompt)
		for j := range prompts[i] {
			prompts[i][j] = rand.Int32N(150_000)
		}
	}
	if l.Engine == "" {
		return l.bare(prompts[0])
	}
	e, ok := engines.Lookup(l.Engine)
	if !ok {
		return nil, fmt.Errorf("no engine %q", l.Engine)
	}
	c, err := engine.NewClient(l.URL, "", engine.Limits{})
	return func(slot int) event.Sample {
		prompts[slot][0] = rand.Int32N(150_000)
		return e.Generate(context.Background(), c, engine.Request{Model: "standin", IDs: prompts[slot], MaxTokens: l.Tokens, Stream: true, Slot: slot})
	}, err
}

// bare asks for the same answer with a request made beforehand and only reads its
// bytes, on a fresh connection: what is left is the kernel's and the runtime's.
func (l load) bare(ids []int32) (func(slot int) event.Sample, error) {
	body, err := json.Marshal(map[string]any{"model": "standin", "prompt": ids, "max_tokens": l.Tokens, "ignore_eos": true, "stream": true,
		"stream_options": map[string]any{"include_usage": true}, "return_token_ids": true})
	if err != nil {
		return nil, err
	}
	host := strings.TrimPrefix(l.URL, "http://")
	raw := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body)
	rooms := make([][]byte, l.Streams)
	for i := range rooms {
		rooms[i] = make([]byte, 64<<10)
	}
	return func(slot int) (s event.Sample) {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			return event.Sample{Error: "unreachable", Detail: err.Error()}
		}
		defer conn.Close()
		_, err = conn.Write(raw)
		for err == nil {
			_, err = conn.Read(rooms[slot])
		}
		if !errors.Is(err, io.EOF) {
			return event.Sample{Error: "stream-cut", Detail: err.Error()}
		}
		n := int64(l.Tokens)
		return event.Sample{CompletionTokens: &n}
	}, nil
}

// used is the CPU time of this process so far.
func used() (userS, systemS float64) {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano()).Seconds(), time.Duration(r.Stime.Nano()).Seconds()
}
