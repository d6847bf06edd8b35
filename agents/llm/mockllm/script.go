package mockllm

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/template"
	"time"

	"glasshouse/fault"

	"go.yaml.in/yaml/v3"
)

// A Script defines the answers of a Server.
type Script struct {
	Models        []string       `yaml:"models"` // models of GET /v1/models; empty: fake-1
	Conversations []Conversation `yaml:"conversations"`
	Otherwise     *Turn          `yaml:"otherwise"` // answer if no conversation matches; absent: a default text
}

// A Conversation contains the answers to one kind of prompt, turn by turn.
type Conversation struct {
	Name  string `yaml:"name"`
	When  When   `yaml:"when"`
	Turns []Turn `yaml:"turns"`
}

// A When is a condition. It holds if all of its fields that are set match.
type When struct {
	Model         string `yaml:"model"` // name or pattern; * matches any sequence of characters
	User          string `yaml:"user"`  // substring of a user message
	UserMatches   string `yaml:"user_matches"`
	System        string `yaml:"system"` // substring of the system prompt
	SystemMatches string `yaml:"system_matches"`
	Result        string `yaml:"result"` // substring of the last tool result
	ResultMatches string `yaml:"result_matches"`
	Tool          string `yaml:"tool"` // name of a tool that the request offers
	Turn          *int   `yaml:"turn"` // number of answers since the prompt

	user, system, result *regexp.Regexp
}

// A Turn is one answer.
type Turn struct {
	When  *When  `yaml:"when"` // condition; absent: the turn is used in order
	Text  string `yaml:"text"` // a template
	Calls []Call `yaml:"calls"`
	Stop  string `yaml:"stop"` // "length": the answer reports that it reached the maximum length

	Usage *Usage   `yaml:"usage"` // absent: estimated with four bytes per token
	Delay Duration `yaml:"delay"` // before the answer
	Pace  Duration `yaml:"pace"`  // between the chunks of a streamed answer
	Chunk int      `yaml:"chunk"` // characters of a chunk; 0: 16
	Fail  *Fail    `yaml:"fail"`

	text *template.Template
}

// A Call is a tool call. Agents use different names for their tools: of the alternatives in
// Any, the first whose tool the request offers is used.
type Call struct {
	Tool      string         `yaml:"tool"`
	Arguments map[string]any `yaml:"arguments"` // its strings are templates
	Any       []Call         `yaml:"any"`

	arguments any // Arguments with parsed templates instead of strings
}

// Usage is the token usage that an answer reports.
type Usage struct {
	Input      int64 `yaml:"input"`
	Output     int64 `yaml:"output"`
	CacheRead  int64 `yaml:"cache_read"`
	CacheWrite int64 `yaml:"cache_write"`
	Reasoning  int64 `yaml:"reasoning"`
	None       bool  `yaml:"none"` // no usage is reported
}

// A Fail is a simulated failure of an answer.
type Fail struct {
	Status     int    `yaml:"status"` // HTTP status of an error that replaces the answer
	Message    string `yaml:"message"`
	RetryAfter int    `yaml:"retry_after"` // seconds
	CutAfter   int    `yaml:"cut_after"`   // the connection is closed after this number of events; 0: never
	Malformed  bool   `yaml:"malformed"`   // the answer is invalid JSON
	Times      int    `yaml:"times"`       // number of failures of equal requests; 0: always
}

// A Duration is a duration in the format "250ms".
type Duration time.Duration

// UnmarshalYAML parses a duration with time.ParseDuration. It must be from 0 to 1 hour.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 || v > time.Hour {
		return fmt.Errorf("line %d: %q is not a duration up to 1h, such as 250ms", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

//go:embed default.yaml
var defaultScript []byte

// Default returns the built-in script.
func Default() *Script {
	s, err := Parse(defaultScript)
	if err != nil {
		panic(err) // tests parse the built-in script
	}
	return s
}

// Load reads a script from a file.
func Load(file string) (*Script, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.New(fault.NotFound, "mockllm.Load", file, err)
	}
	s, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// Parse parses a script in YAML or JSON. An unknown field is an error.
func Parse(text []byte) (*Script, error) {
	var s Script
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&s); err != nil && err != io.EOF {
		return nil, fault.New(fault.Invalid, "mockllm.Parse", "", err)
	}
	if err := s.compile(); err != nil {
		return nil, fault.New(fault.Invalid, "mockllm.Parse", "", err)
	}
	return &s, nil
}

func (s *Script) compile() error {
	if len(s.Models) == 0 {
		s.Models = []string{"fake-1"}
	}
	for i := range s.Conversations {
		c := &s.Conversations[i]
		if c.Name == "" {
			c.Name = fmt.Sprintf("conversation %d", i+1)
		}
		if err := c.compile(); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	if s.Otherwise == nil {
		s.Otherwise = &Turn{Text: "The script has no answer to this: {{.User}}"}
	}
	return s.Otherwise.compile()
}

func (c *Conversation) compile() error {
	if len(c.Turns) == 0 {
		return errors.New("the conversation has no turns")
	}
	if err := c.When.compile(); err != nil {
		return fmt.Errorf("compile the condition: %w", err)
	}
	if c.When.Turn != nil || c.When.Result+c.When.ResultMatches != "" {
		return errors.New("turn, result and result_matches are allowed only in conditions of turns")
	}
	placed := false
	for i := range c.Turns {
		if err := c.Turns[i].compile(); err != nil {
			return fmt.Errorf("turn %d: %w", i+1, err)
		}
		placed = placed || c.Turns[i].When == nil
	}
	if !placed {
		return errors.New("all turns have conditions; at least one turn without a condition is required")
	}
	return nil
}

func (w *When) compile() (err error) {
	for _, e := range []struct {
		text string
		into **regexp.Regexp
	}{{w.UserMatches, &w.user}, {w.SystemMatches, &w.system}, {w.ResultMatches, &w.result}} {
		if e.text == "" {
			continue
		}
		if *e.into, err = regexp.Compile(e.text); err != nil {
			return err
		}
	}
	return nil
}

func (t *Turn) compile() (err error) {
	if t.When != nil {
		if err := t.When.compile(); err != nil {
			return fmt.Errorf("compile the condition: %w", err)
		}
	}
	switch t.Stop {
	case "", "length":
	default:
		return fmt.Errorf("stop: %q is not \"length\"", t.Stop)
	}
	if f := t.Fail; f != nil && f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		return fmt.Errorf("fail: %d is not an HTTP error status", f.Status)
	}
	if t.text, err = compile(t.Text); err != nil {
		return fmt.Errorf("parse the text: %w", err)
	}
	for i := range t.Calls {
		if err := t.Calls[i].compile(); err != nil {
			return fmt.Errorf("call %d: %w", i+1, err)
		}
	}
	return nil
}

func (c *Call) compile() (err error) {
	if (c.Tool == "") == (len(c.Any) == 0) {
		return errors.New("a call must have either tool or any")
	}
	for i := range c.Any {
		if err := c.Any[i].compile(); err != nil {
			return err
		}
	}
	c.arguments, err = compileAll(c.Arguments)
	return err
}

// compileAll returns a copy of v with parsed templates instead of strings.
func compileAll(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return compile(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			var err error
			if list[i], err = compileAll(v[i]); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		m := map[string]any{}
		for k := range v {
			var err error
			if m[k], err = compileAll(v[k]); err != nil {
				return nil, err
			}
		}
		return m, nil
	case map[any]any:
		return nil, errors.New("the names of arguments must be strings")
	}
	return v, nil
}

func compile(text string) (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{
		"trim": strings.TrimSpace, "lower": strings.ToLower, "contains": strings.Contains,
		"lines": func(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") },
	}).Option("missingkey=error").Parse(text)
}
