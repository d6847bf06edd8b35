package manifest

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
)

// A reader processes the nodes of one text and collects all problems.
type reader struct {
	file     string
	src      []byte
	server   bool // a server's manifest, without a tool
	json     bool // the nodes were JSON: strings stand for keywords
	problems problem.List
}

func (r *reader) problem(n *form.Node, field, format string, args ...any) {
	r.problems = append(r.problems, problem.At(r.src, n.Pos, field, format, args...))
}

// adopt adds a problem reported by another package, at its own position if it has one.
func (r *reader) adopt(n *form.Node, field string, err error) {
	if e, ok := err.(*form.Error); ok && e.Pos.Line > 0 {
		at := *n
		at.Pos = e.Pos
		r.problem(&at, field, "%s", e.Message)
		return
	}
	r.problem(n, field, "%v", err)
}

// bare refuses ^ metadata, which has no meaning outside of code.
func (r *reader) bare(n *form.Node) {
	if len(n.Meta) > 0 {
		r.problem(n, "", "metadata with ^ is not allowed here")
	}
	for i, item := range n.Items {
		if i > 0 && n.Items[i-1].Atom == form.Value(form.Keyword("implementation")) {
			continue
		}
		r.bare(item)
	}
}

// keys maps the allowed keys of a map to their parsers.
type keys map[string]func(n *form.Node)

func (k keys) names() []string {
	var names []string
	for name := range k {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// gone maps keys of other formats to the remedy.
var gone = map[string]string{
	"name":            "use the id as the name, and description for the purpose",
	"id":              "write the id after capability",
	"permissions":     "use effects",
	"provider":        "use runtime",
	"code":            "use runtime.module for :wasm, and implementation for :rtfs",
	"command":         "say entrypoint",
	"cmd":             "say entrypoint",
	"args":            "use entrypoint",
	"hosts":           "say allowed-hosts",
	"ports":           "say allowed-ports",
	"memory":          "say memory-mb",
	"timeout":         "say timeout-ms",
	"quota":           "say quota-mb",
	"implementations": "use implementation",
}

// entries parses a map. Each key must be known and may occur once.
func (r *reader) entries(n *form.Node, field string, known keys) bool {
	if n.Kind != form.MapNode {
		r.problem(n, field, "must be a map, not %s", r.name(n))
		return false
	}
	r.pairs(n.Items, field, known)
	return true
}

// pairs parses alternating keys and values.
func (r *reader) pairs(items []*form.Node, field string, known keys) {
	seen := map[string]bool{}
	for i := 0; i < len(items); i += 2 {
		key, ok := items[i].Atom.(form.Keyword)
		if !ok || items[i].Kind != form.AtomNode {
			r.problem(items[i], field, "a key must be a keyword such as :%s, not %s", known.names()[0], r.name(items[i]))
			continue
		}
		name := string(key)
		read := known[name]
		switch {
		case i+1 == len(items):
			r.problem(items[i], join(field, name), "the value is missing")
		case seen[name]:
			r.problem(items[i], join(field, name), "duplicate key")
		case read == nil:
			r.unknown(items[i], field, name, known)
		default:
			read(items[i+1])
		}
		seen[name] = true
	}
}

func (r *reader) unknown(n *form.Node, field, name string, known keys) {
	hint := problem.Meant(name, known.names()...)
	if hint == "" && gone[strings.ToLower(name)] != "" {
		hint = "; " + gone[strings.ToLower(name)]
	}
	if hint == "" {
		hint = "; valid: " + strings.Join(known.names(), ", ")
	}
	r.problem(n, join(field, fmt.Sprintf("%.60s", name)), "unknown key%s", hint)
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// name describes a node for a message.
func (r *reader) name(n *form.Node) string {
	switch n.Kind {
	case form.ListNode:
		return "a list"
	case form.VectorNode:
		return "a vector"
	case form.MapNode:
		return "a map"
	}
	switch v := n.Atom.(type) {
	case nil:
		if r.json {
			return "null"
		}
		return "nil"
	case string:
		return fmt.Sprintf("the string %.60q", v)
	case form.Keyword:
		return fmt.Sprintf("the keyword :%.60s", string(v))
	case form.Symbol:
		return fmt.Sprintf("the symbol %.60s", string(v))
	case int64, float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%.60v", n.Atom)
}

// str parses a non-empty string.
func (r *reader) str(n *form.Node, field string) string {
	s, ok := n.Atom.(string)
	switch {
	case !ok || n.Kind != form.AtomNode:
		r.problem(n, field, "must be a string, not %s", r.name(n))
	case strings.TrimSpace(s) == "":
		r.problem(n, field, "must not be empty")
	case strings.ContainsRune(s, 0):
		r.problem(n, field, "must not contain a zero byte")
	default:
		return s
	}
	return ""
}

// word parses a keyword, which in JSON is a string.
func (r *reader) word(n *form.Node, field string) string {
	if n.Kind == form.AtomNode {
		switch v := n.Atom.(type) {
		case form.Keyword:
			return string(v)
		case string:
			if r.json && v != "" && !strings.HasPrefix(v, ":") {
				return v
			}
			if r.json {
				r.problem(n, field, "must be written without a colon in JSON: %q", strings.TrimLeft(v, ":"))
				return ""
			}
			r.problem(n, field, "must be the keyword :%.60s, not a string", v)
			return ""
		}
	}
	if r.json {
		r.problem(n, field, "must be a string, not %s", r.name(n))
	} else {
		r.problem(n, field, "must be a keyword, not %s", r.name(n))
	}
	return ""
}

// oneOf parses one of some words; "" if invalid.
func (r *reader) oneOf(n *form.Node, field string, words ...string) string {
	before := len(r.problems)
	s := r.word(n, field)
	if len(r.problems) == before && !slices.Contains(words, s) {
		hint := problem.Meant(s, words...)
		if hint == "" {
			hint = "; valid: " + strings.Join(words, ", ")
		}
		r.problem(n, field, "%.60q is not a valid value%s", s, hint)
		return ""
	}
	return s
}

// integer parses an integer within bounds; 0 if invalid.
func (r *reader) integer(n *form.Node, field string, least, most int64) int64 {
	i, ok := n.Atom.(int64)
	switch {
	case !ok || n.Kind != form.AtomNode:
		r.problem(n, field, "must be an integer, not %s", r.name(n))
	case i < least || i > most:
		r.problem(n, field, "%d is not between %d and %d", i, least, most)
	default:
		return i
	}
	return 0
}

func (r *reader) flag(n *form.Node, field string) bool {
	b, ok := n.Atom.(bool)
	if !ok || n.Kind != form.AtomNode {
		r.problem(n, field, "must be true or false, not %s", r.name(n))
	}
	return b
}

// most is the maximum length of a list.
const most = 256

// list returns the elements of a vector.
func (r *reader) list(n *form.Node, field string) []*form.Node {
	if n.Kind != form.VectorNode {
		r.problem(n, field, "must be a vector, not %s", r.name(n))
		return nil
	}
	if len(n.Items) > most {
		r.problem(n, field, "has %d elements, more than %d", len(n.Items), most)
		return nil
	}
	return n.Items
}

// set parses a vector without duplicates. read returns "" for an element that it has refused.
func (r *reader) set(n *form.Node, field string, read func(n *form.Node, field string) string) []string {
	var all []string
	for i, item := range r.list(n, field) {
		at := fmt.Sprintf("%s[%d]", field, i)
		s := read(item, at)
		if s != "" && slices.Contains(all, s) {
			r.problem(item, at, "duplicate element %s", s)
			continue
		}
		if s != "" {
			all = append(all, s)
		}
	}
	return all
}
