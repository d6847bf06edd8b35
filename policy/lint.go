package policy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// Lint returns the rules that do not do what they appear to do: rules that depend on the match
// mode, can never decide, are never evaluated, can be bypassed, or are weaker than they
// appear.
func (s *Set) Lint() []Finding {
	l := &linter{s: s, seen: map[string]bool{}}
	l.other = s.readAs(l.otherMatch())
	for _, f := range s.config.Permissions {
		for _, n := range f.findings {
			l.add(n)
		}
	}
	l.agent(s.merged.defaultAgent)
	for _, a := range s.merged.agents {
		l.agent(a.name)
	}
	l.frameworks()
	if l.exhausted(0) && len(s.config.Permissions) > 0 {
		l.add(Finding{Kind: TooMany, File: s.config.Permissions[0].name, Line: 1,
			Message: "the limit of comparisons was reached, so some rules were not checked", Remedy: "use wildcards and fewer rules per agent"})
	}
	slices.SortStableFunc(l.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Kind, b.Kind))
	})
	return l.findings
}

func (s *Set) otherMatch() Match {
	if s.config.Match == Last {
		return Longest
	}
	return Last
}

// readAs returns the same rules with another match mode.
func (s *Set) readAs(m Match) *Set {
	t := *s
	t.config.Match = m
	t.compile()
	return &t
}

// A linter collects findings.
type linter struct {
	s, other *Set
	findings []Finding
	seen     map[string]bool // one finding per kind and line
	work     int             // number of comparisons
}

// maxWork limits the comparisons of Lint. A file of a thousand rules and ten agents is far
// below.
const maxWork = 3_000_000

// exhausted counts n comparisons and reports whether maxWork is exceeded.
func (l *linter) exhausted(n int) bool {
	l.work += n
	return l.work > maxWork
}

func (l *linter) otherMatch() Match { return l.s.otherMatch() }

func (l *linter) add(f Finding) {
	key := fmt.Sprintf("%s:%d:%s", f.File, f.Line, f.Kind)
	if !l.seen[key] {
		l.seen[key] = true
		l.findings = append(l.findings, f)
	}
}

func (l *linter) about(r Rule, kind FindingKind, remedy, format string, args ...any) {
	l.add(Finding{Kind: kind, File: r.File, Line: r.Line, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

// agent checks all file rules that apply to an agent.
func (l *linter) agent(name string) {
	if l.exhausted(0) {
		return
	}
	here, there := l.s.viewOf(name), l.other.viewOf(name)
	l.work += 20 * len(here.base.entries)
	own := l.ownLines(name)
	for i, e := range here.base.entries {
		if l.exhausted(0) {
			return
		}
		if e.origin != originFiles {
			continue
		}
		if name == l.s.merged.defaultAgent || own[position{e.rule.File, e.rule.Line}] {
			l.never(here, i)
			l.spelling(e)
			l.evaded(name, e)
		}
		l.cancels(name, here, i, own)
		l.reading(name, e)
	}
	for _, e := range there.base.entries {
		if e.origin == originFiles && !l.exhausted(0) {
			l.readingThere(name, e)
		}
	}
}

// ownLines returns the lines of an agent's own block.
func (l *linter) ownLines(name string) map[position]bool {
	own := map[position]bool{}
	a := l.s.merged.agent(name)
	for _, t := range a.permission {
		for _, r := range t.rules {
			own[r.at] = true
		}
	}
	for _, t := range a.tools {
		own[t.at] = true
	}
	return own
}

// never reports a rule that is covered by another.
func (l *linter) never(v *view, i int) {
	e := v.base.entries[i]
	if d := v.base.covering(i); d != nil {
		remedy := fmt.Sprintf("remove it, or move it after line %d", d.rule.Line)
		if l.s.config.Match == Longest || d.rule.File != e.rule.File {
			remedy = "remove it"
		}
		l.about(e.rule, Never, remedy, "%s can never decide: %s matches everything that it matches and takes precedence", short(e.rule), d.rule)
	}
}

// covering returns the entry before i that matches everything that i matches.
func (x *index) covering(i int) *entry {
	e := x.entries[i]
	for _, root := range [2]*node{x.exact[e.action.text], x.wild} {
		text := e.on.prefix
		for n := root; n != nil && strings.HasPrefix(text, n.prefix); {
			text = text[len(n.prefix):]
			for _, k := range n.entries {
				if k >= i {
					break
				}
				if d := x.entries[k]; d.action.covers(&e.action) && d.on.covers(&e.on) {
					return d
				}
			}
			n = n.child(text)
		}
	}
	return nil
}

// cancels reports a rule that allows everything and overrides other rules.
func (l *linter) cancels(name string, v *view, i int, own map[position]bool) {
	e := v.base.entries[i]
	if e.rule.Effect != Allow || !own[position{e.rule.File, e.rule.Line}] && name != l.s.merged.defaultAgent {
		return
	}
	var gone []string
	files := false
	l.work += len(v.base.entries) - i
	for k := i + 1; k < len(v.base.entries); k++ {
		d := v.base.entries[k]
		switch {
		case d.rule.Effect == Allow || !e.action.covers(&d.action) || !e.on.covers(&d.on):
		case d.origin == originFiles && l.s.config.Match == Last && own[position{e.rule.File, e.rule.Line}]:
			files = true
			gone = append(gone, d.rule.String())
		case d.origin == setOpenCode && (!d.on.any || e.action.any) && !v.base.holds(d, i):
			gone = append(gone, short(d.rule))
		}
	}
	if len(gone) == 0 {
		return
	}
	if files {
		l.about(e.rule, Weak, "remove it, or add the required patterns to the agent's own block",
			"for agent %s it overrides %s", name, strings.Join(gone, "; "))
		return
	}
	l.about(e.rule, Weak, "repeat these rules after it to keep them", "it also overrides defaults: %s", strings.Join(gone, "; "))
}

// holds reports whether the same rule takes precedence over the entry at position i.
func (x *index) holds(d *entry, i int) bool {
	return slices.ContainsFunc(x.entries[:i], func(e *entry) bool { return e.rule == d.rule })
}

// reading reports a rule that decides something differently in the other match mode.
func (l *linter) reading(agent string, e *entry) {
	tool := witnesses(&e.action)[0]
	for _, w := range l.examples(agent, e) {
		here, there := l.s.filed(agent, tool, w), l.other.filed(agent, tool, w)
		if here == nil || there == nil || here.rule.Effect == there.rule.Effect || here != e {
			continue
		}
		l.about(e.rule, Reading, l.settle(),
			"with match: %s %s decides %s %q; with match: %s it would be %s, by %s",
			l.s.config.Match, short(e.rule), tool, w, l.otherMatch(), there.rule.Effect, there.rule)
		return
	}
}

// readingThere reports a rule that decides only in the other match mode.
func (l *linter) readingThere(agent string, e *entry) {
	tool := witnesses(&e.action)[0]
	for _, w := range l.examples(agent, e) {
		here, there := l.s.filed(agent, tool, w), l.other.filed(agent, tool, w)
		if here == nil || there == nil || here.rule.Effect == there.rule.Effect || there != e {
			continue
		}
		l.about(e.rule, Reading, l.settle(),
			"with match: %s %s would decide %s %q for agent %s; with match: %s it is %s, by %s",
			l.otherMatch(), short(e.rule), tool, w, agent, l.s.config.Match, here.rule.Effect, here.rule)
		return
	}
}

func (l *linter) settle() string {
	return fmt.Sprintf("set match: %s, and write the file so that both modes give the same result", l.s.config.Match)
}

// examples returns resources that match a rule: instances of its pattern, the same options in
// other spellings and, for a rule over everything, those of narrower rules.
func (l *linter) examples(agent string, e *entry) []string {
	all := witnesses(&e.on)
	defer func() { l.work += 20 * len(all) }()
	if f := compileFlags(e.on.text); f != nil && e.action.matches(ActionRun) {
		all = append(all, f.spellings()...)
	}
	if !e.on.any {
		return all
	}
	for _, v := range []*view{l.s.viewOf(agent), l.other.viewOf(agent)} {
		l.work += len(v.base.entries)
		for _, d := range v.base.entries {
			if !d.on.any && d.action.covers(&e.action) {
				all = append(all, witnesses(&d.on)[0])
			}
		}
	}
	return all
}

// filed returns the deciding rule of files and defaults.
func (s *Set) filed(agent, tool, resource string) *entry {
	j := judge{s: s, v: s.viewOf(agent)}
	x := subject{action: editTool(tool), forms: [2]string{resource}}
	if tool == ActionRun {
		x.argv = strings.Fields(resource)
	}
	return j.base(&x, tool)
}

// witnesses returns texts that match a pattern.
func witnesses(p *pattern) []string {
	fill := func(star string) string {
		return strings.ReplaceAll(strings.ReplaceAll(p.text, "*", star), "?", "x")
	}
	all := []string{fill("x")}
	for _, w := range []string{fill("x/y"), fill("x -y z"), fill("")} {
		if p.matches(w) && !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// short returns a rule without its location.
func short(r Rule) string {
	r.File, r.Line = "", 0
	return r.String()
}

// likely maps wrong names of tools to the intended ones.
var likely = map[string]string{
	"shell": ActionRun, "exec": ActionRun, "terminal": ActionRun, "command": ActionRun, "sh": ActionRun, "run": ActionRun,
	"fetch": ActionFetch, "http": ActionFetch, "web_fetch": ActionFetch, "web": ActionFetch,
	"externaldirectory": ActionOutside, "external-directory": ActionOutside, "external_directories": ActionOutside,
	"doomloop": "doom_loop", "file": ActionEdit, "files": ActionEdit, "todo": "todowrite", "search": "websearch",
}

var knownTools = append([]string{"read", "edit", "glob", "grep", "list", "bash", "task", "external_directory", "todowrite", "todoread",
	"question", "webfetch", "websearch", "codesearch", "lsp", "doom_loop", "skill", "plan_enter", "plan_exit",
	ActionConnect, ActionSecret, ActionCall, ActionCoordinate, ActionResources}, editTools...)

// oneWord are tools for which OpenCode itself accepts no patterns.
var oneWord = []string{"todowrite", "question", "webfetch", "websearch", "doom_loop"}

// spelling reports keys and patterns that never match as they are written.
func (l *linter) spelling(e *entry) {
	r := e.rule
	meant := likely[strings.ToLower(r.Action)]
	if low := strings.ToLower(r.Action); meant == "" && low != r.Action && slices.Contains(knownTools, low) {
		meant = low
	}
	switch {
	case meant != "":
		l.about(r, NoEffect, fmt.Sprintf("write %q", meant), "there is no tool %q", r.Action)
	case l.s.config.Match == Last && r.Action != ActionEdit && slices.Contains(editTools, r.Action):
		l.about(r, NoEffect, `write "edit", which applies to all tools that write files`, "current OpenCode never checks %q", r.Action)
	case r.Pattern != "*" && slices.Contains(oneWord, r.Action):
		l.about(r, NoEffect, "keep it if only Glasshouse reads the file", "OpenCode accepts only a single effect for %q and rejects a file with patterns; Glasshouse applies them", r.Action)
	}
	if editTool(r.Action) == ActionEdit || r.Action == ActionRead {
		switch {
		case strings.HasPrefix(r.Pattern, "./"):
			l.about(r, Never, fmt.Sprintf("write %q", r.Pattern[2:]), "no path begins with %q: they are relative to the workspace", "./")
		case strings.HasSuffix(r.Pattern, "/"):
			l.about(r, Never, fmt.Sprintf("write %q", r.Pattern+"*"), "no path ends in a slash: %q does not match the files in the directory", r.Pattern)
		}
	}
}

// frameworks reports pre-approved actions that are denied.
func (l *linter) frameworks() {
	for _, f := range l.s.config.Frameworks {
		for _, e := range f.Entries {
			if e.Kind == Advice && misencoded(e.Text) {
				l.add(Finding{Kind: NoEffect, File: e.File, Line: e.Line,
					Message: fmt.Sprintf("it is treated as advice, not as a rule: the text is wrongly encoded, such as %q in place of an arrow", mojibake.FindString(e.Text)),
					Remedy:  "save the file as UTF-8, or write -> for the arrow"})
			}
		}
	}
	for _, e := range l.s.listed.entries {
		for _, w := range witnesses(&e.on) {
			d := l.s.Decide(Question{Action: e.rule.Action, Resource: w})
			if d.Effect == Deny {
				l.about(e.rule, Never, "remove the pre-approval or the denial", "%q is pre-approved but denied by %s", w, d.Rule)
				break
			}
		}
	}
}

// mojibake matches UTF-8 of an arrow or a dash that was decoded as Windows-1252 or ISO 8859-1
// and encoded again, or the rest of invalid UTF-8. U+2192 is E2 86 92.
var mojibake = regexp.MustCompile(`\x{00e2}[\x{0080}-\x{00bf}\x{0192}\x{02c6}\x{02dc}\x{2013}-\x{203a}\x{20ac}\x{2122}]{1,2}|\x{fffd}`)

// misencoded reports whether a question with its answer was not recognised because its arrow
// is wrongly encoded.
func misencoded(text string) bool {
	_, _, read := cutQuestion(text)
	return !read && mojibake.MatchString(text) && asks.MatchString(text)
}

// asks matches a question with an answer for yes and any separator.
var asks = regexp.MustCompile(`(?i)\?.{1,12}\byes\b`)

// evaded reports rules over commands that known forms bypass.
func (l *linter) evaded(agent string, e *entry) {
	if !e.action.matches(ActionRun) || e.on.any {
		return
	}
	program, rest, _ := strings.Cut(e.on.text, " ")
	for _, op := range []string{"&&", "||", ";", " | "} {
		if strings.Contains(e.on.text, op) {
			l.about(e.rule, Never, "write a pattern for each command", "command lines are split at %q before patterns are matched", strings.TrimSpace(op))
			return
		}
	}
	if e.rule.Effect == Allow {
		l.lets(agent, e, program)
		return
	}
	if strings.Contains(program, "/") && !strings.ContainsAny(program, "*?") {
		l.about(e.rule, Evaded, fmt.Sprintf("write %q, which matches every path", strings.TrimSpace(shell.Base(program)+" "+rest)),
			"it matches only this path; %q is a different command", shell.Base(program))
		return
	}
	if ways := l.ways(agent, e, program); len(ways) > 0 {
		l.about(e.rule, Evaded, `write a wider pattern, deny these commands too, or set "*" to ask`,
			"%s, but these are allowed: %s", short(e.rule), strings.Join(ways, ", "))
	}
}

// ways returns command lines that have the effect of a denied command but are allowed.
func (l *linter) ways(agent string, e *entry, program string) []string {
	tries := slices.Clone(equals[program])
	if f := compileFlags(e.on.text); f != nil {
		tries = append(tries, f.spellings()...)
	}
	if e.on.literal {
		tries = append(tries, e.on.text+" x")
	}
	var ways []string
	l.work += 100 * len(tries)
	for _, try := range tries {
		d := l.s.Decide(Question{Subject: Subject{Agent: agent}, Action: ActionRun, Resource: try})
		if d.Effect.rank() < e.rule.Effect.rank() && d.Effect == Allow {
			ways = append(ways, fmt.Sprintf("%q", try))
		}
	}
	return ways
}

// equals maps programs to commands with the same effect.
var equals = map[string][]string{
	"rm":     {"unlink x", "find . -delete", "git clean -fdx", "truncate -s 0 x", "mv x /tmp/x", "python3 x.py"},
	"unlink": {"rm x"},
	"sudo":   {"su -c id", "doas id", "pkexec id"},
	"curl":   {"wget x", "nc x 80", "python3 x.py"},
	"wget":   {"curl x", "nc x 80", "python3 x.py"},
	"mv":     {"cp x y", "rsync x y"},
	"cat":    {"head x", "less x", "tail x", "sed p x", "awk 1 x", "grep . x"},
}

// spellings returns other spellings of the same options.
func (f *flags) spellings() []string {
	var apart, turned, long []string
	head := strings.Join(append([]string{f.program}, f.words...), " ")
	for i := range f.short {
		apart = append(apart, "-"+string(f.short[i]))
		turned = append(turned, string(f.short[len(f.short)-1-i]))
		if names := longNames[f.short[i]]; len(names) > 0 {
			long = append(long, "--"+names[0])
		}
	}
	var all []string
	if len(f.short) > 1 {
		all = append(all, head+" -"+strings.Join(turned, "")+" x", head+" "+strings.Join(apart, " ")+" x")
	}
	if len(long) > 0 && len(long) == len(f.short) {
		all = append(all, head+" "+strings.Join(long, " ")+" x")
	}
	for _, name := range f.long {
		for _, c := range shortOf(name) {
			all = append(all, head+" -"+string(c)+" x")
		}
	}
	return all
}

// runners maps programs that run other programs, which command patterns cannot see, to an
// example.
var runners = map[string]string{
	"npm": "npm run x", "pnpm": "pnpm run x", "yarn": "yarn run x", "npx": "npx x", "bun": "bun run x", "deno": "deno run x.ts",
	"node": "node x.js", "python": "python x.py", "python3": "python3 x.py", "perl": "perl x.pl", "ruby": "ruby x.rb", "php": "php x.php",
	"bash": "bash x.sh", "sh": "sh x.sh", "zsh": "zsh x.sh", "make": "make x", "cargo": "cargo run", "go": "go run x.go",
	"docker": "docker run x", "podman": "podman run x", "ssh": "ssh x", "gradle": "gradle x", "mvn": "mvn x", "just": "just x",
}

// lets reports rules that allow a program that can run other programs.
func (l *linter) lets(agent string, e *entry, program string) {
	example := runners[program]
	if example == "" || !e.on.matches(example) {
		return
	}
	if d := l.s.Decide(Question{Subject: Subject{Agent: agent}, Action: ActionRun, Resource: example}); d.Effect == Allow {
		l.about(e.rule, Evaded, "list the commands that it may run, and use --enforce to check the programs that it starts",
			"%s also allows %q, which can run any other command", short(e.rule), example)
	}
}
