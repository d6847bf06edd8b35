package egress

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"glasshouse/internal/texttest"
)

func TestRecordPathIsClippedAtRuneBoundary(t *testing.T) {
	texttest.CutsBetweenCharacters(t, "the path of a record", func(path string) string {
		var kept []Record
		p := &Proxy{conf: Config{Recorder: recorderFunc(func(r Record) { kept = append(kept, r) })}}
		p.record(Record{Request: Request{Path: path}, Allowed: true})
		return kept[0].Path
	})
}

type recorderFunc func(Record)

func (f recorderFunc) Record(r Record) { f(r) }

// A server may respond before the proxy has asked the client for the body.
func TestNoContinueAfterFinalResponse(t *testing.T) {
	proxy, client := net.Pipe()
	sent := make(chan string)
	go func() {
		b, _ := io.ReadAll(client)
		sent <- string(b)
	}()
	w := newReply(proxy, &http.Request{Method: http.MethodPut, ProtoMajor: 1, ProtoMinor: 1})
	body := &requestBody{r: strings.NewReader("data"), w: w, expected: true}
	w.WriteHeader(http.StatusNoContent)
	if n, err := body.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("read of a body that the client need not send: %d, %v", n, err)
	}
	proxy.Close()
	if got := <-sent; strings.Contains(got, "100 Continue") {
		t.Errorf("the client received %q", got)
	}
}
