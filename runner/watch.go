package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"twopoint/results/event"
	"twopoint/results/history"
	"twopoint/results/stat"
	"twopoint/runner/failure"
)

// Codes of notes about the machine.
const (
	noteForeign     = "foreign-process"
	notePowerCap    = "power-cap-not-applied"
	notePowerUnseen = "power-cap-unknown"
	noteSensor      = "gpu-sensor"
)

// duringEvery is the pace of readings in the course of a pair that enters no
// estimate: the only ones that are made under load.
const duringEvery = time.Second

// Under host.foreign "stop" a launch waits a little for strangers to go: the
// driver goes on listing a process for a moment after its end.
const (
	foreignLooks = 3
	foreignPause = time.Second
)

// watchLaunch reads the machine before a server's life: processes of others on
// its GPUs are noted, or keep the server from being started where the spec says
// so; the power cap in force is compared with the one asked for. No process is
// ended and no cap is set.
func (l *life) watchLaunch(ctx context.Context, a *Agent, managed bool) (*event.Failure, error) {
	if a.Monitor == nil {
		return nil, nil
	}
	stop := managed && a.Order.Plan.Host.Foreign == "stop"
	var found []string
	for look := 1; ; look++ {
		t := a.Monitor.Launch(ctx, managed)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t.DeploymentID = l.id
		if err := a.reading(l.variant.Name, t); err != nil {
			return nil, err
		}
		found = nil
		visible := l.visibleGPUs(t.GPUs)
		for _, p := range t.Processes {
			if p.Owner != event.OwnerOwn && (p.GPU == nil || visible[*p.GPU]) {
				found = append(found, stat.Describe(p))
			}
		}
		if !stop || len(found) == 0 || look == foreignLooks {
			if err := a.checkPowerCap(l.variant.Name, t.GPUs, visible); err != nil {
				return nil, err
			}
			break
		}
		select {
		case <-time.After(foreignPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if !managed || len(found) == 0 {
		return nil, nil
	}
	text := "on the GPUs before the launch: " + strings.Join(found, "; ")
	if !stop {
		return nil, a.note(l.variant.Name, noteForeign, text)
	}
	return l.outcome(failure.Finding{
		Kind: failure.StartError, Scope: failure.Host, Signature: noteForeign,
		Message: `not started, for host.foreign is "stop": ` + text, Evidence: found,
	}, failure.Launch), nil
}

// visibleGPUs are the GPUs that the server can see: those that
// CUDA_VISIBLE_DEVICES names in its environment, by index or by the beginning of
// a UUID (CUDA programming guide, environment variables), else all. A name that
// is neither makes all of them visible. nvidia-smi and CUDA count GPUs alike
// where they are of one kind or CUDA_DEVICE_ORDER is PCI_BUS_ID.
func (l *life) visibleGPUs(gpus []event.GPUReading) map[int]bool {
	const name = "CUDA_VISIBLE_DEVICES"
	value, set := os.LookupEnv(name)
	if e, ok := l.variant.Env[name]; ok && e.Secret == "" {
		value, set = e.Value, true
	}
	all, some := map[int]bool{}, map[int]bool{}
	known := true
	for _, g := range gpus {
		all[g.Index] = true
	}
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		index, err := strconv.Atoi(word)
		if err == nil && !all[index] { // CUDA stops reading at an index that does not exist
			break
		}
		found := false
		for _, g := range gpus {
			if err == nil && g.Index == index || err != nil && strings.HasPrefix(word, "GPU-") && strings.HasPrefix(g.UUID, word) {
				some[g.Index], found = true, true
			}
		}
		known = known && (found || word == "")
	}
	if !set || !known {
		return all
	}
	return some
}

// checkPowerCap notes where a cap that the spec asks for is not the one in force
// on a GPU that the server can see.
func (a *Agent) checkPowerCap(variant string, gpus []event.GPUReading, visible map[int]bool) error {
	asked := a.Order.Plan.Host.PowerW
	if asked <= 0 {
		return nil
	}
	var other []string
	seen := false
	for _, g := range gpus {
		if g.PowerLimitW == nil || !visible[g.Index] {
			continue
		}
		seen = true
		if !stat.SameCap(asked, *g.PowerLimitW) {
			other = append(other, fmt.Sprintf("GPU %d is capped at %g W", g.Index, *g.PowerLimitW))
		}
	}
	switch {
	case !seen:
		return a.note(variant, notePowerUnseen, fmt.Sprintf("host.power_w asks for a cap of %g W, and no sensor tells which cap is in force", asked))
	case len(other) > 0:
		return a.note(variant, notePowerCap, fmt.Sprintf("host.power_w asks for a cap of %g W, which twopoint does not set: %s", asked, strings.Join(other, ", ")))
	}
	return nil
}

// watch reads the machine before a pair; end does so after it, and in between
// where the pair is a warm-up. Readings are left out that would take more than a
// tenth of the time, but not the one after a point's last pair.
func (a *Agent) watch(ctx context.Context, l *life, p *history.Point, role string, repeat int) (end func() error, err error) {
	if a.Monitor == nil {
		return func() error { return nil }, nil
	}
	read := func(moment string) event.Telemetry {
		t := a.Monitor.Read(ctx)
		t.DeploymentID, t.PointID, t.Role, t.Repeat, t.Moment = l.id, p.ID, role, repeat, moment
		return t
	}
	if a.Monitor.Due() {
		if t := read(event.MomentBefore); ctx.Err() == nil {
			if err := a.reading(l.variant.Name, t); err != nil {
				return nil, err
			}
		}
	}
	stop, during := make(chan struct{}), make(chan []event.Telemetry, 1)
	if role == event.RoleWarmup {
		go func() {
			var list []event.Telemetry
			tick := time.NewTicker(duringEvery)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					during <- list
					return
				case <-tick.C:
					if a.Monitor.Due() {
						list = append(list, read(event.MomentDuring))
					}
				}
			}
		}()
	} else {
		during <- nil
	}
	return func() error {
		close(stop)
		list := <-during
		if ctx.Err() != nil {
			return nil
		}
		done := false
		if role == event.RoleMeasure {
			done, _ = p.Done(l.id)
		}
		if done || a.Monitor.Due() {
			if t := read(event.MomentAfter); ctx.Err() == nil {
				list = append(list, t)
			}
		}
		return a.reading(l.variant.Name, list...)
	}, nil
}

// reading records readings, and once a run what keeps the GPUs from being read.
func (a *Agent) reading(variant string, list ...event.Telemetry) error {
	var events []event.Event
	var err error
	for _, t := range list {
		events = append(events, event.Event{Type: event.TypeTelemetry, Telemetry: &t})
		if t.Error != "" {
			err = errors.Join(err, a.note(variant, noteSensor, "the GPUs could not be read: "+t.Error))
		}
	}
	if len(events) == 0 {
		return err
	}
	return errors.Join(err, a.Record(events...))
}

// note records a note about a variant unless the run has one of that code for it
// that says the same; of a failing sensor there is one a run.
func (a *Agent) note(variant, code, text string) error {
	if slices.ContainsFunc(a.History.Notes, func(n event.Note) bool {
		return n.Code == code && (code == noteSensor || n.Variant == variant && n.Text == text)
	}) {
		return nil
	}
	return a.Record(event.Event{Type: event.TypeNote, Note: &event.Note{Code: code, Variant: variant, Text: text}})
}
