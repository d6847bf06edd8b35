package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// kind identifies the agent and the format of the state in a checkpoint.
const kind = "glasshouse-agent/1"

// A state is the agent's memory between two steps. Requests depend on nothing else.
type state struct {
	Kind         string    `json:"agent"`
	Model        string    `json:"model,omitempty"`
	Context      int       `json:"context_tokens"`
	Messages     []message `json:"messages"`
	Head         int       `json:"head"`               // number of messages at the beginning that are never dropped
	Notes        []string  `json:"notes,omitempty"`    // summaries of dropped turns, oldest first
	DroppedNotes int       `json:"unnoted,omitempty"`  // number of dropped summaries
	Tools        []tool    `json:"tools,omitempty"`    // as of the last refresh
	Step         int       `json:"step"`               // number of the next step
	Plan         string    `json:"plan,omitempty"`     // empty until the model has made one
	InboxSeq     int64     `json:"inbox_after"`        // sequence number of the last message read
	Refreshed    bool      `json:"looked,omitempty"`   // this step has read messages and tools
	Unjournaled  bool      `json:"outside,omitempty"`  // the last step had input that the step log does not keep
	Mistakes     int       `json:"mistakes,omitempty"` // consecutive unusable answers
	LastMistake  string    `json:"fault,omitempty"`    // problem of the last of them
}

// A message is a message of the conversation, in the format of the chat completions API.
type message struct {
	Role    string     `json:"role"`
	Content string     `json:"content,omitempty"`
	Calls   []toolCall `json:"tool_calls,omitempty"`
	CallID  string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// A tool is an entry of the endpoint's tool list.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema,omitempty"`
}

type inboxMessage struct {
	Seq  int64  `json:"seq"`
	From string `json:"from"`
	Text string `json:"text"`
}

// runInfo is the endpoint's description of the run.
type runInfo struct {
	Run        string `json:"run"`
	Goal       string `json:"goal"`
	State      string `json:"state"`
	Model      string `json:"model"`
	Context    int    `json:"context_tokens"`
	After      int64  `json:"inbox_after"`
	Checkpoint *struct {
		ID    string          `json:"id"`
		State json.RawMessage `json:"state"`
	} `json:"checkpoint"`
}

// resume returns the state of the run's checkpoint, or the initial state. A checkpoint
// without a state was made by another party before the agent's first checkpoint.
func (r *runInfo) resume() (state, error) {
	if c := r.Checkpoint; c != nil && len(c.State) > 0 && !bytes.Equal(bytes.TrimSpace(c.State), []byte("null")) {
		var s state
		if err := json.Unmarshal(c.State, &s); err != nil {
			return state{}, &fatalError{fmt.Sprintf("the state in checkpoint %s cannot be read: %v", c.ID, err)}
		}
		if s.Kind != kind || s.Head < 1 || s.Head > len(s.Messages) || s.Step < 0 {
			return state{}, &fatalError{fmt.Sprintf("the state in checkpoint %s is not of this agent (%.40q)", c.ID, s.Kind)}
		}
		return s, nil
	}
	if strings.TrimSpace(r.Goal) == "" {
		return state{}, &fatalError{"the run has no goal"}
	}
	s := state{Kind: kind, Model: r.Model, Context: r.Context, InboxSeq: r.After}
	s.Messages = []message{{Role: "system", Content: system}, {Role: "user", Content: goalPrompt(r.Goal) + askForPlan}}
	s.Head = len(s.Messages)
	return s, nil
}

func (s *state) clone() state {
	c := *s
	c.Messages, c.Notes, c.Tools = slices.Clone(s.Messages), slices.Clone(s.Notes), slices.Clone(s.Tools)
	return c
}

// addInbox appends new messages of the inbox to the conversation.
func (s *state) addInbox(messages []inboxMessage, after int64) {
	for _, m := range messages {
		if m.Seq <= s.InboxSeq && m.Seq != 0 {
			continue
		}
		s.Messages = append(s.Messages, message{Role: "user", Content: inboxPrompt(m.From, clip(m.Text, s.maxBytes()/2))})
		s.InboxSeq = max(s.InboxSeq, m.Seq)
	}
	s.InboxSeq = max(s.InboxSeq, after)
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// usableTools returns the tools that can be offered to a model, sorted by name and with
// canonical schemas. The same tools always encode to the same bytes.
func usableTools(tools []tool) []tool {
	byName := map[string]tool{}
	for _, t := range tools {
		if toolName.MatchString(t.Name) {
			t.Schema = canonical(t.Schema)
			byName[t.Name] = t
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b tool) int { return strings.Compare(a.Name, b.Name) })
}

// canonical returns the JSON object raw with sorted keys. If raw is not an object, it
// returns the schema of a tool without parameters.
func canonical(raw json.RawMessage) json.RawMessage {
	var v map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err == nil && v != nil {
		if b, err := json.Marshal(v); err == nil {
			return b
		}
	}
	return json.RawMessage(`{"properties":{},"type":"object"}`)
}
