package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Permissions is the permission part of one opencode.json or opencode.jsonc. Other parts of
// the file are ignored.
type Permissions struct {
	name         string
	permission   permission
	tools        []toolSwitch
	agents       []agentBlock
	defaultAgent string
	signs        []sign    // indications of the match mode
	findings     []Finding // found while parsing
}

// A permission is a permission block, in the order of its keys.
type permission []toolRules

// toolRules are the rules under one key of a permission block.
type toolRules struct {
	tool   string // pattern over tools
	single bool   // a single effect without patterns
	rules  []patternRule
}

type patternRule struct {
	pattern string
	effect  Effect
	at      position
}

// A toolSwitch is a boolean of the older "tools" setting.
type toolSwitch struct {
	tool string
	on   bool
	at   position
}

type agentBlock struct {
	name       string
	permission permission
	tools      []toolSwitch
	steps      *steps
	disable    *toolSwitch // its tool is empty
}

type steps struct {
	n  int
	at position
}

// A position is a line of a file.
type position struct {
	file string
	line int
}

func (p position) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// ReadPermissions parses the permissions of an opencode.json or opencode.jsonc. name is the
// file name in rules and messages. Unknown keys are ignored; invalid values of known keys are
// errors with line and remedy.
func ReadPermissions(name string, data []byte) (*Permissions, error) {
	root, err := parseJSONC(name, data)
	if err != nil {
		return nil, err
	}
	if root.kind != kindObject {
		return nil, invalid(name, root.line, `write { "permission": { … } }`, "the file contains %s, not an object", root.kind)
	}
	r := &reader{p: &Permissions{name: name}}
	r.file(&root)
	if r.err == nil && r.rules > maxRules {
		r.fail(0, "use wildcards", "%d rules, more than the limit of %d", r.rules, maxRules)
	}
	if r.err == nil && len(r.p.agents) > maxAgents {
		r.fail(0, "move the common rules of agents to the global permissions", "%d agents, more than the limit of %d", len(r.p.agents), maxAgents)
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.p, nil
}

// A reader fills Permissions from the values of a file. It stops at the first error.
type reader struct {
	p     *Permissions
	rules int
	err   error
}

func (r *reader) fail(line int, remedy, format string, args ...any) {
	if r.err == nil {
		r.err = invalid(r.p.name, line, remedy, format, args...)
	}
}

func (r *reader) at(line int) position { return position{r.p.name, line} }

func (r *reader) note(line int, kind FindingKind, remedy, format string, args ...any) {
	r.p.findings = append(r.p.findings, Finding{
		Kind: kind, File: r.p.name, Line: line, Message: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

// want reports whether m has the given kind, and fails otherwise.
func (r *reader) want(m *member, k kind) bool {
	if m.kind != k {
		r.fail(m.value.line, fmt.Sprintf("write %s, or remove %q", k, m.key), "%q is %s, but must be %s", m.key, m.kind, k)
	}
	return m.kind == k
}

// each calls do with every effective member of v, in the order of the first occurrence of its
// key. The last value of a duplicate key is effective.
func (r *reader) each(v *value, do func(m *member)) {
	seen := make(map[string]int, len(v.members))
	var order []*member
	for i := range v.members {
		m := &v.members[i]
		if k, twice := seen[m.key]; twice {
			r.note(order[k].line, NoEffect, "remove one of the two", "%q is repeated in line %d, which takes precedence", m.key, m.line)
			order[k] = m
			continue
		}
		seen[m.key] = len(order)
		order = append(order, m)
	}
	for _, m := range order {
		do(m)
	}
}

func (r *reader) file(root *value) {
	r.each(root, func(m *member) {
		switch m.key {
		case "permission":
			r.p.permission = r.permission(m)
		case "tools":
			r.p.tools = r.tools(m)
		case "agent", "mode": // "mode" is the older name
			if r.want(m, kindObject) {
				r.each(&m.value, r.agent)
			}
		case "default_agent":
			if r.want(m, kindString) {
				r.p.defaultAgent = m.text
			}
		}
	})
}

func (r *reader) agent(m *member) {
	if !r.want(m, kindObject) {
		return
	}
	a := agentBlock{name: m.key}
	r.each(&m.value, func(m *member) {
		switch m.key {
		case "permission":
			a.permission = r.permission(m)
		case "tools":
			a.tools = r.tools(m)
		case "disable":
			if r.want(m, kindBool) {
				a.disable = &toolSwitch{on: m.truth, at: r.at(m.line)}
			}
		case "steps", "maxSteps":
			n := r.steps(m)
			if m.key == "maxSteps" {
				r.sign(m.line, Longest, usual, `"maxSteps"`)
			} else {
				r.sign(m.line, Last, usual, `"steps"`)
			}
			if a.steps == nil || m.key == "steps" { // the newer name takes precedence
				a.steps = &steps{n, r.at(m.line)}
			}
		}
	})
	r.p.agents = append(r.p.agents, a)
}

func (r *reader) steps(m *member) int {
	n, err := strconv.Atoi(m.text)
	if m.kind != kindNumber || err != nil || n <= 0 {
		r.fail(m.value.line, "write how many steps the agent may take, for example 50", "%q must be a whole number above 0", m.key)
	}
	return n
}

func (r *reader) tools(m *member) []toolSwitch {
	if !r.want(m, kindObject) {
		return nil
	}
	var all []toolSwitch
	r.each(&m.value, func(m *member) {
		if r.want(m, kindBool) && r.pattern(m) {
			all = append(all, toolSwitch{m.key, m.truth, r.at(m.line)})
		}
	})
	if len(all) > 0 {
		r.sign(all[0].at.line, Longest, usual, `"tools" with true and false`)
	}
	return all
}

// permission parses a block: one effect for all tools, or an object.
func (r *reader) permission(m *member) permission {
	switch m.kind {
	case kindString:
		return permission{r.toolEffect("*", m)}
	case kindObject:
	default:
		r.fail(m.value.line, `write "allow", "ask", "deny" or { "bash": { "npm *": "allow" } }`,
			"%q is %s, but must be a word or an object", m.key, m.kind)
		return nil
	}
	var all permission
	r.each(&m.value, func(m *member) {
		if !r.pattern(m) {
			return
		}
		r.signOfKey(m)
		switch m.kind {
		case kindString:
			all = append(all, r.toolEffect(m.key, m))
		case kindObject:
			all = append(all, r.patterns(m))
		default:
			r.fail(m.value.line, `write "allow", "ask", "deny" or an object of patterns`,
				"%q is %s, but must be a word or an object of patterns", m.key, m.kind)
		}
	})
	return all
}

func (r *reader) toolEffect(tool string, m *member) toolRules {
	return toolRules{tool: tool, single: true, rules: []patternRule{{"*", r.effect(m), r.at(m.line)}}}
}

func (r *reader) patterns(m *member) toolRules {
	t := toolRules{tool: m.key}
	r.each(&m.value, func(p *member) {
		if !r.pattern(p) {
			return
		}
		if p.kind != kindString {
			r.fail(p.value.line, `write "allow", "ask" or "deny"`, "%q of %q is %s, but must be a word", p.key, m.key, p.kind)
			return
		}
		t.rules = append(t.rules, patternRule{p.key, r.effect(p), r.at(p.line)})
	})
	r.signOfOrder(t)
	return t
}

func (r *reader) effect(m *member) Effect {
	switch e := Effect(m.text); e {
	case Allow, Ask, Deny:
		return e
	}
	r.fail(m.value.line, `write "allow", "ask" or "deny"`, "%q is %q, but must be allow, ask or deny", m.key, m.text)
	return Deny
}

// pattern reports whether the key of m is a valid pattern.
func (r *reader) pattern(m *member) bool {
	r.rules++
	switch {
	case len(m.key) > maxPattern:
		r.fail(m.line, "make it shorter, with a wildcard", "a pattern of %d bytes, more than the limit of %d", len(m.key), maxPattern)
	case strings.IndexByte(m.key, hole) >= 0:
		r.fail(m.line, "remove it: no resource contains a zero byte", "the pattern %q contains a zero byte", m.key)
	case strings.Contains(m.key, "{env:") || strings.Contains(m.key, "{file:"):
		r.fail(m.line, "write the value itself: rules cannot refer to environment variables or other files",
			"the pattern %q is a reference to another value", m.key)
	default:
		return true
	}
	return false
}
