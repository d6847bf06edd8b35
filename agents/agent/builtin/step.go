package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
)

// maxCalls is the maximum number of tool calls in one answer.
const maxCalls = 64

// step sends one request to the model and executes its answer. The state changes only at
// the end of the step, so an interrupted step leaves the state as it was.
func (a *agent) step(ctx context.Context) error {
	ans, err := a.ask(ctx)
	if refused, ok := errors.AsType[*problem](err); ok {
		return a.handleRejectedRequest(refused)
	}
	if err != nil {
		return fmt.Errorf("call the model in step %d: %w", a.state.Step, err)
	}
	next := a.state.clone()
	next.Step++
	next.Refreshed = false
	if a.state.Plan == "" {
		err = a.plan(ctx, &next, ans)
	} else {
		err = a.act(ctx, &next, ans)
	}
	if err != nil {
		return err
	}
	next.trim()
	a.state = next
	return nil
}

// ask sends the conversation to the model.
func (a *agent) ask(ctx context.Context) (*answer, error) {
	s := &a.state
	in := request{Model: s.Model, Messages: s.conversation(), Stream: true, Options: streamOptions{Usage: true}}
	if s.Plan != "" {
		for _, t := range s.Tools {
			in.Tools = append(in.Tools, toolOffer{Type: "function", Function: function{t.Name, t.Description, t.Schema}})
		}
	}
	return a.endpoint.complete(ctx, fmt.Sprintf("m-%d", s.Step), in)
}

type request struct {
	Model    string        `json:"model,omitempty"`
	Messages []message     `json:"messages"`
	Tools    []toolOffer   `json:"tools,omitempty"`
	Stream   bool          `json:"stream"`
	Options  streamOptions `json:"stream_options"`
}

type streamOptions struct {
	Usage bool `json:"include_usage"`
}

type toolOffer struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// handleRejectedRequest ends a step whose request the model rejects. If the request may have
// been too long, the next step sends a shorter one. Otherwise the run fails.
func (a *agent) handleRejectedRequest(p *problem) error {
	if p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
		return &fatalError{"the model rejects requests: " + p.Error()}
	}
	s := &a.state
	s.Step++
	s.Refreshed, s.Unjournaled = false, true
	s.addMistake("the request was rejected: " + p.Error())
	s.Context = s.maxBytes() / bytesPerToken / 2
	s.trim()
	return nil
}

func (s *state) addMistake(why string) {
	s.Mistakes++
	s.LastMistake = why
}

func (s *state) clearMistakes() { s.Mistakes, s.LastMistake = 0, "" }

func (s *state) addMessage(role, text string) {
	s.Messages = append(s.Messages, message{Role: role, Content: text})
}

// plan takes the first answer as the plan and publishes it as a message of the run.
func (a *agent) plan(ctx context.Context, next *state, ans *answer) error {
	text := strings.TrimSpace(ans.text)
	if text == "" {
		next.addMistake("the answer has no plan")
		next.addMessage("user", planMissing)
		return nil
	}
	err := a.endpoint.post(ctx, "/run/messages", messageOut{Text: "Plan:\n" + text, Key: "plan"}, nil)
	if p, ok := errors.AsType[*problem](err); ok {
		a.log.Warn("cannot publish the plan", "error", p) // the agent follows it all the same
	} else if err != nil {
		return fmt.Errorf("publish the plan: %w", err)
	}
	next.clearMistakes()
	next.Plan = clip(text, next.maxBytes()/8)
	received := slices.Clone(next.Messages[next.Head:]) // inbox messages
	next.Messages = append(next.Messages[:next.Head:next.Head],
		message{Role: "assistant", Content: next.Plan}, message{Role: "user", Content: beginWork})
	next.Head = len(next.Messages)
	next.Messages = append(next.Messages, received...)
	return nil
}

type messageOut struct {
	Text string `json:"text"`
	Key  string `json:"key,omitempty"`
}

// act executes an answer: its tool calls, or the end of the run.
func (a *agent) act(ctx context.Context, next *state, ans *answer) error {
	text := strings.TrimSpace(ans.text)
	switch {
	case len(ans.calls) > 0:
		return a.callAll(ctx, next, text, ans)
	case ans.truncated:
		next.addMistake("the answer was cut off")
		next.addMessage("assistant", orElse(clip(text, next.maxBytes()/8), noOutput))
		next.addMessage("user", answerCut)
		return nil
	case text == "":
		next.addMistake("the answer was empty")
		next.addMessage("user", answerEmpty)
		return nil
	}
	return a.finish(ctx, next, text)
}

// finish ends the run with the model's final text, unless the run may not end yet.
func (a *agent) finish(ctx context.Context, next *state, text string) error {
	why, err := a.endpoint.finish(ctx, text, fmt.Sprintf("f-%d", a.state.Step))
	if err != nil {
		return fmt.Errorf("finish the run: %w", err)
	}
	next.clearMistakes()
	next.Unjournaled = true
	next.addMessage("assistant", text)
	next.addMessage("user", notCompletePrompt(why))
	return nil
}

// callAll executes the tool calls of an answer one after the other.
func (a *agent) callAll(ctx context.Context, next *state, text string, ans *answer) error {
	calls := ans.calls
	reply := message{Role: "assistant", Content: text}
	var results []message
	bad := ""
	for n, c := range calls[:min(len(calls), maxCalls)] {
		key := fmt.Sprintf("t-%d-%d", a.state.Step, n)
		name, args, out := c.Name, c.Arguments, ""
		input, wrong := a.check(c)
		switch {
		case ans.truncated:
			bad, out = "the answer was cut off", nothingRun
		case len(calls) > maxCalls:
			bad, out = "the answer has too many calls", fmt.Sprintf(tooManyCalls, maxCalls)
		case wrong != "":
			bad, out = wrong, "Nothing was run: "+wrong
		default:
			res, err := a.call(ctx, next, key, c.Name, input)
			if err != nil {
				return fmt.Errorf("call %s, %s: %w", c.Name, key, err)
			}
			out, args = res, string(input)
		}
		if !toolName.MatchString(name) {
			name = "unknown" // models reject a conversation with an invalid name
		}
		if wrong != "" || ans.truncated {
			args = "{}"
		}
		reply.Calls = append(reply.Calls, toolCall{ID: key, Type: "function", Function: functionCall{name, args}})
		results = append(results, message{Role: "tool", CallID: key, Content: orElse(sanitize(out, next.maxBytes()/4), noOutput)})
	}
	if bad != "" {
		next.addMistake(bad)
	} else {
		next.clearMistakes()
	}
	next.Messages = append(append(next.Messages, reply), results...)
	return nil
}

// check returns the input of a call, or the reason why the call is invalid.
func (a *agent) check(c call) (input json.RawMessage, wrong string) {
	known := slices.ContainsFunc(a.state.Tools, func(t tool) bool { return t.Name == c.Name })
	if !known {
		var names []string
		for _, t := range a.state.Tools {
			names = append(names, t.Name)
		}
		return nil, fmt.Sprintf("there is no tool %.80q; there are: %s", c.Name, clip(strings.Join(names, ", "), 2000))
	}
	args := strings.TrimSpace(c.Arguments)
	if args == "" {
		args = "{}"
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(args), &object); err != nil {
		return nil, fmt.Sprintf("the arguments of %s are not a JSON object: %v", c.Name, err)
	}
	if object == nil {
		return nil, fmt.Sprintf("the arguments of %s are null, and not a JSON object", c.Name)
	}
	return json.RawMessage(args), ""
}

// call calls a tool and returns the result as a text for the model.
func (a *agent) call(ctx context.Context, next *state, key, name string, input json.RawMessage) (string, error) {
	in := struct {
		Key   string          `json:"key"`
		Tool  string          `json:"tool"`
		Input json.RawMessage `json:"input"`
	}{key, name, input}
	var out struct {
		State  string          `json:"state"`
		Output json.RawMessage `json:"output"`
		Error  *struct {
			Kind    string `json:"kind"`
			Message string `json:"message"`
			Remedy  string `json:"remedy"`
		} `json:"error"`
	}
	err := a.endpoint.post(ctx, "/run/call", in, &out)
	if p, ok := errors.AsType[*problem](err); ok {
		next.Unjournaled = true // the step log does not keep requests that the endpoint rejects
		return "The call was not made. " + p.Error(), nil
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if out.State != "done" {
		fmt.Fprintf(&b, "The call %s.", map[bool]string{true: "was refused", false: "has failed"}[out.State == "refused"])
	}
	if e := out.Error; e != nil {
		fmt.Fprintf(&b, " %s: %s", orElse(e.Kind, "error"), e.Message)
		if e.Remedy != "" {
			fmt.Fprintf(&b, "\nRemedy: %s", e.Remedy)
		}
	}
	if text := outputText(out.Output); text != "" {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// outputText returns a tool's output for the model: a JSON string as its text, any other
// value as compact JSON.
func outputText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil || b.String() == "null" {
		return ""
	}
	return b.String()
}

// sanitize returns s without control characters, in at most limit bytes.
func sanitize(s string, limit int) string { return clip(readable(clip(s, limit)), limit) }

// readable replaces control characters other than newline and tab. They would grow when
// the state is encoded as JSON, and might not survive decoding.
func readable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
