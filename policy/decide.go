package policy

import "fmt"

// A verdict is an intermediate decision.
type verdict struct {
	effect Effect
	by     *entry // nil: no rule matches
	base   *entry // the rule of files and defaults, even if another rule decides
	why    string // explanation appended to that of by
	part   string // part of the question
	listed bool
	final  bool
}

// worse reports whether v takes precedence over w.
func (v verdict) worse(w verdict) bool {
	if v.effect != w.effect {
		return v.effect.rank() > w.effect.rank()
	}
	return v.final && !w.final
}

// A judge evaluates one question.
type judge struct {
	s *Set
	v *view
	q *Question

	verdict  verdict // the worst so far
	parts    int
	commands int
	unlisted bool // a command is not pre-approved

	trace *[]Considered // nil: no trace is wanted
}

// Decide answers a question. It is pure: it depends only on the rules and the question, and
// never blocks.
func (s *Set) Decide(q Question) Decision {
	j := judge{s: s, v: s.viewOf(q.Subject.Agent), q: &q}
	j.question()
	return j.decision()
}

func (j *judge) question() {
	switch action := j.q.Action; {
	case action == ActionRun:
		j.line(j.q.Resource)
	case editTool(action) != ActionEdit && action != ActionRead:
		j.other(action)
	case device(j.q.Resource):
		j.add(verdict{effect: Allow, by: everybodys}, "")
	default:
		j.file(action, j.q.Resource, "", everyRule)
	}
	j.answered()
}

// other decides a question that is about neither a command nor a file.
func (j *judge) other(action string) {
	x := subject{action: action}
	x.forms[0] = slashes(j.q.Resource)
	if action == ActionOutside {
		x = j.s.locate(action, j.q.Resource, j.q.Attributes["cwd"]).subject
	}
	v := j.weigh(&x)
	if action == ActionOutside {
		v = j.seen(v, x.forms)
	}
	j.add(v, "")
}
func (j *judge) add(v verdict, part string) {
	v.part = part
	if j.parts == 0 || v.worse(j.verdict) {
		j.verdict = v
	}
	j.parts++
}

// weigh decides one subject by all rules.
func (j *judge) weigh(x *subject) verdict {
	asked := x.action
	x.action = editTool(asked)
	strict := j.s.strict.find(x)
	listed := j.s.listed.find(x)
	base := j.base(x, asked)

	v := verdict{effect: Ask}
	if base != nil {
		v = verdict{effect: base.rule.Effect, by: base, final: base.rule.Effect == Deny}
	}
	if strict != nil && (v.effect.rank() < strict.rule.Effect.rank() || v.effect == Ask && strict.rule.Effect == Ask) {
		v = verdict{effect: strict.rule.Effect, by: strict, final: strict.final}
	}
	if v.effect == Ask && strict == nil && listed != nil && j.s.config.Level >= Intelligent {
		v = verdict{effect: Allow, by: listed}
	}
	if v.effect == Ask && !v.final {
		if known := j.s.remember.find(x); known != nil {
			v = verdict{effect: Allow, by: known}
		}
	}
	v.base = base
	v.listed = v.effect == Allow && listed != nil
	if j.trace != nil {
		j.considered(x, v)
	}
	return v
}

// base returns the deciding rule of files and defaults. In match mode Longest the tools that
// write have their own keys, and the strictest matching rule counts, because a file change
// does not show which tool made it.
func (j *judge) base(x *subject, asked string) *entry {
	b := j.v.base
	if x.action != ActionEdit || j.s.config.Match == Last {
		return b.find(x)
	}
	var strictest *entry
	for _, tool := range editTools {
		root := b.exact[tool]
		if root == nil {
			continue
		}
		y := *x
		y.action = tool
		if !b.namedIn(root, &y) {
			continue
		}
		if e := b.find(&y); strictest == nil || e.rule.Effect.rank() > strictest.rule.Effect.rank() {
			strictest = e
		}
	}
	if strictest != nil {
		return strictest
	}
	return b.find(x)
}

// namedIn reports whether a file's rule under root, for one tool, matches.
func (x *index) namedIn(root *node, s *subject) bool {
	best := len(x.entries)
	for _, f := range s.forms {
		best = x.walk(root, f, s, best)
	}
	return best < len(x.entries) && x.entries[best].origin == originFiles
}

// line decides a command line.
func (j *judge) line(line string) {
	l := j.s.lines.get(line)
	opaque := l.opaque
	if opaque == "" && j.q.Attributes["cut"] == "true" {
		opaque = "it is truncated, and the rest is unknown"
	}
	for i := range l.commands {
		j.command(&l.commands[i])
	}
	if j.parts == 0 || opaque != "" {
		// The text is the only information.
		x := subject{action: ActionRun, forms: [2]string{slashes(line)}}
		j.add(j.opaque(j.weigh(&x), opaque), line)
		j.unlisted = true
	}
	j.verdict.listed = j.verdict.effect == Allow && j.commands > 0 && !j.unlisted
}

// answered applies a remembered answer to this exact question to all its parts, even if the
// line cannot be parsed: a person has seen it.
func (j *judge) answered() {
	if j.verdict.effect != Ask || j.verdict.final {
		return
	}
	for _, e := range j.s.remember.entries {
		if e.rule.Pattern == j.q.Resource && e.rule.Action == j.q.Action {
			j.verdict = verdict{effect: Allow, by: e}
			return
		}
	}
}

// opaque raises v to a question if something cannot be parsed. A rule that allows all of bash
// without exception also allows that.
func (j *judge) opaque(v verdict, why string) verdict {
	if why == "" || v.effect != Allow || j.s.free(j.v) {
		return v
	}
	return verdict{effect: Ask, by: notUnderstood, why: why}
}

// notUnderstood is the rule that asks about commands that cannot be parsed.
var notUnderstood = &entry{
	rule:   Rule{Action: ActionRun, Pattern: "*", Effect: Ask, File: setKernel},
	origin: setKernel,
	reason: "the command cannot be analysed, so it needs approval",
	remedy: "write the command with literal names and arguments, without eval and without variables for program names",
}

func (j *judge) decision() Decision {
	v := &j.verdict
	d := Decision{Effect: v.effect, Listed: v.listed, Final: v.final}
	if v.by == nil {
		d.Rule = Rule{Action: j.q.Action, Pattern: "*", Effect: Ask}
		d.Reason = "no rule matches, so it needs approval"
		return d
	}
	d.Rule, d.Reason, d.Remedy, d.Default = v.by.rule, v.by.reason, v.by.remedy, v.by.builtIn()
	if v.why != "" {
		d.Reason = fmt.Sprintf("%s: %s", d.Reason, v.why)
	}
	if j.parts > 1 && v.part != "" {
		d.Reason = fmt.Sprintf("%s: %s", v.part, d.Reason)
	}
	return d
}
