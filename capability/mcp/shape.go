package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"glasshouse/fault"
)

// A shape maps a type to the protocol, in which input and output of tools are objects. Other
// values are wrapped in an object with one key.
type shape struct {
	schema json.RawMessage
	key    string // "": the value is an object
	any    bool   // the type is unknown
}

// shapeOf returns the shape of a JSON Schema.
func shapeOf(schema json.RawMessage, key string) (shape, error) {
	if schema == nil {
		return shape{schema: json.RawMessage(`{"type":"object"}`), any: true}, nil
	}
	var root any // an object or true
	if err := json.Unmarshal(schema, &root); err != nil {
		return shape{}, fmt.Errorf("decode the schema: %w", err)
	}
	if bytes.Contains(schema, []byte("x-mcp-header")) {
		return shape{}, errors.New("x-mcp-header is not supported")
	}
	if m, ok := root.(map[string]any); ok && m["type"] == "object" {
		return shape{schema: schema}, nil
	}
	wrapped := map[string]any{"type": "object", "required": []string{key}}
	// References such as #/$defs/address are resolved against the root of the schema, so its
	// definitions move with it (JSON Schema 2020-12, section 8.2.3).
	if m, ok := root.(map[string]any); ok {
		for _, k := range []string{"$schema", "$defs", "definitions"} {
			if v, ok := m[k]; ok {
				wrapped[k] = v
				delete(m, k)
			}
		}
	}
	wrapped["properties"] = map[string]any{key: root}
	text, err := json.Marshal(wrapped)
	if err != nil {
		return shape{schema: text, key: key}, fmt.Errorf("encode the schema: %w", err)
	}
	return shape{schema: text, key: key}, nil
}

// unwrap returns the input in arguments.
func (s shape) unwrap(arguments json.RawMessage) (json.RawMessage, error) {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	if s.key == "" {
		return arguments, nil
	}
	var in map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &in); err != nil {
		return nil, fault.Fieldf("mcp.Call", "arguments", "%v", err)
	}
	if v, ok := in[s.key]; ok && len(in) == 1 {
		return v, nil
	}
	return nil, fault.Fieldf("mcp.Call", "arguments", "must be an object with the single key %s", s.key)
}

// wrap returns output as an object: structured content is always one. Output without a type
// that is not an object goes under the key result. Without output the result is nil.
func (s shape) wrap(output json.RawMessage) json.RawMessage {
	output = bytes.TrimSpace(output)
	switch {
	case len(output) == 0:
		return nil
	case s.key != "":
		return fmt.Appendf(nil, `{%q:%s}`, s.key, output)
	case s.any && output[0] != '{':
		return fmt.Appendf(nil, `{"result":%s}`, output)
	}
	return output
}
