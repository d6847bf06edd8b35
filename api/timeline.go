package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/eventlog"
)

// maxTallies is the size of the cache. An entry needs some megabytes at most.
const maxTallies = 16

// filtered is the key of a filtered log, by the text of the filter.
type filtered struct {
	log    *eventlog.Log
	filter string
}

// tally returns the counts of the events of a jail that match a filter, up to now.
func (h *eventHandler) tally(ctx context.Context, j id.Jail, rf recordFilter) (*eventlog.Tally, error) {
	f, err := rf.filter()
	if err != nil {
		return nil, err
	}
	l, err := h.recordings.log(ctx, j)
	if err != nil {
		return nil, err
	}
	if err := flushed(ctx, l); err != nil {
		return nil, err
	}
	t := h.tallies.of(filtered{l, f.String()}, func() *eventlog.Tally { return l.Tally(f) })
	return t, t.Update(ctx)
}

// eventWindow responds with a window of the matching events, selected by offset or by time.
func (h *eventHandler) eventWindow(w http.ResponseWriter, r *http.Request, p eventParams) error {
	if p.Since != "" || p.Until != "" || p.After != nil || p.Tail != nil || p.Follow != nil || p.Format != "" || p.Offset != nil && p.At != "" {
		return fault.Fieldf("api.eventWindow", "offset", "offset and at can be combined only with a filter and limit")
	}
	n, err := limit(p.Limit)
	if err != nil {
		return err
	}
	at, err := instant("at", p.At, time.Now())
	if err != nil {
		return err
	}
	t, err := h.tally(r.Context(), p.ID, p.recordFilter)
	if err != nil {
		return err
	}
	win := wire.EventWindow{Total: t.Total(), Items: []json.RawMessage{}}
	if p.Offset != nil {
		win.Offset = *p.Offset
		if win.Offset < 0 {
			win.Offset = max(0, win.Total+win.Offset)
		}
	} else if win.Offset, err = t.Offset(r.Context(), at); err != nil {
		return err
	}
	lines, err := t.Window(r.Context(), win.Offset, n)
	if err != nil {
		return err
	}
	for _, line := range lines {
		win.Items = append(win.Items, line)
	}
	return writeJSON(w, http.StatusOK, win)
}

type timelineParams struct {
	ID id.Jail `path:"id"`
	recordFilter
	period
	Buckets int `query:"buckets" minimum:"1" maximum:"2000" description:"Approximate number of buckets. Default 300. The response contains up to twice as many, or fewer if the time range is short."`
	Lanes   int `query:"lanes" minimum:"0" maximum:"100" description:"Number of processes to list, those with the most events first. Default 0."`
}

func (h *eventHandler) getTimeline(ctx context.Context, p timelineParams, _ none) (wire.Timeline, error) {
	var w wire.Timeline
	const op = "api.getTimeline"
	if p.Buckets == 0 {
		p.Buckets = 300
	}
	if p.Buckets < 0 || p.Buckets > 2000 {
		return w, fault.Fieldf(op, "buckets", "%d is not between 1 and 2000", p.Buckets)
	}
	if p.Lanes < 0 || p.Lanes > 100 {
		return w, fault.Fieldf(op, "lanes", "%d is not between 0 and 100", p.Lanes)
	}
	from, to, err := p.times(time.Now())
	if err != nil {
		return w, err
	}
	t, err := h.tally(ctx, p.ID, p.recordFilter)
	if err != nil {
		return w, err
	}
	tl, err := t.Timeline(ctx, from, to, p.Buckets, p.Lanes)
	if err != nil {
		return w, err
	}
	w = wire.Timeline{From: tl.From, BucketMS: tl.Width.Milliseconds(), Counts: countsOf(tl.All), Total: tl.Total, Lanes: []wire.TimelineLane{}}
	if tl.Total > 0 {
		w.First, w.Last = &tl.First, &tl.Last
	}
	for _, lane := range tl.Lanes {
		var comm string
		if err := json.Unmarshal([]byte(`"`+lane.Comm+`"`), &comm); err != nil {
			comm = lane.Comm // the log line is damaged
		}
		w.Lanes = append(w.Lanes, wire.TimelineLane{PID: lane.PID, Comm: comm, Total: lane.Total, Counts: countsOf(lane.Buckets)})
	}
	return w, nil
}

func countsOf(list []eventlog.Counts) wire.TimelineCounts {
	of := func(k eventlog.Kind) []uint32 {
		ns := make([]uint32, len(list))
		for i, c := range list {
			ns[i] = c[k]
		}
		return ns
	}
	return wire.TimelineCounts{
		File: of(eventlog.KindFile), Net: of(eventlog.KindNet), Proc: of(eventlog.KindProc), Syscall: of(eventlog.KindSyscall), Other: of(eventlog.KindOther),
	}
}
