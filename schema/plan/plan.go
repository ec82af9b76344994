// Package plan turns an experiment into everything that will be done: variants
// with their identities, points, and work orders. It is pure: it reads no file,
// no clock and no network. A run follows the plan in its folder and nothing
// else, so a plan is complete and round-trips through plan.json.
package plan

import "twopoint/schema"

// FormatVersion is the version of plan.json.
const FormatVersion = 1

// Plan is a spec fully resolved. Title, Question and Published are for
// display; everything else is acted on.
type Plan struct {
	Format     int    `json:"format"`
	Experiment string `json:"experiment"`
	SpecHash   string `json:"spec_hash"` // of the spec's files as read

	Title    string `json:"title,omitempty"`
	Question string `json:"question,omitempty"`

	Seed      int64             `json:"seed"` // orders variants; bodies of prompts have their own
	Model     *schema.Model     `json:"model,omitempty"`
	Prompt    schema.Prompt     `json:"prompt"`
	Method    schema.Method     `json:"method"`
	Budget    schema.Budget     `json:"budget"`
	Limits    schema.Limits     `json:"limits"`
	Host      schema.HostPolicy `json:"host"`
	Gate      *schema.Gate      `json:"gate,omitempty"`
	OnFailure string            `json:"on_failure,omitempty"`
	Expect    *schema.Expect    `json:"expect,omitempty"`
	Baseline  string            `json:"baseline,omitempty"`

	KernelBench *schema.KernelBench         `json:"kernel_bench,omitempty"`
	Published   map[string]schema.Published `json:"published,omitempty"`

	Variants []Variant `json:"variants"` // as declared
	Points   []Point   `json:"points"`   // by variant as declared, then concurrency, then context, ascending
	Orders   []Order   `json:"orders"`
}

// Variant is a resolved server configuration with its identity: 12 hex digits
// of SHA-256 over canonical JSON of what reaches the server (design.md 2).
type Variant struct {
	ID string `json:"id"`
	schema.Variant
}

// Point is one cell to be measured. ID adds method, prompt, context and
// concurrency to the variant's identity; Key = variant/context/concurrency is
// its readable name, which survives an edit of the variant.
type Point struct {
	ID          string `json:"point_id"`
	Key         string `json:"point_key"`
	Variant     string `json:"variant"` // name
	Context     int    `json:"context"` // prompt tokens asked for
	Concurrency int    `json:"concurrency"`
}

// Order is the part of a plan that one machine executes, by reference.
type Order struct {
	ID       string        `json:"id"` // o1, o2, …; names the event file
	Target   schema.Target `json:"target"`
	Variants []string      `json:"variants"` // in the order in which they are deployed
}

// WorkOrder is an order with everything in it that an agent needs: a plan
// restricted to the order's variants and points.
type WorkOrder struct {
	RunID string `json:"run_id"`
	Order Order  `json:"order"`
	Plan  Plan   `json:"plan"`
}
