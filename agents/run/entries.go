package run

import (
	"context"
	"time"

	"glasshouse/id"
)

// ownEntries is a Store that hides the entry numbers of other daemons' chains. Daemons that
// share a Store have separate chains, so a number is valid in one chain only.
type ownEntries struct {
	Store
	holder string
}

// hideForeign sets entry to 0 unless it is in the chain of this daemon.
func (s ownEntries) hideForeign(entry *int64, recorder string) {
	if recorder != "" && recorder != s.holder {
		*entry = 0
	}
}

func (s ownEntries) hideForeignRuns(list []Run) {
	for i := range list {
		s.hideForeign(&list[i].Entry, list[i].Recorder)
	}
}

func (s ownEntries) Session(ctx context.Context, sid string) (Session, error) {
	got, err := s.Store.Session(ctx, sid)
	s.hideForeign(&got.Entry, got.Recorder)
	return got, err
}

func (s ownEntries) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	list, err := s.Store.Sessions(ctx, f)
	for i := range list {
		s.hideForeign(&list[i].Entry, list[i].Recorder)
	}
	return list, err
}

func (s ownEntries) Run(ctx context.Context, rid id.Run) (Run, error) {
	r, err := s.Store.Run(ctx, rid)
	s.hideForeign(&r.Entry, r.Recorder)
	return r, err
}

func (s ownEntries) RunOf(ctx context.Context, sid, key string) (Run, error) {
	r, err := s.Store.RunOf(ctx, sid, key)
	s.hideForeign(&r.Entry, r.Recorder)
	return r, err
}

func (s ownEntries) Runs(ctx context.Context, f Filter) ([]Run, error) {
	list, err := s.Store.Runs(ctx, f)
	s.hideForeignRuns(list)
	return list, err
}

func (s ownEntries) Due(ctx context.Context, now time.Time, limit int) ([]Run, error) {
	list, err := s.Store.Due(ctx, now, limit)
	s.hideForeignRuns(list)
	return list, err
}

func (s ownEntries) Unclaimed(ctx context.Context, holder string, after id.Run, limit int) ([]Run, error) {
	list, err := s.Store.Unclaimed(ctx, holder, after, limit)
	s.hideForeignRuns(list)
	return list, err
}

func (s ownEntries) Checkpoint(ctx context.Context, cid id.Checkpoint) (Checkpoint, error) {
	c, err := s.Store.Checkpoint(ctx, cid)
	s.hideForeign(&c.Entry, c.Recorder)
	return c, err
}

func (s ownEntries) Checkpoints(ctx context.Context, rid id.Run, after int64, limit int) ([]Checkpoint, error) {
	list, err := s.Store.Checkpoints(ctx, rid, after, limit)
	for i := range list {
		s.hideForeign(&list[i].Entry, list[i].Recorder)
	}
	return list, err
}
