package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"twopoint/schema"
)

// Times within which control requests are answered. None of them generates
// more than one token.
const (
	AskWithin   = 10 * time.Second
	TokenWithin = 2 * time.Minute // a first token may compile kernels
)

// Models is the answer of GET /v1/models, which all servers share.
type Models struct {
	Data []struct {
		ID          string `json:"id"`
		Root        string `json:"root"`
		OwnedBy     string `json:"owned_by"`
		MaxModelLen int    `json:"max_model_len"`
		Meta        struct {
			NCtx int `json:"n_ctx"` // llama.cpp
		} `json:"meta"`
	} `json:"data"`
}

// Model is the name to send with requests: the one asked for, else the first
// that the server has.
func (m Models) Model(v schema.Variant) string {
	if v.ServedName == "" && len(m.Data) > 0 {
		return m.Data[0].ID
	}
	return v.ServedName
}

// Limit is the model's context limit as the list gives it, or 0.
func (m Models) Limit(model string) int {
	for _, d := range m.Data {
		if d.ID == model {
			return max(d.MaxModelLen, d.Meta.NCtx)
		}
	}
	return 0
}

// Expect is an error unless the variant's model is among those that the server
// lists: another server may have the port. A variant of a server that we do not
// start may name no model; then any will do. An empty list is not ready yet.
func (m Models) Expect(v schema.Variant) error {
	if len(m.Data) == 0 {
		return fmt.Errorf("%w: the server lists no model", ErrNotYet)
	}
	want := v.ServedName
	if want == "" {
		want = v.ModelPath
	}
	if want == "" {
		return nil
	}
	var have []string
	for _, d := range m.Data {
		for _, name := range []string{d.ID, d.Root} {
			if name == want || v.ServedName == "" && path.Base(name) == path.Base(want) {
				return nil
			}
		}
		have = append(have, d.ID)
	}
	return fmt.Errorf("another model answers here: %q was expected, the server has %q", want, have)
}

// ReadModels asks for the list of models.
func ReadModels(ctx context.Context, c *Client) (Models, error) {
	var m Models
	_, err := c.Do(ctx, AskWithin, http.MethodGet, "/v1/models", nil, &m)
	return m, err
}

// Ready is what Engine.Ready has in common: the expected model is listed, and one,
// which asks for a token of it, gets one.
func Ready(ctx context.Context, c *Client, v schema.Variant, one func(ctx context.Context, model string) (tokens int64, err error)) error {
	models, err := ReadModels(ctx, c)
	if err != nil {
		return NotYet(err)
	}
	if err := models.Expect(v); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, TokenWithin)
	defer cancel()
	n, err := one(ctx, models.Model(v))
	if err != nil {
		return NotYet(err)
	}
	if n != 1 {
		return errors.New("the server answered a request for one token without one")
	}
	return nil
}

// NotYet wraps err with ErrNotYet if it is what a starting server answers: no
// connection, a cut one, no answer in time, 408, 425, 429 or 5xx. Any other
// status and ErrUnreadable are final.
func NotYet(err error) error {
	if err == nil || errors.Is(err, ErrNotYet) || errors.Is(err, ErrUnreadable) {
		return err
	}
	var status *StatusError
	if errors.As(err, &status) {
		switch {
		case status.Status == http.StatusRequestTimeout, status.Status == http.StatusTooEarly,
			status.Status == http.StatusTooManyRequests, status.Status >= 500:
		default:
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrNotYet, err)
}

// maxReportedS is the longest time in seconds that a server is believed.
const maxReportedS = 1e9

// Seconds is a time that a server reports in units of which so many are a second;
// nil where it reports none, or one that is not positive.
func Seconds(reported *float64, perSecond float64) *float64 {
	if reported == nil || !(*reported > 0) || *reported > maxReportedS*perSecond {
		return nil
	}
	s := *reported / perSecond
	return &s
}

// PerToken is a server's own decode time over the steps that it spans: those after
// the first of tokens, which the prompt's last batch yields. It is nil for a single
// token.
func PerToken(decodeS *float64, tokens *int64) *float64 {
	if decodeS == nil || tokens == nil || *tokens < 2 {
		return nil
	}
	s := *decodeS / float64(*tokens-1)
	return &s
}

// Bounds on what Flat keeps.
const (
	maxSettings = 1000
	maxSetting  = 1 << 10
)

// Flat keeps the strings, booleans and numbers of a settings object under
// dotted names, without lists, nulls, long strings and anything that may be a
// secret.
func Flat(settings map[string]any) map[string]any {
	flat := map[string]any{}
	flatten(flat, "", settings)
	return flat
}

func flatten(into map[string]any, prefix string, settings map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		if len(into) >= maxSettings {
			return
		}
		if secret(k) {
			continue
		}
		switch v := settings[k].(type) {
		case string:
			if len(v) <= maxSetting {
				into[prefix+k] = strings.ToValidUTF8(v, "?")
			}
		case bool, json.Number:
			into[prefix+k] = v
		case map[string]any:
			flatten(into, prefix+k+".", v)
		}
	}
}

func secret(key string) bool {
	key = strings.ToLower(key)
	for _, s := range []string{"api_key", "password", "secret", "auth", "credential", "hf_token"} {
		if strings.Contains(key, s) {
			return true
		}
	}
	return false
}

// BackOff waits between tries: 20 ms, doubling up to one second. It returns
// the context's error if that ends first.
func BackOff(ctx context.Context, try int) error {
	t := time.NewTimer(min(time.Second, 20*time.Millisecond<<min(try, 10)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
