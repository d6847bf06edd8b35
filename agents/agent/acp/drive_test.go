package acp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// host is a Host with functions that a test sets.
type host struct {
	decide func(context.Context, acp.ToolCall) (acp.Verdict, error)
	update func(acp.Update) error
	next   func(context.Context, acp.Turn) (string, error)

	mu      sync.Mutex
	asked   []acp.ToolCall
	updates []acp.Update
}

func (h *host) Decide(ctx context.Context, c acp.ToolCall) (acp.Verdict, error) {
	h.mu.Lock()
	h.asked = append(h.asked, c)
	h.mu.Unlock()
	if h.decide == nil {
		return acp.Verdict{Allow: true}, nil
	}
	return h.decide(ctx, c)
}

func (h *host) Update(_ context.Context, u acp.Update) error {
	h.mu.Lock()
	h.updates = append(h.updates, u)
	h.mu.Unlock()
	if h.update == nil {
		return nil
	}
	return h.update(u)
}

func (h *host) Next(ctx context.Context, t acp.Turn) (string, error) {
	if h.next == nil {
		return "", nil
	}
	return h.next(ctx, t)
}

// events returns the updates in a short form.
func (h *host) events() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, u := range h.updates {
		s := string(u.Event)
		switch u.Event {
		case acp.Message, acp.Thought:
			s += " " + u.Text
		case acp.Announced, acp.Refused:
			s += " " + u.Call.ID
		case acp.Ended:
			s += fmt.Sprintf(" %s done=%t asked=%t refused=%t", u.Call.ID, u.Outcome.Done, u.Outcome.Asked, u.Outcome.Refused)
		}
		all = append(all, s)
	}
	return all
}

// An agentSide is an agent that uses the SDK. A test sets the function of a turn.
type agentSide struct {
	conn   *sdk.AgentSideConnection
	hello  sdk.InitializeResponse
	prompt func(context.Context, *agentSide, string) (sdk.StopReason, error)

	cancelled chan struct{}
	loaded    []string
	busy      sync.RWMutex // read-locked during a turn
	over      bool         // the session has ended
}

func (a *agentSide) Initialize(context.Context, sdk.InitializeRequest) (sdk.InitializeResponse, error) {
	return a.hello, nil
}
func (a *agentSide) NewSession(context.Context, sdk.NewSessionRequest) (sdk.NewSessionResponse, error) {
	return sdk.NewSessionResponse{SessionId: "s1"}, nil
}
func (a *agentSide) LoadSession(ctx context.Context, p sdk.LoadSessionRequest) (sdk.LoadSessionResponse, error) {
	a.loaded = append(a.loaded, string(p.SessionId))
	a.say(ctx, string(p.SessionId), "the past")
	return sdk.LoadSessionResponse{}, nil
}
func (a *agentSide) Prompt(ctx context.Context, p sdk.PromptRequest) (sdk.PromptResponse, error) {
	a.busy.RLock()
	defer a.busy.RUnlock()
	if a.over {
		return sdk.PromptResponse{}, errors.New("the session has ended")
	}
	stop, err := a.prompt(ctx, a, p.Prompt[0].Text.Text)
	return sdk.PromptResponse{StopReason: stop}, err
}
func (a *agentSide) Cancel(context.Context, sdk.CancelNotification) error {
	close(a.cancelled)
	return nil
}
func (a *agentSide) Authenticate(context.Context, sdk.AuthenticateRequest) (sdk.AuthenticateResponse, error) {
	return sdk.AuthenticateResponse{}, nil
}
func (a *agentSide) CloseSession(context.Context, sdk.CloseSessionRequest) (sdk.CloseSessionResponse, error) {
	return sdk.CloseSessionResponse{}, nil
}
func (a *agentSide) ListSessions(context.Context, sdk.ListSessionsRequest) (sdk.ListSessionsResponse, error) {
	return sdk.ListSessionsResponse{}, nil
}
func (a *agentSide) ResumeSession(context.Context, sdk.ResumeSessionRequest) (sdk.ResumeSessionResponse, error) {
	return sdk.ResumeSessionResponse{}, nil
}
func (a *agentSide) SetSessionConfigOption(context.Context, sdk.SetSessionConfigOptionRequest) (sdk.SetSessionConfigOptionResponse, error) {
	return sdk.SetSessionConfigOptionResponse{}, nil
}
func (a *agentSide) SetSessionMode(context.Context, sdk.SetSessionModeRequest) (sdk.SetSessionModeResponse, error) {
	return sdk.SetSessionModeResponse{}, nil
}

func (a *agentSide) say(ctx context.Context, session, text string) {
	a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: sdk.SessionId(session), Update: sdk.UpdateAgentMessageText(text)})
}

// ask requests permission to run a command.
func (a *agentSide) ask(ctx context.Context, call, command string, options ...sdk.PermissionOption) (sdk.RequestPermissionOutcome, error) {
	got, err := a.conn.RequestPermission(ctx, sdk.RequestPermissionRequest{
		SessionId: "s1", Options: options,
		ToolCall: sdk.ToolCallUpdate{ToolCallId: sdk.ToolCallId(call), Title: &command, Kind: sdk.Ptr(sdk.ToolKindExecute), RawInput: map[string]any{"command": command}},
	})
	return got.Outcome, err
}

func option(id, kind string) sdk.PermissionOption {
	return sdk.PermissionOption{OptionId: sdk.PermissionOptionId(id), Name: id, Kind: sdk.PermissionOptionKind(kind)}
}

var usual = []sdk.PermissionOption{option("once", "allow_once"), option("always", "allow_always"), option("reject", "reject_once")}

// drive runs a session of h with an agent that executes prompt in each turn.
func drive(ctx context.Context, h acp.Host, o acp.Options, prompt func(context.Context, *agentSide, string) (sdk.StopReason, error)) (acp.Result, *agentSide, error) {
	a := &agentSide{
		prompt: prompt, cancelled: make(chan struct{}),
		hello: sdk.InitializeResponse{ProtocolVersion: 1, AgentInfo: &sdk.Implementation{Name: "Test", Version: "1.0"}, AgentCapabilities: sdk.AgentCapabilities{LoadSession: true}},
	}
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	a.conn = sdk.NewAgentSideConnection(a, toHost, fromHost)
	a.conn.SetLogger(slog.New(slog.DiscardHandler))
	if o.Cwd == "" {
		o.Cwd = "/work"
	}
	got, err := acp.Drive(ctx, acp.Pipes(toAgent, fromAgent), h, o)
	<-a.conn.Done()
	a.busy.Lock()
	defer a.busy.Unlock()
	a.over = true
	return got, a, err
}

func TestDriveRunsTurnsUntilThePromptIsEmpty(t *testing.T) {
	messages := []string{"and the tests"}
	h := &host{next: func(_ context.Context, turn acp.Turn) (string, error) {
		if turn.Stop != "end_turn" {
			t.Errorf("turn = %+v, want stop reason end_turn", turn)
		}
		if len(messages) == 0 {
			return "", nil
		}
		m := messages[0]
		messages = messages[1:]
		return m, nil
	}}
	got, _, err := drive(t.Context(), h, acp.Options{Prompt: "write it"}, func(ctx context.Context, a *agentSide, text string) (sdk.StopReason, error) {
		a.say(ctx, "s1", "doing: ")
		a.say(ctx, "s1", text)
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Session != "s1" || got.Agent != "Test 1.0" || got.Turns != 2 || got.Last.Text != "doing: and the tests" {
		t.Errorf("result %+v", got)
	}
	want := []string{"message doing: write it", "message doing: and the tests"}
	if !slices.Equal(h.events(), want) {
		t.Errorf("updates %q, want %q", h.events(), want)
	}
}

// TestPermissionOptionsAreChosenByKind covers options in any order and with any id. The first
// four cases are options of real agents.
func TestPermissionOptionsAreChosenByKind(t *testing.T) {
	tests := []struct {
		name       string
		options    []sdk.PermissionOption
		yes, no    string // id of the chosen option; "" is cancelled
		neverAsked bool
	}{
		{"opencode", usual, "once", "reject", false},
		{"codex", []sdk.PermissionOption{option("approved", "allow_once"), option("approved-execpolicy-amendment", "allow_always"), option("abort", "reject_once")}, "approved", "abort", false},
		{"claude", []sdk.PermissionOption{option("allow_always", "allow_always"), option("allow", "allow_once"), option("reject", "reject_once")}, "allow", "reject", false},
		{"gemini", []sdk.PermissionOption{option("proceed_always", "allow_always"), option("proceed_once", "allow_once"), option("cancel", "reject_once")}, "proceed_once", "cancel", false},
		{"reject before allow", []sdk.PermissionOption{option("1", "reject_once"), option("2", "allow_once")}, "2", "1", false},
		{"only allow_always", []sdk.PermissionOption{option("always", "allow_always"), option("reject", "reject_once")}, "reject", "reject", true},
		{"two allow_once", []sdk.PermissionOption{option("a", "allow_once"), option("b", "allow_once"), option("reject", "reject_once")}, "reject", "reject", true},
		{"duplicate id", []sdk.PermissionOption{option("x", "allow_once"), option("x", "allow_always"), option("reject", "reject_once")}, "reject", "reject", true},
		{"only reject_always", []sdk.PermissionOption{option("once", "allow_once"), option("never", "reject_always")}, "once", "", false},
		{"no options", []sdk.PermissionOption{}, "", "", true},
		{"unknown kinds", []sdk.PermissionOption{option("once", "allow_twice"), option("reject", "refuse")}, "", "", true},
	}
	for _, tt := range tests {
		for _, allow := range []bool{true, false} {
			want := tt.no
			if allow {
				want = tt.yes
			}
			t.Run(fmt.Sprintf("%s/%t", tt.name, allow), func(t *testing.T) {
				h := &host{decide: func(context.Context, acp.ToolCall) (acp.Verdict, error) {
					return acp.Verdict{Allow: allow, Reason: "because"}, nil
				}}
				var chosen sdk.RequestPermissionOutcome
				got, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (_ sdk.StopReason, err error) {
					chosen, err = a.ask(ctx, "c1", "rm x", tt.options...)
					return sdk.StopReasonEndTurn, err
				})
				if err != nil {
					t.Fatal(err)
				}
				var id string
				if chosen.Selected != nil {
					id = string(chosen.Selected.OptionId)
				}
				if id != want {
					t.Errorf("chosen option %q, want %q", id, want)
				}
				if tt.neverAsked != (len(h.asked) == 0) {
					t.Errorf("%d decisions, want none: %t", len(h.asked), tt.neverAsked)
				}
				if refused := len(got.Last.Refused) > 0; refused == (allow && !tt.neverAsked) {
					t.Errorf("refusals of the last turn = %+v", got.Last.Refused)
				}
			})
		}
	}
}

// OpenCode reports "in_progress" before it requests permission.
func TestInProgressIsIgnored(t *testing.T) {
	h := &host{decide: func(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
		return acp.Verdict{Allow: c.Command == "ls", Reason: "no"}, nil
	}}
	_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		for _, command := range []string{"ls", "rm"} {
			id := sdk.ToolCallId(command)
			update := func(u sdk.SessionUpdate) {
				a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: u})
			}
			update(sdk.StartToolCall(id, "bash", sdk.WithStartStatus(sdk.ToolCallStatusInProgress), sdk.WithStartKind(sdk.ToolKindExecute)))
			update(sdk.UpdateToolCall(id, sdk.WithUpdateStatus(sdk.ToolCallStatusInProgress), sdk.WithUpdateRawInput(map[string]any{"command": command})))
			out, err := a.ask(ctx, command, command, usual...)
			if err != nil {
				return "", err
			}
			status := sdk.ToolCallStatusFailed
			if out.Selected.OptionId == "once" {
				status = sdk.ToolCallStatusCompleted
			}
			update(sdk.UpdateToolCall(id, sdk.WithUpdateStatus(status)))
		}
		// A call without a permission request, a call that runs despite a denial, and a
		// call that never ends.
		for id, status := range map[string]sdk.ToolCallStatus{"secret": sdk.ToolCallStatusCompleted} {
			a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: sdk.StartToolCall(sdk.ToolCallId(id), "x", sdk.WithStartStatus(status))})
		}
		if _, err := a.ask(ctx, "defied", "rm", usual...); err != nil {
			return "", err
		}
		a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: sdk.UpdateToolCall("defied", sdk.WithUpdateStatus(sdk.ToolCallStatusCompleted))})
		a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: sdk.StartToolCall("open", "x")})
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"announced ls", "ended ls done=true asked=true refused=false",
		"announced rm", "refused rm", "ended rm done=false asked=true refused=true",
		"announced secret", "ended secret done=true asked=false refused=false",
		"announced defied", "refused defied", "ended defied done=true asked=true refused=true",
		"announced open", "ended open done=false asked=false refused=false",
	}
	if got := h.events(); !slices.Equal(got, want) {
		t.Errorf("updates\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Permission requests before and after the cancellation are answered with "cancelled", and the turn
// ends.
func TestCancelledTurnAnswersWithCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped by the operator")
		h := &host{decide: func(ctx context.Context, _ acp.ToolCall) (acp.Verdict, error) {
			cancel(stopped)
			<-ctx.Done() // a person who does not answer
			return acp.Verdict{}, ctx.Err()
		}}
		var before, after sdk.RequestPermissionOutcome
		got, _, err := drive(ctx, h, acp.Options{Prompt: "go"}, func(_ context.Context, a *agentSide, _ string) (_ sdk.StopReason, err error) {
			ctx := context.Background()
			if before, err = a.ask(ctx, "c1", "rm", usual...); err != nil {
				return "", err
			}
			<-a.cancelled
			after, err = a.ask(ctx, "c2", "rm", usual...)
			return sdk.StopReasonCancelled, err
		})
		if !errors.Is(err, stopped) {
			t.Errorf("err %v, want the cause of the cancellation", err)
		}
		if before.Cancelled == nil || after.Cancelled == nil {
			t.Errorf("responses %+v and %+v, want cancelled", before, after)
		}
		if got.Last.Stop != "cancelled" || len(got.Last.Refused) != 0 {
			t.Errorf("last turn = %+v, want cancelled without refusals", got.Last)
		}
		if len(h.asked) != 1 {
			t.Errorf("%d decisions, want 1", len(h.asked))
		}
	})
}

// The agent ignores the cancellation.
func TestDriveReturnsAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		_, _, err := drive(ctx, &host{}, acp.Options{Prompt: "go", StopTimeout: 3 * time.Second}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
			cancel()
			<-a.conn.Done()
			return sdk.StopReasonEndTurn, nil
		})
		if !errors.Is(err, context.Canceled) || time.Since(begin) != 3*time.Second {
			t.Errorf("err %v after %s, want context.Canceled after 3s", err, time.Since(begin))
		}
	})
}

// TestSilentAgentTimesOut, but not while a decision or the next prompt is pending.
func TestSilentAgentTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{
			decide: func(context.Context, acp.ToolCall) (acp.Verdict, error) {
				time.Sleep(24 * time.Hour)
				return acp.Verdict{Allow: true}, nil
			},
			next: func(context.Context, acp.Turn) (string, error) {
				time.Sleep(24 * time.Hour)
				return "hang", nil
			},
		}
		begin := time.Now()
		got, _, err := drive(t.Context(), h, acp.Options{Prompt: "go", SilenceTimeout: time.Minute}, func(ctx context.Context, a *agentSide, text string) (sdk.StopReason, error) {
			if text == "hang" {
				<-a.conn.Done()
			}
			_, err := a.ask(ctx, "c1", "ls", usual...)
			return sdk.StopReasonEndTurn, err
		})
		if fault.KindOf(err) != fault.Timeout || got.Turns != 1 {
			t.Errorf("err %v after %d turns, want a timeout after 1", err, got.Turns)
		}
		if took := time.Since(begin); took != 48*time.Hour+time.Minute {
			t.Errorf("timeout after %s", took)
		}
	})
}

// TestExitOfTheAgentEndsTheSession also checks that the last response is not lost.
func TestExitOfTheAgentEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{next: func(ctx context.Context, _ acp.Turn) (string, error) {
			<-ctx.Done() // there is no next prompt
			return "", context.Cause(ctx)
		}}
		in, out := script(t, map[string]string{
			"initialize":     `{"protocolVersion":1}`,
			"session/new":    `{"sessionId":"s1"}`,
			"session/prompt": `{"stopReason":"end_turn"}`,
		}, "session/prompt")
		got, err := acp.Drive(t.Context(), acp.Pipes(in, out), h, acp.Options{Cwd: "/", Prompt: "go"})
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("err %v, want unavailable", err)
		}
		if got.Turns != 1 || got.Last.Stop != "end_turn" {
			t.Errorf("result = %+v, want the last response", got)
		}
	})
}

// script is an agent that responds to each method with a fixed result and exits after the
// method last.
func script(t *testing.T, answers map[string]string, last string) (io.WriteCloser, io.ReadCloser) {
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer toHost.Close()
		defer fromHost.Close()
		dec := json.NewDecoder(fromHost)
		for {
			var q struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
			}
			if dec.Decode(&q) != nil {
				return
			}
			if answer, ok := answers[q.Method]; ok && q.ID != nil {
				fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", q.ID, answer)
			}
			if q.Method == last {
				return
			}
		}
	}()
	t.Cleanup(func() { <-done })
	return toAgent, fromAgent
}

func TestResumedSessionIgnoresReplayedUpdates(t *testing.T) {
	h := &host{}
	got, a, err := drive(t.Context(), h, acp.Options{Prompt: "begin", ResumePrompt: "go on", Resume: "s-old"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		a.say(ctx, "s-old", "new")
		return sdk.StopReasonEndTurn, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Session != "s-old" || !slices.Equal(a.loaded, []string{"s-old"}) {
		t.Errorf("result %+v, loaded %q", got, a.loaded)
	}
	if want := []string{"message new"}; !slices.Equal(h.events(), want) {
		t.Errorf("updates %q, want %q without replayed updates", h.events(), want)
	}
}

// TestLostSessionIsReplacedByANewOne covers agents with and without support for resuming.
func TestLostSessionIsReplacedByANewOne(t *testing.T) {
	for name, agent := range map[string]map[string]string{
		"resume unsupported": {"initialize": `{"protocolVersion":1}`},
		"session lost":       {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`},
		"load succeeds":      {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`, "session/load": `{}`},
		"resume succeeds":    {"initialize": `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`, "session/resume": `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			agent["session/new"], agent["session/prompt"] = `{"sessionId":"s-new"}`, `{"stopReason":"end_turn"}`
			in, out, sent := scriptedAgent(agent)
			got, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "begin", ResumePrompt: "go on", Resume: "s-old"})
			want, prompt := "s-new", "begin"
			if strings.HasSuffix(name, "succeeds") {
				want, prompt = "s-old", "go on"
			}
			if err != nil {
				t.Fatal(err)
			}
			params := <-sent
			if got.Session != want || !strings.Contains(params, `"text":"`+prompt+`"`) {
				t.Errorf("result %+v, prompt %s; want session %s and prompt %s", got, params, want, prompt)
			}
		})
	}
}

// TestMetaIsSentWithEachOpenedSession covers new, loaded and resumed sessions.
func TestMetaIsSentWithEachOpenedSession(t *testing.T) {
	for opens, agent := range map[string]map[string]string{
		"session/new":    {"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`},
		"session/load":   {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`, "session/load": `{}`},
		"session/resume": {"initialize": `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`, "session/resume": `{}`},
	} {
		t.Run(opens, func(t *testing.T) {
			agent["session/prompt"] = `{"stopReason":"end_turn"}`
			in, out, sent := scriptedAgent(agent, opens)
			o := acp.Options{Cwd: "/", Prompt: "begin", ResumePrompt: "go on", Meta: map[string]any{"theirs": map[string]any{"sources": []string{"user"}}}}
			if opens != "session/new" {
				o.Resume = "s-old"
			}
			if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, o); err != nil {
				t.Fatal(err)
			}
			if params := <-sent; !strings.Contains(params, `"_meta":{"theirs":{"sources":["user"]}}`) {
				t.Errorf("parameters %s, want the _meta field", params)
			}
		})
	}
}

func TestSpareOmitsUnsupportedServers(t *testing.T) {
	in, out, sent := scriptedAgent(map[string]string{"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`, "session/prompt": `{"stopReason":"end_turn"}`})
	_, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "go", OmitUnsupportedServers: true, Servers: []acp.Server{{Name: "x", URL: "http://x"}}})
	if err != nil {
		t.Fatal(err)
	}
	params := <-sent
	if params == "" {
		t.Error("the agent received no prompt")
	}
}

// scriptedAgent is an agent that responds to each method with a fixed result, or with an error
// if answers has none. It sends the parameters of the request captured[0], by default
// session/prompt, to the returned channel.
func scriptedAgent(answers map[string]string, captured ...string) (io.WriteCloser, io.ReadCloser, <-chan string) {
	captured = append(captured, "session/prompt")
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	sent := make(chan string, 1)
	go func() {
		defer toHost.Close()
		defer fromHost.Close()
		dec := json.NewDecoder(fromHost)
		for {
			var q struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
				Params json.RawMessage `json:"params"`
			}
			if dec.Decode(&q) != nil {
				return
			}
			if q.Method == captured[0] {
				sent <- string(q.Params)
			}
			if answer, ok := answers[q.Method]; ok {
				fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", q.ID, answer)
			} else {
				fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32603,\"message\":\"no\"}}\n", q.ID)
			}
		}
	}()
	return toAgent, fromAgent, sent
}

func TestUnsupportedAgentIsAnError(t *testing.T) {
	tests := []struct {
		name    string
		hello   string
		options acp.Options
		kind    fault.Kind
	}{
		{"another version", `{"protocolVersion":2}`, acp.Options{}, fault.Unsupported},
		{"no version", `{}`, acp.Options{}, fault.Unsupported},
		{"no servers", `{"protocolVersion":1}`, acp.Options{Servers: []acp.Server{{Name: "x", URL: "http://x"}}}, fault.Unsupported},
		{"initialize result is not an object", `[1]`, acp.Options{}, fault.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, out := script(t, map[string]string{"initialize": tt.hello}, "")
			tt.options.Cwd, tt.options.Prompt = "/", "go"
			_, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, tt.options)
			if fault.KindOf(err) != tt.kind {
				t.Errorf("err %v, want %s", err, tt.kind)
			}
		})
	}
	in, out := script(t, nil, "")
	if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "here"}); fault.FieldOf(err) != "cwd" {
		t.Errorf("err %v, want one about cwd", err)
	}
}

// An agent must not continue without decisions and records.
func TestHostErrorEndsTheSession(t *testing.T) {
	errHost := errors.New("the database is gone")
	tests := []struct {
		name string
		host *host
	}{
		{"decide", &host{decide: func(context.Context, acp.ToolCall) (acp.Verdict, error) { return acp.Verdict{Allow: true}, errHost }}},
		{"update", &host{update: func(acp.Update) error { return errHost }}},
		{"next prompt", &host{next: func(context.Context, acp.Turn) (string, error) { return "more", errHost }}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var allowed bool
			_, _, err := drive(t.Context(), tt.host, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
				out, err := a.ask(ctx, "c1", "ls", usual...)
				allowed = err == nil && out.Selected != nil && out.Selected.OptionId == "once"
				return sdk.StopReasonEndTurn, nil
			})
			if !errors.Is(err, errHost) {
				t.Errorf("err %v, want %v", err, errHost)
			}
			if allowed && tt.name != "next prompt" {
				t.Error("the call was allowed without a decision or a record")
			}
		})
	}
}
