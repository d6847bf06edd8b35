package manifest

import (
	"strings"

	"glasshouse/capability/rtfs/form"
)

// Early manifests had no keys for sandboxes and contained them as JSON in metadata, with
// slightly different names. This form is read if the key itself is absent.

// interimWords maps the names in that JSON to keys of a manifest. Before the lookup, _ is
// replaced by -.
var interimWords = map[string]string{
	"host-path":            "host",
	"guest-path":           "guest",
	"runtime-type":         "type",
	"network-egress-bytes": "network-bytes",
	"entry-point":          "entrypoint",
}

// interimValues maps the values of mode and type.
var interimValues = map[string]string{"readonly": "ro", "readwrite": "rw"}

func (s *sections) interim() {
	for _, one := range []struct {
		key  string
		read func(n *form.Node)
	}{
		{"filesystem", s.filesystem},
		{"resources", s.resources},
		{"runtime", s.runtime},
	} {
		name := "sandbox_" + one.key
		given, ok := s.c.Metadata[name]
		if !ok || s.at[one.key] != nil {
			continue
		}
		delete(s.c.Metadata, name)
		at := s.at[join("metadata", name)]
		text, ok := given.(string)
		if !ok {
			s.problem(at, join("metadata", name), "must be a string with JSON, not %s", s.name(at))
			continue
		}
		n, p := nodeOfJSON("", []byte(text))
		if p != nil {
			s.problem(at, join("metadata", name), "%s", p.Message)
			continue
		}
		s.at[one.key] = n
		was := s.json
		s.json = true
		one.read(translate(n, at))
		s.json = was
	}
	if len(s.c.Metadata) == 0 {
		s.c.Metadata = nil
	}
}

// translate converts a node to the names of a manifest, with the position of the string that
// contained it. Null and zero values are omitted.
func translate(n, at *form.Node) *form.Node {
	n.Pos, n.End = at.Pos, at.End
	if n.Kind == form.VectorNode {
		for _, item := range n.Items {
			translate(item, at)
		}
	}
	if n.Kind != form.MapNode {
		return n
	}
	var items []*form.Node
	for i := 0; i+1 < len(n.Items); i += 2 {
		key, value := n.Items[i], n.Items[i+1]
		if value.Kind == form.AtomNode && (value.Atom == nil || value.Atom == form.Value(int64(0))) {
			continue
		}
		name := strings.ReplaceAll(string(key.Atom.(form.Keyword)), "_", "-")
		if w := interimWords[name]; w != "" {
			name = w
		}
		key.Atom, key.Pos, key.End = form.Keyword(name), at.Pos, at.End
		if text, ok := value.Atom.(string); ok && (name == "mode" || name == "type") {
			text = strings.ToLower(strings.TrimPrefix(text, ":"))
			if w := interimValues[text]; w != "" {
				text = w
			}
			value.Atom = text
		}
		if name == "env" {
			for _, item := range value.Items {
				item.Pos, item.End = at.Pos, at.End
			}
			value.Pos, value.End = at.Pos, at.End
		} else {
			translate(value, at)
		}
		items = append(items, key, value)
	}
	n.Items = items
	return n
}
