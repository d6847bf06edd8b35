package api_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/access"
	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
)

func (d *door) exec(j id.Jail, r wire.ExecRequest) wire.Exec {
	d.t.Helper()
	var x wire.Exec
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: r}, &x)
	return x
}

func code(x wire.Exec) int {
	if x.ExitCode == nil {
		return -1
	}
	return *x.ExitCode
}

func TestExecAnswersWithWhatTheCommandDid(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()

	x := d.exec(j, wire.ExecRequest{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}})
	if x.Stdout != "out\n" || x.Stderr != "err\n" || code(x) != 7 || x.Running || x.Truncated || x.StdoutBytes != 4 {
		t.Errorf("%+v; want out, err and 7", x)
	}
	x = d.exec(j, wire.ExecRequest{Cmd: "echo $A; pwd", Env: map[string]string{"A": "b c"}, Cwd: "/tmp"})
	if x.Stdout != "b c\n/tmp\n" {
		t.Errorf("stdout %q, want the environment and the directory", x.Stdout)
	}
	x = d.exec(j, wire.ExecRequest{Argv: []string{"cat"}, Stdin: "hello"})
	if x.Stdout != "hello" || code(x) != 0 {
		t.Errorf("cat of hello: %+v", x)
	}
	x = d.exec(j, wire.ExecRequest{Argv: []string{"cat"}, Stdin: base64.StdEncoding.EncodeToString([]byte{0, 255, 1}), StdinBase64: true})
	if x.Encoding != "base64" || x.Stdout != base64.StdEncoding.EncodeToString([]byte{0, 255, 1}) {
		t.Errorf("cat of bytes: %+v", x)
	}
	x = d.exec(j, wire.ExecRequest{Cmd: "kill -TERM $$"})
	if x.Signal != "TERM" || code(x) != 143 {
		t.Errorf("killed by itself: %+v; want TERM and 143", x)
	}
	start := time.Now()
	x = d.exec(j, wire.ExecRequest{Cmd: "sleep 60 & sleep 60", TimeoutMS: 100})
	if !x.TimedOut || time.Since(start) > 20*time.Second {
		t.Errorf("with a timeout: %+v after %v; want it timed out", x, time.Since(start))
	}
	// 8 MB of output neither fills the answer nor keeps the command waiting.
	x = d.exec(j, wire.ExecRequest{Cmd: "head -c 8000000 /dev/zero | tr '\\0' a; echo end >&2"})
	if len(x.Stdout) != 1<<20 || !x.Truncated || x.StdoutBytes != 8_000_000 || x.Stderr != "end\n" || code(x) != 0 {
		t.Errorf("8 MB: %d bytes, truncated %v, counted %d, stderr %q", len(x.Stdout), x.Truncated, x.StdoutBytes, x.Stderr)
	}
	// A big input that the command answers while it reads.
	x = d.exec(j, wire.ExecRequest{Argv: []string{"cat"}, Stdin: strings.Repeat("0123456789abcdef", 50_000)})
	if x.StdoutBytes != 800_000 || len(x.Stdout) != 800_000 {
		t.Errorf("cat of 800 kB: %d bytes", x.StdoutBytes)
	}
	// A command that reads nothing of its input.
	if x = d.exec(j, wire.ExecRequest{Argv: []string{"true"}, Stdin: strings.Repeat("x", 500_000)}); code(x) != 0 {
		t.Errorf("true with an input: %+v", x)
	}
}

func TestACutCharacterDoesNotMakeTextBinary(t *testing.T) {
	d := open(t, apitest.Start(t), func(o *api.Options) { o.MaxOutput = 10 })
	j := d.running()
	x := d.exec(j, wire.ExecRequest{Cmd: "printf 'äöüäöüäöü'"})
	if x.Encoding != "" || x.Stdout != "äöüäö" || !x.Truncated {
		t.Errorf("%+v; want the first five characters", x)
	}
	x = d.exec(j, wire.ExecRequest{Cmd: "printf 'aäöüäöüäöü'"})
	if x.Encoding != "" || x.Stdout != "aäöüä" {
		t.Errorf("%+v; want the whole characters of the first ten bytes", x)
	}
}

// What is asked for later is what a command wrote last, also if it writes on meanwhile.
func TestTheResultOfACommandHasTheEndOfItsOutput(t *testing.T) {
	d := open(t, apitest.Start(t), func(o *api.Options) { o.MaxOutput = 10 })
	j := d.running()
	for cmd, want := range map[string]string{
		"printf 'äöüäöüäöüend'":                   "äöüend",
		"printf start; sleep .1; printf 'end'":    "startend",
		"printf starting; sleep .1; printf 'end'": "tartingend",
		"printf end; printf warning >&2":          "end",
	} {
		x := wire.Exec{Running: true}
		d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Cmd: cmd, Detach: true}}, &x)
		for path := "/jails/" + string(j) + "/execs/" + string(x.ID); x.Running; time.Sleep(10 * time.Millisecond) {
			x = wire.Exec{}
			d.want(200, req{as: access.Viewer, path: path}, &x)
		}
		if x.Stdout != want || x.Truncated != (x.StdoutBytes > int64(len(want))) {
			t.Errorf("%s: the result is %q, truncated %v, want %q", cmd, x.Stdout, x.Truncated, want)
		}
	}
}

func TestExecRefuses(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	path := "/jails/" + string(j) + "/exec"
	for body, field := range map[string]string{
		`{"argv":["a"],"detach":true,"stream":true}`: "detach", `{"argv":["a"],"lossless":true}`: "lossless",
		`{"argv":["a"],"stdin_open":true}`: "stdin_open", `{"argv":["a"],"timeout_ms":-1}`: "timeout_ms", `{"argv":["a"],"timeout_ms":99999999999999}`: "timeout_ms",
		`{"argv":["a"],"stdin":"?","stdin_base64":true}`: "stdin", `{"argv":["a"],"pty":{"cols":0,"rows":1}}`: "pty", `{"argv":["a"],"pty":{"cols":70000,"rows":1}}`: "pty.cols",
		`{"argv":"a"}`: "argv",
	} {
		if p := d.refused(400, req{as: access.Operator, method: "POST", path: path, body: body}); p.Field != field {
			t.Errorf("%s: field %q, want %q (%s)", body, p.Field, field, p.Detail)
		}
	}
	d.refused(400, req{as: access.Operator, method: "POST", path: path, body: `{"argv":["true"],"stream":true}`, header: map[string]string{"Idempotency-Key": "k"}})
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop"}, nil)
	if p := d.refused(409, req{as: access.Operator, method: "POST", path: path, body: `{"argv":["true"]}`}); p.Type != "/problems/conflict" {
		t.Errorf("exec in a stopped jail: %+v", p)
	}
	d.refused(409, req{as: access.Operator, method: "POST", path: path, body: `{"argv":["true"],"stream":true}`})
}

func TestAReplayedExecRunsOnce(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	file := t.TempDir() + "/count"
	for range 3 {
		var x wire.Exec
		d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
			body: wire.ExecRequest{Cmd: "echo x >>" + file + "; wc -l <" + file}, header: map[string]string{"Idempotency-Key": "once"}}, &x)
		if strings.TrimSpace(x.Stdout) != "1" {
			t.Errorf("the command ran again: %q", x.Stdout)
		}
	}
}

func TestADetachedCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	var x wire.Exec
	got := d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{
		Cmd: "read a; echo got $a; cat; echo end", Stdin: "first\n", StdinOpen: true, Detach: true,
	}}, &x)
	self := got.header.Get("Location")
	if !x.Running || self != "/jails/"+string(j)+"/execs/"+string(x.ID) {
		t.Fatalf("%+v at %q; want it running", x, self)
	}
	d.want(204, req{as: access.Operator, method: "POST", path: self + "/stdin", body: "more "}, nil)
	d.want(204, req{as: access.Operator, method: "POST", path: self + "/stdin?close=1", body: "and the rest\n"}, nil)
	x = d.wait(self)
	if want := "got first\nmore and the rest\nend\n"; x.Stdout != want || code(x) != 0 {
		t.Errorf("stdout %q, want %q", x.Stdout, want)
	}
	var list wire.Page[wire.Exec]
	d.want(200, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/execs?limit=1"}, &list)
	if len(list.Items) != 1 || list.Items[0].ID != x.ID || list.Next != "" {
		t.Errorf("list %+v, want the one command", list)
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/execs?after=x-aaaaaaaaaaaa"})
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/execs/x-aaaaaaaaaaaa"})
	d.refused(400, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":""}`})
	d.refused(400, req{as: access.Viewer, method: "GET", path: self + "?from=0"})

	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Argv: []string{"sleep", "60"}, Detach: true}}, &x)
	self = "/jails/" + string(j) + "/execs/" + string(x.ID)
	d.refused(400, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":"NOSUCH"}`})
	d.want(204, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":"INT"}`}, nil)
	if x = d.wait(self); x.Signal != "INT" {
		t.Errorf("after INT: %+v", x)
	}
	if !strings.Contains(d.metrics(), `glasshouse_execs_total{mode="detach"} 2`) {
		t.Errorf("the metrics do not count two detached commands:\n%s", d.metrics())
	}
}

// wait asks for a command until it has ended.
func (d *door) wait(path string) wire.Exec {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var x wire.Exec
		d.want(200, req{as: access.Viewer, method: "GET", path: path}, &x)
		if !x.Running {
			return x
		}
	}
	d.t.Fatalf("%s does not end", path)
	return wire.Exec{}
}

func (d *door) metrics() string {
	return string(d.want(200, req{as: access.Viewer, method: "GET", path: "/metrics"}, nil).body)
}

// An sse is one event, as bytes on the wire have it.
type sse struct{ id, name, data string }

// events reads up to n events, or all with n below 0, and closes.
func (d *door) events(r req, n int) (http.Header, []sse) {
	d.t.Helper()
	resp := d.send(r)
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		d.t.Fatalf("%s %s: %s %s", r.method, r.path, resp.Status, resp.Header.Get("Content-Type"))
	}
	return resp.Header, readEvents(resp.Body, n)
}

// readEvents reads n events, or all of a stream. It leaves out one that is cut off.
func readEvents(r io.Reader, n int) []sse {
	var all []sse
	var e sse
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && len(all) != n {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
		case "":
			if e.name != "" {
				all = append(all, e)
			}
			e = sse{}
		}
	}
	return all
}

// text joins what output events carry, by stream.
func text(t *testing.T, events []sse) (stdout, stderr string, next int64) {
	t.Helper()
	for _, e := range events {
		if e.name != "output" {
			continue
		}
		var o wire.Output
		if err := json.Unmarshal([]byte(e.data), &o); err != nil {
			t.Fatal(err)
		}
		if next = o.Offset + int64(len(o.Data)); e.id != strconv.FormatInt(next, 10) {
			t.Errorf("event id %s, want %d", e.id, next)
		}
		if o.Stream == "stderr" {
			stderr += string(o.Data)
		} else {
			stdout += string(o.Data)
		}
	}
	return stdout, stderr, next
}

func TestAStreamedCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	head, events := d.events(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: "echo one; echo two >&2; cat; exit 3", Stdin: "three", Stream: true}}, -1)
	stdout, stderr, end := text(t, events)
	if stdout != "one\nthree" || stderr != "two\n" || end != 13 {
		t.Errorf("streamed %q and %q up to %d", stdout, stderr, end)
	}
	if first, last := events[0], events[len(events)-1]; first.name != "start" || last.name != "exit" {
		t.Errorf("events begin with %s and end with %s", first.name, last.name)
	}
	var x wire.Exec
	json.Unmarshal([]byte(events[len(events)-1].data), &x)
	if code(x) != 3 {
		t.Errorf("exit event %+v, want code 3", x)
	}
	self := head.Get("Location")
	if self == "" {
		t.Fatal("the stream does not say where its command is")
	}
	// From every offset on, the rest is the same.
	for from := range end + 1 {
		_, rest := d.events(req{as: access.Viewer, method: "GET", path: self, header: map[string]string{
			"Accept": "text/event-stream", "Last-Event-ID": fmt.Sprint(from),
		}}, -1)
		out, err, _ := text(t, rest)
		if int64(len(out)+len(err)) != end-from || rest[len(rest)-1].name != "exit" {
			t.Errorf("from %d: %q and %q", from, out, err)
		}
	}
	_, all := d.events(req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/event-stream"}}, -1)
	if out, _, _ := text(t, all); out != stdout {
		t.Errorf("followed from the start: %q", out)
	}
	for _, bad := range []string{"-1", "x", "1e3"} {
		d.refused(400, req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": bad}})
	}
	if p := d.refused(403, req{as: access.Viewer, method: "GET", path: self + "?lossless=1", header: map[string]string{"Accept": "text/event-stream"}}); p.Status != 403 {
		t.Errorf("a viewer may slow a command down: %+v", p)
	}
	// The output of a jail that has stopped is still to be had.
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop"}, nil)
	_, kept := d.events(req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": "5"}}, -1)
	if out, errs, next := text(t, kept); len(out)+len(errs) != 8 || next != 13 {
		t.Errorf("of a stopped jail, from 5: %q and %q", out, errs)
	}
}

func TestAReaderWhoLeavesDoesNotEndTheCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	file := t.TempDir() + "/done"
	head, _ := d.events(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: "echo here; sleep 0.3; echo still; touch " + file, Stream: true}}, 2)
	x := d.wait(head.Get("Location"))
	if x.Stdout != "here\nstill\n" || code(x) != 0 {
		t.Errorf("after its reader left the command did %+v", x)
	}
}

func TestALosslessStreamLosesNothing(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	resp := d.send(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: "seq 1 500000", Stream: true, Lossless: true, KeepBytes: 64 << 10}})
	defer resp.Body.Close()
	time.Sleep(200 * time.Millisecond) // a slow reader
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	var out strings.Builder
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(data, `"stream"`) {
			var o wire.Output
			if err := json.Unmarshal([]byte(data), &o); err != nil {
				t.Fatal(err)
			}
			if o.Lost > 0 {
				t.Fatalf("%d bytes lost before %d", o.Lost, o.Offset)
			}
			out.Write(o.Data)
		}
	}
	if got := out.String(); strings.Count(got, "\n") != 500000 || !strings.HasSuffix(got, "\n500000\n") {
		t.Errorf("%d lines came, want 500000", strings.Count(got, "\n"))
	}
}

// muchOutput is more than the kernel buffers between a server and its reader.
const muchOutput = 32 << 20

// startMuchOutput has a command write muchOutput to a lossless stream. Its reader has
// taken nothing yet.
func (d *door) startMuchOutput(j id.Jail) *http.Response {
	d.t.Helper()
	resp := d.send(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: fmt.Sprintf("head -c %d /dev/zero", muchOutput), Stream: true, Lossless: true, KeepBytes: 64 << 10}})
	d.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Location") == "" {
		d.t.Fatalf("exec: %s of the command %q", resp.Status, resp.Header.Get("Location"))
	}
	return resp
}

// outcome returns how much output the events have, how much they say was lost, and the
// last of them.
func outcome(t *testing.T, events []sse) (bytes, lost int64, last sse) {
	t.Helper()
	for _, last = range events {
		if last.name != "output" {
			continue
		}
		var o wire.Output
		if err := json.Unmarshal([]byte(last.data), &o); err != nil {
			t.Fatal(err)
		}
		bytes, lost = bytes+int64(len(o.Data)), lost+o.Lost
	}
	return bytes, lost, last
}

// Init gives up a lossless reader that it does not hear from. The server speaks for a
// client that is slow to take what was written.
func TestALosslessStreamWaitsForAReaderThatPauses(t *testing.T) {
	const grace = 1500 * time.Millisecond
	t.Cleanup(api.HurryOutput(time.Minute, grace/50))
	d := open(t, apitest.StartWithGrace(t, grace))
	resp := d.startMuchOutput(d.running())
	time.Sleep(2 * grace) // the pause
	var x wire.Exec
	d.want(200, req{as: access.Viewer, method: "GET", path: resp.Header.Get("Location")}, &x)
	if !x.Running {
		t.Errorf("while its reader pauses the command has ended and written %d bytes, want it running", x.StdoutBytes)
	}
	bytes, lost, last := outcome(t, readEvents(resp.Body, -1))
	if bytes != muchOutput || lost != 0 || last.name != "exit" {
		t.Errorf("%d bytes came and %d were lost, then %s %s; want %d, none, and the exit", bytes, lost, last.name, last.data, muchOutput)
	}
}

// A stream whose reader takes nothing for too long ends without the event exit or error.
// Nothing is lost to a reader that comes back.
func TestALosslessStreamThatIsCutOffContinues(t *testing.T) {
	undo := api.HurryOutput(500*time.Millisecond, 50*time.Millisecond)
	t.Cleanup(undo)
	d := open(t, apitest.Start(t))
	resp := d.startMuchOutput(d.running())
	for end := time.Now().Add(20 * time.Second); !strings.Contains(d.metrics(), `glasshouse_http_streams{kind="exec"} 0`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stream is open after 20 s without a reader, want it cut off")
		}
	}
	undo() // the next stream has a reader
	bytes, lost, last := outcome(t, readEvents(resp.Body, -1))
	if bytes >= muchOutput || lost != 0 || last.name != "output" {
		t.Fatalf("before it was cut off %d bytes came and %d were lost, then %s %s; want less than %d, none, and output", bytes, lost, last.name, last.data, muchOutput)
	}
	_, rest := d.events(req{as: access.Operator, method: "GET", path: resp.Header.Get("Location") + "?lossless=1",
		header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": last.id}}, -1)
	more, lost, last := outcome(t, rest)
	if bytes+more != muchOutput || lost != 0 || last.name != "exit" {
		t.Errorf("continued, %d bytes came and %d were lost, then %s %s; want %d, none, and the exit", more, lost, last.name, last.data, muchOutput-bytes)
	}
}
