package client_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"glasshouse/api/apitest"
	"glasshouse/api/client"
	"glasshouse/fault"
	"glasshouse/observe/event"
)

func opened(pid int32, path string) event.Event {
	return event.Event{Type: event.Syscall, TS: time.Now().UnixMilli(), NS: 1, PID: pid, TID: pid, Comm: "sh", Name: "open", Path: path, Ret: 3}
}

func TestEvents(t *testing.T) {
	d := start(t, apitest.New())
	ctx, j := t.Context(), d.running(t)
	// RFC 3339 has no seconds in the offset of a zone.
	oddZone := time.FixedZone("odd", 59)
	old := opened(1, "/old")
	old.TS -= 3600_000
	d.watched.Append(j, old, opened(2, "/a"), opened(2, "/b"), opened(3, "/c"))
	for _, c := range []struct {
		q    client.EventQuery
		want string
	}{
		{client.EventQuery{}, "1 2 3 4"}, {client.EventQuery{Filter: "pid:2"}, "2 3"}, {client.EventQuery{After: 2}, "3 4"},
		{client.EventQuery{Tail: 2}, "3 4"}, {client.EventQuery{Limit: 1}, "1"}, {client.EventQuery{Limit: 2, Follow: true}, "1 2"},
		{client.EventQuery{Since: time.Now().Add(-time.Minute)}, "2 3 4"}, {client.EventQuery{Until: time.Now().Add(-time.Minute)}, "1"},
		{client.EventQuery{Since: time.Now().Add(-30 * time.Second).In(oddZone)}, "2 3 4"},
	} {
		var got []string
		for r, err := range d.Events(ctx, j, c.q) {
			if err != nil {
				t.Fatalf("%+v: %v", c.q, err)
			}
			e, err := r.Event()
			if err != nil || e.Seq != r.Seq || e.Type != r.Type || e.Path == "" {
				t.Errorf("event %d is %+v, %v", r.Seq, e, err)
			}
			got = append(got, fmt.Sprint(r.Seq))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: events %v, want %s", c.q, got, c.want)
		}
	}
	for _, err := range d.Events(ctx, j, client.EventQuery{Filter: "nonsense:"}) {
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "q" {
			t.Errorf("Events with an invalid filter = %v", err)
		}
	}
	for _, err := range d.Events(ctx, "j-aaaaaaaaaaaa", client.EventQuery{}) {
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("Events of an unknown jail = %v", err)
		}
	}
}

func TestEventsResumeAfterDisconnect(t *testing.T) {
	apitest.Goroutines(t)
	d := start(t, apitest.New())
	j := d.running(t)
	ln := newProxy(t, d.tcp)
	c := d.dial(t, client.Options{Addr: ln.Addr().String(), Token: d.token})
	const records, before = 300, 20
	for n := range before {
		d.watched.Append(j, opened(1, fmt.Sprint("/", n)))
	}
	var n uint64
	for r, err := range c.Events(t.Context(), j, client.EventQuery{Follow: true, Tail: before}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; r.Seq != n {
			t.Fatalf("received event %d after event %d", r.Seq, n-1)
		}
		switch {
		case n == records:
			d.watched.Close(j) // as the deletion of the jail does, which ends the stream
		case n >= before && n%20 == 0:
			ln.disconnect()
			fallthrough
		case n >= before:
			d.watched.Append(j, opened(1, fmt.Sprint("/", n)))
		}
		if n == 100 {
			ln.down.Store(true)
			time.AfterFunc(300*time.Millisecond, func() { ln.down.Store(false) })
		}
	}
	if n != records {
		t.Errorf("received %d events, want %d", n, records)
	}
	if ln.n.Load() < 5 {
		t.Errorf("%d connections through the proxy, want at least 5", ln.n.Load())
	}
}

func TestEventReports(t *testing.T) {
	d := start(t, apitest.New())
	ctx, j := t.Context(), d.running(t)
	d.watched.Append(j,
		event.Event{Type: event.Proc, TS: 1, NS: 10, Begin: 10, PID: 1, TID: 1, Op: event.OpExec, Comm: "init", Exe: "/init", Argv: []string{"init"}},
		event.Event{Type: event.Proc, TS: 1, NS: 20, Begin: 20, PID: 2, TID: 2, PPID: 1, Op: event.OpFork, Comm: "init"},
		event.Event{Type: event.Proc, TS: 1, NS: 30, Begin: 20, PID: 2, TID: 2, PPID: 1, Op: event.OpExit, Comm: "init", Code: 3},
		event.Event{Type: event.Net, TS: 1, NS: 1, Dir: "egress", Proto: "udp", Src: "10.0.0.2:1", Dst: "9.9.9.9:53", Bytes: 50},
		event.Event{Type: event.Net, TS: 1, NS: 1, Dir: "egress", Proto: "udp", Src: "10.0.0.2:2", Dst: "9.9.9.9:53", Bytes: 50},
	)
	for all, want := range map[bool]int{false: 1, true: 2} {
		if p, err := d.Processes(ctx, j, "", all); err != nil || len(p.Items) != want || p.Count != 2 {
			t.Errorf("Processes, all %v = %+v, %v; want %d", all, p, err, want)
		}
	}
	if p, err := d.Processes(ctx, j, "2", false); err != nil || len(p.Items) != 2 {
		t.Errorf("Processes at event 2 = %+v, %v", p, err)
	}
	if s, err := d.ProcessText(ctx, j, "", true); err != nil || !strings.Contains(s, "exit 3") {
		t.Errorf("ProcessText = %q, %v", s, err)
	}
	if flows, err := client.Collect(d.Flows(ctx, j, client.Period{})); err != nil || len(flows) != 2 || flows[0].Remote != "9.9.9.9:53" {
		t.Errorf("Flows = %+v, %v", flows, err)
	}
	if s, err := d.NetworkText(ctx, j, client.Period{}); err != nil || !strings.Contains(s, "9.9.9.9:53") {
		t.Errorf("NetworkText = %q, %v", s, err)
	}
	if _, err := d.Packets(ctx, j); !errors.Is(err, fault.NotFound) || fault.RemedyOf(err) == "" {
		t.Errorf("Packets without captured packets = %v", err)
	}
	for format, holds := range map[string]string{"json": "{", "html": "<html", "md": "#"} {
		r, err := d.Report(ctx, j, format, client.Period{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if s, err := io.ReadAll(r); err != nil || !strings.Contains(string(s), holds) {
			t.Errorf("Report as %s = %.100q, %v", format, s, err)
		}
	}
}
