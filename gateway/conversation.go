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

	"glasshouse/agent/acp"
	"glasshouse/autonomy"
	"glasshouse/budget"
	"glasshouse/fault"
	"glasshouse/id"
	safetext "glasshouse/internal/text"
	"glasshouse/policy"
	"glasshouse/run"
)

// A conversation is the conversation with an agent that speaks the Agent Client Protocol: what it
// asks is decided, what it does is in the journal of its run. Each of these has a key that
// follows from where it stands in the agent's output, so that what is read again after a
// kill is the same. It implements acp.Host and acp.Keeper.
type conversation struct {
	g   *Gateway
	supervision  *supervision
	run run.Run // as it was when the conversation was taken up
	caller Caller

	mu sync.Mutex
	// +checklocks:mu
	saved conversationState
	// +checklocks:mu
	pending conversationState // what is kept with the next prompt, but its Position
}

// A conversationState is how far a conversation has come: Details.Talk of a run.
type conversationState struct {
	Exec     id.Exec      `json:"exec"` // the agent's process
	Position acp.Position `json:"position"`
	Resumes  string       `json:"resumes,omitempty"`  // the session of a process before that it goes on with
	Inbox    int64        `json:"inbox"`              // Seq of the last message that it was told
	Errand   id.Request   `json:"errand,omitempty"`   // of a sibling, that it is at
	Refusals int          `json:"refusals,omitempty"` // in a row, at which it has ended its turn
}

// Keep implements acp.Keeper.
func (t *conversation) Keep(ctx context.Context, p acp.Position) error {
	t.mu.Lock()
	if p.Prompt && p.Asked > t.saved.Position.Asked {
		t.saved.Inbox, t.saved.Errand, t.saved.Refusals = t.pending.Inbox, t.pending.Errand, t.pending.Refusals
	}
	t.saved.Position = p
	text, err := json.Marshal(t.saved)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = t.g.cfg.Runs.Update(ctx, t.run.ID, func(d *run.Details) { d.Talk = text })
	return err
}

// key is that of a step, by its place in the agent's output.
func (t *conversation) key(ctx context.Context, at int64) (string, error) {
	// Exec does not change during a conversation.
	return t.g.journalKey(ctx, t.run, keyPrefix(t.saved.Exec)+fmt.Sprint(at)) // +checklocksignore
}

func keyPrefix(x id.Exec) string { return "acp-" + string(x) + "-" }

// whenActive does what only an active run may begin, and waits until it is.
func (t *conversation) whenActive(ctx context.Context, do func() error) error {
	for {
		news := t.supervision.stateChange()
		err := do()
		if !errors.Is(err, fault.Conflict) && !errors.Is(err, fault.Exhausted) {
			return err
		}
		r, getErr := t.g.cfg.Runs.Get(ctx, t.run.ID)
		if getErr != nil || r.State.Ended() {
			return errors.Join(err, getErr)
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-news:
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

func (t *conversation) begin(ctx context.Context, q run.StepRequest) (s run.Step, err error) {
	err = t.whenActive(ctx, func() (err error) {
		s, _, err = t.g.cfg.Runs.Begin(ctx, t.run.ID, q)
		return err
	})
	return s, err
}

// A decision is what was decided about a call, as its step has it.
type decision struct {
	Allow  bool   `json:"allow"`
	Reason string `json:"reason,omitempty"`
}

// Decide implements acp.Host. What was decided once is not asked again.
func (t *conversation) Decide(ctx context.Context, c acp.ToolCall) (acp.Verdict, error) {
	questions, own := questionsOf(c)
	if own { // it is decided when it is used
		return acp.Verdict{Allow: true}, nil
	}
	key, err := t.key(ctx, c.AskedAt)
	if err != nil {
		return acp.Verdict{}, err
	}
	input, err := json.Marshal(questions)
	if err != nil {
		return acp.Verdict{}, err
	}
	step, err := t.begin(ctx, run.StepRequest{Key: key, Kind: run.Decision, Name: questions[0].Action, Input: input, Worst: budget.Amounts{}})
	if err != nil {
		return acp.Verdict{}, err
	}
	var known decision
	if step.State != run.Begun {
		err := json.Unmarshal(step.Output, &known)
		return acp.Verdict(known), err
	}
	known, err = t.evaluate(ctx, questions)
	if err == nil {
		err = t.recordTool(ctx, c, nil, known)
	}
	if err != nil {
		return acp.Verdict{}, errors.Join(err, t.g.cfg.Runs.Drop(context.WithoutCancel(ctx), t.run.ID, key))
	}
	state := run.StepDone
	if !known.Allow {
		state = run.StepRefused
	}
	output, err := json.Marshal(known)
	if err != nil {
		return acp.Verdict{}, err
	}
	_, err = t.g.cfg.Runs.End(ctx, t.run.ID, key, run.Outcome{State: state, Output: output, Used: budget.Amounts{}})
	return acp.Verdict(known), err
}

// evaluate asks the rules about all that a call is about.
func (t *conversation) evaluate(ctx context.Context, questions []question) (decision, error) {
	for _, q := range questions {
		v, err := t.g.Decide(ctx, t.caller, policy.Question{Action: q.Action, Resource: q.Resource})
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

// A question is one that the rules are asked about a call.
type question struct {
	Action   string `json:"action"`
	Resource string `json:"resource"`
	Titled   bool   `json:"titled,omitempty"` // the agent shows only what it calls it
}

// kindActions are what the rules know the protocol's kinds of tools by.
var kindActions = map[string]string{
	"read": policy.ActionRead, "edit": policy.ActionEdit, "delete": policy.ActionEdit, "move": policy.ActionEdit,
	"search": "grep", "execute": policy.ActionRun, "fetch": policy.ActionFetch,
}

// questionsOf is what has to be allowed for a call, and whether it is of a tool of the
// gateway's own.
func questionsOf(c acp.ToolCall) (questions []question, own bool) {
	tool, own := ToolOf(c.Tool)
	if own {
		return nil, true
	}
	if c.Command != "" { // whatever kind it says it is
		return []question{{policy.ActionRun, c.Command, c.Titled}}, false
	}
	action := cmp.Or(kindActions[c.Kind], tool, c.Kind, "other")
	if c.Tool != "" && tool != c.Tool {
		action = tool // a tool that is known by its name
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
func (t *conversation) Update(ctx context.Context, u acp.Update) error {
	t.g.activityOf(t.run.ID).recordAction()
	if _, err := t.g.cfg.Runs.Beat(ctx, t.run.ID); err != nil {
		return err
	}
	switch u.Event {
	case acp.Message:
		return t.post(ctx, u)
	case acp.Thought:
		return t.recordNote(ctx, u.At, "thought", u.Text)
	case acp.Planned:
		return t.recordNote(ctx, u.At, "plan", u.Plan)
	case acp.Ended:
		return t.recordTool(ctx, u.Call, &u.Outcome, decision{})
	}
	return nil // what is announced is asked about, or told of when it is over
}

// post says in the session what the agent says.
func (t *conversation) post(ctx context.Context, u acp.Update) error {
	text := strings.ToValidUTF8(u.Text, "\uFFFD")
	if strings.TrimSpace(text) == "" {
		return nil
	}
	key, err := t.key(ctx, u.At)
	if err != nil {
		return err
	}
	_, err = t.g.Post(ctx, t.caller, text, key)
	return err
}

// maxNote bounds what is kept of a thought, a plan or the output of a tool.
const maxNote = 64 << 10

// recordNote puts something that costs nothing into the journal.
func (t *conversation) recordNote(ctx context.Context, at int64, name string, what any) error {
	key, err := t.key(ctx, at)
	if err != nil {
		return err
	}
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	s, err := t.begin(ctx, run.StepRequest{Key: key, Kind: run.Messaging, Name: name, Worst: budget.Amounts{}})
	if err != nil || s.State != run.Begun {
		return err
	}
	_, err = t.g.cfg.Runs.End(ctx, t.run.ID, key, run.Outcome{State: run.StepDone, Output: text, Used: budget.Amounts{}})
	return err
}

// recordTool puts a call of a tool into the journal: when it was decided about, or, of one that
// nobody was asked about, when it is over.
func (t *conversation) recordTool(ctx context.Context, c acp.ToolCall, over *acp.Outcome, known decision) error {
	if _, own := ToolOf(c.Tool); own {
		return nil // it is there, as what it is
	}
	key, err := t.key(ctx, c.At)
	if err != nil {
		return err
	}
	key += "-tool"
	s, err := t.g.cfg.Runs.Step(ctx, t.run.ID, key)
	if errors.Is(err, fault.NotFound) {
		s, err = t.begin(ctx, run.StepRequest{Key: key, Kind: run.Tool, Name: toolName(c), Input: toolInput(c)})
	}
	if err != nil || s.State != run.Begun {
		return err
	}
	o := run.Outcome{State: run.StepRefused}
	if over == nil && known.Allow {
		return nil // it is about to do it
	}
	var output any = known
	if over != nil {
		if o.State = run.StepFailed; over.Done {
			o.State = run.StepDone
		}
		output = toolOutput{clip(over.Output, maxNote), over.Asked, over.Refused}
	}
	if o.Output, err = json.Marshal(output); err != nil {
		return err
	}
	was := s
	was.State, was.Output, was.Ended = o.State, o.Output, time.Now()
	if err := t.g.checkForLoop(ctx, t.run, t.caller, was); err != nil && fault.KindOf(err) != fault.Denied {
		return err
	}
	_, err = t.g.cfg.Runs.End(ctx, t.run.ID, key, o)
	return err
}

// A toolOutput is what an agent said of a call that is over.
type toolOutput struct {
	Output  string `json:"output"`
	Asked   bool   `json:"asked"`             // it had asked before
	Refused bool   `json:"refused,omitempty"` // and done it, though it was told not to
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

// clip shortens a text to most bytes of UTF-8.
func clip(s string, most int) string { return safetext.Clip(strings.ToValidUTF8(s, "\uFFFD"), most) }

// stopReasons are what it means that an agent ends its turn otherwise than because it is done.
var stopReasons = map[string]string{
	"max_tokens":        "the agent's model has said as much as it may at once",
	"max_turn_requests": "the agent has asked its model as often as it may in one turn",
	"refusal":           "the agent's model refuses to go on",
}

// maxRefusals is how often in a row an agent that ends its turn when it is told no is told
// to go on.
const maxRefusals = 3

// continuePrompt is what an agent is told that was cut off.
const continuePrompt = "You were interrupted. Look how far you have come, and go on."

// Next implements acp.Host: messages that came meanwhile, or why the agent is to go on, or
// the end of its run.
func (t *conversation) Next(ctx context.Context, turn acp.Turn) (string, error) {
	t.mu.Lock()
	t.pending = t.saved
	t.mu.Unlock()
	if err := t.answerSibling(ctx, turn); err != nil {
		return "", err
	}
	if why := stopReasons[turn.Stop]; why != "" {
		_, err := t.g.cfg.Runs.Move(ctx, t.run.ID, run.Move{To: run.Failed, By: "agent", Error: why, Reason: why})
		return "", err
	}
	prompt, err := t.nextMessages(ctx)
	switch {
	case err != nil || prompt != "":
		return prompt, err
	case turn.Stop == "cancelled":
		return continuePrompt, nil
	case turn.AtNo && t.countRefusal():
		return denialPrompt(turn), nil
	}
	return "", t.whenActive(ctx, func() error { return t.g.finish(ctx, t.run.ID, strings.TrimSpace(turn.Text)) })
}

// countRefusal counts a turn that ended with a denial, and reports whether the agent is
// prompted again.
func (t *conversation) countRefusal() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending.Refusals >= maxRefusals {
		return false
	}
	t.pending.Refusals++
	return true
}

// denialPrompt is what an agent is told that has ended its turn because it was told no.
func denialPrompt(turn acp.Turn) string {
	var b strings.Builder
	b.WriteString("You were not allowed to do this:\n")
	for _, r := range turn.Refused {
		fmt.Fprintf(&b, "- %s: %s\n", cmp.Or(r.Call.Command, r.Call.Title, r.Call.Tool), r.Reason)
	}
	b.WriteString("Do not try it in another way. Go on without it, and if there is nothing more to do say what you have done.")
	return b.String()
}

// nextMessages are those that came since the agent was told some; a request of a sibling comes
// alone, so that what the agent says then is its answer.
func (t *conversation) nextMessages(ctx context.Context) (string, error) {
	looked, cancel := context.WithCancel(ctx)
	cancel() // nobody waits
	t.mu.Lock()
	read := t.pending.Inbox
	t.mu.Unlock()
	list, err := t.g.cfg.Runs.Inbox(looked, t.run.Session, read, inboxBatch)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending.Errand = ""
	var parts []string
	for _, m := range list {
		mine := m.Run == t.run.ID || m.Run == "" && m.At.After(t.run.Created)
		errand := id.Valid('q', m.Key)
		if mine && errand && len(parts) > 0 {
			break
		}
		if t.pending.Inbox = m.Seq; !mine {
			continue
		}
		text := m.Text
		if m.From != "" && !errand {
			text = "Message from " + m.From + ":\n" + text
		}
		if parts = append(parts, text); errand {
			t.pending.Errand = id.Request(m.Key)
			break
		}
	}
	if len(parts) > 0 {
		t.pending.Refusals = 0
	}
	return strings.Join(parts, "\n\n"), nil
}

// answerSibling answers the request that the agent's turn was about with what it said,
// unless it has answered by itself.
func (t *conversation) answerSibling(ctx context.Context, turn acp.Turn) error {
	t.mu.Lock()
	q := t.pending.Errand
	t.mu.Unlock()
	if q == "" || turn.Stop != "end_turn" || strings.TrimSpace(turn.Text) == "" {
		return nil
	}
	_, err := t.g.Reply(ctx, t.caller, q, strings.TrimSpace(turn.Text))
	if errors.Is(err, fault.Conflict) || errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unsupported) {
		return nil
	}
	return err
}

// endOpenSteps ends the calls that a process of the agent has left open.
func (t *conversation) endOpenSteps(ctx context.Context, x id.Exec) error {
	text, err := json.Marshal(toolOutput{Output: "the agent was ended"})
	if err != nil {
		return err
	}
	for f := (run.StepFilter{Run: t.run.ID, Limit: 1000}); ; {
		steps, err := t.g.cfg.Runs.Steps(ctx, f)
		if err != nil {
			return err
		}
		for _, s := range steps {
			f.After = s.N
			if s.State != run.Begun || !strings.HasPrefix(s.Key, keyPrefix(x)) || !slices.Contains([]run.StepKind{run.Tool, run.Decision}, s.Kind) {
				continue
			}
			if _, err := t.g.cfg.Runs.End(ctx, t.run.ID, s.Key, run.Outcome{State: run.StepFailed, Output: text}); err != nil {
				return err
			}
		}
		if len(steps) < f.Limit {
			return nil
		}
	}
}
