// Standin is the scripted inference server as a program, for trying things by
// hand and for being deployed by twopoint in the place of a real one:
//
//	standin --face vllm --port 8000 --script '{"stream": {"end": "reset", "cut": 5}}'
//
// --script is JSON or the name of a file that holds it; package standin tells
// what it can say. Flags that an adapter adds are taken and left aside. GET
// /standin/requests tells what the requests so far really took.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"twopoint/test/standin"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "standin: error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "keep" {
		return keep(args[1])
	}
	var script standin.Script
	face, host, port := "", "127.0.0.1", "30000"
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "-h", "--help":
			fmt.Println("standin --face sglang|vllm|openai|llamacpp|ollama|trtllm [--host ADDRESS] [--port 30000] [--script JSON-OR-FILE]\nGET /standin/requests tells what the requests so far really took; go doc twopoint/test/standin Script tells what a script can say.")
			return nil
		case "--face":
			face = value
		case "--host", "--server-name":
			host = value
		case "--port", "--server-port":
			port = value
		case "--script":
			text := []byte(value)
			if !strings.HasPrefix(strings.TrimSpace(value), "{") {
				var err error
				if text, err = os.ReadFile(value); err != nil {
					return err
				}
			}
			if err := json.Unmarshal(text, &script); err != nil {
				return fmt.Errorf("--script: %w", err)
			}
		}
	}
	if face != "" {
		script.Face = face
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	life := script.Life
	if life.Lock != "" {
		if err := lock(life.Lock); err != nil {
			return err
		}
	}
	if life.ExitAtS > 0 {
		status := 1
		if life.Exit != nil {
			status = *life.Exit
		}
		time.AfterFunc(time.Duration(life.ExitAtS*float64(time.Second)), func() {
			if life.LogLine != "" {
				fmt.Fprintln(os.Stderr, life.LogLine)
			}
			os.Exit(status)
		})
		script.Life.Exit, script.Life.LogLine = nil, "" // not by a request
	}
	loaded := make(chan struct{})
	srv := standin.New(script, os.Stderr)
	go func() {
		defer close(loaded)
		load := time.Duration(life.LoadS * float64(time.Second))
		for i := range 10 {
			if life.LoadLog != "" {
				fmt.Fprintf(os.Stderr, "%s %d0 %%\n", life.LoadLog, i)
			}
			time.Sleep(load / 10)
		}
	}()
	early := life.Listen == "early" || script.Face == "llamacpp" || script.Face == "ollama"
	if !early {
		select {
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "listening on", listener.Addr())
	return srv.Serve(ctx, listener)
}

// lock leaves a process behind that keeps the file of that name: in a session of
// its own, deaf to TERM. It fails where another process keeps it already.
func lock(name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "keep", name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var b [1]byte
	if _, err := out.Read(b[:]); err != nil || b[0] != '+' {
		return fmt.Errorf("the memory is in use: %s is locked", name)
	}
	return nil
}

// keep holds a lock on a file until the process is killed.
func keep(name string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.New(name + " is locked")
	}
	os.Stdout.WriteString("+")
	os.Stdout.Close()
	for {
		time.Sleep(time.Hour)
	}
}
