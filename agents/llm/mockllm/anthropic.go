package mockllm

import (
	"encoding/json"

	"glasshouse/agents/llm"
)

var anthropic = &dialect{api: llm.Anthropic, parse: parseMessages, complete: messagesComplete, stream: messagesStream, fail: anthropicFail}

func anthropicFail(status int, message string) any {
	kind := map[int]string{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}[status]
	if kind == "" {
		kind = "api_error"
	}
	return object{"type": "error", "error": object{"type": kind, "message": message}}
}

func (a answer) messagesUsage(output int64) object {
	if a.usage.None {
		return object{}
	}
	u := a.usage
	return object{"input_tokens": u.Input, "cache_creation_input_tokens": u.CacheWrite, "cache_read_input_tokens": u.CacheRead, "output_tokens": output}
}

func (a answer) messagesObject(r *request, content []any, stop any, output int64) object {
	return object{
		"id": "msg_" + a.id, "type": "message", "role": "assistant", "model": r.model, "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": a.messagesUsage(output),
	}
}

func messagesComplete(r *request, a answer) any {
	content := []any{}
	if a.text != "" || len(a.calls) == 0 {
		content = append(content, object{"type": "text", "text": a.text})
	}
	for _, c := range a.calls {
		content = append(content, object{"type": "tool_use", "id": c.id, "name": c.tool, "input": json.RawMessage(c.arguments)})
	}
	return a.messagesObject(r, content, a.finish("end_turn", "max_tokens", "tool_use"), a.usage.Output)
}

func messagesStream(r *request, a answer) []event {
	var events []event
	say := func(kind string, data object) {
		data["type"] = kind
		events = append(events, event{name: kind, data: data})
	}
	say("message_start", object{"message": a.messagesObject(r, []any{}, nil, 1)})
	say("ping", object{})
	at := 0
	block := func(start object, kind, field string, parts []string) {
		say("content_block_start", object{"index": at, "content_block": start})
		for _, p := range parts {
			say("content_block_delta", object{"index": at, "delta": object{"type": kind, field: p}})
		}
		say("content_block_stop", object{"index": at})
		at++
	}
	if a.text != "" || len(a.calls) == 0 {
		block(object{"type": "text", "text": ""}, "text_delta", "text", a.chunks(a.text))
	}
	for _, c := range a.calls {
		block(object{"type": "tool_use", "id": c.id, "name": c.tool, "input": object{}}, "input_json_delta", "partial_json", a.chunks(c.arguments))
	}
	usage := object{"output_tokens": a.usage.Output}
	if a.usage.None {
		usage = object{}
	}
	say("message_delta", object{"delta": object{"stop_reason": a.finish("end_turn", "max_tokens", "tool_use"), "stop_sequence": nil}, "usage": usage})
	say("message_stop", object{})
	return events
}
