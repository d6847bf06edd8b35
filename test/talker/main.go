// Command talker is an agent that speaks the Agent Client Protocol and executes its prompts line
// by line. It saves its prompts, so that another process can resume the session.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	acp "github.com/coder/acp-go-sdk"
)

var kept = filepath.Join(os.Getenv("HOME"), ".talker")

func main() {
	if err := os.MkdirAll(kept, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("talker 1.0, welcome")
	t := &talker{loads: os.Getenv("TALKER_FORGETS") == ""}
	t.conn = acp.NewAgentSideConnection(t, os.Stdout, os.Stdin)
	<-t.conn.Done()
}

type talker struct {
	conn    *acp.AgentSideConnection
	loads   bool
	session acp.SessionId
	stopped chan struct{}
	calls   int
}

// errTurn ends a prompt turn with the given stop reason.
type errTurn acp.StopReason

func (e errTurn) Error() string { return string(e) }

func (t *talker) Initialize(context.Context, acp.InitializeRequest) (acp.InitializeResponse, error) {
	return acp.InitializeResponse{
		ProtocolVersion: acp.ProtocolVersionNumber, AgentInfo: &acp.Implementation{Name: "talker", Version: "1.0"},
		AgentCapabilities: acp.AgentCapabilities{LoadSession: t.loads, McpCapabilities: acp.McpCapabilities{Http: true}},
	}, nil
}

func (t *talker) NewSession(context.Context, acp.NewSessionRequest) (acp.NewSessionResponse, error) {
	t.session = acp.SessionId(fmt.Sprintf("s-%d", time.Now().UnixNano()))
	return acp.NewSessionResponse{SessionId: t.session}, nil
}

func (t *talker) LoadSession(ctx context.Context, p acp.LoadSessionRequest) (acp.LoadSessionResponse, error) {
	past, err := os.ReadFile(filepath.Join(kept, string(p.SessionId)))
	if err != nil {
		return acp.LoadSessionResponse{}, err
	}
	t.session = p.SessionId
	return acp.LoadSessionResponse{}, t.say(ctx, "the past: "+string(past))
}

func (t *talker) Prompt(ctx context.Context, p acp.PromptRequest) (acp.PromptResponse, error) {
	t.stopped = make(chan struct{})
	text := p.Prompt[0].Text.Text
	if err := note(filepath.Join(kept, string(t.session)), strings.ReplaceAll(text, "\n", " | ")); err != nil {
		return acp.PromptResponse{}, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		err := t.do(ctx, lines.Text())
		if stop, ok := errors.AsType[errTurn](err); ok {
			return acp.PromptResponse{StopReason: acp.StopReason(stop)}, nil
		}
		if err != nil {
			return acp.PromptResponse{}, err
		}
	}
	return acp.PromptResponse{StopReason: acp.StopReasonEndTurn}, nil
}

func note(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// once reports whether something happens for the first time.
func once(what string) bool {
	f, err := os.OpenFile(filepath.Join(kept, "once-"+what), os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func (t *talker) do(ctx context.Context, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "say":
		for part := range strings.SplitAfterSeq(rest, " ") { // stream word by word, as models do
			if err := t.say(ctx, part); err != nil {
				return err
			}
		}
	case "think":
		return t.tell(ctx, acp.UpdateAgentThoughtText(rest))
	case "plan":
		return t.tell(ctx, acp.UpdatePlan(acp.PlanEntry{Content: rest, Status: "pending", Priority: "high"}))
	case "run":
		return t.run(ctx, rest, true)
	case "sneak":
		return t.run(ctx, rest, false)
	case "read":
		got, err := t.conn.ReadTextFile(ctx, acp.ReadTextFileRequest{SessionId: t.session, Path: rest, Line: acp.Ptr(2), Limit: acp.Ptr(1)})
		return t.reported(ctx, got.Content, err)
	case "write":
		path, text, _ := strings.Cut(rest, " ")
		_, err := t.conn.WriteTextFile(ctx, acp.WriteTextFileRequest{SessionId: t.session, Path: path, Content: strings.ReplaceAll(text, `\n`, "\n")})
		return t.reported(ctx, "", err)
	case "terminal":
		return t.terminal(ctx, rest)
	case "await":
		for {
			if _, err := os.Stat(rest); err == nil {
				return nil
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.stopped:
				return errTurn(acp.StopReasonCancelled)
			}
		}
	case "hang":
		<-t.stopped
		return errTurn(acp.StopReasonCancelled)
	case "garbage":
		if once(word) {
			fmt.Println("Segmentation fault")
			<-t.stopped
		}
	case "die":
		if once(word) {
			fmt.Fprintln(os.Stderr, "talker: I am no more")
			os.Exit(3)
		}
	case "ask":
		sibling, text, _ := strings.Cut(rest, " ")
		return t.askSibling(ctx, sibling, text)
	case "You": // notes about an interruption or a denial
		return t.say(ctx, "going on")
	case "stop":
		return errTurn(rest)
	case "recall":
		past, err := os.ReadFile(filepath.Join(kept, string(t.session)))
		return t.reported(ctx, string(past), err)
	}
	return nil // ignore all other text
}

func (t *talker) tell(ctx context.Context, u acp.SessionUpdate) error {
	return t.conn.SessionUpdate(ctx, acp.SessionNotification{SessionId: t.session, Update: u})
}

func (t *talker) say(ctx context.Context, text string) error {
	return t.tell(ctx, acp.UpdateAgentMessageText(text))
}

// reported sends the result of a request.
func (t *talker) reported(ctx context.Context, text string, err error) error {
	if err != nil {
		text = "failed: " + err.Error()
	}
	if text == "" {
		return nil
	}
	return t.say(ctx, text)
}

// run runs a command. A denied command ends the prompt turn.
func (t *talker) run(ctx context.Context, command string, ask bool) error {
	t.calls++
	call := acp.ToolCallId(fmt.Sprint("call-", t.calls))
	input := map[string]any{"command": command}
	if err := t.tell(ctx, acp.StartToolCall(call, "bash", acp.WithStartKind(acp.ToolKindExecute), acp.WithStartStatus(acp.ToolCallStatusInProgress), acp.WithStartRawInput(input))); err != nil {
		return err
	}
	if ask {
		got, err := t.conn.RequestPermission(ctx, acp.RequestPermissionRequest{
			SessionId: t.session,
			ToolCall:  acp.ToolCallUpdate{ToolCallId: call, RawInput: input},
			Options: []acp.PermissionOption{
				{OptionId: "1", Name: "Always", Kind: acp.PermissionOptionKindAllowAlways},
				{OptionId: "2", Name: "No", Kind: acp.PermissionOptionKindRejectOnce},
				{OptionId: "3", Name: "Yes", Kind: acp.PermissionOptionKindAllowOnce},
			},
		})
		if err != nil {
			return err
		}
		if got.Outcome.Selected == nil {
			return errTurn(acp.StopReasonCancelled)
		}
		if got.Outcome.Selected.OptionId == "1" {
			return t.say(ctx, "I may always!")
		}
		if got.Outcome.Selected.OptionId != "3" {
			err := t.tell(ctx, acp.UpdateToolCall(call, acp.WithUpdateStatus(acp.ToolCallStatusFailed)))
			return errors.Join(err, errTurn(acp.StopReasonEndTurn))
		}
	}
	out, err := exec.Command("/bin/sh", "-c", command).CombinedOutput()
	status := acp.ToolCallStatusCompleted
	if err != nil {
		status = acp.ToolCallStatusFailed
	}
	return t.tell(ctx, acp.UpdateToolCall(call, acp.WithUpdateStatus(status), acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolContent(acp.TextBlock(string(out)))})))
}

func (t *talker) terminal(ctx context.Context, command string) error {
	term, err := t.conn.CreateTerminal(ctx, acp.CreateTerminalRequest{SessionId: t.session, Command: "/bin/sh", Args: []string{"-c", command}})
	if err != nil {
		return t.reported(ctx, "", err)
	}
	exit, err := t.conn.WaitForTerminalExit(ctx, acp.WaitForTerminalExitRequest{SessionId: t.session, TerminalId: term.TerminalId})
	if err != nil {
		return t.reported(ctx, "", err)
	}
	out, err := t.conn.TerminalOutput(ctx, acp.TerminalOutputRequest{SessionId: t.session, TerminalId: term.TerminalId})
	if err == nil {
		_, err = t.conn.ReleaseTerminal(ctx, acp.ReleaseTerminalRequest{SessionId: t.session, TerminalId: term.TerminalId})
	}
	code, _ := json.Marshal(exit.ExitCode)
	return t.reported(ctx, fmt.Sprintf("%s exit %s", strings.TrimSpace(out.Output), code), err)
}

func (t *talker) askSibling(ctx context.Context, sibling, text string) error {
	body, err := json.Marshal(map[string]any{"action": "do this", "context": text, "reply_timeout_ms": 60000})
	if err != nil {
		return err
	}
	resp, err := http.Post("http://localhost:4097/sandbox/"+sibling+"/coordinate", "application/json", bytes.NewReader(body))
	if err != nil {
		return t.reported(ctx, "", err)
	}
	defer resp.Body.Close()
	var answer struct{ State, Answer, Reason string }
	err = json.NewDecoder(resp.Body).Decode(&answer)
	return t.reported(ctx, strings.TrimSpace(answer.State+": "+answer.Answer+" "+answer.Reason), err)
}

func (t *talker) Cancel(context.Context, acp.CancelNotification) error {
	close(t.stopped)
	return note(filepath.Join(kept, "cancelled"), "yes")
}

func (t *talker) Authenticate(context.Context, acp.AuthenticateRequest) (acp.AuthenticateResponse, error) {
	return acp.AuthenticateResponse{}, nil
}
func (t *talker) CloseSession(context.Context, acp.CloseSessionRequest) (acp.CloseSessionResponse, error) {
	return acp.CloseSessionResponse{}, nil
}
func (t *talker) ListSessions(context.Context, acp.ListSessionsRequest) (acp.ListSessionsResponse, error) {
	return acp.ListSessionsResponse{}, nil
}
func (t *talker) ResumeSession(context.Context, acp.ResumeSessionRequest) (acp.ResumeSessionResponse, error) {
	return acp.ResumeSessionResponse{}, nil
}
func (t *talker) SetSessionConfigOption(context.Context, acp.SetSessionConfigOptionRequest) (acp.SetSessionConfigOptionResponse, error) {
	return acp.SetSessionConfigOptionResponse{}, nil
}
func (t *talker) SetSessionMode(context.Context, acp.SetSessionModeRequest) (acp.SetSessionModeResponse, error) {
	return acp.SetSessionModeResponse{}, nil
}
