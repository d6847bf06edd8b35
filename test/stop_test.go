package test_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"glasshouse/api/client"
	"glasshouse/api/wire"
)

// askedEachTime is a capability that computes, and needs an approval for each call.
const askedEachTime = `(capability "math.asked" :version "1.0.0" :description "Twice a number, if a person likes"
  :input-schema [:map [:x :int]] :output-schema [:map [:y :int]] :effects []
  :approval {:tier :standard :requires-per-use true}
  :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] {:y (* 2 x)}))`

// All blocking requests are open when the daemon receives SIGTERM. None may delay the stop, and
// each client except followers of a stream gets a reason.
func TestShutdownNotifiesWaitingClients(t *testing.T) {
	h := open(t, "")
	socket := filepath.Join(h.data, "glasshouse.sock")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	plain := &http.Client{Transport: &http.Transport{DialContext: dial}}

	j := h.running(wire.CreateJail{Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"bash":"ask"}}`}}}}).ID
	if err := os.WriteFile(filepath.Join(h.data, "asked.rtfs"), []byte(askedEachTime), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.glasshouse(h.data, "capability", "register", filepath.Join(h.data, "asked.rtfs")); code != 0 {
		t.Fatal(stderr)
	}
	session, err := h.OpenSession(t.Context(), wire.OpenSession{Name: "talk"})
	if err != nil {
		t.Fatal(err)
	}
	x, err := h.Exec(t.Context(), j, wire.ExecRequest{Cmd: "echo begun; exec cat", StdinOpen: true, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	jail := "/jails/" + string(j)

	// requests that wait for an approval
	var told sync.Map // the response of each request, by name
	var waiting sync.WaitGroup
	waits := func(name, method, path string, body io.Reader) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://glasshouse"+path, body)
		if err != nil {
			t.Fatal(err)
		}
		waiting.Go(func() {
			resp, err := plain.Do(req)
			if err != nil {
				told.Store(name, err.Error())
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			told.Store(name, fmt.Sprintf("%d %s %v", resp.StatusCode, text, err))
		})
	}
	waits("decide", "POST", jail+"/decide", strings.NewReader(`{"action":"bash","resource":"make one","wait_ms":600000}`))
	waits("claim", "POST", "/sandbox/"+string(j)+"/decisions", strings.NewReader(`{"tool":"bash","args":{"command":"make two"},"wait_ms":600000}`))
	waits("call", "POST", "/capabilities/math.asked/call", strings.NewReader(`{"input":{"x":1}}`))
	waits("exec", "POST", jail+"/exec", strings.NewReader(`{"argv":["sleep","1000"]}`))
	first := h.pendingApproval(j, "make one")
	h.pendingApproval(j, "make two")
	h.pendingApproval("", "math.asked")
	h.until("the command that is waited for runs", func() bool {
		for x, err := range h.Execs(t.Context(), j) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Running && slices.Equal(x.Argv, []string{"sleep", "1000"}) {
				return true
			}
		}
		return false
	})
	waits("approval", "GET", "/approvals/"+string(first.ID)+"?wait_ms=600000", nil)
	typed, typing := io.Pipe()
	waits("stdin", "POST", jail+"/execs/"+string(x.ID)+"/stdin", typed)
	io.WriteString(typing, "typed\n")

	// event streams
	for name, f := range map[string]struct{ method, path, body string }{
		"events":          {"GET", jail + "/events?follow=true", ""},
		"approval events": {"GET", "/approvals/events", ""},
		"feed":            {"GET", "/feed", ""},
		"session":         {"GET", "/chat/events/" + session.ID, ""},
		"files":           {"GET", jail + "/files/watch?path=/tmp", ""},
		"output":          {"GET", jail + "/execs/" + string(x.ID), ""},
		"exec stream":     {"POST", jail + "/exec", `{"cmd":"echo hi; exec sleep 1000","stream":true}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), f.method, "http://glasshouse"+f.path, strings.NewReader(f.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "text/event-stream" {
			t.Fatalf("%s: %d %s", name, resp.StatusCode, ct)
		}
		waiting.Go(func() {
			defer resp.Body.Close()
			io.Copy(io.Discard, resp.Body)
		})
	}
	ws := &websocket.DialOptions{HTTPClient: plain, Subprotocols: []string{"glasshouse"}}
	terminal, _, err := websocket.Dial(t.Context(), "ws://glasshouse"+jail+"/terminal", ws)
	if err != nil {
		t.Fatal(err)
	}
	waiting.Go(func() {
		defer terminal.CloseNow()
		for {
			if _, _, err := terminal.Read(t.Context()); err != nil {
				told.Store("terminal", fmt.Sprint(websocket.CloseStatus(err)))
				return
			}
		}
	})
	// a client that never reads its response
	deaf, err := dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	question := `{"action":"bash","resource":"make three","wait_ms":600000}`
	fmt.Fprintf(deaf, "POST %s/decide HTTP/1.1\r\nHost: glasshouse\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", jail, len(question), question)
	h.pendingApproval(j, "make three")
	// the command has received its input, so its request is being served
	h.until("the command has its input", func() bool {
		now, err := h.ExecResult(t.Context(), j, x.ID)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := client.Output(now)
		return err == nil && strings.Contains(string(out), "typed")
	})

	h.cmd.Process.Signal(syscall.SIGTERM)
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("the daemon exited: %v", err)
	}
	h.cmd = nil
	if late := "canceling active requests"; strings.Contains(h.log.String(), late) {
		t.Errorf("the daemon logged %q:\n%s", late, h.log)
	}
	typing.Close()
	waiting.Wait()
	for name, want := range map[string]string{
		"decide": "503 ", "claim": "503 ", "call": "503 ", "exec": "503 ", "stdin": "503 ",
		"approval": `200 {"id":"` + string(first.ID), "terminal": websocket.StatusGoingAway.String(),
	} {
		got, _ := told.Load(name)
		if text, _ := got.(string); !strings.HasPrefix(text, want) || want == "503 " && !strings.Contains(text, "the daemon is stopping") {
			t.Errorf("%s got %q, want %q", name, text, want)
		}
	}
	h.start()
	h.pendingApproval(j, "make one") // still pending
}

// Each request to a jail with a stopped init process returns, with an error that gives the
// reason if the request needs init. The jail can be paused, stopped and removed.
func TestJailWithUnresponsiveInit(t *testing.T) {
	h := open(t, tools())
	ctx := t.Context()
	j := h.running(wire.CreateJail{Name: "silent"}).ID
	stop := func() {
		for _, pid := range h.inits(j) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	soon := func(what string, most time.Duration, do func() error) {
		t.Helper()
		begun := time.Now()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		took := time.Since(begun)
		t.Logf("%s: %v", what, took.Round(time.Millisecond))
		if took > most {
			t.Errorf("%s took %v, want at most %v", what, took, most)
		}
	}
	command := func(args ...string) error {
		if _, stderr, code := h.glasshouse(h.data, args...); code != 0 {
			return fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return nil
	}

	stop()
	soon("pause", 20*time.Second, func() error { return command("jail", "pause", "silent") })
	if got, err := h.Jail(ctx, j); err != nil || got.State != "paused" {
		t.Errorf("state after pause = %s, %v, want paused", got.State, err)
	}
	soon("resume", 10*time.Second, func() error { return command("jail", "resume", "silent") })
	soon("exec", 45*time.Second, func() error {
		err := command("jail", "exec", "--timeout", "1s", "silent", "--", "true")
		if err == nil || !strings.Contains(err.Error(), "exit code 125") || !strings.Contains(err.Error(), "init") {
			return fmt.Errorf("got %v, want exit code 125 and an error about init", err)
		}
		return nil
	})
	soon("stop", 45*time.Second, func() error { return command("jail", "stop", "silent") })
	soon("start", 10*time.Second, func() error { return command("jail", "start", "silent") })
	if got := h.sh(j, "echo alive"); got != "alive" {
		t.Errorf("the restarted jail printed %q, want alive", got)
	}
	stop()
	soon("rm", 45*time.Second, func() error { return command("jail", "rm", "silent") })
}
