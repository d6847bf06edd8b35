package run

import (
	"context"
	"time"

	"glasshouse/id"
)

// ownEntries is a Store that knows the entries of one daemon's chain. Daemons that share
// a Store have a chain each, and what is number 7 in one is something else in the other,
// or not there.
type ownEntries struct {
	Store
	holder string
}

// own is an entry if it is of this daemon's chain.
func (s ownEntries) own(entry *int64, recorder string) {
	if recorder != "" && recorder != s.holder {
		*entry = 0
	}
}

func (s ownEntries) runs(list []Run) {
	for i := range list {
		s.own(&list[i].Entry, list[i].Recorder)
	}
}

func (s ownEntries) Session(ctx context.Context, sid string) (Session, error) {
	got, err := s.Store.Session(ctx, sid)
	s.own(&got.Entry, got.Recorder)
	return got, err
}

func (s ownEntries) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	list, err := s.Store.Sessions(ctx, f)
	for i := range list {
		s.own(&list[i].Entry, list[i].Recorder)
	}
	return list, err
}

func (s ownEntries) Run(ctx context.Context, rid id.Run) (Run, error) {
	r, err := s.Store.Run(ctx, rid)
	s.own(&r.Entry, r.Recorder)
	return r, err
}

func (s ownEntries) RunOf(ctx context.Context, sid, key string) (Run, error) {
	r, err := s.Store.RunOf(ctx, sid, key)
	s.own(&r.Entry, r.Recorder)
	return r, err
}

func (s ownEntries) Runs(ctx context.Context, f Filter) ([]Run, error) {
	list, err := s.Store.Runs(ctx, f)
	s.runs(list)
	return list, err
}

func (s ownEntries) Due(ctx context.Context, now time.Time, limit int) ([]Run, error) {
	list, err := s.Store.Due(ctx, now, limit)
	s.runs(list)
	return list, err
}

func (s ownEntries) Unclaimed(ctx context.Context, holder string, now time.Time, after id.Run, limit int) ([]Run, error) {
	list, err := s.Store.Unclaimed(ctx, holder, now, after, limit)
	s.runs(list)
	return list, err
}

func (s ownEntries) Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error) {
	c, err := s.Store.Checkpoint(ctx, cid)
	s.own(&c.Entry, c.Recorder)
	return c, err
}

func (s ownEntries) Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error) {
	list, err := s.Store.Checkpoints(ctx, rid, after, limit)
	for i := range list {
		s.own(&list[i].Entry, list[i].Recorder)
	}
	return list, err
}
