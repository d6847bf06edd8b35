package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"glasshouse/policy/access"
)

// A recorder is the ResponseWriter of one request. It collects data for the log and the
// metrics.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	caller access.Caller
	stream bool

	maxBody int64 // maximum size of a JSON body in bytes
}

// maxBody returns the maximum size of the JSON body of the request that w answers.
func maxBody(w http.ResponseWriter) int64 { return w.(*recorder).maxBody }

// Unwrap supports http.ResponseController and hijacking.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *recorder) WriteHeader(status int) {
	if rec.status == 0 {
		rec.status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	n, err := rec.ResponseWriter.Write(p)
	rec.bytes += int64(n)
	return n, err
}

// observe logs and counts a finished request.
func (s *Server) observe(rec *recorder, r *http.Request, start time.Time) {
	took := time.Since(start)
	s.metrics.request(r.Pattern, rec, took)

	level := slog.LevelInfo
	if r.Method == http.MethodGet && rec.status < 400 {
		level = slog.LevelDebug
	}
	from := r.RemoteAddr
	if connOf(r.Context()).local {
		from = "socket"
	}
	s.o.Log.Log(context.WithoutCancel(r.Context()), level, "request",
		"request", where(r), "status", rec.status, "bytes", rec.bytes,
		"took", took, "caller", rec.caller.Name, "role", rec.caller.Role, "from", from)
}
