package mockllm

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A request contains the parts of a request that scripts use, for all APIs.
type request struct {
	model  string
	stream bool
	usage  bool // chat completions: a chunk with the usage is requested
	system string
	items  []item
	tools  []tool
	schema json.RawMessage // JSON Schema of the answer; empty: none
	size   int             // bytes of the body
}

// An item is one message, tool call or tool result.
type item struct {
	role   role
	text   string
	call   string // id of the tool call or, in a result, of its call
	called bool   // the item of the assistant calls a tool
}

type role int

const (
	user role = iota
	assistant
	result
)

// A tool is a tool that the request offers.
type tool struct {
	name   string
	custom bool // Responses API: its input is plain text
}

func (r *request) offers(name string) bool { return r.tool(name) != nil }

func (r *request) tool(name string) *tool {
	for i := range r.tools {
		if r.tools[i].name == name {
			return &r.tools[i]
		}
	}
	return nil
}

// A text is decoded from a string, or from the text in a list of parts.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*t = text(s)
		return nil
	}
	var parts []struct {
		Text    string `json:"text"`
		Content text   `json:"content"`
	}
	if json.Unmarshal(data, &parts) == nil {
		var all []string
		for _, p := range parts {
			if s := p.Text + string(p.Content); s != "" {
				all = append(all, s)
			}
		}
		*t = text(strings.Join(all, "\n"))
	}
	return nil
}

func parseChat(body []byte) (*request, error) {
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string `json:"role"`
			Content text   `json:"content"`
			ID      string `json:"tool_call_id"`
			Calls   []struct {
				ID string `json:"id"`
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		Format struct {
			Schema struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"json_schema"`
		} `json:"response_format"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("decode the chat completion request: %w", err)
	}
	r := &request{model: in.Model, stream: in.Stream, usage: in.Options.Usage, schema: in.Format.Schema.Schema, size: len(body)}
	for _, m := range in.Messages {
		switch m.Role {
		case "system", "developer":
			r.system += string(m.Content) + "\n"
		case "assistant":
			i := item{role: assistant, text: string(m.Content), called: len(m.Calls) > 0}
			if i.called {
				i.call = m.Calls[0].ID
			}
			r.items = append(r.items, i)
		case "tool", "function":
			r.items = append(r.items, item{role: result, text: string(m.Content), call: m.ID})
		default:
			r.items = append(r.items, item{role: user, text: string(m.Content)})
		}
	}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Function.Name})
	}
	return r, nil
}

func parseResponses(body []byte) (*request, error) {
	type part struct {
		Type    string `json:"type"`
		Role    string `json:"role"`
		Content text   `json:"content"`
		Call    string `json:"call_id"`
		Output  text   `json:"output"`
	}
	var in struct {
		Model        string          `json:"model"`
		Stream       bool            `json:"stream"`
		Instructions string          `json:"instructions"`
		Input        json.RawMessage `json:"input"`
		Tools        []struct {
			Type string `json:"type"`
			Name string `json:"name"`
		} `json:"tools"`
		Text struct {
			Format struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"format"`
		} `json:"text"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("decode the Responses API request: %w", err)
	}
	r := &request{model: in.Model, stream: in.Stream, system: in.Instructions, schema: in.Text.Format.Schema, size: len(body)}
	var only string
	var parts []part
	if json.Unmarshal(in.Input, &only) == nil {
		parts = []part{{Role: "user", Content: text(only)}}
	} else if err := json.Unmarshal(in.Input, &parts); err != nil {
		return nil, fmt.Errorf("decode the input of the Responses API request: %w", err)
	}
	for _, p := range parts {
		switch {
		case p.Type == "function_call_output" || p.Type == "custom_tool_call_output" || p.Type == "local_shell_call_output":
			r.items = append(r.items, item{role: result, text: string(p.Output), call: p.Call})
		case p.Type == "function_call" || p.Type == "custom_tool_call" || p.Type == "local_shell_call":
			r.items = append(r.items, item{role: assistant, call: p.Call, called: true})
		case p.Role == "system" || p.Role == "developer":
			r.system += "\n" + string(p.Content)
		case p.Role == "user":
			r.items = append(r.items, item{role: user, text: string(p.Content)})
		case p.Type != "item_reference":
			r.items = append(r.items, item{role: assistant, text: string(p.Content)})
		}
	}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Name, custom: t.Type == "custom"})
	}
	return r, nil
}

func parseMessages(body []byte) (*request, error) {
	type part struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		ID      string `json:"id"`
		Of      string `json:"tool_use_id"`
		Content text   `json:"content"`
	}
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		System   text   `json:"system"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Output struct {
			Format struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"format"`
		} `json:"output_config"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("decode the Messages API request: %w", err)
	}
	r := &request{model: in.Model, stream: in.Stream, system: string(in.System), schema: in.Output.Format.Schema, size: len(body)}
	for _, m := range in.Messages {
		var only string
		var parts []part
		if json.Unmarshal(m.Content, &only) == nil {
			parts = []part{{Type: "text", Text: only}}
		} else if err := json.Unmarshal(m.Content, &parts); err != nil {
			return nil, fmt.Errorf("decode the content of a message: %w", err)
		}
		var texts []string
		results := false
		who := item{role: user}
		if m.Role == "assistant" {
			who.role = assistant
		}
		for _, p := range parts {
			switch p.Type {
			case "tool_result":
				results = true
				r.items = append(r.items, item{role: result, text: string(p.Content), call: p.Of})
			case "tool_use":
				if !who.called {
					who.called, who.call = true, p.ID
				}
			case "text":
				texts = append(texts, p.Text)
			}
		}
		who.text = strings.Join(texts, "\n")
		// Text in a message with a tool result is a reminder of the agent, not a prompt.
		if !results {
			r.items = append(r.items, who)
		}
	}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Name})
	}
	return r, nil
}

func parseGemini(body []byte) (*request, error) {
	type content struct {
		Role  string `json:"role"`
		Parts []struct {
			Text   string          `json:"text"`
			Call   json.RawMessage `json:"functionCall"`
			Result *struct {
				ID       string          `json:"id"`
				Response json.RawMessage `json:"response"`
			} `json:"functionResponse"`
		} `json:"parts"`
	}
	var in struct {
		Contents []content `json:"contents"`
		System   content   `json:"systemInstruction"`
		Tools    []struct {
			Functions []struct {
				Name string `json:"name"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
		Config struct {
			Schema json.RawMessage `json:"responseJsonSchema"`
			Old    json.RawMessage `json:"responseSchema"`
		} `json:"generationConfig"`
		Counted *struct { // countTokens wraps the request
			Contents []content `json:"contents"`
		} `json:"generateContentRequest"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("decode the generateContent request: %w", err)
	}
	if in.Counted != nil {
		in.Contents = in.Counted.Contents
	}
	r := &request{schema: in.Config.Schema, size: len(body)}
	if len(r.schema) == 0 {
		r.schema = in.Config.Old
	}
	for _, p := range in.System.Parts {
		r.system += p.Text + "\n"
	}
	for _, c := range in.Contents {
		var texts []string
		results := false
		who := item{role: user}
		if c.Role == "model" {
			who.role = assistant
		}
		for _, p := range c.Parts {
			switch {
			case p.Result != nil:
				results = true
				r.items = append(r.items, item{role: result, text: string(p.Result.Response), call: p.Result.ID})
			case len(p.Call) > 0:
				who.called = true
			default:
				texts = append(texts, p.Text)
			}
		}
		who.text = strings.Join(texts, "\n")
		if !results {
			r.items = append(r.items, who)
		}
	}
	for _, t := range in.Tools {
		for _, f := range t.Functions {
			r.tools = append(r.tools, tool{name: f.Name})
		}
	}
	return r, nil
}
