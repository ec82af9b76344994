package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Pieces finds what is new in each event of a stream whose events may hold
// everything so far (cumulative) or only what is new (incremental). It is
// decided at the first event that follows another with content, and for good.
type Pieces[T comparable] struct {
	all        []T // the first event with content
	n          int64
	decided    bool
	cumulative bool
}

// New returns what is new in content. total is the number of elements generated
// so far as the server counts them, or -1; with it the decision is certain.
// Without, a stream is cumulative if its second event continues its first.
func (p *Pieces[T]) New(content []T, total int64) []T {
	if len(content) == 0 {
		return nil
	}
	if !p.decided && p.n > 0 {
		size := int64(len(content))
		longer := size >= p.n && slices.Equal(content[:p.n], p.all)
		switch {
		case total == p.n+size: // only the new ones
		case total == size:
			p.cumulative = true
		default:
			p.cumulative = longer
		}
		p.decided = true
	}
	if !p.decided || p.cumulative {
		fresh := content[min(int64(len(content)), p.n):]
		if p.n = int64(len(content)); !p.decided {
			p.all = slices.Clone(content)
		}
		return fresh
	}
	p.n += int64(len(content))
	return content
}

// WaitGauges waits until the sum of the named gauges of GET /metrics is 0, in
// Prometheus' text format. The error wraps ErrUnknown where there are none.
func WaitGauges(ctx context.Context, c *Client, names ...string) error {
	for try := 0; ; try++ {
		var text string
		if _, err := c.Do(ctx, AskWithin, http.MethodGet, "/metrics", nil, &text); err != nil {
			var status *StatusError
			if errors.As(err, &status) {
				return fmt.Errorf("%w whether it is idle: %w", ErrUnknown, err)
			}
			return err
		}
		busy, found := gauges(text, names)
		if !found {
			return fmt.Errorf("%w whether it is idle: GET /metrics has none of %s", ErrUnknown, strings.Join(names, ", "))
		}
		if busy == 0 {
			return nil
		}
		if err := BackOff(ctx, try); err != nil {
			return err
		}
	}
}

// gauges sums the samples of the named metrics over all labels.
func gauges(text string, names []string) (sum float64, found bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		end := strings.IndexAny(line, "{ ")
		if end < 0 || !slices.Contains(names, line[:end]) {
			continue
		}
		// A label's value may hold spaces and braces: the number follows the last.
		fields := strings.Fields(line[max(end, strings.LastIndex(line, "}")+1):])
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			sum, found = sum+v, true
		}
	}
	return sum, found
}
