// Package linger drains large request bodies after an early error response, so that the client
// can read the response.
//
// If a server responds before it has read the request body and then closes the connection, the
// kernel resets the connection: the client's writes fail, and the client may discard the
// response unread. Therefore the handler sends the response first, and then reads and discards
// the rest of the body for a limited time, until the client closes the connection.
package linger

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	small = 256 << 10        // net/http itself reads so much before it responds (maxPostHandlerReadBytes)
	most  = 64 << 20         // bytes to discard; a client that does not read while it writes must be able to send its whole body
	long  = 10 * time.Second // time limit for discarding
)

// Handler returns a handler that calls h and then discards the unread rest of a large body.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 || r.ContentLength >= 0 && r.ContentLength <= small {
			h.ServeHTTP(w, r)
			return
		}
		rc, body := http.NewResponseController(w), r.Body
		h.ServeHTTP(&writer{ResponseWriter: w, rc: rc}, r)
		if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(long)) != nil {
			return // the connection failed or was hijacked
		}
		defer context.AfterFunc(r.Context(), func() { rc.SetReadDeadline(time.Now()) })()
		if n, _ := io.CopyN(io.Discard, body, most); n < most {
			rc.SetReadDeadline(time.Time{})
		}
	})
}

// A writer sends error responses immediately: without full duplex mode, net/http reads a part of
// the body first.
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
