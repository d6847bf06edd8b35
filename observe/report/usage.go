package report

import (
	"time"

	"glasshouse/observe/event"
)

// Usage is the resource usage of a jail over time.
type Usage struct {
	Samples    int64   `json:"samples"`
	Step       int64   `json:"step_ms"` // between two points
	Points     []Point `json:"points"`  // at most 200
	CPU        int64   `json:"cpu_ns"`  // total since the first sample
	PeakMemory int64   `json:"peak_memory_bytes"`
	PeakPIDs   int64   `json:"peak_pids"`
	Disk       int64   `json:"disk_bytes"` // at the last sample
	Rx         int64   `json:"rx_bytes"`   // total since the first sample
	Tx         int64   `json:"tx_bytes"`
}

// A Point is one time step. The sampled values are set if Sampled is true.
type Point struct {
	Time     time.Time `json:"time"` // start of the step
	Syscalls float64   `json:"syscalls_per_second"`
	Sampled  bool      `json:"sampled"`
	Cores    float64   `json:"cores"` // average number of busy processors
	Memory   int64     `json:"memory_bytes"`
	PIDs     int64     `json:"pids"`
	Disk     int64     `json:"disk_bytes"`
	Rx       float64   `json:"rx_bytes_per_second"`
	Tx       float64   `json:"tx_bytes_per_second"`
}

// maxPoints is even: when it is reached, each pair of steps is merged.
const maxPoints = 200

// usage folds samples and calls into steps, whose length grows with the duration.
type usage struct {
	step, from int64 // milliseconds; step 0 is before the first record
	steps      []step
	samples    int64
	prev       event.Event // the previous sample
	total      step
}

type step struct {
	calls, samples     int64
	covered            int64 // milliseconds covered by cpu, rx and tx
	cpu, rx, tx        int64
	memory, pids, disk int64
}

func newUsage() *usage { return &usage{step: 50} }

// at returns the step of a time.
func (u *usage) at(ts int64) *step {
	if u.steps == nil {
		u.from = ts
		u.steps = make([]step, 0, maxPoints)
	}
	i := uint64(0)
	// The difference of two times in a tampered log can exceed an int64, but not a uint64.
	if ts > u.from { // if the clock was set back, the first step is used
		i = uint64(ts) - uint64(u.from)
	}
	for i/uint64(u.step) >= maxPoints {
		for j := 0; j < (len(u.steps)+1)/2; j++ {
			s := u.steps[2*j]
			if 2*j+1 < len(u.steps) {
				s.plus(&u.steps[2*j+1])
			}
			u.steps[j] = s
		}
		u.steps = u.steps[:(len(u.steps)+1)/2]
		u.step *= 2
	}
	n := int(i / uint64(u.step))
	for len(u.steps) <= n {
		u.steps = append(u.steps, step{})
	}
	return &u.steps[n]
}

// plus adds a later step to s.
func (s *step) plus(later *step) {
	s.calls += later.calls
	s.covered = sum(s.covered, later.covered)
	s.cpu, s.rx, s.tx = sum(s.cpu, later.cpu), sum(s.rx, later.rx), sum(s.tx, later.tx)
	s.memory, s.pids = max(s.memory, later.memory), max(s.pids, later.pids)
	if later.samples > 0 {
		s.disk = later.disk
	}
	s.samples += later.samples
}

func (u *usage) call(e *event.Event) { u.at(e.TS).calls++ }

func (u *usage) sample(e *event.Event) {
	one := step{samples: 1, memory: e.Memory, pids: e.PIDs, disk: e.Disk}
	if u.samples++; u.samples > 1 && e.TS > u.prev.TS {
		one.covered = e.TS - u.prev.TS
		one.cpu = increase(u.prev.CPU, e.CPU)
		one.rx, one.tx = increase(u.prev.Rx, e.Rx), increase(u.prev.Tx, e.Tx)
	}
	u.prev = event.Event{TS: e.TS, CPU: e.CPU, Memory: e.Memory, Rx: e.Rx, Tx: e.Tx}
	u.at(e.TS).plus(&one)
	u.total.plus(&one)
}

// increase returns the increase of a counter, which restarts at 0 with the jail.
func increase(from, to int64) int64 {
	if to < from || from < 0 {
		return max(to, 0)
	}
	return to - from
}

func (u *usage) report() Usage {
	t := &u.total
	out := Usage{Samples: u.samples, Step: u.step, Points: []Point{}, CPU: t.cpu, PeakMemory: t.memory, PeakPIDs: t.pids, Disk: t.disk, Rx: t.rx, Tx: t.tx}
	for i, s := range u.steps {
		p := Point{Time: instant(u.from + int64(i)*u.step), Syscalls: float64(s.calls) * 1000 / float64(u.step)}
		if s.samples > 0 {
			p.Sampled, p.Memory, p.PIDs, p.Disk = true, s.memory, s.pids, s.disk
		}
		if s.covered > 0 {
			p.Cores = float64(s.cpu) / 1e6 / float64(s.covered)
			p.Rx, p.Tx = float64(s.rx)*1000/float64(s.covered), float64(s.tx)*1000/float64(s.covered)
		}
		out.Points = append(out.Points, p)
	}
	return out
}
