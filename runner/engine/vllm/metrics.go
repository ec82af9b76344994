package vllm

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"twopoint/runner/engine"
)

// metrics is what GET /metrics says: every metric of vLLM, summed over its
// labels (engines, reasons to finish), and the labels of cache_config_info,
// which hold the configuration of the KV cache.
type metrics struct {
	sum   map[string]float64
	cache map[string]string
}

func scrape(ctx context.Context, c *engine.Client) (metrics, error) {
	var text string
	_, err := c.Do(ctx, engine.AskWithin, http.MethodGet, "/metrics", nil, &text)
	return parseMetrics(text), err
}

// idle tells whether the server says that no request is running or queued.
func (m metrics) idle() bool {
	running, says := m.sum["vllm:num_requests_running"]
	return says && running+m.sum["vllm:num_requests_waiting"] == 0
}

// finished is how many requests have ended since the server began.
const finished = "vllm:request_success_total"

// delta is by how much a counter has grown since before, where both have it.
func (m metrics) delta(before metrics, name string) (int64, bool) {
	now, has := m.sum[name]
	then, had := before.sum[name]
	return int64(now - then), has && had && now >= then && now-then < 1<<53
}

// parseMetrics reads Prometheus' text format. Lines that are none of vLLM's are
// skipped; of several engines the first one's cache configuration is kept.
func parseMetrics(text string) metrics {
	m := metrics{sum: map[string]float64{}}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "vllm:") {
			continue
		}
		line = strings.TrimSpace(line)
		end := strings.IndexAny(line, "{ ")
		if end < 0 {
			continue
		}
		name, rest := line[:end], line[end:]
		labels := map[string]string{}
		if rest[0] == '{' {
			var ok bool
			if labels, rest, ok = parseLabels(rest[1:]); !ok {
				continue
			}
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ") // a time may follow
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || v != v {
			continue
		}
		m.sum[name] += v
		if name == "vllm:cache_config_info" && m.cache == nil {
			m.cache = labels
		}
	}
	return m
}

// parseLabels reads label="value",…} and returns what follows the brace. Values
// escape quotes, backslashes and line feeds.
func parseLabels(s string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		s = strings.TrimLeft(s, ", ")
		if rest, ended := strings.CutPrefix(s, "}"); ended {
			return labels, rest, true
		}
		name, after, found := strings.Cut(s, `="`)
		if !found {
			return nil, "", false
		}
		var value strings.Builder
		i := 0
		for ; i < len(after) && after[i] != '"'; i++ {
			if after[i] == '\\' && i+1 < len(after) {
				i++
				if after[i] == 'n' {
					value.WriteByte('\n')
					continue
				}
			}
			value.WriteByte(after[i])
		}
		if i == len(after) {
			return nil, "", false
		}
		labels[name], s = value.String(), after[i+1:]
	}
}
