package test_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// A line is a proxy between a browser and a daemon that can simulate a bad network.
type line struct {
	addr string
	to   string
	cuts atomic.Int64 // interrupted connections
	bad  atomic.Bool  // connections break after some bytes of a response
	down atomic.Bool  // no connections

	mu sync.Mutex
	// +checklocks:mu
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{addr: listener.Addr().String(), to: to, conns: map[net.Conn]bool{}}
	l.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.carry(c) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		l.cut()
		l.wg.Wait()
	})
	return l
}

// carry copies data between the two ends of a connection.
func (l *line) carry(near net.Conn) {
	defer near.Close()
	if l.down.Load() {
		return
	}
	network := "tcp"
	if strings.HasPrefix(l.to, "/") {
		network = "unix"
	}
	far, err := net.Dial(network, l.to)
	if err != nil {
		return
	}
	defer far.Close()
	l.mu.Lock()
	l.conns[near] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.conns, near)
		l.mu.Unlock()
	}()
	go func() {
		io.Copy(far, near)
		far.Close()
	}()
	buf := make([]byte, 512)
	for left := 100 + rand.IntN(6000); ; {
		n, err := far.Read(buf)
		if l.bad.Load() {
			if left -= n; left <= 0 {
				near.Write(buf[:max(0, n+left)])
				l.cuts.Add(1)
				near.(*net.TCPConn).SetLinger(0)
				return
			}
		}
		if _, err := near.Write(buf[:n]); err != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// cut closes all open connections.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

// overhears records the messages that the page reads from its stream, in order.
const overhears = `
window.__heard = [];
const real = window.fetch;
window.fetch = async (address, options) => {
	const answer = await real(address, options);
	if (!String(address).startsWith("/feed") || !answer.ok) return answer;
	const [one, two] = answer.body.tee();
	(async () => {
		let rest = "";
		for await (const piece of one.pipeThrough(new TextDecoderStream())) {
			const messages = (rest + piece).split("\n\n");
			rest = messages.pop();
			for (const m of messages) {
				if (!/^event: approval$/m.test(m)) continue;
				const told = JSON.parse(m.match(/^data: (.*)$/m)[1]);
				window.__heard.push({ Seq: told.seq, Kind: told.kind, Of: told.approval.id });
			}
		}
	})().catch(() => {});
	return new Response(two, { status: answer.status, headers: answer.headers });
};
`

func (u *ui) survivesBadNetwork() {
	j := u.careful("far-away")
	u.watchedByKernel(j)
	l := newLine(u.T, u.tcpAddr())
	p := blank(u.T, u.browser, "http://"+l.addr)
	p.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: overhears})
		return chromedp.Void{}, err
	})
	p.window(1280, 1100)
	p.enter(u.daemonHarness, "admin")
	p.open(at(j, "events") + "&q=" + escaped("type:file op:create path:/root/n*"))
	p.waitText("No events match")
	state := `document.querySelector("nav [role=status]").innerText`
	p.until("be live", state+`.includes("Live")`)

	// Connections break in the middle of responses during activity.
	l.bad.Store(true)
	const many = 24
	var asked []id.Approval
	for n := range many {
		a := u.asks(j, wire.Question{Action: "bash", Resource: fmt.Sprintf("step %02d %01000d", n, n)})
		asked = append(asked, a.ID)
		u.sh(j, fmt.Sprintf("echo %d > /root/n%02d", n, n))
	}
	if !within(time.Minute, func() bool { return l.cuts.Load() >= 5 }) {
		u.Fatalf("only %d connections were cut", l.cuts.Load())
	}

	// Then the network is down, and the page shows that.
	l.down.Store(true)
	l.cut()
	p.until("say that it has no connection", state+`.includes("Reconnecting")`)
	last := u.asks(j, wire.Question{Action: "bash", Resource: "the last step"})
	l.down.Store(false)
	l.bad.Store(false)
	p.do(`dispatchEvent(new Event("online"))`) // browsers send this event to the page; without it the page waits up to 15 seconds
	p.until("be live again", state+`.includes("Live")`)
	p.until("hear of the last", fmt.Sprintf("window.__heard.some(h => h.Of === %s)", quoted(string(last.ID))))

	times, before := map[id.Approval]int{}, int64(0)
	for _, told := range evaluate[[]struct {
		Seq  int64
		Kind string
		Of   id.Approval
	}](p, "window.__heard") {
		if told.Seq <= before {
			u.Errorf("entry %d arrived after entry %d", told.Seq, before)
		}
		before = told.Seq
		if told.Kind == "approval.asked" {
			times[told.Of]++
		}
	}
	for n, a := range asked {
		if times[a] != 1 {
			u.Errorf("question %d arrived %d times", n, times[a])
		}
	}
	p.until("list every record", fmt.Sprintf(`document.querySelectorAll("[role=option]").length === %d`, many))
	for n, line := range evaluate[[]string](p, `[...document.querySelectorAll("[role=option] .what")].map(e => e.innerText)`) {
		if want := fmt.Sprintf("/root/n%02d", n); !strings.Contains(line, want) {
			u.Errorf("event %d is %q, want that of %s", n, line, want)
		}
	}
	p.goes("/approvals")
	p.until("list every request once", fmt.Sprintf(`(seen => seen.length === new Set(seen).size && seen.length >= %d)([...document.querySelectorAll("#inbox a code")].map(e => e.innerText))`, many+1))
}
