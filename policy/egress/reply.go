package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A reply writes the response to one HTTP/1 request. It is an unbuffered http.ResponseWriter.
type reply struct {
	c      net.Conn
	method string
	old    bool // HTTP/1.0
	header http.Header

	mu      sync.Mutex // another goroutine writes 1xx responses
	code    int        // 0 until the head is written
	text    string     // reason phrase, if not the default
	chunked bool
	bare    bool  // the response has no body; Write discards its data
	left    int64 // remaining bytes of the body; -1 if the length is unknown
	last    bool  // the connection is closed after this response
	err     error // the first error; nothing is written after it
	scratch []byte
}

func newReply(c net.Conn, r *http.Request) *reply {
	return &reply{c: c, method: r.Method, old: !r.ProtoAtLeast(1, 1), last: r.Close || !r.ProtoAtLeast(1, 1), header: http.Header{}}
}

func (w *reply) Header() http.Header { return w.header }

var errFraming = errors.New("the body does not have the length in Content-Length")

// WriteHeader writes the head. The caller must have validated the fields in Header.
func (w *reply) WriteHeader(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.code != 0 {
		return
	}
	if code >= 100 && code < 200 && code != http.StatusSwitchingProtocols {
		// HTTP/1.0 has no 1xx responses (RFC 9110, 15.2).
		if !w.old {
			w.head(code, w.header)
		}
		return
	}
	w.code = code
	// These responses end with the head, whatever their fields say (RFC 9112, 6.3).
	w.bare = w.method == http.MethodHead || code < 200 || code == http.StatusNoContent || code == http.StatusNotModified
	w.left = -1
	length, announced := w.header["Content-Length"]
	switch {
	// Content-Length is not allowed here (RFC 9110, 8.6).
	case code < 200, code == http.StatusNoContent:
		w.header.Del("Content-Length")
	case announced && len(length) == 1:
		n, err := strconv.ParseInt(length[0], 10, 64)
		if err != nil {
			w.err = errFraming
			return
		}
		w.left = n
	case w.bare:
	// HTTP/1.0 has no chunked coding (RFC 9112, 6.1). The end of the connection ends the body.
	case w.old:
		w.last = true
	default:
		w.chunked = true
		w.header.Set("Transfer-Encoding", "chunked")
	}
	if w.last && code != http.StatusSwitchingProtocols {
		w.header.Set("Connection", "close")
	}
	w.head(code, w.header)
}

// head writes a status line and header fields. The caller holds w.mu.
//
// +checklocks:w.mu
func (w *reply) head(code int, h http.Header) {
	var b bytes.Buffer
	text := w.text
	if text == "" {
		text = http.StatusText(code)
	}
	fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\n", code, text)
	plain := make(http.Header, len(h))
	for k, v := range h {
		if !strings.HasPrefix(k, http.TrailerPrefix) {
			plain[k] = v
		}
	}
	plain.Write(&b)
	b.WriteString("\r\n")
	w.send(b.Bytes())
}

// proceed sends 100 Continue. It fails if the head of the final response was written, for
// example because the server did not wait for the body: the client then need not send it.
func (w *reply) proceed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.code != 0 {
		return net.ErrClosed
	}
	w.head(http.StatusContinue, nil)
	return w.err
}

func (w *reply) send(b []byte) {
	if w.err == nil {
		_, w.err = w.c.Write(b)
	}
}

func (w *reply) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bare || len(b) == 0 {
		return len(b), w.err
	}
	if w.chunked {
		// One write for the whole chunk avoids a segment and a TLS record for its size alone.
		w.scratch = strconv.AppendInt(w.scratch[:0], int64(len(b)), 16)
		w.scratch = append(w.scratch, "\r\n"...)
		w.scratch = append(w.scratch, b...)
		w.scratch = append(w.scratch, "\r\n"...)
		w.send(w.scratch)
		return len(b), w.err
	}
	if w.left >= 0 {
		if int64(len(b)) > w.left {
			w.err = errFraming
			return 0, w.err
		}
		w.left -= int64(len(b))
	}
	w.send(b)
	return len(b), w.err
}

// Flush implements http.Flusher. It does nothing, because a reply does not buffer.
func (w *reply) Flush() {}

// finish completes the response. It reports whether another response may follow on the
// connection. It may be called twice.
func (w *reply) finish() bool {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.chunked {
		var b bytes.Buffer
		b.WriteString("0\r\n")
		for k, v := range w.header {
			if name, ok := strings.CutPrefix(k, http.TrailerPrefix); ok {
				http.Header{name: v}.Write(&b)
			}
		}
		b.WriteString("\r\n")
		w.send(b.Bytes())
		w.chunked = false
	}
	if w.left > 0 && !w.bare {
		w.err = errFraming
	}
	return w.err == nil && !w.last
}

// cut aborts the response. The caller must reset the connection, so that the client detects
// the truncation.
func (w *reply) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Without chunked, finish does not write the last chunk, after which the client would take
	// the response for complete (RFC 9112, 8).
	w.err, w.last, w.chunked = errFraming, true, false
}

// status returns the HTTP status of a refusal.
func (r *refusal) status() int {
	if r.code != 0 {
		return r.code
	}
	switch r.Reason {
	case ReasonRate:
		return http.StatusTooManyRequests
	case ReasonMalformed:
		return http.StatusBadRequest
	case ReasonMismatch:
		return http.StatusMisdirectedRequest
	case ReasonProtocol:
		return http.StatusNotImplemented
	case ReasonLimit:
		return http.StatusRequestHeaderFieldsTooLarge
	case ReasonClosed:
		return http.StatusServiceUnavailable
	case ReasonSecret, ReasonUpstream:
		return http.StatusBadGateway
	}
	return http.StatusForbidden
}

// problem is a refusal in the format of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Reason Reason `json:"reason"`
	Rule   string `json:"rule,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// answer sends the refusal as an HTTP response and returns its status.
func (r *refusal) answer(w http.ResponseWriter, accept []string) int {
	status := r.status()
	h := w.Header()
	clear(h)
	body := []byte(r.message())
	kind := "text/plain; charset=utf-8"
	if slices.ContainsFunc(accept, func(a string) bool { return strings.Contains(strings.ToLower(a), "json") }) {
		kind = "application/problem+json"
		body, _ = json.Marshal(problem{"urn:glasshouse:egress:" + string(r.Reason), "refused by glasshouse", status, r.Detail, r.Reason, r.Rule, r.Remedy})
		body = append(body, '\n')
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Glasshouse-Refused", string(r.Reason))
	if r.wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int(r.wait/time.Second)+1))
	}
	if rep, ok := w.(*reply); ok {
		// The request body may be unread. Its rest must not be parsed as the next request.
		rep.last = true
		rep.text = http.StatusText(status) + " (glasshouse: " + string(r.Reason) + ")"
	}
	w.WriteHeader(status)
	w.Write(body)
	return status
}
