package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"sync"

	"glasshouse/fault"
)

// A Config configures a Set.
type Config struct {
	// Permissions are files in ascending order of precedence.
	Permissions []*Permissions

	// Frameworks are the decision frameworks. All of them apply.
	Frameworks []*Framework

	// Match is the match mode. Empty: detected from the files; Set.Match returns it.
	Match Match

	// Level is the autonomy level. Zero means Guided.
	Level Level

	// Home is the home directory in the jail for "~" and "$HOME" in patterns and command
	// lines. Empty: they are not expanded.
	Home string

	// Workspace is the project's directory in the jail. File patterns are relative to it, and
	// other paths are outside. Empty: relative paths are inside and absolute ones outside.
	Workspace string
}

// A Set is a compiled set of rules. It is immutable; changes return a new Set. It is safe for
// concurrent use.
type Set struct {
	config Config
	why    string // reason of the match mode
	merged merged

	lines *lines // shared by derived sets

	views map[string]*view // by agent; "" is for agents without their own rules

	strict   *index // rules that tighten, strictest first
	listed   *index // pre-approved actions
	remember *index // remembered answers that allow

	tightened  []Rule
	remembered []Rule
}

// A view has the rules of files and defaults for one agent. It is built on first use and
// shared by the sets in which it is the same.
type view struct {
	once sync.Once
	base *index
	off  bool // bash is denied by one rule without exceptions
}

// Compile compiles a set of rules. It fails if the configuration is invalid.
func Compile(c Config) (*Set, error) {
	s := &Set{config: c, merged: merge(c.Permissions), lines: &lines{}}
	s.config.Home, s.config.Workspace = cleanDir(c.Home), cleanDir(c.Workspace)
	switch c.Match {
	case "":
		s.config.Match, s.why = detect(c.Permissions)
	case Longest, Last:
		s.why = "chosen"
	default:
		return nil, &fault.Error{Op: "policy.Compile", Kind: fault.Invalid, Field: "match", Remedy: "use longest or last",
			Err: fmt.Errorf("invalid match mode %q", c.Match)}
	}
	if c.Level == 0 {
		s.config.Level = Guided
	}
	if !s.config.Level.Valid() {
		return nil, &fault.Error{Op: "policy.Compile", Kind: fault.Invalid, Field: "level", Remedy: "use 1, 2 or 3",
			Err: fmt.Errorf("invalid autonomy level %d", c.Level)}
	}
	s.compile()
	return s, nil
}

func cleanDir(dir string) string {
	if dir == "" {
		return ""
	}
	return path.Clean(dir)
}

// compile fills s from its configuration.
func (s *Set) compile() {
	s.compileStrict()
	s.compileListed()
	s.compileRemembered()
	s.views = map[string]*view{"": {}}
	for name := range openCodeAgents {
		s.views[name] = &view{}
	}
	for _, a := range s.merged.agents {
		s.views[a.name] = &view{}
	}
}

// HasAgent reports whether a permission file or OpenCode defines an agent. Other agents have
// the general rules.
func (s *Set) HasAgent(name string) bool {
	_, ok := s.views[name]
	return ok
}

// viewOf returns the view of an agent. "" is the default agent.
func (s *Set) viewOf(agent string) *view {
	if agent == "" {
		agent = s.merged.defaultAgent
	}
	v := s.views[agent]
	if v == nil {
		v, agent = s.views[""], ""
	}
	v.once.Do(func() { s.fill(v, agent) })
	return v
}

func (s *Set) fill(v *view, agent string) {
	var entries []*entry
	for _, l := range s.merged.assemble(agent, s.config.Match, s.config.Level) {
		entries = append(entries, s.entry(l.Rule, l.origin))
	}
	v.base = newIndex(entries)
	if i := slices.IndexFunc(entries, aboutRuns); i >= 0 {
		v.off = entries[i].rule.Effect == Deny && entries[i].on.any
	}
}

func aboutRuns(e *entry) bool { return e.action.matches(ActionRun) }

// free reports whether all of bash is allowed without exceptions.
func (s *Set) free(v *view) bool {
	if slices.ContainsFunc(s.strict.entries, aboutRuns) {
		return false
	}
	for _, e := range v.base.entries {
		if !aboutRuns(e) {
			continue
		}
		if e.rule.Effect != Allow || e.on.any {
			return e.rule.Effect == Allow
		}
	}
	return false
}

func (s *Set) entry(r Rule, origin string) *entry {
	e := &entry{
		rule:   r,
		action: compilePattern(r.Action, ""),
		on:     compilePattern(r.Pattern, s.config.Home),
		origin: origin,
	}
	if origin != originFiles { // elsewhere all tools that write are one action
		e.action = compilePattern(editTool(r.Action), "")
	}
	exact := origin == originFiles && s.config.Match == Last
	if r.Effect != Allow && e.action.matches(ActionRun) && !exact {
		e.flags = compileFlags(e.on.text)
	}
	e.say()
	return e
}

// compileStrict collects the rules that take precedence over files.
func (s *Set) compileStrict() {
	var all []*entry
	add := func(origin string, final bool, rules ...Rule) {
		for _, r := range rules {
			if r.File == "" {
				r.File = origin
			}
			e := s.entry(r, origin)
			e.final = final || r.Effect == Deny
			all = append(all, e)
		}
	}
	add(setKernel, true, kernelRules...)
	add(s.config.Level.String(), true, levelFloors[s.config.Level]...)
	add(setTightened, true, s.tightened...)
	for _, r := range s.remembered {
		if r.Effect != Allow {
			add(setRemembered, false, r)
		}
	}
	for _, f := range s.config.Frameworks {
		for _, e := range f.Entries {
			if e.Kind == NeedsApproval || e.Kind == Forbidden {
				add(originFramework, false, e.Rules...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *entry) int {
		if c := cmp.Compare(b.rule.Effect.rank(), a.rule.Effect.rank()); c != 0 || a.final == b.final {
			return c
		}
		if a.final {
			return -1
		}
		return 1
	})
	s.strict = newIndex(all)
}

func (s *Set) compileListed() {
	var all []*entry
	for _, f := range s.config.Frameworks {
		for _, e := range f.Entries {
			if e.Kind == PreApproved {
				for _, r := range e.Rules {
					all = append(all, s.entry(r, originFramework))
				}
			}
		}
	}
	s.listed = newIndex(all)
}

func (s *Set) compileRemembered() {
	var all []*entry
	for _, r := range s.remembered {
		if r.Effect == Allow {
			all = append(all, s.entry(r, setRemembered))
		}
	}
	s.remember = newIndex(all)
}

// Match returns the match mode and the reason for it.
func (s *Set) Match() (m Match, why string) { return s.config.Match, s.why }

// Level returns the current autonomy level.
func (s *Set) Level() Level { return s.config.Level }

// Steps returns the maximum number of steps of an agent, if a file limits it.
func (s *Set) Steps(agent string) (n int, limited bool) {
	if agent == "" {
		agent = s.merged.defaultAgent
	}
	if a := s.merged.agent(agent); a.steps != nil {
		return a.steps.n, true
	}
	return 0, false
}

// Advice returns the entries of the decision frameworks that are not rules, for the agent to
// read.
func (s *Set) Advice() []Entry {
	var all []Entry
	for _, f := range s.config.Frameworks {
		for _, e := range f.Entries {
			if e.Kind == Advice {
				all = append(all, e)
			}
		}
	}
	return all
}

// At returns the same rules at another level.
func (s *Set) At(l Level) (*Set, error) {
	if !l.Valid() {
		return nil, &fault.Error{Op: "policy.At", Kind: fault.Invalid, Field: "level", Remedy: "use 1, 2 or 3",
			Err: fmt.Errorf("invalid autonomy level %d", l)}
	}
	t := *s
	t.config.Level = l
	t.compile()
	return &t, nil
}

// Remember returns the same rules with a remembered answer. An answer that allows replaces
// questions, but no denial and no question of a built-in rule, a level or a tightening; one
// that asks or denies tightens.
func (s *Set) Remember(r Rule) *Set {
	t := *s
	if r.File == "" {
		r.File = setRemembered
	}
	t.remembered = append(slices.Clip(s.remembered), r)
	if r.Effect == Allow {
		t.compileRemembered()
	} else {
		t.compileStrict()
	}
	return &t
}

// Remembered returns the remembered answers in order.
func (s *Set) Remembered() []Rule { return slices.Clone(s.remembered) }

// tighten returns the same rules with additional rules that ask or deny.
func (s *Set) tighten(rules []Rule) *Set {
	t := *s
	t.tightened = append(slices.Clip(s.tightened), rules...)
	t.compileStrict()
	return &t
}

// say fills in the messages of the entry.
func (e *entry) say() {
	r := e.rule
	where := r.File
	if r.Line > 0 {
		where = fmt.Sprintf("%s:%d", r.File, r.Line)
	}
	what := fmt.Sprintf("%q of %s", r.Pattern, r.Action)
	if r.Pattern == "*" {
		what = r.Action
		if r.Action == "*" {
			what = "everything that no other rule matches"
		}
	}
	switch r.Effect {
	case Allow:
		e.reason = fmt.Sprintf("%s is allowed (%s)", what, where)
	case Ask:
		e.reason = fmt.Sprintf("%s needs approval (%s)", what, where)
		e.remedy = "wait for the approval, or use an action that is allowed"
	default:
		e.reason = fmt.Sprintf("%s is denied (%s)", what, where)
		e.remedy = "do it another way; only an operator can change this"
	}
}
