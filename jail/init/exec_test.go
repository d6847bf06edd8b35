package jailinit_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

func TestEnvironmentIsExact(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"/usr/bin/env"}, Env: []string{"A=1", "HOME=/x", "USER=u", "B=two words", "A=2"}}
	if out, _, _ := j.run(e); out != "A=1\nHOME=/x\nUSER=u\nB=two words\nA=2\n" {
		t.Errorf("environment = %q", out)
	}
	e = protocol.Exec{ID: id.NewExec(), Argv: []string{"/usr/bin/env"}, Env: []string{"A=1"}}
	if out, _, _ := j.run(e); out != "A=1\nHOME=/root\nUSER=root\n" {
		t.Errorf("environment without HOME and USER = %q", out)
	}
}

func TestUserLookup(t *testing.T) {
	needRoot(t)
	j := start(t)
	const show = "id -u; id -g; id -G; echo $HOME $USER; echo through >/dev/stdout"
	for _, c := range []struct{ user, want string }{
		{"", "0\n0\n0\n/root root\nthrough\n"},
		{"root", "0\n0\n0\n/root root\nthrough\n"},
		{"daemon", "1\n1\n1\n/usr/sbin daemon\nthrough\n"},
		{"1", "1\n1\n1\n/usr/sbin daemon\nthrough\n"},
		{"daemon:tty", "1\n5\n5\n/usr/sbin daemon\nthrough\n"},
		{"12345:54321", "12345\n54321\n54321\n/\nthrough\n"},
		{"12345", "12345\n0\n0\n/\nthrough\n"},
	} {
		e := sh(show)
		e.User, e.Env = c.user, []string{"PATH=" + os.Getenv("PATH")}
		out, stderr, _ := j.run(e)
		if got := strings.ReplaceAll(out, " \n", "\n"); got != c.want || stderr != "" {
			t.Errorf("as %q: %q, stderr %q; want %q", c.user, got, stderr, c.want)
		}
	}
}

func TestCwdBelowHome(t *testing.T) {
	needRoot(t)
	j := start(t)
	for _, c := range []struct{ user, cwd, want string }{
		{"daemon", "~", "/usr/sbin\n"},
		{"", "~", "/root\n"},
		{"daemon", "~/../bin", "/usr/bin\n"},
		{"12345", "~", "/\n"},
	} {
		e := sh("pwd")
		e.User, e.Cwd = c.user, c.cwd
		if out, stderr, _ := j.run(e); out != c.want {
			t.Errorf("%s of %q: %q, stderr %q; want %q", c.cwd, c.user, out, stderr, c.want)
		}
	}
}

func TestStatusReturnsNote(t *testing.T) {
	j := start(t)
	e := sh("true")
	e.Note = `{"tag":"mine"}`
	_, _, status := j.run(e)
	if status.Note != e.Note {
		t.Errorf("note %q, want %q", status.Note, e.Note)
	}
}

func TestExecErrors(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(p, mode)
		return p
	}
	plain := write("plain", "hello", 0o644)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	garbage := write("garbage", "\x00\x01\x02\x03", 0o755)

	for _, c := range []struct {
		what  string
		e     protocol.Exec
		kind  fault.Kind
		field string
		text  string
	}{
		{"name not in PATH", protocol.Exec{Argv: []string{"nosuch"}}, fault.NotFound, "argv", `exec: "nosuch": not found in PATH`},
		{"missing file", protocol.Exec{Argv: []string{"/no/such"}}, fault.NotFound, "argv", `exec: "/no/such": no such file`},
		{"a file without x", protocol.Exec{Argv: []string{plain}}, fault.Invalid, "argv", "permission denied"},
		{"a file without x in PATH", protocol.Exec{Argv: []string{"plain"}, Env: []string{"PATH=" + dir}}, fault.Invalid, "argv", "permission denied"},
		{"a directory", protocol.Exec{Argv: []string{dir}}, fault.Invalid, "argv", "is a directory"},
		{"a script without interpreter", protocol.Exec{Argv: []string{orphan}}, fault.Invalid, "argv", "interpreter it names is missing"},
		{"invalid executable", protocol.Exec{Argv: []string{garbage}}, fault.Invalid, "argv", "not a program this machine can run"},
		{"too many arguments", protocol.Exec{Argv: []string{"true", strings.Repeat("x", 3<<20)}}, fault.Invalid, "argv", "too long"},
		{"no command", protocol.Exec{}, fault.Invalid, "argv", "argv is empty"},
		{"a zero byte", protocol.Exec{Argv: []string{"a\x00b"}}, fault.Invalid, "argv", "zero byte"},
		{"text that is not UTF-8", protocol.Exec{Argv: []string{"a\xff"}}, fault.Invalid, "argv", "UTF-8"},
		{"a variable without name", protocol.Exec{Argv: []string{"true"}, Env: []string{"=x"}}, fault.Invalid, "env", "KEY=VALUE"},
		{"missing directory", protocol.Exec{Argv: []string{"true"}, Cwd: "/no/such"}, fault.Invalid, "cwd", "/no/such: no such directory"},
		{"a directory that is a file", protocol.Exec{Argv: []string{"true"}, Cwd: plain}, fault.Invalid, "cwd", "not a directory"},
		{"home of another user", protocol.Exec{Argv: []string{"true"}, Cwd: "~daemon"}, fault.Invalid, "cwd", "not an absolute path"},
		{"a note too long", protocol.Exec{Argv: []string{"true"}, Note: strings.Repeat("n", protocol.MaxNote+1)}, fault.Invalid, "note", "maximum"},
		{"a relative directory", protocol.Exec{Argv: []string{"true"}, Cwd: "tmp"}, fault.Invalid, "cwd", "not an absolute path"},
		{"an unknown user", protocol.Exec{Argv: []string{"true"}, User: "nobody-here"}, fault.Invalid, "user", `"nobody-here" is not in the jail's /etc/passwd`},
		{"an unknown group", protocol.Exec{Argv: []string{"true"}, User: "root:nosuch"}, fault.Invalid, "user", `group "nosuch"`},
		{"a ring too large", protocol.Exec{Argv: []string{"true"}, Ring: 17 << 20}, fault.Invalid, "ring", "maximum"},
		{"a negative timeout", protocol.Exec{Argv: []string{"true"}, Timeout: -1}, fault.Invalid, "timeout", "negative"},
		{"invalid id", protocol.Exec{ID: "../etc", Argv: []string{"true"}}, fault.Invalid, "id", "identifier"},
	} {
		if c.e.ID == "" {
			c.e.ID = id.NewExec()
		}
		_, _, err := j.Exec(j.t.Context(), c.e, nil)
		if !errors.Is(err, c.kind) || fault.FieldOf(err) != c.field || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (field %q), want %v, field %q, %q", c.what, err, fault.FieldOf(err), c.kind, c.field, c.text)
		}
	}
	if all, err := j.Execs(j.t.Context()); err != nil || len(all) != 0 {
		t.Errorf("recorded commands = %d, %v; want 0", len(all), err)
	}
}

func TestDuplicateExecID(t *testing.T) {
	j := start(t)
	e := sh("sleep 60")
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Exec(j.t.Context(), e, nil); !errors.Is(err, fault.Conflict) {
		t.Errorf("Exec with a used id = %v, want conflict", err)
	}
	if err := j.Forget(j.t.Context(), e.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("Forget of a running command: %v, want a conflict", err)
	}
}

// A command must not inherit init's descriptors, blocked or ignored signals, session or OOM
// score.
func TestCommandStartsClean(t *testing.T) {
	j := start(t)
	out, _, _ := j.run(protocol.Exec{ID: id.NewExec(), Argv: []string{"ls", "/proc/self/fd"}})
	if want := "0\n1\n2\n3\n"; out != want { // ls opens 3
		t.Errorf("descriptors %q, want %q", out, want)
	}
	out, _, _ = j.run(protocol.Exec{ID: id.NewExec(), Argv: []string{"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}})
	if want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"; out != want {
		t.Errorf("signals %q, want %q", out, want)
	}
	out, _, status := j.run(sh(`cut -d" " -f5,6 /proc/$$/stat; umask; i=0; until read rank </proc/$$/oom_score_adj && test $rank = 500 -o $i = 400; do sleep 0.05; i=$((i+1)); done; echo $rank; readlink /proc/$$/fd/0`))
	want := strings.Repeat(itoa(status.PID)+" ", 2)[:2*len(itoa(status.PID))+1] + "\n0022\n500\n/dev/null\n"
	if out != want {
		t.Errorf("process group, session, umask, OOM rank, stdin: %q, want %q", out, want)
	}
}

func TestStdinIsWrittenAndClosed(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sh", "-c", "head -c 500000 | wc -c; wc -c"}, Stdin: true}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// A lost client leaves stdin open for the next one.
	ctx, lose := context.WithCancel(j.t.Context())
	defer lose()
	for n, ctx := range []context.Context{ctx, j.t.Context()} {
		w, err := j.Stdin(ctx, e.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 500_000)); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if ch, err := s.Next(); err != nil || string(ch.Data) != "500000\n" {
				t.Fatalf("count of the first writer = %q, %v; want 500000", ch.Data, err)
			}
			lose()
		}
		if err := w.Close(); (err != nil) != (ctx.Err() != nil) {
			t.Fatal(err)
		}
	}
	if out := j.collect(s)[protocol.Stdout]; out != "500000\n" {
		t.Errorf("count of the second writer = %q, want 500000", out)
	}
	if _, err := j.Stdin(j.t.Context(), e.ID); !errors.Is(err, fault.Conflict) {
		t.Errorf("Stdin of an ended command: %v, want a conflict", err)
	}
}

func TestStdinKeptForNextWriter(t *testing.T) {
	j := start(t)
	e := protocol.Exec{ID: id.NewExec(), Argv: []string{"cat"}, Stdin: true}
	s, _, err := j.Exec(j.t.Context(), e, &attachLossless)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, word := range []string{"one ", "two ", "three"} {
		w, err := j.Stdin(j.t.Context(), e.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, word); err != nil {
			t.Fatal(err)
		}
		end := w.(interface{ Leave() error }).Leave
		if i == 2 {
			end = w.Close
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if out := j.collect(s)[protocol.Stdout]; out != "one two three" {
		t.Errorf("output of cat = %q, want all words", out)
	}
}

func TestStdinWithoutReader(t *testing.T) {
	j := start(t)
	e := sh("exec <&-; sleep 60")
	e.Stdin = true
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	w, err := j.Stdin(j.t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); err == nil && time.Since(start) < 30*time.Second; {
		_, err = w.Write(make([]byte, 1000))
	}
	if !errors.Is(err, fault.Conflict) {
		t.Errorf("Write to a closed stdin = %v, want conflict", err)
	}
	if _, err := j.Stdin(j.t.Context(), sh("").ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Stdin of an unknown command = %v, want not found", err)
	}
}

func TestTimeoutKillsTheWholeGroupAndSession(t *testing.T) {
	j := start(t)
	// A child, a child in its own process group, and a parent that ignores SIGTERM.
	e := sh(`trap "" TERM INT; sleep 61 & set -m; sleep 62 & sleep 63`)
	e.Timeout = 200 * time.Millisecond
	began := time.Now()
	_, _, status := j.run(e)
	if !status.TimedOut || status.Signal != "KILL" || status.Code != 137 {
		t.Errorf("status %+v, want timed out, KILL, 137", status)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the timeout took %v, want less than 30 s", took)
	}
	j.wantProcesses(0)
}

func TestSignals(t *testing.T) {
	j := start(t)
	for _, c := range []struct {
		sig    string
		signal string
		code   int
	}{{"TERM", "TERM", 143}, {"SIGUSR1", "USR1", 138}, {"9", "KILL", 137}, {"kill", "KILL", 137}} {
		e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sleep", "60"}}
		if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Signal(j.t.Context(), e.ID, c.sig, false); err != nil {
			t.Errorf("Signal(%q): %v", c.sig, err)
		}
		if s, err := j.Wait(j.t.Context(), e.ID); err != nil || s.Code != c.code || s.Signal != c.signal || s.TimedOut {
			t.Errorf("after %s: %+v, %v; want code %d by %s", c.sig, s, err, c.code, c.signal)
		}
		if err := j.Signal(j.t.Context(), e.ID, "TERM", false); !errors.Is(err, fault.Conflict) {
			t.Errorf("Signal after the end = %v, want conflict", err)
		}
		for _, bad := range []string{"", "NOPE", "0", "65", "-1"} {
			if err := j.Signal(j.t.Context(), e.ID, bad, false); !errors.Is(err, fault.Invalid) {
				t.Errorf("Signal(%q): %v, want invalid", bad, err)
			}
		}
	}
	e := sh("sleep 60 & sleep 60 & wait")
	if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	j.wantProcesses(3)
	if err := j.Signal(j.t.Context(), e.ID, "KILL", true); err != nil {
		t.Fatal(err)
	}
	j.wantProcesses(0)
}

func TestTerminateSignalsAllProcesses(t *testing.T) {
	j := start(t)
	for range 3 {
		if _, _, err := j.Exec(j.t.Context(), sh("setsid sleep 60 & trap '' TERM; sleep 60 & wait"), nil); err != nil {
			t.Fatal(err)
		}
	}
	j.wantProcesses(9)
	if left, err := j.Terminate(j.t.Context(), "0"); err != nil || left != 9 {
		t.Errorf("Terminate(0) = %d, %v; want 9", left, err)
	}
	if _, err := j.Terminate(j.t.Context(), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	j.wantProcesses(0)
}

// wantProcesses waits until the jail has that number of processes.
func (j *jail) wantProcesses(want int) {
	j.t.Helper()
	left := -1
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		left, err = j.Terminate(j.t.Context(), "0")
		if err != nil {
			j.t.Fatal(err)
		}
		if left == want {
			return
		}
	}
	j.t.Errorf("processes in the jail = %d, want %d", left, want)
}

func TestOrphansAreReaped(t *testing.T) {
	j := start(t)
	// Init adopts grandchildren whose parents end first.
	j.run(sh(`for i in 1 2 3 4 5 6 7 8; do (sleep 0.0$i & ) ; done`))
	j.wantProcesses(0)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(children(t, j.cmd.Process.Pid)) == 0 {
			return
		}
	}
	t.Errorf("children of init = %v, want none", children(t, j.cmd.Process.Pid))
}

func TestBackgroundProcessDoesNotDelayEnd(t *testing.T) {
	j := start(t)
	dir := t.TempDir()
	began := time.Now()
	// The background process writes without pause to pipes that no client reads. SIGPIPE would
	// end it if they were closed.
	out, _, status := j.run(sh(`setsid sh -c 'i=0; while [ $i -lt 150 ]; do i=$((i+1)); sleep 0.3; echo $i; done; touch ` + dir + `/lived' & echo started`))
	if took := time.Since(began); took > 30*time.Second || status.Ended == nil || status.Code != 0 {
		t.Errorf("ended after %v with %+v, want code 0 in less than 30 s", took, status)
	}
	if !strings.HasPrefix(out, "started\n") {
		t.Errorf("output = %q, want started first", out)
	}
	j.wantProcesses(2)
	time.Sleep(time.Second)
	j.wantProcesses(2)
}

func TestBackgroundProcessWithEndlessOutput(t *testing.T) {
	j := start(t)
	began := time.Now()
	_, _, status := j.run(sh(`yes & sleep 0.1; exit 3`))
	if took := time.Since(began); took > 30*time.Second || status.Code != 3 {
		t.Errorf("ended after %v with %+v, want code 3 in about 2 s", took, status)
	}
	j.wantProcesses(1)
}

func TestForgetFinishedCommands(t *testing.T) {
	j := start(t)
	var first, last protocol.ExecStatus
	for i := range protocol.MaxFinished + 6 {
		_, _, s := j.run(sh("echo hi"))
		if i == 0 {
			first = s
		}
		last = s
	}
	all, err := j.Execs(j.t.Context())
	if err != nil || len(all) != protocol.MaxFinished {
		t.Fatalf("recorded commands = %d, %v; want %d", len(all), err, protocol.MaxFinished)
	}
	if all[len(all)-1].ID != last.ID {
		t.Errorf("newest command = %s, want %s", all[len(all)-1].ID, last.ID)
	}
	if _, err := j.ExecStatus(j.t.Context(), first.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("ExecStatus of the oldest command = %v, want not found", err)
	}
	if err := j.Forget(j.t.Context(), last.ID); err != nil {
		t.Error(err)
	}
	if _, err := j.Attach(j.t.Context(), last.ID, attachLossless); !errors.Is(err, fault.NotFound) {
		t.Errorf("Attach after Forget: %v, want not found", err)
	}
}

func TestFinishedOutputIsBounded(t *testing.T) {
	j := start(t)
	for range 5 {
		e := sh("head -c 6000000 /dev/zero")
		e.Ring = 8 << 20
		j.run(e)
	}
	all, err := j.Execs(j.t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("recorded commands with 6 MB of output each = %d, %v; want 2", len(all), err)
	}
}
