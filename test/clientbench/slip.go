package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"twopoint/runner/engine"
	"twopoint/runner/engine/openai"
)

// stampLen is the length of a stamp, decimal nanoseconds of the wall clock.
const stampLen = 19

// slip is how late the times of arrivals are at a rate that was offered: what the
// client read an event at, less what the server stamped on it just before it was
// written.
type slip struct {
	Events  int
	WallS   float64
	MedianS float64
	P99S    float64
	Failed  string
}

// pace answers every request with events at a fixed rate, each stamped. It stands
// for a server whose stamps can be compared with what a client notes, so that it
// does as little as it can.
func pace(perS float64) error {
	spread(false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	go func() {
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			req, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil {
				return
			}
			var ask struct {
				Max int `json:"max_tokens"`
			}
			if json.NewDecoder(req.Body).Decode(&ask) != nil {
				return
			}
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
			began := time.Now()
			for i := range ask.Max {
				time.Sleep(time.Until(began.Add(time.Duration(float64(i) / perS * float64(time.Second)))))
				event := append([]byte(nil), `data: {"id":"cmpl-1","object":"text_completion","model":"standin","choices":[{"index":0,"text":"`...)
				event = strconv.AppendInt(event, time.Now().UnixNano(), 10)
				event = append(event, `","finish_reason":null}]}`+"\n\n"...)
				if _, err := conn.Write(event); err != nil {
					return
				}
			}
			io.WriteString(conn, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
		}()
	}
}

// watch measures the slip of a client that has one core to itself.
func (l load) watch() error {
	spread(true)
	runtime.GOMAXPROCS(1)
	c, err := engine.NewClient(l.URL, "", engine.Limits{})
	if err != nil {
		return err
	}
	var out slip
	var late []float64
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for range l.Streams {
		all.Go(func() {
			s := openai.Engine{}.Generate(context.Background(), c, engine.Request{Model: "standin", Text: "x", MaxTokens: l.Tokens, Stream: true, KeepOutput: true})
			mu.Lock()
			defer mu.Unlock()
			if s.Error != "" {
				out.Failed = s.Error + ": " + s.Detail
				return
			}
			for i := 0; i < len(s.ChunkS) && (i+1)*stampLen <= len(s.OutputText); i++ {
				stamp, err := strconv.ParseInt(s.OutputText[i*stampLen:(i+1)*stampLen], 10, 64)
				if err != nil {
					out.Failed = err.Error()
					return
				}
				late = append(late, float64(s.Began.UnixNano()-stamp)/1e9+s.ChunkS[i])
			}
		})
	}
	all.Wait()
	out.WallS, out.Events = time.Since(began).Seconds(), len(late)
	if len(late) == 0 {
		return errors.New("no events: " + out.Failed)
	}
	slices.Sort(late)
	out.MedianS, out.P99S = late[len(late)/2], late[len(late)*99/100]
	return json.NewEncoder(os.Stdout).Encode(out)
}

// spread gives the client the last CPU alone and the server all others.
func spread(client bool) {
	n := runtime.NumCPU()
	if n < 2 {
		return
	}
	var set unix.CPUSet
	for i := range n {
		if client == (i == n-1) {
			set.Set(i)
		}
	}
	// Where it is not allowed, the two share, and the figure is the worse for it.
	unix.SchedSetaffinity(0, &set)
}
