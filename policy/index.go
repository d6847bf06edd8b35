package policy

import (
	"cmp"
	"slices"
	"strings"

	"glasshouse/policy/shell"
)

// An entry is a rule compiled for matching, with its messages.
type entry struct {
	rule   Rule
	action pattern
	on     pattern
	flags  *flags // alternative match of a command, may be nil
	origin string // the rule set of the rule
	final  bool   // cannot be overridden by remembered answers
	reason string
	remedy string
}

// A subject is the resource to match, in all its forms.
type subject struct {
	action string

	// forms are equivalent texts. A rule that matches either of them applies.
	forms [2]string

	// loose are further forms for rules that tighten only: the program by its base name.
	loose [2]string

	argv []string // arguments of a command
}

func (s *subject) formed(e *entry) bool {
	for _, f := range s.forms {
		if f != "" && e.on.matches(f) {
			return true
		}
	}
	return false
}

// matches reports whether e matches s, without regard to the action.
func (e *entry) matches(s *subject) bool {
	if s.formed(e) || s.forms == [2]string{} && e.on.matches("") {
		return true
	}
	if e.rule.Effect == Allow {
		return false
	}
	for _, f := range s.loose {
		if f != "" && e.on.matches(f) {
			return true
		}
	}
	return e.flags != nil && e.flags.match(s.argv)
}

// An index finds the first matching entry without comparing entries with another prefix.
type index struct {
	entries []*entry
	exact   map[string]*node // entries with a literal action, by action
	wild    *node            // entries with a wildcard in the action

	// options are the entries with program options: by program, and by a word that must be
	// among the arguments, or "".
	options map[string]map[string][]int
}

func newIndex(entries []*entry) *index {
	x := &index{entries: entries, exact: map[string]*node{}, wild: &node{}, options: map[string]map[string][]int{}}
	for i, e := range entries {
		root := x.wild
		if e.action.literal {
			root = x.exact[e.action.text]
			if root == nil {
				root = &node{}
				x.exact[e.action.text] = root
			}
		}
		root.add(e.on.prefix, i)
		if f := e.flags; f != nil {
			if x.options[f.program] == nil {
				x.options[f.program] = map[string][]int{}
			}
			x.options[f.program][f.key()] = append(x.options[f.program][f.key()], i)
		}
	}
	return x
}

// find returns the first matching entry, or nil.
func (x *index) find(s *subject) *entry {
	best := len(x.entries)
	for _, root := range [2]*node{x.exact[s.action], x.wild} {
		if root == nil {
			continue
		}
		for _, f := range s.forms {
			best = x.walk(root, f, s, best)
		}
		for _, f := range s.loose {
			if f != "" {
				best = x.walk(root, f, s, best)
			}
		}
	}
	if len(s.argv) > 1 {
		best = x.optioned(s, best)
	}
	if best == len(x.entries) {
		return nil
	}
	return x.entries[best]
}

// optioned returns the position of the first entry before best with options that match the
// command s, or best.
func (x *index) optioned(s *subject, best int) int {
	byWord := x.options[shell.Base(s.argv[0])]
	if byWord == nil {
		return best
	}
	look := func(places []int) {
		for _, i := range places {
			if i >= best {
				return
			}
			if e := x.entries[i]; e.action.matches(s.action) && e.flags.match(s.argv) {
				best = i
				return
			}
		}
	}
	look(byWord[""])
	for _, a := range s.argv[1:] {
		if a != "" {
			look(byWord[a])
		}
	}
	return best
}

// walk descends the tree along text and returns the position of the first entry before best
// that matches s, or best.
func (x *index) walk(n *node, text string, s *subject, best int) int {
	for n != nil && strings.HasPrefix(text, n.prefix) {
		text = text[len(n.prefix):]
		for _, i := range n.entries {
			if i >= best {
				break
			}
			e := x.entries[i]
			if e.action.matches(s.action) && e.matches(s) {
				best = i
				break
			}
		}
		n = n.child(text)
	}
	return best
}

// A node is a node of a radix tree of pattern prefixes.
type node struct {
	prefix   string
	entries  []int   // whose prefix ends here, in order
	children []*node // by the first byte of their prefix
}

func (n *node) search(c byte) (int, bool) {
	return slices.BinarySearchFunc(n.children, c, func(k *node, c byte) int { return cmp.Compare(k.prefix[0], c) })
}

func (n *node) child(text string) *node {
	if text == "" || len(n.children) == 0 {
		return nil
	}
	if i, there := n.search(text[0]); there {
		return n.children[i]
	}
	return nil
}

// add adds entry i at the prefix text. Entries are added in order.
func (n *node) add(text string, i int) {
	for {
		if text == "" {
			n.entries = append(n.entries, i)
			return
		}
		at, there := n.search(text[0])
		if !there {
			n.children = slices.Insert(n.children, at, &node{prefix: text, entries: []int{i}})
			return
		}
		k := n.children[at]
		same := 0
		for same < len(k.prefix) && same < len(text) && k.prefix[same] == text[same] {
			same++
		}
		if same < len(k.prefix) { // split the edge
			n.children[at] = &node{prefix: k.prefix[:same], children: []*node{k}}
			k.prefix = k.prefix[same:]
		}
		n, text = n.children[at], text[same:]
	}
}
