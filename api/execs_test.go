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

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/policy/access"
)

func (d *harness) exec(j id.Jail, r wire.ExecRequest) wire.Exec {
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

func TestExecReturnsResult(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()

	x := d.exec(j, wire.ExecRequest{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}})
	if x.Stdout != "out\n" || x.Stderr != "err\n" || code(x) != 7 || x.Running || x.Truncated || x.StdoutBytes != 4 {
		t.Errorf("got %+v, want out, err and 7", x)
	}
	x = d.exec(j, wire.ExecRequest{Cmd: "echo $A; pwd", Env: map[string]string{"A": "b c"}, Cwd: "/tmp"})
	if x.Stdout != "b c\n/tmp\n" {
		t.Errorf("got stdout %q, want the environment and the directory", x.Stdout)
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
		t.Errorf("killed by itself: got %+v, want TERM and 143", x)
	}
	start := time.Now()
	x = d.exec(j, wire.ExecRequest{Cmd: "sleep 60 & sleep 60", TimeoutMS: 100})
	if !x.TimedOut || time.Since(start) > 20*time.Second {
		t.Errorf("with a timeout: got %+v after %v, want timed out", x, time.Since(start))
	}
	// 8 MB of output are truncated in the response and do not block the command.
	x = d.exec(j, wire.ExecRequest{Cmd: "head -c 8000000 /dev/zero | tr '\\0' a; echo end >&2"})
	if len(x.Stdout) != 1<<20 || !x.Truncated || x.StdoutBytes != 8_000_000 || x.Stderr != "end\n" || code(x) != 0 {
		t.Errorf("8 MB: %d bytes, truncated %v, counted %d, stderr %q", len(x.Stdout), x.Truncated, x.StdoutBytes, x.Stderr)
	}
	// A large input, while the command writes output.
	x = d.exec(j, wire.ExecRequest{Argv: []string{"cat"}, Stdin: strings.Repeat("0123456789abcdef", 50_000)})
	if x.StdoutBytes != 800_000 || len(x.Stdout) != 800_000 {
		t.Errorf("cat of 800 kB: %d bytes", x.StdoutBytes)
	}
	// A command that does not read its input.
	x = d.exec(j, wire.ExecRequest{Argv: []string{"true"}, Stdin: strings.Repeat("x", 500_000)})
	if code(x) != 0 {
		t.Errorf("true with an input: %+v", x)
	}
}

func TestOutputIsTruncatedAtRuneBoundary(t *testing.T) {
	d := open(t, apitest.Start(t), func(o *api.Options) { o.MaxOutput = 10 })
	j := d.running()
	x := d.exec(j, wire.ExecRequest{Cmd: "printf 'äöüäöüäöü'"})
	if x.Encoding != "" || x.Stdout != "äöüäö" || !x.Truncated {
		t.Errorf("got %+v, want the first five characters", x)
	}
	x = d.exec(j, wire.ExecRequest{Cmd: "printf 'aäöüäöüäöü'"})
	if x.Encoding != "" || x.Stdout != "aäöüä" {
		t.Errorf("got %+v, want the complete characters of the first ten bytes", x)
	}
}

// A later request returns the end of the output, even while the command still writes.
func TestGetExecReturnsEndOfOutput(t *testing.T) {
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

func TestReplayedExecRunsOnce(t *testing.T) {
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

func TestDetachedCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	var x wire.Exec
	got := d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{
		Cmd: "read a; echo got $a; cat; echo end", Stdin: "first\n", StdinOpen: true, Detach: true,
	}}, &x)
	self := got.header.Get("Location")
	if !x.Running || self != "/jails/"+string(j)+"/execs/"+string(x.ID) {
		t.Fatalf("got %+v at %q, want running", x, self)
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
		t.Errorf("got list %+v, want one command", list)
	}
	d.refused(400, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/execs?after=x-aaaaaaaaaaaa"})
	d.refused(404, req{as: access.Viewer, method: "GET", path: "/jails/" + string(j) + "/execs/x-aaaaaaaaaaaa"})
	d.refused(400, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":""}`})
	d.refused(400, req{as: access.Viewer, method: "GET", path: self + "?from=0"})

	d.want(201, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec", body: wire.ExecRequest{Argv: []string{"sleep", "60"}, Detach: true}}, &x)
	self = "/jails/" + string(j) + "/execs/" + string(x.ID)
	d.refused(400, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":"NOSUCH"}`})
	d.want(204, req{as: access.Operator, method: "POST", path: self + "/signal", body: `{"signal":"INT"}`}, nil)
	x = d.wait(self)
	if x.Signal != "INT" {
		t.Errorf("after INT: %+v", x)
	}
	if !strings.Contains(d.metrics(), `glasshouse_execs_total{mode="detach"} 2`) {
		t.Errorf("the metrics do not count two detached commands:\n%s", d.metrics())
	}
}

// wait polls a command until it has ended.
func (d *harness) wait(path string) wire.Exec {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var x wire.Exec
		d.want(200, req{as: access.Viewer, method: "GET", path: path}, &x)
		if !x.Running {
			return x
		}
	}
	d.t.Fatalf("%s has not ended", path)
	return wire.Exec{}
}

func (d *harness) metrics() string {
	return string(d.want(200, req{as: access.Viewer, method: "GET", path: "/metrics"}, nil).body)
}

// An sse is a server-sent event as sent.
type sse struct{ id, name, data string }

// events reads up to n events, or all if n is negative, and closes the stream.
func (d *harness) events(r req, n int) (http.Header, []sse) {
	d.t.Helper()
	resp := d.send(r)
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		d.t.Fatalf("%s %s: %s %s", r.method, r.path, resp.Status, resp.Header.Get("Content-Type"))
	}
	return resp.Header, readEvents(resp.Body, n)
}

// readEvents reads n events, or all events of a stream. It omits an incomplete event.
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

// text concatenates the data of output events, by stream.
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
		next = o.Offset + int64(len(o.Data))
		if e.id != strconv.FormatInt(next, 10) {
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

func TestStreamedCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	head, events := d.events(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: "echo one; echo two >&2; cat; exit 3", Stdin: "three", Stream: true}}, -1)
	stdout, stderr, end := text(t, events)
	if stdout != "one\nthree" || stderr != "two\n" || end != 13 {
		t.Errorf("streamed %q and %q up to %d", stdout, stderr, end)
	}
	if first, last := events[0], events[len(events)-1]; first.name != "start" || last.name != "exit" {
		t.Errorf("got first event %s and last event %s", first.name, last.name)
	}
	var x wire.Exec
	json.Unmarshal([]byte(events[len(events)-1].data), &x)
	if code(x) != 3 {
		t.Errorf("exit event %+v, want code 3", x)
	}
	self := head.Get("Location")
	if self == "" {
		t.Fatal("the response has no Location of the command")
	}
	// The rest of the output is the same from every offset.
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
		t.Errorf("viewer: got %+v", p)
	}
	// The output of a stopped jail is still available.
	d.want(200, req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/stop"}, nil)
	_, kept := d.events(req{as: access.Viewer, method: "GET", path: self, header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": "5"}}, -1)
	if out, errs, next := text(t, kept); len(out)+len(errs) != 8 || next != 13 {
		t.Errorf("of a stopped jail, from 5: %q and %q", out, errs)
	}
}

func TestClientDisconnectDoesNotEndCommand(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	file := t.TempDir() + "/done"
	head, _ := d.events(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: "echo here; sleep 0.3; echo still; touch " + file, Stream: true}}, 2)
	x := d.wait(head.Get("Location"))
	if x.Stdout != "here\nstill\n" || code(x) != 0 {
		t.Errorf("after the client disconnected: got %+v", x)
	}
}

func TestLosslessStreamIsComplete(t *testing.T) {
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
		t.Errorf("got %d lines, want 500000", strings.Count(got, "\n"))
	}
}

// muchOutput exceeds the socket buffers between server and client.
const muchOutput = 32 << 20

// startMuchOutput starts a command that writes muchOutput to a lossless stream. The client has
// not read anything yet.
func (d *harness) startMuchOutput(j id.Jail) *http.Response {
	d.t.Helper()
	resp := d.send(req{as: access.Operator, method: "POST", path: "/jails/" + string(j) + "/exec",
		body: wire.ExecRequest{Cmd: fmt.Sprintf("head -c %d /dev/zero", muchOutput), Stream: true, Lossless: true, KeepBytes: 64 << 10}})
	d.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Location") == "" {
		d.t.Fatalf("exec: %s of the command %q", resp.Status, resp.Header.Get("Location"))
	}
	return resp
}

// outcome returns the bytes of output in the events, the bytes reported as lost, and the last
// event.
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

// Init detaches a lossless reader whose lease is not renewed. The server renews it for a
// client that reads slowly.
func TestLosslessStreamWaitsForPausedReader(t *testing.T) {
	const grace = 1500 * time.Millisecond
	t.Cleanup(api.HurryOutput(time.Minute, grace/50))
	d := open(t, apitest.StartWithGrace(t, grace))
	resp := d.startMuchOutput(d.running())
	time.Sleep(2 * grace) // the pause
	var x wire.Exec
	d.want(200, req{as: access.Viewer, method: "GET", path: resp.Header.Get("Location")}, &x)
	if !x.Running {
		t.Errorf("command ended after %d bytes while the client paused, want running", x.StdoutBytes)
	}
	bytes, lost, last := outcome(t, readEvents(resp.Body, -1))
	if bytes != muchOutput || lost != 0 || last.name != "exit" {
		t.Errorf("got %d bytes, %d lost, then %s %s; want %d, none, and the exit", bytes, lost, last.name, last.data, muchOutput)
	}
}

// The stream of a client that does not read for too long ends without the event exit or error.
// A client that reconnects loses nothing.
func TestLosslessStreamResumesAfterDisconnect(t *testing.T) {
	undo := api.HurryOutput(500*time.Millisecond, 50*time.Millisecond)
	t.Cleanup(undo)
	d := open(t, apitest.Start(t))
	resp := d.startMuchOutput(d.running())
	for end := time.Now().Add(20 * time.Second); !strings.Contains(d.metrics(), `glasshouse_http_streams{kind="exec"} 0`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stream is open after 20 s without reads, want it closed")
		}
	}
	undo() // the next stream has a reader
	bytes, lost, last := outcome(t, readEvents(resp.Body, -1))
	if bytes >= muchOutput || lost != 0 || last.name != "output" {
		t.Fatalf("before the disconnect: got %d bytes, %d lost, then %s %s; want less than %d, none, and output", bytes, lost, last.name, last.data, muchOutput)
	}
	_, rest := d.events(req{as: access.Operator, method: "GET", path: resp.Header.Get("Location") + "?lossless=1",
		header: map[string]string{"Accept": "text/event-stream", "Last-Event-ID": last.id}}, -1)
	more, lost, last := outcome(t, rest)
	if bytes+more != muchOutput || lost != 0 || last.name != "exit" {
		t.Errorf("after the reconnect: got %d bytes, %d lost, then %s %s; want %d, none, and the exit", more, lost, last.name, last.data, muchOutput-bytes)
	}
}
