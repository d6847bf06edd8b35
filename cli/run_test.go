package cli

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// sse formats a server-sent event.
func sse(name string, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return "event: " + name + "\ndata: " + string(data) + "\n\n"
}

const anExec = id.Exec("x-aaaaaaaaaaaa")

// execStart returns the start of a command's stream with its output: the texts after "stdout:" or
// "stderr:".
func execStart(writes ...string) string {
	s := sse(wire.EventStart, wire.Exec{ID: anExec, Argv: []string{"ls"}, Running: true})
	for _, w := range writes {
		stream, text, _ := strings.Cut(w, ":")
		s += sse(wire.EventOutput, wire.Output{Stream: stream, Data: []byte(text)})
	}
	return s
}

// execExit returns the end of a command's stream.
func execExit(code int) string { return sse(wire.EventExit, wire.Exec{ID: anExec, ExitCode: &code}) }

const execPath = "POST /jails/" + aJail + "/exec"

func TestExecForwardsOutputAndExitCode(t *testing.T) {
	type m = map[string]string
	for _, c := range []struct {
		name      string
		line      string
		env       map[string]string
		answers   map[string]string
		want      string // requests
		out, errs string
		code      int
	}{
		{
			name: "both streams", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execStart("stdout:one\n", "stderr:two\n", "stdout:\x1b[31mraw") + execExit(0)},
			want:    execPath + ` {"argv":["ls"],"stream":true,"lossless":true}`,
			out:     "one\n\x1b[31mraw", errs: "two\n",
		},
		{
			name: "all flags", line: "jail exec -e A=1 -e HERE -w /work -u ann:staff --timeout 90s " + aJail + " -- sh -c true",
			env:     map[string]string{"HERE": "there"},
			answers: m{execPath: execStart() + execExit(0)},
			want:    execPath + ` {"argv":["sh","-c","true"],"env":{"A":"1","HERE":"there"},"cwd":"/work","user":"ann:staff","timeout_ms":90000,"stream":true,"lossless":true}`,
		},
		{
			name: "its exit code", line: "jail exec " + aJail + " false",
			answers: m{execPath: execStart() + execExit(3)},
			want:    execPath + ` {"argv":["false"],"stream":true,"lossless":true}`,
			code:    3,
		},
		{
			name: "a signal", line: "jail exec " + aJail + " sleep 9",
			answers: m{execPath: execStart() + execExit(137)},
			want:    execPath + ` {"argv":["sleep","9"],"stream":true,"lossless":true}`,
			code:    137,
		},
		{
			name: "no exit code", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execStart() + sse(wire.EventExit, wire.Exec{ID: anExec})},
			errs:    "glasshouse: the exit code of the command is unknown\n",
			code:    125,
		},
		{
			name: "lost output", line: "jail exec " + aJail + " yes",
			answers: m{execPath: execStart() + sse(wire.EventOutput, wire.Output{Stream: "stdout", Offset: 7, Lost: 7, Data: []byte("y\n")}) + execExit(0)},
			out:     "y\n", errs: "glasshouse: 7 bytes of output were lost\n",
		},
		{
			name: "the stream reports an error", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execStart("stdout:one\n") + sse(wire.EventError, wire.Problem{Title: "unavailable", Status: 503, Detail: "the jail's init \x1b[2J ended", Remedy: "start the jail"})},
			out:     "one\n", errs: "glasshouse: the jail's init \\x1b[2J ended\n  try: start the jail\n",
			code: 125,
		},
		{
			name: "the stream breaks and continues", line: "jail exec " + aJail + " ls",
			answers: m{
				execPath: execStart("stdout:one\n") + cutSuffix,
				"GET /jails/" + aJail + "/execs/" + string(anExec) + "?from=4&lossless=1": sse(wire.EventOutput, wire.Output{Stream: "stdout", Offset: 4, Data: []byte("two\n")}) + execExit(4),
			},
			out:  "one\ntwo\n",
			code: 4,
		},
		{
			name: "the stream breaks and the jail is gone", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execStart("stdout:one\n") + cutSuffix},
			out:     "one\n", errs: "glasshouse: not found: nothing is there\n",
			code: 125,
		},
		{
			name: "the stream has no start", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execExit(0)},
			errs:    `unexpected first event "exit" of the stream`,
			code:    125,
		},
		{
			name: "an event that is not JSON", line: "jail exec " + aJail + " ls",
			answers: m{execPath: execStart() + "event: output\ndata: {\n\n"},
			errs:    "output event",
			code:    125,
		},
		{
			name: "the program is not found", line: "jail exec " + aJail + " nosuch",
			answers: m{execPath: `404 {"type":"/problems/not-found","title":"not found","status":404,"detail":"no nosuch in PATH","field":"argv"}`},
			errs:    "no nosuch in PATH",
			code:    127,
		},
		{
			name: "the program cannot be executed", line: "jail exec " + aJail + " /etc",
			answers: m{execPath: `422 {"type":"/problems/invalid","title":"invalid","status":422,"detail":"/etc is a directory","field":"argv"}`},
			errs:    "/etc is a directory",
			code:    126,
		},
		{
			name: "another part of the request is invalid", line: "jail exec -u nobody9 " + aJail + " ls",
			answers: m{execPath: `422 {"type":"/problems/invalid","title":"invalid","status":422,"detail":"no user nobody9","field":"user"}`},
			errs:    "no user nobody9",
			code:    125,
		},
		{
			name: "no such jail", line: "jail exec web ls",
			answers: m{"GET /jails": items()},
			want:    "GET /jails?name=web",
			errs:    `no jail has the id or the name "web"`,
			code:    125,
		},
		{
			name: "detached", line: "jail exec -d " + aJail + " sleep 9",
			answers: m{execPath: `{"id":"x-aaaaaaaaaaaa","running":true}`},
			want:    execPath + ` {"argv":["sleep","9"],"detach":true}`,
			out:     "x-aaaaaaaaaaaa\n",
		},
		{
			name: "detached, and refused", line: "jail exec -d " + aJail + " nosuch",
			answers: m{execPath: `404 {"type":"/problems/not-found","title":"not found","status":404,"detail":"no nosuch in PATH","field":"argv"}`},
			errs:    "no nosuch in PATH",
			code:    127,
		},
		{name: "no program", line: "jail exec " + aJail + " --", errs: "no command is given; usage: ", code: 2},
		{name: "a variable without a name", line: "jail exec -e =x " + aJail + " ls", errs: `"=x" is not KEY=VALUE`, code: 2},
		{name: "a terminal with variables", line: "jail exec -t -e A=1 " + aJail + " ls", errs: "[env tty]", code: 2},
		{name: "a terminal with a timeout", line: "jail exec -t --timeout 1s " + aJail + " ls", errs: "[timeout tty]", code: 2},
		{name: "a detached terminal", line: "jail exec -t -d " + aJail + " ls", errs: "[detach tty]", code: 2},
		{name: "a timeout that is none", line: "jail exec --timeout soon " + aJail + " ls", errs: `invalid argument "soon"`, code: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, c.answers)
			d.env = c.env
			code, out, errs := d.run("", argsOf(c.line)...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			if out != c.out {
				t.Errorf("stdout: got %q, want %q", out, c.out)
			}
			if !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("stderr: got %q, want %q", errs, c.errs)
			}
			if got := d.asked(); (c.want != "" || c.code == 2) && got != c.want {
				t.Errorf("requests: got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestExecForwardsStandardInput(t *testing.T) {
	var once sync.Once
	read := make(chan struct{})
	var got string
	addr := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/jails/" + aJail + "/exec":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, execStart())
			w.(http.Flusher).Flush()
			<-read
			io.WriteString(w, execExit(0))
		default:
			once.Do(func() {
				got = r.Method + " " + r.URL.RequestURI() + " " + string(body)
				close(read)
			})
		}
	})
	d := &scriptedDaemon{T: t, addr: addr}
	code, _, errs := d.run("to the command\n", "jail", "exec", "-i", aJail, "cat")
	if want := "POST /jails/" + aJail + "/execs/" + string(anExec) + "/stdin?close=1 to the command\n"; code != 0 || got != want {
		t.Errorf("got exit code %d, %q and %q, want 0 and %q", code, errs, got, want)
	}
}

// A full disk must not look like an exit code of the program.
func TestExecExitsWith125WhenOutputCannotBeWritten(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{execPath: execStart("stdout:one\n") + execExit(0)})
	var errs strings.Builder
	full := writerFunc(func([]byte) (int, error) { return 0, errors.New("no space left on device") })
	code := Run(t.Context(), []string{"--addr", d.addr, "jail", "exec", aJail, "ls"},
		Env{Stdin: strings.NewReader(""), Stdout: full, Stderr: &errs, Getenv: func(string) string { return "" }})
	if want := "glasshouse: forward output: no space left on device\n"; code != 125 || errs.String() != want {
		t.Errorf("got exit code %d and %q, want 125 and %q", code, errs.String(), want)
	}
}

func TestListExecs(t *testing.T) {
	const path = "/jails/" + aJail + "/execs"
	list := items(
		`{"id":"x-aaaaaaaaaaaa","argv":["sh","-c","`+escapedName+`"],"running":true}`,
		`{"id":"x-bbbbbbbbbbbb","argv":["false"],"exit_code":1}`,
		`{"id":"x-cccccccccccc","argv":["sleep","9"],"exit_code":137,"signal":"KILL"}`,
	)
	d := newScriptedDaemon(t, map[string]string{"GET " + path: list})
	code, out, errs := d.run("", "jail", "execs", aJail)
	want := []string{
		"ID STATE STARTED COMMAND",
		`x-aaaaaaaaaaaa running sh -c \x1b[31mred\u202e`,
		"x-bbbbbbbbbbbb exit 1 false",
		"x-cccccccccccc SIGKILL sleep 9",
	}
	if got := squeezeSpaces(out); code != 0 || got != strings.Join(want, "\n") {
		t.Errorf("got exit code %d, %q and\n%s\nwant 0 and\n%s", code, errs, got, strings.Join(want, "\n"))
	}
}

// squeezeSpaces returns lines with one space between words.
func squeezeSpaces(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestExecsShowOutput(t *testing.T) {
	const path = "/jails/" + aJail + "/execs/x-aaaaaaaaaaaa"
	for _, c := range []struct{ name, answer, out, errs string }{
		{"text", `{"id":"x-aaaaaaaaaaaa","stdout":"out\n","stderr":"err\n","exit_code":0}`, "out\n", "err\n"},
		{"bytes", `{"id":"x-aaaaaaaaaaaa","encoding":"base64","stdout":"//4K","stderr":"","exit_code":0}`, "\xff\xfe\n", ""},
		{"the end only", `{"id":"x-aaaaaaaaaaaa","stdout":"out\n","truncated":true}`, "out\n", "glasshouse: only the end of the output was stored\n"},
		{"an encoding of a later daemon", `{"id":"x-aaaaaaaaaaaa","encoding":"hex","stdout":"00"}`, "", "glasshouse: unknown output encoding hex\n"},
		{"base64 that is none", `{"id":"x-aaaaaaaaaaaa","encoding":"base64","stdout":"?"}`, "", "glasshouse: illegal base64 data at input byte 0\n"},
	} {
		d := newScriptedDaemon(t, map[string]string{"GET " + path: c.answer})
		code, out, errs := d.run("", "jail", "execs", aJail, "x-aaaaaaaaaaaa")
		if code != 0 || out != c.out || errs != c.errs {
			t.Errorf("%s: got exit code %d, %q and %q, want 0, %q and %q", c.name, code, out, errs, c.out, c.errs)
		}
	}
}

// A workspace is a directory with a daemon that runs commands on it in a jail.
type workspace struct {
	*scriptedDaemon
	dir string
}

// newWorkspace returns a workspace in which every command exits with the code exit and makes
// these changes.
func newWorkspace(t *testing.T, exit string, changes ...string) *workspace {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	made := `{"id":"` + aJail + `","backend":"oci","runtime":"runc","state":"running","workspace":{"source":"` + dir + `","target":"/work"}}`
	d := newScriptedDaemon(t, map[string]string{
		"POST /jails":                      made,
		"GET /jails/" + aJail:              made,
		"GET /backends":                    items(`{"name":"bwrap","lacks":{"cpu":"not here"}}`, `{"name":"oci","runtime":"runc","lacks":{"memory":"no `+escapedName+` cgroup","disk":"no quota"}}`),
		execPath:                           execStart("stdout:done\n") + exit,
		"GET /jails/" + aJail + "/fs/diff": items(changes...),
		"GET /jails/" + aJail + "/files":   "from the jail\n",
		"POST /jails/" + aJail + "/stop":   made,
		"POST /jails/" + aJail + "/start":  made,
		"DELETE /jails/" + aJail:           "204 ",
	})
	return &workspace{d, dir}
}

// file returns the content of a file of the directory, or that it does not exist.
func (w *workspace) file(name string) string {
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		w.Error(err)
	}
	return string(b)
}

const (
	addedFile   = `{"path":"/new.txt","kind":"added","type":"file","mode":"644"}`
	addedHook   = `{"path":"/.git/hooks/pre-commit","kind":"added","type":"file","mode":"755"}`
	touchedFile = `{"path":"/same.txt","kind":"metadata","type":"file","mode":"644","what":["times"]}`
)

func TestRunReportsChangesAndRemovesTheJail(t *testing.T) {
	const lacks = "glasshouse: no limit on memory: no \\x1b[31mred\\u202e cgroup\nglasshouse: no limit on disk: no quota\n"
	const kept = "To apply them:  glasshouse apply " + aJail + "\nTo discard them:  glasshouse jail rm " + aJail + "\nActivity report:  glasshouse report " + aJail + "\n"
	removed, stopped := "DELETE /jails/"+aJail, "POST /jails/"+aJail+"/stop"
	for _, c := range []struct {
		name    string
		flags   string
		exit    int
		changes []string
		errs    string // without the warnings about the backend; DIR is the directory
		last    string // request
		file    string // new.txt
		code    int
	}{
		{name: "no changes", last: removed, file: "(none)"},
		{name: "only times", changes: []string{touchedFile}, last: removed, file: "(none)"},
		{name: "changes are kept", changes: []string{addedFile}, errs: "1 change in DIR, not applied yet:\n  added     new.txt\n" + kept, last: stopped, file: "(none)"},
		{name: "changes are dropped", flags: "--rm", changes: []string{addedFile}, errs: "1 change in DIR, not applied yet:\n  added     new.txt\n", last: removed, file: "(none)"},
		{name: "changes are applied", flags: "--apply", changes: []string{addedFile}, errs: "1 change in DIR, not applied yet:\n  added     new.txt\n1 change applied\n", last: removed, file: "from the jail\n"},
		{name: "the program failed", flags: "--apply", exit: 3, changes: []string{addedFile}, errs: "1 change in DIR, not applied yet:\n  added     new.txt\n" + kept, last: stopped, file: "(none)", code: 3},
		{name: "a hook of git", flags: "--apply", changes: []string{addedFile, addedHook}, errs: "2 changes in DIR, not applied yet:\n  added     new.txt\n  1 change below .git\n" +
			"1 change applied\n  1 change below .git not applied\n", last: removed, file: "from the jail\n"},
		{name: "the jail is kept", flags: "--keep", changes: []string{addedFile}, errs: "1 change in DIR, not applied yet:\n  added     new.txt\n" +
			"The jail keeps running:  glasshouse jail exec " + aJail + " -- …\nActivity report:  glasshouse report " + aJail + "\n", last: "GET ", file: "(none)"},
		{name: "a name that drives a terminal", flags: "--rm", changes: []string{`{"path":"/` + escapedName + `","from":"/old","kind":"renamed","type":"file","mode":"644"}`},
			errs: "1 change in DIR, not applied yet:\n  renamed   old -> \\x1b[31mred\\u202e\n", last: removed, file: "(none)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, execExit(c.exit), c.changes...)
			args := append([]string{"run", "-C", w.dir}, strings.Fields(c.flags)...)
			code, out, errs := w.run("", append(args, "make")...)
			if code != c.code || out != "done\n" {
				t.Errorf("got exit code %d and %q, want %d and %q", code, out, c.code, "done\n")
			}
			if want := lacks + strings.ReplaceAll(c.errs, "DIR", w.dir); errs != want {
				t.Errorf("stderr: got\n%s\nwant\n%s", errs, want)
			}
			if want := `POST /jails {"labels":{"glasshouse.run":"` + w.dir + `"},"workspace":{"source":"` + w.dir + `"},"start":true}`; !strings.HasPrefix(w.asked(), want+"\nGET /backends\n") {
				t.Errorf("requests: got\n%s\nwant first\n%s", w.asked(), want)
			}
			if got := w.requests[len(w.requests)-1]; !strings.HasPrefix(got, c.last) {
				t.Errorf("last request: got %q, want %q", got, c.last)
			}
			if got := w.file("new.txt"); got != c.file {
				t.Errorf("new.txt: got %q, want %q", got, c.file)
			}
		})
	}
}

// A failure after the end of the program is reported once. It changes the exit code to 125 only
// if the program succeeded.
func TestRunReportsFailureAfterProgram(t *testing.T) {
	const away = `503 {"type":"/problems/unavailable","title":"unavailable","status":503,"detail":"the disk is away","remedy":"wait"}`
	for _, c := range []struct {
		name, flags, request string
		exit, code           int
		want                 string
	}{
		{"the list of changes", "", "GET /jails/" + aJail + "/fs/diff", 0, 125, "jail " + aJail + " is kept: "},
		{"the list of changes, and the program", "", "GET /jails/" + aJail + "/fs/diff", 4, 4, "jail " + aJail + " is kept: "},
		{"a file that is applied", "--apply", "GET /jails/" + aJail + "/files", 0, 125, "jail " + aJail + " is kept: "},
		{"the stop", "", "POST /jails/" + aJail + "/stop", 0, 125, "stop jail " + aJail + ": "},
		{"the removal", "--rm", "DELETE /jails/" + aJail, 0, 125, "remove jail " + aJail + ": "},
		{"the removal, and the program", "--rm", "DELETE /jails/" + aJail, 4, 4, "remove jail " + aJail + ": "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, execExit(c.exit), addedFile)
			w.answers[c.request] = away
			args := append([]string{"run", "-C", w.dir}, strings.Fields(c.flags)...)
			code, _, errs := w.run("", append(args, "make")...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			if strings.Count(errs, "the disk is away") != 1 || !strings.Contains(errs, "glasshouse: "+c.want) || !strings.Contains(errs, "  try: wait\n") {
				t.Errorf("stderr: got\n%s\nwant %q once, with the remedy", errs, c.want)
			}
			if got := w.file("new.txt"); got != "(none)" {
				t.Errorf("new.txt: got %q, want none", got)
			}
		})
	}
}

func TestRunThatCannotStartExitsWith125(t *testing.T) {
	d := newScriptedDaemon(t, nil)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"run --policy /nowhere/opencode.json -- true", "no such file", 125},
		{"run --egress /nowhere/rules.yaml -- true", "no such file", 125},
		{"run -C / -- true", "/ cannot be a workspace", 2},
		{"run --memory lots -- true", "is not a size", 2},
		{"run --rootfs oci -- true", "--rootfs \"oci\" is not", 2},
		{"run --", "requires at least 1 arg(s)", 2},
	} {
		code, out, errs := d.run("", argsOf(c.line)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%s: got exit code %d, %q and %q, want %d and %q", c.line, code, out, errs, c.code, c.want)
		}
	}
	if got := d.asked(); got != "" {
		t.Errorf("requests: got %q, want none", got)
	}
}

func TestRunWithoutWorkspaceRequestsNoChanges(t *testing.T) {
	w := newWorkspace(t, execExit(0), addedFile)
	w.answers["GET /backends"] = w.problem // the capabilities of the backend are unknown, which does not end the run
	code, out, errs := w.run("", "run", "--no-workspace", "--timeout", "2s", "--", "make", "-k")
	if code != 0 || out != "done\n" || errs != "" {
		t.Errorf("got exit code %d, %q and %q, want 0, %q and nothing", code, out, errs, "done\n")
	}
	want := `POST /jails {"start":true}
GET /backends
` + execPath + ` {"argv":["make","-k"],"timeout_ms":2000,"stream":true,"lossless":true}
DELETE /jails/` + aJail
	if got := w.asked(); got != want {
		t.Errorf("requests: got\n%s\nwant\n%s", got, want)
	}
}

func TestLongChangeListIsTruncated(t *testing.T) {
	list := func(n int) string {
		var b strings.Builder
		changes := make([]wire.Change, n)
		for i := range changes {
			changes[i] = wire.Change{Path: "/f", Kind: "added"}
		}
		showChanges(&b, changes)
		return b.String()
	}
	for n, want := range map[int]int{0: 0, 1: 1, maxShown: maxShown, maxShown + 1: maxShown + 1, maxShown + 2: maxShown + 1, 10 * maxShown: maxShown + 1} {
		if got := strings.Count(list(n), "\n"); got != want {
			t.Errorf("%d changes: got %d lines, want %d", n, got, want)
		}
	}
	if got, want := list(maxShown+2), "  … and 2 more\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%d changes: got %q, want %q at the end", maxShown+2, got, want)
	}
}

func TestApplyAfterRun(t *testing.T) {
	path := "GET /jails/" + aJail
	for _, c := range []struct {
		name    string
		line    string
		jail    string // the fields of the jail that differ from those after a run
		changes []string
		out     string
		errs    string
		last    string
		file    string
		code    int
		starts  bool
	}{
		{name: "all", line: "apply " + aJail, changes: []string{addedFile}, out: "1 change applied\n", last: "GET ", file: "from the jail\n"},
		{name: "the default as an option", line: "apply --keep " + aJail, changes: []string{addedFile}, out: "1 change applied\n", errs: "keeps the jail by default; --keep will be removed", last: "GET ", file: "from the jail\n"},
		{name: "all, and the jail is removed", line: "apply --rm " + aJail, changes: []string{addedFile}, out: "1 change applied\n", last: "DELETE /jails/" + aJail, file: "from the jail\n"},
		{name: "a stopped jail is started", line: "apply " + aJail, jail: `"state":"stopped"`, changes: []string{addedFile}, out: "1 change applied\n", last: "POST /jails/" + aJail + "/stop", file: "from the jail\n", starts: true},
		{name: "a stopped jail without changes", line: "apply " + aJail, jail: `"state":"stopped"`, out: "0 changes applied\n", last: "GET ", file: "(none)"},
		{name: "a dry run", line: "apply --dry-run " + aJail, jail: `"state":"stopped"`, changes: []string{addedFile, addedHook}, out: "1 change would be applied\n  added     new.txt\n  1 change below .git not applied\n", last: "GET ", file: "(none)"},
		{name: "a path", line: "apply " + aJail + " .git", changes: []string{addedFile, addedHook}, out: "0 changes applied\n  1 change below .git not applied\n", last: "GET ", file: "(none)"},
		{name: "a message for no commit", line: "apply " + aJail + " -m text", errs: "--message needs --commit", last: "", file: "(none)", code: 2},
		{name: "a part, and the jail is kept", line: "apply --rm " + aJail, changes: []string{`{"path":"/pipe","kind":"added","type":"fifo","mode":"644"}`}, out: "0 changes applied\n  skipped   pipe: files of type fifo are not applied\n", errs: "the jail is kept: 1 change not applied\n  try: apply all changes, or use --force", last: "GET ", file: "(none)", code: 1},
		{name: "a path, and the jail is kept", line: "apply --rm " + aJail + " new.txt", changes: []string{addedFile, `{"path":"/other","kind":"added","type":"file","mode":"644"}`}, out: "1 change applied\n", errs: "the jail is kept: 1 change not applied", last: "GET ", file: "from the jail\n", code: 1},
		{name: "a path and force", line: "apply --rm --force " + aJail + " new.txt", changes: []string{addedFile, `{"path":"/other","kind":"added","type":"file","mode":"644"}`}, out: "1 change applied\n", last: "DELETE /jails/" + aJail, file: "from the jail\n"},
		{name: "a stopped jail that is kept", line: "apply --rm " + aJail + " new.txt", jail: `"state":"stopped"`, changes: []string{addedFile, `{"path":"/other","kind":"added","type":"file","mode":"644"}`}, out: "1 change applied\n", errs: "the jail is kept", last: "POST /jails/" + aJail + "/stop", file: "from the jail\n", code: 1, starts: true},
		{name: "no workspace", line: "apply " + aJail, jail: `"state":"running","workspace":null`, errs: "jail " + aJail + " has no workspace", last: path, file: "(none)", code: 1},
		{name: "its directory is gone", line: "apply " + aJail, jail: `"workspace":{"source":"/nowhere/work","target":"/work"}`, errs: "/nowhere/work: no such file", last: path, file: "(none)", code: 1},
		{name: "a path that leads elsewhere", line: "apply " + aJail, changes: []string{`{"path":"/../new.txt","kind":"added","type":"file","mode":"644"}`}, errs: "a path that is not clean", last: "GET ", file: "(none)", code: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, "", c.changes...)
			if c.jail != "" {
				w.answers[path] = strings.TrimSuffix(w.answers[path], "}") + "," + c.jail + "}"
			}
			code, out, errs := w.run("", argsOf(c.line)...)
			if code != c.code || out != c.out || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("got exit code %d, %q and %q, want %d, %q and %q", code, out, errs, c.code, c.out, c.errs)
			}
			if got := w.asked()[strings.LastIndexByte(w.asked(), '\n')+1:]; !strings.HasPrefix(got, c.last) {
				t.Errorf("last request: got %q, want %q", got, c.last)
			}
			if got := strings.Contains(w.asked(), "/start"); got != c.starts {
				t.Errorf("started: got %v, want %v", got, c.starts)
			}
			if got := w.file("new.txt"); got != c.file {
				t.Errorf("new.txt: got %q, want %q", got, c.file)
			}
		})
	}
	w := newWorkspace(t, "", addedFile, addedHook)
	_, out, _ := w.run("", "--json", "apply", aJail)
	var got applied
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Done) != 1 || got.Git != 1 {
		t.Errorf("--json: got %s, %v, want one change done, and the hook below .git", out, err)
	}
}
