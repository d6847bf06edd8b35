package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/report"
	"glasshouse/policy/access"
)

// watched returns a server with observed jails. One of them is running.
func watched(t testing.TB) (*harness, *apitest.Watched, id.Jail) {
	t.Helper()
	jails := apitest.New()
	w := apitest.Watch(t, jails)
	d := open(t, jails, func(o *api.Options) { o.Observed = w })
	return d, w, d.running()
}

func call(pid int32, name, path string, ret int64) event.Event {
	return event.Event{Type: event.Syscall, TS: time.Now().UnixMilli(), NS: 1, PID: pid, TID: pid, Comm: "sh", Name: name, Path: path, Ret: ret}
}

func proc(op string, pid, ppid int32, argv ...string) event.Event {
	return event.Event{Type: event.Proc, TS: time.Now().UnixMilli(), NS: 1e9 + int64(pid), Begin: 1e9 + int64(pid), PID: pid, TID: pid, PPID: ppid, Op: op, Comm: "sh", Exe: "/bin/sh", Argv: argv}
}

func packet(dir, src, dst, flags string, n int64) event.Event {
	return event.Event{Type: event.Net, TS: time.Now().UnixMilli(), NS: 1, PID: 7, TID: 7, Comm: "curl", Dir: dir, Proto: "tcp", Src: src, Dst: dst, TCP: flags, Bytes: n, Host: "example.com"}
}

// A frame is one server-sent event.
type frame struct{ id, event, data string }

// frames reads server-sent events from a stream.
type frames struct {
	t    testing.TB
	body io.ReadCloser
	r    *bufio.Reader
}

func (d *harness) stream(r req) *frames {
	d.t.Helper()
	resp := d.send(r)
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "text/event-stream" {
		body, _ := io.ReadAll(resp.Body)
		d.t.Fatalf("%s: %d %s\n%s", r.path, resp.StatusCode, ct, body)
	}
	d.t.Cleanup(func() { resp.Body.Close() })
	return &frames{d.t, resp.Body, bufio.NewReader(resp.Body)}
}

// next returns the next event, without comments.
func (f *frames) next() (fr frame, err error) {
	for {
		line, err := f.r.ReadString('\n')
		if err != nil {
			return frame{}, err
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch {
		case name == "id":
			fr.id = value
		case name == "event":
			fr.event = value
		case name == "data":
			fr.data = value
		case line == "\n" && fr.data != "":
			return fr, nil
		}
	}
}

// want fails the test unless the next events are these, as "id event".
func (f *frames) want(list ...string) {
	f.t.Helper()
	for _, want := range list {
		fr, err := f.next()
		if err != nil {
			f.t.Fatalf("the stream ends with %v, want %s", err, want)
		}
		if got := strings.TrimSpace(fr.id + " " + fr.event); got != want {
			f.t.Fatalf("event %s, want %s: %s", got, want, fr.data)
		}
		var e event.Event
		if err := event.Parse([]byte(fr.data), &e); fr.event != "end" && err != nil {
			f.t.Errorf("data of %s: %v", want, err)
		}
	}
}

func TestEventsOfPastAndFuture(t *testing.T) {
	d, w, j := watched(t)
	w.Append(j, call(1, "openat", "/a", 3), proc("exec", 2, 1, "ls"), packet("egress", "10.0.0.2:1", "1.1.1.1:80", "SYN", 60))
	path := "/jails/" + string(j) + "/events"
	all := d.stream(req{as: access.Viewer, method: "GET", path: path})
	all.want("1 syscall", "2 proc", "3 net")
	some := d.stream(req{as: access.Viewer, method: "GET", path: path + "?q=type:proc", header: map[string]string{"Accept": "text/event-stream"}})
	some.want("2 proc")
	later := d.stream(req{as: access.Viewer, method: "GET", path: path + "?after=1", header: map[string]string{"Last-Event-ID": "2"}}) // the header takes precedence
	later.want("3 net")
	fresh := d.stream(req{as: access.Viewer, method: "GET", path: path + "?tail=0"})

	w.Append(j, call(1, "close", "", 0), proc("exit", 2, 1))
	all.want("4 syscall", "5 proc")
	some.want("5 proc")
	later.want("4 syscall", "5 proc")
	fresh.want("4 syscall", "5 proc")

	w.Close(j) // the jail is deleted
	for _, f := range []*frames{all, some, later, fresh} {
		f.want("end")
		if _, err := f.next(); err != io.EOF {
			t.Errorf("the stream continues after the end event: %v", err)
		}
	}
}

func TestEventsOfThePast(t *testing.T) {
	d, w, j := watched(t)
	old := call(1, "openat", "/old", 3)
	old.TS -= 3600_000
	w.Append(j, old, call(2, "openat", "/etc/passwd", 3), call(2, "openat", "/etc/shadow", -13), proc("exec", 3, 2, "id"), call(3, "close", "", 0))
	path := "/jails/" + string(j) + "/events?follow=false&"
	for query, want := range map[string]string{
		"": "1 2 3 4 5", "type=proc": "4", "type=proc,syscall&pid=3": "4 5", "path=/etc/": "2 3", "path=/etc&ret=<0": "3", "name=open*": "1 2 3",
		"q=ret:EACCES": "3", "q=type:syscall&pid=2&name=openat": "2 3", "q=-type:syscall": "4", "comm=sh&op=exec": "4",
		"after=2": "3 4 5", "after=5": "", "tail=2": "4 5", "tail=1&pid=2": "3", "limit=2": "1 2", "limit=1&after=1": "2", "tail=0": "",
		"since=30m": "2 3 4 5", "until=30m": "1", "since=2h&until=30m": "1", "since=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339): "",
		"format=sse": "1 2 3 4 5",
	} {
		f := d.stream(req{as: access.Viewer, method: "GET", path: path + query})
		var got []string
		for {
			fr, err := f.next()
			if err != nil {
				t.Fatalf("?%s: the stream ended with %v, without an end event", query, err)
			}
			if fr.event == "end" {
				break
			}
			got = append(got, fr.id)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("?%s: events %v, want %s", query, got, want)
		}
		lines := d.want(200, req{as: access.Viewer, method: "GET", path: strings.Replace(path, "follow=false", "", 1) + strings.Replace(query, "format=sse", "", 1), header: map[string]string{"Accept": "application/x-ndjson"}}, nil)
		if ct := lines.header.Get("Content-Type"); ct != "application/x-ndjson" {
			t.Errorf("lines of type %s", ct)
		}
		got = nil
		for line := range strings.Lines(string(lines.body)) {
			var e event.Event
			if err := event.Parse([]byte(strings.TrimSuffix(line, "\n")), &e); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			got = append(got, fmt.Sprint(e.Seq))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("?%s: lines %v, want %s", query, got, want)
		}
	}
	limited := d.stream(req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/events?limit=3"})
	limited.want("1 syscall", "2 syscall", "3 syscall", "end")
}

func TestInvalidEventQueriesNameParameter(t *testing.T) {
	d, w, j := watched(t)
	w.Append(j, call(1, "close", "", 0))
	path := "/jails/" + string(j) + "/events?"
	for query, field := range map[string]string{
		"q=colour:red": "q", "q=pid:x": "q", "q=%22": "q", "q=" + strings.Repeat("a+", 4000): "q", "pid=x": "pid", "type=socket": "type", "ret=EWHAT": "ret",
		"op=a%22b": "op", "since=yesterday": "since", "until=-5m": "until", "after=2": "after", "after=-1": "after", "after=x": "after",
		"tail=-1": "tail", "tail=9999999": "tail", "limit=-1": "limit", "follow=maybe": "follow", "format=xml": "format", "pid=1&pid=2": "pid", "flavour=1": "flavour",
	} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: path + query}); p.Field != field && field != "op" {
			t.Errorf("?%.60s: field %q, want %q: %s", query, p.Field, field, p.Detail)
		}
	}
	if p := d.refused(400, req{as: access.Viewer, method: "GET", path: path, header: map[string]string{"Last-Event-ID": "x"}}); p.Field != "Last-Event-ID" {
		t.Errorf("a bad Last-Event-ID: %+v", p)
	}
	// A value with a space is one value.
	got := d.want(200, req{as: access.Viewer, method: "GET", path: path + "format=ndjson&path=/x+type:proc"}, nil)
	if len(got.body) != 0 {
		t.Errorf("a path with a space was parsed as two terms: %s", got.body)
	}
	for _, rest := range []string{"events", "processes", "network/log", "network/pcap", "report"} {
		d.refused(404, req{as: access.Viewer, method: "GET", path: "/jails/j-aaaaaaaaaaaa/" + rest})
		d.refused(403, req{as: access.Agent, method: "GET", path: "/jails/" + string(j) + "/" + rest})
	}
}

func TestDaemonWithoutObservers(t *testing.T) {
	d := open(t, apitest.New())
	j := d.running()
	for _, rest := range []string{"events", "processes", "network/log", "network/pcap", "report"} {
		if p := d.refused(501, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/" + rest}); p.Remedy == "" {
			t.Errorf("%s: no remedy in %+v", rest, p)
		}
	}
	var got wire.Jail
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j)}, &got)
	if got.Observation != nil {
		t.Errorf("got observation %+v of a jail that is not observed", got.Observation)
	}
}

func TestEventStreamEndsOnShutdownAndDisconnect(t *testing.T) {
	apitest.Goroutines(t)
	d, w, j := watched(t)
	w.Append(j, call(1, "close", "", 0))
	path := "/jails/" + string(j) + "/events"
	f := d.stream(req{as: access.Viewer, method: "GET", path: path})
	f.want("1 syscall")
	f.body.Close() // the client disconnects
	lines := d.send(req{as: access.Viewer, method: "GET", path: path + "?format=ndjson&follow=true"})
	defer lines.Body.Close()
	r := bufio.NewReader(lines.Body)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"seq":1`) {
		t.Fatalf("first line %q, %v", line, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(r); err != io.ErrUnexpectedEOF {
		t.Errorf("aborted lines end with %q, %v, want an error", rest, err)
	}
}

func TestJailHasObservationStatus(t *testing.T) {
	d, w, j := watched(t)
	w.Append(j, call(1, "close", "", 0), call(1, "close", "", 0))
	var got wire.Jail
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j)}, &got)
	o := got.Observation
	if o == nil || o.Sources["kernel"].Seen != 7 || o.Sources["kernel"].Throttled != 1 || o.Log.Last != 2 || o.Log.Events != 2 || o.Log.Bytes == 0 || o.Log.First != 1 {
		t.Errorf("got observation %+v", o)
	}
	var made wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: `{"observe":{"syscalls":"security","ignore":["futex"],"packet_bytes":128,"on_overload":"count"}}`}, &made)
	if o := made.Observe; o.Syscalls != "security" || !slices.Equal(o.Ignore, []string{"futex"}) || o.Packets != 128 || o.OnOverload != "count" {
		t.Errorf("created with %+v", o)
	}
}

func TestProcessesNowAndInPast(t *testing.T) {
	d, w, j := watched(t)
	w.Append(j, proc("exec", 1, 0, "/.glasshouse/init"), proc("fork", 2, 1), proc("exec", 2, 1, "sh", "-c", "\x1b[2J"), proc("fork", 3, 2))
	exit := proc("exit", 3, 2)
	exit.Code = 7
	w.Append(j, exit)
	self := "/jails/" + string(j) + "/processes"
	for query, want := range map[string]string{"": "1 2", "?all=true": "1 2 3", "?at=4": "1 2 3", "?at=1": "1", "?at=2h": "", "?at=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339): "1 2"} {
		var got wire.Processes
		d.want(200, req{as: access.Viewer, method: "GET", path: self + query}, &got)
		var pids []string
		for _, p := range got.Items {
			pids = append(pids, fmt.Sprint(p.PID))
			if p.PID == 3 && query == "?all=true" && (p.State != "exited" || p.Code == nil || *p.Code != 7 || p.PPID != 2 || p.Depth != 2) {
				t.Errorf("%s: process 3 is %+v", query, p)
			}
		}
		if strings.Join(pids, " ") != want {
			t.Errorf("%s: processes %v, want %s", query, pids, want)
		}
	}
	text := d.want(200, req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/plain"}}, nil)
	if s := string(text.body); !strings.Contains(s, "sh -c") || strings.Contains(s, "\x1b") || !strings.HasPrefix(text.header.Get("Content-Type"), "text/plain") {
		t.Errorf("as text: %q", s)
	}
	if p := d.refused(400, req{as: access.Viewer, method: "GET", path: self + "?at=noon"}); p.Field != "at" {
		t.Errorf("at=noon: %+v", p)
	}
}

func TestNetworkLog(t *testing.T) {
	d, w, j := watched(t)
	for n := range 5 {
		here, there := fmt.Sprintf("10.0.0.2:%d", 1000+n), "93.184.216.34:443"
		w.Append(j, packet("egress", here, there, "SYN", 60), packet("ingress", there, here, "SYN,ACK", 60), packet("egress", here, there, "ACK", 100))
	}
	self := "/jails/" + string(j) + "/network/log"
	var flows []wire.Flow
	for after := ""; ; {
		var page wire.Flows
		d.want(200, req{as: access.Viewer, method: "GET", path: self + "?limit=2&after=" + after}, &page)
		flows = append(flows, page.Items...)
		if page.Count != 5 || len(page.Items) > 2 {
			t.Fatalf("page %+v, want 2 of 5", page)
		}
		after = page.Next
		if after == "" {
			break
		}
	}
	if len(flows) != 5 {
		t.Fatalf("%d flows, want 5", len(flows))
	}
	for n, f := range flows {
		if f.Local != fmt.Sprintf("10.0.0.2:%d", 1000+n) || f.Remote != "93.184.216.34:443" || f.Host != "example.com" || f.BytesOut != 160 || f.BytesIn != 60 || f.State != "established" || f.PID != 7 {
			t.Errorf("flow %d is %+v", n, f)
		}
	}
	lines := d.want(200, req{as: access.Viewer, method: "GET", path: self + "?packets=true"}, nil)
	if n := bytes.Count(lines.body, []byte("\n")); n != 15 {
		t.Errorf("%d packets, want 15", n)
	}
	if same := d.want(200, req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "application/x-ndjson"}}, nil); !bytes.Equal(same.body, lines.body) {
		t.Error("Accept and packets return different content")
	}
	text := d.want(200, req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/plain"}}, nil)
	if !strings.Contains(string(text.body), "example.com") {
		t.Errorf("as text: %s", text.body)
	}
	for query, field := range map[string]string{"?after=x": "after", "?limit=0x": "limit", "?packets=true&limit=2": "packets", "?since=x": "since"} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: self + query}); p.Field != field {
			t.Errorf("%s: field %q, want %q", query, p.Field, field)
		}
	}
}

// block returns a block of a pcapng file.
func block(kind uint32, body string) []byte {
	n := uint32(12 + len(body))
	b := binary.LittleEndian.AppendUint32(nil, kind)
	b = binary.LittleEndian.AppendUint32(b, n)
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, n)
}

func TestPacketDownloadHasCompleteBlocks(t *testing.T) {
	d, w, j := watched(t)
	self := "/jails/" + string(j) + "/network/pcap"
	if p := d.refused(404, req{as: access.Viewer, method: "GET", path: self}); !strings.Contains(p.Remedy, "packet_bytes") {
		t.Errorf("without packets: %+v", p)
	}
	head := block(0x0a0d0d0a, "\x4d\x3c\x2b\x1a\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff")
	first := slices.Concat(head, block(6, "one!"), block(6, "two!"))
	second := slices.Concat(head, block(6, "next"))
	w.PutPackets(j, "packets-1.pcapng", append(slices.Clone(first), block(6, "half written")[:17]...))
	w.PutPackets(j, "packets-2.pcapng", second)
	w.PutPackets(j, "packets-3.pcapng", []byte{0x0a, 0x0d}) // incomplete: the file was just created
	got := d.want(200, req{as: access.Viewer, method: "GET", path: self}, nil)
	if !bytes.Equal(got.body, append(first, second...)) {
		t.Errorf("%d bytes, want the complete blocks of all files, %d", len(got.body), len(first)+len(second))
	}
	if ct, cd := got.header.Get("Content-Type"), got.header.Get("Content-Disposition"); ct != "application/x-pcapng" || !strings.Contains(cd, string(j)+".pcapng") {
		t.Errorf("headers %v", got.header)
	}
}

func TestReports(t *testing.T) {
	d, w, j := watched(t)
	w.Append(j, proc("exec", 2, 1, "<script>alert(1)</script>"), call(2, "openat", "/etc/shadow", -13))
	self := "/jails/" + string(j) + "/report"
	for _, c := range []struct{ query, accept, kind, holds string }{
		{"", "", "application/json", `"completeness"`}, {"?format=json", "text/html", "application/json", `"completeness"`},
		{"", "text/html", "text/html; charset=utf-8", "&lt;script&gt;"}, {"?format=html", "", "text/html; charset=utf-8", "&lt;script&gt;"},
		{"", "text/markdown", "text/markdown; charset=utf-8", "# "}, {"?format=md&since=1h", "", "text/markdown; charset=utf-8", "# "},
	} {
		got := d.want(200, req{as: access.Viewer, method: "GET", path: self + c.query, header: map[string]string{"Accept": c.accept}}, nil)
		if ct := got.header.Get("Content-Type"); ct != c.kind || !strings.Contains(string(got.body), c.holds) {
			t.Errorf("%s, Accept %s: %s, want %s with %s:\n%.500s", c.query, c.accept, ct, c.kind, c.holds, got.body)
		}
		csp := got.header.Get("Content-Security-Policy")
		if isPage := strings.HasPrefix(c.kind, "text/html"); isPage && (!strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src")) {
			t.Errorf("got Content-Security-Policy %q", csp)
		}
		if strings.Contains(string(got.body), "<script") && strings.HasPrefix(c.kind, "text/html") {
			t.Error("the page contains the script of the jail")
		}
	}
	if p := d.refused(400, req{as: access.Viewer, method: "GET", path: self + "?format=pdf"}); p.Field != "format" {
		t.Errorf("format=pdf: %+v", p)
	}
}

// The OpenAPI document describes all fields of events.
func TestEveryEventFieldIsDocumented(t *testing.T) {
	full := event.Event{
		Flags: ^event.Flags(0) &^ event.Unfinished, Seq: 1, TS: 1, NS: 1, Jail: "j-aaaaaaaaaaaa", PID: 1, TID: 1, HostPID: 1, Comm: "a", NR: 1, Name: "a", ABI: "a",
		Args: [6]uint64{1}, Ret: -1, Dur: 1, Addr: "a", Path: "a", To: "a", Real: "a", Bytes: 1, FD: 1, Dir: "a", Proto: "a", Src: "a", Dst: "a",
		Host: "a", Iface: "a", Packets: 1, TCP: "a", Begin: 1, PPID: 1, UID: 1, GID: 1, Exe: "a", Argv: []string{"a"}, Cwd: "a", Code: 1, UserNS: 1, SystemNS: 1,
		RSS: 1, Source: event.Net, Lost: 1, Reason: "a", From: 1, Through: 1, CPU: 1, Memory: 1, PIDs: 1, Disk: 1, Rx: 1, Tx: 1,
	}
	for _, ty := range event.Types {
		for _, signal := range []string{"", "SIGKILL"} {
			full.Type, full.Op, full.Signal = ty, event.OpExit, signal
			dec := json.NewDecoder(bytes.NewReader(full.AppendJSON(nil)))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&wire.Event{}); err != nil {
				t.Errorf("%s: %v", ty, err)
			}
		}
	}
}

// A stalled reader is disconnected and does not delay others.
func TestManyReadersFollowOneJail(t *testing.T) {
	d, w, j := watched(t)
	const readers, records = 50, 200
	path := "/jails/" + string(j) + "/events"
	stuck := d.send(req{as: access.Viewer, method: "GET", path: path})
	defer stuck.Body.Close()
	var all []*frames
	for range readers {
		all = append(all, d.stream(req{as: access.Viewer, method: "GET", path: path + "?type=syscall"}))
	}
	done := make(chan error, readers)
	for _, f := range all {
		go func() {
			for n := 1; n <= records; n++ {
				if fr, err := f.next(); err != nil || fr.id != fmt.Sprint(n) {
					done <- fmt.Errorf("event %+v, %v; want number %d", fr, err, n)
					return
				}
			}
			done <- nil
		}()
	}
	for n := range records {
		w.Append(j, call(int32(n+1), "write", strings.Repeat("x", 1000), 1))
	}
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// names returns the JSON field names of a type.
func names(t reflect.Type) []string {
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			all = append(all, names(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// The types of package report that are sent must have the same fields as the types of package
// wire in the OpenAPI document.
func TestResponsesMatchSchema(t *testing.T) {
	for _, pair := range [][2]any{
		{report.Process{}, wire.Process{}}, {report.Exec{}, wire.Program{}}, {report.Link{}, wire.EventLink{}},
		{report.Flow{}, wire.Flow{}}, {report.Lost{}, wire.Lost{}}, {event.Selection{}, wire.Observe{}},
	} {
		sent, promised := names(reflect.TypeOf(pair[0])), names(reflect.TypeOf(pair[1]))
		if !slices.Equal(sent, promised) {
			t.Errorf("%T has fields %v, and %T has %v", pair[0], sent, pair[1], promised)
		}
	}
}
