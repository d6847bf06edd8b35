package observe

import (
	"context"
	"errors"
	"slices"
	"time"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/id"
)

// A Lineage is what a snapshot has to do with a jail.
type Lineage struct {
	Op       string // one of event.OpSnapshot, OpRestore, OpBranch, OpRewind
	Snapshot id.Snapshot
	Parent   id.Jail // of which the snapshot was taken
	Seq      uint64  // of the last record in the parent's log then; of OpSnapshot it is found out
}

// Lineage says in a jail's log that a snapshot is taken of it, or that it goes on
// from one, and returns the parent's number in the record. The log of a jail that
// is made from a snapshot must not have any record: it counts on from l.Seq.
func (o *Observers) Lineage(ctx context.Context, jid id.Jail, l Lineage) (uint64, error) {
	const op = "observe.Lineage"
	j, err := o.find(jid)
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch l.Op {
	case event.OpSnapshot:
		o.drain(ctx, jid, j.watches)
		l.Seq = j.log.Last()
	case event.OpRestore, event.OpBranch:
		if err := j.log.Begin(l.Seq); err != nil {
			return 0, err
		}
	case event.OpRewind:
	default:
		return 0, fault.Newf(fault.Invalid, op, string(jid), "%q is nothing that a snapshot has to do with a jail", l.Op)
	}
	e := event.Event{
		Type: event.Lineage, TS: time.Now().UnixMilli(), NS: Now(), FD: -1,
		Op: l.Op, Snapshot: l.Snapshot, Parent: l.Parent, ParentSeq: l.Seq,
	}
	if j.log.Append(&e); e.Seq == 0 {
		return 0, fault.Newf(fault.Unavailable, op, string(jid), "its log takes no records")
	}
	j.log.Push()
	return l.Seq, nil
}

// Reattach goes on to watch a jail that has got another body, which is frozen and
// has not run yet. The body it had does not run any more; what it did is in the
// log, and what is left of watching it goes in the background. After an error the
// jail is watched as it was.
func (o *Observers) Reattach(ctx context.Context, t Target) error {
	j, err := o.find(t.Jail)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone || j.watches == nil {
		return fault.Newf(fault.Conflict, "observe", string(t.Jail), "it is not watched, or removed")
	}
	o.drain(ctx, t.Jail, j.watches) // so that what it did is told first
	j.closing.Wait()                // it may go back to the body it left last
	before := j.watches
	if err := o.attach(ctx, j, t); err != nil {
		return err
	}
	for name, w := range before {
		if j.watches[name] == w {
			err = errors.Join(err, w.Mute(false)) // it followed, as it was
			continue
		}
		j.closing.Go(func() {
			if err := w.Close(); err != nil {
				o.cfg.Log.Error("what watched a jail before it was rewound stays", "jail", t.Jail, "source", name, "err", err)
			}
		})
	}
	return err
}

// Mute has what a jail's processes do marked as made by Glasshouse, until
// Mute(false). A tracer would be in the way of whoever writes the processes down:
// it lets go of them meanwhile.
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

// pause has the tracer let go of j. The caller holds j.mu.
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
		return err
	}
	delete(j.watches, name)
	j.paused = true
	j.lacks[name] = errors.New("not tracing while a snapshot is taken")
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

// resume has the tracer go on. The caller holds j.mu.
func (o *Observers) resume(ctx context.Context, j *observed) error {
	if !j.paused {
		return nil
	}
	t := j.target
	t.Told = true // the gap says what is missing
	w, err := o.cfg.Ptrace.Attach(ctx, t, j.sink())
	if err != nil {
		return err
	}
	name := o.cfg.Ptrace.Name()
	j.watches[name], j.paused = w, false
	delete(j.lacks, name)
	return nil
}
