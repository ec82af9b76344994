package table

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

func write(t *testing.T, tables *Tables, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tables.WriteTable(&b, name); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readBack reads a Parquet file as Arrow's own reader does.
func readBack(t *testing.T, content []byte) arrow.Table {
	t.Helper()
	pf, err := file.NewParquetReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pf.Close() })
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := r.ReadTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tbl.Release)
	return tbl
}

// cells are a column's values, nil where null.
func cells(col *arrow.Column) []any {
	var out []any
	for _, chunk := range col.Data().Chunks() {
		for i := range chunk.Len() {
			out = append(out, cell(chunk, i))
		}
	}
	return out
}

func cell(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.String:
		return a.Value(i)
	case *array.Int64:
		return a.Value(i)
	case *array.Int32:
		return a.Value(i)
	case *array.Float64:
		return a.Value(i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Timestamp:
		return a.Value(i).ToTime(arrow.Microsecond)
	case *array.List:
		from, to := a.ValueOffsets(i)
		list := []any{}
		for k := from; k < to; k++ {
			list = append(list, cell(a.ListValues(), int(k)))
		}
		return list
	}
	panic(fmt.Sprintf("%T", a))
}

// expected is what a field must read back as.
func expected(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case string:
		if x == "" {
			return nil
		}
		return strings.ToValidUTF8(x, "\uFFFD")
	case time.Time:
		if x.IsZero() {
			return nil
		}
		return x.UTC().Truncate(time.Microsecond)
	case []float64, []int32:
		if v.IsNil() {
			return nil
		}
		list := []any{}
		for i := range v.Len() {
			list = append(list, v.Index(i).Interface())
		}
		return list
	}
	return v.Interface()
}

// fill gives a row random fields: absent ones, hostile strings, lists of every
// small length.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			if r.IntN(4) > 0 {
				v.Set(reflect.ValueOf(time.Unix(r.Int64N(4e9), r.Int64N(1e9)).In(time.FixedZone("x", 7200))))
			}
			return
		}
		for i := range v.NumField() {
			f := v.Field(i)
			if !f.CanSet() { // an embedded struct of unexported type: its fields are exported
				f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
			}
			fill(r, f)
		}
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem())
		}
	case reflect.String:
		v.SetString([]string{"", "a", "NUL \x00 inside", "bad \xff\xfe utf8", "\xed\xa0\x80", "ü ∞ 漢", strings.Repeat("long ", 300), "\x00"}[r.IntN(8)])
	case reflect.Int64, reflect.Int32:
		v.SetInt([]int64{0, 1, -1, math.MaxInt32, r.Int64N(1000)}[r.IntN(5)])
		if v.Kind() == reflect.Int64 && r.IntN(5) == 0 {
			v.SetInt(4873214862074861312)
		}
	case reflect.Float64:
		v.SetFloat([]float64{0, math.Copysign(0, -1), r.NormFloat64(), math.MaxFloat64, math.SmallestNonzeroFloat64}[r.IntN(5)])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Slice:
		n := []int{-1, 0, 1, 7, 8, 9, 64}[r.IntN(7)]
		if n < 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(r, v.Index(i))
		}
	}
}

// Random rows of every table read back equal, at sizes around the edges.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, name := range Names {
		sizes := []int{0, 1, 2, 8, 9, 100}
		if name == "settings" {
			sizes = append(sizes, batchRows)
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				tables := new(Tables)
				rows := reflect.ValueOf(tables).Elem().FieldByNameFunc(func(f string) bool { return strings.EqualFold(f, name) })
				rows.Set(reflect.MakeSlice(rows.Type(), n, n))
				for i := range n {
					fill(r, rows.Index(i))
				}
				sameRows(t, tables, name)
			})
		}
	}
	t.Run("lists over batches", func(t *testing.T) {
		tables := &Tables{Samples: make([]SampleRow, batchRows+2)}
		for i := range tables.Samples {
			fill(r, reflect.ValueOf(&tables.Samples[i].ChunkS).Elem())
			fill(r, reflect.ValueOf(&tables.Samples[i].ChunkTokens).Elem())
		}
		sameRows(t, tables, "samples")
	})
}

// sameRows writes a table and reads it back.
func sameRows(t *testing.T, tables *Tables, name string) {
	t.Helper()
	rows := tables.rows(name)
	tbl := readBack(t, write(t, tables, name))
	cols := columnsOf(name, rows.Type().Elem())
	if int(tbl.NumRows()) != rows.Len() || int(tbl.NumCols()) != len(cols) {
		t.Fatalf("%d rows and %d columns came back, want %d and %d", tbl.NumRows(), tbl.NumCols(), rows.Len(), len(cols))
	}
	for i, c := range cols {
		got := cells(tbl.Column(i))
		for k := range rows.Len() {
			if want := expected(rows.Index(k).FieldByIndex(c.index)); !reflect.DeepEqual(got[k], want) {
				t.Fatalf("row %d, column %s: %v came back for %v", k, c.Name, got[k], want)
			}
			if s, ok := got[k].(string); ok && !utf8.ValidString(s) {
				t.Fatalf("row %d, column %s: %q is no UTF-8", k, c.Name, s)
			}
		}
	}
}

// Log tails can be large; a page limit is no reason to panic.
func TestHugeStrings(t *testing.T) {
	tables := new(Tables)
	for i := range 8 {
		tables.Deployments = append(tables.Deployments, DeploymentRow{DeploymentID: fmt.Sprint(i), LogTail: strings.Repeat(fmt.Sprint("line ", i, "\n"), 200_000)})
	}
	sameRows(t, tables, "deployments")
}

// A column that holds nothing in one run and something in another has the same
// type in both.
func TestSchemaDoesNotDependOnData(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	full := new(Tables)
	for _, name := range Names {
		rows := reflect.ValueOf(full).Elem().FieldByNameFunc(func(f string) bool { return strings.EqualFold(f, name) })
		rows.Set(reflect.MakeSlice(rows.Type(), 20, 20))
		for i := range 20 {
			fill(r, rows.Index(i))
		}
		empty := readBack(t, write(t, new(Tables), name)).Schema()
		if got := readBack(t, write(t, full, name)).Schema(); !got.Equal(empty) {
			t.Errorf("%s: %v with rows, %v without", name, got, empty)
		}
	}
}

func TestNotFinite(t *testing.T) {
	x := math.NaN()
	for want, tables := range map[string]*Tables{
		"table points, row 1, column s_per_tok: the value is NaN":       {Points: []PointRow{{}, {SPerTok: &x}}},
		"table samples, row 0, column chunk_s: the list holds +Inf":     {Samples: []SampleRow{{ChunkS: []float64{1, math.Inf(1)}}}},
		"table fits, row 0, column kv_stream_gb_s: the value is -Inf":   {Fits: []FitRow{{KVStream: new(math.Inf(-1))}}},
		"table settings, row 16385, column value_num: the value is NaN": {Settings: append(make([]SettingRow, batchRows+1), SettingRow{ValueNum: &x})},
	} {
		name := strings.TrimSuffix(strings.Fields(want)[1], ",")
		if err := tables.WriteTable(new(bytes.Buffer), name); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := new(Tables).WriteTable(new(bytes.Buffer), "nothing"); err == nil || !strings.Contains(err.Error(), `no table "nothing"`) {
		t.Errorf("error %v for a table that is none", err)
	}
}

var errFull = errors.New("no space left on device")

// full takes n bytes.
type full struct{ n int }

func (f *full) Write(b []byte) (int, error) {
	if len(b) > f.n {
		n := f.n
		f.n = 0
		return n, errFull
	}
	f.n -= len(b)
	return len(b), nil
}

// A disk that fills up anywhere in the file is an error, not a panic.
func TestFullDisk(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	tables := new(Tables)
	tables.Samples = make([]SampleRow, 20)
	for i := range tables.Samples {
		fill(r, reflect.ValueOf(&tables.Samples[i]).Elem())
	}
	size := len(write(t, tables, "samples"))
	for n := 0; n < size; n += 1 + n/20 {
		if err := tables.WriteTable(&full{n}, "samples"); !errors.Is(err, errFull) {
			t.Fatalf("full after %d of %d bytes: error %v", n, size, err)
		}
	}
	if err := tables.WriteTable(&full{size}, "samples"); err != nil {
		t.Errorf("just enough space: %v", err)
	}
}
