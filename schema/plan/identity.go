package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"twopoint/schema"
)

// idLen is the length of ids in hex digits.
const idLen = 12

// content is what identifies a variant: everything that decides which server
// answers and how it computes. Not in it are names (variant, base, server),
// address and port, the container's runtime, the time-out, and the paths of
// files (their hash is). The URL is in it because nothing else that we know
// identifies a server that we do not start. Flush is in it because it decides
// flags and switches of the prefix cache (design.md 5). Names are the
// language's, so that a difference can be named.
type content struct {
	Engine        string                     `json:"engine"`
	URL           string                     `json:"url,omitempty"`
	ModelPath     string                     `json:"model_path,omitempty"`
	ServedName    string                     `json:"served_name,omitempty"`
	ContextLength int                        `json:"context_length,omitempty"`
	TP            int                        `json:"tp,omitempty"`
	DP            int                        `json:"dp,omitempty"`
	PP            int                        `json:"pp,omitempty"`
	DCP           int                        `json:"dcp,omitempty"`
	Args          map[string]any             `json:"args,omitempty"`
	Env           map[string]schema.EnvValue `json:"env,omitempty"`
	Command       []string                   `json:"command,omitempty"`
	Setup         string                     `json:"setup,omitempty"`
	Cwd           string                     `json:"cwd,omitempty"`
	FilesHash     string                     `json:"files,omitempty"`
	Build         [][]string                 `json:"build,omitempty"`
	Container     *container                 `json:"container,omitempty"`
	Flush         string                     `json:"flush,omitempty"`
	Model         *geometry                  `json:"model,omitempty"`
}

type container struct {
	Image string   `json:"image"`
	Args  []string `json:"args,omitempty"`
}

// geometry is the model without how it was written (a preset) and without what
// only scales derived figures.
type geometry struct {
	Name   string        `json:"name,omitempty"`
	Heads  int           `json:"heads"`
	Layers schema.Layers `json:"layers"`
	KV     schema.KV     `json:"kv"`
	DType  string        `json:"dtype"`
}

func contentOf(v schema.Variant) content {
	c := content{
		Engine: v.Engine, URL: v.URL, ModelPath: v.ModelPath, ServedName: v.ServedName,
		ContextLength: v.ContextLength, TP: v.TP, DP: v.DP, PP: v.PP, DCP: v.DCP,
		Args: v.Args, Env: v.Env, Command: v.Command, Setup: v.Setup, Cwd: v.Cwd,
		FilesHash: v.FilesHash, Build: v.Build, Flush: v.Flush,
	}
	if v.Container != nil {
		c.Container = &container{v.Container.Image, v.Container.Args}
	}
	return c
}

func geometryOf(m *schema.Model) *geometry {
	if m == nil {
		return nil
	}
	return &geometry{m.Name, m.Heads, m.Layers, m.KV, m.DType}
}

// variantID is the first 12 hex digits of SHA-256 over the canonical JSON of
// what identifies the variant.
func variantID(v schema.Variant, m *schema.Model) (string, error) {
	c := contentOf(v)
	c.Model = geometryOf(m)
	b, err := schema.CanonicalJSON(c)
	if err != nil {
		return "", fmt.Errorf("has no identity: %w", err)
	}
	return hash(b), nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:idLen/2])
}

// methodContent is the method without its stopping rule: how long a point is
// measured does not change what is measured.
func methodContent(m schema.Method) map[string]any {
	l := m.Legs()
	switch {
	case m.TwoPoint != nil:
		return map[string]any{m.Name(): map[string]any{"a": l.A, "b": l.B, "warmup": l.Warmup, "settle": l.Settle}}
	case m.Stream != nil:
		return map[string]any{m.Name(): map[string]any{"tokens": l.B, "warmup": l.Warmup, "settle": l.Settle}}
	case m.MultiPoint != nil:
		return map[string]any{m.Name(): map[string]any{"a": l.A, "b": l.B, "budgets": m.MultiPoint.Budgets, "warmup": l.Warmup, "settle": l.Settle}}
	case m.DecodeAtDepth != nil:
		return map[string]any{m.Name(): map[string]any{"a": l.A, "b": l.B, "warmup": l.Warmup}}
	}
	return map[string]any{}
}

// promptContent is the prompt, its file by content and not by path.
func promptContent(p schema.Prompt) schema.Prompt {
	p.File = ""
	return p
}

// pointIDs gives the ids of points under one method and prompt: the first 12
// hex digits of SHA-256 over the canonical JSON of {concurrency, context,
// method, prompt, variant_id}. What is common to the points is encoded once.
func pointIDs(m schema.Method, p schema.Prompt) (func(variantID string, c cell) string, error) {
	common, err := schema.CanonicalJSON(map[string]any{"method": methodContent(m), "prompt": promptContent(p)})
	if err != nil {
		return nil, fmt.Errorf("has no identity: %w", err)
	}
	tail := string(common[1:len(common)-1]) + `,"variant_id":"`
	var buf []byte
	return func(variantID string, c cell) string {
		buf = append(buf[:0], `{"concurrency":`...)
		buf = strconv.AppendInt(buf, int64(c.concurrency), 10)
		buf = append(buf, `,"context":`...)
		buf = strconv.AppendInt(buf, int64(c.context), 10)
		buf = append(buf, ',')
		buf = append(buf, tail...)
		buf = append(buf, variantID...)
		buf = append(buf, `"}`...)
		return hash(buf)
	}, nil
}
