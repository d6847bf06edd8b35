package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/e2b/interpreter"
	"glasshouse/fault"
)

// An idleness records since when a sandbox has been idle.
type idleness struct {
	of    time.Time     // when the sandbox was created or resumed
	since time.Time     // zero while the sandbox is busy
	cpu   time.Duration // CPU time at the last sample
	at    time.Time     // time of the last sample
	never bool          // memory cannot be saved on this host: not paused before the timeout
}

// An idle sandbox uses at most this share of one processor, and at most this time between two
// samples. The samples themselves need some of it.
const (
	idleCPU = 0.01
	lookCPU = 10 * time.Millisecond
)

// note records the CPU time of a sandbox at a moment, and whether the sandbox is in use.
func (i *idleness) note(now time.Time, cpu time.Duration, used bool) {
	may := max(lookCPU, time.Duration(idleCPU*float64(now.Sub(i.at))))
	worked := i.at.IsZero() || cpu < i.cpu || cpu-i.cpu > may
	switch {
	case used || worked:
		i.since = time.Time{}
	case i.since.IsZero():
		i.since = now
	}
	i.cpu, i.at = cpu, now
}

// pauseIdle pauses sandboxes before their timeout if they have been idle for long and resume
// automatically.
func (s *Sandboxes) pauseIdle() {
	tick := time.NewTicker(min(sampleTime, max(s.cfg.Idle/4, 100*time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range s.currentHandles() {
			s.pauseIfIdle(c)
		}
	}
}

func (s *Sandboxes) pauseIfIdle(c *handle) {
	b := c.box.Load()
	if b.State != Running || !b.AutoPause || !b.AutoResume {
		return
	}
	st, err := s.cfg.Jails.Stats(s.ctx, b.Jail)
	if err != nil {
		return
	}
	now := time.Now()
	if !c.idle.of.Equal(b.Started) {
		c.idle = idleness{of: b.Started}
	}
	if c.idle.never {
		return
	}
	c.idle.note(now, st.CPU, c.uses.since(c.idle.at) || s.commands(c))
	if c.idle.since.IsZero() || now.Sub(c.idle.since) < s.cfg.Idle {
		return
	}
	select {
	case c.lock <- struct{}{}:
	default:
		return // another operation holds the lock
	}
	defer func() { <-c.lock }()
	if c.gone || c.box.Load().State != Running || c.uses.since(now) || c.uses.close() != nil {
		return
	}
	defer c.uses.open()
	c.idle = idleness{}
	if err := s.pause(context.WithoutCancel(s.ctx), c, true); err != nil && s.ctx.Err() == nil {
		c.idle = idleness{of: b.Started, never: errors.Is(err, fault.Unsupported)}
		s.cfg.Log.Warn("cannot pause an idle sandbox", "sandbox", b.ID, "err", err)
	}
}

// commands reports whether a command runs in a sandbox. It ignores the interpreter, which always
// runs.
func (s *Sandboxes) commands(c *handle) bool {
	all, err := s.cfg.Jails.Execs(s.ctx, c.box.Load().Jail)
	for _, x := range all {
		if x.Ended == nil && x.Note != interpreter.Note {
			return true
		}
	}
	return err != nil
}
