package mockllm

import (
	"glasshouse/agents/llm"
)

// began is the creation time of all answers. It is fixed, so that answers are reproducible.
const began = 1767225600 // 2026-01-01

type object = map[string]any

var openAIChat = &dialect{api: llm.OpenAI, parse: parseChat, complete: chatComplete, stream: chatStream, fail: openAIFail}

func openAIFail(status int, message string) any {
	kind := "invalid_request_error"
	switch {
	case status == 429:
		kind = "rate_limit_error"
	case status >= 500:
		kind = "server_error"
	}
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": nil}}
}

func (a answer) finish(stop, length, calls string) string {
	switch {
	case a.turn.Stop == "length":
		return length
	case len(a.calls) > 0:
		return calls
	}
	return stop
}

func (a answer) chatUsage() any {
	if a.usage.None {
		return nil
	}
	u := a.usage
	in := u.Input + u.CacheRead + u.CacheWrite
	return object{
		"prompt_tokens": in, "completion_tokens": u.Output, "total_tokens": in + u.Output,
		"prompt_tokens_details":     object{"cached_tokens": u.CacheRead},
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
}

func chatComplete(r *request, a answer) any {
	message := object{"role": "assistant", "content": a.text, "refusal": nil}
	if len(a.calls) > 0 {
		var calls []any
		for _, c := range a.calls {
			calls = append(calls, object{"id": c.id, "type": "function", "function": object{"name": c.tool, "arguments": c.arguments}})
		}
		message["tool_calls"] = calls
		if a.text == "" {
			message["content"] = nil
		}
	}
	o := object{
		"id": "chatcmpl-" + a.id, "object": "chat.completion", "created": began, "model": r.model,
		"choices": []any{object{"index": 0, "message": message, "finish_reason": a.finish("stop", "length", "tool_calls"), "logprobs": nil}},
	}
	if u := a.chatUsage(); u != nil {
		o["usage"] = u
	}
	return o
}

func chatStream(r *request, a answer) []event {
	var events []event
	chunk := func(choices []any) object {
		return object{"id": "chatcmpl-" + a.id, "object": "chat.completion.chunk", "created": began, "model": r.model, "choices": choices}
	}
	delta := func(d object, finish any) {
		events = append(events, event{data: chunk([]any{object{"index": 0, "delta": d, "finish_reason": finish, "logprobs": nil}})})
	}
	delta(object{"role": "assistant", "content": ""}, nil)
	for _, part := range a.chunks(a.text) {
		delta(object{"content": part}, nil)
	}
	for i, c := range a.calls {
		delta(object{"tool_calls": []any{object{"index": i, "id": c.id, "type": "function", "function": object{"name": c.tool, "arguments": ""}}}}, nil)
		for _, part := range a.chunks(c.arguments) {
			delta(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": part}}}}, nil)
		}
	}
	delta(object{}, a.finish("stop", "length", "tool_calls"))
	if u := a.chatUsage(); u != nil && r.usage {
		last := chunk([]any{})
		last["usage"] = u
		events = append(events, event{data: last})
	}
	return append(events, event{data: "[DONE]"})
}

var openAIResponses = &dialect{api: llm.OpenAI, parse: parseResponses, complete: responsesComplete, stream: responsesStream, fail: openAIFail}

// response returns a response object of the Responses API with the given output.
func (a answer) response(r *request, status string, output []any) object {
	o := object{
		"id": "resp_" + a.id, "object": "response", "created_at": began, "status": status, "model": r.model, "output": output,
		"error": nil, "incomplete_details": nil, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "metadata": object{}, "usage": nil,
	}
	if status == "in_progress" {
		return o
	}
	if a.turn.Stop == "length" {
		o["status"], o["incomplete_details"] = "incomplete", object{"reason": "max_output_tokens"}
	}
	if !a.usage.None {
		u := a.usage
		in := u.Input + u.CacheRead + u.CacheWrite
		o["usage"] = object{
			"input_tokens": in, "input_tokens_details": object{"cached_tokens": u.CacheRead},
			"output_tokens": u.Output, "output_tokens_details": object{"reasoning_tokens": u.Reasoning}, "total_tokens": in + u.Output,
		}
	}
	return o
}

func (a answer) message(status, text string) object {
	content := []any{}
	if status == "completed" {
		content = append(content, part(text))
	}
	return object{"type": "message", "id": "msg_" + a.id, "status": status, "role": "assistant", "content": content}
}

func part(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (c call) responses(status, arguments string) object {
	if c.custom {
		return object{"type": "custom_tool_call", "id": "ctc_" + c.id, "call_id": c.id, "name": c.tool, "input": arguments, "status": status}
	}
	return object{"type": "function_call", "id": "fc_" + c.id, "call_id": c.id, "name": c.tool, "arguments": arguments, "status": status}
}

func (a answer) output() []any {
	output := []any{}
	if a.text != "" || len(a.calls) == 0 {
		output = append(output, a.message("completed", a.text))
	}
	for _, c := range a.calls {
		output = append(output, c.responses("completed", c.arguments))
	}
	return output
}

func responsesComplete(r *request, a answer) any { return a.response(r, "completed", a.output()) }

func responsesStream(r *request, a answer) []event {
	var events []event
	say := func(kind string, data object) {
		data["type"], data["sequence_number"] = kind, len(events)
		events = append(events, event{name: kind, data: data})
	}
	say("response.created", object{"response": a.response(r, "in_progress", []any{})})
	say("response.in_progress", object{"response": a.response(r, "in_progress", []any{})})
	at := 0
	if a.text != "" || len(a.calls) == 0 {
		a.sayMessage(say)
		at++
	}
	for i, c := range a.calls {
		a.sayCall(say, c, at+i)
	}
	last := a.response(r, "completed", a.output())
	say("response."+last["status"].(string), object{"response": last})
	return events
}

func (a answer) sayMessage(say func(string, object)) {
	id := "msg_" + a.id
	say("response.output_item.added", object{"output_index": 0, "item": a.message("in_progress", "")})
	say("response.content_part.added", object{"item_id": id, "output_index": 0, "content_index": 0, "part": part("")})
	for _, p := range a.chunks(a.text) {
		say("response.output_text.delta", object{"item_id": id, "output_index": 0, "content_index": 0, "delta": p, "logprobs": []any{}})
	}
	say("response.output_text.done", object{"item_id": id, "output_index": 0, "content_index": 0, "text": a.text, "logprobs": []any{}})
	say("response.content_part.done", object{"item_id": id, "output_index": 0, "content_index": 0, "part": part(a.text)})
	say("response.output_item.done", object{"output_index": 0, "item": a.message("completed", a.text)})
}

func (a answer) sayCall(say func(string, object), c call, at int) {
	kind, field, id := "response.function_call_arguments", "arguments", "fc_"+c.id
	if c.custom {
		kind, field, id = "response.custom_tool_call_input", "input", "ctc_"+c.id
	}
	say("response.output_item.added", object{"output_index": at, "item": c.responses("in_progress", "")})
	for _, p := range a.chunks(c.arguments) {
		say(kind+".delta", object{"item_id": id, "output_index": at, "delta": p})
	}
	say(kind+".done", object{"item_id": id, "output_index": at, field: c.arguments})
	say("response.output_item.done", object{"output_index": at, "item": c.responses("completed", c.arguments)})
}
