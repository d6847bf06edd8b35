package schema

import (
	"slices"
	"strings"
	"unicode"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
)

// A compiler converts nodes to types.
type compiler struct {
	depth   int
	unknown []string
}

// heads are the names of types with arguments.
var heads = []string{"and", "array", "dict", "enum", "fn", "map", "map-of", "or", "record", "resource", "tuple", "union", "val", "vector"}

// foreign maps type names of other languages to those of RTFS.
var foreign = map[string]string{
	"array": "[:vector T]", "boolean": ":bool", "date": ":string", "double": ":float", "integer": ":int",
	"list": "[:vector T]", "long": ":int", "maybe": "[:union T :nil]", "null": ":nil", "number": ":float",
	"object": "[:map …]", "optional": "[:union T :nil]", "real": ":float", "sequential": "[:vector T]",
	"set": "[:vector T]", "str": ":string", "text": ":string",
}

func errorf(n *form.Node, format string, args ...any) error {
	err := form.Errorf("ParseError", format, args...)
	err.Pos = n.Pos
	return err
}

// typ compiles one type.
func (c *compiler) typ(n *form.Node) (typ, error) {
	if c.depth++; c.depth > deepest {
		return nil, errorf(n, "types are nested more than %d levels deep", deepest)
	}
	defer func() { c.depth-- }()

	switch n.Kind {
	case form.VectorNode:
		return c.brackets(n)
	case form.MapNode:
		return nil, errorf(n, "a map is not a type: did you mean [:map {…}]?")
	case form.ListNode:
		return nil, errorf(n, "a list is not a type")
	}
	switch atom := n.Atom.(type) {
	case nil:
		return nilType, nil
	case form.Keyword:
		return c.name(n, ":", string(atom))
	case form.Symbol:
		return c.name(n, "", string(atom))
	}
	return nil, errorf(n, "%s is not a type: did you mean [:val %[1]s]?", form.Text(n.Atom))
}

// name compiles a type that is one word.
func (c *compiler) name(n *form.Node, colon, name string) (typ, error) {
	if t, ok := words[name]; ok {
		return t, nil
	}
	if base := strings.TrimRight(name, "?"); base != name && base != "" {
		t, err := c.name(n, colon, base)
		return orNil(t), err
	}
	if meant := foreign[name]; meant != "" {
		return nil, errorf(n, "there is no type %s%s: did you mean %s?", colon, name, meant)
	}
	if slices.Contains(heads, name) {
		return nil, errorf(n, "%s%s needs brackets: [:%[2]s …]", colon, name)
	}
	if meant := nearest(name, wordList); meant != "" && !isOwn(name, meant) {
		return nil, errorf(n, "there is no type %s%s: did you mean %[1]s%[3]s?", colon, name, meant)
	}
	c.unknown = append(c.unknown, name)
	return unknown{"type", name}, nil
}

// isOwn reports whether a name is probably user-defined and not a misspelling: Book is close to
// Bool, but is capitalised and short.
func isOwn(name, meant string) bool {
	return unicode.IsUpper([]rune(name)[0]) && (len(name) < 5 || problem.Distance(name, meant) > 1)
}

// brackets compiles a type with arguments, such as [:vector T].
func (c *compiler) brackets(n *form.Node) (typ, error) {
	head, args, err := split(n)
	if err != nil {
		return nil, err
	}
	switch head {
	case "vector":
		elem, err := c.only(n, args, "[:vector T] takes one type")
		return &vector{elem: elem, min: 0, max: -1}, err
	case "array":
		return c.array(n, args)
	case "tuple":
		elems, err := c.types(n, args)
		return tuple(elems), err
	case "map", "record":
		return c.fields(args)
	case "map-of", "dict":
		kv, err := c.types(n, args)
		if err == nil && len(kv) != 2 {
			err = errorf(n, "[:%s K V] takes a key type and a value type", head)
		}
		if err != nil {
			return nil, err
		}
		return &mapOf{kv[0], kv[1]}, nil
	case "fn", "=>":
		return c.function(n, args)
	case "enum":
		return literals(n, args)
	case "val":
		if len(args) != 1 {
			return nil, errorf(n, "[:val v] takes one value")
		}
		return literals(n, args)
	case "union", "or":
		branches, err := c.types(n, args)
		if err != nil {
			return nil, err
		}
		if len(branches) == 0 {
			return nil, errorf(n, "[:%s …] takes at least one type", head)
		}
		return union(branches), nil
	case "and":
		return c.and(n, args)
	case "resource":
		if len(args) > 1 {
			return nil, errorf(n, "[:resource name] takes one name")
		}
		return resource, nil
	}
	if _, ok := predicates[head]; ok {
		return nil, errorf(n, "[:%s …] is a predicate: use it in [:and T …]", head)
	}
	if _, ok := words[head]; ok && len(args) == 0 {
		return nil, errorf(n, "[:%s] takes no arguments: write :%[1]s", head)
	}
	if meant := foreign[head]; meant != "" {
		return nil, errorf(n, "there is no type [:%s …]: did you mean %s?", head, meant)
	}
	if meant := nearest(head, heads); meant != "" {
		return nil, errorf(n, "there is no type [:%s …]: did you mean [:%s …]?", head, meant)
	}
	return nil, errorf(n, "there is no type [:%s …]", head)
}

// split returns the head and the arguments of a type in brackets.
func split(n *form.Node) (head string, args []*form.Node, err error) {
	if len(n.Items) == 0 {
		return "", nil, errorf(n, "[] is not a type")
	}
	switch atom := n.Items[0].Atom.(type) {
	case form.Keyword:
		return string(atom), n.Items[1:], nil
	case form.Symbol:
		return string(atom), n.Items[1:], nil
	}
	return "", nil, errorf(n.Items[0], "a type in brackets begins with a word, as in [:vector T]")
}

// types compiles several types, each optionally followed by ?.
func (c *compiler) types(n *form.Node, nodes []*form.Node) ([]typ, error) {
	var all []typ
	for _, n := range nodes {
		if isMark(n) && len(all) > 0 {
			all[len(all)-1] = orNil(all[len(all)-1])
			continue
		}
		t, err := c.typ(n)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// only compiles nodes that must be exactly one type. rule is the error message otherwise.
func (c *compiler) only(n *form.Node, nodes []*form.Node, rule string) (typ, error) {
	all, err := c.types(n, nodes)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, errorf(n, "%s, not %d", rule, len(all))
	}
	return all[0], nil
}

// isMark reports whether n is the ? after a type.
func isMark(n *form.Node) bool { return n.Atom == form.Symbol("?") }

// function compiles [:fn [T… & T] R]. The types of parameters and results cannot be checked
// before a call, so they are only parsed.
func (c *compiler) function(n *form.Node, args []*form.Node) (typ, error) {
	if len(args) == 0 || args[0].Kind != form.VectorNode {
		return nil, errorf(n, "[:fn [T…] R] takes a vector of parameter types and a result type")
	}
	params := args[0].Items
	if i := slices.IndexFunc(params, func(p *form.Node) bool { return p.Atom == form.Symbol("&") }); i >= 0 {
		if _, err := c.only(args[0], params[i+1:], "& is followed by one type"); err != nil {
			return nil, err
		}
		params = params[:i]
	}
	if _, err := c.types(args[0], params); err != nil {
		return nil, err
	}
	_, err := c.only(n, args[1:], "[:fn [T…] R] takes one result type")
	return function, err
}

// unknown is a name that is not defined by the language. No value matches it.
type unknown struct{ what, name string }

func (u unknown) ok(form.Value) bool              { return false }
func (u unknown) take(v form.Value) form.Value    { return v }
func (u unknown) schema() *form.Map               { return never.schema() }
func (u unknown) noun() string                    { return "a " + u.name }
func (u unknown) explain(v form.Value, r *report) { r.addf("unknown %s %s", u.what, u.name) }
