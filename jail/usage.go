package jail

import (
	"context"
	"fmt"
	"time"

	"glasshouse/id"
)

// Used has cumulative counters of a jail.
type Used struct {
	CPU     time.Duration `json:"cpu,omitempty"`
	RxBytes int64         `json:"rx_bytes,omitempty"`
	TxBytes int64         `json:"tx_bytes,omitempty"`
}

func (u Used) plus(v Used) Used {
	return Used{u.CPU + v.CPU, u.RxBytes + v.RxBytes, u.TxBytes + v.TxBytes}
}

// maxOf returns the larger value of each counter, for two readings of the same counters.
func (u Used) maxOf(v Used) Used {
	return Used{max(u.CPU, v.CPU), max(u.RxBytes, v.RxBytes), max(u.TxBytes, v.TxBytes)}
}

func (s Stats) used() Used { return Used{s.CPU, s.RxBytes, s.TxBytes} }

// PriorUsage is the usage of a jail since it was started, in previous instances. A stacked
// snapshot gives the jail a new instance, whose kernel counters begin at 0.
type PriorUsage struct {
	Used
	MemoryPeak int64 `json:"memory_peak,omitempty"`
	OOMKills   int64 `json:"oom_kills,omitempty"`
}

// addTo adds the earlier usage to the counters of the present instance.
func (c PriorUsage) addTo(st Stats) Stats {
	st.CPU, st.RxBytes, st.TxBytes = c.CPU+st.CPU, c.RxBytes+st.RxBytes, c.TxBytes+st.TxBytes
	st.MemoryPeak, st.OOMKills = max(c.MemoryPeak, st.MemoryPeak), c.OOMKills+st.OOMKills
	return st
}

// priorUsage returns the usage before the next instance. The counters st include all earlier
// instances, see addTo.
func priorUsage(st Stats) PriorUsage { return PriorUsage{st.used(), st.MemoryPeak, st.OOMKills} }

// stats returns the resource usage of the jail, with counters since its start.
func (l *liveInstance) stats(ctx context.Context) (Stats, error) {
	st, err := l.inst.Stats(ctx)
	st.DiskFailed = err == nil && l.volumeFailed()
	return l.prior.addTo(st), err
}

// Usage is the usage of a jail since its creation, in all instances, and the current size of
// its files.
type Usage struct {
	Used
	DiskBytes int64
}

// An Accountant is a Backend that can return the counters of a jail whose init has ended,
// until Clean is called.
type Accountant interface {
	FinalStats(ctx context.Context, p Plan) (Stats, error)
}

// usages records the resource usage of jails.
type usages struct {
	*core
	registry *registry
}

// Usage returns the cumulative usage of a jail. Except for DiskBytes it never decreases, even after
// a failure of the jail or the daemon.
func (us *usages) Usage(ctx context.Context, jid id.Jail) (Usage, error) {
	e, err := us.registry.find(jid, "jail.Usage")
	if err != nil {
		return Usage{}, err
	}
	for {
		j, l := e.jail.Load(), e.live.Load()
		u := Usage{Used: j.Used.plus(j.LastUsage)}
		if l != nil {
			st, err := l.inst.Stats(ctx)
			if e.jail.Load() != j || e.live.Load() != l {
				continue // the instance or the record has changed
			}
			if err != nil {
				return Usage{}, fmt.Errorf("read the resource usage of jail %s: %w", jid, err)
			}
			u.Used, u.DiskBytes = j.Used.plus(j.LastUsage.maxOf(st.used())), st.DiskBytes
		}
		return u, nil
	}
}

// recordUsage records the counters of the instance that is about to end. It stores totals and
// not differences, so a repetition after a crash adds nothing twice.
func (us *usages) recordUsage(ctx context.Context, b Backend, e *entry, l *liveInstance) {
	j := *e.jail.Load()
	var st Stats
	var err error
	if l != nil {
		st, err = l.inst.Stats(ctx)
	} else if a, ok := b.(Accountant); ok {
		st, err = a.FinalStats(ctx, us.registry.plan(j))
	}
	if err != nil {
		us.cfg.Log.Warn("cannot read the final usage of a jail", "jail", j.ID, "err", err)
		return
	}
	last := j.LastUsage.maxOf(st.used())
	if last == j.LastUsage {
		return
	}
	j.LastUsage = last
	if err := us.registry.save(ctx, e, j); err != nil {
		us.cfg.Log.Warn("cannot record the final usage of a jail", "jail", j.ID, "err", err)
	}
}

// foldUsage returns the record of a jail that is about to get a new instance, whose counters
// begin at 0.
func (j Jail) foldUsage() Jail {
	j.Used, j.LastUsage = j.Used.plus(j.LastUsage), Used{}
	return j
}
