package table

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"twopoint/results/event"
)

// TelemetryRow is what one reading says of the machine or of one GPU.
type TelemetryRow struct {
	runKey
	Order        string    `col:"order_id" doc:"work order that the reading belongs to"`
	Seq          int64     `col:"seq" doc:"number of the reading's event within the order"`
	Device       string    `col:"device" doc:"host, or gpu0, gpu1, … as nvidia-smi counts"`
	At           time.Time `col:"at" doc:"UTC wall clock"`
	DeploymentID string    `col:"deployment_id" doc:"the server's life under way"`
	Variant      string    `col:"variant" doc:"name of the server configuration"`
	PointID      string    `col:"point_id" doc:"point of the pair around which it was made; null before a launch"`
	PointKey     string    `col:"point_key" doc:"readable name of that point"`
	Role         string    `col:"role" doc:"role of that pair: measure, warmup, pilot, drift or cold"`
	Repeat       *int64    `col:"repeat" doc:"number of that pair"`
	Moment       string    `col:"moment" doc:"launch (just before), before, during or after the pair; during only in pairs that enter no estimate"`

	UUID        string   `col:"gpu_uuid" doc:"identity of the GPU"`
	SMClock     *float64 `col:"sm_clock_mhz" unit:"MHz" doc:"clock of the GPU's multiprocessors"`
	MemClock    *float64 `col:"mem_clock_mhz" unit:"MHz" doc:"clock of the GPU's memory"`
	Power       *float64 `col:"power_w" unit:"W" doc:"power that the GPU draws"`
	PowerLimit  *float64 `col:"power_limit_w" unit:"W" doc:"power cap in force"`
	Temperature *float64 `col:"temperature_c" unit:"degree C" doc:"temperature of the GPU; of the host's hottest CPU sensor"`
	Reasons     string   `col:"throttle_reasons" doc:"what holds the GPU's clocks below their maximum, by the driver's names, comma-separated; none: nothing; null: not reported"`
	Throttled   string   `col:"throttled_s" unit:"s" doc:"seconds for which each limit has held the clocks since the driver was loaded, as a JSON object; null: not counted"`
	MemoryUsed  *int64   `col:"memory_used_bytes" unit:"byte" doc:"GPU memory in use, by all"`
	Utilisation *float64 `col:"utilisation" doc:"share of the driver's last sampling period in which a kernel ran"`
	Processes   string   `col:"processes" doc:"what computes on the GPU, as a JSON list; owner is own, resident (there before the server) or foreign (come since); null: not known, or none"`
	Foreign     *int64   `col:"foreign_processes" doc:"processes on the GPU that came since the server was started and are not its own; null: not known"`

	CPUs            *int64   `col:"cpus" doc:"logical CPUs of the host"`
	CPUClock        *float64 `col:"cpu_clock_mhz" unit:"MHz" doc:"mean over the host's CPUs"`
	ThrottleCount   *int64   `col:"cpu_throttle_count" doc:"times that a core was slowed for heat, since boot"`
	Load1           *float64 `col:"load_1min" doc:"load average of the host"`
	MemoryAvailable *int64   `col:"memory_available_bytes" unit:"byte" doc:"main memory that can be had without swapping"`
	MemoryPressure  *float64 `col:"memory_pressure" doc:"share of the last 10 s in which something waited for memory"`
	OtherCPUs       *float64 `col:"other_cpus" doc:"CPUs in use by processes outside the run, over interval_s; null where the server is not ours: its time cannot be told apart"`
	IntervalS       *float64 `col:"interval_s" unit:"s" doc:"time up to the reading that other_cpus is over"`

	TookS *float64 `col:"took_s" unit:"s" doc:"what the reading cost, outside all timed requests; in the host's row"`
	Error string   `col:"error" doc:"why GPUs or processes are not known although nvidia-smi is there; in the host's row"`
}

// telemetry are the readings: of each a row for the host and one for every GPU.
func (d *deriver) telemetry() []TelemetryRow {
	var rows []TelemetryRow
	for _, e := range d.h.Readings {
		t := e.Telemetry
		base := TelemetryRow{
			runKey: d.id, Order: e.Order, Seq: e.Seq, At: t.At, DeploymentID: t.DeploymentID, PointID: t.PointID,
			Role: t.Role, Repeat: positive(int64(t.Repeat)), Moment: t.Moment,
		}
		if l := d.h.Life(t.DeploymentID); l != nil {
			base.Variant = l.Variant
		}
		if p := d.h.Point(t.PointID); p != nil {
			base.PointKey = p.Key
		}
		r, h := base, t.Host
		r.Device, r.TookS, r.Error = "host", &t.TookS, t.Error
		r.CPUs, r.CPUClock, r.Temperature, r.ThrottleCount, r.Load1 = positive(int64(h.CPUs)), h.CPUClockMHz, h.Temperature, h.ThrottleCount, h.Load1
		r.MemoryAvailable, r.MemoryPressure, r.OtherCPUs, r.IntervalS = h.MemoryAvailable, h.MemoryPressure, h.OtherCPUs, h.IntervalS
		rows = append(rows, r)
		for _, g := range t.GPUs {
			r := base
			r.Device, r.UUID = fmt.Sprintf("gpu%d", g.Index), g.UUID
			r.SMClock, r.MemClock, r.Power, r.PowerLimit, r.Temperature = g.SMClockMHz, g.MemClockMHz, g.PowerW, g.PowerLimitW, g.Temperature
			r.MemoryUsed, r.Utilisation, r.Reasons = g.MemoryUsed, g.Utilisation, reasonsText(g.ThrottleReasons)
			if g.ThrottledS != nil {
				r.Throttled = jsonText(g.ThrottledS)
			}
			if t.Processes != nil {
				var on []event.GPUProcess
				foreign := 0
				for _, p := range t.Processes {
					if p.GPU == nil || *p.GPU != g.Index {
						continue
					}
					on = append(on, p)
					if p.Owner == event.OwnerForeign {
						foreign++
					}
				}
				if on != nil {
					r.Processes = jsonText(on)
				}
				r.Foreign = count(foreign)
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// reasonsText tells nothing that holds the clocks from nothing reported.
func reasonsText(list []string) string {
	if list == nil {
		return ""
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ",")
}

// powerLimit is a variant's cap in force, of several GPUs the list by index; nil
// where no sensor tells.
func (d *deriver) powerLimit(variant string) any {
	limits := d.h.PowerLimits(variant)
	if len(limits) == 0 {
		return nil
	}
	watts := slices.Sorted(maps.Values(limits))
	if least := watts[0]; least == watts[len(watts)-1] {
		return least
	}
	return limits
}
