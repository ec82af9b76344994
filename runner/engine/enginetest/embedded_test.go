package enginetest_test

import (
	"context"
	"io"
	"net/http/httptest"
	"sync"
	"testing"

	"twopoint/runner/engine/enginetest"
	"twopoint/runner/serve"
	"twopoint/schema"
)

// embedded runs the embedded server in this process.
func embedded(t *testing.T, change func(*serve.Options)) enginetest.Server {
	t.Helper()
	o := serve.Defaults()
	o.ContextLength, o.MaxTotalTokens, o.EnableCacheReport = 2048, 4096, true
	change(&o)
	s, err := serve.New(o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := s.Loop(ctx); err != nil {
			t.Errorf("loop: %v", err)
		}
	})
	web := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		cancel()
		loop.Wait()
		web.Close()
		s.Close()
	})
	return enginetest.Server{URL: web.URL, Variant: schema.Variant{ModelPath: o.ModelPath}}
}

func TestEmbeddedServer(t *testing.T) {
	for name, change := range map[string]func(*serve.Options){
		"cumulative":  func(*serve.Options) {},
		"incremental": func(o *serve.Options) { o.Incremental = true },
		"interval":    func(o *serve.Options) { o.StreamInterval = 4 },
		"paged":       func(o *serve.Options) { o.PageSize = 16; o.ModelPath = "tiny-mla" },
	} {
		for _, e := range []string{"twopoint", "sglang", "openai"} {
			t.Run(name+"/"+e, func(t *testing.T) {
				s := embedded(t, change)
				enginetest.Run(t, adapter(t, e), func(*testing.T) enginetest.Server { return s })
			})
		}
	}
}
