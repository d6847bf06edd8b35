package mockllm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"
)

// An answer is the answer to one request.
type answer struct {
	turn  *Turn
	from  string // name of the conversation
	nth   int    // index of the turn
	text  string
	calls []call
	usage Usage
	id    string // equal for equal requests
}

type call struct {
	id        string
	tool      string
	arguments string // JSON
	custom    bool
}

// A scene contains the values for templates.
type scene struct {
	Model   string
	System  string
	User    string   // the message of the user, or the message that the condition matches
	Result  string   // the last tool result
	Results []string // all tool results since the prompt
	Turn    int      // the number of answers since the prompt
	Match   []string // the groups of user_matches
}

// play returns the answer of the script to a request. It is stateless: the turn follows from
// the message history in the request.
func (s *Script) play(r *request) (answer, error) {
	prompt := r.prompt()
	v := scene{Model: r.model, System: strings.TrimSpace(r.system), Turn: turns(prompt)}
	for _, i := range prompt {
		switch i.role {
		case result:
			v.Result = i.text
			v.Results = append(v.Results, i.text)
		case user:
			v.User = strings.TrimSpace(i.text)
		}
	}
	a := answer{id: r.position()}
	if text, ok := aside(r, v); ok {
		a.turn, a.from, a.text = &Turn{}, "aside", text
		return a.counted(r), nil
	}
	a.turn, a.from, a.nth = s.choose(r, prompt, &v)
	var err error
	if a.text, err = fill(a.turn.text, v); err != nil {
		return a, err
	}
	if len(r.tools) == 0 && len(a.turn.Calls) > 0 {
		if a.text == "" {
			a.text = "The script calls a tool here, but the request offers no tools."
		}
		return a.counted(r), nil
	}
	for i := range a.turn.Calls {
		c, err := a.turn.Calls[i].make(r, v)
		if err != nil {
			return a, err
		}
		c.id = fmt.Sprintf("%s%d", callPrefix(a.id), i)
		a.calls = append(a.calls, c)
	}
	return a.counted(r), nil
}

// prompt returns the items after the last answer without a tool call: the current prompt of
// the user, and the tool calls and results since.
func (r *request) prompt() []item {
	for i := len(r.items) - 1; i >= 0; i-- {
		if it := r.items[i]; it.role == assistant && !it.called && !r.inTurn(i) && i < len(r.items)-1 {
			return r.items[i+1:]
		}
	}
	return r.items
}

// inTurn reports whether the answer that contains item i calls a tool. In some APIs the text
// and each call of an answer are separate items.
func (r *request) inTurn(i int) bool {
	for j := i; j >= 0 && r.items[j].role == assistant; j-- {
		if r.items[j].called {
			return true
		}
	}
	for j := i; j < len(r.items) && r.items[j].role == assistant; j++ {
		if r.items[j].called {
			return true
		}
	}
	return false
}

// turns counts the answers in items. Calls of one answer count once, even if the client has
// stored a result between them; their ids have the same prefix.
func turns(items []item) int {
	n, last := 0, ""
	before := user
	for _, i := range items {
		if i.role == assistant {
			prefix := i.call[:max(strings.LastIndexByte(i.call, '_'), 0)]
			if before != assistant && (prefix == "" || prefix != last) {
				n++
			}
			last = prefix
		}
		before = i.role
	}
	return n
}

// position returns a hash that identifies the conversation and the turn.
func (r *request) position() string {
	sum := sha256.New()
	fmt.Fprintln(sum, r.model, len(r.tools) > 0, turns(r.items))
	for _, i := range r.items {
		if i.role == user {
			fmt.Fprintf(sum, "%q\n", i.text)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func callPrefix(position string) string { return "call_" + position + "_" }

// choose returns the turn for a request, its conversation and its index.
func (s *Script) choose(r *request, prompt []item, v *scene) (*Turn, string, int) {
	for i := range s.Conversations {
		c := &s.Conversations[i]
		text, match, ok := c.When.meets(r, prompt, v)
		if !ok {
			continue
		}
		v.User, v.Match = text, match
		if t, nth := c.turn(r, prompt, v); t != nil {
			return t, c.Name, nth
		}
	}
	return s.Otherwise, "otherwise", 0
}

// turn returns the first turn whose condition holds. Otherwise it selects the turn without a
// condition by the number of answers since the prompt. The last one is repeated.
func (c *Conversation) turn(r *request, prompt []item, v *scene) (*Turn, int) {
	var placed []int
	for i := range c.Turns {
		w := c.Turns[i].When
		if w == nil {
			placed = append(placed, i)
			continue
		}
		if _, _, ok := w.meets(r, prompt, v); ok {
			return &c.Turns[i], i
		}
	}
	nth := placed[min(v.Turn, len(placed)-1)]
	return &c.Turns[nth], nth
}

// meets reports whether a condition holds. said and match are the user message that matches
// and the groups of user_matches.
func (w *When) meets(r *request, prompt []item, v *scene) (text string, match []string, ok bool) {
	text, match = v.User, v.Match
	if w.Model != "" && !matches(w.Model, r.model) || w.Tool != "" && !r.offers(w.Tool) || w.Turn != nil && *w.Turn != v.Turn {
		return "", nil, false
	}
	if !holds(r.system, w.System, w.system) || !holds(v.Result, w.Result, w.result) {
		return "", nil, false
	}
	if (w.Result != "" || w.result != nil) && len(v.Results) == 0 {
		return "", nil, false
	}
	if w.User == "" && w.user == nil {
		return text, match, true
	}
	for i := len(prompt) - 1; i >= 0; i-- {
		if prompt[i].role == user && holds(prompt[i].text, w.User, w.user) {
			if w.user != nil {
				match = w.user.FindStringSubmatch(prompt[i].text)
			}
			return strings.TrimSpace(prompt[i].text), match, true
		}
	}
	return "", nil, false
}

func holds(text, part string, e *regexp.Regexp) bool {
	return strings.Contains(text, part) && (e == nil || e.MatchString(text))
}

// make returns the call with its arguments. Of the alternatives in Any it uses the first whose
// tool the request offers.
func (c *Call) make(r *request, v scene) (call, error) {
	for i := range c.Any {
		if r.offers(c.Any[i].Tool) {
			return c.Any[i].make(r, v)
		}
	}
	if len(c.Any) > 0 {
		return call{}, fmt.Errorf("the request offers none of the tools of the script: %s", strings.Join(c.names(), ", "))
	}
	made := call{tool: c.Tool}
	filled, err := fillAll(c.arguments, v)
	if err != nil {
		return call{}, err
	}
	if t := r.tool(c.Tool); t != nil && t.custom {
		arguments, _ := filled.(map[string]any)
		input, _ := arguments["input"].(string)
		made.custom, made.arguments = true, input
		return made, nil
	}
	if m, ok := filled.(map[string]any); !ok || m == nil {
		filled = map[string]any{}
	}
	text, err := json.Marshal(filled)
	if err != nil {
		return call{}, fmt.Errorf("encode the arguments of %s: %w", made.tool, err)
	}
	made.arguments = string(text)
	return made, nil
}

func (c *Call) names() []string {
	var names []string
	for _, a := range c.Any {
		names = append(names, a.Tool)
	}
	return names
}

// longest limits the output of a template, in bytes.
const longest = 1 << 20

var errLong = errors.New("the output of a template exceeds 1 MiB")

type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > longest {
		return 0, errLong
	}
	return b.Buffer.Write(p)
}

func fill(t *template.Template, v scene) (string, error) {
	var out limitedBuffer
	if err := t.Execute(&out, v); err != nil {
		return "", fmt.Errorf("fill a template of the script: %w", err)
	}
	return out.String(), nil
}

func fillAll(in any, v scene) (any, error) {
	switch in := in.(type) {
	case *template.Template:
		return fill(in, v)
	case []any:
		list := make([]any, len(in))
		for i := range in {
			var err error
			if list[i], err = fillAll(in[i], v); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		m := map[string]any{}
		for k := range in {
			var err error
			if m[k], err = fillAll(in[k], v); err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	return in, nil
}

// counted returns the answer with its usage: that of the script, or an estimate.
func (a answer) counted(r *request) answer {
	if a.turn.Usage != nil {
		a.usage = *a.turn.Usage
		return a
	}
	letters := len(a.text)
	for _, c := range a.calls {
		letters += len(c.tool) + len(c.arguments)
	}
	a.usage = Usage{Input: int64(r.size+3) / 4, Output: int64(letters+3) / 4}
	return a
}

// matches reports whether a model name matches a pattern, as in package llm: * matches any
// sequence of characters.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	ok, _ := regexp.MatchString("^(?s:"+strings.Join(parts, ".*")+")$", name)
	return ok
}
