package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"sort"
	"strings"
)

// canonical rewrites JSON text into the one form that CanonicalJSON promises.
func canonical(text []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := writeCanonical(&out, v); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func writeCanonical(out *bytes.Buffer, v any) error {
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		out.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := writeCanonical(out, k); err != nil {
				return err
			}
			out.WriteByte(':')
			if err := writeCanonical(out, v[k]); err != nil {
				return err
			}
		}
		out.WriteByte('}')
	case []any:
		out.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := writeCanonical(out, e); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	case json.Number:
		n, err := canonicalNumber(v.String())
		if err != nil {
			return err
		}
		out.WriteString(n)
	default:
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		out.Write(b)
	}
	return nil
}

// canonicalNumber writes a JSON number exactly: integers in plain digits,
// others as a decimal without trailing zeros. Exponents beyond what any setting
// needs are kept as written, so that 1e999999 cannot ask for a megabyte.
func canonicalNumber(s string) (string, error) {
	if _, exp, ok := strings.Cut(strings.ToLower(s), "e"); ok && len(strings.TrimLeft(exp, "+-0")) > 3 {
		return strings.ToLower(s), nil
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return "", fmt.Errorf("%q is not a number", s)
	}
	if r.IsInt() {
		return r.Num().String(), nil
	}
	prec := len(s)
	if _, exp, ok := strings.Cut(strings.ToLower(s), "e"); ok {
		var e int
		fmt.Sscan(exp, &e)
		if e < 0 {
			prec -= e
		}
	}
	return strings.TrimRight(r.FloatString(prec), "0"), nil
}
