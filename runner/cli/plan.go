package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"twopoint/runner/deploy"
	"twopoint/runner/engine/engines"
	"twopoint/schema"
	"twopoint/schema/plan"
)

func (a *app) planCommand() *cobra.Command {
	var f specFlags
	var only onlyFlags
	cmd := &cobra.Command{
		Use:   "plan SPEC",
		Short: "Show what a run would do: points, requests, exact server command lines",
		Long: `Resolve a spec into everything that would be done, and touch nothing. Ports that
are chosen at launch show as {port}. With --json the whole plan is printed, every
point with its id and key.`,
		Example: `  twopoint plan experiments/quickstart
  twopoint plan experiments/kimi-collapse --only context=1024..8192
  twopoint plan spec.cue --json | jq '.points[].point_key'
` + exitHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, p, list := a.planned(args[0], f)
			asJSON := a.json
			a.json = false // diagnostics of a plan go to stderr in words either way
			if err := a.report(list); err != nil {
				return err
			}
			chosen, _, err := only.selection(p)
			if err != nil {
				return err
			}
			if asJSON {
				return a.planJSON(p, chosen)
			}
			return a.planText(p, chosen)
		},
	}
	f.add(cmd)
	only.add(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print the plan as one JSON object")
	return cmd
}

// restrict keeps the chosen points of a plan.
func restrict(p plan.Plan, chosen func(plan.Point) bool) plan.Plan {
	if chosen == nil {
		return p
	}
	kept := p
	kept.Points = nil
	for _, pt := range p.Points {
		if chosen(pt) {
			kept.Points = append(kept.Points, pt)
		}
	}
	return kept
}

// commandLine is a variant's server command, the environment that its adapter
// adds before it, with {port} for a port that is chosen at launch. It is nil
// where there is nothing to start or no adapter.
func commandLine(v plan.Variant) ([]string, error) {
	eng, ok := engines.Lookup(v.Engine)
	if !ok || v.URL != "" {
		return nil, nil
	}
	// A number that is no port and no setting stands for the port chosen at launch.
	const open = 1_886_351_988
	port := v.Port
	if port == 0 {
		port = open
	}
	host := v.Host
	if host == "" {
		host = "127.0.0.1"
	}
	argv, env, err := eng.Args(v.Variant, host, port)
	if err != nil {
		return nil, err
	}
	words := append(env, argv...)
	if v.Port == 0 {
		for i, w := range words {
			words[i] = strings.ReplaceAll(w, fmt.Sprint(open), "{port}")
		}
	}
	return words, nil
}

func (a *app) planJSON(p plan.Plan, chosen func(plan.Point) bool) error {
	kept := restrict(p, chosen)
	commands := map[string][]string{}
	for _, v := range p.Variants {
		argv, err := commandLine(v)
		if err != nil {
			return exit(ExitUsage, "variant %s: %w", v.Name, err)
		}
		commands[v.Name] = argv
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return trouble(enc.Encode(struct {
		plan.Plan
		Cost     plan.Cost           `json:"cost"`
		Commands map[string][]string `json:"commands"`
	}{kept, kept.Cost(), commands}))
}

func (a *app) planText(p plan.Plan, chosen func(plan.Point) bool) error {
	kept := restrict(p, chosen)
	w := a.stdout
	fmt.Fprintf(w, "experiment  %s", p.Experiment)
	if p.Title != "" {
		fmt.Fprintf(w, ": %s", p.Title)
	}
	fmt.Fprintln(w)
	if p.Question != "" {
		fmt.Fprintf(w, "question    %s\n", p.Question)
	}
	for _, o := range p.Orders {
		fmt.Fprintf(w, "target      %s, variants in the order %s\n", o.Target.Name, strings.Join(o.Variants, ", "))
	}
	fmt.Fprintf(w, "method      %s\n", methodWords(p))
	c := kept.Cost()
	fmt.Fprintf(w, "points      %d (%s)\n", c.Points, axesWords(kept))
	fmt.Fprintf(w, "requests    %s in %s pairs and %d server %s\n", span(c.Requests), span(c.Pairs), c.Deployments, plural(c.Deployments, "life", "lives"))
	if c.GateRequests > 0 {
		fmt.Fprintf(w, "gate        %d of the requests: %s\n", c.GateRequests, gatePlan(*p.Gate, p.Baseline))
	}
	fmt.Fprintf(w, "prompt      %s tokens to be processed\n", span(c.PromptTokens))
	expect := "unknown (no expect: in the spec)"
	if c.MinS != nil && c.MaxS != nil {
		expect = fmt.Sprintf("%v to %v by the spec's expect:", rounded(*c.MinS), rounded(*c.MaxS))
	}
	if t := time.Duration(p.Budget.Total); t > 0 {
		expect += fmt.Sprintf("; the budget stops it after %v", t)
	}
	fmt.Fprintf(w, "time        %s\n\n", expect)

	for _, v := range p.Variants {
		fmt.Fprintf(w, "%s  %s  %s\n", v.Name, v.ID, v.Engine)
		if v.URL != "" {
			fmt.Fprintf(w, "  a server that is there: %s\n", v.URL)
			continue
		}
		for _, cmd := range v.Build {
			fmt.Fprintf(w, "  build: %s\n", deploy.Quote(cmd))
		}
		if v.Setup != "" {
			fmt.Fprintf(w, "  setup: %s\n", v.Setup)
		}
		argv, err := commandLine(v)
		if err != nil {
			return exit(ExitUsage, "variant %s: %w", v.Name, err)
		}
		if argv == nil {
			fmt.Fprintln(w, "  (this build has no adapter that makes its command line)")
			continue
		}
		fmt.Fprintf(w, "  %s\n", deploy.Quote(argv))
	}
	if len(kept.Points) <= 50 {
		rows := [][]string{{"point", "variant", "context", "concurrency"}}
		for _, pt := range kept.Points {
			rows = append(rows, []string{pt.ID, pt.Variant, fmt.Sprint(pt.Context), fmt.Sprint(pt.Concurrency)})
		}
		if len(rows) > 1 {
			fmt.Fprintf(w, "\n%s", columns(rows))
		}
	}
	return nil
}

func methodWords(p plan.Plan) string {
	l := p.Method.Legs()
	word := func(n int) string {
		if n == 0 {
			return "auto"
		}
		return fmt.Sprint(n)
	}
	s := p.Method.Name()
	switch m := p.Method; {
	case s == "":
		return s
	case m.Stream != nil:
		s += fmt.Sprintf(", %d tokens", l.B)
	case m.MultiPoint != nil:
		s += fmt.Sprintf(", %d budgets from %s to %s", m.MultiPoint.Budgets, word(l.A), word(l.B))
	default:
		s += fmt.Sprintf(", a %s, b %s", word(l.A), word(l.B))
	}
	s += fmt.Sprintf(", %d to %d %s a point until ±%g %%", l.Repeats.Min, l.Repeats.Max, repeatWord(p.Method), 100*l.Repeats.Target)
	if d := l.Repeats.Deployments; d > 1 {
		s += fmt.Sprintf(", %d server lives", d)
	} else {
		s += ", one server life"
	}
	return s
}

// gatePlan is the output checks of a variant and context.
func gatePlan(g schema.Gate, baseline string) string {
	var parts []string
	if n := g.Needle; n != nil {
		parts = append(parts, fmt.Sprintf("a needle at %d %s", len(n.Depth), plural(len(n.Depth), "depth", "depths")))
	}
	if a := g.Agreement; a != nil {
		part := fmt.Sprintf("agreement on %d %s", a.Prompts, plural(a.Prompts, "prompt", "prompts"))
		if baseline != "" {
			part += fmt.Sprintf(" (%s answers twice)", baseline)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ") + ", once a variant and context"
}

// repeatWord is what people call the repeats of a method.
func repeatWord(m schema.Method) string {
	if m.TwoPoint != nil || m.DecodeAtDepth != nil {
		return "pairs"
	}
	return "repeats"
}

func axesWords(p plan.Plan) string {
	variants, contexts, concurrencies := map[string]bool{}, map[int]bool{}, map[int]bool{}
	for _, pt := range p.Points {
		variants[pt.Variant], contexts[pt.Context], concurrencies[pt.Concurrency] = true, true, true
	}
	return fmt.Sprintf("%d %s, %d %s, %d %s", len(variants), plural(len(variants), "variant", "variants"), len(contexts), plural(len(contexts), "context", "contexts"),
		len(concurrencies), plural(len(concurrencies), "concurrency", "concurrencies"))
}

func span(b plan.Bounds) string {
	if b.Min == b.Max {
		return fmt.Sprint(b.Min)
	}
	return fmt.Sprintf("%d to %d", b.Min, b.Max)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func rounded(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
