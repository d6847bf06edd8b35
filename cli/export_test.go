package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"glasshouse/api/apitest"
	"glasshouse/observe/event"
	"glasshouse/policy/chain"
)

// A collector receives exported data while it is up.
type collector struct {
	t    *testing.T
	addr string

	mu sync.Mutex
	// +checklocks:mu
	down bool
	// +checklocks:mu
	received received
}

// received is the data that a collector has received.
type received struct {
	seqs  []string // of the events
	kinds []string // of audit log entries
	spans []string // names
	names []string // of jails
}

func (c *collector) got() received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.addr = s.URL
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		w.WriteHeader(http.StatusUnauthorized) // not retried
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	switch r.URL.Path {
	case "/v1/logs":
		var d logspb.LogsData
		if err := proto.Unmarshal(body, &d); err != nil {
			c.t.Error(err)
		}
		for _, of := range d.ResourceLogs {
			for _, a := range of.Resource.Attributes {
				if a.Key == "glasshouse.jail.id" {
					c.received.names = append(c.received.names, a.Value.GetStringValue())
				}
			}
			for _, l := range of.ScopeLogs[0].LogRecords {
				c.log(l)
			}
		}
	case "/v1/traces":
		var d tracepb.TracesData
		if err := proto.Unmarshal(body, &d); err != nil {
			c.t.Error(err)
		}
		for _, of := range d.ResourceSpans {
			for _, s := range of.ScopeSpans[0].Spans {
				c.received.spans = append(c.received.spans, s.Name)
			}
		}
	}
}

// +checklocks:c.mu
func (c *collector) log(l *logspb.LogRecord) {
	if kind, ok := strings.CutPrefix(l.EventName, "glasshouse.chain."); ok {
		c.received.kinds = append(c.received.kinds, kind)
		return
	}
	for _, a := range l.Attributes {
		if a.Key == "glasshouse.seq" {
			c.received.seqs = append(c.received.seqs, a.Value.GetStringValue())
		}
	}
}

func (c *collector) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func (d *testEnv) appendEntry(kind chain.Kind, parent int64, body string) int64 {
	d.t.Helper()
	e, err := d.chain.Append(d.t.Context(), chain.Entry{Kind: kind, Parent: parent, Jail: d.jail, Capability: "git.push", Body: []byte(body)})
	if err != nil {
		d.t.Fatal(err)
	}
	return e.Seq
}

func TestInterruptedExportResumesWithoutLoss(t *testing.T) {
	d := newTestEnvWith(t, apitest.New())
	c := newCollector(t)
	command := "export otel --endpoint " + c.addr + " --cursor " + filepath.Join(t.TempDir(), "cursor")

	d.appendEvents(
		event.Event{Type: event.Proc, Op: event.OpExec, PID: 42, Begin: 1, NS: 5, Exe: "/bin/sh", Argv: []string{"sh"}},
		event.Event{Type: event.File, Op: event.OpCreate, PID: 42, Path: "/work/a", FD: 3},
	)
	call := d.appendEntry(chain.CallStarted, 0, `{}`)
	d.wantOutput(command, "sent 0 spans and 3 log records")

	c.setDown(true)
	d.appendEvents(event.Event{Type: event.Proc, Op: event.OpExit, PID: 42, Begin: 1, NS: 9, Code: 3})
	d.appendEntry(chain.CallEnded, call, `{"state":"done"}`)
	if code, _, errs := d.run(command); code != 1 || !strings.Contains(errs, "OTEL_EXPORTER_OTLP_HEADERS") {
		t.Errorf("an unavailable collector: exit code %d, %s", code, errs)
	}

	c.setDown(false)
	d.wantOutput(command, "sent 2 spans and 2 log records")
	d.wantOutput(command, "sent 0 spans and 0 log records")

	got := c.got()
	if want := []string{"1", "2", "3"}; !slices.Equal(got.seqs, want) {
		t.Errorf("received events = %v; want each once, %v", got.seqs, want)
	}
	if want := []string{"call.started", "call.ended"}; !slices.Equal(got.kinds, want) {
		t.Errorf("received audit log entries = %v; want %v", got.kinds, want)
	}
	slices.Sort(got.spans)
	if want := []string{"call git.push", "sh"}; !slices.Equal(got.spans, want) {
		t.Errorf("received spans = %v; want %v, with the program name from before the interruption", got.spans, want)
	}
	if !slices.Contains(got.names, string(d.jail)) {
		t.Error("the resource does not say which jail it is")
	}
}

// eventually waits until ok returns true, and fails the test after a timeout.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func TestExportFollow(t *testing.T) {
	d := newTestEnvWith(t, apitest.New())
	c := newCollector(t)
	d.appendEvents(event.Event{Type: event.File, Op: event.OpCreate, PID: 42, Path: "/work/a", FD: 3})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		args := []string{"--addr", d.addr, "export", "otel", "--follow", "--endpoint", c.addr}
		Run(ctx, args, Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, UID: os.Getuid()})
		ended <- out.String()
	}()
	have := func(n int) func() bool { return func() bool { return len(c.got().seqs) == n } }
	eventually(t, "the first record", have(1))
	d.appendEvents(event.Event{Type: event.File, Op: event.OpDelete, PID: 42, Path: "/work/a", FD: -1})
	d.appendEntry(chain.Decided, 0, `{"effect":"deny"}`)
	eventually(t, "the second record", have(2))
	eventually(t, "the entry of the chain", func() bool {
		return slices.Equal(c.got().kinds, []string{"decision"})
	})
	stop()
	if said := <-ended; !strings.Contains(said, "sent 0 spans and 3 log records") {
		t.Errorf("output at exit = %q", said)
	}
}

func TestExportTimeWindow(t *testing.T) {
	d := newTestEnvWith(t, apitest.New())
	c := newCollector(t)
	d.appendEvents(
		event.Event{Type: event.File, Op: event.OpCreate, PID: 42, Path: "/work/a", FD: 3},
		event.Event{Type: event.File, Op: event.OpDelete, PID: 42, Path: "/work/a", FD: -1},
	)
	d.appendEntry(chain.Decided, 0, `{}`)
	d.wantOutput("export otel --json --jail JAIL --endpoint "+c.addr+" op:delete", `"logs": 2`)
	got := c.got()
	if !slices.Equal(got.seqs, []string{"2"}) || !slices.Equal(got.kinds, []string{"decision"}) {
		t.Errorf("received %v and %v", got.seqs, got.kinds)
	}
	d.wantOutput("export otel --since 1h --endpoint "+c.addr, "3 log records")
	d.wantOutput("audit ls --since 1h", "decision")
	d.wantOutput("export otel --since 2000-01-01T00:00:00Z --until 2000-01-02T00:00:00Z --endpoint "+c.addr, "sent 0 spans and 0 log records")
	for line, want := range map[string]int{
		"export otel --endpoint ftp://x": 1, "export otel --since yesterday": 2, "export otel --until 5m --follow": 2, "export otel --endpoint " + c.addr + " nokey:1": 1,
	} {
		if code, _, errs := d.run(line); code != want {
			t.Errorf("%s: exit code %d; want %d: %s", line, code, want, errs)
		}
	}
}

func TestExportsDoNotShareCursor(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cursor")
	unlock, err := lockCursor(name)
	if err != nil {
		t.Fatal(err)
	}
	d := newTestEnvWith(t, apitest.New())
	if code, _, errs := d.run("export otel --cursor " + name); code != 1 || !strings.Contains(errs, "another export") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	unlock()
	unlock, err = lockCursor(name)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
