package skill

import (
	"encoding/json"
	"fmt"
	"strings"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A Tool is a capability in the form of a model's tool.
type Tool struct {
	Name        string // from ToolName
	Capability  string // its id
	Description string
	Input       json.RawMessage // a JSON Schema of an object

	wrapped bool // the input is not an object and is wrapped in the argument input
}

// Rendered is a skill in the form that an agent reads.
type Rendered struct {
	Text  string // Markdown
	Tools []Tool
}

// Render returns a skill for an agent, with its capabilities as tools.
func Render(s *Skill, capabilities []*manifest.Capability) (*Rendered, error) {
	r := &Rendered{}
	var b strings.Builder
	b.WriteString(s.Body)
	if len(capabilities) > 0 {
		b.WriteString("\n\n## Tools of this skill\n\n")
	}
	for _, c := range capabilities {
		t, err := ToolOf(c)
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", s.Name, err)
		}
		r.Tools = append(r.Tools, t)
		fmt.Fprintf(&b, "- `%s` is the tool `%s`: %s\n", t.Capability, t.Name, text.OneLine(t.Description))
	}
	r.Text = strings.TrimSpace(b.String()) + "\n"
	return r, nil
}

// ToolOf returns a capability as a tool.
func ToolOf(c *manifest.Capability) (Tool, error) {
	t := Tool{Name: ToolName(c.ID), Capability: c.ID, Description: c.Description, Input: json.RawMessage(`{"type":"object"}`)}
	if t.Description == "" {
		t.Description = c.ID
	}
	if c.Input == nil {
		return t, nil
	}
	schema, err := c.Input.JSONSchema()
	if err != nil {
		return Tool{}, fmt.Errorf("the input of %s as JSON Schema: %w", c.ID, err)
	}
	var top struct{ Type any }
	if err := json.Unmarshal(schema, &top); err != nil {
		return Tool{}, fmt.Errorf("the input of %s as JSON Schema: %w", c.ID, err)
	}
	t.Input = schema
	if top.Type != "object" {
		t.wrapped = true
		t.Input = fmt.Appendf(nil, `{"type":"object","properties":{"input":%s},"required":["input"],"additionalProperties":false}`, schema)
	}
	return t, nil
}

// Arguments converts the arguments of a tool call to the input of the capability.
func (t Tool) Arguments(given json.RawMessage) (json.RawMessage, error) {
	if len(given) == 0 {
		given = json.RawMessage(`{}`)
	}
	if !t.wrapped {
		return given, nil
	}
	var in struct{ Input json.RawMessage }
	if err := json.Unmarshal(given, &in); err != nil || in.Input == nil {
		return nil, fault.Fieldf("skill.Arguments", "input", "%s takes one argument, input", t.Name)
	}
	return in.Input, nil
}

// OpenAI encodes a tool for the chat completions API of OpenAI and compatible servers.
func (t Tool) OpenAI() (json.RawMessage, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	return json.Marshal(struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}{"function", function{t.Name, t.Description, t.Input}})
}

// Anthropic encodes a tool for the messages API of Anthropic.
func (t Tool) Anthropic() (json.RawMessage, error) {
	return json.Marshal(struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	}{t.Name, t.Description, t.Input})
}

// ToolName returns an id without dots: places__search for places.search. The mapping is
// reversible, because ids have no two consecutive underscores.
func ToolName(id string) string { return strings.ReplaceAll(id, ".", "__") }

// CapabilityID is the inverse of ToolName.
func CapabilityID(tool string) (string, error) {
	id := strings.ReplaceAll(tool, "__", ".")
	if err := manifest.CheckID(id); err != nil || ToolName(id) != tool {
		return "", fault.Newf(fault.NotFound, "skill.CapabilityID", "", "%.80q is not the tool name of a capability", tool)
	}
	return id, nil
}
