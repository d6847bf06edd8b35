package jailinit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// A terminal is a shell on a terminal with scripted input.
type terminal struct {
	*jail
	x      id.Exec
	stream *control.Stream
	screen string
}

func (j *jail) terminal(argv ...string) *terminal {
	j.t.Helper()
	e := protocol.Exec{ID: id.NewExec(), Argv: argv, PTY: &protocol.Size{Cols: 80, Rows: 24},
		Env: []string{"PATH=/usr/bin:/bin", "PS1=$ ", "TERM=dumb", "HOME=/"}}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { s.Close() })
	return &terminal{jail: j, x: e.ID, stream: s}
}

func (tt *terminal) typeIn(keys string) {
	tt.t.Helper()
	w, err := tt.Stdin(tt.t.Context(), tt.x)
	if err != nil {
		tt.t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Write([]byte(keys)); err != nil {
		tt.t.Fatal(err)
	}
}

// see waits until text is on the screen, and removes the output up to it.
func (tt *terminal) see(text string) {
	tt.t.Helper()
	for {
		if _, after, ok := strings.Cut(tt.screen, text); ok {
			tt.screen = after
			return
		}
		c, err := tt.stream.Next()
		if err != nil {
			tt.t.Fatalf("%v while waiting for %q; on the screen: %q", err, text, tt.screen)
		}
		tt.screen += string(c.Data)
	}
}

func TestTerminal(t *testing.T) {
	j := start(t)
	tt := j.terminal("sh", "-i")
	tt.typeIn("tty; stty size; echo to stderr >&2\n")
	tt.see("/dev/pts/")
	tt.see("24 80")
	tt.see("to stderr")

	if err := j.Resize(j.t.Context(), tt.x, protocol.Size{Cols: 132, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	tt.typeIn("stty size\n")
	tt.see("50 132")

	// ^C signals the foreground command and not the shell.
	tt.typeIn("sh -c 'echo run\"\"ning; exec sleep 60'\n")
	tt.see("running")
	tt.typeIn("\x03")
	j.wantProcesses(1)
	tt.typeIn("echo still $((40+2))\n")
	tt.see("still 42")

	// So does a signal to the group.
	tt.typeIn("sh -c 'echo run\"\"ning; exec sleep 60'\n")
	tt.see("running")
	if err := j.Signal(j.t.Context(), tt.x, "INT", true); err != nil {
		t.Fatal(err)
	}
	j.wantProcesses(1)

	// A second reader sees the same screen, and the end of the shell ends both.
	other, err := j.Attach(j.t.Context(), tt.x, control.AttachOptions{From: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tt.typeIn("exit 5\n")
	out := j.collect(other)
	if !strings.Contains(out[protocol.Stdout], "still 42") || out[protocol.Stderr] != "" {
		t.Errorf("output of the other reader = %q", out)
	}
	if s := other.Status(); s.Code != 5 || !s.PTY {
		t.Errorf("status %+v, want code 5 on a terminal", s)
	}
	if err := j.Resize(j.t.Context(), tt.x, protocol.Size{Cols: 1, Rows: 1}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Resize after the end: %v, want conflict", err)
	}
}

func TestTerminalEndOfInput(t *testing.T) {
	j := start(t)
	tt := j.terminal("cat")
	tt.typeIn("hello\n") // then Stdin is closed
	tt.see("hello")
	tt.typeIn("again\n")
	tt.see("again")
	tt.typeIn("\x04")
	for {
		if _, err := tt.stream.Next(); err != nil {
			break
		}
	}
	if s := tt.stream.Status(); s.Ended == nil || s.Code != 0 {
		t.Errorf("status %+v, want ended by ^D", s)
	}
}

func TestTerminalOwner(t *testing.T) {
	needRoot(t)
	j := start(t)
	e := sh(`stat -c %U $(tty) && echo written > $(tty)`)
	e.User, e.PTY = "daemon", &protocol.Size{Cols: 80, Rows: 24}
	if out, _, status := j.run(e); out != "daemon\r\nwritten\r\n" || status.Code != 0 {
		t.Errorf("output = %q, code %d", out, status.Code)
	}
}

func TestTerminalHangup(t *testing.T) {
	j := start(t)
	e := sh("trap '' HUP; sleep 60 & exit 0")
	e.PTY = &protocol.Size{Cols: 80, Rows: 24}
	began := time.Now()
	if _, _, status := j.run(e); status.Ended == nil || time.Since(began) > 30*time.Second {
		t.Errorf("status %+v after %v", status, time.Since(began))
	}
}

func TestResizeWithoutTerminal(t *testing.T) {
	j := start(t)
	e := sh("sleep 60")
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	if err := j.Resize(j.t.Context(), e.ID, protocol.Size{Cols: 1, Rows: 1}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Resize: %v, want conflict", err)
	}
	if _, err := j.Stdin(j.t.Context(), e.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("Stdin: %v, want conflict", err)
	}
}
