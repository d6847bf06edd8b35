package api

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// folded passes the events that a filter selects to a fold of package report.
func (s *Server) folded(ctx context.Context, j id.Jail, filter string, w window, fold func(report.Events) error) error {
	f, err := event.ParseFilter(filter)
	if err != nil {
		return err
	}
	l, err := s.log(ctx, j)
	if err != nil {
		return err
	}
	q, err := w.query(f, l)
	if err != nil {
		return err
	}
	c, err := read(ctx, l, q)
	if err != nil {
		return err
	}
	defer c.Close()
	return fold(&records{ctx, c})
}

// records is a cursor that ends with the context of the client: a fold may take long.
type records struct {
	ctx context.Context
	c   *eventlog.Cursor
}

func (r *records) Next(e *event.Event) ([]byte, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	return r.c.Next(e)
}

type processParams struct {
	ID  id.Jail `path:"id"`
	At  string  `query:"at" description:"The instant: a time (RFC 3339), a duration before now, such as 5m, or the sequence number of an event. Default: now."`
	All bool    `query:"all" description:"Include processes that have ended."`
}

// listProcesses responds with the process tree of a jail.
func (s *Server) listProcesses(w http.ResponseWriter, r *http.Request, p processParams) error {
	if _, err := s.readBody(w, r, &none{}); err != nil {
		return err
	}
	at, err := instantOr("at", p.At, time.Now())
	if err != nil {
		return err
	}
	var tree *report.Tree
	err = s.folded(r.Context(), p.ID, procRecords, window{}, func(src report.Events) (err error) {
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
			return err
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
