package main

import (
	"debug/elf"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"twopoint/runner/cli"
	"twopoint/schema/load"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md")

// built is the folder of the binary as it is shipped, built once.
var built = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "twopoint-test-"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func binary(t *testing.T) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "twopoint")
}

// help is what the binary prints of a command, on stdout alone.
func help(t *testing.T, words ...string) string {
	t.Helper()
	cmd := exec.Command(binary(t), append(words, "--help")...)
	cmd.Dir = t.TempDir()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("twopoint %s --help: %v\n%s", strings.Join(words, " "), err, stderr.String())
	}
	return string(out)
}

// TestStatic: the binary runs on any Linux of its architecture.
func TestStatic(t *testing.T) {
	f, err := elf.Open(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary asks for an ELF interpreter")
		}
	}
	if libs, err := f.DynString(elf.DT_NEEDED); err == nil && len(libs) > 0 {
		t.Errorf("the binary needs shared libraries: %v", libs)
	}
	cmd := exec.Command(binary(t), "version")
	cmd.Env, cmd.Dir = []string{}, t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "twopoint "+cli.Version+" ") {
		t.Errorf("twopoint version, with an empty environment: %v\n%s", err, out)
	}
}

var commandLine = regexp.MustCompile(`(?m)^  ([a-z]+) +\S`)

// commands are the subcommands that the binary's help lists.
func commands(t *testing.T) []string {
	t.Helper()
	_, list, ok := strings.Cut(help(t), "Available Commands:\n")
	list, _, ok2 := strings.Cut(list, "\n\n")
	var names []string
	for _, m := range commandLine.FindAllStringSubmatch(list, -1) {
		if m[1] != "help" {
			names = append(names, m[1])
		}
	}
	if !ok || !ok2 || len(names) < 10 {
		t.Fatalf("the help lists only %q", names)
	}
	return names
}

// exitCodes are the codes that a program may end with; docs/cli.md describes
// each, in the words of the commands' help.
var exitCodes = map[int]string{
	cli.ExitDone: "", cli.ExitUsage: "", cli.ExitNotOK: "", cli.ExitNothing: "", cli.ExitTrouble: "", cli.ExitInterrupted: "",
	cli.ExitClaim: "a claim deviates, or a comparison exceeds its threshold",
}

const cliHead = `# The command line

Made from the program's own help: ` + "`go test . -update`" + ` rewrites this page.

* **SPEC** is a folder with a CUE package, a .cue, .yaml or .json file, or ` + "`-`" + ` for standard input.
* **RUN** is a run's folder, its id or the beginning of one, a tag, or ` + "`last`" + `.
* Data goes to stdout, progress, warnings and errors to stderr. The last line that ` + "`run`, `resume` and `extend`" + ` print on stdout is the run's folder.
* With ` + "`--json`" + ` stdout has one JSON object a line, a final error included.

## Exit codes

| code | meaning |
|---|---|
`

// TestReference keeps docs/cli.md equal to the help of every command, and the
// exit codes equal everywhere.
func TestReference(t *testing.T) {
	said := maps.Clone(exitCodes)
	sections := &strings.Builder{}
	section := func(words ...string) {
		text := help(t, words...)
		fmt.Fprintf(sections, "\n## %s\n\n```text\n%s\n```\n", strings.Join(append([]string{"twopoint"}, words...), " "), strings.TrimSpace(text))
		_, codes, _ := strings.Cut(text, "Exit codes:\n")
		codes, _, _ = strings.Cut(codes, "\n\n")
		for line := range strings.Lines(codes) {
			number, meaning, _ := strings.Cut(strings.TrimSpace(line), " ")
			code, err := strconv.Atoi(number)
			before, known := said[code]
			if meaning = strings.TrimSpace(meaning); err != nil || !known {
				t.Errorf("twopoint %s: exit code %q is not one of package cli", words, number)
			} else if before != "" && before != meaning {
				t.Errorf("twopoint %s: exit code %d is %q here and %q elsewhere", words, code, meaning, before)
			}
			said[code] = meaning
		}
	}
	section()
	for _, name := range commands(t) {
		section(name)
	}
	page := &strings.Builder{}
	page.WriteString(cliHead)
	for _, code := range slices.Sorted(maps.Keys(said)) {
		if said[code] == "" {
			t.Errorf("no command's help tells of exit code %d", code)
		}
		fmt.Fprintf(page, "| %d | %s |\n", code, said[code])
	}
	page.WriteString(sections.String())

	path := filepath.Join("docs", "cli.md")
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != page.String() {
		t.Error("docs/cli.md is not what the commands say of themselves; repair it with: go test . -update")
	}
}

var (
	makeExample = regexp.MustCompile(`\bmake((?: +[a-z][a-z-]*)+)`)
	ownExample  = regexp.MustCompile("(?:^|[&;|$(`\"])\\s*(?:\\./)?(?:bin/)?twopoint((?: +[^|&;<>#`\"]+)?)")
	longFlag    = regexp.MustCompile(`--?[a-z][a-z-]*`)
	anyFlag     = regexp.MustCompile(`^--?[a-z][a-z-]*`)
	link        = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	codeSpan    = regexp.MustCompile("`[^`\n]+`")
)

// code is the part of a Markdown text that is code: fenced or indented blocks,
// line by line, and code spans. Blocks marked as text are output.
func code(text string) (lines []string) {
	fenced, output := false, false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced, output = !fenced, strings.HasPrefix(line, "```text")
		case fenced && output:
		case fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			lines = append(lines, line)
		default:
			lines = append(lines, codeSpan.FindAllString(line, -1)...)
		}
	}
	return lines
}

// checkExamples says which commands in lines of code do not exist: targets of
// the Makefile, subcommands and their flags.
func checkExamples(t *testing.T, page string, lines []string, targets map[string]bool) (seen int) {
	t.Helper()
	known := commands(t)
	flags := map[string]map[string]bool{}
	for _, line := range lines {
		command, _, _ := strings.Cut(line, " #")
		for _, m := range makeExample.FindAllStringSubmatch(command, -1) {
			for _, target := range strings.Fields(m[1]) {
				seen++
				if !targets[target] {
					t.Errorf("%s: the Makefile has no target %q: %s", page, target, strings.TrimSpace(line))
				}
			}
		}
		for _, m := range ownExample.FindAllStringSubmatch(command, -1) {
			words := strings.Fields(m[1])
			if len(words) == 0 {
				continue
			}
			seen++
			name := words[0]
			if strings.HasPrefix(name, "-") || name == "help" {
				continue
			}
			if !slices.Contains(known, name) {
				t.Errorf("%s: no command %q: %s", page, name, strings.TrimSpace(line))
				continue
			}
			if flags[name] == nil {
				flags[name] = map[string]bool{}
				for _, f := range longFlag.FindAllString(help(t, name), -1) {
					flags[name][f] = true
				}
			}
			for _, w := range words[1:] {
				if f := anyFlag.FindString(w); f != "" && !flags[name][f] {
					t.Errorf("%s: twopoint %s has no flag %s: %s", page, name, f, strings.TrimSpace(line))
				}
			}
		}
	}
	return seen
}

// makeTargets are the targets of the Makefile.
func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllSubmatch(text, -1) {
		targets[string(m[1])] = true
	}
	return targets
}

// pages are the Markdown files of the project.
func pages(t *testing.T) (paths []string) {
	t.Helper()
	paths = []string{"README.md", "CHANGELOG.md"}
	for _, root := range []string{"docs", "experiments"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// TestPages: what the documents tell one to type exists, and their links lead
// somewhere.
func TestPages(t *testing.T) {
	targets := makeTargets(t)
	for _, page := range pages(t) {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			seen := checkExamples(t, page, code(string(text)), targets)
			if page == "README.md" && seen < 8 {
				t.Errorf("only %d commands were recognised", seen)
			}
			for _, m := range link.FindAllStringSubmatch(string(text), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
					t.Errorf("%s links to %s, which is not there", page, m[1])
				}
			}
		})
	}
}

var (
	ownSpec   = regexp.MustCompile(`twopoint (?:vet|plan|run) +(experiments/[^|&;>]*)`)
	onlyOfRun = regexp.MustCompile(` --(?:tag|note|out|time-limit)[ =]\S+| --(?:json|resolved)\b`)
)

// TestPageExperiments plans what the documents say of our own experiments, with
// the settings and selections that they show.
func TestPageExperiments(t *testing.T) {
	seen := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range code(string(text)) {
			for _, m := range ownSpec.FindAllStringSubmatch(line, -1) {
				words, _, _ := strings.Cut(m[1], "#")
				words = strings.Trim(onlyOfRun.ReplaceAllString(words, ""), "` \n")
				seen++
				cmd := exec.Command("sh", "-c", `exec "$0" plan `+words, binary(t)) // sh, for the quotes
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %s: %v\n%s", page, strings.TrimSpace(line), err, out)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("the documents show none of our own experiments")
	}
}

// TestHelpExamples: what the help tells one to type exists.
func TestHelpExamples(t *testing.T) {
	targets := makeTargets(t)
	for _, name := range append(commands(t), "") {
		words := strings.Fields(name)
		_, examples, ok := strings.Cut(help(t, words...), "Examples:\n")
		if !ok {
			continue
		}
		examples, _, _ = strings.Cut(examples, "\n\n")
		lines := strings.Split(examples, "\n")
		if checkExamples(t, "twopoint "+name, lines, targets) == 0 {
			t.Errorf("twopoint %s: no command was recognised in %q", name, examples)
		}
	}
}

// TestExamplesAreRecognised: a check that recognises nothing would pass.
func TestExamplesAreRecognised(t *testing.T) {
	text := "Type `twopoint vet SPEC`.\n\n    make demo bench  # and make tea\n\n```console\n$ ./twopoint plan a && ./bin/twopoint run a --tag b\n$ scp bin/twopoint box:\n```\n```text\ntwopoint measures\n```\n"
	var makes, own []string
	for _, line := range code(text) {
		command, _, _ := strings.Cut(line, " #")
		for _, m := range makeExample.FindAllStringSubmatch(command, -1) {
			makes = append(makes, strings.Fields(m[1])...)
		}
		for _, m := range ownExample.FindAllStringSubmatch(command, -1) {
			own = append(own, strings.Join(strings.Fields(m[1]), " "))
		}
	}
	if want := []string{"demo", "bench"}; !slices.Equal(makes, want) {
		t.Errorf("targets %q, want %q", makes, want)
	}
	if want := []string{"vet SPEC", "plan a", "run a --tag b"}; !slices.Equal(own, want) {
		t.Errorf("commands %q, want %q", own, want)
	}
}

// TestReadmeSpec: each spec that the README shows loads as it stands.
func TestReadmeSpec(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	specs := regexp.MustCompile("(?ms)^```cue\n(.*?)^```").FindAllSubmatch(text, -1)
	if len(specs) == 0 {
		t.Fatal("the README shows no spec")
	}
	for _, m := range specs {
		_, list := load.Load("-", load.Options{Stdin: strings.NewReader(string(m[1])), ConfigDir: t.TempDir()})
		if list.HasErrors() {
			t.Errorf("%v\n%s", list, m[1])
		}
	}
}
