package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"twopoint/runner/serve/kv"
)

// Flags declares the server's flags on f; parsing fills o, whose values are the
// defaults.
func Flags(f *pflag.FlagSet, o *Options) {
	f.StringVar(&o.ModelPath, "model-path", o.ModelPath, "model preset: tiny-gqa, tiny-mla or small-gqa; --model is the same")
	f.StringVar(&o.ServedModelName, "served-model-name", o.ServedModelName, "name in /v1 (default the model path)")
	f.Uint64Var(&o.RandomSeed, "random-seed", o.RandomSeed, "seed of the weights")
	f.StringVar(&o.Host, "host", o.Host, "address to listen on")
	f.IntVar(&o.Port, "port", o.Port, "port to listen on")
	f.IntVar(&o.ContextLength, "context-length", o.ContextLength, "most tokens of prompt and output together")
	f.IntVar(&o.PageSize, "page-size", o.PageSize, "tokens in a page of the KV cache")
	f.IntVar(&o.MaxTotalTokens, "max-total-tokens", o.MaxTotalTokens, "tokens in the KV cache pool")
	f.IntVar(&o.MaxRunning, "max-running-requests", o.MaxRunning, "requests computed at once")
	f.IntVar(&o.ChunkedPrefill, "chunked-prefill-size", o.ChunkedPrefill, "most prompt tokens in a step; -1 is no limit")
	f.BoolVar(&o.DisableRadixCache, "disable-radix-cache", o.DisableRadixCache, "compute every prompt anew")
	f.BoolVar(&o.EnableCacheReport, "enable-cache-report", o.EnableCacheReport, "report cached tokens in the usage of /v1/completions")
	f.IntVar(&o.StreamInterval, "stream-interval", o.StreamInterval, "tokens in a streamed chunk after the first")
	f.BoolVar(&o.Incremental, "incremental-streaming-output", o.Incremental, "stream only what is new on /generate")
	f.StringVar(&o.Kernel, "kernel", o.Kernel, "decode attention kernel")
	f.IntVar(&o.Splits, "splits", o.Splits, "parts of the KV range in decode; 0 lets the kernel choose")
	f.IntVar(&o.Threads, "threads", o.Threads, "threads that compute (default one for each processor)")
	f.Var((*placementFlag)(&o.Placement), "placement", "order in which free pages are handed out: identity or shuffled")
	f.Var((*sizeFlag)(&o.MemLimit), "mem-limit", "address space that the server may map beyond what it has at start, such as 64Mi; 0 is no limit")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "model" {
			name = "model-path"
		}
		return pflag.NormalizedName(name)
	})
}

// Run is the serve command: it parses args, answers requests until ctx ends or
// SIGTERM or SIGINT arrives, and returns the exit status: 0 after a graceful
// end, 1 if the server could not start or go on, 2 for a wrong command line.
//
// When the system refuses memory for the KV cache, Run logs it and ends the
// whole process with SIGKILL, as SGLang does on a failed child.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := Defaults()
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.SortFlags = false
	Flags(f, &o)
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "Serve a small random-weight model over SGLang's and OpenAI's HTTP interfaces.\n\n%s", f.FlagUsages())
		return 0
	case err != nil:
		return reject(stderr, err)
	case f.NArg() > 0:
		return reject(stderr, fmt.Errorf("unrecognized arguments: %s", strings.Join(f.Args(), " ")))
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := listen(ctx, o, stderr); err != nil {
		fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// reject prints what is wrong with the command line, in argparse's words where
// others look for them, and returns the exit status for it.
func reject(stderr io.Writer, err error) int {
	var unknown *pflag.NotExistError
	message := err.Error()
	if errors.As(err, &unknown) {
		message = "unrecognized arguments: " + strings.TrimPrefix(message, "unknown flag: ")
	}
	fmt.Fprintf(stderr, "error: %s\n", message)
	return 2
}

// listen serves until ctx ends. The port opens once the model has answered.
func listen(ctx context.Context, o Options, stderr io.Writer) error {
	s, err := New(o, stderr)
	if err != nil {
		return err
	}
	defer s.Close()
	if o.MemLimit > 0 {
		if err := limitMemory(o.MemLimit); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := s.Loop(ctx)
		var refused *kv.MapError
		if errors.As(err, &refused) {
			fmt.Fprintf(stderr, "out of memory: %v\n", refused)
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
		}
		if err != nil {
			s.log.Printf("Scheduler hit an exception: %v", err)
		}
		return err
	})
	group.Go(func() error {
		if err := s.warm(ctx); err != nil {
			return err
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
		if err != nil {
			return err
		}
		web := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: s.log}
		group.Go(func() error {
			<-ctx.Done()
			// Loop aborts what is at work, so handlers end at once; a client that
			// does not read is cut off.
			last, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			if web.Shutdown(last) != nil {
				return web.Close()
			}
			return nil
		})
		s.log.Printf("Listening on http://%s", l.Addr())
		s.log.Print("The server is fired up and ready to roll!")
		if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return group.Wait()
}

// headroom is the heap that the Go runtime reserves before the limit starts to
// count, so that memory runs out in the KV cache and not somewhere else.
const headroom = 64 << 20

// limitMemory allows the process bytes of address space beyond what it has now.
func limitMemory(bytes int64) error {
	reserve := make([]byte, headroom)
	reserve[0] = 1
	runtime.KeepAlive(reserve)
	runtime.GC()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	debug.SetMemoryLimit(int64(heap.Sys-heap.HeapSys+heap.HeapInuse) + headroom/2) // collect before the reserve is used up
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		return fmt.Errorf("limit memory: /proc/self/statm: %w", err)
	}
	limit := pages*uint64(os.Getpagesize()) + uint64(bytes)
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("limit address space to %d bytes: %w", limit, err)
	}
	return nil
}

type placementFlag kv.Placement

func (p *placementFlag) String() string { return string(*p) }
func (p *placementFlag) Type() string   { return "order" }
func (p *placementFlag) Set(v string) error {
	if v := kv.Placement(v); v != kv.Identity && v != kv.Shuffled {
		return fmt.Errorf("invalid choice: neither %s nor %s", kv.Identity, kv.Shuffled)
	}
	*p = placementFlag(v)
	return nil
}

type sizeFlag int64

func (b *sizeFlag) String() string { return strconv.FormatInt(int64(*b), 10) }
func (b *sizeFlag) Type() string   { return "size" }
func (b *sizeFlag) Set(v string) error {
	number := strings.TrimRight(v, "KMGi")
	factor, ok := map[string]int64{"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[v[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("not a size: write bytes, or a number with K, M, G (powers of 1000) or Ki, Mi, Gi (of 1024)")
	}
	*b = sizeFlag(n * factor)
	return nil
}
