package api

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"glasshouse/id"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// activityHandler serves data derived from the events of jails: processes, states at earlier times,
// system calls and reports.
type activityHandler struct {
	recordings *recordings
	jails      Manager
	snapshots  Snapshots // nil: none
	pasts      recent[*eventlog.Log, *report.Past]
}

type processParams struct {
	ID  id.Jail `path:"id"`
	At  string  `query:"at" description:"The instant: a time (RFC 3339), a duration before now, such as 5m, or the sequence number of an event. Default: now."`
	All bool    `query:"all" description:"Include processes that have ended."`
}

// listProcesses responds with the process tree of a jail.
func (h *activityHandler) listProcesses(w http.ResponseWriter, r *http.Request, p processParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	at, err := instantOr("at", p.At, time.Now())
	if err != nil {
		return err
	}
	var tree *report.Tree
	err = h.recordings.folded(r.Context(), p.ID, procRecords, window{}, func(src report.Events) (err error) {
		tree, err = report.TreeAt(src, at)
		return err
	})
	if err != nil {
		return err
	}
	list := tree.Processes(p.All)
	if accepts(r, textKind) {
		var b bytes.Buffer
		if err := report.WritePS(&b, list); err != nil {
			return fmt.Errorf("render the list of processes: %w", err)
		}
		return writeText(w, b.Bytes())
	}
	return writeJSON(w, http.StatusOK, struct {
		Items []report.Process `json:"items"`
		report.Known
	}{list, tree.Known()})
}

// writeText writes a plain text response.
func writeText(w http.ResponseWriter, text []byte) error {
	w.Header().Set("Content-Type", textKind+"; charset=utf-8")
	_, err := w.Write(text)
	return err
}
