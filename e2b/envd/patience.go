package envd

import (
	"io"
	"net/http"
	"time"
)

// Timeouts of one read of a request body and of one write of a response. Idle clients send a
// keepalive every 90 seconds.
const (
	silence  = 2 * time.Minute
	standing = 5 * time.Minute
)

// patient returns the request's body with a timeout per read instead of one for all of it.
func patient(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	return &patientReader{ReadCloser: r.Body, rc: http.NewResponseController(w)}
}

type patientReader struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	p.rc.SetReadDeadline(time.Now().Add(silence))
	n, err := p.ReadCloser.Read(b)
	if err != nil {
		p.rc.SetReadDeadline(time.Time{}) // net/http's background read would take an expired deadline for a disconnect
	}
	return n, err
}

// A patientWriter is a ResponseWriter with a timeout per write instead of one for the whole
// response.
type patientWriter struct{ http.ResponseWriter }

func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientWriter) Write(b []byte) (int, error) {
	http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(standing))
	return p.ResponseWriter.Write(b)
}

// Flush implements http.Flusher. Connect looks for the interface by a type assertion, not with Unwrap.
func (p *patientWriter) Flush() { http.NewResponseController(p.ResponseWriter).Flush() }
