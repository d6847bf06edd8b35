package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	heartbeat = 15 * time.Second // interval of heartbeat comments, which detect dead connections
	writeTime = 30 * time.Second // time limit for a client to read what was written
)

// events writes server-sent events.
type events struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	patience time.Duration // write timeout
}

// startEvents begins an event stream. patience is the time limit for the client to read each
// event.
func startEvents(w http.ResponseWriter, patience time.Duration) *events {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // prevents buffering in a reverse proxy
	w.WriteHeader(http.StatusOK)
	return &events{w: w, rc: http.NewResponseController(w), patience: patience}
}

// send writes one event. An empty id is omitted, so that the client keeps its last event id.
// send fails if the client does not read in time.
func (e *events) send(id, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", name, err)
	}
	var b strings.Builder
	b.Grow(len(data) + 64)
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", id)
	}
	fmt.Fprintf(&b, "event: %s\ndata: ", name)
	b.Write(data) // JSON has no line breaks
	b.WriteString("\n\n")
	return e.write(b.String())
}

// beat writes a comment.
func (e *events) beat() error { return e.write(":\n\n") }

func (e *events) write(s string) error {
	e.rc.SetWriteDeadline(time.Now().Add(e.patience))
	if _, err := e.w.Write([]byte(s)); err != nil {
		return err
	}
	return e.rc.Flush()
}

// wantsEvents reports whether a request asks for an event stream.
func wantsEvents(r *http.Request) bool { return accepts(r, "text/event-stream") }

func accepts(r *http.Request, media string) bool {
	for _, h := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(h, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), media) {
				return true
			}
		}
	}
	return false
}
