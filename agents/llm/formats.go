package llm

import (
	"encoding/json"
	"fmt"

	"glasshouse/fault"
)

// The supported formats.
var (
	chat = &format{
		api: OpenAI, name: "chat.completions", path: "/chat/completions",
		limits: chatLimits, complete: chatComplete, event: chatEvent, broken: chatBroken,
	}
	responses = &format{
		api: OpenAI, name: "responses", path: "/responses",
		limits: responseLimits, complete: responseComplete, event: responseEvent, broken: responseBroken,
	}
	embeddings = &format{
		api: OpenAI, name: "embeddings", path: "/embeddings",
		limits: noOutput, complete: chatComplete, event: chatEvent, broken: chatBroken,
	}
	messages = &format{
		api: Anthropic, name: "messages", path: "/v1/messages",
		limits: messageLimits, complete: messageComplete, event: messageEvent, broken: messageBroken,
	}
	counting = &format{
		api: Anthropic, name: "messages.count_tokens", path: "/v1/messages/count_tokens", free: true,
		limits: noOutput, complete: uncounted, event: messageEvent, broken: messageBroken,
	}
	generate = &format{
		api: Gemini, name: "generateContent", action: ":generateContent",
		limits: geminiLimits, complete: geminiComplete, event: geminiEvent, broken: geminiBroken,
	}
	generateStream = &format{
		api: Gemini, name: "streamGenerateContent", action: ":streamGenerateContent", streams: true,
		limits: geminiLimits, complete: geminiComplete, event: geminiEvent, broken: geminiBroken,
	}
	countGemini = &format{
		api: Gemini, name: "countTokens", action: ":countTokens", free: true,
		limits: noOutput, complete: uncounted, event: geminiEvent, broken: geminiBroken,
	}
)

// none is the limit of requests whose answers have no tokens.
const none = -1

func noOutput(_ []field, a *ask) error {
	a.limit = none
	return nil
}

func uncounted(t *tally, _ []byte) { t.seen, t.full, t.done = true, true, true }

func chatLimits(fields []field, a *ask) (err error) {
	if a.limit, err = most(fields, "max_tokens", "max_completion_tokens"); err != nil {
		return err
	}
	if a.choices, err = most(fields, "n"); err != nil {
		return err
	}
	if a.choices > 128 {
		return fault.Fieldf("llm.chatLimits", "n", "too many alternative responses: %d", a.choices)
	}
	a.limit *= max(a.choices, 1)
	var options struct {
		Usage bool `json:"include_usage"`
	}
	err = decode(fields, "stream_options", &options)
	a.usage = options.Usage
	return err
}

func responseLimits(fields []field, a *ask) (err error) {
	var background bool
	if err := decode(fields, "background", &background); err != nil {
		return err
	}
	if background {
		return &fault.Error{Op: "llm.responseLimits", Kind: fault.Unsupported, Field: "background", Remedy: "remove this field; the result is returned in the response",
			Err: fmt.Errorf("background responses are not supported: their usage cannot be counted")}
	}
	a.limit, err = most(fields, "max_output_tokens")
	return err
}

func messageLimits(fields []field, a *ask) (err error) {
	a.limit, err = most(fields, "max_tokens")
	return err
}

func geminiLimits(fields []field, a *ask) error {
	var c struct {
		Max        float64 `json:"maxOutputTokens"`
		Candidates float64 `json:"candidateCount"`
	}
	if err := decode(fields, "generationConfig", &c); err != nil {
		return err
	}
	if c.Max < 0 || c.Max > maxTokens || c.Candidates < 0 || c.Candidates > 128 {
		return fault.Fieldf("llm.geminiLimits", "generationConfig", "maxOutputTokens or candidateCount is out of range")
	}
	a.limit = int64(c.Max) * max(int64(c.Candidates), 1)
	return nil
}

// withUsage makes a chat completion's stream end with its usage. Other formats always report
// it.
func withUsage(body []byte) ([]byte, error) {
	fields, err := object(body)
	if err != nil {
		return nil, err
	}
	options := []byte(`{"include_usage":true}`)
	if f := find(fields, "stream_options"); f != nil && string(f.value) != "null" {
		if options, err = set(f.value, "include_usage", []byte("true")); err != nil {
			return nil, err
		}
	}
	return set(body, "stream_options", options)
}

// withModel replaces the model in a request by the provider's name for it.
func withModel(body []byte, model string) ([]byte, error) {
	name, err := json.Marshal(model)
	if err != nil {
		return nil, err
	}
	return set(body, "model", name)
}

func chatBroken(_ *tally, p problem) []byte {
	return append(event("", OpenAI.problem(p)), "data: [DONE]\n\n"...)
}

func responseBroken(t *tally, p problem) []byte {
	e := openAIError(p)
	return event("response.failed", map[string]any{
		"type": "response.failed", "sequence_number": t.shown + 1,
		"response": map[string]any{
			"id": t.answer, "object": "response", "status": "failed", "output": []any{},
			"error": map[string]any{"code": codeOf(e), "message": p.message},
		},
	})
}

func codeOf(e map[string]any) any {
	if e["code"] == nil {
		return e["type"]
	}
	return e["code"]
}

func messageBroken(_ *tally, p problem) []byte { return event("error", Anthropic.problem(p)) }

func geminiBroken(_ *tally, p problem) []byte { return event("", Gemini.problem(p)) }
