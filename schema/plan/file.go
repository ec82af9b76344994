package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Encode is the plan as the text of plan.json. Decoding it and encoding it
// again gives the same bytes.
func (p Plan) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return b.Bytes(), nil
}

// Decode reads the text of a plan.json; file names it in errors. A plan is
// followed to the letter, so a field that this version does not know is an
// error as much as a damaged file is.
func Decode(file string, data []byte) (Plan, error) {
	fail := func(err error) (Plan, error) {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return Plan{}, fmt.Errorf("%s: damaged at byte %d: %w", file, syntax.Offset, err)
		case errors.As(err, &typ):
			return Plan{}, fmt.Errorf("%s: damaged at byte %d: %w", file, typ.Offset, err)
		}
		return Plan{}, fmt.Errorf("%s: %w", file, err)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fail(err)
	}
	switch {
	case head.Format > FormatVersion:
		return fail(fmt.Errorf("plan format %d, this twopoint follows plans up to format %d: upgrade twopoint", head.Format, FormatVersion))
	case head.Format < 1:
		return fail(errors.New("not a plan: it has no format number"))
	}
	var p Plan
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return fail(err)
	}
	if err := p.check(); err != nil {
		return fail(err)
	}
	return p, nil
}

// check tells whether the plan's parts fit together.
func (p Plan) check() error {
	variants := make(map[string]bool, len(p.Variants))
	for _, v := range p.Variants {
		if v.ID == "" || v.Name == "" || variants[v.Name] {
			return fmt.Errorf("damaged: variant %q has no id, no name or a name that is taken", v.Name)
		}
		variants[v.Name] = true
	}
	ids := make(map[string]bool, len(p.Points))
	for _, pt := range p.Points {
		if pt.ID == "" || ids[pt.ID] {
			return fmt.Errorf("damaged: point %s has no id or one that is taken", pt.Key)
		}
		ids[pt.ID] = true
		if !variants[pt.Variant] {
			return fmt.Errorf("damaged: point %s is of variant %q, which is not in the plan", pt.Key, pt.Variant)
		}
		if pt.Context < 1 || pt.Concurrency < 1 {
			return fmt.Errorf("damaged: point %s has context %d and concurrency %d", pt.Key, pt.Context, pt.Concurrency)
		}
	}
	orders := make(map[string]bool, len(p.Orders))
	for _, o := range p.Orders {
		if o.ID == "" || orders[o.ID] {
			return fmt.Errorf("damaged: order %q has no id or one that is taken", o.ID)
		}
		orders[o.ID] = true
		for _, name := range o.Variants {
			if !variants[name] {
				return fmt.Errorf("damaged: order %s deploys variant %q, which is not in the plan", o.ID, name)
			}
		}
	}
	return nil
}
