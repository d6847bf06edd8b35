package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"glasshouse/eventlog"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/report"
)

// An End is one side of a comparison: a snapshot, or a jail as it is now. One of
// the two is set.
type End struct {
	Snapshot id.Snapshot
	Jail     id.Jail
}

func (e End) String() string { return cmp.Or(string(e.Snapshot), string(e.Jail)) }

// Parts are what can be compared.
type Parts struct {
	Files, Workspace, Processes, Events, Usage bool
}

// CompareOptions say what is compared.
type CompareOptions struct {
	Parts Parts // none: all
	Text  bool  // with the differences of text files
}

// A Logbook finds the log of a jail, to which all has been appended that was seen
// before the call.
type Logbook func(ctx context.Context, jid id.Jail) (*eventlog.Log, error)

// Compare says what differs between two snapshots, two jails, or one and the
// other: what has to change to come from the first to the second.
func (k *Keeper) Compare(ctx context.Context, from, to End, o CompareOptions) (*report.Comparison, error) {
	if o.Parts == (Parts{}) {
		o.Parts = Parts{true, true, true, true, true}
	}
	a, done, err := k.end(ctx, from)
	if err != nil {
		return nil, err
	}
	defer done()
	b, done, err := k.end(ctx, to)
	if err != nil {
		return nil, err
	}
	defer done()
	c := &report.Comparison{From: a.told(), To: b.told()}
	if o.Parts.Files {
		if c.Files, err = k.files(ctx, a, b, jail.ChangesOptions{Text: o.Text}); err != nil {
			return nil, err
		}
	}
	if o.Parts.Workspace && (a.jail.Spec.Workspace != nil || b.jail.Spec.Workspace != nil) {
		if c.Workspace, err = k.files(ctx, a, b, jail.ChangesOptions{Workspace: true, Text: o.Text}); err != nil {
			return nil, err
		}
	}
	if o.Parts.Processes {
		if c.Processes, err = k.compareProcesses(ctx, a, b); err != nil {
			return nil, err
		}
	}
	if o.Parts.Events {
		if c.Events, err = k.events(ctx, a, b); err != nil {
			return nil, err
		}
	}
	if o.Parts.Usage {
		c.Usage = &report.UsageChanges{From: k.usedBy(ctx, a), To: k.usedBy(ctx, b)}
	}
	return c, nil
}

// Changes says what differs between the files of two ends.
func (k *Keeper) Changes(ctx context.Context, from, to End, o jail.ChangesOptions) ([]jail.Change, error) {
	a, done, err := k.end(ctx, from)
	if err != nil {
		return nil, err
	}
	defer done()
	b, done, err := k.end(ctx, to)
	if err != nil {
		return nil, err
	}
	defer done()
	return k.cfg.Jails.Compare(ctx, a.moment(), b.moment(), o)
}

// An end is what is known of an End.
type end struct {
	snapshot *Snapshot // nil of a jail as it is now
	jail     jail.Jail
	time     time.Time
	seq      uint64
}

// end finds an end, which is not deleted until done is called if it is a snapshot.
func (k *Keeper) end(ctx context.Context, e End) (_ *end, done func(), err error) {
	if e.Snapshot != "" {
		s, done, err := k.use(e.Snapshot)
		if err != nil {
			return nil, nil, err
		}
		return &end{snapshot: s, jail: s.Jail, time: s.Created, seq: s.Seq}, done, nil
	}
	j, err := k.cfg.Jails.Get(ctx, e.Jail)
	if err != nil {
		return nil, nil, err
	}
	at := &end{jail: j, time: time.Now()}
	if k.cfg.Records != nil {
		if l, err := k.cfg.Records(ctx, j.ID); err == nil {
			at.seq = l.Last()
		}
	}
	return at, func() {}, nil
}

func (e *end) moment() jail.Moment {
	if e.snapshot != nil {
		return jail.Moment{ID: e.jail.ID, Was: &e.jail}
	}
	return jail.Moment{ID: e.jail.ID}
}

func (e *end) told() report.End {
	t := report.End{Jail: e.jail.ID, Name: report.Text(e.jail.Spec.Name), State: string(e.jail.State), Time: e.time.UTC(), Seq: e.seq}
	if e.snapshot != nil {
		t.Snapshot = e.snapshot.ID
		t.Name = cmp.Or(report.Text(e.snapshot.Name), t.Name)
	}
	return t
}

// maxListed bounds a list of files in a comparison. Changes has them all.
const maxListed = 5000

// files compares files. What cannot be compared is said, for there may be more
// that can.
func (k *Keeper) files(ctx context.Context, a, b *end, o jail.ChangesOptions) (*report.FileChanges, error) {
	f := &report.FileChanges{Counts: map[string]int64{}, List: []report.FileChange{}}
	changes, err := k.cfg.Jails.Compare(ctx, a.moment(), b.moment(), o)
	if why, ok := untellable(err); ok {
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
		if c.NoDiff == jail.DiffLater {
			c.NoDiff = "too much for one answer"
		}
		f.List = append(f.List, report.FileChange{
			Path: report.Text(c.Path), Kind: c.Kind, Type: c.Type, Size: c.Size, Mode: octal(c.Mode), From: report.Text(c.From),
			What: c.What, Diff: report.Text(c.Diff), NoDiff: c.NoDiff,
		})
	}
	return f, nil
}

// untellable returns why something cannot be told, if it is for a reason that
// lies in what is compared.
func untellable(err error) (why string, ok bool) {
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

// usedBy returns what a jail used, or nil of one in which nothing ran.
func (k *Keeper) usedBy(ctx context.Context, e *end) *report.Used {
	var s jail.Stats
	switch {
	case e.snapshot != nil && e.snapshot.Memory:
		s = e.snapshot.Stats
	case e.snapshot == nil && live(e.jail.State):
		var err error
		if s, err = k.cfg.Jails.Stats(ctx, e.jail.ID); err != nil {
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
