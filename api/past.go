package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/report"
)

// maxPasts is the size of the cache. An entry needs some tens of megabytes at most.
const maxPasts = 6

type pastParams struct {
	ID    id.Jail `path:"id"`
	TS    string  `query:"ts" description:"The instant: a time (RFC 3339), a duration before now, such as 5m, or the sequence number of an event. Default: now."`
	All   bool    `query:"all" description:"Include processes that ended before the instant, as far as they are stored."`
	Limit int     `query:"limit" minimum:"1" maximum:"10000" description:"Maximum number of changed files. Default 1000."`
}

// getPastState responds with the state of a jail at an instant.
func (h *activityHandler) getPastState(w http.ResponseWriter, r *http.Request, p pastParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if p.Limit == 0 {
		p.Limit = 1000
	}
	if p.Limit < 0 || p.Limit > 10000 {
		return fault.Fieldf("api.getPastState", "limit", "%d is not between 1 and 10000", p.Limit)
	}
	at, err := instantOr("ts", p.TS, time.Now())
	if err != nil {
		return err
	}
	j, err := h.jails.Get(r.Context(), p.ID)
	if err != nil {
		return err
	}
	l, err := h.recordings.log(r.Context(), p.ID)
	if err != nil {
		return err
	}
	if err := flushed(r.Context(), l); err != nil {
		return err
	}
	then, err := h.pasts.of(l, func() *report.Past { return report.NewPast(l) }).At(r.Context(), at)
	if err != nil {
		return err
	}
	near, err := h.nearest(r.Context(), p.ID, at, then)
	if err != nil {
		return err
	}
	out := then.Report(p.All, p.Limit, seqOf(near))
	out.Files.Recorded = j.Spec.Observe.Files != "off"
	answer := struct {
		At *time.Time `json:"at,omitempty"`
		report.StateReport
		Snapshot *wire.Snapshot `json:"snapshot,omitempty"`
	}{StateReport: out}
	if !at.Time.IsZero() {
		answer.At = utc(&at.Time)
	}
	if near != nil {
		answer.Snapshot = new(snapshotOf(*near, h.snapshots))
	}
	return writeJSON(w, http.StatusOK, answer)
}

// instantOr parses a time, a duration before now, or an event number.
func instantOr(field, text string, now time.Time) (report.Instant, error) {
	if seq, err := strconv.ParseUint(text, 10, 64); err == nil {
		return report.Instant{Seq: seq}, nil
	}
	t, err := instant(field, text, now)
	return report.Instant{Time: t}, err
}

// nearest returns the last snapshot of a jail before an instant, or nil. A branch from that
// instant starts with this snapshot.
func (h *activityHandler) nearest(ctx context.Context, j id.Jail, at report.Instant, then *report.State) (*snapshot.Snapshot, error) {
	if h.snapshots == nil {
		return nil, nil
	}
	list, err := h.snapshots.List(ctx, snapshot.ListOptions{Jail: j})
	if err != nil {
		return nil, err
	}
	for _, one := range slices.Backward(list) {
		early := at.Time.IsZero() || !one.Created.After(at.Time)
		if early && (at.Seq == 0 || one.Seq <= at.Seq) && then.Before(one.Seq) {
			return &one, nil
		}
	}
	if then.From == "" {
		return nil, nil
	}
	one, err := h.snapshots.Get(ctx, then.From)
	if errors.Is(err, fault.NotFound) {
		return nil, nil // the snapshot was deleted
	}
	if err != nil {
		return nil, err
	}
	return &one, nil
}

// seqOf returns the number of the last event of the jail before the snapshot.
func seqOf(s *snapshot.Snapshot) uint64 {
	if s == nil {
		return 0
	}
	return s.Seq
}
