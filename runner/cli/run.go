package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"twopoint/results/durable"
	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/run"
	"twopoint/results/table"
	"twopoint/runner"
	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
	"twopoint/runner/telemetry"
	"twopoint/schema/diag"
	"twopoint/schema/load"
	"twopoint/schema/plan"
)

// stretchFlags are the flags of commands that measure.
type stretchFlags struct {
	only  onlyFlags
	limit time.Duration
}

func (f *stretchFlags) add(a *app, cmd *cobra.Command) {
	f.only.add(cmd)
	cmd.Flags().Var((*limitFlag)(&f.limit), "time-limit", "stop cleanly after this time; points not measured stay pending")
	cmd.Flags().BoolVar(&a.json, "json", false, "print the events as JSON lines on stdout instead of the summary")
}

// limitFlag is a positive duration.
type limitFlag time.Duration

func (f *limitFlag) String() string { return time.Duration(*f).String() }
func (f *limitFlag) Type() string   { return "duration" }
func (f *limitFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return errors.New("a time above 0, such as 90s, 20m or 1h30m")
	}
	*f = limitFlag(d)
	return nil
}

func (a *app) runCommand() *cobra.Command {
	var spec specFlags
	var stretch stretchFlags
	var tag, note, against string
	var how compareFlags
	cmd := &cobra.Command{
		Use:   "run SPEC",
		Short: "Measure what a spec declares, into a new run folder",
		Long: `Plan the spec, deploy each variant, measure its points and tear it down. A server
that dies is a row, not an end. Progress goes to stderr; stdout gets the summary
and, as its last line, the run's folder. ^C ends every server that was started
and leaves a run that "twopoint resume" goes on with.`,
		Example: `  twopoint run experiments/quickstart
  twopoint run spec.cue --set method.two_point.repeats.min=3 --tag quick
  twopoint run experiments/quickstart --only variant=split --only context=512..2048
  twopoint run - < spec.cue
` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			loaded, p, list := a.planned(args[0], spec)
			if err := a.report(refuse(loaded, list)); err != nil {
				return err
			}
			chosen, only, err := stretch.only.selection(p)
			if err != nil {
				return err
			}
			if len(p.Points) == 0 {
				return exit(ExitUsage, "%s: the spec has no point to measure: give it a sweep and at least one server", args[0])
			}
			if err := secretsSet(p, chosen); err != nil {
				return err
			}
			var other *table.Tables
			if against != "" { // found before this run is the last one
				if _, other, err = a.read(against); err != nil {
					return err
				}
			}
			s := session{app: a, plan: p, against: other, againstName: against, how: how, chosen: chosen, only: only, limit: stretch.limit, state: event.RunStart}
			id := run.NewID(time.Now())
			files, err := a.runFiles(cmd.Context(), loaded, p)
			if err != nil {
				return trouble(err)
			}
			if s.dir, err = run.Create(a.root, p.Experiment, id, files); err != nil {
				return trouble(err)
			}
			for code, text := range map[string]string{run.NoteTag: tag, run.NoteText: note} {
				if text != "" {
					if err := s.dir.AddNote(code, text); err != nil {
						return trouble(err)
					}
				}
			}
			return s.measure(cmd.Context())
		},
	}
	spec.add(cmd)
	stretch.add(a, cmd)
	cmd.Flags().StringVar(&tag, "tag", "", "a name for the run, by which other commands find it")
	cmd.Flags().StringVar(&against, "against", "", "compare with this run at the end, as \"twopoint compare\" does")
	how.add(cmd)
	cmd.Flags().StringVar(&note, "note", "", "a note that is kept with the run")
	return cmd
}

// secretsSet tells which secrets of the variants to be measured are not in the
// environment, before anything is started.
func secretsSet(p plan.Plan, chosen func(plan.Point) bool) error {
	needed := map[string]bool{}
	for _, pt := range restrict(p, chosen).Points {
		needed[pt.Variant] = true
	}
	var missing []string
	for _, v := range p.Variants {
		for name, e := range v.Env {
			if _, ok := os.LookupEnv(e.Secret); needed[v.Name] && e.Secret != "" && !ok {
				missing = append(missing, fmt.Sprintf("variants.%s.env.%s: the secret %s is not set in the environment", v.Name, name, e.Secret))
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return exit(ExitUsage, "%s", strings.Join(missing, "\n"))
}

// refuse makes what this build cannot do an error: looking at such a spec is
// fine, running it is not.
func refuse(spec *load.Loaded, list diag.List) diag.List {
	if spec == nil || list.HasErrors() {
		return list
	}
	cannot := map[string]bool{}
	for _, d := range spec.Unsupported() {
		cannot[d.String()] = true
	}
	for i := range list {
		if cannot[list[i].String()] {
			list[i].Severity = diag.Error
		}
	}
	return list
}

// runFiles are the first files of a run: the spec as read with its state in
// git, the files that variants need, the plan and the machine's facts.
func (a *app) runFiles(ctx context.Context, spec *load.Loaded, p plan.Plan) (map[string]run.File, error) {
	files := map[string]run.File{}
	for name, content := range spec.SourceFiles {
		files[filepath.Join("spec", filepath.FromSlash(strings.TrimPrefix(name, "/")))] = run.File{Content: content}
	}
	if err := addTrees(files, spec, p); err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(filepath.Join(spec.Dir, narrative)); err == nil { // an experiment need not have one
		files[filepath.Join("spec", narrative)] = run.File{Content: text[:min(len(text), maxSpecFile)]}
	}
	for name, args := range map[string][]string{
		"git-commit.txt": {"rev-parse", "HEAD"}, "git-diff.txt": {"diff", "HEAD", "--no-ext-diff", "--", "."},
	} {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", spec.Dir}, args...)...)
		if out, err := cmd.Output(); err == nil && len(out) > 0 { // a spec outside git has none
			files[filepath.Join("spec", name)] = run.File{Content: out[:min(len(out), 4<<20)]}
		}
	}
	text, err := p.Encode()
	if err != nil {
		return nil, err
	}
	env, err := json.MarshalIndent(telemetry.Observe(ctx, Version), "", " ")
	files["plan.json"], files["environment.json"] = run.File{Content: text}, run.File{Content: append(env, '\n')}
	return files, err
}

// addTrees copies what the plan's variants and prompt need of the spec's folder.
func addTrees(files map[string]run.File, spec *load.Loaded, p plan.Plan) error {
	var names []string
	for _, v := range p.Variants {
		names = append(names, v.Files...)
	}
	if p.Prompt.File != "" {
		names = append(names, p.Prompt.File)
	}
	for _, name := range names {
		if err := addTree(files, spec.Dir, name); err != nil {
			return err
		}
	}
	return nil
}

// addTree copies a file or a folder of the spec's into the run's: content,
// whether it can be executed, and symbolic links as they are, which is what the
// identity of a variant is made of.
func addTree(files map[string]run.File, dir, name string) error {
	return filepath.WalkDir(filepath.Join(dir, name), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var f run.File
		switch {
		case e.Type().IsRegular():
			f.Content, err = os.ReadFile(path)
			if info, infoErr := e.Info(); infoErr == nil {
				f.Executable = info.Mode()&0o111 != 0
			}
		case e.Type()&fs.ModeSymlink != 0:
			f.Link, err = os.Readlink(path)
		default:
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || !filepath.IsLocal(rel) {
			return fmt.Errorf("%s lies outside the spec's folder %s and cannot be kept with the run", path, dir)
		}
		files[filepath.Join("spec", rel)] = f
		return nil
	})
}

func (a *app) resumeCommand() *cobra.Command {
	var stretch stretchFlags
	var retry string
	cmd := &cobra.Command{
		Use:   "resume RUN",
		Short: "Go on with a run: measure its pending points in the same folder",
		Long: `Go on where a run stopped, for whatever reason: complete pairs are kept, torn
ones are marked cancelled and measured again. Failed and skipped points are done
unless --retry failed asks for them. RUN is a folder, an id, a tag or "last".`,
		Example: `  twopoint resume last
  twopoint resume 20260301T120000Z-3fa9c1 --retry failed
` + exitHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if retry != "" && retry != "failed" {
				return exit(ExitUsage, "--retry %s: the only thing that can be retried is \"failed\"", retry)
			}
			s, err := a.open(args[0], stretch)
			if err != nil {
				return err
			}
			s.state, s.retry = event.RunResume, retry == "failed"
			return s.measure(cmd.Context())
		},
	}
	stretch.add(a, cmd)
	cmd.Flags().StringVar(&retry, "retry", "", "also measure points that ended as `failed`, and those skipped for them")
	return cmd
}

func (a *app) extendCommand() *cobra.Command {
	var spec specFlags
	var stretch stretchFlags
	var from string
	cmd := &cobra.Command{
		Use:   "extend RUN",
		Short: "Add points to a run and measure them in the same folder",
		Long: `Evaluate the run's own spec again with --set (or another spec with --spec) and add
what it has beyond the run's plan: contexts, variants. What the run's points were
measured under must not change.`,
		Example: `  twopoint extend last --set 'sweep.context=[512, 1024, 2048, 4096, 8192]'
  twopoint extend last --spec experiments/quickstart
` + exitHelp,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.runArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(args[0], stretchFlags{limit: stretch.limit})
			if err != nil {
				return err
			}
			if from == "" {
				if from, err = specOf(s.dir); err != nil {
					return trouble(err)
				}
			}
			loaded, later, list := a.planned(from, spec)
			if err := a.report(refuse(loaded, list)); err != nil {
				return err
			}
			merged, list := plan.Extend(s.plan, later)
			if err := a.report(list); err != nil {
				return err
			}
			if s.chosen, s.only, err = stretch.only.selection(merged); err != nil {
				return err
			}
			if err := s.lock(); err != nil { // before the plan of a run that goes on is changed
				return err
			}
			defer s.journal.Close()
			files := map[string]run.File{}
			if err := addTrees(files, loaded, later); err != nil {
				return trouble(err)
			}
			if err := s.dir.Add(files); errors.Is(err, fs.ErrExist) {
				return exit(ExitUsage, "%w; rename it, or start a new run", err)
			} else if err != nil {
				return trouble(err)
			}
			text, err := merged.Encode()
			if err == nil {
				err = durable.WriteBytes(s.dir.Path("plan.json"), text)
			}
			if err != nil {
				return trouble(err)
			}
			s.plan, s.state = merged, event.RunExtend
			return s.measure(cmd.Context())
		},
	}
	spec.add(cmd)
	stretch.add(a, cmd)
	cmd.Flags().StringVar(&from, "spec", "", "take the new points from this `SPEC` instead of the run's own")
	return cmd
}

// specOf is the run's copy of its spec as an argument for loading.
func specOf(dir run.Dir) (string, error) {
	entries, err := os.ReadDir(dir.Path("spec"))
	if err != nil {
		return "", err
	}
	var data []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".cue":
			return dir.Path("spec"), nil
		case ".yaml", ".yml", ".json":
			data = append(data, dir.Path("spec", e.Name()))
		}
	}
	if len(data) != 1 {
		return "", fmt.Errorf("%s holds no single spec; name one with --spec", dir.Path("spec"))
	}
	return data[0], nil
}

// open finds a run for another stretch of work.
func (a *app) open(ref string, f stretchFlags) (session, error) {
	dir, err := a.find(ref)
	if err != nil {
		return session{}, err
	}
	p, err := dir.Plan()
	if err != nil {
		return session{}, trouble(err)
	}
	chosen, only, err := f.only.selection(p)
	return session{app: a, dir: dir, plan: p, chosen: chosen, only: only, limit: f.limit}, err
}

// session is one stretch of work on a run.
type session struct {
	*app
	dir    run.Dir
	plan   plan.Plan
	chosen func(plan.Point) bool
	only   string
	limit  time.Duration
	state  string // start | resume | extend
	retry  bool

	against     *table.Tables // of a run to compare with; nil: none
	againstName string
	how         compareFlags

	env     *run.Environment
	history *history.History
	journal *event.Journal
	view    view
	written time.Time     // of the tables
	cost    time.Duration // of writing them
}

// tablesEvery is how often tables are refreshed at most; a refresh never takes
// more than a twentieth of the time.
const tablesEvery = 5 * time.Second

// lock opens the journal, which one process can write.
func (s *session) lock() (err error) {
	order := s.plan.Orders[0].ID
	if s.journal, err = event.Open(s.dir.Journal(order), order); err != nil {
		return trouble(err)
	}
	return nil
}

// measure executes the plan's order and reports.
func (s *session) measure(ctx context.Context) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if s.journal == nil {
		if err := s.lock(); err != nil {
			return err
		}
		defer s.journal.Close()
	}
	if err := durable.Sweep(string(s.dir)); err != nil { // what a killed stretch left
		return trouble(err)
	}
	events, err := s.dir.Events()
	if err != nil {
		return trouble(err)
	}
	if s.env, err = s.dir.Environment(); err != nil {
		return trouble(err)
	}
	s.history = history.New(s.plan, events)
	if s.retry {
		if err := s.reopen(); err != nil {
			return trouble(err)
		}
	}
	agent, err := s.agent()
	if err != nil {
		return trouble(err)
	}
	s.view = s.newView(s.history, s.chosen)
	reason, err := agent.Run(ctx, s.state)
	s.view.close()
	os.Remove(agent.WorkDir) // stays where servers or builds left something in it
	tables, tablesErr := s.refresh()
	if err = errors.Join(err, tablesErr); err != nil {
		return exit(ExitTrouble, "%w\nthe run is in %s; \"twopoint resume %s\" goes on with it", err, s.dir, s.ref(s.dir))
	}
	if _, err := s.page(s.dir, tables, ""); err != nil {
		return exit(ExitTrouble, "write the page of the run: %w\nits tables are whole; \"twopoint report %s\" tries again", err, s.ref(s.dir))
	}
	verdict := s.verdict(reason, tables)
	if s.json {
		b, _ := json.Marshal(map[string]any{"type": "result", "run_id": s.dir.ID(), "folder": string(s.dir), "reason": reason, "exit": codeOf(verdict)})
		fmt.Fprintf(s.stdout, "%s\n", b)
	} else {
		s.summary(s.dir, tables)
		if s.against != nil {
			fmt.Fprintln(s.stdout)
			if err := s.compare(s.againstName, "this run", s.against, tables, s.how); verdict == nil {
				verdict = err
			}
		}
		fmt.Fprintln(s.stdout, s.dir)
	}
	return verdict
}

// reopen forgets failures and skips, so that their points are measured again.
func (s *session) reopen() error {
	var again []event.Event
	for _, p := range s.history.Points() {
		if (p.Failure != nil || p.Skip != nil) && (s.chosen == nil || s.chosen(p.Point)) {
			again = append(again, event.Event{Type: event.TypePoint, Point: &event.Point{PointID: p.ID, State: event.PointRetry}})
		}
	}
	again, err := s.journal.Append(again...)
	for _, e := range again {
		s.history.Add(e)
	}
	return err
}

func (s *session) agent() (*runner.Agent, error) {
	work, err := s.plan.WorkOrder(s.plan.Orders[0].ID, s.dir.ID())
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find our own program: %w", err)
	}
	root, err := filepath.Abs(string(s.dir))
	if err != nil {
		return nil, err
	}
	a := &runner.Agent{
		Order: work, History: s.history, Journal: s.journal, Engine: engines.Lookup, Self: self, Version: Version,
		LogPath: func(id string) string { return run.Dir(root).Log(id) },
		Files:   filepath.Join(root, "spec"), WorkDir: filepath.Join(root, "work"), Secret: os.LookupEnv,
		Selected: s.chosen, Only: s.only, After: s.after,
		Monitor: telemetry.NewMonitor(new(telemetry.NvidiaSMI)),
	}
	if err := os.MkdirAll(a.WorkDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the servers' working folder: %w", err)
	}
	// For tests of servers that hang: nobody waits five minutes in one.
	if d, err := time.ParseDuration(os.Getenv("TWOPOINT_TEST_NO_TOKEN")); err == nil {
		a.NoToken = engine.NoToken{Base: d}
	}
	if s.limit != 0 {
		a.Deadline = time.Now().Add(s.limit)
	}
	if name := s.plan.Prompt.File; name != "" {
		text, err := os.ReadFile(filepath.Join(a.Files, name))
		if err != nil {
			return nil, fmt.Errorf("read the prompt file: %w", err)
		}
		a.Prompt = string(text)
	}
	return a, nil
}

// after shows an event that is on disk and in the history, and refreshes the
// tables where that is due. It runs between requests, so that neither costs a
// timed one anything.
func (s *session) after(e event.Event) error {
	s.view.event(e)
	ended := e.Type == event.TypeRepeat || e.Type == event.TypePoint || e.Type == event.TypeFailure
	if since := time.Since(s.written); !ended || since < tablesEvery || since < 20*s.cost {
		return nil
	}
	_, err := s.refresh()
	return err
}

// refresh derives the tables from the history and writes them.
func (s *session) refresh() (*table.Tables, error) {
	began := time.Now()
	t := table.Derive(s.dir.ID(), s.history, s.env)
	err := t.Write(s.dir)
	s.written, s.cost = time.Now(), time.Since(began)
	return t, err
}

// verdict is the exit code of a stretch.
func (s *session) verdict(reason string, t *table.Tables) error {
	if reason == event.EndInterrupted {
		if !s.json {
			fmt.Fprintf(s.stderr, "twopoint: interrupted; \"twopoint resume %s\" goes on\n", s.ref(s.dir))
		}
		return &exitError{code: ExitInterrupted}
	}
	ok, wanted := 0, 0
	for i, p := range s.plan.Points {
		if s.chosen != nil && !s.chosen(p) {
			continue
		}
		wanted++
		if t.Points[i].Status == "ok" {
			ok++
		}
	}
	switch {
	case ok == wanted:
		return nil
	case ok == 0:
		return &exitError{code: ExitNothing}
	}
	return &exitError{code: ExitNotOK}
}
