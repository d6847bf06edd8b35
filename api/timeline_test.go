package api_test

import (
	"fmt"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
)

func TestEventWindows(t *testing.T) {
	d, w, j := watched(t)
	for i := range 600 {
		e := call(42, "read", "", int64(i))
		if i%3 == 0 {
			e = packet(event.Egress, "10.0.0.2:1", "192.0.2.1:443", "SYN", 60)
		}
		w.Append(j, e)
	}
	window := func(query string) (got wire.EventWindow) {
		t.Helper()
		d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/events?" + query}, &got)
		return got
	}
	seq := func(win wire.EventWindow, i int) (n uint64) {
		t.Helper()
		var e event.Event
		if err := event.Parse(win.Items[i], &e); err != nil {
			t.Fatal(err)
		}
		return e.Seq
	}
	if got := window("offset=0"); got.Total != 600 || len(got.Items) != 100 || seq(got, 0) != 1 {
		t.Errorf("the first window: %d of %d, from %d", len(got.Items), got.Total, got.Offset)
	}
	if got := window("offset=300&limit=50"); len(got.Items) != 50 || seq(got, 0) != 301 || got.Offset != 300 {
		t.Errorf("a window in the middle begins with %d", seq(got, 0))
	}
	if got := window("offset=-10"); got.Offset != 590 || len(got.Items) != 10 || seq(got, 9) != 600 {
		t.Errorf("the last window: %d from %d", len(got.Items), got.Offset)
	}
	if got := window("offset=100&limit=5&type=net"); got.Total != 200 || seq(got, 0) != 301 {
		t.Errorf("of packets: %d, the hundredth is %d, want 200 and 301", got.Total, seq(got, 0))
	}
	if got := window("at=1h"); got.Offset != 0 || len(got.Items) != 100 {
		t.Errorf("an hour ago: %d from %d", len(got.Items), got.Offset)
	}
	if got := window("at=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339)); got.Offset != 600 || len(got.Items) != 0 {
		t.Errorf("in an hour: %d from %d", len(got.Items), got.Offset)
	}
	w.Append(j, call(42, "read", "", 1))
	if got := window("offset=600"); got.Total != 601 || len(got.Items) != 1 {
		t.Errorf("after another event: %d of %d", len(got.Items), got.Total)
	}
	for query, field := range map[string]string{
		"offset=x": "offset", "offset=0&limit=1001": "limit", "offset=0&at=5m": "offset", "offset=0&follow=true": "offset", "at=never": "at", "offset=0&q=nonsense:": "q",
	} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/events?" + query}); p.Field == "" {
			t.Errorf("?%s names no field, want %s: %s", query, field, p.Detail)
		}
	}
}

func TestTimeline(t *testing.T) {
	d, w, j := watched(t)
	path := "/jails/" + string(j) + "/timeline"
	var empty wire.Timeline
	d.want(200, req{as: access.Viewer, method: "GET", path: path}, &empty)
	if empty.Total != 0 || empty.First != nil || len(empty.Counts.File) != 0 {
		t.Errorf("idle jail: got %+v", empty)
	}
	for i := range 90 {
		w.Append(j, call(int32(40+i%3), "read", "", 0))
	}
	w.Append(j, proc(event.OpExec, 43, 42, "true"))
	w.Append(j, packet(event.Egress, "10.0.0.2:1", "192.0.2.1:443", "SYN", 60))
	var got wire.Timeline
	d.want(200, req{as: access.Viewer, method: "GET", path: path + "?buckets=50&lanes=2"}, &got)
	sum := func(ns []uint32) (n int) {
		for _, x := range ns {
			n += int(x)
		}
		return n
	}
	if got.Total != 92 || sum(got.Counts.Syscall) != 90 || sum(got.Counts.Proc) != 1 || sum(got.Counts.Net) != 1 || sum(got.Counts.File) != 0 {
		t.Errorf("timeline has %d events: %+v", got.Total, got.Counts)
	}
	if len(got.Lanes) != 2 || got.Lanes[0].PID != 40 || sum(got.Lanes[0].Counts.Syscall) != 30 {
		t.Errorf("got lanes %+v", got.Lanes)
	}
	d.want(200, req{as: access.Viewer, method: "GET", path: path + "?q=pid:41"}, &got)
	if got.Total != 30 {
		t.Errorf("of one process there are %d, want 30", got.Total)
	}
	for _, query := range []string{"buckets=-1", "buckets=2001", "lanes=101", "from=never", "from=5m&to=10m", "q=x:y"} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: path + "?" + query}); p.Field == "" {
			t.Errorf("?%s names no field: %s", query, p.Detail)
		}
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: fmt.Sprintf("/jails/%s/timeline", "j-bbbbbbbbbbbb")})
}
