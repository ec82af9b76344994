// Command twopoint measures how prefill and decode speed of LLM inference
// servers change with context length (see README.md).
package main

import (
	"context"
	"os"

	"twopoint/runner/cli"
	"twopoint/runner/deploy"
)

func main() {
	deploy.MaybeSupervise()
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
