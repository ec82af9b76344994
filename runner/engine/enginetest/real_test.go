//go:build real

package enginetest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"net"

	"twopoint/runner/engine"
	"twopoint/runner/engine/enginetest"
	"twopoint/schema"
	"twopoint/test/gguf"
)

// TestRealLlamaServer starts the llama-server that test/real/setup.sh
// installed, with the command line that the adapter makes, and tries both
// adapters that speak to it.
//
//	test/real/setup.sh && go test -tags real ./runner/engine/enginetest -run Real
func TestRealLlamaServer(t *testing.T) {
	binary := os.Getenv("TWOPOINT_LLAMA_SERVER")
	if binary == "" {
		binary = "../../../.real/bin/llama-server"
	}
	binary, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := gguf.Small()
	m.Name = "tiny"
	f, err := os.Create(filepath.Join(dir, "tiny.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()

	v := schema.Variant{
		Engine: "llamacpp", ModelPath: f.Name(), ContextLength: 2048, Command: []string{binary},
		Args: map[string]any{"fit": false, "cache-ram": 0, "flash-attn": "on", "webui": false, "threads": 1},
	}
	argv, env, err := adapter(t, "llamacpp").Args(v, "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	for i := range argv {
		argv[i] = strings.ReplaceAll(argv[i], "{workdir}", dir)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("no llama-server, run test/real/setup.sh first: %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%q\n%s", argv, log.String())
		}
	})
	server := enginetest.Server{URL: "http://127.0.0.1:" + strconv.Itoa(port), Variant: v}
	c := enginetest.Client(t, server.URL, "", engine.Limits{})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := adapter(t, "llamacpp").Ready(t.Context(), c, v)
		if err == nil {
			break
		}
		if !errors.Is(err, engine.ErrNotYet) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"llamacpp", "openai"} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, adapter(t, name), func(*testing.T) enginetest.Server { return server })
		})
	}
}
