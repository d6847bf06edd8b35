package envd

import (
	"io"
	"net/http"
	"time"
)

// How long a client may say nothing in the middle of a body, and take nothing of an
// answer. Clients that have nothing to say send a word every minute and a half.
const (
	silence  = 2 * time.Minute
	standing = 5 * time.Minute
)

// patient is the body of a request whose client may be slow, but not silent.
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
		p.rc.SetReadDeadline(time.Time{}) // or the server would take the client for gone
	}
	return n, err
}

// A patientWriter answers a client who may be slow, but has to take something now and
// then.
type patientWriter struct{ http.ResponseWriter }

func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientWriter) Write(b []byte) (int, error) {
	http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(standing))
	return p.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, which is looked for by its type.
func (p *patientWriter) Flush() { http.NewResponseController(p.ResponseWriter).Flush() }
