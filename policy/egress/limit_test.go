package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// status requests a URL over plain HTTP and returns the status.
func (j *jail) status(host, path string) (int, string) {
	j.t.Helper()
	c := j.talk(apiHTTP)
	defer c.Close()
	c.say("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	resp := c.response()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestRequestRateIsLimited(t *testing.T) {
	w := needsWorld(t)
	slow := egress.Limit{Requests: 2, Per: 24 * time.Hour}
	rules := egress.Rules{Limit: egress.Limit{Requests: 5, Per: 24 * time.Hour}, Allow: []egress.Rule{
		{Name: "one", Host: "api.example.com", Capability: "places.search", Limit: slow},
		{Name: "two", Host: "front.example.com", Capability: "places.search", Limit: slow},
		{Name: "other", Host: "*.wild.example.com"}}}
	j := newJail(t, w, egress.Config{Rules: rules})
	for i, want := range []int{200, 200, 429} { // one rate for both rules of the capability
		host := []string{"api.example.com", "front.example.com"}[i%2]
		if got, body := j.status(host, "/"); got != want || want == 429 && !strings.Contains(body, "rule: ") {
			t.Errorf("request %d: %d %q, want %d", i, got, body, want)
		}
	}
	j.must(j.proxy.SetRules(rules)) // usage is kept
	if got, _ := j.status("api.example.com", "/"); got != 429 {
		t.Errorf("after SetRules with the same rules: got %d", got)
	}
	for i, want := range []int{200, 200, 200, 429} { // refused requests were not charged
		if got, body := j.status("a.wild.example.com", "/"); got != want {
			t.Errorf("request %d within the jail's limit: got %d %q, want %d", i, got, body, want)
		}
	}
	if r := j.refusal(egress.ReasonRate); r.Rule != "one" && r.Rule != "two" {
		t.Errorf("got record %+v", r)
	}
	if got := j.proxy.Stats(); got.Refused[egress.ReasonRate] != 3 || got.Requests != 8 || got.Sent == 0 || got.Received == 0 {
		t.Errorf("got stats %+v", got)
	}
}

func TestByteBudgetIsExact(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Name: "little", Host: "api.example.com", Ports: []uint16{80, 7000}, Limit: egress.Limit{Bytes: 100_000}}))
	j.lookup("api.example.com", dnsmessage.TypeA)
	c := j.talk(egresstest.API + ":7000")
	got := make(chan int)
	go func() {
		n, _ := io.Copy(io.Discard, c.r)
		got <- int(n)
	}()
	var sent int
	for b := []byte(strings.Repeat("\x00", 10_000)); sent < 1<<20; sent += len(b) {
		if _, err := c.Write(b); err != nil {
			break
		}
	}
	back := <-got
	r := j.recorded("the connection", func(r egress.Record) bool { return r.Port == 7000 })
	if r.Reason != egress.ReasonBytes || r.Sent+r.Received != 100_000 || int64(back) > r.Received {
		t.Errorf("%d bytes came back; got record %+v", back, r)
	}
	if status, body := j.status("api.example.com", "/"); status != 403 || !strings.Contains(body, "the budget of 100000 bytes is spent") || !strings.Contains(body, "rule: little") {
		t.Errorf("afterwards: %d %q", status, body)
	}
}

func TestTooManyConnectionsAreReset(t *testing.T) {
	w := needsWorld(t)
	conf := allow(egress.Rule{Host: "api.example.com"})
	conf.Connections = 3
	j := newJail(t, w, conf)
	var open []*talk
	for range 3 {
		c := j.talk(apiHTTP)
		c.say("GET / HTTP/1.1\r\n")
		open = append(open, c)
	}
	c, err := j.dial("tcp", apiHTTP)
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the fourth: %v, want a reset", err)
	}
	j.refusal(egress.ReasonLimit)
	open[0].say("Host: api.example.com\r\nConnection: close\r\n\r\n")
	if resp := open[0].response(); resp.StatusCode != 200 {
		t.Errorf("earlier connection: %s", resp.Status)
	}
}

func TestSlowRequestHeadIsRefused(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com"}), egress.Hurry(20*time.Second, 300*time.Millisecond, time.Second, time.Second))
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: api.ex", "GE"} {
		c := j.talk(apiHTTP)
		c.say(said)
		if b, _ := io.ReadAll(c.r); len(said) > 2 && !strings.HasPrefix(string(b), "HTTP/1.1 408 ") {
			t.Errorf("%q: %q", said, b)
		}
		if r := j.refusal(egress.ReasonLimit); r.Port != 80 {
			t.Errorf("%q: %+v", said, r)
		}
		j.forget()
	}
	c := j.talk(apiHTTPS)
	c.say(string(egresstest.Hello("api.example.com")[:30]))
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("got a response to an incomplete ClientHello")
	}
	j.refusal(egress.ReasonLimit)

	// Bytes that are sent one by one do not extend the time.
	c = j.talk(apiHTTP)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		io.Copy(io.Discard, c.r)
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 30 {
		select {
		case <-closed:
			return
		case <-tick.C:
			c.Write([]byte("G")) // fails when the proxy has closed the connection
		}
	}
	t.Error("the connection is still open")
}

func TestCloseDrains(t *testing.T) {
	w := needsWorld(t)
	release := make(chan struct{})
	asked := make(chan struct{}, 1)
	addr := egresstest.Internet + ":8080"
	w.SetAddrs("shop.example", egresstest.Internet)
	w.HTTP(addr, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.(http.Flusher).Flush()
		asked <- struct{}{}
		<-release
		io.WriteString(rw, "done")
	}))
	j := newJail(t, w, allow(egress.Rule{Host: "shop.example", Ports: []uint16{8080}}))
	busy, idle := j.talk(addr), j.talk(addr)
	busy.say("GET / HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n")
	<-asked
	closed := make(chan error)
	go func() { closed <- j.proxy.Close(context.Background()) }()
	if _, err := idle.r.ReadByte(); err == nil {
		t.Error("idle connection is still open")
	}
	if c, err := j.dial("tcp", addr); err == nil {
		c.Close()
		t.Error("new connection was accepted")
	}
	close(release)
	resp := busy.response()
	if b, err := io.ReadAll(resp.Body); string(b) != "done" || err != nil {
		t.Errorf("active flow: got %q, %v", b, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	j.recorded("the request", func(r egress.Record) bool { return r.Allowed && r.Status == 200 && r.Reason == "" })
	busy.Close()
	b := make([]byte, 1<<20)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // idle server connections close after a timeout
		stacks := string(b[:runtime.Stack(b, true)])
		if !strings.Contains(stacks, "egress.(*visit)") && !strings.Contains(stacks, "sweeper") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("leaked goroutines:\n%s", stacks)
		}
	}
}

func TestExcessRefusalsAreOnlyCounted(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow())
	const n = 1000
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range n / 8 {
				if c, err := j.dial("tcp", egresstest.Evil+":80"); err == nil {
					io.WriteString(c, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
					io.Copy(io.Discard, c)
					c.Close()
				}
			}
		})
	}
	wg.Wait()
	j.must(j.proxy.Close(t.Context()))
	kept, more := 0, 0
	for _, r := range j.all() {
		if r.Repeats > 0 {
			more += r.Repeats
		} else {
			kept++
		}
	}
	if kept+more != n || kept > n/2 {
		t.Errorf("got %d records and %d counted, want %d in total", kept, more, n)
	}
	if got := j.proxy.Stats().Refused[egress.ReasonHost]; got != n {
		t.Errorf("got %d counted refusals, want %d", got, n)
	}
}

// flood sends n bytes to each client, at an address of the world.
func flood(w *egresstest.World, addr string, n int64) {
	w.TCP(addr, func(c net.Conn) {
		io.ReadFull(c, make([]byte, 1))
		io.Copy(c, &io.LimitedReader{R: zero{}, N: n})
	})
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { return len(b), nil }

func TestGigabyteTransferNeedsLittleMemory(t *testing.T) {
	w := needsWorld(t)
	const size = 1 << 30
	w.SetAddrs("shop.example", egresstest.Internet)
	raw, web := egresstest.Internet+":9000", egresstest.Internet+":8080"
	flood(w, raw, size)
	w.HTTP(web, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(size))
		io.Copy(rw, &io.LimitedReader{R: zero{}, N: size})
	}))
	j := newJail(t, w, allow(egress.Rule{Host: "shop.example", Ports: []uint16{8080, 9000}}))
	j.lookup("shop.example", dnsmessage.TypeA)
	for name, run := range map[string]func() (int64, error){
		"raw": func() (int64, error) {
			c := j.talk(raw)
			c.SetDeadline(time.Time{})
			c.say("\x00")
			return io.Copy(io.Discard, c.r)
		},
		"http": func() (int64, error) {
			c := j.talk(web)
			c.SetDeadline(time.Time{})
			c.say("GET / HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n")
			return io.Copy(io.Discard, c.response().Body)
		},
	} {
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		var peak atomic.Uint64
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					peak.Store(max(peak.Load(), m.HeapInuse))
				}
			}
		})
		n, err := run()
		close(done)
		wg.Wait()
		runtime.ReadMemStats(&now)
		if n != size || err != nil {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		t.Logf("%s: heap at most %d KiB, %d KiB before, %d KiB allocated", name, peak.Load()>>10, before.HeapInuse>>10, (now.TotalAlloc-before.TotalAlloc)>>10)
		if grown := int64(peak.Load()) - int64(before.HeapInuse); grown > 8<<20 {
			t.Errorf("%s: heap grew by %d bytes", name, grown)
		}
	}
}

func TestThousandConcurrentConnections(t *testing.T) {
	w := needsWorld(t)
	j := newJail(t, w, allow(egress.Rule{Host: "api.example.com", Ports: []uint16{7000}}))
	j.lookup("api.example.com", dnsmessage.TypeA)
	const n = 1000
	conns := make([]*talk, n)
	var wg sync.WaitGroup
	for k := range 10 {
		wg.Go(func() {
			for i := k; i < n; i += 10 {
				c, err := j.dial("tcp", egresstest.API+":7000")
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				conns[i] = &talk{Conn: c, t: t}
				c.SetDeadline(time.Now().Add(time.Minute))
				fmt.Fprintf(c, "\x00%06d", i)
			}
		})
	}
	wg.Wait()
	b := make([]byte, 7)
	for i, c := range conns {
		if c == nil {
			continue
		}
		if _, err := io.ReadFull(c, b); string(b) != fmt.Sprintf("\x00%06d", i) {
			t.Fatalf("connection %d: %q, %v", i, b, err)
		}
	}
	if got := j.proxy.Stats(); got.Open != n || len(got.Refused) != 0 {
		t.Errorf("got stats %+v", got)
	}
	for _, c := range conns {
		c.Close()
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if j.proxy.Stats().Open == 0 {
			return
		}
	}
	t.Errorf("%d connections stay open", j.proxy.Stats().Open)
}
