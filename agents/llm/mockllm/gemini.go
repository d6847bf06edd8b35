package mockllm

import (
	"encoding/json"

	"glasshouse/agents/llm"
)

var gemini = &dialect{api: llm.Gemini, parse: parseGemini, complete: geminiComplete, stream: geminiStream, fail: geminiFail}

func geminiFail(status int, message string) any {
	name := map[int]string{400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}[status]
	if name == "" {
		name = "INTERNAL"
	}
	return object{"error": object{"code": status, "message": message, "status": name}}
}

// geminiPart returns a chunk of an answer. finish is set in the last chunk only.
func (a answer) geminiPart(r *request, parts []any, finish string) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	o := object{"candidates": []any{candidate}, "modelVersion": r.model, "responseId": a.id}
	if finish != "" {
		candidate["finishReason"] = finish
		if !a.usage.None {
			u := a.usage
			in := u.Input + u.CacheRead + u.CacheWrite
			o["usageMetadata"] = object{
				"promptTokenCount": in, "cachedContentTokenCount": u.CacheRead, "candidatesTokenCount": u.Output - min(u.Reasoning, u.Output),
				"thoughtsTokenCount": u.Reasoning, "totalTokenCount": in + u.Output,
			}
		}
	}
	return o
}

func (c call) geminiPart() object {
	return object{"functionCall": object{"id": c.id, "name": c.tool, "args": json.RawMessage(c.arguments)}}
}

func geminiComplete(r *request, a answer) any {
	parts := []any{}
	if a.text != "" || len(a.calls) == 0 {
		parts = append(parts, object{"text": a.text})
	}
	for _, c := range a.calls {
		parts = append(parts, c.geminiPart())
	}
	return a.geminiPart(r, parts, a.finish("STOP", "MAX_TOKENS", "STOP"))
}

func geminiStream(r *request, a answer) []event {
	var events []event
	for _, p := range a.chunks(a.text) {
		events = append(events, event{data: a.geminiPart(r, []any{object{"text": p}}, "")})
	}
	parts := []any{}
	for _, c := range a.calls {
		parts = append(parts, c.geminiPart())
	}
	if len(parts) == 0 {
		parts = append(parts, object{"text": ""})
	}
	return append(events, event{data: a.geminiPart(r, parts, a.finish("STOP", "MAX_TOKENS", "STOP"))})
}
