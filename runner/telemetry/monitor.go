package telemetry

import (
	"context"
	"os"
	"slices"
	"time"

	"twopoint/results/event"
)

// Limits of a reading.
const (
	launchWait = 10 * time.Second // of GPUs before a launch: without a client the driver may have to be loaded first
	readWait   = 2 * time.Second  // of GPUs later
	giveUp     = 3                // failures of the GPU sensor in a row after which it is asked no more
	share      = 10               // a reading is due when this many times the cost of the one before has passed
)

// Monitor reads the machine's sensors around the requests of one agent, and
// tells whose the processes on its GPUs are. It is read from one goroutine at a
// time, and never in a request that enters a figure: nvidia-smi takes CPU time and
// the driver's lock, so that a reading would be in its time. A reading at the end of a
// leg still finds the clocks of the load, and throttling within a leg is in the
// driver's counters, where it has them.
//
// Own are the processes below this one, which a supervised server's are.
// nvidia-smi gives the machine's process numbers, in a container too. Where
// those cannot be compared with ours, what appears on the GPUs between a
// server's launch and the first reading after it is taken for the server's.
// Without a launch (a server that is not ours) everything there at first is
// resident, which may be the server itself.
type Monitor struct {
	sensor Sensor
	fs     procfs
	self   int

	launched bool // the life's server is ours
	settled  bool // the first reading after the launch has been made
	own      map[int]bool
	resident map[int]bool // nil: no list was had in this life
	failures int
	alarmed  bool // the reading before saw a stranger

	last      time.Time // end of the reading before
	took      time.Duration
	counted   time.Time // when the times below were read
	busy      int64
	ownTicks  int64
	countable bool // the times of the reading before can be compared with
}

// NewMonitor watches the machine with a GPU sensor.
func NewMonitor(s Sensor) *Monitor {
	return &Monitor{sensor: s, fs: procfs{"/"}, self: os.Getpid(), own: map[int]bool{}}
}

// Launch is the reading before a server's life. managed tells that we start it.
func (m *Monitor) Launch(ctx context.Context, managed bool) event.Telemetry {
	m.launched, m.settled, m.resident, m.countable = managed, false, nil, false
	t := m.read(ctx, launchWait)
	t.Moment = event.MomentLaunch
	return t
}

// Due tells whether another reading is worth its cost: it is a tenth at most of
// the time since the reading before, or that one saw a stranger on a GPU, who may
// have gone.
func (m *Monitor) Due() bool { return m.alarmed || time.Since(m.last) >= share*m.took }

// Read is a reading in the course of a life.
func (m *Monitor) Read(ctx context.Context) event.Telemetry {
	t := m.read(ctx, readWait)
	m.settled = m.settled || t.Processes != nil
	return t
}

func (m *Monitor) read(ctx context.Context, wait time.Duration) event.Telemetry {
	began := time.Now()
	t := event.Telemetry{At: began.UTC().Truncate(time.Microsecond), Host: m.fs.host()}
	pids, ticks := m.fs.tree(m.self)
	for pid := range pids {
		m.own[pid] = true
	}
	m.others(&t.Host, ticks)
	if m.failures < giveUp {
		limit, cancel := context.WithTimeout(ctx, wait)
		gpus, processes, err := m.sensor.Read(limit)
		cancel()
		t.GPUs, t.Processes = gpus, processes
		if err == nil {
			m.failures = 0
		} else if ctx.Err() == nil {
			m.failures++
			t.Error = err.Error()
		}
		m.judge(t.Processes)
	}
	m.alarmed = slices.ContainsFunc(t.Processes, func(p event.GPUProcess) bool { return p.Owner == event.OwnerForeign })
	m.last, m.took = time.Now(), time.Since(began)
	t.TookS = m.took.Seconds()
	return t
}

// countEvery is the shortest time over which CPU time is compared: the kernel's
// ticks of 10 ms say little about less.
const countEvery = 500 * time.Millisecond

// others fills in the CPU time that everything else has used since the latest
// reading that is long enough ago. A server that is not ours cannot be told from everything else.
func (m *Monitor) others(h *event.HostReading, own int64) {
	busy, ok := m.fs.busy()
	now := time.Now()
	if m.countable && ok {
		interval := now.Sub(m.counted)
		if interval < countEvery {
			return
		}
		if m.launched && busy > m.busy && own >= m.ownTicks {
			intervalS := interval.Seconds()
			others := max(float64((busy-m.busy)-(own-m.ownTicks))/ticksPerSecond/intervalS, 0)
			h.IntervalS, h.OtherCPUs = &intervalS, &others
		}
	}
	m.counted, m.busy, m.ownTicks, m.countable = now, busy, own, ok
}

// judge says whose each process is.
func (m *Monitor) judge(processes []event.GPUProcess) {
	if processes == nil {
		return
	}
	comparable := m.fs.initialPIDs()
	for _, p := range processes {
		comparable = comparable || m.own[p.PID]
	}
	first := m.resident == nil
	if first {
		m.resident = map[int]bool{}
	}
	adopt := m.launched && !first && !m.settled && !comparable
	for i := range processes {
		p := &processes[i]
		switch {
		case m.own[p.PID]:
			p.Owner = event.OwnerOwn
		case first:
			m.resident[p.PID] = true
			p.Owner = event.OwnerResident
		case m.resident[p.PID]:
			p.Owner = event.OwnerResident
		case adopt:
			m.own[p.PID] = true
			p.Owner = event.OwnerOwn
		default:
			p.Owner = event.OwnerForeign
		}
	}
}
