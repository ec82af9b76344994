package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"twopoint/schema"
)

// Filter is one --only: an axis and what is wanted of it.
type Filter struct {
	Axis   string // variant | context | concurrency
	value  string
	ranges []schema.Range // of a numeric axis
}

func (f Filter) String() string { return f.Axis + "=" + f.value }

// ParseFilter reads "variant=a,b", "context=1024", "context=1024..8192,32Ki",
// "concurrency=2..". A range includes both ends and may lack one. Numbers take
// the suffixes of the language: K, M (1000) and Ki, Mi (1024).
func ParseFilter(s string) (Filter, error) {
	axis, value, ok := strings.Cut(s, "=")
	f := Filter{Axis: strings.TrimSpace(axis), value: strings.TrimSpace(value)}
	fail := func(why string) (Filter, error) {
		return Filter{}, fmt.Errorf("--only %s: %s", s, why)
	}
	switch {
	case !ok:
		return fail("write variant=NAME, context=1024..8192 or concurrency=4")
	case f.Axis != "variant" && f.Axis != "context" && f.Axis != "concurrency":
		return fail(fmt.Sprintf("%q is no axis; they are variant, context and concurrency", f.Axis))
	case f.value == "":
		return fail("nothing after the =")
	case f.Axis == "variant":
		return f, nil
	}
	for part := range strings.SplitSeq(f.value, ",") {
		r, err := parseRange(strings.TrimSpace(part))
		if err != nil {
			return fail(err.Error())
		}
		f.ranges = append(f.ranges, r)
	}
	return f, nil
}

func parseRange(s string) (r schema.Range, err error) {
	low, high, isRange := strings.Cut(s, "..")
	if !isRange {
		n, err := parseSize(s)
		return schema.Range{Values: []int{n}}, err
	}
	for _, end := range []struct {
		text string
		to   **int
	}{{low, &r.Min}, {high, &r.Max}} {
		if end.text = strings.TrimSpace(end.text); end.text != "" {
			n, err := parseSize(end.text)
			if err != nil {
				return r, err
			}
			*end.to = &n
		}
	}
	switch {
	case r.Min == nil && r.Max == nil:
		return r, fmt.Errorf("%q has neither end", s)
	case r.Min != nil && r.Max != nil && *r.Min > *r.Max:
		return r, fmt.Errorf("%q begins after its end", s)
	}
	return r, nil
}

func parseSize(s string) (int, error) {
	digits, factor := s, 1
	for _, unit := range []struct {
		suffix string
		factor int
	}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"K", 1000}, {"M", 1000_000}} {
		if rest, ok := strings.CutSuffix(s, unit.suffix); ok {
			digits, factor = rest, unit.factor
			break
		}
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(digits, "_", ""), 10, 31)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no positive whole number", s)
	}
	return int(n) * factor, nil
}

// Filter gives the ids of the points that all filters want, in the plan's
// order; several filters of one axis add up. What is left out stays pending. A
// name or number that no point has is an error, and so is an empty selection. A
// variant may be named by the declaration that its matrix cell comes from.
func (p Plan) Filter(only []Filter) ([]string, error) {
	wanted := map[string]map[string]bool{} // axis → value → wanted
	for _, f := range only {
		if wanted[f.Axis] == nil {
			wanted[f.Axis] = map[string]bool{}
		}
		matched, err := p.match(f)
		if err != nil {
			return nil, fmt.Errorf("--only %s: %w", f, err)
		}
		for _, v := range matched {
			wanted[f.Axis][v] = true
		}
	}
	var ids []string
	for _, pt := range p.Points {
		all := true
		for axis, values := range wanted {
			all = all && values[pt.value(axis)]
		}
		if all {
			ids = append(ids, pt.ID)
		}
	}
	if len(ids) == 0 {
		var all []string
		for _, f := range only {
			all = append(all, "--only "+f.String())
		}
		return nil, fmt.Errorf("no point of the plan is left: %s", strings.Join(all, " "))
	}
	return ids, nil
}

// value is the point's place on an axis, as text.
func (pt Point) value(axis string) string {
	switch axis {
	case "variant":
		return pt.Variant
	case "context":
		return strconv.Itoa(pt.Context)
	}
	return strconv.Itoa(pt.Concurrency)
}

// match lists the values of the filter's axis that it wants.
func (p Plan) match(f Filter) ([]string, error) {
	if f.Axis == "variant" {
		return p.matchVariants(f.value)
	}
	var have []int
	for _, pt := range p.Points {
		n := pt.Context
		if f.Axis == "concurrency" {
			n = pt.Concurrency
		}
		have = append(have, n)
	}
	slices.Sort(have)
	have = slices.Compact(have)
	var matched []string
	for i, r := range f.ranges {
		before := len(matched)
		for _, n := range have {
			if r.Contains(n) {
				matched = append(matched, strconv.Itoa(n))
			}
		}
		if len(matched) == before {
			texts := make([]string, len(have))
			for i, n := range have {
				texts[i] = strconv.Itoa(n)
			}
			part := strings.TrimSpace(strings.Split(f.value, ",")[i])
			return nil, fmt.Errorf("no point has %s %s; the plan has %s", f.Axis, part, few(texts))
		}
	}
	return matched, nil
}

// matchVariants finds the variants that a comma-separated list names. Names of
// matrix cells may hold commas themselves, so the longest name wins.
func (p Plan) matchVariants(list string) ([]string, error) {
	byName := map[string][]string{} // name or base → names
	var names []string
	for _, v := range p.Variants {
		names = append(names, v.Name)
		byName[v.Name] = []string{v.Name}
	}
	for _, v := range p.Variants {
		if v.Base != "" && v.Base != v.Name {
			byName[v.Base] = append(byName[v.Base], v.Name)
		}
	}
	var matched []string
	parts := strings.Split(list, ",")
	for len(parts) > 0 {
		n := len(parts)
		for n > 0 && byName[strings.TrimSpace(strings.Join(parts[:n], ","))] == nil {
			n--
		}
		if n == 0 {
			return nil, fmt.Errorf("no variant %q; the plan has %s", strings.TrimSpace(parts[0]), few(names))
		}
		matched = append(matched, byName[strings.TrimSpace(strings.Join(parts[:n], ","))]...)
		parts = parts[n:]
	}
	return matched, nil
}

// few joins a list for a message, shortened.
func few(list []string) string {
	const most = 12
	if len(list) > most {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
