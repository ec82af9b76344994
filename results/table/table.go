// Package table derives the tables of a run from its plan, its events and its
// environment, by pure functions, and writes them as Parquet. It is the only
// importer of Arrow. Figures come from package stat by way of package history;
// nothing is computed here but what a column's description says.
//
// A column's name, type, unit and meaning stand in the tags of the row structs;
// docs/tables.md and the table "columns" are made from them.
package table

import (
	"cmp"
	"fmt"
	"io"
	"reflect"

	"twopoint/results/durable"
	"twopoint/results/history"
	"twopoint/results/run"
)

// Tables are the rows of one run, and of its key-value metadata what all files
// share.
type Tables struct {
	Runs        []RunRow
	Deployments []DeploymentRow
	Samples     []SampleRow
	Repeats     []RepeatRow
	Points      []PointRow
	Fits        []FitRow
	Claims      []ClaimRow
	Settings    []SettingRow
	Telemetry   []TelemetryRow
	Columns     []ColumnRow

	meta map[string]string
}

// About says what a row of a table is and which columns identify it.
type About struct {
	Table string
	Row   string
	Key   []string
}

// Abouts are the tables in the order in which they are described.
var Abouts = []About{
	{"runs", "the run: where, when and by what it was measured, and how its points ended", []string{"run_id"}},
	{"deployments", "one life of a server", []string{"run_id", "deployment_id"}},
	{"samples", "one request, as measured and as the server reported it", []string{"run_id", "deployment_id", "point_id", "role", "repeat", "attempt", "leg", "slot"}},
	{"repeats", "one pair of legs with its slopes and whether it is valid", []string{"run_id", "point_id", "repeat", "attempt"}},
	{"points", "one planned point, measured or not", []string{"run_id", "point_id"}},
	{"fits", "one line over context through the ok points of a variant; none with fewer than four", []string{"run_id", "variant_id", "concurrency", "quantity"}},
	{"claims", "one published figure or statement with its verdict", []string{"run_id", "claim_id"}},
	{"settings", "one setting of a variant, as asked for or as the server says", []string{"run_id", "variant", "name", "source"}},
	{"telemetry", "what one reading of the sensors says of the host or of one GPU, never in a request that enters a figure", []string{"run_id", "order_id", "seq", "device"}},
	{"columns", "one column of these tables", []string{"run_id", "table", "column"}},
}

// Names are the tables in that order.
var Names = func() (names []string) {
	for _, a := range Abouts {
		names = append(names, a.Table)
	}
	return names
}()

// rows is the table of that name, a slice of row structs.
func (t *Tables) rows(name string) reflect.Value {
	return reflect.ValueOf(map[string]any{
		"runs": t.Runs, "deployments": t.Deployments, "samples": t.Samples, "repeats": t.Repeats,
		"points": t.Points, "fits": t.Fits, "claims": t.Claims, "settings": t.Settings, "telemetry": t.Telemetry, "columns": t.Columns,
	}[name])
}

// Columns describes the columns of every table, table by table.
func Columns() []Column {
	var out []Column
	for _, name := range Names {
		out = append(out, columnsOf(name, new(Tables).rows(name).Type().Elem())...)
	}
	return out
}

// WriteTable writes one table as Parquet.
func (t *Tables) WriteTable(w io.Writer, name string) error {
	rows := t.rows(name)
	if !rows.IsValid() {
		return fmt.Errorf("no table %q; there are %v", name, Names)
	}
	return writeParquet(w, name, rows, t.meta)
}

// Write replaces all tables in the run's folder, each one whole or not at all.
func (t *Tables) Write(dir run.Dir) error {
	for _, name := range Names {
		err := durable.Write(dir.Table(name), func(w io.Writer) error { return t.WriteTable(w, name) })
		if err != nil {
			return err
		}
	}
	return nil
}

// Load reads a run's plan, environment and events and derives its tables. An
// error about damaged events comes with the tables of what precedes the damage.
// The run's id is what its events say, so that a renamed folder keeps it.
func Load(dir run.Dir) (*Tables, error) {
	p, err := dir.Plan()
	if err != nil {
		return nil, err
	}
	env, err := dir.Environment()
	if err != nil {
		return nil, err
	}
	events, err := dir.Events()
	h := history.New(p, events)
	id := dir.ID()
	if len(h.Runs) > 0 {
		id = cmp.Or(h.Runs[0].Run.RunID, id)
	}
	return Derive(id, h, env), err
}
