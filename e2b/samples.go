package e2b

import (
	"context"
	"sync"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
)

// sampleTime is the interval between resource samples. maxSamples is the number of samples that
// are kept, one hour.
const (
	sampleTime = 5 * time.Second
	maxSamples = int(time.Hour / sampleTime)
)

// A Sample is a sandbox's resource use at one moment.
type Sample struct {
	At       time.Time
	CPU      float64 // percent of one processor
	Memory   int64   // bytes, like the fields below
	Cache    int64
	MemTotal int64
	Disk     int64
	DiskMax  int64
}

// samples holds the samples of one sandbox. They are lost when the daemon stops.
type samples struct {
	mu sync.Mutex
	// +checklocks:mu
	list []Sample
	// +checklocks:mu
	cpu time.Duration // CPU time at the time at
	// +checklocks:mu
	at time.Time
}

func (m *samples) add(now time.Time, st jail.Stats, memory int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := Sample{At: now, Memory: st.MemoryBytes - st.CacheBytes, Cache: st.CacheBytes, MemTotal: memory, Disk: st.DiskBytes, DiskMax: st.DiskLimit}
	if took := now.Sub(m.at); !m.at.IsZero() && took > 0 && st.CPU >= m.cpu {
		one.CPU = 100 * float64(st.CPU-m.cpu) / float64(took)
	}
	m.cpu, m.at = st.CPU, now
	m.list = append(m.list[max(0, len(m.list)+1-maxSamples):], one)
}

func (m *samples) between(start, end time.Time) (list []Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.list {
		if !one.At.Before(start) && (end.IsZero() || !one.At.After(end)) {
			list = append(list, one)
		}
	}
	return list
}

// sampleLoop samples all running sandboxes periodically until Close.
func (s *Sandboxes) sampleLoop() {
	tick := time.NewTicker(sampleTime)
	defer tick.Stop()
	for {
		for _, c := range s.currentHandles() {
			s.takeSample(s.ctx, c)
		}
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// takeSample adds a sample of a sandbox, if the sandbox runs.
func (s *Sandboxes) takeSample(ctx context.Context, c *handle) {
	b := c.box.Load()
	if b.State != Running {
		return
	}
	if st, err := s.cfg.Jails.Stats(ctx, b.Jail); err == nil { // a jail that has just stopped has no statistics
		c.samples.add(time.Now().UTC(), st, b.MemoryMB<<20)
	}
}

// Metrics returns the samples of a sandbox between start and end. If there is no sample yet, it
// takes one.
func (s *Sandboxes) Metrics(ctx context.Context, team id.Token, sandbox string, start, end time.Time) ([]Sample, int, error) {
	c, err := s.find(team, sandbox)
	if err != nil {
		return nil, 0, err
	}
	if len(c.samples.between(time.Time{}, time.Time{})) == 0 {
		s.takeSample(ctx, c)
	}
	return c.samples.between(start, end), c.box.Load().CPU, nil
}
