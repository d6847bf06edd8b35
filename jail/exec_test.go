package jail_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

func TestExecValidatesRequest(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	for _, c := range []struct {
		r     jail.ExecRequest
		field string
	}{
		{jail.ExecRequest{}, "argv"},
		{jail.ExecRequest{Argv: []string{"ls"}, Cmd: "ls"}, "cmd"},
		{jail.ExecRequest{Cmd: "ls", ID: "x-../../etc"}, "id"},
		{jail.ExecRequest{Cmd: "ls", ID: id.Exec(id.NewJail())}, "id"},
		{jail.ExecRequest{Cmd: "ls", Timeout: -1}, "timeout_ms"},
		{jail.ExecRequest{Cmd: "ls", Ring: -1}, "ring"},
		{jail.ExecRequest{Cmd: "ls", Ring: 16<<20 + 1}, "ring"},
		{jail.ExecRequest{Cmd: "ls", Note: strings.Repeat("n", protocol.MaxNote+1)}, "note"},
		{jail.ExecRequest{Argv: []string{"ls", "a\x00b"}}, "argv"},
		{jail.ExecRequest{Cmd: "ls", Cwd: "/\x00"}, "argv"},
		{jail.ExecRequest{Cmd: "ls", User: "root\x00"}, "argv"},
	} {
		_, _, err := m.Exec(t.Context(), j.ID, c.r, nil)
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != c.field {
			t.Errorf("Exec(%.80q) = %v, want invalid %s", c.r.Argv, err, c.field)
		}
	}
	if got, err := m.Execs(t.Context(), j.ID); err != nil || len(got) != 0 {
		t.Errorf("Execs = %v, %v; want none", got, err)
	}
}

func TestExecUsesJailDefaults(t *testing.T) {
	project := t.TempDir()
	for _, c := range []struct {
		name string
		spec jail.Spec
		r    jail.ExecRequest
		want string
	}{
		{"default", jail.Spec{}, jail.ExecRequest{Cmd: "pwd"}, "/"},
		{"of the jail", jail.Spec{Cwd: "/usr"}, jail.ExecRequest{Cmd: "pwd"}, "/usr"},
		{"of the workspace", jail.Spec{Trusted: true, Workspace: &jail.Workspace{Source: project}}, jail.ExecRequest{Cmd: "pwd"}, project},
		{"of the jail before the workspace", jail.Spec{Cwd: "/usr", Trusted: true, Workspace: &jail.Workspace{Source: project}}, jail.ExecRequest{Cmd: "pwd"}, "/usr"},
		{"of the command", jail.Spec{Cwd: "/usr"}, jail.ExecRequest{Cmd: "pwd", Cwd: "/tmp"}, "/tmp"},
		{"environment", jail.Spec{Env: map[string]string{"A": "jail", "B": "jail", "FROM_IMAGE": ""}},
			jail.ExecRequest{Cmd: `echo "$A $B $FROM_IMAGE $LANG ${TERM-none}"`, Env: map[string]string{"B": "exec"}}, "jail exec  C.UTF-8 none"},
		{"no shell", jail.Spec{}, jail.ExecRequest{Argv: []string{"echo", "$HOME", "*"}}, "$HOME *"},
		{"terminal", jail.Spec{}, jail.ExecRequest{Cmd: `echo $TERM`, PTY: &protocol.Size{Cols: 80, Rows: 24}}, "xterm-256color"},
		{"terminal that is known", jail.Spec{Env: map[string]string{"TERM": "dumb"}}, jail.ExecRequest{Cmd: `echo $TERM`, PTY: &protocol.Size{Cols: 80, Rows: 24}}, "dumb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t)
			m := h.manager()
			c.spec.Start = true
			j, err := m.Create(t.Context(), c.spec)
			if err != nil {
				t.Fatal(err)
			}
			s, _, err := m.Exec(t.Context(), j.ID, c.r, &control.AttachOptions{From: -1, Lossless: true, Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if got := strings.TrimSpace(readAll(t, s)); got != c.want {
				t.Errorf("output = %q, want %q", got, c.want)
			}
		})
	}
}

func readAll(t *testing.T, s *control.Stream) string {
	t.Helper()
	var out strings.Builder
	for {
		ch, err := s.Next()
		if err == io.EOF {
			return out.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(ch.Data)
	}
}

// initOps are the operations that a jail's init answers.
var initOps = map[string]func(*jail.Manager, context.Context, id.Jail) error{
	"Exec": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, _, err := m.Exec(ctx, j, jail.ExecRequest{Cmd: "true"}, nil)
		return err
	},
	"Attach": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, err := m.Attach(ctx, j, id.NewExec(), control.AttachOptions{})
		return err
	},
	"Signal": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		return m.Signal(ctx, j, id.NewExec(), "TERM")
	},
	"Resize": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		return m.Resize(ctx, j, id.NewExec(), protocol.Size{Cols: 1, Rows: 1})
	},
	"Stdin": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, err := m.Stdin(ctx, j, id.NewExec())
		return err
	},
	"Dial": func(m *jail.Manager, ctx context.Context, j id.Jail) error { _, err := m.Dial(ctx, j, 1); return err },
	"Watch": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, err := m.Watch(ctx, j, "/", false)
		return err
	},
	"Listen": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, err := m.Listen(ctx, j, "/run/x.sock")
		return err
	},
	"ListenTCP": func(m *jail.Manager, ctx context.Context, j id.Jail) error {
		_, err := m.ListenTCP(ctx, j, 1)
		return err
	},
	"StopProcess": func(m *jail.Manager, _ context.Context, j id.Jail) error {
		_, err := m.StopProcess(j, os.Getpid())
		return err
	},
}

func TestOperationsOnNonRunningJailNameRemedy(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	created, err := m.Create(t.Context(), jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	paused, stopped := h.running(m), h.running(m)
	if _, err := m.Pause(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(t.Context(), stopped.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, talk := range initOps {
		for _, c := range []struct {
			jid    id.Jail
			kind   fault.Kind
			remedy string
		}{
			{created.ID, fault.Conflict, "start it first"},
			{stopped.ID, fault.Conflict, "start it first"},
			{paused.ID, fault.Conflict, "resume the jail first"},
			{"j-none", fault.NotFound, ""},
		} {
			if err := talk(m, t.Context(), c.jid); !errors.Is(err, c.kind) || fault.RemedyOf(err) != c.remedy {
				t.Errorf("%s of %s = %v (%s), want %s (%s)", name, c.jid, err, fault.RemedyOf(err), c.kind, c.remedy)
			}
		}
	}
}

// A caller whose context is cancelled does not wait for init.
func TestCancelledCallerDoesNotWaitForInit(t *testing.T) {
	h := newHarness(t)
	m, _ := h.scripted()
	j := h.running(m)
	for name, talk := range initOps {
		if name == "StopProcess" { // does not use init
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := talk(m, ctx, j.ID); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context = %v, want %v", name, err, context.Canceled)
		}
	}
	if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
		t.Errorf("output = %q, want fine", got)
	}
}

func TestAttachResizeStdinAndSignal(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	ctx := t.Context()
	x := id.NewExec()
	if _, st, err := m.Exec(ctx, j.ID, jail.ExecRequest{ID: x, Cmd: "stty size; cat; stty size", PTY: &protocol.Size{Cols: 80, Rows: 24}, Note: "mine"}, nil); err != nil || st.ID != x || st.Note != "mine" {
		t.Fatalf("Exec = %s with note %q, %v; want %s with mine", st.ID, st.Note, err, x)
	}
	s, err := m.Attach(ctx, j.ID, x, control.AttachOptions{From: 0, Follow: true, Lossless: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if ch, err := s.Next(); err != nil || !strings.Contains(string(ch.Data), "24 80") {
		t.Fatalf("terminal size = %q, %v; want 24 80", ch.Data, err)
	}
	if err := m.Resize(ctx, j.ID, x, protocol.Size{Cols: 100, Rows: 50}); err != nil {
		t.Error(err)
	}
	in, err := m.Stdin(ctx, j.ID, x)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "\x04"); err != nil { // ^D: end of file
		t.Fatal(err)
	}
	if got := readAll(t, s); !strings.Contains(got, "50 100") {
		t.Errorf("terminal size after Resize = %q, want 50 100", got)
	}
	in.Close()

	_, st, err := m.Exec(ctx, j.ID, jail.ExecRequest{Cmd: "while :; do sleep 1; done"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Signal(ctx, j.ID, st.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	dead, err := m.Attach(ctx, j.ID, st.ID, control.AttachOptions{From: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	readAll(t, dead)
	if got, err := m.ExecStatus(ctx, j.ID, st.ID); err != nil || got.Signal != "KILL" || got.Code != 137 || got.Ended == nil {
		t.Errorf("exit code %d, signal %q, %v; want 137 and KILL", got.Code, got.Signal, err)
	}
}

// The commands of a stopped jail are in files that a crash can truncate.
func TestCorruptExecArchive(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	ctx := t.Context()
	if got := h.sh(m, j.ID, "echo one; echo two >&2"); !strings.Contains(got, "one") {
		t.Fatal(got)
	}
	if _, err := m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := m.Execs(ctx, j.ID)
	if err != nil || len(all) != 1 {
		t.Fatalf("Execs = %v, %v; want one", all, err)
	}
	x := all[0].ID
	if st, err := m.ExecStatus(ctx, j.ID, x); err != nil || st.Stdout != 4 || st.Stderr != 4 {
		t.Errorf("stdout %d bytes, stderr %d bytes, %v; want 4 and 4", st.Stdout, st.Stderr, err)
	}
	if _, err := m.Output(ctx, j.ID, x, func(protocol.Chunk) error { return errScripted }); !errors.Is(err, errScripted) {
		t.Errorf("Output with a failing callback = %v, want its error", err)
	}
	for _, none := range []id.Exec{id.NewExec(), "", "x-../../jail", id.Exec(j.ID)} {
		if _, err := m.ExecStatus(ctx, j.ID, none); !errors.Is(err, fault.NotFound) {
			t.Errorf("ExecStatus(%q) = %v, want not found", none, err)
		}
		if _, err := m.Output(ctx, j.ID, none, func(protocol.Chunk) error { return nil }); !errors.Is(err, fault.NotFound) {
			t.Errorf("Output(%q) = %v, want not found", none, err)
		}
	}
	file := filepath.Join(h.dir, "jails", string(j.ID), "execs", string(x)+".json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", fi.Mode(), err)
	}
	if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ExecStatus(ctx, j.ID, x); err == nil {
		t.Error("ExecStatus with a truncated file = nil, want an error")
	}
	if _, err := m.Execs(ctx, j.ID); err == nil {
		t.Error("Execs with a truncated file = nil, want an error")
	}
}

// A command that runs when its jail is stopped was killed. It has not ended with exit code 0.
func TestStopKillsRunningCommand(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	ctx := t.Context()
	s, st, err := m.Exec(ctx, j.ID, jail.ExecRequest{Cmd: "echo here; sleep 600"}, &control.AttachOptions{From: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now().Add(-time.Second)
	if _, err := m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	// Init reports the end of the command if it has time for it.
	if _, err := s.Next(); err == nil || errors.Is(err, io.EOF) && s.Status().Code != 137 {
		t.Errorf("Next after the stop = %v with exit code %d, want an error or an end with 137", err, s.Status().Code)
	}
	var out strings.Builder
	got, err := m.Output(ctx, j.ID, st.ID, func(ch protocol.Chunk) error { out.Write(ch.Data); return nil })
	if err != nil || out.String() != "here\n" {
		t.Errorf("Output = %q, %v; want here", out.String(), err)
	}
	again, err := m.ExecStatus(ctx, j.ID, st.ID)
	if err != nil || !reflect.DeepEqual(got, again) {
		t.Errorf("ExecStatus = %+v, %v; want %+v", again, err, got)
	}
	if got.Code != 137 || got.Signal != "KILL" || got.Ended == nil || got.Ended.Before(begun) {
		t.Errorf("status = %+v, want an end by KILL", got)
	}
}

// A repeated request is executed if the first one did not arrive, but not after the jail was started
// again: then the command may have been executed.
func TestRepeatedExecAfterRestart(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	ctx := t.Context()
	init, err := m.InitStarted(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	repeated := jail.ExecRequest{ID: id.NewExec(), Cmd: "true", Init: init}
	if _, _, err := m.Exec(ctx, j.ID, repeated, nil); err != nil {
		t.Errorf("Exec in the same init = %v, want nil", err)
	}
	if _, err := m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.InitStarted(ctx, j.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("InitStarted of a stopped jail = %v, want fault.Conflict", err)
	}
	if _, err := m.Start(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	_, _, err = m.Exec(ctx, j.ID, repeated, nil)
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "unknown") || fault.RemedyOf(err) == "" {
		t.Errorf("Exec after a restart of the jail = %v, want fault.Unavailable", err)
	}
	if all, err := m.Execs(ctx, j.ID); err != nil || len(all) != 0 {
		t.Errorf("commands after the refusal: %v, %v; want none", all, err)
	}
}

func TestOutputOfRunningCommandDoesNotBlock(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	s, st, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: "echo here; sleep 600"}, &control.AttachOptions{From: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	got, err := m.Output(t.Context(), j.ID, st.ID, func(ch protocol.Chunk) error { out.Write(ch.Data); return nil })
	if err != nil || out.String() != "here\n" || got.Ended != nil {
		t.Errorf("Output = %q, ended %v, %v; want here of a running command", out.String(), got.Ended, err)
	}
	if _, err := m.Output(t.Context(), j.ID, st.ID, func(protocol.Chunk) error { return errScripted }); !errors.Is(err, errScripted) {
		t.Errorf("Output with a failing callback = %v, want its error", err)
	}
	if _, err := m.Output(t.Context(), "j-none", st.ID, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("Output of an unknown jail = %v, want not found", err)
	}
}

// A stopped process does not run until it is released or killed.
func TestHold(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	s, st, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Argv: []string{"cat"}, Stdin: true}, &control.AttachOptions{From: 0, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pid := st.PID // there is no pid namespace
	stopped, err := m.StopProcess(j.ID, pid)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Release()
	if got := processState(t, pid); got != "t" {
		t.Errorf("state of the stopped process = %s, want t", got)
	}
	if _, err := m.StopProcess(j.ID, pid); !errors.Is(err, fault.Unavailable) {
		t.Errorf("second StopProcess = %v, want unavailable", err)
	}
	stopped.Release()
	stopped.Release()
	if got := processState(t, pid); got == "t" {
		t.Errorf("state of the released process = %s, want not t", got)
	}
	in, err := m.Stdin(t.Context(), j.ID, st.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "on"); err != nil {
		t.Fatal(err)
	}
	if ch, err := s.Next(); err != nil || string(ch.Data) != "on" {
		t.Errorf("output after Release = %q, %v; want on", ch.Data, err)
	}

	stopped, err = m.StopProcess(j.ID, pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Signal(t.Context(), j.ID, st.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	stopped.Release()
	if _, err := m.StopProcess(j.ID, pid); !errors.Is(err, fault.Unavailable) {
		t.Errorf("StopProcess of a process that ended = %v, want unavailable", err)
	}
	(*jail.StoppedProcess)(nil).Release()
}

// processState returns the state letter of a process (proc_pid_stat(5)).
func processState(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest[:1]
}

func TestStopValidatesGrace(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	j := h.running(m)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{Grace: -time.Second}); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "grace_ms" {
		t.Errorf("Stop with a negative grace = %v, want invalid grace_ms", err)
	}
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{Grace: jail.MaxGrace + 1}); !errors.Is(err, fault.Invalid) {
		t.Errorf("Stop with a grace above MaxGrace = %v, want invalid", err)
	}
	if got, err := m.Get(t.Context(), j.ID); err != nil || got.State != jail.Running {
		t.Errorf("state = %s, %v; want running", got.State, err)
	}
}
