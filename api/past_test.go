package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// strictly decodes a JSON response and fails on unknown fields.
func (d *harness) strictly(path string, into any) {
	d.t.Helper()
	var raw json.RawMessage
	d.want(200, req{as: access.Viewer, method: "GET", path: path}, &raw)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		d.t.Fatalf("%s: %v\n%s", path, err, raw)
	}
}

// file returns an event of a file operation at a time before now.
func file(op, path string, ago time.Duration) event.Event {
	return event.Event{Type: event.File, TS: time.Now().Add(-ago).UnixMilli(), NS: 1, PID: 7, TID: 7, Comm: "tar", Op: op, Path: path, FD: -1}
}

func TestJailAtInstant(t *testing.T) {
	jails := apitest.New()
	w, snaps := apitest.Watch(t, jails), apitest.Snapshot(jails)
	d := open(t, jails, func(o *api.Options) { o.Observed, o.Snapshots = w, snaps })
	j := d.running()
	path := "/jails/" + string(j) + "/at"
	var none wire.Past
	d.strictly(path, &none)
	if len(none.Processes.Items) != 0 || len(none.Files.Items) != 0 || none.Snapshot != nil || !none.Files.Recorded {
		t.Errorf("idle jail: got %+v", none)
	}
	begin := proc(event.OpExec, 3, 1, "make", "-j")
	begin.TS -= 3600_000
	w.Append(j, begin, file(event.OpCreate, "/work/old", time.Hour), file(event.OpWrite, "/etc/hosts", time.Hour),
		file(event.OpCreate, "/work/x", time.Hour), file(event.OpDelete, "/work/x", 50*time.Minute), file(event.OpDelete, "/etc/hosts", 40*time.Minute))
	var taken wire.Snapshot
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/snapshot", body: "{}"}, &taken)
	end := proc(event.OpExit, 3, 1)
	w.Append(j, file(event.OpRead, "/etc/group", 0), end, file(event.OpWrite, "/work/old", 0)) // the snapshot includes seven events

	var now, old, all wire.Past
	d.strictly(path, &now)
	if len(now.Processes.Items) != 0 || len(now.Files.Items) != 2 || now.At != nil {
		t.Errorf("now: %+v", now)
	}
	if f := now.Files.Items[0]; f.Path != "/work/old" || f.Kind != "added" || !f.Since || f.Comm != "tar" || f.Seq != 9 {
		t.Errorf("files changed after the snapshot: %+v", f)
	}
	if f := now.Files.Items[1]; f.Path != "/etc/hosts" || f.Kind != "deleted" || f.Since {
		t.Errorf("files changed before the snapshot: %+v", f)
	}
	if now.Snapshot == nil || now.Snapshot.ID != taken.ID {
		t.Errorf("the nearest snapshot: %+v", now.Snapshot)
	}
	d.strictly(path+"?ts=45m", &old)
	if len(old.Processes.Items) != 1 || old.Processes.Items[0].Argv[1] != "-j" || len(old.Files.Items) != 2 || old.Files.Items[0].Kind+old.Files.Items[1].Kind != "modifiedadded" {
		t.Errorf("45 minutes ago: %+v", old)
	}
	if old.Snapshot != nil || old.At == nil {
		t.Errorf("45 minutes ago, before any snapshot: %v %+v", old.At, old.Snapshot)
	}
	d.strictly(path+"?all=true&limit=1", &all)
	if len(all.Processes.Items) != 1 || all.Processes.Items[0].State != "exited" || len(all.Files.Items) != 1 || all.Files.Count != 2 {
		t.Errorf("with ended processes and one file: %+v", all)
	}
	var third wire.Past
	d.strictly(path+"?ts=3", &third)
	if len(third.Files.Items) != 2 || third.Files.Items[0].Path != "/etc/hosts" {
		t.Errorf("at the third event: %+v", third.Files)
	}
	for query, field := range map[string]string{"ts=never": "ts", "limit=10001": "limit", "limit=-1": "limit"} {
		if p := d.refused(400, req{as: access.Viewer, method: "GET", path: path + "?" + query}); p.Field != field {
			t.Errorf("?%s names %q, want %q", query, p.Field, field)
		}
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/jails/j-aaaaaaaaaaaa/at"})
}

func TestSyscallProfile(t *testing.T) {
	d, w, j := watched(t)
	path := "/jails/" + string(j) + "/syscalls"
	var none wire.Profile
	d.strictly(path, &none)
	if none.Count != 0 || none.Calls == nil || none.Latency.Buckets == nil {
		t.Errorf("jail without system calls: got %+v", none)
	}
	for i := range 100 {
		e := call(int32(10+i%4), "read", "", int64(i))
		e.Dur = 1000
		if i == 99 {
			e.Dur = 1 << 20
		}
		w.Append(j, e)
	}
	denied := call(11, "bpf", "", -1)
	denied.Flags |= event.Denied
	w.Append(j, call(10, "openat", "/etc/shadow", -13), call(10, "openat", "/nothing", -2), denied,
		event.Event{Type: event.Gap, TS: time.Now().UnixMilli(), Source: event.Syscall, Lost: 9, Reason: "ring full"})
	var got wire.Profile
	d.strictly(path+"?processes=2", &got)
	if got.Count != 103 || got.Failed != 2 || got.Denied != 1 || got.Refused != 1 || got.Lost.Records != 9 {
		t.Errorf("counts: %+v", got)
	}
	if c := got.Calls[0]; c.Name != "read" || c.Count != 100 || c.Timed != 100 || c.Latency.Max != 1<<20 || c.Latency.P50 < 512 || c.Latency.P50 > 1023 {
		t.Errorf("the most frequent: %+v", c)
	}
	buckets := got.Latency.Buckets
	if first, last := buckets[0], buckets[len(buckets)-1]; first != (wire.LatencyBucket{From: 512, Count: 99}) || last != (wire.LatencyBucket{From: 1 << 20, Count: 1}) || len(buckets) != 12 {
		t.Errorf("the histogram: %+v", buckets)
	}
	if fmt.Sprint(got.Errors) != "[{EPERM 1} {ENOENT 1} {EACCES 1}]" || got.Failures[0].Class != "denied" || got.Failures[1].Errno != "EACCES" {
		t.Errorf("errors %v, failures %+v", got.Errors, got.Failures)
	}
	if len(got.Processes) != 2 || got.Processes[0].PID != 10 || got.Processes[0].Count != 27 || got.Processes[0].Failed != 2 || got.Processes[1].Denied != 1 {
		t.Errorf("by process: %+v", got.Processes)
	}
	var some wire.Profile
	d.strictly(path+"?q=pid:10+ret:<0", &some)
	if some.Count != 2 || len(some.Processes) != 0 || len(some.Errors) != 2 {
		t.Errorf("failures of one process: %+v", some)
	}
	d.strictly(path+"?to=1h", &some)
	if some.Count != 0 {
		t.Errorf("an hour ago: %d", some.Count)
	}
	for _, query := range []string{"from=1h&to=2h", "processes=101", "q=nonsense:", "from=x"} {
		d.refused(400, req{as: access.Viewer, method: "GET", path: path + "?" + query})
	}
}

func TestConnectionsWithVerdicts(t *testing.T) {
	jails := apitest.New()
	w := apitest.Watch(t, jails)
	c := record(t)
	d := open(t, jails, func(o *api.Options) { o.Observed, o.Chain = w, c.Chain })
	j := d.running()
	path := "/jails/" + string(j) + "/connections"
	var none wire.Connections
	d.strictly(path, &none)
	if none.Items == nil || len(none.Items) != 0 {
		t.Errorf("jail without connections: got %+v", none)
	}
	other := packet(event.Egress, "10.0.0.2:9", "192.0.2.7:53", "", 70)
	other.Host, other.Proto, other.PID, other.Comm = "", "udp", 8, "dig"
	plain := packet(event.Egress, "10.0.0.2:2", "192.0.2.1:80", "SYN", 60)
	plain.PID, plain.Comm = 9, "wget"
	w.Append(j, packet(event.Egress, "10.0.0.2:1", "192.0.2.1:443", "SYN", 60), packet(event.Ingress, "192.0.2.1:443", "10.0.0.2:1", "SYN,ACK", 5000), plain, other)
	at := time.Now()
	note := func(jid id.Jail, r egress.Record) int64 {
		t.Helper()
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Append(t.Context(), chain.Entry{Kind: chain.Egress, Jail: jid, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		return e.Seq
	}
	allowed := egress.Record{At: at, Request: egress.Request{Kind: egress.KindRequest, Host: "example.com", Port: 443}, Allowed: true, Rule: "example.com", Sent: 100, Received: 900}
	note(j, allowed)
	newest := note(j, allowed)
	note(j, egress.Record{At: at, Request: egress.Request{Kind: egress.KindConnect, Host: "evil.example", Port: 443}, Reason: egress.ReasonHost, Detail: "<b>no</b>", Repeats: 4})
	note("j-bbbbbbbbbbbb", allowed)

	var got wire.Connections
	d.strictly(path, &got)
	if len(got.Items) != 3 || got.Count.Count != 3 {
		t.Fatalf("hosts: %+v", got)
	}
	one := got.Items[0]
	if one.Host != "example.com" || one.Connections != 2 || one.BytesOut != 120 || one.BytesIn != 5000 || one.PacketsOut != 2 || one.PacketsIn != 1 || one.First == nil || one.Last == nil {
		t.Errorf("host with the most bytes: %+v", one)
	}
	if len(one.Processes) != 2 || len(one.Services) != 2 || one.Services[0].Port != 443 || !strings.Contains(one.Services[0].Events.Q, "example.com") {
		t.Errorf("got processes %+v, services %+v", one.Processes, one.Services)
	}
	if len(one.Verdicts) != 1 || !one.Verdicts[0].Allowed || one.Verdicts[0].Count != 2 || one.Verdicts[0].Received != 1800 || one.Verdicts[0].Entry != newest || one.Verdicts[0].Rule != "example.com" {
		t.Errorf("got verdicts %+v", one.Verdicts)
	}
	if two := got.Items[1]; two.Host != "192.0.2.7" || len(two.Verdicts) != 0 || two.Verdicts == nil {
		t.Errorf("host without verdicts: got %+v", two)
	}
	if three := got.Items[2]; three.Host != "evil.example" || three.Verdicts[0].Allowed || three.Verdicts[0].Reason != "host" || three.Verdicts[0].Count != 5 || three.First != nil {
		t.Errorf("refused host: got %+v", three)
	}
	var some wire.Connections
	d.strictly(path+"?limit=1", &some)
	if len(some.Items) != 1 || some.More.BytesOut != 70 || some.Total.BytesOut != 190 {
		t.Errorf("with limit=1: %+v", some)
	}
	d.strictly(path+"?to=1h", &some)
	if len(some.Items) != 0 {
		t.Errorf("an hour ago: %+v", some)
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: path + "?limit=0x"})

	note(j, allowed) // after the last entry that was read
	d.strictly(path, &got)
	if vs := got.Items[0].Verdicts; len(vs) != 1 || vs[0].Count != 3 || got.Items[2].Verdicts[0].Count != 5 {
		t.Errorf("after another decision: %+v", got.Items)
	}
}

// After many requests of a jail, a second query reads only the new entries.
func TestVerdictsAreReadOnce(t *testing.T) {
	most := 5_000
	if os.Getenv("GLASSHOUSE_TEST") == "all" {
		most = 100_000
	}
	jails := apitest.New()
	w := apitest.Watch(t, jails)
	c := &counted{Chain: record(t).Chain}
	d := open(t, jails, func(o *api.Options) { o.Observed, o.Chain = w, c })
	j := d.running()
	note := func(n int) {
		body, err := json.Marshal(egress.Record{At: time.Now(), Allowed: true, Request: egress.Request{Kind: egress.KindRequest, Host: fmt.Sprintf("h%d.example", n%3000), Port: uint16(n % 7)}})
		if err == nil {
			_, err = c.Append(t.Context(), chain.Entry{Kind: chain.Egress, Jail: j, Body: body})
		}
		if err != nil {
			t.Error(err)
		}
	}
	const at = 50 // per batch, which the chain accepts
	var wg sync.WaitGroup
	for k := range at {
		wg.Go(func() {
			for i := k; i < most; i += at {
				note(i)
			}
		})
	}
	wg.Wait()
	path := "/jails/" + string(j) + "/connections?limit=1000"
	read := func(path string) (n, verdicts int64) {
		t.Helper()
		before, begun := c.n.Load(), time.Now()
		var got wire.Connections
		d.strictly(path, &got)
		for _, h := range got.Items {
			for _, v := range h.Verdicts {
				verdicts += v.Count
			}
		}
		t.Logf("%d entries, %d verdicts of %d hosts shown, %v", c.n.Load()-before, verdicts, got.Count.Count, time.Since(begun))
		return c.n.Load() - before, verdicts
	}
	first, shown := read(path)
	if first != int64(most) || shown == 0 {
		t.Errorf("read %d of %d entries, got %d verdicts", first, most, shown)
	}
	note(0)
	if n, again := read(path); n != 1 || again != shown+1 {
		t.Errorf("read %d entries for one new entry; got %d verdicts, %d before", n, again, shown)
	}
	for range 2 { // a relative time range cannot be repeated
		read(path + "&from=1h")
	}
	for i := range 20 { // other time ranges evict it from the cache
		read(path + fmt.Sprintf("&from=2020-01-%02dT00:00:00Z&to=2020-02-01T00:00:00Z", i+1))
	}
	if n, again := read(path); n != int64(most)+1 || again != shown+1 {
		t.Errorf("after eviction: read %d entries, got %d verdicts", n, again)
	}
}

// counted counts the entries that are read of a chain.
type counted struct {
	*chain.Chain
	n atomic.Int64
}

func (c *counted) Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error) {
	list, err := c.Chain.Entries(ctx, q)
	c.n.Add(int64(len(list)))
	return list, err
}
