package envd_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"glasshouse/e2b/envd"
	"glasshouse/e2b/envdpb"
	"glasshouse/jail"
)

// TestScenarios runs the tests that can share one jail, because creating a jail takes longer than
// each of the tests.
func TestScenarios(t *testing.T) {
	w := newWorld(t)
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) {
			mine := *w
			mine.TB = t
			scenario(&mine)
		})
	}
}

var scenarios = map[string]func(*world){
	"RunCommand":          runCommand,
	"Codecs":              bothCodecs,
	"EndEvent":            endEvent,
	"FindByPIDAndTag":     findCommand,
	"Stdin":               stdin,
	"StreamInput":         streamedInput,
	"Terminal":            terminal,
	"Signals":             signals,
	"ClientDisconnects":   disconnect,
	"Timeout":             timeouts,
	"Keepalive":           keepalives,
	"LargeOutput":         muchOutput,
	"ErrorCodes":          refusedCalls,
	"MalformedMessages":   malformed,
	"Files":               filesOfAllKinds,
	"ListDir":             listing,
	"MoveAndRemove":       movedAndRemoved,
	"Upload":              uploads,
	"Download":            downloads,
	"Compose":             composed,
	"SignedURLs":          links,
	"AccessTokens":        tokens,
	"PathTraversal":       paths,
	"TruncatedBody":       brokenBodies,
	"WatchDir":            changes,
	"PolledWatcher":       watchers,
	"LostEvents":          missedChanges,
	"Metadata":            metadata,
	"MetricsAndVariables": metrics,
	"ProxyToServers":      ports,
	"BrokenInterpreters":  interpreters,
	"MissingSandbox":      absent,
}

func runCommand(w *world) {
	r := w.run(`echo "$(id -un) $PWD $HOME $USER $LOGNAME $FROM $BOTH"; echo bad >&2`)
	if want := "user /home/user /home/user user user sandbox sandbox\n"; r.out != want || r.err != "bad\n" || r.end.ExitCode != 0 {
		w.Errorf("got %+v, want stdout %q and stderr \"bad\"", r, want)
	}
	if r := w.run("id -u; pwd", "Authorization", basic("root")); r.out != "0\n/root\n" {
		w.Errorf("as root: %q", r.out)
	}
	q := sh(`echo "$PWD $BOTH"`)
	dir := "~/new"
	w.run("mkdir -p new/below")
	q.Process.Cwd, q.Process.Envs = &dir, map[string]string{"BOTH": "request"}
	c, err := w.start(q, "json")
	if err != nil {
		w.Fatal(err)
	}
	if r, err := c.wait(); err != nil || r.out != "/home/user/new request\n" {
		w.Errorf("with a cwd below ~: %q, %v", r.out, err)
	}
	dir = "new/below"
	if c, err = w.start(q, "json"); err != nil {
		w.Fatal(err)
	}
	if r, err := c.wait(); err != nil || r.out != "/home/user/new/below request\n" {
		w.Errorf("with a relative cwd: %q, %v", r.out, err)
	}
}

func bothCodecs(w *world) {
	for codec := range codecs {
		c, err := w.start(sh("echo out; echo err >&2; exit 3"), codec)
		if err != nil {
			w.Fatal(err)
		}
		r, err := c.wait()
		if err != nil || r.out != "out\n" || r.err != "err\n" || r.end.GetExitCode() != 3 {
			w.Errorf("%s: %+v, %v", codec, r, err)
		}
	}
}

func endEvent(w *world) {
	for script, want := range map[string]*envdpb.ProcessEvent_EndEvent{
		"exit 0":      {ExitCode: 0, Exited: true, Status: "exit status 0"},
		"exit 42":     {ExitCode: 42, Exited: true, Status: "exit status 42"},
		"kill -9 $$":  {ExitCode: -1, Status: "signal: killed"},
		"kill -15 $$": {ExitCode: -1, Status: "signal: terminated"},
	} {
		got := w.run(script).end
		if got.ExitCode != want.ExitCode || got.Exited != want.Exited || got.Status != want.Status || (got.Error != nil) != (want.ExitCode != 0) || got.Error != nil && *got.Error != want.Status {
			w.Errorf("%s: %v, want %v", script, got, want)
		}
	}
}

func findCommand(w *world) {
	tag := "mine"
	q := sh("echo early; read -t 60 line < /tmp/none; while :; do echo late; sleep 0.1; done")
	q.Tag, q.Process.Envs = &tag, map[string]string{"A": "b"}
	first, err := w.start(q, "json")
	if err != nil {
		w.Fatal(err)
	}
	first.until("late")
	var found *envdpb.ProcessInfo
	for _, p := range must[envdpb.ListRequest, envdpb.ListResponse](w, "/process.Process/List", &envdpb.ListRequest{}).Processes {
		if p.Pid == first.pid {
			found = p
		}
	}
	if found == nil || found.GetTag() != tag || found.Config.Cmd != "/bin/bash" || len(found.Config.Args) != 3 || found.Config.Envs["A"] != "b" {
		w.Fatalf("the command is listed as %v", found)
	}
	for _, by := range []*envdpb.ProcessSelector{byPID(first.pid), byTag(tag)} {
		c, err := w.connect(by)
		if err != nil {
			w.Fatal(err)
		}
		if c.pid != first.pid {
			w.Errorf("connected to %d, want %d", c.pid, first.pid)
		}
		e, err := c.next()
		if got := string(e.GetData().GetStdout()); err != nil || strings.Contains(got, "early") || !strings.Contains(got, "late") {
			w.Errorf("the first output after Connect is %q, %v; want only new output", got, err)
		}
		c.cancel()
	}
	must[envdpb.SendSignalRequest, envdpb.SendSignalResponse](w, "/process.Process/SendSignal", &envdpb.SendSignalRequest{Process: byTag(tag), Signal: envdpb.Signal_SIGNAL_SIGKILL})
	if r, err := first.wait(); err != nil || r.end.GetStatus() != "signal: killed" {
		w.Errorf("the command ended with %v, %v", r.end, err)
	}
	_, err = w.connect(byPID(first.pid))
	w.wantCode(err, connect.CodeNotFound, "not found")
	_, err = w.connect(byTag(tag))
	w.wantCode(err, connect.CodeNotFound, "not found")
}

func send(w *world, pid uint32, i *envdpb.ProcessInput) error {
	_, err := call[envdpb.SendInputRequest, envdpb.SendInputResponse](w, "/process.Process/SendInput", &envdpb.SendInputRequest{Process: byPID(pid), Input: i})
	return err
}

func toStdin(s string) *envdpb.ProcessInput {
	return &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte(s)}}
}

func toPTY(s string) *envdpb.ProcessInput {
	return &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Pty{Pty: []byte(s)}}
}

func closeInput(w *world, pid uint32) error {
	_, err := call[envdpb.CloseStdinRequest, envdpb.CloseStdinResponse](w, "/process.Process/CloseStdin", &envdpb.CloseStdinRequest{Process: byPID(pid)})
	return err
}

func stdin(w *world) {
	q := sh(`cat; echo over`)
	q.Stdin = nil // older clients do not set it, and stdin stays open
	c, err := w.start(q, "json")
	if err != nil {
		w.Fatal(err)
	}
	for _, s := range []string{"one ", "two\n"} {
		if err := send(w, c.pid, toStdin(s)); err != nil {
			w.Fatal(err)
		}
	}
	w.wantCode(send(w, c.pid, toPTY("x")), connect.CodeInternal, "no terminal")
	if err := closeInput(w, c.pid); err != nil {
		w.Fatal(err)
	}
	if r, err := c.wait(); err != nil || r.out != "one two\nover\n" {
		w.Errorf("got %q, %v", r.out, err)
	}
	w.wantCode(send(w, c.pid, toStdin("x")), connect.CodeNotFound, "not found")

	without, err := w.start(sh("sleep 60"), "json")
	if err != nil {
		w.Fatal(err)
	}
	w.wantCode(send(w, without.pid, toStdin("x")), connect.CodeInternal, "stdin")
	if err := closeInput(w, without.pid); err != nil {
		w.Errorf("CloseStdin of a closed stdin: %v", err)
	}
	kill(w, without.pid)
}

func kill(w *world, pid uint32) {
	w.Helper()
	must[envdpb.SendSignalRequest, envdpb.SendSignalResponse](w, "/process.Process/SendSignal", &envdpb.SendSignalRequest{Process: byPID(pid), Signal: envdpb.Signal_SIGNAL_SIGKILL})
}

func streamedInput(w *world) {
	q := sh("head -c 300000 | sha256sum")
	q.Stdin = nil
	c, err := w.start(q, "json")
	if err != nil {
		w.Fatal(err)
	}
	s := connect.NewClient[envdpb.StreamInputRequest, envdpb.StreamInputResponse](http.DefaultClient, w.url+"/process.Process/StreamInput", connect.WithProtoJSON()).CallClientStream(w.Context())
	begin := &envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Start{Start: &envdpb.StreamInputRequest_StartEvent{Process: byPID(c.pid)}}}
	if err := s.Send(begin); err != nil {
		w.Fatal(err)
	}
	for range 30 {
		data := &envdpb.StreamInputRequest_DataEvent{Input: toStdin(strings.Repeat("a", 10_000))}
		if err := s.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Data{Data: data}}); err != nil {
			w.Fatal(err)
		}
	}
	if err := s.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Keepalive{}}); err != nil {
		w.Fatal(err)
	}
	if _, err := s.CloseAndReceive(); err != nil {
		w.Fatal(err)
	}
	want := w.run("head -c 300000 /dev/zero | tr '\\0' a | sha256sum").out
	if r, err := c.wait(); err != nil || r.out != want {
		w.Errorf("got %q, %v; want %q", r.out, err, want)
	}

	early := connect.NewClient[envdpb.StreamInputRequest, envdpb.StreamInputResponse](http.DefaultClient, w.url+"/process.Process/StreamInput").CallClientStream(w.Context())
	early.Send(&envdpb.StreamInputRequest{Event: &envdpb.StreamInputRequest_Data{Data: &envdpb.StreamInputRequest_DataEvent{Input: toStdin("x")}}})
	_, err = early.CloseAndReceive()
	w.wantCode(err, connect.CodeInvalidArgument, "before the start")
}

func terminal(w *world) {
	q := &envdpb.StartRequest{
		Process: &envdpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-i", "-l"}, Envs: map[string]string{"PS1": "$ "}},
		Pty:     &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 91, Rows: 31}},
	}
	c, err := w.start(q, "json")
	if err != nil {
		w.Fatal(err)
	}
	type_ := func(s string) {
		w.Helper()
		if err := send(w, c.pid, toPTY(s)); err != nil {
			w.Fatal(err)
		}
	}
	type_("test -t 0 && shopt -s checkwinsize; /bin/true; echo size:$LINES:$COLUMNS\n")
	c.until("size:31:91")
	must[envdpb.UpdateRequest, envdpb.UpdateResponse](w, "/process.Process/Update", &envdpb.UpdateRequest{
		Process: byPID(c.pid), Pty: &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 120, Rows: 40}},
	})
	type_("/bin/true; echo size:$LINES:$COLUMNS\n")
	c.until("size:40:120")
	w.wantCode(send(w, c.pid, toStdin("x")), connect.CodeInternal, "terminal")
	w.wantCode(closeInput(w, c.pid), connect.CodeUnknown, "Ctrl+D")
	type_("exit 7\n")
	if r, err := c.wait(); err != nil || r.end.GetExitCode() != 7 {
		w.Errorf("ended with %v, %v", r.end, err)
	}
}

func signals(w *world) {
	c, err := w.start(sh("trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done"), "json")
	if err != nil {
		w.Fatal(err)
	}
	c.until("ready")
	_, err = call[envdpb.SendSignalRequest, envdpb.SendSignalResponse](w, "/process.Process/SendSignal", &envdpb.SendSignalRequest{Process: byPID(c.pid)})
	w.wantCode(err, connect.CodeUnimplemented, "SIGKILL")
	must[envdpb.SendSignalRequest, envdpb.SendSignalResponse](w, "/process.Process/SendSignal", &envdpb.SendSignalRequest{Process: byPID(c.pid), Signal: envdpb.Signal_SIGNAL_SIGTERM})
	if r, err := c.wait(); err != nil || r.end.GetExitCode() != 5 || !strings.Contains(r.out, "told") {
		w.Errorf("ended with %v, %v", r.end, err)
	}
	_, err = call[envdpb.SendSignalRequest, envdpb.SendSignalResponse](w, "/process.Process/SendSignal", &envdpb.SendSignalRequest{Process: byPID(c.pid), Signal: envdpb.Signal_SIGNAL_SIGKILL})
	w.wantCode(err, connect.CodeNotFound, "not found")
}

func disconnect(w *world) {
	c, err := w.start(sh("echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done"), "json")
	if err != nil {
		w.Fatal(err)
	}
	c.until("ready")
	c.cancel()
	again, err := w.connect(byPID(c.pid))
	if err != nil {
		w.Fatal(err)
	}
	w.run("touch /tmp/go")
	if r, err := again.wait(); err != nil || r.out != "done\n" || r.end.GetExitCode() != 0 {
		w.Errorf("got %+v, %v", r, err)
	}
}

func timeouts(w *world) {
	c, err := w.start(sh("echo ready; exec sleep 60"), "json", "Connect-Timeout-Ms", "5000")
	if err != nil {
		w.Fatal(err)
	}
	_, err = c.wait()
	w.wantCode(err, connect.CodeDeadlineExceeded, "")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := w.connect(byPID(c.pid)); connect.CodeOf(err) == connect.CodeNotFound {
			break
		}
		if time.Now().After(deadline) {
			w.Fatal("the command still runs after its timeout")
		}
	}
	_, err = w.start(sh("true"), "json", "Connect-Timeout-Ms", "soon")
	w.wantCode(err, connect.CodeInvalidArgument, "")
}

func keepalives(w *world) {
	c, err := w.start(sh("sleep 2.5"), "json", "Keepalive-Ping-Interval", "1")
	if err != nil {
		w.Fatal(err)
	}
	if r, err := c.wait(); err != nil || r.alive == 0 {
		w.Errorf("got %d keepalives in 2.5 seconds, want one per second (%v)", r.alive, err)
	}
}

func muchOutput(w *world) {
	c, err := w.start(sh("seq 1 700000"), "proto")
	if err != nil {
		w.Fatal(err)
	}
	r, err := c.wait()
	if want := "\n700000\n"; err != nil || len(r.out) != 4788895 || !strings.HasSuffix(r.out, want) {
		w.Errorf("%d bytes, %v", len(r.out), err)
	}
}

func refusedCalls(w *world) {
	_, err := w.start(&envdpb.StartRequest{}, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "process.cmd is required")
	_, err = w.start(sh("true"), "json", "Authorization", basic("nobody-here"))
	w.wantCode(err, connect.CodeUnauthenticated, "nobody-here")
	for _, name := range []string{"0", "us/er", strings.Repeat("x", 300)} {
		_, err = w.start(sh("true"), "json", "Authorization", basic(name))
		w.wantCode(err, connect.CodeUnauthenticated, "invalid username")
	}
	nowhere := sh("true")
	dir := "/no/such/dir"
	nowhere.Process.Cwd = &dir
	_, err = w.start(nowhere, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "no such directory")
	dir = "~root/x"
	_, err = w.start(nowhere, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "~user is not supported")
	_, err = w.start(&envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/no/such/program"}}, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "no such file")
	_, err = w.start(&envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/bin/bash", Envs: map[string]string{"A=B\x00": "x"}}}, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "")
	_, err = w.start(&envdpb.StartRequest{Process: &envdpb.ProcessConfig{Cmd: "/bin/bash"}, Pty: &envdpb.PTY{Size: &envdpb.PTY_Size{Cols: 70000}}}, "json")
	w.wantCode(err, connect.CodeInvalidArgument, "large")
	_, err = w.connect(&envdpb.ProcessSelector{})
	w.wantCode(err, connect.CodeInvalidArgument, "pid or tag")
	_, err = w.connect(byPID(1))
	w.wantCode(err, connect.CodeNotFound, "not found")
}

// malformed sends requests that violate the protocol.
func malformed(w *world) {
	for name, q := range map[string]struct {
		kind, body string
		status     int
	}{
		"invalid JSON":             {"application/json", `{"path":`, http.StatusBadRequest},
		"wrong field type":         {"application/json", `{"path":{}}`, http.StatusBadRequest},
		"invalid protobuf":         {"application/proto", "\xff\xff\xff", http.StatusBadRequest},
		"unsupported content type": {"text/plain", "x", http.StatusUnsupportedMediaType},
		"too large":                {"application/json", `{"path":"` + strings.Repeat("a", 9<<20) + `"}`, http.StatusTooManyRequests},
	} {
		status, text, _ := w.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(q.body), "Content-Type", q.kind)
		if status != q.status {
			w.Errorf("%s: %d %.200s, want %d", name, status, text, q.status)
		}
	}
	for name, body := range map[string]string{
		"length without data": "\x00\xff\xff\xff\xff",
		"truncated frame":     "\x00\x00\x00\x00\x10{}",
		"unknown flag":        "\x80\x00\x00\x00\x02{}",
		"empty":               "",
		"two messages":        "\x00\x00\x00\x00\x02{}\x00\x00\x00\x00\x02{}",
	} {
		status, text, _ := w.do("POST", "/process.Process/Start", strings.NewReader(body), "Content-Type", "application/connect+json")
		if status != http.StatusOK || !strings.Contains(text, `"error"`) {
			w.Errorf("%s: %d %.200q, want an error at the end of the stream", name, status, text)
		}
	}
	if status, _, _ := w.do("GET", "/process.Process/List", nil); status != http.StatusMethodNotAllowed {
		w.Errorf("GET of an RPC: status %d", status)
	}
	if status, _, _ := w.do("POST", "/init", strings.NewReader("{}")); status != http.StatusUnauthorized {
		w.Errorf("/init from a client: got %d, want 401", status)
	}
	a := must[envdpb.StatRequest, envdpb.StatResponse](w, "/filesystem.Filesystem/Stat", &envdpb.StatRequest{Path: "/"})
	if a.GetEntry().GetType() != envdpb.FileType_FILE_TYPE_DIRECTORY {
		w.Errorf("/ is %v", a)
	}
	status, _, _ := w.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"/","new_field":[1,{"a":null}]}`), "Content-Type", "application/json")
	if status != http.StatusOK {
		w.Errorf("a request with an unknown field: status %d", status)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	w := newWorld(t)
	c, err := w.start(sh("echo ready; sleep 60"), "json")
	if err != nil {
		t.Fatal(err)
	}
	c.until("ready")
	closed := make(chan error, 1)
	go func() { closed <- w.envd.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Close has not returned while a stream is open")
	}
	if _, err := c.wait(); err == nil {
		t.Error("the stream ended without an error")
	}
	if status, _, _ := w.do("GET", "/health", nil); status != http.StatusServiceUnavailable {
		t.Errorf("after Close: status %d, want 503", status)
	}
	execs, err := w.jails.Execs(context.Background(), w.jail)
	if err != nil || len(execs) != 1 || execs[0].Ended != nil {
		t.Errorf("after Close the commands are %v, %v; want one running", execs, err)
	}
}

func TestStreamErrorNamesReason(t *testing.T) {
	w := newWorld(t)
	var streams [3]*command
	for i, sandbox := range []string{"open", "other", "tls"} {
		c, err := w.start(sh("sleep 60"), "json", "E2b-Sandbox-Id", sandbox, "X-Access-Token", "another")
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = c
	}
	w.mu.Lock()
	delete(w.all, "open")
	w.all["other"] = envd.Box{}
	w.mu.Unlock()
	if _, err := w.jails.Stop(t.Context(), w.jail, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"open: the sandbox was killed or reached its end of life", "other: the sandbox was paused", ""} {
		_, err := streams[i].wait()
		w.wantCode(err, connect.CodeUnavailable, want)
	}
}
