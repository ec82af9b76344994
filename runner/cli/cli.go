// Package cli is the command line: it parses words into calls of the stages and
// renders what they return. One file a command. Data goes to stdout, everything
// else to stderr; a command that was given --json writes JSON lines. Nothing
// here measures, judges or computes a figure.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"twopoint/schema/diag"
)

// Exit codes of every command (design.md 12; docs/cli.md).
const (
	ExitDone        = 0   // everything that was asked for
	ExitClaim       = 1   // a claim deviates, or a comparison exceeds its threshold
	ExitUsage       = 2   // the spec or the command line is wrong
	ExitNotOK       = 3   // a point is not ok
	ExitNothing     = 4   // nothing could be measured
	ExitTrouble     = 5   // twopoint or the machine failed: disk, permissions, a bug
	ExitInterrupted = 130 // ^C or TERM
)

// Version of the tool. The linker may set it (-X twopoint/runner/cli.Version=…).
var Version = "0.1.0-dev"

// defaultRoot is where runs are looked for unless --out says otherwise.
const defaultRoot = "runs"

const exitHelp = `
Exit codes:
  0    done
  2    the spec or the command line is wrong
  3    a point is not ok (failed, invalid, unresolved, skipped or pending)
  4    nothing could be measured
  5    twopoint or the machine failed (disk, permissions, bug)
  130  interrupted`

const claimExits = `
Exit codes:
  0    done
  1    a claim deviates, or a comparison exceeds its threshold
  2    the spec or the command line is wrong
  5    twopoint or the machine failed (disk, permissions, bug)`

// app is one call of the program: its streams and what every command shares.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	root           string // folder of runs
	json           bool
}

// exitError carries an exit code; its message was printed already if err is nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exit(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// trouble is an error of the machine's or our own; nil stays nil.
func trouble(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{ExitTrouble, err}
}

// Main runs the program with arguments args (without its name) and returns the
// exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: inert{stdout}, stderr: inert{stderr}}
	cmd := a.command()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	code := codeOf(err)
	if silent := new(exitError); err != nil && !(errors.As(err, &silent) && silent.err == nil) {
		a.sayError(err, code)
	}
	return code
}

// codeOf is the exit code that an error stands for. Cobra's own errors are
// about the command line.
func codeOf(err error) int {
	var ee *exitError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &ee):
		return ee.code
	}
	return ExitUsage
}

// sayError prints the final error, as JSON where that was asked for.
func (a *app) sayError(err error, code int) {
	if a.json {
		b, _ := json.Marshal(map[string]any{"type": "error", "error": err.Error(), "exit": code})
		fmt.Fprintf(a.stdout, "%s\n", b)
		return
	}
	for line := range strings.Lines(strings.TrimRight(err.Error(), "\n")) {
		fmt.Fprintf(a.stderr, "twopoint: %s\n", strings.TrimRight(line, "\n"))
	}
}

func (a *app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "twopoint",
		Short: "Reproducible experiments on LLM inference: prefill and decode speed over context",
		Long: `twopoint measures how prefill and decode speed of an LLM server change with
context length, for the server configurations that a CUE spec declares, and
keeps the result as Parquet tables.`,
		Example: `  twopoint init my-sweep            # write a spec to start from
  twopoint plan my-sweep            # what would be done
  twopoint run my-sweep             # do it
  twopoint show last                # look at it again`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&a.root, "out", defaultRoot, "folder of runs")
	cmd.AddCommand(a.initCommand(), a.vetCommand(), a.planCommand(), a.runCommand(), a.resumeCommand(), a.extendCommand(),
		a.lsCommand(), a.showCommand(), a.checkCommand(), a.compareCommand(), a.reportCommand(), a.exportCommand(), a.tablesCommand(), a.serveCommand(), a.doctorCommand(), a.versionCommand())
	cmd.InitDefaultCompletionCmd()
	return cmd
}

// report prints diagnostics, one line each, and returns the usage error where
// any is one.
func (a *app) report(list diag.List) error {
	list.Sort()
	for _, d := range list {
		if a.json {
			b, _ := json.Marshal(map[string]any{"type": "diagnostic", "severity": d.Severity.String(), "file": d.Pos.File, "line": d.Pos.Line, "column": d.Pos.Column,
				"path": d.Path, "value": d.Value, "rule": d.Rule, "suggest": d.Suggest, "text": d.String()})
			fmt.Fprintf(a.stdout, "%s\n", b)
			continue
		}
		fmt.Fprintf(a.stderr, "%s: %s\n", d.Severity, d)
	}
	if list.HasErrors() {
		return &exitError{code: ExitUsage}
	}
	return nil
}

// runArgs completes any number of RUN.
func (a *app) runArgs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return a.runNames(), cobra.ShellCompDirectiveDefault
}

// runArg completes RUN: ids, tags and "last".
func (a *app) runArg(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.runNames(), cobra.ShellCompDirectiveDefault
}
