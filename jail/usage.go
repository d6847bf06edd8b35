package jail

import (
	"context"
	"time"

	"glasshouse/id"
)

// Used is what a jail has used of what is counted.
type Used struct {
	CPU     time.Duration `json:"cpu,omitempty"`
	RxBytes int64         `json:"rx_bytes,omitempty"`
	TxBytes int64         `json:"tx_bytes,omitempty"`
}

func (u Used) plus(v Used) Used {
	return Used{u.CPU + v.CPU, u.RxBytes + v.RxBytes, u.TxBytes + v.TxBytes}
}

// most is the larger of each: a counter that was read twice.
func (u Used) most(v Used) Used {
	return Used{max(u.CPU, v.CPU), max(u.RxBytes, v.RxBytes), max(u.TxBytes, v.TxBytes)}
}

func (s Stats) used() Used { return Used{s.CPU, s.RxBytes, s.TxBytes} }

// Carried is what a jail has used since it was started, in instances that it has
// left without stopping: a stacked snapshot gives it a new one, whose counters in
// the kernel begin at 0.
type Carried struct {
	Used
	MemoryPeak int64 `json:"memory_peak,omitempty"`
	OOMKills   int64 `json:"oom_kills,omitempty"`
}

// onto adds to the counters of the present instance what was used before it.
func (c Carried) onto(st Stats) Stats {
	st.CPU, st.RxBytes, st.TxBytes = c.CPU+st.CPU, c.RxBytes+st.RxBytes, c.TxBytes+st.TxBytes
	st.MemoryPeak, st.OOMKills = max(c.MemoryPeak, st.MemoryPeak), c.OOMKills+st.OOMKills
	return st
}

// carriedFrom returns what a jail carries on from an instance with the counters st,
// to which onto was applied.
func carriedFrom(st Stats) Carried { return Carried{st.used(), st.MemoryPeak, st.OOMKills} }

// stats returns what the jail uses, counted since it was started.
func (l *live) stats(ctx context.Context) (Stats, error) {
	st, err := l.inst.Stats(ctx)
	st.DiskFailed = err == nil && l.volumeFailed()
	return l.carried.onto(st), err
}

// Usage is what a jail has used since it was made, in whichever body, and what its
// files take now.
type Usage struct {
	Used
	DiskBytes int64
}

// An Accountant is a Backend that can tell what a jail has used whose init is gone, as
// long as Clean was not called.
type Accountant interface {
	Left(ctx context.Context, p Plan) (Stats, error)
}

// Usage returns what a jail has used. It never becomes less, whatever becomes of the
// jail or the daemon, but for what is on its disk.
func (m *Manager) Usage(ctx context.Context, jid id.Jail) (Usage, error) {
	c, err := m.find(jid, "jail.Usage")
	if err != nil {
		return Usage{}, err
	}
	for {
		j, l := c.jail.Load(), c.live.Load()
		u := Usage{Used: j.Used.plus(j.Last)}
		if l != nil {
			st, err := l.inst.Stats(ctx)
			if c.jail.Load() != j || c.live.Load() != l {
				continue // it has another body now, or another record
			}
			if err != nil {
				return Usage{}, err
			}
			u.Used, u.DiskBytes = j.Used.plus(j.Last.most(st.used())), st.DiskBytes
		}
		return u, nil
	}
}

// account notes in j what the body has used that it is about to lose. It is kept before
// the body is gone: whoever finds it half gone adds nothing twice.
func (m *Manager) account(ctx context.Context, b Backend, c *cell, l *live) {
	j := *c.jail.Load()
	var st Stats
	var err error
	if l != nil {
		st, err = l.inst.Stats(ctx)
	} else if a, ok := b.(Accountant); ok {
		st, err = a.Left(ctx, m.plan(j))
	}
	if err != nil {
		m.cfg.Log.Warn("what a jail used last is not known", "jail", j.ID, "err", err)
		return
	}
	last := j.Last.most(st.used())
	if last == j.Last {
		return
	}
	j.Last = last
	if err := m.save(ctx, c, j); err != nil {
		m.cfg.Log.Warn("what a jail used last is not kept", "jail", j.ID, "err", err)
	}
}

// anew is a jail that is about to have a body whose counters are at 0.
func (j Jail) anew() Jail {
	j.Used, j.Last = j.Used.plus(j.Last), Used{}
	return j
}
