package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/event"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// A testEnv runs commands against a real API server with fake jails and events.
type testEnv struct {
	t     *testing.T
	addr  string
	jails *apitest.Jails
	kept  *apitest.Snapshots
	seen  *apitest.Watched
	chain *chain.Chain
	jail  id.Jail
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	return newTestEnvWith(t, apitest.New())
}

func newTestEnvWith(t *testing.T, jails *apitest.Jails) *testEnv {
	t.Helper()
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := chain.Open(t.Context(), chain.Config{Store: st.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	d := &testEnv{t: t, jails: jails, kept: apitest.Snapshot(jails), seen: apitest.Watch(t, jails), chain: c}
	server := api.New(api.Options{
		Jails: jails, Snapshots: d.kept, Observed: d.seen, Chain: c, Tokens: &access.Tokens{Store: st.Tokens()}, IdempotencyStore: st.Replays(), Log: slog.New(slog.DiscardHandler),
	})
	dir, err := os.MkdirTemp("", "cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l, true) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		server.Shutdown(ctx)
		wg.Wait()
	})
	d.addr = "unix://" + l.Addr().String()
	j, err := jails.Create(t.Context(), jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	d.jail = j.ID
	return d
}

// run runs a command line, in which JAIL stands for the jail's id.
func (d *testEnv) run(line string) (code int, stdout, stderr string) {
	d.t.Helper()
	return d.runArgs(strings.Fields(line)...)
}

// runArgs is like run, but with arguments that may contain spaces.
func (d *testEnv) runArgs(words ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	var out, errs bytes.Buffer
	args := []string{"--addr", d.addr}
	for _, w := range words {
		args = append(args, strings.ReplaceAll(w, "JAIL", string(d.jail)))
	}
	code = Run(d.t.Context(), args, Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, UID: os.Getuid()})
	return code, out.String(), errs.String()
}

// wantOutput fails the test unless a command line succeeds and prints all of want.
func (d *testEnv) wantOutput(line string, want ...string) string {
	d.t.Helper()
	code, out, errs := d.run(line)
	if code != 0 {
		d.t.Fatalf("%s: exit code %d, %s", line, code, errs)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			d.t.Errorf("%s: no %q in\n%s", line, w, out)
		}
	}
	return out
}

func (d *testEnv) appendEvents(es ...event.Event) {
	d.t.Helper()
	for i := range es {
		es[i].TS = time.Now().UnixMilli()
	}
	d.seen.Append(d.jail, es...)
}

func TestObservationCommands(t *testing.T) {
	d := newTestEnv(t)
	d.appendEvents(
		event.Event{Type: event.Proc, NS: 10, Begin: 10, PID: 1, TID: 1, Comm: "init", Op: event.OpExec, Exe: "/init", Argv: []string{"/init"}},
		event.Event{Type: event.Proc, NS: 20, Begin: 20, PID: 2, TID: 2, PPID: 1, Comm: "sh", Op: event.OpExec, Exe: "/bin/sh", Argv: []string{"sh", "\x1b]0;x\a"}},
		event.Event{Type: event.Syscall, NS: 30, PID: 2, TID: 2, Comm: "sh", Name: "openat", Path: "/etc/shadow", Ret: -13, Dur: 1000},
		event.Event{Type: event.Net, NS: 40, PID: 2, TID: 2, Comm: "sh", Dir: event.Egress, Proto: "tcp", Src: "10.0.0.2:1", Dst: "1.1.1.1:443", Host: "one.one", Bytes: 60, TCP: "SYN"},
		event.Event{Type: event.Proc, NS: 50, Begin: 20, PID: 2, TID: 2, PPID: 1, Comm: "sh", Op: event.OpExit, Signal: "SIGKILL"},
	)
	if out := d.wantOutput("events JAIL", "openat(", `"/etc/shadow"`, "EACCES", "one.one", "by SIGKILL"); strings.Count(out, "\n") != 5 || strings.Contains(out, "\x1b") {
		t.Errorf("output for five events:\n%q", out)
	}
	if out := d.wantOutput("events JAIL type:syscall,net ret:<0 --since 1h"); strings.Count(out, "\n") != 1 {
		t.Errorf("output for one failed call:\n%s", out)
	}
	if out := d.wantOutput("events JAIL --tail 1 --colour always", "\x1b[36mexit"); strings.Count(out, "\n") != 1 {
		t.Errorf("the last event is\n%s", out)
	}
	for line := range strings.Lines(d.wantOutput("events JAIL --json")) {
		var e event.Event
		if err := event.Parse([]byte(strings.TrimSuffix(line, "\n")), &e); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	d.wantOutput("ps JAIL", "/init")
	if out := d.wantOutput("ps JAIL --all", `\_ sh`, "SIGKILL"); strings.Contains(out, "\x1b") {
		t.Errorf("control characters of an argument are not escaped: %q", out)
	}
	if out := d.wantOutput("ps JAIL --at 2"); !strings.Contains(out, `\_ sh`) || strings.Contains(out, "SIGKILL") {
		t.Errorf("state at the second event:\n%s", out)
	}
	d.wantOutput("ps JAIL --json", `"begin_ns": 10`)
	d.wantOutput("net JAIL", "one.one", "unanswered")
	d.wantOutput("net JAIL --packets", "10.0.0.2:1 -> 1.1.1.1:443 (one.one) 60 bytes SYN")
	d.wantOutput("net JAIL --json", `"remote": "1.1.1.1:443"`)
	d.wantOutput("net JAIL --hosts", "one.one", "60 B", "sh (2)")
	if out := d.wantOutput("syscalls JAIL type:syscall --processes 3", "openat", "all", "of sh (2)", "errors: EACCES 1"); strings.Contains(out, "\x1b") {
		t.Errorf("calls: %q", out)
	}
	if out := d.wantOutput("at JAIL 2", "snapshot  none before", `\_ sh`, "No files had changed."); strings.Contains(out, "\x1b") {
		t.Errorf("past state: %q", out)
	}
	d.wantOutput("at JAIL --json", `"processes": {`, `"recorded": true`)
	d.wantOutput("report JAIL", "# ")
	d.wantOutput("jail show JAIL", "events", "5 stored", "7 seen, 0 lost, slowed the jail 1 times")

	page := filepath.Join(t.TempDir(), "report.html")
	d.wantOutput("report JAIL --html -o " + page)
	if data, err := os.ReadFile(page); err != nil || !bytes.Contains(data, []byte("<html")) {
		t.Errorf("the page is %.100q, %v", data, err)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(d.wantOutput("report JAIL --json")), &report); err != nil || report["completeness"] == nil {
		t.Errorf("the report as JSON: %v", err)
	}
}

func TestFollowEventsToEnd(t *testing.T) {
	d := newTestEnv(t)
	d.appendEvents(event.Event{Type: event.File, PID: 1, Comm: "sh", Op: event.OpDelete, Path: "/one", FD: -1})
	var out, errs bytes.Buffer
	// The jail is deleted after the command has started to follow it. If the log were closed
	// before, the command would wait for more events.
	following := sync.OnceFunc(func() {
		d.appendEvents(event.Event{Type: event.File, PID: 1, Comm: "sh", Op: event.OpDelete, Path: "/two", FD: -1})
		d.seen.Close(d.jail)
	})
	printed := writerFunc(func(p []byte) (int, error) {
		defer following()
		return out.Write(p)
	})
	code := Run(t.Context(), []string{"--addr", d.addr, "events", string(d.jail), "-f"},
		Env{Stdout: printed, Stderr: &errs, Getenv: func(string) string { return "" }, UID: os.Getuid()})
	if code != 0 {
		t.Fatalf("events -f: exit code %d, %s; want 0", code, &errs)
	}
	for _, want := range []string{`delete "/one"`, `delete "/two"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("events -f: no %q in\n%s", want, &out)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("events -f printed %d lines, want 2:\n%s", n, &out)
	}
}

// A writerFunc is a function as an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestWatchUsageErrors(t *testing.T) {
	d := newTestEnv(t)
	for line, want := range map[string]string{
		"events JAIL --since yesterday": "--since", "events JAIL colour:red": "colour", "events j-aaaaaaaaaaaa": "no such jail", "events JAIL --color pink": "--color",
		"ps JAIL --at noon": "at", "ps JAIL --at 5m --watch": "--watch", "net JAIL --pcap x --follow": "--pcap", "net JAIL --hosts --packets": "--hosts", "at JAIL noon": "instant", "syscalls JAIL colour:red": "colour", "report JAIL --html --md": "exclude",
		"jail create --observe colour=red": "--observe",
	} {
		if code, out, errs := d.run(line); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s%s; want an error with %q", line, code, out, errs, want)
		}
	}
	file := filepath.Join(t.TempDir(), "out.pcapng")
	if code, _, errs := d.run("net JAIL --pcap " + file); code == 0 || !strings.Contains(errs, "packet_bytes") {
		t.Errorf("without packets: exit code %d, %s; want a remedy", code, errs)
	}
	if left, _ := filepath.Glob(file + "*"); len(left) != 0 {
		t.Errorf("files left: %v", left)
	}
}

func TestDiffOutput(t *testing.T) {
	d := newTestEnv(t)
	d.jails.Diff = []jail.Change{
		{Path: "/etc/motd", Kind: "modified", Type: "file", What: []string{"content"}, Diff: "--- a/etc/motd\n+++ b/etc/motd\n@@ -1 +1 @@\n-old\n+\tnew \x1b[2J\n"},
		{Path: "/new", Kind: "renamed", Type: "file", From: "/old\x1b"},
		{Path: "/opt", Kind: "metadata", Type: "dir", What: []string{"mode", "owner"}},
	}
	d.wantOutput("diff JAIL", "modified  file     /etc/motd\n", `renamed   file     /old\x1b -> /new`, "metadata  dir      /opt  (mode, owner)")
	d.wantOutput("diff JAIL --unified", "@@ -1 +1 @@\n-old\n+\tnew \x1b[2J\n", "# renamed") // in the format of patch, unchanged
	d.wantOutput("diff JAIL --unified --colour always", "\x1b[31m-old\x1b[0m\n", "\x1b[32m+\tnew \\x1b[2J\x1b[0m\n")
	d.wantOutput("diff JAIL --json", `"from": "/old\u001b"`, `"what": [`)
}
