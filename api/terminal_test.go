package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// A screen is a client of a terminal.
type screen struct {
	t    *testing.T
	conn *websocket.Conn
	exec wire.Exec
	text strings.Builder
	exit *wire.Exec
	err  *wire.Problem
}

func (d *harness) terminal(t *testing.T, j id.Jail, query string) *screen {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "ws://"+d.tcp+"/jails/"+string(j)+"/terminal?"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + d.tokens[access.Operator]}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	s := &screen{t: t, conn: conn}
	s.until(func() bool { return s.exec.ID != "" })
	return s
}

// until reads until done returns true or the stream ends.
func (s *screen) until(done func() bool) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for !done() {
		kind, data, err := s.conn.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				s.t.Fatalf("timeout; the screen shows %q", s.text.String())
			}
			return err
		}
		if kind == websocket.MessageBinary {
			s.text.Write(data)
			continue
		}
		var e wire.TerminalEvent
		if err := json.Unmarshal(data, &e); err != nil {
			s.t.Fatal(err)
		}
		if e.Exec != nil {
			s.exec = *e.Exec
		}
		if e.Exit != nil {
			s.exit = e.Exit
		}
		if e.Error != nil {
			s.err = e.Error
		}
	}
	return nil
}

func (s *screen) shows(text string) {
	s.t.Helper()
	if err := s.until(func() bool { return strings.Contains(s.text.String(), text) }); err != nil {
		s.t.Fatalf("the screen shows %q, want %q: %v", s.text.String(), text, err)
	}
}

func (s *screen) key(keys string) {
	s.t.Helper()
	if err := s.conn.Write(s.t.Context(), websocket.MessageBinary, []byte(keys)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) say(text string) {
	s.t.Helper()
	if err := s.conn.Write(s.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	s := d.terminal(t, j, "cols=100&rows=30")
	s.key("stty size; tty\n")
	s.shows("30 100")
	s.shows("/dev/pts/")
	s.say(`{"resize":{"cols":77,"rows":22}}`)
	s.key("stty size\n")
	s.shows("22 77")
	s.key("sh -c 'echo before-$((1+1)); exec sleep 50'\n")
	s.shows("before-2")
	s.key("\x03") // Ctrl-C interrupts the foreground process group
	s.key("echo after-$((1+1))\n")
	s.shows("after-2")
	s.key("exit 5\n")
	err := s.until(func() bool { return false })
	if got := websocket.CloseStatus(err); got != 4005 {
		t.Errorf("closed with %v, want 4005", err)
	}
	if s.exit == nil || code(*s.exit) != 5 {
		t.Errorf("exit %+v, want 5", s.exit)
	}
}

func TestCommandOutlivesTerminalClient(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	s := d.terminal(t, j, "")
	s.key("X=remembered\n")
	s.key("echo ready-$X\n")
	s.shows("ready-remembered")
	s.conn.CloseNow() // the client disconnects

	again := d.terminal(t, j, "exec="+string(s.exec.ID)+"&cols=90&rows=20")
	if again.exec.ID != s.exec.ID {
		t.Fatalf("reattached to %s, want %s", again.exec.ID, s.exec.ID)
	}
	again.shows("ready-remembered") // the previous screen
	again.key("echo still-$X; stty size\n")
	again.shows("still-remembered")
	again.shows("20 90")
	again.say(`{"signal":"KILL"}`)
	if err := again.until(func() bool { return false }); websocket.CloseStatus(err) != 4137 {
		t.Errorf("closed with %v, want 4137", err)
	}
	// A client of an ended command receives the last screen and the exit event.
	last := d.terminal(t, j, "exec="+string(s.exec.ID))
	last.until(func() bool { return false })
	if !strings.Contains(last.text.String(), "still-remembered") || last.exit == nil || last.exit.Signal != "KILL" {
		t.Errorf("of an ended terminal: %q, %+v", last.text.String(), last.exit)
	}
}

func TestTerminalOfCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	s := d.terminal(t, j, "argv=sh&argv=-c&argv=echo+one+two%3Bpwd&cwd=/tmp")
	s.until(func() bool { return false })
	if got := s.text.String(); got != "one two\r\n/tmp\r\n" || s.exit == nil || code(*s.exit) != 0 {
		t.Errorf("the screen shows %q, exit %+v", got, s.exit)
	}
}

func TestTerminalIgnoresInvalidMessages(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	s := d.terminal(t, j, "")
	for _, text := range []string{`{`, `{}`, `{"resize":{"cols":0,"rows":0}}`, `{"signal":"NOSUCH"}`, `{"resize":{"cols":1,"rows":1},"signal":"INT"}`, `{"exec":"x"}`, `null`, `[]`} {
		s.err = nil
		s.say(text)
		if err := s.until(func() bool { return s.err != nil }); err != nil {
			t.Fatalf("%s closed the terminal: %v", text, err)
		}
		if s.err.Type != "/problems/invalid" {
			t.Errorf("%s: %+v, want invalid", text, s.err)
		}
	}
	s.key("echo al''ive\n")
	s.shows("alive")
	s.key(strings.Repeat("x", 2<<20)) // over the limit of one message
	if err := s.until(func() bool { return false }); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("after a message over the limit: %v, want too big", err)
	}
	d.terminal(t, j, "exec="+string(s.exec.ID)).say(`{"signal":"KILL"}`)
}

func TestInvalidTerminalRequests(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	self := "/jails/" + string(j) + "/terminal"
	d.refused(400, req{as: access.Operator, method: "GET", path: self})
	up := map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
	with := func(k, v string) map[string]string {
		h := map[string]string{k: v}
		for k, v := range up {
			h[k] = v
		}
		return h
	}
	d.refused(403, req{as: access.Viewer, method: "GET", path: self, header: up})
	d.refused(403, req{as: access.Operator, method: "GET", path: self, header: with("Origin", "https://evil.example")})
	d.refused(404, req{as: access.Operator, method: "GET", path: self + "?exec=x-aaaaaaaaaaaa", header: up})
	d.refused(400, req{as: access.Operator, method: "GET", path: self + "?exec=x-aaaaaaaaaaaa&cmd=ls", header: up})
	d.refused(400, req{as: access.Operator, method: "GET", path: self + "?cols=70000", header: up})
	var x wire.Exec
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Cmd: "sleep 60", Detach: true}}, &x)
	d.refused(409, req{as: access.Operator, method: "GET", path: fmt.Sprintf("%s?exec=%s", self, x.ID), header: up})
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop"}, nil)
	d.refused(409, req{as: access.Operator, method: "GET", path: self, header: up})
}

func TestTokenAsWebSocketSubprotocol(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	conn, _, err := websocket.Dial(t.Context(), "ws://"+d.tcp+"/jails/"+string(j)+"/terminal?cmd=true", &websocket.DialOptions{
		Subprotocols: []string{"glasshouse", "bearer." + d.tokens[access.Operator]},
		HTTPHeader:   http.Header{"Origin": {"http://" + d.tcp}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if got := conn.Subprotocol(); got != "glasshouse" {
		t.Errorf("subprotocol %q: the token must not be repeated", got)
	}
}

func TestShutdownEndsStreamsAndTerminals(t *testing.T) {
	apitest.Goroutines(t)
	jails := apitest.Start(t)
	d := open(t, jails)
	j := d.running()
	s := d.terminal(t, j, "")
	stream := d.send(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Cmd: "echo hi; sleep 100", Stream: true}})
	defer stream.Body.Close()
	watch := d.send(req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/files/watch?path=/tmp"})
	defer watch.Body.Close()
	waiting := make(chan reply, 1)
	go func() {
		waiting <- d.do(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Cmd: "sleep 100"}})
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // until all three commands run
		if list, err := jails.Execs(t.Context(), j); err == nil && len(list) == 3 {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("Execs = %v, %v, want 3", list, err)
		}
	}

	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("Shutdown took %v", took)
	}
	if err := s.until(func() bool { return false }); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the terminal closed with %v, want going away", err)
	}
	got := <-waiting
	if got.status != 503 || !strings.Contains(string(got.body), "/execs/x-") {
		t.Errorf("waiting exec: got %d %s, want the location of the command", got.status, got.body)
	}
	list, err := jails.Execs(t.Context(), j)
	if err != nil || len(list) != 3 {
		t.Fatalf("Execs = %v, %v", list, err)
	}
	for _, x := range list {
		if x.Ended != nil {
			t.Errorf("%v ended with the server, want it running", x.Argv)
		}
	}
}
