package table

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

var update = flag.Bool("update", false, "rewrite golden files and docs/tables.md")

// golden compares text with a file, or rewrites it.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		at := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(end)"
		}
		if at(g) != at(w) {
			t.Fatalf("%s:%d differs; go test ./results/table -update rewrites it\n got %s\nwant %s", path, i+1, at(g), at(w))
		}
	}
}

// The schema that stands in the files is what is declared, whatever the data.
func TestSchemaGolden(t *testing.T) {
	var b bytes.Buffer
	for _, name := range Names {
		fmt.Fprintf(&b, "%s\n", name)
		for _, f := range readBack(t, write(t, new(Tables), name)).Schema().Fields() {
			null := "null"
			if !f.Nullable {
				null = "not null"
			}
			unit, _ := f.Metadata.GetValue("unit")
			meaning, _ := f.Metadata.GetValue("description")
			if unit == "" {
				unit = "-"
			}
			fmt.Fprintf(&b, "  %s\t%s\t%s\t%s\t%s\n", f.Name, f.Type, null, unit, meaning)
		}
	}
	golden(t, "testdata/schema.golden", b.Bytes())
}

func TestDeclarations(t *testing.T) {
	allowed := map[string]bool{"utf8": true, "bool": true, "int64": true, "float64": true, "timestamp[us, tz=UTC]": true,
		"list<item: float64, nullable>": true, "list<item: int32, nullable>": true}
	units := []string{"_s", "_tok_s", "_gb_s", "_bytes", "_s_per_tok"} // a column with such a name has a unit
	for _, a := range Abouts {
		names := map[string]bool{}
		for _, c := range Columns() {
			if c.Table != a.Table {
				continue
			}
			where := c.Table + "." + c.Name
			if names[c.Name] {
				t.Errorf("%s is there twice", where)
			}
			names[c.Name] = true
			if !allowed[c.Type] {
				t.Errorf("%s has type %s", where, c.Type)
			}
			if c.Meaning == "" || strings.Contains(c.Meaning, "|") {
				t.Errorf("%s: description %q", where, c.Meaning)
			}
			if c.Name != strings.ToLower(c.Name) || strings.ContainsAny(c.Name, " -.") {
				t.Errorf("%s is not snake_case", where)
			}
			base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(c.Name, "_lo"), "_hi"), "_raw")
			for _, suffix := range units {
				if strings.HasSuffix(base, suffix) && c.Unit == "" {
					t.Errorf("%s has no unit", where)
				}
			}
			if !c.field.Nullable {
				t.Errorf("%s cannot be null: a null would come back as 0", where)
			}
			if list, ok := c.field.Type.(*arrow.ListType); ok && !list.ElemField().Nullable {
				t.Errorf("%s has elements that cannot be null, which other readers refuse", where)
			}
		}
		for _, k := range append(a.Key, "run_id", "schema_version") {
			if !names[k] {
				t.Errorf("%s has no column %s", a.Table, k)
			}
		}
	}
}

// docs/tables.md is generated.
func TestDocs(t *testing.T) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Tables of a run

Generated from the column declarations; `+"`go test ./results/table -update`"+` rewrites it.

A run's folder holds one Parquet file a table, which pandas, DuckDB and Polars read without any code of ours. Each is
replaced as a whole, so that a reader sees the old file or the new one, also while the run is going on. The files are
derived from the run's events; `+"`twopoint tables RUN`"+` makes them again.

- Absent is null, never 0, NaN, an infinity or -1. Every column can be null.
- Columns end in their unit: durations are seconds (`+"`_s`"+`), rates are tokens a second (`+"`_tok_s`"+`). Unit and description are also in
  the field metadata of each file and in the table `+"`columns`"+`.
- Times are UTC in microseconds. Integers are signed. Text is UTF-8; lists of words are comma-separated, free-form values JSON.
- A point's values are null unless its status is ok. What a flagged point measured stands in columns that end in `+"`_raw`"+`.
- `+"`_lo` and `_hi`"+` are the ends of an interval at `+"`interval_level`"+`.
- Key-value metadata of each file: run_id, spec_hash, tool_version, schema_version (now %d). A new column leaves the version; a
  changed meaning is a new name.

Many runs are one data set:

    duckdb -c "select run_id, point_key, decode_tok_s from read_parquet('runs/*/*/points.parquet', union_by_name=true) where status = 'ok'"

In pandas, integers with nulls stay exact with

    pandas.read_parquet("points.parquet", dtype_backend="pyarrow")
`, SchemaVersion)
	for _, a := range Abouts {
		fmt.Fprintf(&b, "\n## %s\n\nA row is %s. Key: %s.\n\n| column | type | unit | meaning |\n|---|---|---|---|\n", a.Table, a.Row, strings.Join(a.Key, ", "))
		for _, c := range Columns() {
			if c.Table == a.Table {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, short(c.Type), c.Unit, c.Meaning)
			}
		}
	}
	golden(t, "../../docs/tables.md", b.Bytes())
}

// short is a type as a reader of the reference needs it.
func short(typ string) string {
	return strings.NewReplacer("item: ", "", ", nullable", "", "tz=", "").Replace(typ)
}
