package test_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"glasshouse/api/client"
	"glasshouse/api/wire"
)

// An otlpReceiver is a collector that counts the received records and spans by id.
type otlpReceiver struct {
	*httptest.Server

	mu    sync.Mutex
	wants string // the accepted content type
	logs  map[string]int
	spans map[string]*tracepb.Span
	times map[string]int // number of receipts, by span
	took  int            // accepted requests
	wrong []string
	at    int           // the number of requests after which it closes there and stops responding
	there chan struct{} // closed after that many requests
}

func newOTLPReceiver(t *testing.T, wants string) *otlpReceiver {
	r := &otlpReceiver{wants: wants, logs: map[string]int{}, spans: map[string]*tracepb.Span{}, times: map[string]int{}, there: make(chan struct{})}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *otlpReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the client has disconnected
	}
	if hold := r.take(req, body); hold {
		<-req.Context().Done()
		return
	}
	w.Header().Set("Content-Type", r.wants)
	if r.wants == "application/json" {
		io.WriteString(w, "{}")
	}
}

func (r *otlpReceiver) take(req *http.Request, body []byte) (hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := req.Header.Get("Content-Type"); got != r.wants {
		r.wrong = append(r.wrong, "the type "+got)
		return false
	}
	decode := proto.Unmarshal
	if r.wants == "application/json" {
		decode = unmarshalOTLP
	}
	var err error
	switch req.URL.Path {
	case "/v1/logs":
		var d logspb.LogsData
		err = decode(body, &d)
		for _, of := range d.ResourceLogs {
			for _, l := range of.ScopeLogs[0].LogRecords {
				seq, jail := "", ""
				for _, a := range l.Attributes {
					if a.Key == "glasshouse.seq" || a.Key == "glasshouse.chain.seq" {
						seq = a.Value.GetStringValue()
						if seq == "" {
							seq = fmt.Sprint(a.Value.GetIntValue())
						}
					}
				}
				if strings.HasPrefix(l.EventName, "glasshouse.chain.") {
					jail = "chain"
				} else {
					for _, a := range of.Resource.Attributes {
						if a.Key == "glasshouse.jail.id" {
							jail = a.Value.GetStringValue()
						}
					}
				}
				r.logs[jail+"/"+seq]++
			}
		}
	case "/v1/traces":
		var d tracepb.TracesData
		err = decode(body, &d)
		for _, of := range d.ResourceSpans {
			for _, s := range of.ScopeSpans[0].Spans {
				if len(s.TraceId) != 16 || len(s.SpanId) != 8 {
					r.wrong = append(r.wrong, fmt.Sprintf("the ids %x and %x", s.TraceId, s.SpanId))
				}
				id := hex.EncodeToString(s.SpanId)
				if was := r.spans[id]; was != nil && !proto.Equal(was, s) {
					r.wrong = append(r.wrong, fmt.Sprintf("two spans of one id: %v and %v", was, s))
				}
				r.spans[id] = s
				r.times[id]++
			}
		}
	default:
		r.wrong = append(r.wrong, "the path "+req.URL.Path)
	}
	if err != nil {
		r.wrong = append(r.wrong, err.Error())
	}
	if r.took++; r.took == r.at {
		close(r.there)
		return true
	}
	return false
}

// unmarshalOTLP decodes OTLP/JSON, whose ids are hexadecimal strings (OTLP specification, JSON
// Protobuf Encoding), unlike in protobuf's JSON.
func unmarshalOTLP(body []byte, m proto.Message) error {
	var tree any
	if err := json.Unmarshal(body, &tree); err != nil {
		return err
	}
	var walk func(any) error
	walk = func(at any) error {
		switch at := at.(type) {
		case []any:
			for _, v := range at {
				if err := walk(v); err != nil {
					return err
				}
			}
		case map[string]any:
			for k, v := range at {
				if text, ok := v.(string); ok && (k == "traceId" || k == "spanId" || k == "parentSpanId") {
					id, err := hex.DecodeString(text)
					if err != nil {
						return err
					}
					at[k] = base64.StdEncoding.EncodeToString(id)
				} else if err := walk(v); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := walk(tree); err != nil {
		return err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return protojson.Unmarshal(text, m)
}

func TestKilledOTLPExportLosesNothing(t *testing.T) {
	h := open(t, "")
	j := h.running(wire.CreateJail{Name: "told"})
	h.sh(j.ID, "for i in $(seq 100); do /bin/true; done; exit 3")
	have := map[string]bool{} // everything to be exported
	ends := func() (n int) {
		for r, err := range h.Events(t.Context(), j.ID, client.EventQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			var e wire.Event
			if err := json.Unmarshal(r.JSON, &e); err != nil {
				t.Fatal(err)
			}
			have[fmt.Sprintf("%s/%d", j.ID, e.Seq)] = true
			if e.Type == "proc" && e.Op == "exit" && filepath.Base(e.Exe) == "true" || e.Type == "proc" && e.Op == "exit" && e.Comm == "true" {
				n++
			}
		}
		return n
	}
	if !within(30*time.Second, func() bool { return ends() == 100 }) {
		t.Fatalf("the event log has the exits of %d of 100 programs", ends())
	}
	entries := 0
	for e, err := range h.Chain(t.Context(), url.Values{}) {
		if err != nil {
			t.Fatal(err)
		}
		have[fmt.Sprintf("chain/%d", e.Seq)] = true
		entries++
	}
	if len(have) < 2500 || entries == 0 {
		t.Fatalf("%d records, %d of the audit log, are too few for several batches", len(have), entries)
	}

	for _, kind := range []struct{ protocol, is string }{{"http/protobuf", "application/x-protobuf"}, {"http/json", "application/json"}} {
		t.Run(kind.is, func(t *testing.T) {
			r := newOTLPReceiver(t, kind.is)
			cursor := filepath.Join(t.TempDir(), "cursor")
			export := func() *exec.Cmd {
				cmd := exec.Command(h.bin, "export", "otel", "--data", h.data, "--endpoint", r.URL, "--cursor", cursor)
				cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_PROTOCOL="+kind.protocol)
				return cmd
			}
			r.at = 3
			cut := export()
			if err := cut.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-r.there: // the receiver has accepted the request, but the exporter has not received the response
			case <-time.After(time.Minute):
				t.Error("the exporter did not reach request")
			}
			cut.Process.Kill()
			cut.Wait()
			if out, err := export().CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if out, err := export().CombinedOutput(); err != nil { // nothing is left to export
				t.Fatalf("%v: %s", err, out)
			}

			r.mu.Lock()
			defer r.mu.Unlock()
			for _, what := range r.wrong {
				t.Errorf("the collector received %s", what)
			}
			lost, twice := 0, 0
			for key := range have {
				switch r.logs[key] {
				case 0:
					lost++
				case 1:
				case 2:
					twice++
				default:
					t.Errorf("%s was exported %d times", key, r.logs[key])
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d records were not exported", lost, len(have))
			}
			for id, n := range r.times { // their content was compared on receipt
				switch {
				case n == 2:
					twice++
				case n > 2:
					t.Errorf("span %s was exported %d times", id, n)
				}
			}
			if twice == 0 || twice > 1000 {
				t.Errorf("%d records and spans were exported twice; want only those of interrupted batches", twice)
			}
			programs := 0
			for _, s := range r.spans {
				if s.Name != "true" {
					continue
				}
				programs++
				parent := r.spans[hex.EncodeToString(s.ParentSpanId)]
				if parent == nil || string(parent.TraceId) != string(s.TraceId) || parent.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || parent.StartTimeUnixNano > s.StartTimeUnixNano || parent.EndTimeUnixNano < s.EndTimeUnixNano {
					t.Fatalf("span %v has the parent %v; want the failed shell", s, parent)
				}
			}
			if programs != 100 {
				t.Errorf("got spans of %d programs, want 100", programs)
			}
		})
	}
}
