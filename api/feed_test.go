package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// recorded is an audit log, and an approval queue that records its requests in it.
type recorded struct {
	*chain.Chain
	t      testing.TB
	kernel *govern.Engine
	queue  *approval.Queue
}

func record(t testing.TB) *recorded {
	t.Helper()
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: st.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	k := govern.New(govern.Config{Chain: c, Dir: t.TempDir()})
	q, err := approval.New(t.Context(), st.Approvals(), approval.Config{Record: k.RecordApproval})
	if err != nil {
		t.Fatal(err)
	}
	k.Approvals(q)
	t.Cleanup(func() {
		k.Close()
		q.Close()
		c.Close()
		st.Close()
	})
	return &recorded{c, t, k, q}
}

func (c *recorded) use(o *api.Options) { o.Chain, o.Approvals = c.Chain, c.queue }

// add appends n entries of a kind.
func (c *recorded) add(k chain.Kind, n int) {
	c.t.Helper()
	list := make([]chain.Entry, n)
	for i := range list {
		list[i] = chain.Entry{Kind: k, Jail: "j-aaaaaaaaaaaa", Body: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}
	}
	for _, err := range c.AppendAll(c.t.Context(), list) {
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// until reads frames up to one of a name, and returns it.
func (f *frames) until(name string) frame {
	f.t.Helper()
	for {
		fr, err := f.next()
		if err != nil {
			f.t.Fatalf("the stream ended before %s: %v", name, err)
		}
		if fr.event == name {
			return fr
		}
	}
}

func (d *harness) feed(topics, last string) *frames {
	d.t.Helper()
	r := req{as: access.Viewer, method: "GET", path: "/feed?topics=" + topics, header: map[string]string{"Accept": "text/event-stream"}}
	if last != "" {
		r.header["Last-Event-ID"] = last
	}
	return d.stream(r)
}

func TestEventStreamSendsEvents(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	c.add(chain.JailCreated, 3) // before the stream is opened
	f := d.feed("", "")
	if hello := f.until("hello"); hello.id != "3" {
		t.Errorf("the stream starts at %q, want 3", hello.id)
	}
	c.add(chain.Egress, 2) // not sent by default
	c.add(chain.RunMoved, 1)
	if run := f.until("run"); run.id != "6" || !strings.Contains(run.data, `"kind":"run.moved"`) {
		t.Errorf("run is %+v", run)
	}
	c.add(chain.JailStopped, 1)
	var e wire.FeedEvent
	if err := json.Unmarshal([]byte(f.until("jail").data), &e); err != nil || e.Kind != "jail.stopped" || e.Jail != "j-aaaaaaaaaaaa" || e.Seq != 7 {
		t.Errorf("jail is %+v, %v", e, err)
	}
	if p := d.refused(400, req{as: access.Viewer, method: "GET", path: "/feed?topics=jails,nonsense"}); p.Field != "topics" {
		t.Errorf("an unknown topic: %+v", p)
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/feed", header: map[string]string{"Last-Event-ID": "x"}})
	d.refused(401, req{method: "GET", path: "/feed"})
}

func TestEventStreamSendsApprovalWithRequest(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	f := d.feed("approval", "")
	f.until("hello")
	ask := func(command string) id.Approval {
		r, err := c.queue.Open(t.Context(), approval.Request{
			Question: policy.Question{Action: "bash", Resource: command, Subject: policy.Subject{Jail: "j-aaaaaaaaaaaa"}}, Tier: approval.Standard, Rule: policy.Rule{Pattern: "*"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	read := func() wire.FeedEvent {
		t.Helper()
		var e wire.FeedEvent
		if err := json.Unmarshal([]byte(f.until("approval").data), &e); err != nil {
			t.Fatal(err)
		}
		if e.Approval == nil {
			t.Fatalf("%s without its request", e.Kind)
		}
		return e
	}
	a := ask("git push")
	if e := read(); e.Kind != "approval.asked" || e.Approval.ID != a || e.Approval.State != "pending" || e.Approval.Question.Resource != "git push" {
		t.Errorf("new request: got %+v", e.Approval)
	}
	d.want(200, req{as: access.Operator, method: "POST", path: "/approvals/" + string(a), body: wire.AnswerApproval{Answer: "deny", Scope: "once"}}, nil)
	if e := read(); e.Kind != "approval.answered" || e.Approval.State != "answered" || e.Approval.Answer == nil {
		t.Errorf("answered request: got %+v", e.Approval)
	}
	// Requests beyond the quota are refused immediately and not stored. They must not delay
	// other events.
	var last id.Approval
	for i := range 40 {
		r, err := c.queue.Open(t.Context(), approval.Request{
			Question: policy.Question{Action: "bash", Resource: fmt.Sprint("flood ", i), Subject: policy.Subject{Jail: "j-aaaaaaaaaaaa"}}, Tier: approval.Standard, Rule: policy.Rule{Pattern: "*"},
		})
		if err == nil {
			last = r.ID
		}
	}
	for {
		var e wire.FeedEvent
		if err := json.Unmarshal([]byte(f.until("approval").data), &e); err != nil {
			t.Fatal(err)
		}
		if e.Approval != nil && e.Approval.ID == last {
			break
		}
	}
}

// A reader is disconnected at random and reconnects with its last event id.
func TestReconnectedReaderGetsEachEventOnce(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	first := d.feed("notice,jail", "")
	last := first.until("hello").id
	done := make(chan struct{})
	const n = 1000
	go func() {
		defer close(done)
		for i := range n {
			k := chain.JailStarted
			switch i % 3 {
			case 1:
				k = chain.OperatorActed
			case 2:
				k = chain.Egress // not of these topics
			}
			if _, err := c.Append(t.Context(), chain.Entry{Kind: k, Body: json.RawMessage(`{}`)}); err != nil {
				t.Error(err)
			}
		}
	}()
	var seen []string
	for len(seen) < n-n/3 {
		f := d.feed("notice,jail", last)
		f.until("hello")
		for range 97 {
			fr, err := f.next()
			if err != nil {
				t.Fatal(err)
			}
			seen, last = append(seen, fr.id), fr.id
			if len(seen) == n-n/3 {
				break
			}
		}
		f.body.Close()
	}
	<-done
	want := 0
	for i := range n {
		if i%3 == 2 {
			continue
		}
		if got := seen[want]; got != fmt.Sprint(i+1) {
			t.Fatalf("event %d is entry %s, want %d", want, got, i+1)
		}
		want++
	}
}

func TestUnknownEventIDResetsStream(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	c.add(chain.JailStarted, 5)
	if hello := d.feed("jail", "9999").until("hello"); hello.id != "5" || !strings.Contains(hello.data, `"reset":true`) {
		t.Errorf("got hello %+v, want it from 5, with reset", hello)
	}
	if hello := d.feed("jail", "5").until("hello"); strings.Contains(hello.data, "reset") {
		t.Errorf("got hello %+v, want no reset", hello)
	}
}

// A reader that does not read needs no memory and does not slow down others.
func TestStalledEventStreamDoesNotBlockOthers(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	conn, err := net.Dial("tcp", d.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprintf(conn, "GET /feed?topics=notice HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", d.tokens[access.Viewer])
	head := bufio.NewReaderSize(conn, 512)
	resp, err := http.ReadResponse(head, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	quick := d.feed("notice", "")
	quick.until("hello")
	list := make([]chain.Entry, 1000)
	for i := range list {
		list[i] = chain.Entry{Kind: chain.OperatorActed, Body: json.RawMessage(`{"x":"` + strings.Repeat("y", 16<<10) + `"}`)}
	}
	for _, err := range c.AppendAll(t.Context(), list) {
		if err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for i := range list {
		if fr := quick.until("notice"); fr.id != fmt.Sprint(i+1) {
			t.Fatalf("event %d has id %s", i, fr.id)
		}
	}
	t.Logf("16 MB of events with a stalled reader: %s", time.Since(began))
}

func TestJailsAreMeasuredWhileStreamIsOpen(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails)
	var j, other wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Name: "one", Limits: wire.Limits{MemoryMB: 64}}}, &j)
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j.ID) + "/start"}, nil)
	rows := func(f *frames) (e wire.FeedJailsEvent) {
		t.Helper()
		if err := json.Unmarshal([]byte(f.until("jails").data), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	f := d.feed("jails", "")
	e := rows(f)
	if !e.All || len(e.Jails) != 1 || e.Jails[0].Name != "one" || e.Jails[0].State != "running" || e.Jails[0].MemoryBytes != 42 || e.Jails[0].MemoryLimit != 64<<20 {
		t.Errorf("got first rows %+v", e)
	}
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: wire.CreateJail{Name: "two"}}, &other)
	e = rows(f)
	if e.All || len(e.Jails) != 1 || e.Jails[0].ID != other.ID {
		t.Errorf("after a new jail: got %+v, want only it", e)
	}
	// A later reader receives all jails at the start.
	late := d.feed("jails", "")
	e = rows(late)
	if !e.All || len(e.Jails) != 2 {
		t.Errorf("second reader: got first rows %+v, want both", e)
	}
	d.want(204, req{as: access.Operator, method: "DELETE", path: "/jails/" + string(j.ID)}, nil)
	e = rows(f)
	if !e.All || len(e.Jails) != 1 || e.Jails[0].ID != other.ID {
		t.Errorf("after a deletion: got %+v, want all remaining", e)
	}
}

func TestFiftyEventStreamsEndOnShutdown(t *testing.T) {
	apitest.Goroutines(t)
	c := record(t)
	d := open(t, apitest.New(), c.use)
	for range 50 {
		d.feed("", "").until("jails")
	}
}

// Another goroutine records notes a moment later.
func TestChainIncludesPendingEntries(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use, func(o *api.Options) { o.Governor = c.kernel })
	for n := 1; n <= 100; n += 2 {
		c.kernel.Note(chain.JailCreated, policy.Subject{Jail: "j-aaaaaaaaaaaa"}, 0, struct{}{})
		var page wire.Page[wire.ChainEntry]
		d.want(200, req{as: access.Viewer, method: "GET", path: "/chain?newest=true&limit=1"}, &page)
		if len(page.Items) != 1 || page.Items[0].Seq != int64(n) {
			t.Fatalf("after %d notes the newest entry is %+v", n, page.Items)
		}
		c.kernel.Note(chain.JailDeleted, policy.Subject{Jail: "j-aaaaaaaaaaaa"}, 0, struct{}{})
		var head wire.ChainHead
		d.want(200, req{as: access.Viewer, method: "GET", path: "/chain/head"}, &head)
		if head.Entries != int64(n)+1 {
			t.Fatalf("after %d notes the chain has %d entries", n+1, head.Entries)
		}
	}
}

func TestChainIsListedNewestFirst(t *testing.T) {
	c := record(t)
	d := open(t, apitest.New(), c.use)
	c.add(chain.Egress, 3)
	c.add(chain.JailCreated, 2)
	var page wire.Page[wire.ChainEntry]
	for _, want := range []struct{ query, seqs, next string }{
		{"newest=true&limit=2", "5 4", "4"},
		{"newest=true&limit=2&after=4", "3 2", "2"},
		{"newest=true&kind=egress&limit=1", "3", "3"},
		{"newest=true&kind=egress,jail.created", "5 4 3 2 1", ""},
		{"limit=2", "1 2", "2"},
	} {
		page = wire.Page[wire.ChainEntry]{}
		d.want(200, req{as: access.Viewer, method: "GET", path: "/chain?" + want.query}, &page)
		got := []string{}
		for _, e := range page.Items {
			got = append(got, fmt.Sprint(e.Seq))
		}
		if strings.Join(got, " ") != want.seqs || page.Next != want.next {
			t.Errorf("%s: %v and then %q, want %s and %q", want.query, got, page.Next, want.seqs, want.next)
		}
	}
}
