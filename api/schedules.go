package api

import (
	"context"
	"time"

	"glasshouse/agents/gateway"
	"glasshouse/agents/schedule"
	"glasshouse/api/wire"
	"glasshouse/id"
)

// Schedules manages schedules. *schedule.Manager implements it.
type Schedules interface {
	Get(ctx context.Context, h id.Schedule) (schedule.Schedule, error)
	List(ctx context.Context, f schedule.Filter) ([]schedule.Schedule, error)
	Pause(ctx context.Context, h id.Schedule) (schedule.Schedule, error)
	Resume(ctx context.Context, h id.Schedule) (schedule.Schedule, error)
}

// scheduleHandler serves the routes of schedules.
type scheduleHandler struct {
	schedules Schedules
	gateway   Gateway
}

type listSchedules struct {
	Session string      `query:"session_id"`
	Limit   int         `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After   id.Schedule `query:"after" description:"The 'next' value of the previous page."`
}

func (h *scheduleHandler) listSchedules(ctx context.Context, p listSchedules, _ none) (wire.Page[wire.Schedule], error) {
	if h.schedules == nil {
		return wire.Page[wire.Schedule]{}, noAgents
	}
	return pageOf(p.Limit, func(n int) ([]schedule.Schedule, error) {
		return h.schedules.List(ctx, schedule.Filter{Session: p.Session, After: p.After, Limit: n})
	}, func(h schedule.Schedule) string { return string(h.ID) }, scheduleOf)
}

type oneSchedule struct {
	Schedule id.Schedule `path:"schedule"`
}

// shownTimes is the number of upcoming times in a response.
const shownTimes = 10

func (h *scheduleHandler) getSchedule(ctx context.Context, p oneSchedule, _ none) (wire.Schedule, error) {
	if h.schedules == nil {
		return wire.Schedule{}, noAgents
	}
	one, err := h.schedules.Get(ctx, p.Schedule)
	if err != nil {
		return wire.Schedule{}, err
	}
	w := scheduleOf(one)
	if !one.Paused {
		w.Next = one.NextTimes(shownTimes)
	}
	return w, nil
}

func (h *scheduleHandler) pauseSchedule(ctx context.Context, p oneSchedule, _ none) (wire.Schedule, error) {
	if h.schedules == nil {
		return wire.Schedule{}, noAgents
	}
	one, err := h.schedules.Pause(ctx, p.Schedule)
	return scheduleOf(one), err
}

func (h *scheduleHandler) resumeSchedule(ctx context.Context, p oneSchedule, _ none) (wire.Schedule, error) {
	if h.schedules == nil {
		return wire.Schedule{}, noAgents
	}
	one, err := h.schedules.Resume(ctx, p.Schedule)
	return scheduleOf(one), err
}

func (h *scheduleHandler) deleteSchedule(ctx context.Context, p oneSchedule, _ none) (none, error) {
	return none{}, h.gateway.Unschedule(ctx, p.Schedule, by(ctx))
}

// updateSchedule changes the times of a schedule. The waiting run is updated.
func (h *scheduleHandler) updateSchedule(ctx context.Context, p oneSchedule, b wire.EditSchedule) (wire.Schedule, error) {
	one, err := h.gateway.Reschedule(ctx, p.Schedule, by(ctx), func(spec *schedule.Spec) error { return edit(spec, b) })
	return scheduleOf(one), err
}

func edit(spec *schedule.Spec, b wire.EditSchedule) error {
	set(&spec.Cron, b.Cron)
	set(&spec.TZ, b.TimeZone)
	set((*string)(&spec.Missed), b.Missed)
	set((*string)(&spec.Overlap), b.Overlap)
	if b.Cron != nil {
		spec.At = nil
	}
	if b.JitterMS == nil {
		return nil
	}
	var err error
	spec.Jitter, err = millis("jitter_ms", *b.JitterMS)
	return err
}

func set(to, from *string) {
	if from != nil {
		*to = *from
	}
}

type timesParams struct {
	Schedule string `query:"schedule"`
	TimeZone string `query:"time_zone"`
}

// previewSchedule previews the times of a schedule that does not exist yet.
func (h *scheduleHandler) previewSchedule(_ context.Context, p timesParams, _ none) (wire.Times, error) {
	spec := schedule.Spec{Cron: p.Schedule, TZ: p.TimeZone}
	times, err := spec.Times(time.Now().UTC(), shownTimes)
	if times == nil {
		times = []time.Time{}
	}
	return wire.Times{Times: times}, err
}

func scheduleOf(h schedule.Schedule) wire.Schedule {
	return wire.Schedule{
		ID: h.ID, Session: h.Session, Goal: gateway.GoalOf(h), Cron: h.Cron, TimeZone: h.TZ, Missed: string(h.Missed), Overlap: string(h.Overlap),
		JitterMS: h.Jitter.Milliseconds(), Paused: h.Paused, NextRunAt: utc(h.Next), Waiting: utc(h.Queued), Last: utc(h.Last), Error: h.Error,
		Fired: h.Counts.Fired, Left: h.Counts.Missed, Skipped: h.Counts.Skipped, Failed: h.Counts.Failed, Created: h.Created.UTC(),
	}
}
