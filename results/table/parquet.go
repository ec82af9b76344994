package table

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// SchemaVersion is the version of the tables' columns. A new column leaves it;
// a changed meaning is a new name.
const SchemaVersion = 1

// Column describes one column of a table.
type Column struct {
	Table   string
	Name    string
	Type    string // Arrow's name of the type
	Unit    string // s, tok/s, GB/s, token, …; empty where there is none
	Meaning string

	field arrow.Field
	index []int // of the row struct's field
}

var (
	timestamp  = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
	fieldTypes = map[reflect.Type]arrow.DataType{
		reflect.TypeFor[string]():    arrow.BinaryTypes.String,
		reflect.TypeFor[int64]():     arrow.PrimitiveTypes.Int64,
		reflect.TypeFor[*int64]():    arrow.PrimitiveTypes.Int64,
		reflect.TypeFor[float64]():   arrow.PrimitiveTypes.Float64,
		reflect.TypeFor[*float64]():  arrow.PrimitiveTypes.Float64,
		reflect.TypeFor[bool]():      arrow.FixedWidthTypes.Boolean,
		reflect.TypeFor[*bool]():     arrow.FixedWidthTypes.Boolean,
		reflect.TypeFor[time.Time](): timestamp,
		reflect.TypeFor[[]float64](): arrow.ListOf(arrow.PrimitiveTypes.Float64),
		reflect.TypeFor[[]int32]():   arrow.ListOf(arrow.PrimitiveTypes.Int32),
	}
)

// columnsOf reads the columns of a row struct from its tags: col is the name,
// unit and doc go into the column's metadata. Embedded structs are flattened.
// Every column is nullable: a null in a required column would come back as 0.
func columnsOf(table string, row reflect.Type) []Column {
	var out []Column
	for _, f := range reflect.VisibleFields(row) {
		name := f.Tag.Get("col")
		if name == "" {
			continue // an embedded struct itself
		}
		typ, ok := fieldTypes[f.Type]
		if !ok {
			panic(fmt.Sprintf("table %s: column %s has type %s, which no column can have", table, name, f.Type))
		}
		c := Column{Table: table, Name: name, Type: typ.String(), Unit: f.Tag.Get("unit"), Meaning: f.Tag.Get("doc"), index: f.Index}
		c.field = arrow.Field{Name: name, Type: typ, Nullable: true, Metadata: arrow.MetadataFrom(map[string]string{"unit": c.Unit, "description": c.Meaning})}
		out = append(out, c)
	}
	return out
}

// batchRows bounds the rows of a record batch, and with it memory beside the
// rows themselves.
const batchRows = 16 << 10

// writeParquet writes rows, a slice of row structs, with the declared columns
// whatever the data. meta goes into the file's key-value metadata. A value that
// is not finite is an error: it is a bug, never data.
func writeParquet(w io.Writer, table string, rows reflect.Value, meta map[string]string) error {
	cols := columnsOf(table, rows.Type().Elem())
	fields := make([]arrow.Field, len(cols))
	for i, c := range cols {
		fields[i] = c.field
	}
	keys := arrow.MetadataFrom(meta)
	schema := arrow.NewSchema(fields, &keys)
	// Pages of version 1: version 2 can begin in the middle of a list row,
	// which other readers refuse (arrow-go pull requests 883 and 919).
	props := parquet.NewWriterProperties(
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithDataPageVersion(parquet.DataPageV1),
		parquet.WithCreatedBy("twopoint"),
	)
	pw, err := pqarrow.NewFileWriter(schema, plainWriter{w}, props, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		return fmt.Errorf("table %s: %w", table, err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for at := 0; at < rows.Len(); at += batchRows {
		end := min(at+batchRows, rows.Len())
		for i, c := range cols {
			fb := b.Field(i)
			fb.Reserve(end - at)
			for r := at; r < end; r++ {
				if err := appendValue(fb, rows.Index(r).FieldByIndex(c.index)); err != nil {
					return fmt.Errorf("table %s, row %d, column %s: %w", table, r, c.Name, err)
				}
			}
		}
		rec := b.NewRecordBatch()
		err := pw.Write(rec)
		rec.Release()
		if err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
	}
	if err := pw.Close(); err != nil {
		return fmt.Errorf("table %s: %w", table, err)
	}
	return nil
}

// plainWriter hides Close, so that closing the Parquet writer leaves the file
// to its owner, who still has to sync it.
type plainWriter struct{ io.Writer }

func appendValue(b array.Builder, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			b.AppendNull()
			return nil
		}
		v = v.Elem()
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		// Absent text is null; other readers may refuse a file with invalid UTF-8.
		if v.Len() == 0 {
			b.AppendNull()
		} else {
			b.Append(strings.ToValidUTF8(v.String(), "\uFFFD"))
		}
	case *array.Int64Builder:
		b.Append(v.Int())
	case *array.Float64Builder:
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("the value is %v", f)
		}
		b.Append(f)
	case *array.BooleanBuilder:
		b.Append(v.Bool())
	case *array.TimestampBuilder:
		if t := v.Interface().(time.Time); t.IsZero() {
			b.AppendNull()
		} else {
			b.Append(arrow.Timestamp(t.UnixMicro()))
		}
	case *array.ListBuilder:
		if v.IsNil() {
			b.AppendNull()
			return nil
		}
		b.Append(true)
		switch vb := b.ValueBuilder().(type) {
		case *array.Float64Builder:
			for _, f := range v.Interface().([]float64) {
				if math.IsNaN(f) || math.IsInf(f, 0) {
					return fmt.Errorf("the list holds %v", f)
				}
				vb.Append(f)
			}
		case *array.Int32Builder:
			vb.AppendValues(v.Interface().([]int32), nil)
		}
	}
	return nil
}
