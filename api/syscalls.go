package api

import (
	"net/http"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// A period is a time range of a log.
type period struct {
	From string `query:"from" description:"Start of the time range: a time (RFC 3339), or a duration before now, such as 5m. Default: the first event."`
	To   string `query:"to" description:"End of the time range. Default: the last event."`
}

func (p period) times(now time.Time) (from, to time.Time, err error) {
	from, err = instant("from", p.From, now)
	if err != nil {
		return
	}
	to, err = instant("to", p.To, now)
	if err != nil {
		return
	}
	if !to.IsZero() && to.Before(from) {
		err = fault.Fieldf("api.times", "to", "to is before from")
	}
	return
}

type syscallParams struct {
	ID id.Jail `path:"id"`
	recordFilter
	period
	Processes int `query:"processes" minimum:"0" maximum:"100" description:"Number of processes to list, those with the most calls first. Default 0."`
	Limit     int `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items in each list. Default 100."`
}

// getSyscallProfile responds with statistics about the system calls of a jail, their durations and
// errors.
func (h *activityHandler) getSyscallProfile(w http.ResponseWriter, r *http.Request, p syscallParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	n, err := limit(p.Limit)
	if err != nil {
		return err
	}
	if p.Processes < 0 || p.Processes > 100 {
		return fault.Fieldf("api.getSyscallProfile", "processes", "%d is not between 0 and 100", p.Processes)
	}
	q := eventlog.Query{}
	q.Since, q.Until, err = p.times(time.Now())
	if err != nil {
		return err
	}
	if p.Type == "" {
		p.Type = "syscall,gap" // gaps report lost events
	}
	q.Filter, err = p.filter()
	if err != nil {
		return err
	}
	l, err := h.recordings.log(r.Context(), p.ID)
	if err != nil {
		return err
	}
	c, err := read(r.Context(), l, q)
	if err != nil {
		return err
	}
	defer c.Close()
	profile, err := report.MakeProfile(r.Context(), c, report.ProfileOptions{Rows: n, Processes: p.Processes})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, profile)
}
