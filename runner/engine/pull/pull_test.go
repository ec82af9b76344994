package pull

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// all has a field of each kind.
type all struct {
	S string          `json:"s"`
	I *int64          `json:"i"`
	F *float64        `json:"f"`
	B bool            `json:"b"`
	L []int32         `json:"l"`
	R json.RawMessage `json:"r"`
	O struct {
		S string `json:"s"`
		I *int64 `json:"i"`
	} `json:"o"`
}

func (a *all) scan(data []byte) bool {
	r := Of(data)
	for key := r.Object(); key != nil; key = r.Next() {
		switch string(key) {
		case "s":
			r.String(&a.S)
		case "i":
			r.Int(&a.I)
		case "f":
			r.Float(&a.F)
		case "b":
			r.Bool(&a.B)
		case "l":
			r.Int32s(&a.L)
		case "r":
			r.Raw(&a.R)
		case "o":
			for key := r.Object(); key != nil; key = r.Next() {
				switch string(key) {
				case "s":
					r.String(&a.O.S)
				case "i":
					r.Int(&a.O.I)
				default:
					r.Skip()
				}
			}
		default:
			r.Skip()
		}
	}
	return r.Done()
}

// agree holds that what was taken is what encoding/json makes of it.
func agree(t *testing.T, data []byte) (took bool) {
	t.Helper()
	var got, want all
	took = got.scan(data)
	if !took {
		return false
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatalf("took %q, of which encoding/json says: %v", data, err)
	}
	got.R, want.R = bytes.TrimSpace(got.R), bytes.TrimSpace(want.R)
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Fatalf("%q: %s, encoding/json has %s", data, a, b)
	}
	return true
}

var seeds = []struct {
	in   string
	took bool
}{
	{`{"s":"a","i":1,"f":1.5,"b":true,"l":[1,-2,0],"r":{"x":[1]},"o":{"s":"b","i":-7}}`, true},
	{` { "s" : "a\n\u00e9\\" , "x" : [ 1e5, {"y":null}, "z\u12AF", true, false, -0.5E-3 ] } ` + "\r\n\t", true},
	{`{"s":null,"i":null,"f":null,"b":null,"l":null,"r":null,"o":null}`, true},
	{`{"s":"x","s":null,"i":1,"i":null,"l":[1],"l":[],"o":{"s":"1"},"o":{"i":2}}`, true},
	{`{"s":"é\u0000","s":"\ud83d\ude00","s":"\ud83d"}`, true},
	{"{\"s\":\"\xff\xfe\"}", true},
	{`{}`, true}, {`null`, true}, {`{"i":999999999999999999}`, true}, {`{"i":-0,"f":-0}`, true}, {`{"l":[]}`, true},
	{`{"S":"a"}`, false}, {`{"ſ":"a"}`, false}, {`{"\u0073":"a"}`, false}, {`{"i":1.0}`, false}, {`{"i":1e3}`, false}, {`{"i":9999999999999999999}`, false},
	{`{"i":01}`, false}, {`{"f":1e999}`, false}, {`{"f":.5}`, false}, {`{"f":1.}`, false}, {`{"x":1e}`, false}, {`{"x":-}`, false}, {`{"l":[null]}`, false}, {`{"l":[2147483648]}`, false}, {`{"l":[1,]}`, false},
	{`{"s":5}`, false}, {`{"b":1}`, false}, {`{"o":[]}`, false}, {`{"l":{}}`, false}, {`{"s":"a"`, false}, {`{"s":"a"}x`, false}, {`{"s":"a",}`, false}, {`{"s" "a"}`, false},
	{"{\"s\":\"a\x01\"}", false}, {`{"s":"\x"}`, false}, {`{"s":"\u12g4"}`, false}, {`{"s":"\u12`, false}, {`{"x":nul}`, false}, {`{"x":tru}`, false}, {`{"b":truth}`, false}, {"{\"x\":\x00}", false}, {"\x00", false}, {"{}\x00", false},
	{`[]`, false}, {`7`, false}, {``, false}, {`{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, false}, {`{"x":` + strings.Repeat(`{"a":`, 20) + "1" + strings.Repeat("}", 20) + `}`, true},
}

func TestReader(t *testing.T) {
	for _, c := range seeds {
		if took := agree(t, []byte(c.in)); took != c.took {
			t.Errorf("%q: took it %v, want %v", c.in, took, c.took)
		}
	}
}

// FuzzReader holds that whatever is taken, is what encoding/json makes of it.
func FuzzReader(f *testing.F) {
	for _, c := range seeds {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, data []byte) { agree(t, data) })
}
