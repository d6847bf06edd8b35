package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// An Side is one side of a comparison: a snapshot or the current state of a jail. Exactly one
// field is set.
type Side struct {
	Snapshot id.Snapshot
	Jail     id.Jail
}

func (e Side) String() string { return cmp.Or(string(e.Snapshot), string(e.Jail)) }

// Parts selects the parts of a comparison.
type Parts struct {
	Files, Workspace, Processes, Events, Usage bool
}

// CompareOptions configure a comparison.
type CompareOptions struct {
	Parts Parts // the zero value selects all
	Text  bool  // include diffs of text files
}

// A LogSource returns the event log of a jail after all events observed before the call were
// appended.
type LogSource func(ctx context.Context, jid id.Jail) (*eventlog.Log, error)

// comparer compares jails and snapshots.
type comparer struct{ *snapshots }

// Compare returns the differences between two snapshots, two jails, or a snapshot and a jail,
// as the changes that lead from the first to the second.
func (co *comparer) Compare(ctx context.Context, from, to Side, o CompareOptions) (*report.Comparison, error) {
	if o.Parts == (Parts{}) {
		o.Parts = Parts{true, true, true, true, true}
	}
	a, done, err := co.end(ctx, from)
	if err != nil {
		return nil, err
	}
	defer done()
	b, done, err := co.end(ctx, to)
	if err != nil {
		return nil, err
	}
	defer done()
	c := &report.Comparison{From: a.describe(), To: b.describe()}
	if o.Parts.Files {
		c.Files, err = co.files(ctx, a, b, jail.ChangesOptions{Text: o.Text})
		if err != nil {
			return nil, err
		}
	}
	if o.Parts.Workspace && (a.jail.Spec.Workspace != nil || b.jail.Spec.Workspace != nil) {
		c.Workspace, err = co.files(ctx, a, b, jail.ChangesOptions{Workspace: true, Text: o.Text})
		if err != nil {
			return nil, err
		}
	}
	if o.Parts.Processes {
		c.Processes, err = co.compareProcesses(ctx, a, b)
		if err != nil {
			return nil, err
		}
	}
	if o.Parts.Events {
		c.Events, err = co.events(ctx, a, b)
		if err != nil {
			return nil, err
		}
	}
	if o.Parts.Usage {
		c.Usage = &report.UsageChanges{From: co.usage(ctx, a), To: co.usage(ctx, b)}
	}
	return c, nil
}

// Changes returns the file differences between two ends.
func (co *comparer) Changes(ctx context.Context, from, to Side, o jail.ChangesOptions) ([]jail.Change, error) {
	a, done, err := co.end(ctx, from)
	if err != nil {
		return nil, err
	}
	defer done()
	b, done, err := co.end(ctx, to)
	if err != nil {
		return nil, err
	}
	defer done()
	return co.cfg.Jails.Compare(ctx, a.moment(), b.moment(), o)
}

// An end is a resolved End.
type end struct {
	snapshot *Snapshot // nil for the current state of a jail
	jail     jail.Jail
	time     time.Time
	seq      uint64
}

// end resolves an End. If it is a snapshot, it cannot be deleted until done is called.
func (co *comparer) end(ctx context.Context, e Side) (_ *end, done func(), err error) {
	if e.Snapshot != "" {
		s, done, err := co.acquire(e.Snapshot)
		if err != nil {
			return nil, nil, err
		}
		return &end{snapshot: s, jail: s.Jail, time: s.Created, seq: s.Seq}, done, nil
	}
	j, err := co.cfg.Jails.Get(ctx, e.Jail)
	if err != nil {
		return nil, nil, err
	}
	at := &end{jail: j, time: time.Now()}
	if co.cfg.Logs != nil {
		if l, err := co.cfg.Logs(ctx, j.ID); err == nil {
			at.seq = l.Last()
		}
	}
	return at, func() {}, nil
}

func (e *end) moment() jail.Version {
	if e.snapshot != nil {
		return jail.Version{ID: e.jail.ID, Snapshot: &e.jail}
	}
	return jail.Version{ID: e.jail.ID}
}

func (e *end) describe() report.End {
	t := report.End{Jail: e.jail.ID, Name: report.Text(e.jail.Spec.Name), State: string(e.jail.State), Time: e.time.UTC(), Seq: e.seq}
	if e.snapshot != nil {
		t.Snapshot = e.snapshot.ID
		t.Name = cmp.Or(report.Text(e.snapshot.Name), t.Name)
	}
	return t
}

// maxListed bounds the list of files in a comparison. Changes returns all.
const maxListed = 5000

// files compares files. If that is impossible, the result contains the reason, because other
// parts may still be comparable.
func (co *comparer) files(ctx context.Context, a, b *end, o jail.ChangesOptions) (*report.FileChanges, error) {
	f := &report.FileChanges{Counts: map[string]int64{}, List: []report.FileChange{}}
	changes, err := co.cfg.Jails.Compare(ctx, a.moment(), b.moment(), o)
	if why, ok := unknownReason(err); ok {
		f.Unknown = why
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		f.Counts[c.Kind]++
		if len(f.List) == maxListed {
			f.More++
			continue
		}
		if c.NoDiff == jail.DiffTruncated {
			c.NoDiff = "too large for one response"
		}
		f.List = append(f.List, report.FileChange{
			Path: report.Text(c.Path), Kind: c.Kind, Type: c.Type, Size: c.Size, Mode: octal(c.Mode), From: report.Text(c.From),
			What: c.What, Diff: report.Text(c.Diff), NoDiff: c.NoDiff,
		})
	}
	return f, nil
}

// unknownReason returns the reason why a part cannot be compared, if the reason lies in the
// compared objects.
func unknownReason(err error) (why string, ok bool) {
	for _, kind := range []fault.Kind{fault.Conflict, fault.Unsupported, fault.TooLarge, fault.NotFound, fault.Unavailable} {
		if errors.Is(err, kind) {
			if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
				err = e.Err
			}
			return err.Error(), true
		}
	}
	return "", false
}

func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, special := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&special != 0 {
			n |= bit
		}
	}
	return fmt.Sprintf("%04o", n)
}

// usage returns the resource usage of a jail, or nil if no process ran in it.
func (co *comparer) usage(ctx context.Context, e *end) *report.Used {
	var s jail.Stats
	switch {
	case e.snapshot != nil && e.snapshot.Memory:
		s = e.snapshot.Stats
	case e.snapshot == nil && live(e.jail.State):
		var err error
		s, err = co.cfg.Jails.Stats(ctx, e.jail.ID)
		if err != nil {
			return nil
		}
	default:
		return nil
	}
	return &report.Used{
		CPU: s.CPU.Nanoseconds(), Memory: s.MemoryBytes, Processes: s.PIDs, Disk: s.DiskBytes, Rx: s.RxBytes, Tx: s.TxBytes,
		NotMeasured: s.NotMeasured,
	}
}

func live(s jail.State) bool { return s == jail.Created || s == jail.Running || s == jail.Paused }
