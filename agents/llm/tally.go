package llm

import (
	"encoding/json"
)

// A tally is the state of an answer while it is received.
type tally struct {
	ask  ask
	used Usage // as reported
	seen bool  // the input was reported
	full bool  // the report is complete

	output int64  // estimated tokens of the answer
	done   bool   // the answer is complete
	failed bool   // the answer ended with an error of the provider
	answer string // Responses: response id
	last   int64  // Responses: sequence number of the last event
	shown  int64  // Responses: sequence number of the last event sent to the caller
	strip  bool   // this event exists only because the gateway requested it
}

// usage returns the usage so far: as reported, otherwise estimated.
func (t *tally) usage() Usage {
	u := t.used
	if t.full {
		return u
	}
	u.Estimated = true
	if !t.seen {
		u.Input = t.ask.input
	}
	u.Output = max(u.Output, t.output)
	return u
}

func (t *tally) say(text string) { t.output += estimate(text) }

// parse parses untrusted JSON as far as possible.
func parse(data []byte, into any) bool { return json.Unmarshal(data, into) == nil }

// chatUsage is the usage report of chat completions and embeddings.
type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Details    struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Out struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (t *tally) chat(u *chatUsage) {
	if u == nil {
		return
	}
	cached := min(tokens(u.Details.Cached), tokens(u.Prompt))
	t.used = Usage{Input: tokens(u.Prompt) - cached, CacheRead: cached, Output: tokens(u.Completion), Reasoning: min(tokens(u.Out.Reasoning), tokens(u.Completion))}
	t.seen, t.full = true, true
}

// chatSaid is the text of a chat completion, in a delta or complete.
type chatSaid struct {
	Content          flexible `json:"content"`
	Refusal          flexible `json:"refusal"`
	Reasoning        flexible `json:"reasoning"`
	ReasoningContent flexible `json:"reasoning_content"`
	Calls            []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// flexible is a string that ignores values of other types.
type flexible string

func (f *flexible) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*f = flexible(s)
	}
	return nil
}

func (t *tally) chatSaid(m chatSaid) {
	for _, s := range []flexible{m.Content, m.Refusal, m.Reasoning, m.ReasoningContent} {
		t.say(string(s))
	}
	for _, c := range m.Calls {
		t.say(c.Function.Name)
		t.say(c.Function.Arguments)
	}
}

type chatAnswer struct {
	Choices []struct {
		Delta   chatSaid `json:"delta"`
		Message chatSaid `json:"message"`
		Finish  *string  `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage      `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func chatComplete(t *tally, body []byte) {
	var a chatAnswer
	if !parse(body, &a) {
		return
	}
	for _, c := range a.Choices {
		t.chatSaid(c.Message)
	}
	t.chat(a.Usage)
	t.done = true
}

func chatEvent(t *tally, ev sse) {
	t.strip = false
	if string(ev.data) == "[DONE]" {
		t.done = true
		return
	}
	var a chatAnswer
	if len(ev.data) == 0 || !parse(ev.data, &a) {
		return
	}
	for _, c := range a.Choices {
		t.chatSaid(c.Delta)
		// Not every server sends [DONE]. With several choices, others may continue.
		t.done = t.done || c.Finish != nil && t.ask.choices <= 1
	}
	t.chat(a.Usage)
	t.failed = t.failed || len(a.Error) > 0 && string(a.Error) != "null"
	t.strip = a.Usage != nil && len(a.Choices) == 0 && !t.ask.usage
}

// responseUsage is the usage report of the Responses API.
type responseUsage struct {
	Input   int64 `json:"input_tokens"`
	Output  int64 `json:"output_tokens"`
	Details struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Out struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

type response struct {
	ID     string         `json:"id"`
	Status string         `json:"status"`
	Usage  *responseUsage `json:"usage"`
	Output []struct {
		Name      flexible `json:"name"`
		Arguments flexible `json:"arguments"`
		Input     flexible `json:"input"`
		Content   []struct {
			Text flexible `json:"text"`
		} `json:"content"`
	} `json:"output"`
}

func (t *tally) response(u *responseUsage) {
	if u == nil {
		return
	}
	cached := min(tokens(u.Details.Cached), tokens(u.Input))
	t.used = Usage{Input: tokens(u.Input) - cached, CacheRead: cached, Output: tokens(u.Output), Reasoning: min(tokens(u.Out.Reasoning), tokens(u.Output))}
	t.seen, t.full = true, true
}

func responseComplete(t *tally, body []byte) {
	var r response
	if !parse(body, &r) {
		return
	}
	for _, item := range r.Output {
		for _, s := range []flexible{item.Name, item.Arguments, item.Input} {
			t.say(string(s))
		}
		for _, c := range item.Content {
			t.say(string(c.Text))
		}
	}
	t.response(r.Usage)
	t.done = r.Status != "failed"
}

func responseEvent(t *tally, ev sse) {
	var e struct {
		Type     string   `json:"type"`
		Number   int64    `json:"sequence_number"`
		Delta    flexible `json:"delta"`
		Response response `json:"response"`
	}
	if len(ev.data) == 0 || !parse(ev.data, &e) {
		return
	}
	t.last = max(t.last, e.Number)
	t.say(string(e.Delta)) // other events repeat the text of the deltas
	if e.Response.ID != "" {
		t.answer = e.Response.ID
	}
	switch e.Type {
	case "response.completed", "response.incomplete":
		t.response(e.Response.Usage)
		t.done = true
	case "response.failed", "error":
		t.response(e.Response.Usage)
		t.failed = true
	}
}

// messageUsage is the usage report of Anthropic's API. A stream contains several of them; later
// values replace earlier ones.
type messageUsage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
}

func (t *tally) message(u *messageUsage) {
	if u == nil {
		return
	}
	for _, part := range []struct {
		from *int64
		into *int64
	}{{u.Input, &t.used.Input}, {u.Output, &t.used.Output}, {u.CacheRead, &t.used.CacheRead}, {u.CacheWrite, &t.used.CacheWrite}} {
		if part.from != nil {
			*part.into = tokens(*part.from)
		}
	}
	t.seen = t.seen || u.Input != nil
}

type block struct {
	Type     string          `json:"type"`
	Text     flexible        `json:"text"`
	Thinking flexible        `json:"thinking"`
	Partial  flexible        `json:"partial_json"`
	Name     flexible        `json:"name"`
	Input    json.RawMessage `json:"input"`
}

func (t *tally) block(b block) {
	for _, s := range []flexible{b.Text, b.Thinking, b.Partial, b.Name} {
		t.say(string(s))
	}
}

func messageComplete(t *tally, body []byte) {
	var m struct {
		Content []block       `json:"content"`
		Usage   *messageUsage `json:"usage"`
	}
	if !parse(body, &m) {
		return
	}
	for _, b := range m.Content {
		t.block(b)
		t.say(string(b.Input))
	}
	t.message(m.Usage)
	t.full = m.Usage != nil && m.Usage.Input != nil && m.Usage.Output != nil
	t.done = true
}

func messageEvent(t *tally, ev sse) {
	var e struct {
		Type    string `json:"type"`
		Message struct {
			Usage *messageUsage `json:"usage"`
		} `json:"message"`
		Block block         `json:"content_block"`
		Delta block         `json:"delta"`
		Usage *messageUsage `json:"usage"`
	}
	if len(ev.data) == 0 || !parse(ev.data, &e) {
		return
	}
	t.block(e.Block)
	t.block(e.Delta)
	switch e.Type {
	case "message_start":
		t.message(e.Message.Usage)
	case "message_delta":
		t.message(e.Usage)
		t.full = t.seen && e.Usage != nil && e.Usage.Output != nil
	case "message_stop":
		t.done = true
	case "error":
		t.failed = true
	}
}

// geminiAnswer is a complete answer of Gemini's API, or one part of it.
type geminiAnswer struct {
	Candidates []struct {
		Content struct {
			Parts []struct {
				Text flexible        `json:"text"`
				Call json.RawMessage `json:"functionCall"`
			} `json:"parts"`
		} `json:"content"`
		Finish string `json:"finishReason"`
	} `json:"candidates"`
	Usage *struct {
		Prompt    int64 `json:"promptTokenCount"`
		Cached    int64 `json:"cachedContentTokenCount"`
		Tools     int64 `json:"toolUsePromptTokenCount"`
		Candidate int64 `json:"candidatesTokenCount"`
		Thoughts  int64 `json:"thoughtsTokenCount"`
	} `json:"usageMetadata"`
	Feedback struct {
		Block string `json:"blockReason"`
	} `json:"promptFeedback"`
	Error json.RawMessage `json:"error"`
}

func (t *tally) gemini(a geminiAnswer) {
	for _, c := range a.Candidates {
		for _, p := range c.Content.Parts {
			t.say(string(p.Text))
			t.say(string(p.Call))
		}
		t.done = t.done || c.Finish != ""
	}
	t.done = t.done || a.Feedback.Block != ""
	t.failed = t.failed || len(a.Error) > 0
	if u := a.Usage; u != nil { // cumulative
		cached := min(tokens(u.Cached), tokens(u.Prompt))
		t.used = Usage{
			Input: tokens(u.Prompt) - cached + tokens(u.Tools), CacheRead: cached,
			Output: tokens(u.Candidate) + tokens(u.Thoughts), Reasoning: tokens(u.Thoughts),
		}
		t.seen, t.full = true, t.done
	}
}

// geminiComplete reads a single answer, or the list of parts of a stream without alt=sse.
func geminiComplete(t *tally, body []byte) {
	var parts []geminiAnswer
	if parse(body, &parts) {
		for _, p := range parts {
			t.gemini(p)
		}
		return
	}
	var a geminiAnswer
	if parse(body, &a) {
		t.gemini(a)
		t.done = true
		t.full = t.seen
	}
}

func geminiEvent(t *tally, ev sse) {
	var a geminiAnswer
	if len(ev.data) > 0 && parse(ev.data, &a) {
		t.gemini(a)
	}
}
