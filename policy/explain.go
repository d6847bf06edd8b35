package policy

// A Considered is a rule that was evaluated for a part of a question.
type Considered struct {
	Part    string `json:"part"` // "bash: rm -rf x", "edit: src/a.ts"
	Rule    Rule   `json:"rule"`
	Set     string `json:"set"`     // the rule set of the rule
	Matches bool   `json:"matches"` // whether it matches the part
	Decides bool   `json:"decides"` // whether it decided the part
}

// Explain decides a question and returns the evaluated rules by part and in order of
// precedence: first those that tighten, then files and defaults, then pre-approvals and
// remembered answers.
func (s *Set) Explain(q Question) (Decision, []Considered) {
	var all []Considered
	j := judge{s: s, v: s.viewOf(q.Subject.Agent), q: &q, trace: &all}
	j.question()
	return j.decision(), all
}

// considered records the rules that were evaluated for x, with the verdict v.
func (j *judge) considered(x *subject, v verdict) {
	part := x.action + ": " + printable(x.forms[0])
	for _, set := range []*index{j.s.strict, j.v.base, j.s.listed, j.s.remember} {
		for _, e := range set.entries {
			if e.action.matches(x.action) || x.action == ActionEdit && editTool(e.rule.Action) == ActionEdit && j.s.config.Match == Longest {
				*j.trace = append(*j.trace, Considered{
					Part: part, Rule: e.rule, Set: e.origin, Matches: e.matches(x), Decides: e == v.by,
				})
			}
		}
	}
}
