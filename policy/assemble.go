package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A layered is a rule with its origin and the tier of its source: rules of a higher tier take
// precedence.
type layered struct {
	Rule
	origin string
	tier   int
}

const (
	tierDefaults = iota // defaults of OpenCode, its agents and the level
	tierFiles           // from permission files
	tierOff             // a tool or agent that is disabled
)

// originFiles is the origin of rules from permission files.
const originFiles = "permissions"

// named adds the name of a built-in set to its rules.
func named(set string, tier int, rules []Rule) []layered {
	var all []layered
	for _, r := range rules {
		r.File = set
		all = append(all, layered{r, set, tier})
	}
	return all
}

// A merged is the combination of all permission files.
type merged struct {
	permission   permission
	tools        []toolSwitch
	agents       []agentBlock
	defaultAgent string
}

// merge merges files; later ones take precedence. A key keeps the position of its first
// occurrence.
func merge(files []*Permissions) merged {
	var m merged
	for _, f := range files {
		m.permission = m.permission.under(f.permission)
		m.tools = underTools(m.tools, f.tools)
		if f.defaultAgent != "" {
			m.defaultAgent = f.defaultAgent
		}
		for _, a := range f.agents {
			m.addAgent(a)
		}
	}
	if m.defaultAgent == "" {
		m.defaultAgent = "build"
	}
	return m
}

func (m *merged) addAgent(a agentBlock) {
	i := slices.IndexFunc(m.agents, func(b agentBlock) bool { return b.name == a.name })
	if i < 0 {
		a.permission = slices.Clone(a.permission)
		m.agents = append(m.agents, a)
		return
	}
	b := &m.agents[i]
	b.permission = b.permission.under(a.permission)
	b.tools = underTools(b.tools, a.tools)
	if a.steps != nil {
		b.steps = a.steps
	}
	if a.disable != nil {
		b.disable = a.disable
	}
}

func (m *merged) agent(name string) *agentBlock {
	for i := range m.agents {
		if m.agents[i].name == name {
			return &m.agents[i]
		}
	}
	return &agentBlock{name: name}
}

// under returns p overridden by over: patterns of a tool that are objects in both are joined,
// other entries are replaced in place.
func (p permission) under(over permission) permission {
	p = slices.Clone(p)
	for _, t := range over {
		i := slices.IndexFunc(p, func(u toolRules) bool { return u.tool == t.tool })
		switch {
		case i < 0:
			t.rules = slices.Clone(t.rules)
			p = append(p, t)
		case p[i].single || t.single:
			p[i] = t
		default:
			p[i].rules = slices.Clone(p[i].rules)
			for _, r := range t.rules {
				k := slices.IndexFunc(p[i].rules, func(q patternRule) bool { return q.pattern == r.pattern })
				if k < 0 {
					p[i].rules = append(p[i].rules, r)
				} else {
					p[i].rules[k] = r
				}
			}
		}
	}
	return p
}

// replacedBy is like under, but does not join patterns.
func (p permission) replacedBy(over permission) permission {
	p = slices.Clone(p)
	for _, t := range over {
		if i := slices.IndexFunc(p, func(u toolRules) bool { return u.tool == t.tool }); i >= 0 {
			p[i] = t
		} else {
			p = append(p, t)
		}
	}
	return p
}

func underTools(tools, over []toolSwitch) []toolSwitch {
	tools = slices.Clone(tools)
	for _, t := range over {
		if i := slices.IndexFunc(tools, func(u toolSwitch) bool { return u.tool == t.tool }); i >= 0 {
			tools[i] = t
		} else {
			tools = append(tools, t)
		}
	}
	return tools
}

// asPermission converts the older "tools" switches as current OpenCode does.
func asPermission(tools []toolSwitch) permission {
	var p permission
	for _, t := range tools {
		r := toolRules{tool: editTool(t.tool), single: true, rules: []patternRule{{"*", t.effect(), t.at}}}
		p = p.replacedBy(permission{r})
	}
	return p
}

func (t toolSwitch) effect() Effect {
	if t.on {
		return Allow
	}
	return Deny
}

// editTools are the tools that current OpenCode authorises as edits.
var editTools = []string{"edit", "write", "patch", "multiedit", "apply_patch"}

func editTool(tool string) string {
	if slices.Contains(editTools, tool) {
		return ActionEdit
	}
	return tool
}

// javaScriptOrder sorts integer keys first, in ascending order, as JavaScript does for all
// objects.
func javaScriptOrder[T any](all []T, key func(T) string) []T {
	position := func(t T) uint64 {
		n, err := strconv.ParseUint(key(t), 10, 32)
		if err != nil || n == 1<<32-1 || strconv.FormatUint(n, 10) != key(t) {
			return 1 << 32
		}
		return n
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(position(a), position(b)) })
	return all
}

func (p permission) rules() []layered {
	var all []layered
	for _, t := range javaScriptOrder(p, func(t toolRules) string { return t.tool }) {
		for _, r := range javaScriptOrder(t.rules, func(r patternRule) string { return r.pattern }) {
			all = append(all, layered{Rule{t.tool, r.pattern, r.effect, r.at.file, r.at.line}, originFiles, tierFiles})
		}
	}
	return all
}

// assemble returns the rules for one agent in order of precedence.
func (m *merged) assemble(agent string, match Match, level Level) []layered {
	native := openCodeAgents[agent]
	all := named(setOpenCode, tierDefaults, openCodeDefaults)
	all = append(all, named(fmt.Sprintf("OpenCode defaults of %s", agent), tierDefaults, native)...)
	all = append(all, named(level.String(), tierDefaults, levelDefaults[level])...)
	a := m.agent(agent)
	if match == Longest {
		all = append(all, m.longest(a)...)
	} else {
		all = append(all, m.last(a)...)
	}
	if a.disable != nil && a.disable.on {
		all = append(all, layered{Rule{"*", "*", Deny, a.disable.at.file, a.disable.at.line}, originFiles, tierOff})
	}
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b layered) int {
		if a.tier == tierFiles && b.tier == tierFiles && match == Longest {
			return longer(a, b)
		}
		return cmp.Compare(b.tier, a.tier)
	})
	return all
}

// longer orders the rules of one tier for the match mode Longest.
func longer(a, b layered) int {
	return cmp.Or(
		cmp.Compare(utf8.RuneCountInString(b.Pattern), utf8.RuneCountInString(a.Pattern)),
		cmp.Compare(exactness(b.Action), exactness(a.Action)),
		cmp.Compare(b.Effect.rank(), a.Effect.rank()),
	)
}

// exactness orders action patterns: literal names first.
func exactness(action string) int {
	n := utf8.RuneCountInString(action)
	if p := compilePattern(action, ""); p.literal {
		n += maxPattern
	}
	return n
}

// last returns the rules of the files in the order of OpenCode 1.18.
func (m *merged) last(a *agentBlock) []layered {
	all := asPermission(m.tools).under(m.permission).rules()
	all = append(all, asPermission(a.tools).replacedBy(a.permission).rules()...)
	denied := slices.ContainsFunc(all, func(l layered) bool {
		return l.Action == ActionOutside && l.Pattern == toolOutput && l.Effect == Deny
	})
	if !denied {
		all = append(all, named(setOpenCode, tierFiles, allow(ActionOutside, toolOutput))...)
	}
	return all
}

// longest returns the rules of the files for the match mode Longest. The agent's block and the
// global one form one set, in which the agent's effect counts if both have the same pattern. A
// disabled tool is removed; an enabled one is allowed where the permissions have no rule,
// without overriding their patterns.
func (m *merged) longest(a *agentBlock) []layered {
	p := m.permission.patterned().under(a.permission.patterned())
	all := p.rules()
	for _, t := range underTools(m.tools, a.tools) {
		l := layered{Rule{t.tool, "*", t.effect(), t.at.file, t.at.line}, originFiles, tierFiles}
		switch {
		case !t.on:
			l.tier = tierOff
		case slices.ContainsFunc(p, func(u toolRules) bool { return u.tool == t.tool }):
			continue
		default: // and no default of OpenCode, such as the one for .env files
			all = append(all, named(setOpenCode, tierFiles, patternsOf(t.tool, openCodeDefaults))...)
		}
		all = append(all, l)
	}
	return append(all, named(setOpenCode, tierFiles, allow(ActionOutside, toolOutput))...)
}

func patternsOf(tool string, rules []Rule) []Rule {
	var all []Rule
	for _, r := range rules {
		if r.Action == tool && r.Pattern != "*" {
			all = append(all, r)
		}
	}
	return all
}

// patterned converts a single effect for a tool to the pattern "*", so that it is joined with
// other patterns.
func (p permission) patterned() permission {
	p = slices.Clone(p)
	for i := range p {
		p[i].single = false
	}
	return p
}
