// Accuracy measures how far twopoint's figures are from the truth: against the
// stand-in server, whose clock is scripted, it prints the error of decode,
// prefill and time to first token for token times, contexts, concurrencies and
// methods, with and without other work on the machine, and what other people's
// clients say of the same server. Nothing is asserted. How late the stand-in
// itself was is printed beside: a cell where that is more than the aim says
// nothing about the client.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/test/peers"
	"twopoint/test/standin"
)

// cell is one measurement.
type cell struct {
	method      string
	stepS       float64
	context     int
	concurrency int
	loaded      bool // a busy process a core beside it
}

// prefillTokS is the scripted prefill rate: 128k tokens in 1.3 s.
const prefillTokS = 100_000

// aim is the median error of a repeat's decode that is aimed at: 0.2 % from 20 ms a
// token on, 1 % below.
func aim(stepS float64) float64 {
	if stepS < 0.020 {
		return 0.01
	}
	return 0.002
}

func main() {
	product := flag.String("twopoint", "bin/twopoint", "the program to be tested")
	real := flag.String("real", ".real", "where the peers are installed")
	every := flag.Bool("all", false, "every combination (an hour or so)")
	hog := flag.Bool("hog", false, "be the work beside")
	flag.Parse()
	if *hog {
		for x := 1.0; ; {
			x = math.Sqrt(x + 1)
		}
	}
	if err := bench(*product, *real, *every); err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(1)
	}
}

func cells(every bool) (out []cell) {
	methods := []string{"two_point", "stream", "multi_point", "decode_at_depth"}
	steps, contexts, concurrencies := []float64{0.001, 0.005, 0.020, 0.050}, []int{1000, 8000, 128_000}, []int{1, 8, 64}
	if every {
		for _, m := range methods {
			for _, s := range steps {
				for _, c := range contexts {
					for _, n := range concurrencies {
						out = append(out, cell{m, s, c, n, false}, cell{m, s, c, n, true})
					}
				}
			}
		}
		return out
	}
	for _, s := range steps {
		out = append(out, cell{"two_point", s, 8000, 1, false})
	}
	out = append(out, cell{"two_point", 0.020, 1000, 1, false}, cell{"two_point", 0.020, 128_000, 1, false})
	for _, s := range []float64{0.001, 0.020} {
		for _, n := range concurrencies[1:] {
			out = append(out, cell{"two_point", s, 1000, n, false})
		}
		for _, m := range methods[1:] {
			out = append(out, cell{m, s, 8000, 1, false})
		}
		out = append(out, cell{"two_point", s, 8000, 1, true})
	}
	return out
}

func bench(product, real string, every bool) error {
	product, err := filepath.Abs(product)
	if err != nil {
		return err
	}
	fmt.Printf("%-16s %8s %8s %4s %-5s  %9s %9s %9s %9s  %9s  %s\n", "method", "ms/token", "context", "c", "load", "decode", "a repeat", "prefill", "ttft", "stand-in", "")
	reached, told, refused := map[float64]int{}, map[float64]int{}, map[float64]int{}
	for _, c := range cells(every) {
		word, ok, err := one(product, c)
		if err != nil {
			return err
		}
		load := "-"
		if c.loaded {
			load = "busy"
		}
		fmt.Printf("%-16s %8g %8d %4d %-5s  %s\n", c.method, c.stepS*1e3, c.context, c.concurrency, load, word)
		if ok == nil && !strings.HasSuffix(word, late) {
			refused[c.stepS]++
			told[c.stepS] += 0 // so that a speed of which all is refused is said too
		}
		if ok != nil {
			told[c.stepS]++
			if *ok {
				reached[c.stepS]++
			}
		}
	}
	for _, s := range slices.Sorted(func(yield func(float64) bool) {
		for s := range told {
			if !yield(s) {
				return
			}
		}
	}) {
		fmt.Printf("aim of %g %% at %g ms a token: reached in %d of %d cells in which the stand-in was not late; twopoint refused a number in %d more\n", 100*aim(s), s*1e3, reached[s], told[s], refused[s])
	}
	for _, s := range []float64{0.001, 0.020} {
		for _, name := range peers.Names {
			if err := peer(real, name, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve opens a stand-in at a free port.
func serve(script standin.Script) (srv *standin.Server, url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv = standin.New(script, nil)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, listener) }()
	return srv, "http://" + listener.Addr().String(), func() { cancel(); <-done }, nil
}

// one measures a cell; the words are its line, and ok whether the aim was
// reached, nil where the cell says nothing.
func one(product string, c cell) (words string, ok *bool, err error) {
	srv, url, stop, err := serve(standin.Script{Clock: standin.Clock{StepS: c.stepS, PrefillTokS: prefillTokS}})
	if err != nil {
		return "", nil, err
	}
	defer stop()
	if c.loaded {
		for range runtime.NumCPU() {
			busy := exec.Command(os.Args[0], "-hog")
			if err := busy.Start(); err != nil {
				return "", nil, err
			}
			defer func() { busy.Process.Kill(); busy.Wait() }()
		}
	}
	dir, err := os.MkdirTemp("", "accuracy")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	spec := fmt.Sprintf(`experiment: {
	title: "accuracy"
	servers: s: {engine: "sglang", url: %q, flush: "auto"}
	sweep: {context: [%d], concurrency: [%d]}
	method: %s: repeats: {min: 6, max: 6}
}`, url, c.context, c.concurrency, c.method)
	if err := os.WriteFile(filepath.Join(dir, "spec.cue"), []byte(spec), 0o644); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(product, "run", ".")
	cmd.Dir = dir
	said, runErr := cmd.CombinedOutput()
	dirs, err := run.List(filepath.Join(dir, "runs"))
	if err != nil || len(dirs) != 1 {
		return "", nil, fmt.Errorf("%+v: %w: %s", c, errors.Join(err, runErr), bytes.TrimSpace(said))
	}
	tables, err := table.Load(dirs[0])
	if err != nil {
		return "", nil, err
	}
	p := tables.Points[0]
	if p.Status != "ok" {
		return fmt.Sprintf("%s: %s", p.Status, p.Reason), nil, nil
	}
	figure, repeat := p.SPerTok, func(r table.RepeatRow) *float64 { return r.SPerTok }
	if c.method == "stream" {
		figure, repeat = p.SPerTokStream, func(r table.RepeatRow) *float64 { return r.SPerTokStream }
	}
	var errs []float64
	for _, r := range tables.Repeats {
		if x := repeat(r); r.Valid && x != nil {
			errs = append(errs, math.Abs(*x/c.stepS-1))
		}
	}
	prefillS := float64(c.context) / prefillTokS
	own := lateness(srv.Requests(), c)
	median := middle(errs)
	words = fmt.Sprintf("%s %s %s %s  %s", percent(figure, c.stepS), percent(new1(median+1), 1), percent(p.PrefillS, prefillS), percent(p.TTFTS, prefillS), percent(new1(own+1), 1))
	if math.Abs(own) > aim(c.stepS) {
		return words + late, nil, nil
	}
	reached := median < aim(c.stepS)
	return words, &reached, nil
}

// late ends the words of a cell that says nothing of twopoint.
const late = "  the stand-in was late"

func new1(x float64) *float64 { return &x }

// lateness is the error of the decode time that the stand-in's own lateness makes
// in a repeat: what its last tokens were late by more than its first, over the
// time between them. Median over the longest answers, of which the method's are.
func lateness(requests []standin.Request, c cell) float64 {
	longest := 0
	for _, r := range requests {
		longest = max(longest, r.Generated)
	}
	var errs []float64
	for _, r := range requests {
		if r.Generated == longest && r.DecodeS > 0 {
			errs = append(errs, (r.LastS-r.FirstS)/r.DecodeS-1)
		}
	}
	return middle(errs)
}

func middle(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	slices.Sort(xs)
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// percent is the error of a figure in a column of its own.
func percent(x *float64, truth float64) string {
	if x == nil {
		return fmt.Sprintf("%9s", "-")
	}
	return fmt.Sprintf("%+8.3f%%", 100*(*x/truth-1))
}

// peer prints what another client says of the same clock.
func peer(real, name string, stepS float64) error {
	const context1k, tokens = 1000, 129
	srv, url, stop, err := serve(standin.Script{Face: "vllm", Clock: standin.Clock{StepS: stepS, PrefillTokS: prefillTokS}})
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	f, err := peers.Run(ctx, real, name, peers.Ask{URL: url, Model: "standin", Prompt: context1k, Tokens: tokens, Requests: 4, Concurrency: 1})
	line := fmt.Sprintf("%-16s %8g %8d %4d %-5s  ", name, stepS*1e3, context1k, 1, "-")
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		fmt.Println(line + text)
		return nil
	}
	// Its prompts have as many tokens as it makes of them, of which the server's word is the truth.
	var prefill []float64
	for _, r := range srv.Requests() {
		if r.Generated == tokens {
			prefill = append(prefill, r.PrefillS)
		}
	}
	var s *float64
	if f.DecodeTokS != nil {
		s = new1(1 / *f.DecodeTokS)
	}
	fmt.Printf("%s%s %9s %9s %s\n", line, percent(s, stepS), "", "", percent(f.TTFTS, middle(prefill)))
	return nil
}
