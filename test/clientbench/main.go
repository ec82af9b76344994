// Clientbench measures what the client itself costs: CPU time per streamed token
// and per request, against the stand-in streaming as fast as it can, and the rate
// at which the times of arrivals begin to slip on one core. Client and server are
// processes of their own, and the kernel tells what each has used. Other people's
// clients do the same on the same server where test/peers/setup.sh has installed
// them. One table of text comes out; no figure passes or fails.
//
// What a peer costs per token is the slope of its CPU time over the tokens of two
// runs, so that starting an interpreter enters no figure; likewise per request.
// Loading a prompt or making one up is part of what it does for a request. The
// runs are repeated; what start-up noise hides is printed as not resolved, and
// enters no ratio. The first rows are a reader that understands nothing, on fresh
// connections too: that part of a cost is the kernel's and the runtime's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/test/peers"
	"twopoint/test/standin"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientbench: error:", err)
		os.Exit(1)
	}
}

// run is the bench, or one of the processes that it starts.
func run(args []string) error {
	if len(args) == 2 {
		var l load
		switch args[0] {
		case "serve":
			return serve(args[1])
		case "pace":
			perS, err := strconv.ParseFloat(args[1], 64)
			if err != nil {
				return err
			}
			return pace(perS)
		case "load", "watch":
			if err := json.Unmarshal([]byte(args[1]), &l); err != nil {
				return err
			}
			if args[0] == "watch" {
				return l.watch()
			}
			return l.run()
		}
	}
	flags := flag.NewFlagSet("clientbench", flag.ContinueOnError)
	names := flags.String("peers", strings.Join(peers.Names, ","), "other clients to run, separated by commas")
	real := flags.String("real", ".real", "folder that test/peers/setup.sh installs into")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := costs(*real, strings.FieldsFunc(*names, func(r rune) bool { return r == ',' })); err != nil {
		return err
	}
	return slips()
}

// serve is the stand-in on a free port, which is printed, until stdin ends.
func serve(script string) error {
	var s standin.Script
	if err := json.Unmarshal([]byte(script), &s); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	return standin.New(s, nil).Serve(ctx, l)
}

// server starts this program as a server and returns its address.
func server(role, arg string) (url string, stop func(), err error) {
	cmd := exec.Command(os.Args[0], role, arg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { in.Close(); cmd.Wait() }
	if _, err := fmt.Fscan(out, &url); err != nil {
		stop()
		return "", nil, errors.New("the server did not start")
	}
	return url, stop, nil
}

// instant starts the stand-in with a face that streams as fast as it can.
func instant(face string) (url string, stop func(), err error) {
	raw, err := json.Marshal(standin.Script{Face: face, Clock: standin.Clock{Instant: true}, Stream: standin.Stream{Delta: true}})
	if err != nil {
		return "", nil, err
	}
	return server("serve", string(raw))
}

// client runs a load in a process of its own.
func client(role string, l load, out any) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], role, string(raw))
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(said, out)
}

// Loads of the cost bench.
const (
	prompt     = 1000
	manyTokens = 4096
	rounds     = 5 // of our own client and of the bare reader
)

// A peer takes seconds to start, and never the same: its runs differ by so many
// tokens and requests that this does not hide what they cost, and each cell of the
// table is repeated until its time is over.
const (
	peerTokens   = 200_000 // more in the long run than in the short one, in all
	peerRequests = 1000    // more in the run of many
	peerWithin   = 50 * time.Second
	peerRounds   = 3
)

// median and lower quartile of the figures of all rounds, the lower one where two
// stand beside it: another program on the machine can only add to a cost.
func median(x []float64) float64   { return slices.Sorted(slices.Values(x))[(len(x)-1)/2] }
func quartile(x []float64) float64 { return slices.Sorted(slices.Values(x))[(len(x)-1)/4] }

// resolved tells whether the differences of a peer's runs say anything: there are
// two or more, all positive, and none is more than twice another.
func resolved(x []float64) bool {
	return len(x) >= 2 && slices.Min(x) > 0 && slices.Max(x) <= 2*slices.Min(x)
}

func costs(real string, names []string) error {
	fmt.Printf("CPU time of the client alone, user + system; as fast as the server can; prompts of %d tokens; median of the rounds, lower quartile in brackets\n\n", prompt)
	fmt.Printf("%-24s %7s  %28s  %28s  %10s\n", "client", "streams", "µs a streamed token", "µs a request", "tok/s read")
	ours := map[int]float64{}
	for _, v := range []struct{ face, engine string }{{"vllm", ""}, {"vllm", "openai"}, {"sglang", "sglang"}, {"llamacpp", "llamacpp"}} {
		url, stop, err := instant(v.face)
		if err != nil {
			return err
		}
		for _, streams := range []int{1, 64} {
			perToken, err := own(url, v.engine, streams)
			if err != nil {
				stop()
				return err
			}
			if v.engine == "openai" {
				ours[streams] = perToken
			}
		}
		stop()
	}
	url, stop, err := instant("vllm")
	if err != nil {
		return err
	}
	defer stop()
	best, who := map[int]float64{}, map[int]string{}
	for _, name := range names {
		for _, streams := range []int{1, 64} {
			least, err := peer(real, name, url, streams)
			if err != nil {
				fmt.Printf("%-24s %7d  %v\n", name, streams, err)
				if errors.Is(err, peers.ErrMissing) {
					break
				}
			}
			if least > 0 && (who[streams] == "" || least < best[streams]) {
				best[streams], who[streams] = least, name
			}
		}
	}
	fmt.Println()
	for _, streams := range []int{1, 64} {
		if who[streams] == "" {
			fmt.Printf("%d streams: no peer's cost per token was resolved, so there is no ratio\n", streams)
			continue
		}
		fmt.Printf("%d streams: at least %.1f times less CPU a token than %s, the best of the peers resolved (its lowest round, %.1f µs, over our median, %.2f µs)\n",
			streams, best[streams]/ours[streams], who[streams], 1e6*best[streams], 1e6*ours[streams])
	}
	return nil
}

// own prints what our client costs, or the bare reader where no engine is named.
func own(url, engine string, streams int) (perToken float64, err error) {
	var tokenS, tokenUserS, requestS, requestUserS, rate []float64
	for range rounds {
		var tokens, requests cost
		if err := client("load", load{URL: url, Engine: engine, Streams: streams, Requests: max(25, streams), Prompt: prompt, Tokens: manyTokens}, &tokens); err != nil {
			return 0, err
		}
		if err := client("load", load{URL: url, Engine: engine, Streams: streams, Requests: 1000, Prompt: prompt, Tokens: 1}, &requests); err != nil {
			return 0, err
		}
		if failed := tokens.Failed + requests.Failed; failed != "" {
			return 0, fmt.Errorf("%s: %s", engine, failed)
		}
		n, m := float64(tokens.Tokens), float64(requests.Requests)
		share := float64(tokens.Requests) / m
		tokenS = append(tokenS, (tokens.cpuS()-share*requests.cpuS())/n)
		tokenUserS = append(tokenUserS, (tokens.UserS-share*requests.UserS)/n)
		requestS = append(requestS, requests.cpuS()/m)
		requestUserS = append(requestUserS, requests.UserS/m)
		rate = append(rate, n/tokens.WallS)
	}
	name := "twopoint, " + engine
	if engine == "" {
		name = "(only reading the bytes)"
	}
	fmt.Printf("%-24s %7d  %6.2f [%.2f] (user %5.2f)   %6.0f [%3.0f] (user %4.0f)   %10.0f\n", name, streams,
		1e6*median(tokenS), 1e6*quartile(tokenS), 1e6*median(tokenUserS),
		1e6*median(requestS), 1e6*quartile(requestS), 1e6*median(requestUserS), median(rate))
	return median(tokenS), nil
}

// peer prints what another client costs. least is its lowest cost per token of
// all rounds, seconds; 0 where that is not resolved. Tokens and requests are those
// asked for: a peer that leaves some out appears cheaper than it is.
func peer(real, name, url string, streams int) (least float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*peerWithin)
	defer cancel()
	ask := peers.Ask{URL: url, Model: "standin", Prompt: prompt, Concurrency: streams}
	var version string
	run := func(requests, tokens int) (float64, error) {
		ask.Requests, ask.Tokens = requests, tokens
		f, err := peers.Run(ctx, real, name, ask)
		if err == nil && f.RequestsDone < requests*9/10 {
			err = fmt.Errorf("%s: %d of %d requests were answered", name, f.RequestsDone, requests)
		}
		version = f.Version
		return f.CPUS(), err
	}
	few := max(25, streams)
	many := (peerRequests/streams + 1) * streams
	more := peerTokens / few
	var tokenS, requestS []float64
	began := time.Now()
	for round := range peerRounds {
		if spent := time.Since(began); round > 0 && spent+spent/time.Duration(round) > peerWithin {
			break
		}
		short, err := run(few, 16)
		if err != nil {
			return 0, err
		}
		long, err := run(few, 16+more)
		if err != nil {
			return 0, err
		}
		wide, err := run(few+many, 16)
		if err != nil {
			return 0, err
		}
		tokenS = append(tokenS, (long-short)/float64(few*more))
		requestS = append(requestS, (wide-short)/float64(many))
	}
	say := func(x []float64) string {
		if !resolved(x) {
			return fmt.Sprintf("not resolved in %d rounds", len(x))
		}
		return fmt.Sprintf("%.1f [%.1f] in %d rounds", 1e6*median(x), 1e6*quartile(x), len(x))
	}
	fmt.Printf("%-24s %7d  %28s  %28s\n", version, streams, say(tokenS), say(requestS))
	if resolved(tokenS) {
		least = slices.Min(tokenS)
	}
	return least, nil
}

// slipping is the p99 of a time's lateness from which it is no longer to be
// trusted. A machine on which others run is that late at any rate: where the
// lowest rate is, three times its p99 takes the place.
const slipping = time.Millisecond

// slowest is the rate of tokens at which a machine shows its own lateness.
const slowest = 2e3

func slips() error {
	fmt.Printf("\nArrival as noted by the client, less the server's stamp before the write; client on one core; the times slip where p99 passes %v (three times the first row's, if more)\n\n", slipping)
	fmt.Printf("%7s  %12s  %12s  %12s  %12s\n", "streams", "offered/s", "reached/s", "median µs", "p99 µs")
	for _, streams := range []int{1, 64} {
		at, bound := "none that was offered", slipping.Seconds()
		for _, rate := range []float64{slowest, 20e3, 50e3, 100e3, 200e3, 400e3} {
			per := rate / float64(streams)
			url, stop, err := server("pace", fmt.Sprint(per))
			if err != nil {
				return err
			}
			var s slip
			err = client("watch", load{URL: url, Streams: streams, Tokens: min(3000, max(50, int(per)))}, &s)
			stop()
			if err != nil {
				return err
			}
			reached := float64(s.Events) / s.WallS
			fmt.Printf("%7d  %12.0f  %12.0f  %12.0f  %12.0f  %s\n", streams, rate, reached, 1e6*s.MedianS, 1e6*s.P99S, s.Failed)
			if rate == slowest {
				bound = max(bound, 3*s.P99S)
			}
			if s.P99S > bound {
				at = fmt.Sprintf("%.0f tokens a second", reached)
				break
			}
		}
		fmt.Printf("%7d  begins to slip at %s\n", streams, at)
	}
	return nil
}
