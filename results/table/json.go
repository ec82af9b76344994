package table

import (
	"encoding/json"
	"io"
	"reflect"
	"time"
)

// JSON writes runs, points, fits and claims as one object of lists of rows by
// column name, absent values as null.
func (t *Tables) JSON(w io.Writer) error {
	out := map[string]any{}
	for _, name := range []string{"runs", "points", "fits", "claims"} {
		out[name] = t.objects(name)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(out)
}

// JSONLines writes one table, a row a line by column name.
func (t *Tables) JSONLines(w io.Writer, name string) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, row := range t.objects(name) {
		if err := enc.Encode(row); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tables) objects(name string) []map[string]any {
	rows := t.rows(name)
	cols := columnsOf(name, rows.Type().Elem())
	list := []map[string]any{}
	for i := range rows.Len() {
		row := map[string]any{}
		for _, c := range cols {
			row[c.Name] = plain(rows.Index(i).FieldByIndex(c.index))
		}
		list = append(list, row)
	}
	return list
}

// plain is a row's value with absence as nil.
func plain(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.String && v.Len() == 0 {
		return nil
	}
	if at, ok := v.Interface().(time.Time); ok && at.IsZero() {
		return nil
	}
	return v.Interface()
}
