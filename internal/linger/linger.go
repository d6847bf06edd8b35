// Package linger has who sends a large body hear the answer.
//
// A server that answers before it has read a body, and closes, resets the connection:
// what its client still writes fails, and the answer that was sent may be thrown away
// unread. So the answer goes out first, and the rest of the body is read and forgotten
// for a while, until the client has seen the answer and closes.
package linger

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	small = 256 << 10        // what net/http itself reads before it answers
	most  = 64 << 20         // bytes that are forgotten: who does not listen while writing has to get rid of all of them
	long  = 10 * time.Second // in all
)

// Handler is h, and what h does not read of a large body is read behind it.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 || r.ContentLength >= 0 && r.ContentLength <= small {
			h.ServeHTTP(w, r)
			return
		}
		rc, body := http.NewResponseController(w), r.Body
		h.ServeHTTP(&writer{ResponseWriter: w, rc: rc}, r)
		if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(long)) != nil {
			return // it was broken off, or the connection is another's now
		}
		defer context.AfterFunc(r.Context(), func() { rc.SetReadDeadline(time.Now()) })()
		if n, _ := io.CopyN(io.Discard, body, most); n < most {
			rc.SetReadDeadline(time.Time{})
		}
	})
}

// A writer refuses at once: net/http would first wait for a part of the body.
type writer struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Flush() { w.rc.Flush() }

func (w *writer) WriteHeader(status int) {
	if status >= 400 && w.rc.EnableFullDuplex() == nil {
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}
