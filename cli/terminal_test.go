package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"

	"glasshouse/api/wire"
)

// A console is a terminal that is operated by the test.
type console struct {
	*testing.T
	ptmx, tty *os.File
	shown     chan string
	seen      string
}

func newConsole(t *testing.T) *console {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	// A read of a file in blocking mode does not end when the file is closed.
	fd, err := syscall.Dup(int(master.Fd()))
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	master.Close()
	c := &console{T: t, ptmx: os.NewFile(uintptr(fd), "ptmx"), tty: tty, shown: make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := c.ptmx.Read(buf)
			if err != nil {
				return // the test closed it
			}
			c.shown <- string(buf[:n])
		}
	}()
	t.Cleanup(func() {
		c.ptmx.Close() // hangs up: a command's pending read of the terminal ends too
		<-ended
		tty.Close()
	})
	return c
}

// resize sets the size of the terminal.
func (c *console) resize(cols, rows uint16) {
	c.Helper()
	if err := pty.Setsize(c.tty, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		c.Error(err)
	}
}

// waitFor waits until the terminal shows text.
func (c *console) waitFor(text string) {
	c.Helper()
	limit := time.After(30 * time.Second)
	for !strings.Contains(c.seen, text) {
		select {
		case more := <-c.shown:
			c.seen += more
		case <-limit:
			c.Fatalf("the terminal shows %q, want %q", c.seen, text)
		}
	}
}

// typeText types text.
func (c *console) typeText(text string) {
	c.Helper()
	if _, err := c.ptmx.WriteString(text); err != nil {
		c.Fatal(err)
	}
}

// start runs a command on the terminal. The channel receives its exit code.
func (c *console) start(ctx context.Context, env map[string]string, args ...string) <-chan int {
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, args, Env{Stdin: c.tty, Stdout: c.tty, Stderr: c.tty, Getenv: func(k string) string { return env[k] }, UID: os.Getuid()})
	}()
	return ended
}

// wait waits for the end of a command.
func (c *console) wait(ended <-chan int, want int) {
	c.Helper()
	select {
	case got := <-ended:
		if got != want {
			c.Errorf("exit code: got %d, want %d; the terminal shows %q", got, want, c.seen)
		}
	case <-time.After(30 * time.Second):
		c.Fatalf("the command has not ended; the terminal shows %q", c.seen)
	}
}

// serveTerminal starts a daemon with one terminal.
func serveTerminal(t *testing.T, use func(conn *websocket.Conn, r *http.Request)) string {
	return serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/terminal") {
			http.NotFound(w, r)
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"glasshouse"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		use(conn, r)
	})
}

// say sends a terminal event.
func say(t *testing.T, conn *websocket.Conn, e wire.TerminalEvent) {
	t.Helper()
	data, err := json.Marshal(e)
	if err == nil {
		err = conn.Write(t.Context(), websocket.MessageText, data)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestExecOnTerminal(t *testing.T) {
	c := newConsole(t)
	c.resize(50, 20)
	code := 4
	addr := serveTerminal(t, func(conn *websocket.Conn, r *http.Request) {
		if got, want := r.URL.RequestURI(), "/jails/"+aJail+"/terminal?argv=sh&argv=-i&cols=50&cwd=%2Fw&rows=20&user=ann"; got != want {
			t.Errorf("request: got %q, want %q", got, want)
		}
		say(t, conn, wire.TerminalEvent{Exec: &wire.Exec{ID: anExec, Running: true}})
		if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("prompt> ")); err != nil {
			t.Error(err)
		}
		kind, typed, err := conn.Read(t.Context())
		if err != nil || kind != websocket.MessageBinary || string(typed) != "\x03" {
			t.Errorf("typed: got %v %q, %v, want the interrupt as a key", kind, typed, err)
		}
		// The input came through the raw terminal, so exec follows its size now.
		c.resize(60, 30)
		if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
			t.Error(err)
		}
		kind, resized, err := conn.Read(t.Context())
		if want := `{"resize":{"cols":60,"rows":30}}`; err != nil || kind != websocket.MessageText || string(resized) != want {
			t.Errorf("after a change of the size: got %v %q, %v, want %s", kind, resized, err, want)
		}
		say(t, conn, wire.TerminalEvent{Exit: &wire.Exec{ID: anExec, ExitCode: &code}})
	})
	ended := c.start(t.Context(), nil, "--addr", addr, "jail", "exec", "-t", "-u", "ann", "-w", "/w", aJail, "sh", "-i")
	c.waitFor("prompt> ")
	c.typeText("\x03")
	c.wait(ended, 4)
}

func TestTerminalFailures(t *testing.T) {
	type use = func(*websocket.Conn, *http.Request)
	started := wire.TerminalEvent{Exec: &wire.Exec{ID: anExec}}
	for name, tt := range map[string]struct {
		use  use
		want string
	}{
		"before it starts":   {func(conn *websocket.Conn, _ *http.Request) {}, "connection to the daemon lost"},
		"before its command": {func(conn *websocket.Conn, _ *http.Request) { say(t, conn, started) }, "connection to the daemon lost"},
		"without an exit code": {func(conn *websocket.Conn, _ *http.Request) {
			say(t, conn, started)
			say(t, conn, wire.TerminalEvent{Exit: &wire.Exec{}})
		}, "the exit code of the command is unknown"},
		"with what is not JSON": {func(conn *websocket.Conn, _ *http.Request) {
			conn.Write(t.Context(), websocket.MessageText, []byte("{"))
		}, "unexpected end of JSON input"},
		"with an error": {func(conn *websocket.Conn, _ *http.Request) {
			say(t, conn, started)
			say(t, conn, wire.TerminalEvent{Error: &wire.Problem{Title: "t", Detail: "the jail \x1b died"}})
			conn.Close(websocket.StatusInternalError, "")
		}, `the jail \x1b died`},
	} {
		addr := serveTerminal(t, tt.use)
		code, _, errs := runWithoutDaemon(t, nil, "--addr", addr, "jail", "terminal", aJail)
		if code != 125 || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: got exit code %d and %q, want 125 and %q", name, code, errs, tt.want)
		}
	}
	d := newScriptedDaemon(t, map[string]string{"GET /jails/" + aJail + "/terminal": `404 {"type":"/problems/not-found","title":"not found","status":404,"detail":"no nosuch in PATH","field":"argv"}`})
	for line, want := range map[string]string{
		"jail terminal " + aJail + " -- nosuch -x":       "argv=nosuch&argv=-x",
		"jail terminal --attach x-bbbbbbbbbbbb " + aJail: "exec=x-bbbbbbbbbbbb",
		"jail terminal -u ann -w /w " + aJail:            "cwd=%2Fw&user=ann",
	} {
		d.requests = nil
		code, _, errs := d.run("", argsOf(line)...)
		if got := d.asked(); code != 127 || !strings.HasSuffix(got, "?"+want) || !strings.Contains(errs, "no nosuch") {
			t.Errorf("%s: got exit code %d, %q and the request %q, want 127 and %q", line, code, errs, got, want)
		}
	}
}

func TestSecretFromTerminal(t *testing.T) {
	c := newConsole(t)
	d := newScriptedDaemon(t, map[string]string{"PUT /secrets/KEY": "204 "})
	ended := c.start(t.Context(), nil, "--addr", d.addr, "secret", "set", "KEY")
	c.waitFor("value of KEY: ")
	c.typeText("s3cr3t\n")
	c.wait(ended, 0)
	if got, want := d.asked(), `PUT /secrets/KEY {"value":"s3cr3t"}`; got != want {
		t.Errorf("request: got %q, want %q", got, want)
	}
}

func TestNewPasswordIsRepeated(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name, first, second, want string
		code                      int
	}{
		{"same", "sesame\n", "sesame\n", "keep it private", 0},
		{"another", "sesame\n", "simsim\n", "the two passwords differ", 1},
		{"empty", "\n", "", "an empty password does not protect the key", 2},
	} {
		c := newConsole(t)
		ended := c.start(t.Context(), nil, "bundle", "keygen", "--seal", "--out", filepath.Join(dir, tt.name))
		c.waitFor("password for the new key: ")
		c.typeText(tt.first)
		if tt.second != "" {
			c.waitFor("repeat the password: ")
			c.typeText(tt.second)
		}
		c.wait(ended, tt.code)
		c.waitFor(tt.want)
		if _, err := os.Stat(filepath.Join(dir, tt.name+".key")); (err == nil) != (tt.code == 0) {
			t.Errorf("%s: the key's file: got %v, want one only if it succeeds", tt.name, err)
		}
	}
}

func TestArchiveIsNotWrittenToTerminal(t *testing.T) {
	c := newConsole(t)
	d := newScriptedDaemon(t, nil)
	c.wait(c.start(t.Context(), nil, "--addr", d.addr, "snapshot", "export", aSnapshot), 2)
	c.waitFor("refusing to write binary data to a terminal")
	c.wait(c.start(t.Context(), nil, "--addr", d.addr, "snapshot", "import"), 2)
	c.waitFor("give the archive on standard input")
	if got := d.asked(); got != "" {
		t.Errorf("requests: got %q, want none", got)
	}
}

// A command that waits for an approval looks like one that hangs.
func TestExecReportsApprovalsAtTerminal(t *testing.T) {
	event := func(kind, jail, aid string) string {
		return `data: {"kind":"` + kind + `","approval":{"id":"` + aid + `","jail":"` + jail + `","title":"run ` + escapedName + `"}}` + "\n\n"
	}
	c := newConsole(t)
	d := newScriptedDaemon(t, map[string]string{
		execPath:                execStart() + openSuffix,
		"GET /approvals/events": event("asked", "j-bbbbbbbbbbbb", "a-other") + event("answered", aJail, "a-old") + event("asked", aJail, "a-ours") + openSuffix,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := c.start(ctx, nil, "--addr", d.addr, "jail", "exec", aJail, "git", "push")
	c.waitFor("glasshouse: approval required: run \\x1b[31mred\\u202e\r\n  try: glasshouse approve a-ours\r\n")
	cancel()
	c.wait(ended, 125)
	if strings.Contains(c.seen, "a-other") || strings.Contains(c.seen, "a-old") {
		t.Errorf("the terminal shows %q, want only the approval requests of this jail", c.seen)
	}
}

func TestRunOnTerminalRequestsTerminal(t *testing.T) {
	c := newConsole(t)
	var asked string
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/terminal") {
			asked = r.URL.Query().Get("argv")
		}
		if r.Method == "DELETE" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Write([]byte(`{"id":"` + aJail + `"}`))
	})
	c.wait(c.start(t.Context(), nil, "--addr", addr, "run", "--no-workspace", "top"), 125) // this daemon has no terminal
	if asked != "top" {
		t.Errorf("the terminal's command: got %q, want top", asked)
	}
}

func TestWatchReplacesOutputOnTerminal(t *testing.T) {
	c := newConsole(t)
	d := newScriptedDaemon(t, map[string]string{"GET /jails/" + aJail + "/processes": "PID  COMMAND\n1  init\n"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := c.start(ctx, nil, "--addr", d.addr, "ps", "--watch", aJail)
	c.waitFor("\x1b[H\x1b[2JPID  COMMAND\r\n1  init\r\n")
	cancel()
	c.wait(ended, 0)
	code, out, errs := d.runIn(ctx, "", "ps", "--watch", aJail)
	if code != 0 || out != "" || errs != "" {
		t.Errorf("with a context that has ended: got exit code %d, %q and %q, want 0 and nothing", code, out, errs)
	}
	delete(d.answers, "GET /jails/"+aJail+"/processes")
	if code, _, errs := d.run("", "ps", "--watch", aJail); code != 1 || !strings.Contains(errs, "nothing is there") {
		t.Errorf("of a jail that is gone: got exit code %d and %q, want 1 and why", code, errs)
	}
}

func TestPageIsCutToTerminalSize(t *testing.T) {
	c := newConsole(t)
	s := screen{Writer: c.tty, terminal: true}
	const clear = "\x1b[H\x1b[2J"
	for _, tt := range []struct {
		cols, rows uint16
		text, want string
	}{
		{0, 0, "one\ntwo\n", clear + "one\ntwo\n"},
		{80, 24, "one\ntwo\n", clear + "one\ntwo\n"},
		{80, 4, "1\n2\n3\n", clear + "1\n2\n3\n"},
		{80, 4, "1\n2\n3\n4\n", clear + "1\n2\n… 2 more\n"},
		{80, 2, "1\n2\n3\n", clear + "… 3 more\n"},
		{80, 1, "1\n2\n3\n", clear + "1\n2\n3\n"},
		{5, 24, "12345\n123456\nééééé\néééééé", clear + "12345\n1234…\nééééé\néééé…\n"},
	} {
		c.resize(tt.cols, tt.rows)
		if got := s.page(tt.text); got != tt.want {
			t.Errorf("%q on %d by %d: got %q, want %q", tt.text, tt.cols, tt.rows, got, tt.want)
		}
	}
	if got, want := (screen{Writer: c.tty}).page("one\n"), "one\n\n"; got != want {
		t.Errorf("not on a terminal: got %q, want %q", got, want)
	}
	c.tty.Close()
	if cols, rows := s.size(); cols != 0 || rows != 0 {
		t.Errorf("the size of a terminal that is gone: got %d by %d, want none", cols, rows)
	}
}

func TestColourOnlyOnTerminals(t *testing.T) {
	c := newConsole(t)
	for _, tt := range []struct {
		flag string
		env  map[string]string
		tty  bool
		want string
	}{
		{"auto", nil, true, "\x1b[31mx\x1b[0m"},
		{"auto", nil, false, "x"},
		{"auto", map[string]string{"NO_COLOR": "1"}, true, "x"},
		{"auto", map[string]string{"TERM": "dumb"}, true, "x"},
		{"always", map[string]string{"NO_COLOR": "1"}, false, "\x1b[31mx\x1b[0m"},
		{"never", nil, true, "x"},
	} {
		cmd := &command{env: Env{Stdout: &strings.Builder{}, Getenv: func(k string) string { return tt.env[k] }}}
		if tt.tty {
			cmd.env.Stdout = c.tty
		}
		s := cmd.screen(tt.flag)
		if got := s.paint(red, "x"); got != tt.want {
			t.Errorf("--color %s with %v, terminal %v: got %q, want %q", tt.flag, tt.env, tt.tty, got, tt.want)
		}
		if got := s.paint(red, ""); got != "" {
			t.Errorf("--color %s: an empty text: got %q, want it empty", tt.flag, got)
		}
	}
}

func TestREPLOnTerminal(t *testing.T) {
	state := t.TempDir()
	env := map[string]string{"XDG_STATE_HOME": state}
	c := newConsole(t)
	ended := c.start(t.Context(), env, "rtfs", "repl")
	c.waitFor("rtfs> ")
	c.typeText("(+ 40\r")
	c.waitFor("  ... ")
	c.typeText("2)\r")
	c.waitFor("42\r\n")
	c.typeText("(def somewhere 7)\r")
	c.waitFor("rtfs> ")
	c.typeText("(str somew\t\"!\")\r")
	c.waitFor("\"7!\"\r\n")
	c.typeText("(nosuch)\r")
	c.waitFor("nosuch")
	c.typeText("\x04")
	c.wait(ended, 0)
	kept, err := os.ReadFile(filepath.Join(state, "glasshouse", "rtfs-history"))
	if want := "(+ 40\n2)\n(def somewhere 7)\n(str somewhere \"!\")\n(nosuch)\n"; err != nil || string(kept) != want {
		t.Errorf("the history: got %q, %v, want %q", kept, err, want)
	}

	again := newConsole(t)
	ended = again.start(t.Context(), env, "rtfs", "repl")
	again.waitFor("rtfs> ")
	again.typeText("\x1b[A\x1b[A\r") // two lines up
	again.waitFor("somewhere is not defined")
	again.typeText("\x04")
	again.wait(ended, 0)

	// The REPL works without a writable history.
	file := filepath.Join(t.TempDir(), "file")
	(&vendor{T: t}).write(file, "")
	last := newConsole(t)
	ended = last.start(t.Context(), map[string]string{"XDG_STATE_HOME": file}, "rtfs", "repl")
	last.waitFor("line history is not saved: ")
	last.typeText("(inc 1)\r")
	last.waitFor("2\r\n")
	last.typeText("\x04")
	last.wait(ended, 0)
}
