package e2b

import (
	"context"
	"errors"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/snapshot"
)

// Pause pauses a sandbox, with what its processes have in memory or without. A call that
// finds a pause under way waits for it and succeeds with it. A sandbox that was paused
// before the call is a fault.Conflict, and so is one that was meanwhile paused without its
// memory if this call wants the memory.
func (s *Sandboxes) Pause(ctx context.Context, team id.Token, sandbox string, memory bool) error {
	c, err := s.find(team, sandbox)
	if err != nil {
		return err
	}
	was := c.box.Load().State
	return s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		switch {
		case b.State == Running:
		case b.State == Paused && was != Paused && (b.Image != "" || !memory):
			return nil
		default:
			return fault.Newf(fault.Conflict, "e2b", sandbox, "Sandbox %q is already paused", sandbox)
		}
		wait, cancel := context.WithTimeout(ctx, pauseTime)
		defer cancel()
		c.uses.closeNow(wait)
		defer c.uses.open()
		return s.pause(ctx, c, memory)
	})
}

// pause has a sandbox rest. Its processes are written down while they are frozen, and end
// when that is on record: whenever the daemon is killed, they are in one place or the
// other. Who calls it has the turn.
func (s *Sandboxes) pause(ctx context.Context, c *cell, memory bool) error {
	b := *c.box.Load()
	if !memory {
		if _, err := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{Grace: time.Second}); err != nil {
			return err
		}
		return s.goTo(ctx, c, Paused, nil)
	}
	if err := s.goTo(ctx, c, Pausing, nil); err != nil {
		return err
	}
	var image id.Snapshot
	_, err := s.cfg.Jails.Pause(ctx, b.Jail)
	if err == nil {
		if image, err = s.writeDown(ctx, b); err != nil {
			_, undo := s.cfg.Jails.Resume(ctx, b.Jail)
			err = errors.Join(err, undo)
		}
	}
	if err != nil {
		return errors.Join(err, s.goTo(ctx, c, Running, nil))
	}
	if err := s.goTo(ctx, c, Paused, func(b *Sandbox) { b.Image = image }); err != nil {
		_, undo := s.cfg.Jails.Resume(ctx, b.Jail)
		return errors.Join(err, undo, s.goTo(ctx, c, Running, nil), s.dropImage(ctx, image))
	}
	_, err = s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{})
	return err
}

func (s *Sandboxes) writeDown(ctx context.Context, b Sandbox) (id.Snapshot, error) {
	snap, err := s.cfg.Snapshots.Take(ctx, b.Jail, snapshot.TakeOptions{Labels: map[string]string{labelPause: b.ID}})
	return snap.ID, err
}

// Connect returns a sandbox that runs, until so long from now at least. One that rests
// goes on, with its memory if that was kept and is wanted; woke says that it did.
func (s *Sandboxes) Connect(ctx context.Context, team id.Token, sandbox string, d time.Duration, memory bool) (b Sandbox, woke bool, err error) {
	if err := (Wish{Timeout: d}).check(); err != nil {
		return b, false, err
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return b, false, err
	}
	err = s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		if woke = b.State == Paused; woke {
			return s.resume(ctx, c, d, memory)
		}
		return s.stay(ctx, c, d, true)
	})
	return *c.box.Load(), woke, err
}

// Resume resumes a paused sandbox. A call that finds a resume under way waits for it and
// succeeds with it. A sandbox that ran before the call is a fault.Conflict.
func (s *Sandboxes) Resume(ctx context.Context, team id.Token, sandbox string, d time.Duration, memory bool) (Sandbox, error) {
	if err := (Wish{Timeout: d}).check(); err != nil {
		return Sandbox{}, err
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return Sandbox{}, err
	}
	was := c.box.Load().State
	err = s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		switch {
		case b.State == Paused:
			return s.resume(ctx, c, d, memory)
		case b.State == Running && (was == Paused || was == Resuming):
			return s.stay(ctx, c, d, true)
		}
		return fault.Newf(fault.Conflict, "e2b", sandbox, "Sandbox %q is already running", sandbox)
	})
	return *c.box.Load(), err
}

// resume has a sandbox go on where it was, or begin anew on its files. Who calls it has
// the turn.
func (s *Sandboxes) resume(ctx context.Context, c *cell, d time.Duration, memory bool) error {
	if err := s.goTo(ctx, c, Resuming, nil); err != nil {
		return err
	}
	b := *c.box.Load()
	var err error
	if b.Image != "" && memory {
		_, err = s.cfg.Snapshots.Rewind(ctx, b.Jail, b.Image, jail.RewindOptions{})
	} else {
		_, err = s.cfg.Jails.Start(ctx, b.Jail)
	}
	if err != nil {
		return errors.Join(err, s.goTo(ctx, c, Paused, nil))
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := s.goTo(ctx, c, Running, func(b *Sandbox) { b.Started, b.End, b.Image = now, now.Add(d), "" }); err != nil {
		_, undo := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{})
		return errors.Join(err, undo, s.goTo(ctx, c, Paused, nil))
	}
	if err := s.dropImage(ctx, b.Image); err != nil { // the next daemon does it
		s.cfg.Log.Warn("what a sandbox rested in is not removed", "sandbox", b.ID, "snapshot", b.Image, "err", err)
	}
	return nil
}

// dropImage removes what a sandbox rested in, if it did.
func (s *Sandboxes) dropImage(ctx context.Context, sid id.Snapshot) error {
	if sid == "" {
		return nil
	}
	if err := s.cfg.Snapshots.Delete(ctx, sid); !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// dropImages removes what sandboxes rested in or were about to, but for what is kept.
func (s *Sandboxes) dropImages(ctx context.Context, kept map[id.Snapshot]bool) error {
	all, err := s.cfg.Snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return err
	}
	for _, snap := range all {
		if snap.Labels[labelPause] == "" || kept[snap.ID] {
			continue
		}
		if err := s.dropImage(ctx, snap.ID); err != nil {
			return err
		}
	}
	return nil
}
