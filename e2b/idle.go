package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/e2b/interpreter"
	"glasshouse/fault"
)

// An idleness is since when a sandbox does nothing, as far as was looked.
type idleness struct {
	of    time.Time     // when the sandbox began, or went on
	since time.Time     // zero: it does something
	cpu   time.Duration // used when it was last looked at
	at    time.Time     // when that was
	never bool          // its memory cannot be saved here: it is not paused before its time
}

// What waits may use of processors: of the time of one, and at least so much between two
// looks, which cost something themselves.
const (
	idleCPU = 0.01
	lookCPU = 10 * time.Millisecond
)

// note records what a sandbox had used at a moment, and whether it is used.
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

// restIdle has sandboxes rest before their time that have done nothing for long and wake
// for who comes.
func (s *Sandboxes) restIdle() {
	tick := time.NewTicker(min(sampleTime, max(s.cfg.Idle/4, 100*time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range s.cellsNow() {
			s.restIfIdle(c)
		}
	}
}

func (s *Sandboxes) restIfIdle(c *cell) {
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
	case c.turn <- struct{}{}:
	default:
		return // somebody is at it
	}
	defer func() { <-c.turn }()
	if c.gone || c.box.Load().State != Running || c.uses.since(now) || c.uses.close() != nil {
		return
	}
	defer c.uses.open()
	c.idle = idleness{}
	if err := s.pause(context.WithoutCancel(s.ctx), c, true); err != nil && s.ctx.Err() == nil {
		c.idle = idleness{of: b.Started, never: errors.Is(err, fault.Unsupported)}
		s.cfg.Log.Warn("a sandbox that does nothing does not rest", "sandbox", b.ID, "err", err)
	}
}

// commands reports whether a command runs in a sandbox, but for the interpreter, which
// is always there.
func (s *Sandboxes) commands(c *cell) bool {
	all, err := s.cfg.Jails.Execs(s.ctx, c.box.Load().Jail)
	for _, x := range all {
		if x.Ended == nil && x.Note != interpreter.Note {
			return true
		}
	}
	return err != nil
}
