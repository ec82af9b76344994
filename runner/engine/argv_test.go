package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"twopoint/schema"
)

func TestWords(t *testing.T) {
	flags := Flags{
		Owned: map[string]string{"--port": "port", "-c": "context_length", "--tp": "tp"},
		Negative: func(flag string) []string {
			if flag == "--cache" {
				return []string{"--no-cache"}
			}
			return nil
		},
	}
	for _, c := range []struct {
		name, args string // JSON
		want       string // words joined by |
		problem    string // path and rule of the only problem
	}{
		{"sorted", `{"b": 1, "a": 2, "c": "x"}`, "--a|2|--b|1|--c|x", ""},
		{"true and false", `{"x": true, "cache": false}`, "--no-cache|--x", ""},
		{"false without a negative", `{"x": false}`, "", "args.x: this engine has no way to switch the flag off"},
		{"removed", `{"x": null}`, "", ""},
		{"dash", `{"-ngl": 999, "--y": true}`, "--y|-ngl|999", ""},
		{"underscore as written", `{"a_b": 1}`, "--a_b|1", ""},
		{"one word, verbatim", `{"x": "a b  \"c\" $d"}`, `--x|a b  "c" $d`, ""},
		{"empty string", `{"x": ""}`, "--x|", ""},
		{"numbers", `{"a": 0.88, "b": 1E+5, "c": 8192.0, "d": 9007199254740993, "e": -3, "f": 0.90, "g": 1e400, "h": 1.5e1}`,
			"--a|0.88|--b|100000|--c|8192|--d|9007199254740993|--e|-3|--f|0.90|--g|1e400|--h|15", ""},
		{"list", `{"bs": [1, 2, "x"]}`, "--bs|1|2|x", ""},
		{"empty list", `{"bs": []}`, "--bs", ""},
		{"list of lists", `{"lora": [["a", 1], ["b"]]}`, "--lora|a|1|--lora|b", ""},
		{"mixed list", `{"lora": [["a"], "b"]}`, "--lora|a", "args.lora[1]: lists and single values do not mix"},
		{"bool in list", `{"x": [true]}`, "--x", "args.x[0]: a list on a command line holds strings, numbers and structs"},
		{"struct", `{"j": {"b": [1, {"c": "<&>"}], "a": 0.50}}`, `--j|{"a":0.50,"b":[1,{"c":"<&>"}]}`, ""},
		{"owned", `{"port": 3}`, "", "args.port: is set by the field port"},
		{"owned short", `{"-c": 3}`, "", "args.-c: is set by the field context_length"},
		{"owned with dashes", `{"--tp": 3}`, "", "args.--tp: is set by the field tp"},
		{"owned with equals", `{"--port=3": true}`, "", "args.--port=3: is set by the field port"},
		{"twice", `{"page-size": 1, "page_size": 2}`, "--page-size|1", "args.page_size: sets the same flag as args.page-size"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := json.NewDecoder(strings.NewReader(c.args))
			d.UseNumber()
			var args map[string]any
			if err := d.Decode(&args); err != nil {
				t.Fatal(err)
			}
			words, problems := flags.Words(args)
			if got := strings.Join(words, "|"); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			var got []string
			for _, p := range problems {
				got = append(got, p.Path+": "+p.Rule)
			}
			if want := slices.DeleteFunc([]string{c.problem}, func(s string) bool { return s == "" }); !slices.Equal(got, want) {
				t.Errorf("problems %q, want %q", got, want)
			}
		})
	}
}

func TestVetPlaceholders(t *testing.T) {
	v := schema.Variant{
		Args:    map[string]any{"a": "{files}/{x}", "b": []any{"{port}{foo}"}, "c": map[string]any{"k": "{bar}"}, "d": `{"n":2}`},
		Command: []string{"run", "{workdir}", "{self}"},
		Env:     map[string]schema.EnvValue{"P": {Value: "{files}/python:${PATH}"}, "Q": {Value: "{q}"}},
		Setup:   "source ${HOME}/venv && cd {files}",
		Build:   [][]string{{"make", "-C", "{dir}"}},
	}
	var got []string
	for _, p := range VetPlaceholders(v) {
		got = append(got, p.Path+" "+p.Rule)
	}
	want := []string{"args.a {x} is not known", "args.b[0] {foo} is not known", "args.c.k {bar} is not known",
		"command[2] {self} is not known", "env.Q {q} is not known", "build[0][2] {dir} is not known"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestPieces(t *testing.T) {
	type piece struct {
		content []int32
		total   int64
		want    []int32
	}
	for name, pieces := range map[string][]piece{
		"cumulative":                 {{[]int32{5}, 1, []int32{5}}, {[]int32{5, 5}, 2, []int32{5}}, {[]int32{5, 5, 6, 7}, 4, []int32{6, 7}}, {[]int32{5, 5, 6, 7}, 4, nil}},
		"incremental":                {{[]int32{5}, 1, []int32{5}}, {[]int32{5, 5}, 3, []int32{5, 5}}, {nil, 3, nil}, {[]int32{5}, 4, []int32{5}}},
		"incremental, uncounted":     {{[]int32{5}, -1, []int32{5}}, {[]int32{6}, -1, []int32{6}}, {[]int32{6, 7}, -1, []int32{6, 7}}},
		"cumulative, uncounted":      {{[]int32{5}, -1, []int32{5}}, {[]int32{5, 6}, -1, []int32{6}}},
		"cumulative, shrinks":        {{[]int32{5, 6}, 2, []int32{5, 6}}, {[]int32{5, 6, 7}, 3, []int32{7}}, {[]int32{5}, 3, nil}},
		"empty before the first":     {{nil, 0, nil}, {[]int32{5}, 1, []int32{5}}, {[]int32{5, 6}, 2, []int32{6}}},
		"incremental, bigger second": {{[]int32{5}, 1, []int32{5}}, {[]int32{5, 6, 7, 8}, 5, []int32{5, 6, 7, 8}}},
	} {
		var p Pieces[int32]
		for i, c := range pieces {
			if got := p.New(c.content, c.total); !slices.Equal(got, c.want) {
				t.Errorf("%s, event %d: %v, want %v", name, i, got, c.want)
			}
		}
	}
}
