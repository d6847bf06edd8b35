package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/agent/acp"
	"glasshouse/agents/autonomy"
	"glasshouse/agents/run"
	"glasshouse/capability/budget"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/policy"
)

// A conversation is an Agent Client Protocol session with an agent. Its permission requests
// are evaluated, and its tool calls are recorded in the journal of the run. The keys of these
// steps derive from positions in the agent's output, so that output which is read again after
// a crash maps to the same steps. It implements acp.Host and acp.PositionStore.
type conversation struct {
	supervisor  *supervisor
	supervision *supervision
	run         run.Run // as it was when the conversation was opened
	caller      Caller

	mu sync.Mutex
	// +checklocks:mu
	saved conversationState
	// +checklocks:mu
	pending conversationState // stored with the next prompt, except for Position
}

// A conversationState is the stored position of a conversation: Details.Conversation of a run.
type conversationState struct {
	Exec           id.Exec      `json:"exec"` // the agent's process
	Position       acp.Position `json:"position"`
	Resumes        string       `json:"resumes,omitempty"`  // the session of an earlier process that it continues
	Inbox          int64        `json:"inbox"`              // Seq of the last message in a prompt
	SiblingRequest id.Request   `json:"errand,omitempty"`   // the sibling's request that it works on
	Refusals       int          `json:"refusals,omitempty"` // consecutive turns that ended with a denial
}

// SavePosition implements acp.PositionStore.
func (conv *conversation) SavePosition(ctx context.Context, p acp.Position) error {
	conv.mu.Lock()
	if p.Prompt && p.Asked > conv.saved.Position.Asked {
		conv.saved.Inbox, conv.saved.SiblingRequest, conv.saved.Refusals = conv.pending.Inbox, conv.pending.SiblingRequest, conv.pending.Refusals
	}
	conv.saved.Position = p
	text, err := json.Marshal(conv.saved)
	conv.mu.Unlock()
	if err != nil {
		return fmt.Errorf("encode the conversation state: %w", err)
	}
	_, err = conv.supervisor.cfg.Runs.Update(ctx, conv.run.ID, func(d *run.Details) { d.Conversation = text })
	if err != nil {
		return fmt.Errorf("store the conversation state of run %s: %w", conv.run.ID, err)
	}
	return nil
}

// key returns the key of the step at a position of the agent's output.
func (conv *conversation) key(ctx context.Context, at int64) (string, error) {
	// The jail contains the state of the agent, and Exec does not change during a conversation.
	return conv.supervisor.calls.journalKey(ctx, conv.run, keyPrefix(conv.saved.Exec)+fmt.Sprint(at), true) // +checklocksignore
}

func keyPrefix(x id.Exec) string { return "acp-" + string(x) + "-" }

// whenActive calls do, which needs an active run. While do fails because the run is paused or
// over its budget, whenActive waits for a state change and retries.
func (conv *conversation) whenActive(ctx context.Context, do func() error) error {
	for {
		changed := conv.supervision.stateChange()
		err := do()
		if !errors.Is(err, fault.Conflict) && !errors.Is(err, fault.Exhausted) {
			return err
		}
		r, getErr := conv.supervisor.cfg.Runs.Get(ctx, conv.run.ID)
		if getErr != nil || r.State.Ended() {
			return errors.Join(err, getErr)
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if ctx.Err() != nil {
			return err
		}
	}
}

func (conv *conversation) begin(ctx context.Context, q run.StepRequest) (s run.Step, err error) {
	err = conv.whenActive(ctx, func() (err error) {
		s, _, err = conv.supervisor.cfg.Runs.Begin(ctx, conv.run.ID, q)
		return err
	})
	return s, err
}

// A decision is the output of a decision step.
type decision struct {
	Allow  bool   `json:"allow"`
	Reason string `json:"reason,omitempty"`
}

// Decide implements acp.Host. A recorded decision is not evaluated again.
func (conv *conversation) Decide(ctx context.Context, c acp.ToolCall) (acp.Verdict, error) {
	questions, own := questionsOf(c)
	if own { // it is evaluated when the tool is called
		return acp.Verdict{Allow: true}, nil
	}
	key, err := conv.key(ctx, c.AskedAt)
	if err != nil {
		return acp.Verdict{}, err
	}
	input, err := json.Marshal(questions)
	if err != nil {
		return acp.Verdict{}, fmt.Errorf("encode the policy questions: %w", err)
	}
	step, err := conv.begin(ctx, run.StepRequest{Key: key, Kind: run.Decision, Name: questions[0].Action, Input: input, Worst: budget.Amounts{}})
	if err != nil {
		return acp.Verdict{}, err
	}
	var dec decision
	if step.State != run.Begun {
		if err := json.Unmarshal(step.Output, &dec); err != nil {
			return acp.Verdict{}, fmt.Errorf("decode the recorded decision of step %s: %w", key, err)
		}
		return acp.Verdict(dec), nil
	}
	dec, err = conv.evaluate(ctx, questions)
	if err == nil {
		err = conv.recordTool(ctx, c, nil, dec)
	}
	if err != nil {
		return acp.Verdict{}, errors.Join(err, conv.supervisor.cfg.Runs.AbandonStep(context.WithoutCancel(ctx), conv.run.ID, key))
	}
	state := run.StepDone
	if !dec.Allow {
		state = run.StepRefused
	}
	output, err := json.Marshal(dec)
	if err != nil {
		return acp.Verdict{}, fmt.Errorf("encode the decision of step %s: %w", key, err)
	}
	_, err = conv.supervisor.cfg.Runs.End(ctx, conv.run.ID, key, run.Outcome{State: state, Output: output, Used: budget.Amounts{}})
	if err != nil {
		return acp.Verdict{}, fmt.Errorf("record the decision in step %s: %w", key, err)
	}
	return acp.Verdict(dec), nil
}

// evaluate evaluates all questions about a call. All must be allowed.
func (conv *conversation) evaluate(ctx context.Context, questions []question) (decision, error) {
	for _, q := range questions {
		v, err := conv.supervisor.decisions.Decide(ctx, conv.caller, policy.Question{Action: q.Action, Resource: q.Resource})
		switch {
		case errors.Is(err, fault.Denied):
			return decision{Reason: strings.TrimSpace(v.Decision.Reason + " " + v.Decision.Remedy)}, nil
		case err != nil:
			return decision{}, err
		case !v.Allow || v.Instead != "":
			return decision{Reason: v.Decision.Reason}, nil
		}
	}
	return decision{Allow: true}, nil
}

// A question is one policy question about a call.
type question struct {
	Action   string `json:"action"`
	Resource string `json:"resource"`
	Titled   bool   `json:"titled,omitempty"` // the resource is only the agent's title of the call
}

// kindActions maps the protocol's tool kinds to policy actions.
var kindActions = map[string]string{
	"read": policy.ActionRead, "edit": policy.ActionEdit, "delete": policy.ActionEdit, "move": policy.ActionEdit,
	"search": "grep", "execute": policy.ActionRun, "fetch": policy.ActionFetch,
}

// questionsOf returns the policy questions about a call, and whether the tool is one of the
// gateway's own.
func questionsOf(c acp.ToolCall) (questions []question, own bool) {
	tool, own := ToolOf(c.Tool)
	if own {
		return nil, true
	}
	if c.Command != "" { // regardless of the kind that the agent reports
		return []question{{policy.ActionRun, c.Command, c.CommandFromTitle}}, false
	}
	action := cmp.Or(kindActions[c.Kind], tool, c.Kind, "other")
	if c.Tool != "" && tool != c.Tool {
		action = tool // a tool with a known name
	}
	if c.URL != "" && action == policy.ActionFetch {
		return []question{{Action: action, Resource: c.URL}}, false
	}
	for _, p := range c.Paths {
		questions = append(questions, question{Action: action, Resource: p})
	}
	if len(questions) > 0 {
		return questions, false
	}
	if len(c.Input) > 0 {
		if resource := autonomy.ResourceOf(action, c.Input); resource != "" {
			return []question{{Action: action, Resource: resource}}, false
		}
	}
	return []question{{action, c.Title, true}}, false
}

// Update implements acp.Host.
func (conv *conversation) Update(ctx context.Context, u acp.Update) error {
	conv.supervisor.supervisions.activityOf(conv.run.ID).recordAction()
	if _, err := conv.supervisor.cfg.Runs.Heartbeat(ctx, conv.run.ID); err != nil {
		return err
	}
	switch u.Event {
	case acp.Message:
		return conv.post(ctx, u)
	case acp.Thought:
		return conv.recordNote(ctx, u.At, "thought", u.Text)
	case acp.PlanChanged:
		return conv.recordNote(ctx, u.At, "plan", u.Plan)
	case acp.Ended:
		return conv.recordTool(ctx, u.Call, &u.Outcome, decision{})
	}
	return nil // other events are handled when permission is requested or the call ends
}

// post sends a message of the agent to the session.
func (conv *conversation) post(ctx context.Context, u acp.Update) error {
	text := strings.ToValidUTF8(u.Text, "\uFFFD")
	if strings.TrimSpace(text) == "" {
		return nil
	}
	key, err := conv.key(ctx, u.At)
	if err != nil {
		return err
	}
	if _, err := conv.supervisor.api.Post(ctx, conv.caller, text, key); err != nil {
		return fmt.Errorf("post the agent's message: %w", err)
	}
	return nil
}

// maxNote limits, in bytes, the stored part of a thought, a plan or the output of a tool.
const maxNote = 64 << 10

// recordNote records a step that costs nothing.
func (conv *conversation) recordNote(ctx context.Context, at int64, name string, what any) error {
	key, err := conv.key(ctx, at)
	if err != nil {
		return err
	}
	text, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encode the agent's %s: %w", name, err)
	}
	s, err := conv.begin(ctx, run.StepRequest{Key: key, Kind: run.Messaging, Name: name, Worst: budget.Amounts{}})
	if err != nil || s.State != run.Begun {
		return err
	}
	_, err = conv.supervisor.cfg.Runs.End(ctx, conv.run.ID, key, run.Outcome{State: run.StepDone, Output: text, Used: budget.Amounts{}})
	return err
}

// recordTool records a tool call. It is called after the decision, or, if the call needed no
// decision, after its end.
func (conv *conversation) recordTool(ctx context.Context, c acp.ToolCall, outcome *acp.Outcome, dec decision) error {
	if _, own := ToolOf(c.Tool); own {
		return nil // it is recorded as a built-in tool
	}
	key, err := conv.key(ctx, c.At)
	if err != nil {
		return err
	}
	key += "-tool"
	s, err := conv.supervisor.cfg.Runs.Step(ctx, conv.run.ID, key)
	if errors.Is(err, fault.NotFound) {
		s, err = conv.begin(ctx, run.StepRequest{Key: key, Kind: run.Tool, Name: toolName(c), Input: toolInput(c)})
	}
	if err != nil || s.State != run.Begun {
		return err
	}
	o := run.Outcome{State: run.StepRefused}
	if outcome == nil && dec.Allow {
		return nil // the call starts now
	}
	var output any = dec
	if outcome != nil {
		o.State = run.StepFailed
		if outcome.Done {
			o.State = run.StepDone
		}
		output = toolOutput{clip(outcome.Output, maxNote), outcome.Asked, outcome.Refused}
	}
	o.Output, err = json.Marshal(output)
	if err != nil {
		return fmt.Errorf("encode the output of step %s: %w", key, err)
	}
	ended := s
	ended.State, ended.Output, ended.Ended = o.State, o.Output, conv.supervisor.cfg.Runs.Now()
	if err := conv.supervisor.calls.checkForLoop(ctx, conv.run, conv.caller, ended); err != nil && fault.KindOf(err) != fault.Denied {
		return fmt.Errorf("detect loops of the agent: %w", err)
	}
	_, err = conv.supervisor.cfg.Runs.End(ctx, conv.run.ID, key, o)
	return err
}

// A toolOutput is the agent's report of a finished call.
type toolOutput struct {
	Output  string `json:"output"`
	Asked   bool   `json:"asked"`             // permission was requested
	Refused bool   `json:"refused,omitempty"` // executed although it was denied
}

func toolName(c acp.ToolCall) string {
	name, _ := ToolOf(c.Tool)
	if c.Tool == "" {
		name = cmp.Or(kindActions[c.Kind], c.Kind, "other")
	}
	return clip(name, 100)
}

func toolInput(c acp.ToolCall) json.RawMessage {
	in := struct {
		Title string          `json:"title,omitempty"`
		Kind  string          `json:"kind,omitempty"`
		Paths []string        `json:"paths,omitempty"`
		Input json.RawMessage `json:"input,omitempty"`
	}{clip(c.Title, 4096), c.Kind, c.Paths, c.Input}
	if len(in.Input) > 1<<20 {
		in.Input = nil
	}
	text, err := json.Marshal(in)
	if err != nil {
		return nil
	}
	return text
}

// clip shortens s to at most limit bytes at a character boundary and replaces invalid UTF-8.
func clip(s string, limit int) string { return safetext.Clip(strings.ToValidUTF8(s, "\uFFFD"), limit) }

// stopReasons are the errors for the stop reasons of a turn that fail a run.
var stopReasons = map[string]string{
	"max_tokens":        "the agent's model reached its output token limit",
	"max_turn_requests": "the agent reached its limit of model requests in one turn",
	"refusal":           "the agent's model refused to continue",
}

// maxRefusals limits how many times in a row an agent is prompted again after a turn that
// ended with a denial.
const maxRefusals = 3

// continuePrompt is the prompt after a cancelled turn.
const continuePrompt = "You were interrupted. Check your progress and continue."

// Next implements acp.Host. It returns the next prompt: new messages, or a request to
// continue. If there is neither, it finishes the run and returns "".
func (conv *conversation) Next(ctx context.Context, turn acp.Turn) (string, error) {
	conv.mu.Lock()
	conv.pending = conv.saved
	conv.mu.Unlock()
	if err := conv.answerSibling(ctx, turn); err != nil {
		return "", err
	}
	if why := stopReasons[turn.Stop]; why != "" {
		if _, err := conv.supervisor.cfg.Runs.Move(ctx, conv.run.ID, run.Move{To: run.Failed, By: "agent", Error: why, Reason: why}); err != nil {
			return "", fmt.Errorf("move run %s to failed: %w", conv.run.ID, err)
		}
		return "", nil
	}
	prompt, err := conv.nextMessages(ctx)
	switch {
	case err != nil || prompt != "":
		return prompt, err
	case turn.Stop == "cancelled":
		return continuePrompt, nil
	case turn.AtNo && conv.countRefusal():
		return denialPrompt(turn), nil
	}
	return "", conv.whenActive(ctx, func() error { return conv.supervisor.finish(ctx, conv.run.ID, strings.TrimSpace(turn.Text)) })
}

// countRefusal counts a turn that ended with a denial, and reports whether the agent is
// prompted again.
func (conv *conversation) countRefusal() bool {
	conv.mu.Lock()
	defer conv.mu.Unlock()
	if conv.pending.Refusals >= maxRefusals {
		return false
	}
	conv.pending.Refusals++
	return true
}

// denialPrompt returns the prompt after a turn that ended with a denial.
func denialPrompt(turn acp.Turn) string {
	var b strings.Builder
	b.WriteString("You were not allowed to do this:\n")
	for _, r := range turn.Refused {
		fmt.Fprintf(&b, "- %s: %s\n", cmp.Or(r.Call.Command, r.Call.Title, r.Call.Tool), r.Reason)
	}
	b.WriteString("Do not try it in another way. Continue without it. If nothing is left to do, summarize what you have done.")
	return b.String()
}

// nextMessages returns the new messages as one prompt. A request of a sibling is a prompt of
// its own, so that the text of the turn is its reply.
func (conv *conversation) nextMessages(ctx context.Context) (string, error) {
	expired, cancel := context.WithCancel(ctx)
	cancel() // do not block
	conv.mu.Lock()
	read := conv.pending.Inbox
	conv.mu.Unlock()
	list, err := conv.supervisor.cfg.Runs.Inbox(expired, conv.run.Session, read, inboxBatch)
	if err != nil {
		return "", fmt.Errorf("read the inbox of session %s: %w", conv.run.Session, err)
	}
	conv.mu.Lock()
	defer conv.mu.Unlock()
	conv.pending.SiblingRequest = ""
	var parts []string
	for _, m := range list {
		relevant := m.Run == conv.run.ID || m.Run == "" && m.At.After(conv.run.Created)
		isRequest := id.Valid('q', m.Key)
		if relevant && isRequest && len(parts) > 0 {
			break
		}
		conv.pending.Inbox = m.Seq
		if !relevant {
			continue
		}
		text := m.Text
		if m.From != "" && !isRequest {
			text = "Message from " + m.From + ":\n" + text
		}
		parts = append(parts, text)
		if isRequest {
			conv.pending.SiblingRequest = id.Request(m.Key)
			break
		}
	}
	if len(parts) > 0 {
		conv.pending.Refusals = 0
	}
	return strings.Join(parts, "\n\n"), nil
}

// answerSibling sends the text of a turn as the reply to the sibling's request that the turn
// was about, unless the agent has replied itself.
func (conv *conversation) answerSibling(ctx context.Context, turn acp.Turn) error {
	conv.mu.Lock()
	q := conv.pending.SiblingRequest
	conv.mu.Unlock()
	if q == "" || turn.Stop != "end_turn" || strings.TrimSpace(turn.Text) == "" {
		return nil
	}
	_, err := conv.supervisor.siblings.Reply(ctx, conv.caller, q, strings.TrimSpace(turn.Text))
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reply to request %s of a sibling: %w", q, err)
	}
	return nil
}

// endOpenSteps ends the unfinished steps of an agent process that has ended.
func (conv *conversation) endOpenSteps(ctx context.Context, x id.Exec) error {
	text, err := json.Marshal(toolOutput{Output: "the agent process ended before the call"})
	if err != nil {
		return fmt.Errorf("encode the outcome of unfinished steps: %w", err)
	}
	for f := (run.StepFilter{Run: conv.run.ID, Limit: 1000}); ; {
		steps, err := conv.supervisor.cfg.Runs.Steps(ctx, f)
		if err != nil {
			return fmt.Errorf("list the steps of run %s: %w", conv.run.ID, err)
		}
		for _, s := range steps {
			f.After = s.N
			if s.State != run.Begun || !strings.HasPrefix(s.Key, keyPrefix(x)) || !slices.Contains([]run.StepKind{run.Tool, run.Decision}, s.Kind) {
				continue
			}
			if _, err := conv.supervisor.cfg.Runs.End(ctx, conv.run.ID, s.Key, run.Outcome{State: run.StepFailed, Output: text}); err != nil {
				return fmt.Errorf("end step %s: %w", s.Key, err)
			}
		}
		if len(steps) < f.Limit {
			return nil
		}
	}
}
