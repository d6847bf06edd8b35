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

	"glasshouse/agent/acp"
	"glasshouse/fault"
)

// host is a Host whose answers a test sets.
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

// events are the updates as short words.
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

// An agent is the SDK's side of an agent; a test sets what a turn does.
type agentSide struct {
	conn   *sdk.AgentSideConnection
	hello  sdk.InitializeResponse
	prompt func(context.Context, *agentSide, string) (sdk.StopReason, error)

	cancelled chan struct{}
	loaded    []string
	busy      sync.RWMutex // held while it works
	over      bool
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
		return sdk.PromptResponse{}, errors.New("nobody listens")
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

// ask asks for permission to run a command.
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

// drive has h work with an agent whose turns are prompt.
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

func TestAnAgentWorksAndIsToldMore(t *testing.T) {
	messages := []string{"and the tests"}
	h := &host{next: func(_ context.Context, turn acp.Turn) (string, error) {
		if turn.Stop != "end_turn" {
			t.Errorf("turn %+v", turn)
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
		t.Errorf("told %q, want %q", h.events(), want)
	}
}

// TestOptionsAreChosenByKind, in whatever order and under whatever names agents offer
// them. The first four are what agents were seen to send.
func TestOptionsAreChosenByKind(t *testing.T) {
	tests := []struct {
		name       string
		options    []sdk.PermissionOption
		yes, no    string // the option that is chosen; "" is cancelled
		neverAsked bool
	}{
		{"opencode", usual, "once", "reject", false},
		{"codex", []sdk.PermissionOption{option("approved", "allow_once"), option("approved-execpolicy-amendment", "allow_always"), option("abort", "reject_once")}, "approved", "abort", false},
		{"claude", []sdk.PermissionOption{option("allow_always", "allow_always"), option("allow", "allow_once"), option("reject", "reject_once")}, "allow", "reject", false},
		{"gemini", []sdk.PermissionOption{option("proceed_always", "allow_always"), option("proceed_once", "allow_once"), option("cancel", "reject_once")}, "proceed_once", "cancel", false},
		{"no first comes first", []sdk.PermissionOption{option("1", "reject_once"), option("2", "allow_once")}, "2", "1", false},
		{"only for good", []sdk.PermissionOption{option("always", "allow_always"), option("reject", "reject_once")}, "reject", "reject", true},
		{"two ways once", []sdk.PermissionOption{option("a", "allow_once"), option("b", "allow_once"), option("reject", "reject_once")}, "reject", "reject", true},
		{"one name for two", []sdk.PermissionOption{option("x", "allow_once"), option("x", "allow_always"), option("reject", "reject_once")}, "reject", "reject", true},
		{"no only for good", []sdk.PermissionOption{option("once", "allow_once"), option("never", "reject_always")}, "once", "", false},
		{"nothing", []sdk.PermissionOption{}, "", "", true},
		{"kinds nobody knows", []sdk.PermissionOption{option("once", "allow_twice"), option("reject", "refuse")}, "", "", true},
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
					t.Errorf("chose %q, want %q", id, want)
				}
				if tt.neverAsked != (len(h.asked) == 0) {
					t.Errorf("%d questions", len(h.asked))
				}
				if refused := len(got.Last.Refused) > 0; refused == (allow && !tt.neverAsked) {
					t.Errorf("refused %+v", got.Last.Refused)
				}
			})
		}
	}
}

// TestInProgressIsNotDone: OpenCode says "in_progress" before it asks.
func TestInProgressIsNotDone(t *testing.T) {
	h := &host{decide: func(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
		return acp.Verdict{Allow: c.Command == "ls", Reason: "no"}, nil
	}}
	_, _, err := drive(t.Context(), h, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
		for _, command := range []string{"ls", "rm"} {
			id := sdk.ToolCallId(command)
			tell := func(u sdk.SessionUpdate) {
				a.conn.SessionUpdate(ctx, sdk.SessionNotification{SessionId: "s1", Update: u})
			}
			tell(sdk.StartToolCall(id, "bash", sdk.WithStartStatus(sdk.ToolCallStatusInProgress), sdk.WithStartKind(sdk.ToolKindExecute)))
			tell(sdk.UpdateToolCall(id, sdk.WithUpdateStatus(sdk.ToolCallStatusInProgress), sdk.WithUpdateRawInput(map[string]any{"command": command})))
			out, err := a.ask(ctx, command, command, usual...)
			if err != nil {
				return "", err
			}
			status := sdk.ToolCallStatusFailed
			if out.Selected.OptionId == "once" {
				status = sdk.ToolCallStatusCompleted
			}
			tell(sdk.UpdateToolCall(id, sdk.WithUpdateStatus(status)))
		}
		// One that nobody was asked about, one that was refused and done all the
		// same, and one that never ends.
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
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestACancelledAgentIsToldSo: what it asks is answered with "cancelled", also what it
// asks only then, and its turn ends.
func TestACancelledAgentIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("the operator said stop")
		h := &host{decide: func(ctx context.Context, _ acp.ToolCall) (acp.Verdict, error) {
			cancel(stopped)
			<-ctx.Done() // a person is asked, and does not answer
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
			t.Errorf("err %v, want why it was cancelled", err)
		}
		if before.Cancelled == nil || after.Cancelled == nil {
			t.Errorf("answered %+v and %+v, want cancelled", before, after)
		}
		if got.Last.Stop != "cancelled" || len(got.Last.Refused) != 0 {
			t.Errorf("turn %+v", got.Last)
		}
		if len(h.asked) != 1 {
			t.Errorf("%d questions, want the one before", len(h.asked))
		}
	})
}

// TestAnAgentThatDoesNotStopIsLeft after its grace.
func TestAnAgentThatDoesNotStopIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		_, _, err := drive(ctx, &host{}, acp.Options{Prompt: "go", Grace: 3 * time.Second}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
			cancel()
			<-a.conn.Done()
			return sdk.StopReasonEndTurn, nil
		})
		if !errors.Is(err, context.Canceled) || time.Since(begin) != 3*time.Second {
			t.Errorf("err %v after %s", err, time.Since(begin))
		}
	})
}

// TestASilentAgentIsGivenUp, but not while it waits for a person.
func TestASilentAgentIsGivenUp(t *testing.T) {
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
		got, _, err := drive(t.Context(), h, acp.Options{Prompt: "go", Quiet: time.Minute}, func(ctx context.Context, a *agentSide, text string) (sdk.StopReason, error) {
			if text == "hang" {
				<-a.conn.Done()
			}
			_, err := a.ask(ctx, "c1", "ls", usual...)
			return sdk.StopReasonEndTurn, err
		})
		if fault.KindOf(err) != fault.Timeout || got.Turns != 1 {
			t.Errorf("err %v after %d turns", err, got.Turns)
		}
		if took := time.Since(begin); took != 48*time.Hour+time.Minute {
			t.Errorf("given up after %s", took)
		}
	})
}

// TestAnAgentThatEndsIsFoundOut, at any time, and its last answer is not lost.
func TestAnAgentThatEndsIsFoundOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{next: func(ctx context.Context, _ acp.Turn) (string, error) {
			<-ctx.Done() // nobody has anything for it
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
			t.Errorf("its last answer is lost: %+v", got)
		}
	})
}

// script is an agent that answers each method with a text, and ends after last.
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

func TestASessionOfBeforeGoesOn(t *testing.T) {
	h := &host{}
	got, a, err := drive(t.Context(), h, acp.Options{Prompt: "begin", GoOn: "go on", Resume: "s-old"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
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
		t.Errorf("told %q, want %q: the past is not told again", h.events(), want)
	}
}

// TestAnAgentThatLostItsSessionBeginsAnew, and so does one that cannot go on with any.
func TestAnAgentThatLostItsSessionBeginsAnew(t *testing.T) {
	for name, agent := range map[string]map[string]string{
		"it cannot":     {"initialize": `{"protocolVersion":1}`},
		"it is lost":    {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`},
		"it has it":     {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`, "session/load": `{}`},
		"it resumes it": {"initialize": `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`, "session/resume": `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			agent["session/new"], agent["session/prompt"] = `{"sessionId":"s-new"}`, `{"stopReason":"end_turn"}`
			in, out, told := talker(agent)
			got, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "begin", GoOn: "go on", Resume: "s-old"})
			want, prompt := "s-new", "begin"
			if strings.HasPrefix(name, "it has") || strings.HasPrefix(name, "it resumes") {
				want, prompt = "s-old", "go on"
			}
			if err != nil || got.Session != want || !strings.Contains(<-told, `"text":"`+prompt+`"`) {
				t.Errorf("result %+v, %v", got, err)
			}
		})
	}
}

// TestEachSessionIsOpenedWithWhatTheAgentWants in its own words, a new one and one of before.
func TestEachSessionIsOpenedWithWhatTheAgentWants(t *testing.T) {
	for opens, agent := range map[string]map[string]string{
		"session/new":    {"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`},
		"session/load":   {"initialize": `{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}`, "session/load": `{}`},
		"session/resume": {"initialize": `{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}`, "session/resume": `{}`},
	} {
		t.Run(opens, func(t *testing.T) {
			agent["session/prompt"] = `{"stopReason":"end_turn"}`
			in, out, told := talker(agent, opens)
			o := acp.Options{Cwd: "/", Prompt: "begin", GoOn: "go on", Meta: map[string]any{"theirs": map[string]any{"sources": []string{"user"}}}}
			if opens != "session/new" {
				o.Resume = "s-old"
			}
			if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, o); err != nil {
				t.Fatal(err)
			}
			if params := <-told; !strings.Contains(params, `"_meta":{"theirs":{"sources":["user"]}}`) {
				t.Errorf("it is opened with %s", params)
			}
		})
	}
}

// TestAnAgentMayGoWithoutServers, where that is said.
func TestAnAgentMayGoWithoutServers(t *testing.T) {
	in, out, told := talker(map[string]string{"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`, "session/prompt": `{"stopReason":"end_turn"}`})
	_, err := acp.Drive(t.Context(), acp.Pipes(in, out), &host{}, acp.Options{Cwd: "/", Prompt: "go", Spare: true, Servers: []acp.Server{{Name: "x", URL: "http://x"}}})
	if err != nil || <-told == "" {
		t.Error(err)
	}
}

// talker is an agent that answers each method with a text, with an error if it has none,
// and tells its first prompt, or what it was asked first by another method.
func talker(answers map[string]string, tells ...string) (io.WriteCloser, io.ReadCloser, <-chan string) {
	tells = append(tells, "session/prompt")
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	told := make(chan string, 1)
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
			if q.Method == tells[0] {
				told <- string(q.Params)
			}
			if answer, ok := answers[q.Method]; ok {
				fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", q.ID, answer)
			} else {
				fmt.Fprintf(toHost, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32603,\"message\":\"no\"}}\n", q.ID)
			}
		}
	}()
	return toAgent, fromAgent, told
}

// TestWhatAnAgentCannotDoIsSaid, instead of doing something else.
func TestWhatAnAgentCannotDoIsSaid(t *testing.T) {
	tests := []struct {
		name    string
		hello   string
		options acp.Options
		kind    fault.Kind
	}{
		{"another version", `{"protocolVersion":2}`, acp.Options{}, fault.Unsupported},
		{"no version", `{}`, acp.Options{}, fault.Unsupported},
		{"no servers", `{"protocolVersion":1}`, acp.Options{Servers: []acp.Server{{Name: "x", URL: "http://x"}}}, fault.Unsupported},
		{"hello is no object", `[1]`, acp.Options{}, fault.Invalid},
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

// TestAHostThatFailsEndsTheSession: nobody works who cannot be judged or recorded.
func TestAHostThatFailsEndsTheSession(t *testing.T) {
	broken := errors.New("the database is gone")
	tests := []struct {
		name string
		host *host
	}{
		{"deciding", &host{decide: func(context.Context, acp.ToolCall) (acp.Verdict, error) { return acp.Verdict{Allow: true}, broken }}},
		{"recording", &host{update: func(acp.Update) error { return broken }}},
		{"going on", &host{next: func(context.Context, acp.Turn) (string, error) { return "more", broken }}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var allowed bool
			_, _, err := drive(t.Context(), tt.host, acp.Options{Prompt: "go"}, func(ctx context.Context, a *agentSide, _ string) (sdk.StopReason, error) {
				out, err := a.ask(ctx, "c1", "ls", usual...)
				allowed = err == nil && out.Selected != nil && out.Selected.OptionId == "once"
				return sdk.StopReasonEndTurn, nil
			})
			if !errors.Is(err, broken) {
				t.Errorf("err %v, want %v", err, broken)
			}
			if allowed && tt.name != "going on" {
				t.Error("it was allowed what nobody could judge or record")
			}
		})
	}
}
