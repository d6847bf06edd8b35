package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// An Until is a condition that must hold before a run is done:
//
//	"manual"                         a person confirms that it is done
//	{"capability": "places.search"}  the capability was called and succeeded
//	{"and": [...]}  {"or": [...]}  {"not": ...}
//	{"rtfs": "(> (:steps run) 3)"}   an expression over the run is true
//
// The JSON form is the same in both directions.
type Until struct {
	op      string   // "manual", "capability", "and", "or", "not", "rtfs"
	name    string   // name of the capability, or source of the expression
	parts   []*Until // operands of and, or, not
	program *rtfs.Program
}

// Limits of a predicate and of the evaluation of its expressions.
const (
	maxUntil      = 64 << 10 // bytes
	maxUntilParts = 256
	maxUntilDepth = 32
)

var untilLimits = rtfs.Limits{Steps: 200_000, Depth: 500, Alloc: 16 << 20, Time: 2 * time.Second}

// ParseUntil parses the JSON form of a predicate.
func ParseUntil(data []byte) (*Until, error) {
	u := new(Until)
	return u, u.UnmarshalJSON(data)
}

// UnmarshalJSON implements json.Unmarshaler; see ParseUntil.
func (u *Until) UnmarshalJSON(data []byte) error {
	if len(data) > maxUntil {
		return fault.Newf(fault.TooLarge, "run.ParseUntil", "", "predicate exceeds %d bytes", maxUntil)
	}
	if !utf8.Valid(data) {
		return badUntil("must be valid UTF-8")
	}
	p := untilParser{left: maxUntilParts}
	got, err := p.parse(data, 0)
	if err != nil {
		return err
	}
	*u = *got
	return nil
}

func badUntil(format string, args ...any) error {
	return fault.Fieldf("run.ParseUntil", "until", format, args...)
}

type untilParser struct{ left int }

func (p *untilParser) parse(data json.RawMessage, depth int) (*Until, error) {
	p.left--
	if p.left < 0 || depth > maxUntilDepth {
		return nil, badUntil("predicate exceeds %d parts or a depth of %d", maxUntilParts, maxUntilDepth)
	}
	var word string
	if json.Unmarshal(data, &word) == nil && len(bytes.TrimSpace(data)) > 0 && bytes.TrimSpace(data)[0] == '"' {
		if word != "manual" {
			return nil, badUntil("%.60q is not a predicate: the only string is manual", word)
		}
		return &Until{op: word}, nil
	}
	op, value, err := onlyMember(data)
	if err != nil {
		return nil, err
	}
	switch op {
	case "capability", "rtfs":
		return parseNamed(op, value)
	case "and", "or":
		return p.parseList(op, value, depth)
	case "not":
		part, err := p.parse(value, depth+1)
		return &Until{op: op, parts: []*Until{part}}, err
	}
	return nil, badUntil("%.60q is not one of manual, capability, and, or, not, rtfs", op)
}

// onlyMember decodes an object with exactly one member.
func onlyMember(data []byte) (name string, value json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", nil, badUntil("want \"manual\" or an object, got %.60q", data)
	}
	t, err := d.Token()
	name, _ = t.(string)
	if err != nil || name == "" {
		return "", nil, badUntil("want an object with one member, got an empty one")
	}
	if err := d.Decode(&value); err != nil {
		return "", nil, badUntil("%s: not valid JSON: %v", name, err)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('}') {
		return "", nil, badUntil("want an object with one member, got more than %.60q", name)
	}
	if _, err := d.Token(); err != io.EOF {
		return "", nil, badUntil("unexpected data after the predicate")
	}
	return name, value, nil
}

func parseNamed(op string, value json.RawMessage) (*Until, error) {
	u := &Until{op: op}
	if err := json.Unmarshal(value, &u.name); err != nil || strings.TrimSpace(u.name) == "" {
		return nil, badUntil("%s: want a non-empty string", op)
	}
	if op == "capability" {
		if len(u.name) > maxName {
			return nil, badUntil("capability name of %d bytes is too long", len(u.name))
		}
		return u, nil
	}
	return u, u.compile()
}

func (p *untilParser) parseList(op string, value json.RawMessage, depth int) (*Until, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 {
		return nil, badUntil("%s: want a non-empty list of predicates", op)
	}
	u := &Until{op: op}
	for _, one := range list {
		part, err := p.parse(one, depth+1)
		if err != nil {
			return nil, err
		}
		u.parts = append(u.parts, part)
	}
	return u, nil
}

// compile compiles the expression as a function of run.
func (u *Until) compile() error {
	nodes, err := form.Read("until", []byte(u.name))
	if err != nil {
		return badUntil("rtfs: %v", err)
	}
	if len(nodes) != 1 {
		return badUntil("rtfs: want one expression, got %d", len(nodes))
	}
	around, err := form.Read("until", []byte("(fn [run] nil)"))
	if err != nil {
		return badUntil("rtfs: %v", err)
	}
	fn := around[0]
	fn.Items[len(fn.Items)-1] = nodes[0]
	p, err := rtfs.New(rtfs.Config{Limits: untilLimits}).CompileNodes(fn)
	if err != nil {
		return badUntil("rtfs: %v", err)
	}
	if unknown := p.Undefined(); len(unknown) > 0 {
		return badUntil("rtfs: undefined name %s: only run is defined", strings.Join(unknown, ", "))
	}
	u.program = p
	return nil
}

// MarshalJSON returns the form that ParseUntil accepts.
func (u *Until) MarshalJSON() ([]byte, error) {
	switch u.op {
	case "manual":
		return []byte(`"manual"`), nil
	case "not":
		return json.Marshal(map[string]*Until{u.op: u.parts[0]})
	case "and", "or":
		return json.Marshal(map[string][]*Until{u.op: u.parts})
	case "capability", "rtfs":
		return json.Marshal(map[string]string{u.op: u.name})
	}
	return nil, errors.New("predicate was not parsed")
}

func (u *Until) String() string {
	text, err := u.MarshalJSON()
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// facts are the inputs of the evaluation of a predicate.
type facts struct {
	manual    bool             // a person has confirmed that the run is done
	succeeded map[string]int64 // number of successful calls, by capability
	record    *form.Map
}

// evaluate reports whether u holds, and if not, what is missing. If any evaluated expression
// fails, evaluate returns an error: neither the predicate nor its negation holds.
func (u *Until) evaluate(ctx context.Context, f facts) (holds bool, missing string, err error) {
	switch u.op {
	case "manual":
		return f.manual, "a person must confirm that it is done", nil
	case "capability":
		return f.succeeded[u.name] > 0, fmt.Sprintf("the capability %s has not succeeded", u.name), nil
	case "rtfs":
		return u.evaluateRTFS(ctx, f)
	case "not":
		holds, _, err := u.parts[0].evaluate(ctx, f)
		return !holds, fmt.Sprintf("%s holds", u.parts[0]), err
	}
	return u.evaluateAll(ctx, f)
}

func (u *Until) evaluateAll(ctx context.Context, f facts) (bool, string, error) {
	var missing []string
	for _, part := range u.parts {
		holds, why, err := part.evaluate(ctx, f)
		if err != nil {
			return false, "", err
		}
		if holds && u.op == "or" {
			return true, "", nil
		}
		if !holds {
			missing = append(missing, why)
		}
	}
	if u.op == "and" {
		return len(missing) == 0, strings.Join(missing, "; "), nil
	}
	return false, "none of: " + strings.Join(missing, "; "), nil
}

func (u *Until) evaluateRTFS(ctx context.Context, f facts) (bool, string, error) {
	v, err := u.program.Run(ctx)
	if fn, ok := v.(*rtfs.Func); err == nil && ok {
		v, err = fn.With(rtfs.Env{Limits: untilLimits}).Call(ctx, f.record)
	}
	if err != nil {
		return false, "", fmt.Errorf("%s: %w", u.name, err)
	}
	holds, ok := v.(bool)
	if !ok {
		return false, "", fmt.Errorf("%s: result is not a boolean", u.name)
	}
	return holds, u.name + " is false", nil
}
