package policy

// A Considered is one rule that was looked at for a part of a question.
type Considered struct {
	Part    string `json:"part"` // "bash: rm -rf x", "edit: src/a.ts"
	Rule    Rule   `json:"rule"`
	Set     string `json:"set"`     // the rule set it belongs to
	Matches bool   `json:"matches"` // it is about that part
	Decides bool   `json:"decides"` // it decided that part
}

// Explain decides a question and returns the rules that were looked at for it,
// part by part, those that count most first: what tightens, then files and
// defaults, then what is pre-approved and what is remembered.
func (s *Set) Explain(q Question) (Decision, []Considered) {
	var all []Considered
	j := judge{s: s, v: s.viewOf(q.Subject.Agent), q: &q, trace: &all}
	j.question()
	return j.decision(), all
}

// considered writes down what was looked at for x, of which v came.
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
