package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"twopoint/results/durable"
	"twopoint/runner/engine"
	"twopoint/runner/engine/engines"
	"twopoint/schema"
)

//go:embed templates/embedded.cue.tmpl
var embeddedSpec string

//go:embed templates/url.cue.tmpl
var urlSpec string

func (a *app) initCommand() *cobra.Command {
	var url, model string
	cmd := &cobra.Command{
		Use:   "init [FOLDER]",
		Short: "Write a spec to start from, or one for a server that is running",
		Long: `Write FOLDER/spec.cue (default: the folder "experiment"). Without --url it measures
two variants of the embedded server. With --url the server there is asked what it
is, and the spec measures it as it stands; "twopoint run" works on it unedited.`,
		Example: `  twopoint init my-sweep && twopoint run my-sweep
  twopoint init --url http://127.0.0.1:30000 my-server && twopoint run my-server
` + exitHelp,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "experiment"
			if len(args) > 0 {
				dir = args[0]
			}
			path := filepath.Join(dir, "spec.cue")
			if _, err := os.Stat(path); err == nil {
				return exit(ExitUsage, "%s is there already; name another folder", path)
			}
			data := specData{Package: packageName(dir), Title: filepath.Base(filepath.Clean(dir))}
			text := embeddedSpec
			if url != "" {
				text = urlSpec
				if err := data.probe(cmd.Context(), url, model); err != nil {
					return exit(ExitNothing, "%w", err)
				}
			}
			var b strings.Builder
			if err := template.Must(template.New("spec").Parse(text)).Execute(&b, data); err != nil {
				return trouble(err)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return trouble(err)
			}
			if err := durable.WriteBytes(path, []byte(b.String())); err != nil {
				return trouble(err)
			}
			if data.Engine != "" {
				fmt.Fprintf(a.stderr, "%s speaks %s, model %s, context limit %d\n", url, data.Engine, data.Model, data.Limit)
			}
			fmt.Fprintf(a.stderr, "next: twopoint run %s\n", dir)
			fmt.Fprintln(a.stdout, path)
			return nil
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "a running server to write the spec for, such as `http://127.0.0.1:30000`")
	cmd.Flags().StringVar(&model, "model", "", "the model to measure there, where the server has several")
	return cmd
}

// specData fills the templates.
type specData struct {
	Package, Title          string
	URL, Engine, Model, Key string
	Limit                   int
	Contexts                []int
}

var notIdentifier = regexp.MustCompile(`[^a-z0-9]+`)

// packageName is a CUE package name made of a folder's.
func packageName(dir string) string {
	name := notIdentifier.ReplaceAllString(strings.ToLower(filepath.Base(filepath.Clean(dir))), "")
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "experiment" + name
	}
	return name
}

// probeOrder tries dialects that identify themselves before the generic one.
var probeOrder = []string{"llamacpp", "sglang", "openai"}

// probe asks a running server what it is.
func (d *specData) probe(ctx context.Context, url, model string) error {
	key, _ := os.LookupEnv("TWOPOINT_API_KEY")
	c, err := engine.NewClient(url, key, engine.Limits{})
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	var tried []error
	for _, name := range probeOrder {
		eng, ok := engines.Lookup(name)
		if !ok {
			continue
		}
		try, cancel := context.WithTimeout(ctx, 30*time.Second)
		v := schema.Variant{Engine: name, URL: url, ServedName: model}
		info, err := eng.Info(try, c, v)
		if err == nil {
			v.ServedName = info.Model
			err = eng.Ready(try, c, v)
		}
		cancel()
		if err != nil {
			tried = append(tried, fmt.Errorf("as %s: %w", name, err))
			continue
		}
		d.URL, d.Engine, d.Model, d.Limit = url, name, info.Model, info.ContextLimit
		d.Contexts = contextsBelow(info.ContextLimit)
		if len(d.Contexts) == 0 {
			return fmt.Errorf("%s has a context limit of %d tokens, too little for a sweep", url, info.ContextLimit)
		}
		return nil
	}
	return fmt.Errorf("no server at %s that this build knows how to ask:\n%w", url, errors.Join(tried...))
}

// contextsBelow is a sweep by doubling from 512 (less on a small server) that
// leaves room for the answer.
func contextsBelow(limit int) []int {
	if limit == 0 {
		limit = 8192
	}
	start := 512
	for start > 32 && start*8 > limit-256 {
		start /= 2
	}
	var out []int
	for c := start; c <= limit-256 && len(out) < 5; c *= 2 {
		out = append(out, c)
	}
	return out
}
