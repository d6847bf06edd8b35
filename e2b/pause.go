package e2b

import (
	"context"
	"errors"
	"fmt"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// Pause pauses a sandbox, with or without the memory of its processes. A call during another
// pause waits for that one and succeeds with it. It returns fault.Conflict if the sandbox was
// paused before the call, or if memory is set and the other pause discarded the memory.
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
			return fault.Newf(fault.Conflict, "e2b.Pause", sandbox, "Sandbox %q is already paused", sandbox)
		}
		wait, cancel := context.WithTimeout(ctx, pauseTime)
		defer cancel()
		c.uses.closeNow(wait)
		defer c.uses.open()
		return s.pause(ctx, c, memory)
	})
}

// pause pauses a sandbox. The jail is frozen while its processes are checkpointed, and they are
// killed after the checkpoint is recorded. If the daemon is killed at any point, the processes
// exist either in the jail or in the checkpoint. The caller holds c.lock.
func (s *Sandboxes) pause(ctx context.Context, c *handle, memory bool) error {
	b := *c.box.Load()
	if !memory {
		if _, err := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{Grace: time.Second}); err != nil {
			return fmt.Errorf("stop the jail to pause the sandbox without memory: %w", err)
		}
		return s.setState(ctx, c, Paused, nil)
	}
	if err := s.setState(ctx, c, Pausing, nil); err != nil {
		return err
	}
	var image id.Snapshot
	_, err := s.cfg.Jails.Pause(ctx, b.Jail)
	if err == nil {
		image, err = s.checkpoint(ctx, b)
		if err != nil {
			_, undo := s.cfg.Jails.Resume(ctx, b.Jail)
			err = errors.Join(err, undo)
		}
	}
	if err != nil {
		return errors.Join(err, s.setState(ctx, c, Running, nil))
	}
	if err := s.setState(ctx, c, Paused, func(b *Sandbox) { b.Image = image }); err != nil {
		_, undo := s.cfg.Jails.Resume(ctx, b.Jail)
		return errors.Join(err, undo, s.setState(ctx, c, Running, nil), s.dropImage(ctx, image))
	}
	_, err = s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{})
	if err != nil {
		return fmt.Errorf("stop the jail after its memory was saved: %w", err)
	}
	return nil
}

func (s *Sandboxes) checkpoint(ctx context.Context, b Sandbox) (id.Snapshot, error) {
	snap, err := s.cfg.Snapshots.Take(ctx, b.Jail, snapshot.TakeOptions{Labels: map[string]string{labelPause: b.ID}})
	if err != nil {
		return snap.ID, fmt.Errorf("take the snapshot of a pause: %w", err)
	}
	return snap.ID, nil
}

// Connect ensures that a sandbox runs for at least d from now. It resumes a paused sandbox, with
// its memory if the memory was saved and is wanted; woke reports a resume.
func (s *Sandboxes) Connect(ctx context.Context, team id.Token, sandbox string, d time.Duration, memory bool) (b Sandbox, woke bool, err error) {
	if err := (CreateOptions{Timeout: d}).check(); err != nil {
		return b, false, err
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return b, false, err
	}
	err = s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		woke = b.State == Paused
		if woke {
			return s.resume(ctx, c, d, memory)
		}
		return s.stay(ctx, c, d, true)
	})
	return *c.box.Load(), woke, err
}

// Resume resumes a paused sandbox. A call during another resume waits for that one and succeeds
// with it. It returns fault.Conflict if the sandbox ran before the call.
func (s *Sandboxes) Resume(ctx context.Context, team id.Token, sandbox string, d time.Duration, memory bool) (Sandbox, error) {
	if err := (CreateOptions{Timeout: d}).check(); err != nil {
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
		return fault.Newf(fault.Conflict, "e2b.Resume", sandbox, "Sandbox %q is already running", sandbox)
	})
	return *c.box.Load(), err
}

// resume restores a sandbox from its checkpoint, or starts it with its files only. The caller
// holds c.lock.
func (s *Sandboxes) resume(ctx context.Context, c *handle, d time.Duration, memory bool) error {
	if err := s.setState(ctx, c, Resuming, nil); err != nil {
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
		return errors.Join(err, s.setState(ctx, c, Paused, nil))
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := s.setState(ctx, c, Running, func(b *Sandbox) { b.Started, b.End, b.Image = now, now.Add(d), "" }); err != nil {
		_, undo := s.cfg.Jails.Stop(ctx, b.Jail, jail.StopOptions{})
		return errors.Join(err, undo, s.setState(ctx, c, Paused, nil))
	}
	if err := s.dropImage(ctx, b.Image); err != nil { // otherwise the next daemon removes it
		s.cfg.Log.Warn("cannot remove the snapshot of a pause", "sandbox", b.ID, "snapshot", b.Image, "err", err)
	}
	return nil
}

// dropImage removes the snapshot of a pause. It does nothing for an empty id.
func (s *Sandboxes) dropImage(ctx context.Context, sid id.Snapshot) error {
	if sid == "" {
		return nil
	}
	if err := s.cfg.Snapshots.Delete(ctx, sid); !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// dropImages removes the snapshots of completed and interrupted pauses, except those in kept.
func (s *Sandboxes) dropImages(ctx context.Context, kept map[id.Snapshot]bool) error {
	all, err := s.cfg.Snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the snapshots of pauses: %w", err)
	}
	for _, snap := range all {
		if snap.Labels[labelPause] == "" || kept[snap.ID] {
			continue
		}
		if err := s.dropImage(ctx, snap.ID); err != nil {
			return fmt.Errorf("delete snapshot %s of an earlier pause: %w", snap.ID, err)
		}
	}
	return nil
}
