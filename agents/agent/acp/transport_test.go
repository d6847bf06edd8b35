package acp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"glasshouse/agents/agent/acp"
	"glasshouse/fault"
)

const (
	helloLine   = `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}` + "\n"
	sessionLine = `{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}` + "\n"
)

func TestMalformedMessagesAreErrors(t *testing.T) {
	open := map[string]string{"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`}
	update := `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":%s}}` + "\n"
	tests := []struct {
		name string
		text string // sent instead of a response to the prompt
		kind fault.Kind
	}{
		{"end of output", "", fault.Unavailable},
		{"half a message", `{"jsonrpc":"2.0","id":3,"resu`, fault.Invalid},
		{"not JSON", "Segmentation fault\n", fault.Invalid},
		{"a list", "[]\n", fault.Invalid},
		{"an empty object", "{}\n", fault.Invalid},
		{"a response to an unknown request", `{"jsonrpc":"2.0","id":99,"result":{}}` + "\n", fault.Invalid},
		{"a response with a string id", `{"jsonrpc":"2.0","id":"3","result":{}}` + "\n", fault.Invalid},
		{"a duplicate response", helloLine, fault.Invalid},
		{"zero bytes", "\x00\x00\x00\n", fault.Invalid},
		{"a line without a newline", strings.Repeat("x", 9<<20), fault.TooLarge},
		{"a giant message", `{"jsonrpc":"2.0","method":"session/update","params":"` + strings.Repeat("x", 9<<20) + `"}` + "\n", fault.TooLarge},
		{"deep JSON", `{"jsonrpc":"2.0","id":3,"result":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}\n", fault.Invalid},
		{"a response of the wrong type", `{"jsonrpc":"2.0","id":3,"result":7}` + "\n", fault.Invalid},
		{"an error", `{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"no"}}` + "\n", fault.Unavailable},
		{"authentication required", `{"jsonrpc":"2.0","id":3,"error":{"code":-32000,"message":"login"}}` + "\n", fault.Unauthenticated},
		{"an update of the wrong type", fmt.Sprintf(update, `7`), fault.Invalid},
		{"a call without an id", fmt.Sprintf(update, `{"sessionUpdate":"tool_call","title":"x"}`), fault.Invalid},
		{"too many requests", strings.Repeat(`{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"c"},"options":[{"optionId":"y","name":"y","kind":"allow_once"}]}}`+"\n", 65), fault.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &host{decide: func(ctx context.Context, _ acp.ToolCall) (acp.Verdict, error) {
				<-ctx.Done()
				return acp.Verdict{}, ctx.Err()
			}}
			in, out := answerThen(open, "session/prompt", tt.text)
			got, err := acp.Drive(t.Context(), acp.Pipes(in, out), h, acp.Options{Cwd: "/", Prompt: "go"})
			if fault.KindOf(err) != tt.kind {
				t.Errorf("err %.300v, want %s", err, tt.kind)
			}
			if got.Session != "s1" || got.Turns != 0 {
				t.Errorf("result %+v", got)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
}

// answerThen is an agent that responds with answers, sends text on a request of method, and
// exits.
func answerThen(answers map[string]string, method, text string) (io.WriteCloser, io.ReadCloser) {
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	go func() {
		defer fromHost.Close()
		defer toHost.Close()
		dec := json.NewDecoder(fromHost)
		for {
			var q struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
			}
			if dec.Decode(&q) != nil {
				return
			}
			if q.Method == method {
				go io.Copy(io.Discard, fromHost)
				io.WriteString(toHost, text)
				return
			}
			fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", q.ID, answers[q.Method])
		}
	}()
	return toAgent, fromAgent
}

// TestBannerBeforeTheFirstMessageIsIgnored, up to a limit.
func TestBannerBeforeTheFirstMessageIsIgnored(t *testing.T) {
	in, out := answerThen(nil, "initialize", "Welcome!\n\n(node:1) Warning: old\n"+helloLine)
	if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "go"}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("err %v, want unavailable", err)
	}
	in, out = answerThen(nil, "initialize", strings.Repeat("Welcome!\n", 100))
	if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "go"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("err %v, want invalid", err)
	}
}

// TestManyUpdatesApplyBackpressure checks that no update is lost. Without backpressure the SDK
// would drop updates.
func TestManyUpdatesApplyBackpressure(t *testing.T) {
	const many = 5000
	var received int
	h := &host{update: func(u acp.Update) error { received += len(u.Text); return nil }}
	_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		for range many {
			a.say(ctx, "s1", "x")
		}
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil || received != many {
		t.Errorf("received %d bytes: %v, want %d", received, err, many)
	}
}

// TestUpdatesAreRecordedBeforeALaterRequest, even if recording is slow.
func TestUpdatesAreRecordedBeforeALaterRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var recorded int
		h := &host{update: func(acp.Update) error { time.Sleep(time.Second); recorded++; return nil }}
		h.decide = func(context.Context, acp.ToolCall) (acp.Verdict, error) {
			if recorded != 2 { // the text and the call
				t.Errorf("%d earlier updates are recorded, want 2", recorded)
			}
			return acp.Verdict{Allow: true}, nil
		}
		_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
			for range 10 {
				a.say(ctx, "s1", "x")
			}
			_, err := a.ask(ctx, "c1", "ls", usual...)
			return sdk.StopReasonEndTurn, err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// An agent that does not read is stopped when too many messages are queued.
func TestAgentThatDoesNotReadIsStopped(t *testing.T) {
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	go func() {
		r := bufio.NewReader(fromHost)
		for _, answer := range []string{helloLine, sessionLine} {
			r.ReadString('\n')
			io.WriteString(toHost, answer)
		}
		r.ReadString('\n')
		for i := 0; ; i++ {
			// Requests that are answered immediately with an error.
			if _, err := fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"fs/read_text_file\",\"params\":{}}\n", i); err != nil {
				return
			}
		}
	}()
	_, err := acp.Drive(t.Context(), acp.Pipes(toAgent, fromAgent), &host{}, acp.Options{Cwd: "/", Prompt: "go"})
	if err == nil || !strings.Contains(err.Error(), "does not read") && !strings.Contains(err.Error(), "unanswered requests") {
		t.Errorf("err %v, want an error about unread messages", err)
	}
}

// TestConcurrentPermissionRequests checks that each request gets its own verdict.
func TestConcurrentPermissionRequests(t *testing.T) {
	h := &host{decide: func(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
		return acp.Verdict{Allow: strings.HasSuffix(c.Command, "0"), Reason: "odd"}, nil
	}}
	_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				id := fmt.Sprint("c", i)
				out, err := a.ask(ctx, id, "ls "+id, usual...)
				if want := map[bool]sdk.PermissionOptionId{true: "once", false: "reject"}[i%10 == 0]; err != nil || out.Selected.OptionId != want {
					t.Errorf("%s: %+v, %v, want %s", id, out, err, want)
				}
			})
		}
		wg.Wait()
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil || len(h.asked) != 60 {
		t.Errorf("%d decisions, want 60: %v", len(h.asked), err)
	}
}

// An agent that uses an id for two open requests cancels the later one, and the end of one request
// does not affect the other.
func TestRequestsWithTheSameIDAreCancelledSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, ended := make(chan string, 3), make(chan string, 3)
		h := &host{decide: func(ctx context.Context, c acp.ToolCall) (acp.Verdict, error) {
			started <- c.ID
			<-ctx.Done()
			ended <- c.ID
			return acp.Verdict{}, ctx.Err()
		}}
		fromHost, toAgent := io.Pipe()
		fromAgent, toHost := io.Pipe()
		driven := make(chan error, 1)
		go func() {
			_, err := acp.Drive(t.Context(), acp.Pipes(toAgent, fromAgent), h, acp.Options{Cwd: "/", Prompt: "go"})
			driven <- err
		}()
		r := bufio.NewReader(fromHost)
		for _, answer := range []string{helloLine, sessionLine, ""} {
			r.ReadString('\n')
			io.WriteString(toHost, answer)
		}
		go io.Copy(io.Discard, r)
		for _, call := range []string{"first", "second", "third"} {
			fmt.Fprintf(toHost, `{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":%q},"options":[{"optionId":"y","name":"y","kind":"allow_once"}]}}`+"\n", call)
			<-started
		}
		for _, want := range []string{"third", "second", "first"} {
			io.WriteString(toHost, `{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":7}}`+"\n")
			synctest.Wait()
			select {
			case got := <-ended:
				if got != want {
					t.Errorf("cancelled the %s request, want the %s", got, want)
				}
			default:
				t.Errorf("no request was cancelled, want the %s", want)
			}
		}
		toHost.Close()
		<-driven
	})
}

func TestOtherSessionsAreRejected(t *testing.T) {
	h := &host{}
	_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		a.say(ctx, "s2", "another's")
		_, err := a.conn.RequestPermission(ctx, sdk.RequestPermissionRequest{SessionId: "s2", ToolCall: sdk.ToolCallUpdate{ToolCallId: "c"}, Options: usual})
		if err == nil || !strings.Contains(err.Error(), "unknown session") {
			t.Errorf("err %v, want unknown session", err)
		}
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil || len(h.asked) != 0 || len(h.events()) != 0 {
		t.Errorf("decisions %v, updates %q: %v; want none", h.asked, h.events(), err)
	}
}

// fullHost is a Host that implements Files and Terminals.
type fullHost struct {
	host
	log []string
}

func (w *fullHost) record(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *fullHost) ReadFile(_ context.Context, _ int64, path string, line, limit int) (string, error) {
	w.record("read %s %d %d", path, line, limit)
	if path == "/secret" {
		return "", fault.Newf(fault.Denied, "read", path, "not for agents")
	}
	if path == "/broken" {
		return "", errors.New("disk sda is on fire")
	}
	return "text", nil
}
func (w *fullHost) WriteFile(_ context.Context, _ int64, path, content string) error {
	w.record("write %s %s", path, content)
	return nil
}
func (w *fullHost) CreateTerminal(_ context.Context, _ int64, c acp.Command) (string, error) {
	w.record("create %q %q %s %d", c.Argv, c.Env, c.Cwd, c.Limit)
	return "t1", nil
}
func (w *fullHost) TerminalOutput(_ context.Context, id string) (acp.Output, error) {
	w.record("output %s", id)
	return acp.Output{Text: "out", Truncated: true, Exit: &acp.Exit{Signal: "SIGKILL"}}, nil
}
func (w *fullHost) WaitTerminal(_ context.Context, id string) (acp.Exit, error) {
	w.record("wait %s", id)
	return acp.Exit{Code: 3}, nil
}
func (w *fullHost) KillTerminal(_ context.Context, id string) error {
	w.record("kill %s", id)
	return nil
}
func (w *fullHost) ReleaseTerminal(_ context.Context, id string) error {
	w.record("release %s", id)
	return nil
}

func TestHostServesFilesAndTerminals(t *testing.T) {
	w := &fullHost{}
	_, _, err := drive(t.Context(), w, acp.Options{Prompt: "go", Cwd: "/work"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		read, err := a.conn.ReadTextFile(ctx, sdk.ReadTextFileRequest{SessionId: "s1", Path: "/a", Line: sdk.Ptr(-1)})
		if err != nil || read.Content != "text" {
			t.Errorf("read %+v, %v", read, err)
		}
		_, err = a.conn.ReadTextFile(ctx, sdk.ReadTextFileRequest{SessionId: "s1", Path: "/secret"})
		if err == nil || !strings.Contains(err.Error(), "not for agents") {
			t.Errorf("err %v, want the reason", err)
		}
		_, err = a.conn.ReadTextFile(ctx, sdk.ReadTextFileRequest{SessionId: "s1", Path: "/broken"})
		if err == nil || strings.Contains(err.Error(), "sda") {
			t.Errorf("err %v discloses an internal error", err)
		}
		if _, err := a.conn.WriteTextFile(ctx, sdk.WriteTextFileRequest{SessionId: "s1", Path: "/a", Content: "b"}); err != nil {
			t.Error(err)
		}
		term, err := a.conn.CreateTerminal(ctx, sdk.CreateTerminalRequest{SessionId: "s1", Command: "make", Args: []string{"test"}, Env: []sdk.EnvVariable{{Name: "A", Value: "1"}}, OutputByteLimit: sdk.Ptr(9)})
		if err != nil || term.TerminalId != "t1" {
			t.Errorf("create %+v, %v", term, err)
		}
		out, err := a.conn.TerminalOutput(ctx, sdk.TerminalOutputRequest{SessionId: "s1", TerminalId: "t1"})
		if err != nil || out.Output != "out" || !out.Truncated || *out.ExitStatus.Signal != "SIGKILL" || out.ExitStatus.ExitCode != nil {
			t.Errorf("output %+v, %v", out, err)
		}
		exit, err := a.conn.WaitForTerminalExit(ctx, sdk.WaitForTerminalExitRequest{SessionId: "s1", TerminalId: "t1"})
		if err != nil || *exit.ExitCode != 3 || exit.Signal != nil {
			t.Errorf("exit %+v, %v", exit, err)
		}
		_, err = a.conn.KillTerminal(ctx, sdk.KillTerminalRequest{SessionId: "s1", TerminalId: "t1"})
		_, err2 := a.conn.ReleaseTerminal(ctx, sdk.ReleaseTerminalRequest{SessionId: "s1", TerminalId: "t1"})
		return sdk.StopReasonEndTurn, errors.Join(err, err2)
	})
	want := []string{
		"read /a 1 0", "read /secret 1 0", "read /broken 1 0", "write /a b", `create ["make" "test"] ["A=1"] /work 9`, "output t1", "wait t1", "kill t1", "release t1",
	}
	if err != nil || !slices.Equal(w.log, want) {
		t.Errorf("host calls %q: %v, want %q", w.log, err, want)
	}
}

// TestUnofferedMethodsAreNotFound covers files, terminals and extensions.
func TestUnofferedMethodsAreNotFound(t *testing.T) {
	_, _, err := drive(t.Context(), &host{}, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		_, err1 := a.conn.ReadTextFile(ctx, sdk.ReadTextFileRequest{SessionId: "s1", Path: "/a"})
		_, err2 := a.conn.CreateTerminal(ctx, sdk.CreateTerminalRequest{SessionId: "s1", Command: "sh"})
		_, err3 := a.conn.CallExtension(ctx, "_anything", nil)
		for _, err := range []error{err1, err2, err3} {
			if e, ok := errors.AsType[*sdk.RequestError](err); !ok || e.Code != -32601 {
				t.Errorf("err %v, want method not found", err)
			}
		}
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// FuzzAgentOutput sends arbitrary output after a prompt. Drive must return and must not
// choose a permanent option.
func FuzzAgentOutput(f *testing.F) {
	for _, s := range []string{
		"", "\n", "{}", helloLine,
		`{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"c"},"options":[{"optionId":"a","name":"a","kind":"allow_always"},{"optionId":"y","name":"y","kind":"allow_once"}]}}` + "\n",
		`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":"c","rawInput":{"command":["sh","-c","x"]},"content":[{"type":"diff","path":"p"}]}}}` + "\n",
		`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"plan","entries":[{"content":"x","status":"y"}]}}}` + "\n" + `{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}` + "\n",
		`{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":0}}` + "\n",
		`{"id":null,"method":"x"}` + "\n" + `{"id":1e1000,"method":"terminal/create","params":{"sessionId":"s1"}}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var sent bytes.Buffer
		in, out := answerThen(map[string]string{"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`}, "session/prompt", string(data))
		_, err := acp.Drive(t.Context(), acp.Pipes(teeWriter{in, &sent}, out), &fullHost{}, acp.Options{Cwd: "/", Prompt: "go", SilenceTimeout: 10 * time.Second})
		if errors.Is(err, fault.Timeout) {
			t.Errorf("%q: %v", data, err)
		}
		// In JSON with duplicate keys the last one counts.
		text := strings.ToLower(string(data))
		once := strings.Count(text, `"kind"`) == strings.Count(text, `"optionid"`)
		if once && bytes.Contains(sent.Bytes(), []byte(`"optionId":"a"`)) {
			t.Errorf("%q: a permanent option was chosen", data)
		}
	})
}

type teeWriter struct {
	io.WriteCloser
	copy io.Writer
}

func (t teeWriter) Write(p []byte) (int, error) {
	t.copy.Write(p)
	return t.WriteCloser.Write(p)
}
