package mockllm

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Prompts of the auxiliary requests of agents, for a title or a summary. These requests offer
// no tools.
var (
	titles    = regexp.MustCompile(`(?i)\b(generat|write|give|create|suggest|come up)\w*\b[^.]{0,60}\btitle\b|\btitle generator\b|\bnew conversation topic\b`)
	summaries = regexp.MustCompile(`(?i)\b(summarize|summarise|summary of|summarizing)\b.{0,80}\bconversation\b|\bcontext checkpoint\b`)
)

// aside answers an auxiliary request, which is not part of the scripted conversation: a title,
// a summary, or an object for a JSON Schema. It returns false for other requests.
func aside(r *request, v scene) (string, bool) {
	if len(r.tools) > 0 {
		return "", false
	}
	about := firstWords(r)
	asked := r.system + "\n" + v.User
	switch {
	case len(r.schema) > 0 && string(r.schema) != "null":
		text, err := json.Marshal(instance(r.schema, about, 0))
		return string(text), err == nil
	case titles.MatchString(asked) && !r.called():
		return about, true
	case summaries.MatchString(asked):
		return "So far: " + about, true
	}
	return "", false
}

func (r *request) called() bool {
	for _, i := range r.items {
		if i.called {
			return true
		}
	}
	return false
}

var word = regexp.MustCompile(`[\pL\pN][\pL\pN'-]*`)

// firstWords returns the first words of the last user message.
func firstWords(r *request) string {
	for i := len(r.items) - 1; i >= 0; i-- {
		if r.items[i].role != user {
			continue
		}
		words := word.FindAllString(r.items[i].text, 7)
		if len(words) == 7 {
			words = words[:6]
		}
		if len(words) > 0 {
			return strings.Join(words, " ")
		}
	}
	return "A conversation"
}

// instance returns a minimal value for a JSON Schema, with text as its strings.
func instance(schema json.RawMessage, text string, depth int) any {
	var s struct {
		Type       any                        `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
		Items      json.RawMessage            `json:"items"`
		Enum       []any                      `json:"enum"`
	}
	if json.Unmarshal(schema, &s) != nil || depth > 20 {
		return nil
	}
	if len(s.Enum) > 0 {
		return s.Enum[0]
	}
	kind, _ := s.Type.(string)
	switch strings.ToLower(kind) {
	case "object":
		m := map[string]any{}
		for name, p := range s.Properties {
			m[name] = instance(p, text, depth+1)
		}
		return m
	case "array":
		return []any{}
	case "boolean":
		return false
	case "number", "integer":
		return 0
	case "null":
		return nil
	}
	return text
}
