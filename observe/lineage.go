package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// A Lineage describes a snapshot operation on a jail.
type Lineage struct {
	Op        string // one of event.OpSnapshot, OpRestore, OpBranch, OpRewind, OpMove
	Snapshot  id.Snapshot
	Parent    id.Jail // the jail that the snapshot was taken of
	ParentSeq uint64  // number of the last event in the parent's log at that time; determined by Lineage for OpSnapshot
}

// Lineage records in a jail's log that a snapshot was taken of it, or that it was created from
// or rewound to one. It returns the parent's sequence number in the event. The log of a jail
// created from a snapshot must be empty: its numbers continue from l.ParentSeq.
func (o *Observers) Lineage(ctx context.Context, jid id.Jail, l Lineage) (uint64, error) {
	const op = "observe.Lineage"
	if l.Op == event.OpMove {
		o.mu.Lock()
		delete(o.forgotten, jid) // it may have been here before
		o.mu.Unlock()
	}
	j, err := o.find(jid)
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch l.Op {
	case event.OpSnapshot:
		// The jail is frozen: once its sources are drained, its last event precedes the snapshot.
		o.drain(ctx, jid, j.watches)
		l.ParentSeq = j.log.Last()
	case event.OpRestore, event.OpBranch:
		if err := j.log.SetBase(l.ParentSeq); err != nil {
			return 0, err
		}
	case event.OpRewind:
	case event.OpMove:
		if j.log.Last() < l.ParentSeq { // the other node has removed older events
			if err := j.log.SetBase(l.ParentSeq); err != nil {
				return 0, err
			}
		}
	default:
		return 0, fault.Newf(fault.Invalid, op, string(jid), "%q is not a snapshot operation", l.Op)
	}
	e := event.Event{
		Type: event.Lineage, TS: time.Now().UnixMilli(), NS: Now(), FD: -1,
		Op: l.Op, Snapshot: l.Snapshot, Parent: l.Parent, ParentSeq: l.ParentSeq,
	}
	if j.log.Append(&e); e.Seq == 0 {
		return 0, fault.Newf(fault.Unavailable, op, string(jid), "the log of the jail does not accept events")
	}
	j.log.FlushSoon()
	return l.ParentSeq, nil
}

// Reattach observes the new instance of a jail, which is frozen and has not run yet. The old
// instance no longer runs; its events are in the log, and its watches are closed in the
// background. After an error the jail is observed as before.
func (o *Observers) Reattach(ctx context.Context, t Target) error {
	j, err := o.find(t.Jail)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone || j.watches == nil {
		return fault.Newf(fault.Conflict, "observe.Reattach", string(t.Jail), "the jail is not watched or was removed")
	}
	o.drain(ctx, t.Jail, j.watches) // to record the events of the old instance first
	j.closing.Wait()                // the jail may return to its previous instance
	before := j.watches
	if err := o.attach(ctx, j, t); err != nil {
		return err
	}
	for name, w := range before {
		if j.watches[name] == w {
			err = errors.Join(err, w.Mute(false)) // undo the Mute of a watch that followed
			continue
		}
		j.closing.Go(func() {
			if err := w.Close(); err != nil {
				o.cfg.Log.Error("failed to close the watch of a jail's previous instance", "jail", t.Jail, "source", name, "err", err)
			}
		})
	}
	return err
}

// Mute marks events of a jail's processes as caused by Glasshouse, until Mute(false). The
// ptrace source detaches meanwhile, because it would conflict with a checkpoint.
func (o *Observers) Mute(ctx context.Context, jid id.Jail, on bool) error {
	j, err := o.find(jid)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !on {
		return errors.Join(j.each(func(w Watch) error { return w.Mute(false) }), o.resume(ctx, j))
	}
	if err = o.pause(j); err == nil {
		err = j.each(func(w Watch) error { return w.Mute(true) })
	}
	if err != nil {
		return errors.Join(err, j.each(func(w Watch) error { return w.Mute(false) }), o.resume(ctx, j))
	}
	return nil
}

// pause detaches the tracer from j. The caller holds j.mu.
func (o *Observers) pause(j *observed) error {
	if o.cfg.Ptrace == nil {
		return nil
	}
	name := o.cfg.Ptrace.Name()
	w := j.watches[name]
	if w == nil {
		return nil
	}
	if err := w.Release(); err != nil {
		return fmt.Errorf("detach the tracer: %w", err)
	}
	delete(j.watches, name)
	j.paused = true
	j.lacks[name] = errors.New("tracing is suspended while a snapshot is taken")
	types := []event.Type{event.Proc}
	if s := j.target.Selection; s.Syscalls != "off" || len(s.Allow) > 0 {
		types = append(types, event.Syscall)
	}
	if j.target.Selection.Files != "off" {
		types = append(types, event.File)
	}
	for _, of := range slices.Backward(types) {
		j.sink().Append(&event.Event{
			Type: event.Gap, TS: time.Now().UnixMilli(), NS: Now(), FD: -1,
			Source: of, Lost: -1, Reason: "not traced while a snapshot was taken",
		})
	}
	return nil
}

// resume attaches the tracer again. The caller holds j.mu.
func (o *Observers) resume(ctx context.Context, j *observed) error {
	if !j.paused {
		return nil
	}
	t := j.target
	t.ProcessesRecorded = true // the gap reports the missing events
	w, err := o.cfg.Ptrace.Attach(ctx, t, j.sink())
	if err != nil {
		return fmt.Errorf("attach the tracer again: %w", err)
	}
	name := o.cfg.Ptrace.Name()
	j.watches[name], j.paused = w, false
	delete(j.lacks, name)
	return nil
}
