package apitest

import (
	"context"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/report"
)

// Changes implements api.Comparer. It returns Jails.Diff for all arguments.
func (k *Snapshots) Changes(ctx context.Context, from, to snapshot.Side, o jail.ChangesOptions) ([]jail.Change, error) {
	for _, e := range []snapshot.Side{from, to} {
		if _, err := k.end(ctx, e); err != nil {
			return nil, err
		}
	}
	return k.jails.Diff, k.fail("compare")
}

// Compare implements api.Comparer.
func (k *Snapshots) Compare(ctx context.Context, from, to snapshot.Side, o snapshot.CompareOptions) (*report.Comparison, error) {
	a, err := k.end(ctx, from)
	if err != nil {
		return nil, err
	}
	b, err := k.end(ctx, to)
	if err == nil {
		err = k.fail("compare")
	}
	if err != nil {
		return nil, err
	}
	c := &report.Comparison{From: a, To: b}
	all := o.Parts == snapshot.Parts{}
	if all || o.Parts.Files {
		c.Files = &report.FileChanges{Counts: map[string]int64{}}
		for _, ch := range k.jails.Diff {
			f := report.FileChange{Path: report.Text(ch.Path), Kind: ch.Kind, Type: ch.Type, From: report.Text(ch.From), What: ch.What}
			if o.Text {
				f.Diff = report.Text(ch.Diff)
			}
			c.Files.List = append(c.Files.List, f)
			c.Files.Counts[ch.Kind]++
		}
	}
	if all || o.Parts.Processes {
		c.Processes = &report.ProcessChanges{Started: []report.RunningProcess{{PID: 7, Comm: "sleep", Argv: []report.Text{"sleep", "9"}}}}
	}
	return c, nil
}

func (k *Snapshots) end(ctx context.Context, e snapshot.Side) (report.End, error) {
	now := time.Now()
	if e.Snapshot == "" {
		j, err := k.jails.Get(ctx, e.Jail)
		return report.End{Jail: j.ID, State: string(j.State), Time: now}, err
	}
	s, err := k.Get(ctx, e.Snapshot)
	return report.End{Jail: s.Jail.ID, Snapshot: id.Snapshot(s.ID), State: string(s.Jail.State), Time: now}, err
}
