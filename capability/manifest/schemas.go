package manifest

import (
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// schema parses a type. In JSON it is the text of a type, the same in arrays, or a JSON Schema
// object.
func (s *sections) schema(n *form.Node, field string) *schema.Type {
	t := n
	switch {
	case s.json && n.Kind == form.MapNode:
		return s.jsonSchema(n, field)
	case s.json && n.Kind == form.VectorNode:
		t = typeNode(n, false)
	case s.json:
		if t = s.embedded(n, field); t == nil {
			return nil
		}
	}
	typ, err := schema.Compile(t)
	switch {
	case err == nil && len(typ.Unknown()) > 0:
		s.problem(n, field, "unknown type %s: no value would match", strings.Join(typ.Unknown(), ", "))
	case err == nil:
		return typ
	case s.json && n.Kind == form.AtomNode: // positions in it refer to the embedded text
		s.problem(n, field, "%v", err)
	default:
		s.adopt(n, field, err)
	}
	return nil
}

func (s *sections) jsonSchema(n *form.Node, field string) *schema.Type {
	typ, lost, err := schema.FromJSONSchema([]byte(s.source(n)))
	switch {
	case err != nil:
		s.problem(n, field, "%v", err)
	case len(lost) > 0:
		s.problem(n, field, "parts of the schema cannot be checked: %s", strings.Join(lost, "; "))
	default:
		return typ
	}
	return nil
}

// literals are the operators whose string arguments are string values.
var literals = map[string]bool{
	"enum": true, "val": true, "=": true, "!=": true, "matches-regex": true, "has-key": true, "required-keys": true,
}

// typeNode converts JSON arrays to a type: a string is a keyword, with or without a colon,
// unless it is in the position of a value.
func typeNode(n *form.Node, literal bool) *form.Node {
	t := *n
	switch n.Kind {
	case form.VectorNode, form.MapNode:
		t.Items = make([]*form.Node, len(n.Items))
		for i, item := range n.Items {
			t.Items[i] = typeNode(item, literal && i > 0)
			if i == 0 && n.Kind == form.VectorNode {
				head, _ := t.Items[0].Atom.(form.Keyword)
				literal = literal || literals[string(head)]
			}
		}
	case form.AtomNode:
		w, ok := n.Atom.(string)
		switch {
		case !ok:
		case w == "?" || w == "&":
			t.Atom = form.Symbol(w)
		case strings.HasPrefix(w, ":"):
			t.Atom = keyword(w[1:], w)
		case !literal:
			t.Atom = keyword(w, w)
		}
		if k, ok := n.Atom.(form.Keyword); ok {
			t.Atom = keyword(string(k), string(k))
		}
	}
	return &t
}

// keyword returns a name as a keyword, or unchanged if it is not a valid keyword.
func keyword(name, was string) form.Value {
	if n, err := form.Read("", []byte(":"+name)); err == nil && len(n) == 1 && n[0].Atom == form.Value(form.Keyword(name)) {
		return form.Keyword(name)
	}
	return was
}

// schemaJSON encodes a type as arrays, or as its text if arrays cannot represent it.
func schemaJSON(t *schema.Type) ([]byte, error) {
	f := t.Form()
	b, err := marshal(arrays(f))
	if err != nil {
		return nil, err
	}
	if n, p := nodeOfJSON("", b); p == nil && n.Kind == form.VectorNode && form.Equal(typeNode(n, false).Value(), f) {
		return b, nil
	}
	return marshal(form.Text(f))
}

func arrays(v form.Value) any {
	switch v := v.(type) {
	case form.Vector:
		all := []any{}
		for _, e := range v {
			all = append(all, arrays(e))
		}
		return all
	case form.Keyword:
		return ":" + string(v)
	case form.Symbol:
		return string(v)
	case *form.Map:
		m := map[string]any{}
		for k, e := range v.All() {
			name, _ := k.(form.Keyword)
			m[string(name)] = arrays(e)
		}
		return m
	}
	return v
}
