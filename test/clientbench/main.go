// Clientbench measures what the client itself costs: CPU time per streamed token
// and per request, against the stand-in streaming as fast as it can, and the rate
// at which the times of arrivals begin to slip on one core. Client and server are
// processes of their own, and the kernel tells what each has used. Other people's
// clients do the same on the same server where test/peers/setup.sh has installed
// them. One table of text comes out; no figure passes or fails.
//
// What a peer costs per token is the slope of its CPU time over the tokens of two
// runs, so that starting an interpreter enters no figure; likewise per request.
// Loading a prompt or making one up is part of what it does for a request.
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
	manyTokens = 4096
	prompt     = 1000
)

func costs(real string, names []string) error {
	fmt.Printf("CPU time of the client alone, user + system; as fast as the server can; prompts of %d tokens\n\n", prompt)
	fmt.Printf("%-24s %7s  %22s  %22s  %12s\n", "client", "streams", "µs a streamed token", "µs a request", "tok/s read")
	best := map[int]float64{}
	for _, v := range []struct{ face, engine string }{{"vllm", "openai"}, {"sglang", "sglang"}, {"llamacpp", "llamacpp"}} {
		url, stop, err := instant(v.face)
		if err != nil {
			return err
		}
		for _, streams := range []int{1, 64} {
			var tokens, requests cost
			if err := client("load", load{URL: url, Engine: v.engine, Streams: streams, Requests: max(50, 2*streams), Prompt: prompt, Tokens: manyTokens}, &tokens); err != nil {
				return err
			}
			if err := client("load", load{URL: url, Engine: v.engine, Streams: streams, Requests: 1000, Prompt: prompt, Tokens: 1}, &requests); err != nil {
				return err
			}
			if failed := tokens.Failed + requests.Failed; failed != "" {
				return fmt.Errorf("%s: %s", v.engine, failed)
			}
			perRequest := 1 / float64(requests.Requests)
			perToken := 1 / float64(tokens.Tokens)
			user := (tokens.UserS - requests.UserS*perRequest*float64(tokens.Requests)) * perToken
			system := (tokens.SystemS - requests.SystemS*perRequest*float64(tokens.Requests)) * perToken
			fmt.Printf("%-24s %7d  %6.2f (%5.2f + %5.2f)   %6.0f (%5.0f + %5.0f)   %12.0f\n", "twopoint, "+v.engine, streams,
				1e6*(user+system), 1e6*user, 1e6*system,
				1e6*requests.cpuS()*perRequest, 1e6*requests.UserS*perRequest, 1e6*requests.SystemS*perRequest, float64(tokens.Tokens)/tokens.WallS)
			if v.engine == "openai" {
				best[streams] = user + system
			}
		}
		stop()
	}
	url, stop, err := instant("vllm")
	if err != nil {
		return err
	}
	defer stop()
	for _, name := range names {
		for _, streams := range []int{1, 64} {
			if err := peer(real, name, url, streams, best[streams]); err != nil {
				fmt.Printf("%-24s %7d  %v\n", name, streams, err)
				if errors.Is(err, peers.ErrMissing) {
					break
				}
			}
		}
	}
	return nil
}

// peer prints what another client costs.
func peer(real, name, url string, streams int, ours float64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ask := peers.Ask{URL: url, Model: "standin", Prompt: prompt, Concurrency: streams}
	run := func(requests, tokens int) (peers.Figures, error) {
		ask.Requests, ask.Tokens = requests, tokens
		f, err := peers.Run(ctx, real, name, ask)
		if err == nil && f.RequestsDone != requests {
			err = fmt.Errorf("%s: %d of %d requests were answered", name, f.RequestsDone, requests)
		}
		return f, err
	}
	few := max(10, streams)
	short, err := run(few, 16)
	if err != nil {
		return err
	}
	long, err := run(few, 16+2048)
	if err != nil {
		return err
	}
	many, err := run(8*few, 16)
	if err != nil {
		return err
	}
	perToken := (long.CPUS() - short.CPUS()) / float64(few*2048)
	perRequest := (many.CPUS() - short.CPUS()) / float64(7*few)
	fmt.Printf("%-24s %7d  %6.1f (%.0f × twopoint) %10.0f\n", long.Version, streams, 1e6*perToken, perToken/ours, 1e6*perRequest)
	return nil
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
