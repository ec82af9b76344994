package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"twopoint/schema"
)

// Flags is what an engine's command line knows beyond the free-form args.
type Flags struct {
	// Owned maps each spelling of a flag that a typed field sets to the field,
	// such as "--tp" to "tp".
	Owned map[string]string
	// Negative gives the words for a flag (with its dashes) that is set to
	// false; nil where the engine has no such form.
	Negative func(flag string) []string
}

// Words turns the variant's args into command-line words (design.md 5). Keys
// are taken in sorted order. A key becomes --key, one that begins with a dash
// is used as it is; true is the bare flag, false the engine's negative form, a
// string one word, verbatim, a number plain digits if it is whole and as written
// otherwise, a list the words after the flag, a list of lists one flag for each,
// and a struct one word of compact JSON. A nil value was removed by merging.
func (f Flags) Words(args map[string]any) ([]string, []Problem) {
	var words []string
	var problems []Problem
	problem := func(key string, value any, rule, suggest string) {
		problems = append(problems, Problem{Path: "args." + key, Value: shown(value), Rule: rule, Suggest: suggest})
	}
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(args)) {
		value := args[key]
		if value == nil {
			continue
		}
		flag := key
		if !strings.HasPrefix(key, "-") {
			flag = "--" + key
		}
		plain := flag
		if strings.HasPrefix(flag, "--") {
			plain, _, _ = strings.Cut(strings.ReplaceAll(flag, "_", "-"), "=")
		}
		if field, owned := f.Owned[plain]; owned {
			problem(key, value, "is set by the field "+field, field+": "+shown(value))
			continue
		}
		if before, twice := seen[plain]; twice {
			problem(key, value, "sets the same flag as args."+before, "keep one of the two")
			continue
		}
		seen[plain] = key

		switch v := value.(type) {
		case bool:
			if v {
				words = append(words, flag)
				continue
			}
			var negative []string
			if f.Negative != nil {
				negative = f.Negative(flag)
			}
			if negative == nil {
				problem(key, value, "this engine has no way to switch the flag off", "leave it out, or null to remove a server's setting")
				continue
			}
			words = append(words, negative...)
		case []any:
			lists := slices.ContainsFunc(v, func(e any) bool { _, is := e.([]any); return is })
			if !lists {
				v = []any{v}
			}
			for i, group := range v {
				list, is := group.([]any)
				if !is {
					problem(fmt.Sprintf("%s[%d]", key, i), group, "lists and single values do not mix", "make every element a list")
					continue
				}
				words = append(words, flag)
				for j, e := range list {
					w, ok := word(e)
					if !ok {
						problem(fmt.Sprintf("%s[%d]", key, j), e, "a list on a command line holds strings, numbers and structs", "")
						continue
					}
					words = append(words, w)
				}
			}
		default:
			w, ok := word(v)
			if !ok {
				problem(key, value, "a flag's value is true, false, a string, a number, a list or a struct", "")
				continue
			}
			words = append(words, flag, w)
		}
	}
	return words, problems
}

// word is a value as one word of a command line.
func word(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return number(v.String()), true
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return number(strconv.FormatFloat(v, 'g', -1, 64)), true
	case map[string]any:
		return compact(v), true
	}
	return "", false
}

// number is a whole number in plain digits (1E+5 is 100000), any other as
// written.
func number(s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	if n, err := strconv.Atoi(exponent); len(mantissa) > 40 || exponent != "" && (err != nil || n > 30 || n < -30) {
		return s // no flag takes such a number; do not spell it out
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || !r.IsInt() {
		return s
	}
	return r.Num().String()
}

// compact is v as JSON without spaces, with sorted keys and unescaped <, > and &.
func compact(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func shown(v any) string {
	if w, ok := word(v); ok {
		return w
	}
	return compact(v)
}

// Placeholders are what may stand in braces within model_path, args, command, env, setup,
// cwd and build. The caller of Args fills them where the server runs.
var Placeholders = []string{"files", "port", "workdir"}

// placeholder is a name in braces. ${NAME} is the shell's, and JSON has quotes
// or digits after its brace.
var placeholder = regexp.MustCompile(`\$?\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// VetPlaceholders finds names in braces that nothing will fill.
func VetPlaceholders(v schema.Variant) []Problem {
	var problems []Problem
	check := func(path, text string) {
		for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
			if m[0][0] != '$' && !slices.Contains(Placeholders, m[1]) {
				problems = append(problems, Problem{Path: path, Value: text,
					Rule:    "{" + m[1] + "} is not known",
					Suggest: "known are {" + strings.Join(Placeholders, "}, {") + "}"})
			}
		}
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case string:
			check(path, v)
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(path+"."+k, v[k])
			}
		}
	}
	check("model_path", v.ModelPath)
	walk("args", v.Args)
	for i, w := range v.Command {
		check(fmt.Sprintf("command[%d]", i), w)
	}
	for _, k := range slices.Sorted(maps.Keys(v.Env)) {
		check("env."+k, v.Env[k].Value)
	}
	check("setup", v.Setup)
	check("cwd", v.Cwd)
	for i, command := range v.Build {
		for j, w := range command {
			check(fmt.Sprintf("build[%d][%d]", i, j), w)
		}
	}
	return problems
}

// Uses tells whether the placeholder stands anywhere on the variant's command
// line or in its environment.
func Uses(v schema.Variant, name string) bool {
	text := fmt.Sprint(v.Args, v.Command, v.Env, v.Setup)
	return strings.Contains(text, "{"+name+"}")
}

// Missing is a Problem for each field, given as name and value, that is empty.
func Missing(name, value, why string) []Problem {
	if value != "" {
		return nil
	}
	return []Problem{{Path: name, Rule: why}}
}

// OnlyOne is a Problem for each parallel dimension above 1, for engines that
// have none.
func OnlyOne(v schema.Variant, suggest string) []Problem {
	var problems []Problem
	for _, d := range []struct {
		name string
		n    int
	}{{"tp", v.TP}, {"dp", v.DP}, {"pp", v.PP}, {"dcp", v.DCP}} {
		if d.n > 1 {
			problems = append(problems, Problem{Path: d.name, Value: strconv.Itoa(d.n), Rule: v.Engine + " has no such setting", Suggest: suggest})
		}
	}
	return problems
}

// Refusal is the error of Args for a variant that Vet finds problems in.
func Refusal(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	p := problems[0]
	return fmt.Errorf("%s: %s: %s", p.Path, p.Value, p.Rule)
}
