package rtfs

import "glasshouse/capability/rtfs/form"

// A special is a form that is not a call.
type special struct {
	compile func(c *compiler, n *form.Node, p spot) code
	fixed   bool                    // the name cannot be redefined or shadowed
	when    func(n *form.Node) bool // whether a node is this form; nil: always
}

// formNamed returns a special form. Fixed names cannot be redefined; programs may define the
// others.
func formNamed(name string) (special, bool) {
	fixed := func(compile func(*compiler, *form.Node, spot) code) (special, bool) {
		return special{compile: compile, fixed: true}, true
	}
	free := func(compile func(*compiler, *form.Node, spot) code) (special, bool) {
		return special{compile: compile}, true
	}
	switch name {
	case "let":
		return fixed((*compiler).let)
	case "letfn":
		return fixed((*compiler).letfn)
	case "if":
		return fixed((*compiler).branch)
	case "do":
		return fixed((*compiler).do)
	case "fn", "λ":
		return fixed((*compiler).fn)
	case "def":
		return fixed((*compiler).def)
	case "defn", "defn-":
		return fixed((*compiler).defn)
	case "defmacro":
		return fixed((*compiler).defmacro)
	case "defstruct":
		return fixed((*compiler).defstruct)
	case "quote":
		return fixed((*compiler).quote)
	case "quasiquote":
		return fixed((*compiler).quasiquote)
	case "unquote", "unquote-splicing":
		return fixed((*compiler).unquote)
	case "loop":
		return fixed((*compiler).loopForm)
	case "recur":
		return fixed((*compiler).recur)
	case "try":
		return fixed((*compiler).try)
	case "cond":
		return free((*compiler).cond)
	case "when":
		return free((*compiler).when)
	case "unless":
		return free((*compiler).unless)
	case "case":
		return free((*compiler).caseForm)
	case "match":
		return free((*compiler).match)
	case "and":
		return free((*compiler).and)
	case "or":
		return free((*compiler).or)
	case "->":
		return free((*compiler).threadFirst)
	case "->>":
		return free((*compiler).threadLast)
	case "for":
		return free((*compiler).comprehension)
	case "dotimes":
		return free((*compiler).dotimes)
	case "step":
		return free((*compiler).step)
	case "step-if":
		return free((*compiler).branch)
	case "step-loop":
		return free((*compiler).stepLoop)
	case "step-parallel":
		return free((*compiler).stepParallel)
	case "get":
		return special{compile: (*compiler).getContext, when: isShortGet}, true
	case "module":
		return free((*compiler).moduleForm)
	case "import":
		return free((*compiler).importForm)
	case "export":
		return free((*compiler).exportForm)
	case "resource":
		return free((*compiler).resource)
	case "capability", "plan":
		return free((*compiler).declaration)
	}
	return special{}, false
}

// Forms returns the names of the special forms.
func Forms() []string {
	return []string{
		"let", "letfn", "if", "do", "fn", "λ", "def", "defn", "defn-", "defmacro", "defstruct", "quote", "quasiquote",
		"unquote", "unquote-splicing", "loop", "recur", "try", "cond", "when", "unless", "case", "match", "and", "or",
		"->", "->>", "for", "dotimes", "step", "step-if", "step-loop", "step-parallel", "module", "import", "export", "resource",
		"capability", "plan",
	}
}

func (c *compiler) do(n *form.Node, p spot) code { return c.sequence(n.Items[1:], p) }

// threadFirst compiles (-> x (f a) g), which is (g (f x a)).
func (c *compiler) threadFirst(n *form.Node, p spot) code { return c.thread(n, p, true) }

// threadLast compiles (->> x (f a) g), which is (g (f a x)).
func (c *compiler) threadLast(n *form.Node, p spot) code { return c.thread(n, p, false) }

func (c *compiler) thread(n *form.Node, p spot, first bool) code {
	if len(n.Items) < 2 {
		return c.fail(n, "%s needs a value", headOf(n))
	}
	value := n.Items[1]
	for _, next := range n.Items[2:] {
		list := &form.Node{Kind: form.ListNode, Pos: next.Pos, End: next.End}
		switch {
		case next.Kind != form.ListNode || isFn(next):
			list.Items = []*form.Node{next, value}
		case len(next.Items) == 0:
			return c.fail(next, "a value cannot go through ()")
		case first:
			list.Items = append([]*form.Node{next.Items[0], value}, next.Items[1:]...)
		default:
			list.Items = append(append([]*form.Node{}, next.Items...), value)
		}
		value = list
	}
	return c.expr(value, p)
}
