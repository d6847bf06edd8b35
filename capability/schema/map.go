package schema

import (
	"slices"
	"strconv"

	"glasshouse/capability/rtfs/form"
)

// A fields is [:map …]: named entries and the type of all other entries. A value may have a key
// as a keyword or as a string.
type fields struct {
	entries []field
	index   map[string]int // entries by name, if there are many
	others  typ            // type of all other values; nil: any
	needed  int            // number of required entries
}

// A field is one entry.
type field struct {
	name        string
	key         form.Value // as in the source
	optional    bool
	description string
	typ         typ
}

// many is the number of fields from which an index is faster than a linear search.
const many = 12

// fields compiles the entries of [:map …].
func (c *compiler) fields(args []*form.Node) (typ, error) {
	m := &fields{}
	for _, arg := range args {
		var err error
		switch arg.Kind {
		case form.VectorNode:
			err = c.field(m, arg)
		case form.MapNode:
			for i := 0; i+1 < len(arg.Items) && err == nil; i += 2 {
				err = c.put(m, arg, arg.Items[i], arg.Items[i+1:i+2], nil)
			}
		default:
			err = errorf(arg, "the entries of a map are written [:key T] or {:key T}")
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// field compiles [:key T], [:key T ?], [:key {:optional true} T] or [:* T].
func (c *compiler) field(m *fields, n *form.Node) error {
	if len(n.Items) == 0 {
		return errorf(n, "the entries of a map are written [:key T]")
	}
	key, rest := n.Items[0], n.Items[1:]
	var props *form.Node
	if len(rest) > 0 && rest[0].Kind == form.MapNode {
		props, rest = rest[0], rest[1:]
	}
	return c.put(m, n, key, rest, props)
}

// put compiles one entry and adds it to m.
func (c *compiler) put(m *fields, n, key *form.Node, types []*form.Node, props *form.Node) error {
	if key.Atom == form.Keyword("*") {
		return c.putOthers(m, n, types, props)
	}
	f := field{key: key.Atom}
	switch k := key.Atom.(type) {
	case form.Keyword:
		f.name = string(k)
	case string:
		f.name = k
	case form.Symbol:
		return errorf(key, "%s is not a key: did you mean :%[1]s?", k)
	default:
		return errorf(key, "a key must be a keyword or a string")
	}
	if _, ok := m.field(f.name); ok {
		return errorf(key, "duplicate key %s", form.Text(f.key))
	}
	if err := f.properties(props); err != nil {
		return err
	}
	if last := len(types) - 1; last > 0 && isMark(types[last]) && !joined(types[last-1], types[last]) {
		f.optional = true
		types = types[:last]
	}
	t, err := c.only(n, types, "an entry of a map takes one type")
	if err != nil {
		return err
	}
	if _, ok := t.(maybe); ok {
		f.optional = true
	}
	f.typ = t
	if !f.optional {
		m.needed++
	}
	m.add(f)
	return nil
}

// putOthers compiles [:* T].
func (c *compiler) putOthers(m *fields, n *form.Node, types []*form.Node, props *form.Node) error {
	switch {
	case props != nil:
		return errorf(props, "[:* T] takes only a type")
	case m.others != nil:
		return errorf(n, "duplicate [:* T]")
	}
	t, err := c.only(n, types, "[:* T] takes one type")
	m.others = t
	return err
}

func (m *fields) add(f field) {
	m.entries = append(m.entries, f)
	switch {
	case m.index != nil:
		m.index[f.name] = len(m.entries) - 1
	case len(m.entries) == many:
		m.index = make(map[string]int, 2*many)
		for i, f := range m.entries {
			m.index[f.name] = i
		}
	}
}

// joined reports whether ? follows a type without a space: [:k [:vector T]?] may be nil,
// whereas [:k [:vector T] ?] is optional.
func joined(t, mark *form.Node) bool { return t.End > 0 && t.End == mark.Pos.Offset }

// properties parses the map between key and type.
func (f *field) properties(n *form.Node) error {
	if n == nil {
		return nil
	}
	for i := 0; i+1 < len(n.Items); i += 2 {
		key, value := n.Items[i], n.Items[i+1]
		name, _ := key.Atom.(form.Keyword)
		var ok bool
		switch name {
		case "optional":
			f.optional, ok = value.Atom.(bool)
		case "description":
			f.description, ok = value.Atom.(string)
		default:
			if meant := nearest(string(name), []string{"optional", "description"}); meant != "" {
				return errorf(key, "an entry has no %s: did you mean :%s?", form.Text(key.Value()), meant)
			}
			return errorf(key, "an entry has no %s; it may have :optional and :description", form.Text(key.Value()))
		}
		if !ok {
			return errorf(value, ":%s is not %s", name, form.Text(value.Value()))
		}
	}
	return nil
}

// field finds an entry by name.
func (m *fields) field(name string) (int, bool) {
	if m.index != nil {
		i, ok := m.index[name]
		return i, ok
	}
	for i := range m.entries {
		if m.entries[i].name == name {
			return i, true
		}
	}
	return 0, false
}

// of finds the entry for a key of a value.
func (m *fields) of(key form.Value) (int, bool) {
	switch key := key.(type) {
	case form.Keyword:
		return m.field(string(key))
	case string:
		return m.field(key)
	}
	return 0, false
}

func (m *fields) ok(v form.Value) bool {
	all, ok := v.(*form.Map)
	if !ok {
		return false
	}
	var few [32]bool
	seen, needed := few[:], m.needed
	if len(m.entries) > len(few) {
		seen = make([]bool, len(m.entries))
	}
	for key, value := range all.All() {
		i, ok := m.of(key)
		if !ok {
			if m.others != nil && !m.others.ok(value) {
				return false
			}
			continue
		}
		f := &m.entries[i]
		if seen[i] || !f.typ.ok(value) {
			return false
		}
		seen[i] = true
		if !f.optional {
			needed--
		}
	}
	return needed == 0
}

func (m *fields) explain(v form.Value, r *report) {
	all, ok := v.(*form.Map)
	if !ok {
		r.not(v, m.noun())
		return
	}
	seen := make([]bool, len(m.entries))
	for key, value := range all.All() {
		i, ok := m.of(key)
		switch {
		case r.more:
			return
		case !ok && m.others != nil:
			m.other(key, value, r)
		case !ok:
		case seen[i]:
			r.in(m.entries[i].key, func() { r.addf("duplicate key, as a keyword and as a string") })
		default:
			seen[i] = true
			r.child(m.entries[i].key, m.entries[i].typ, value)
		}
	}
	for i := range m.entries {
		if f := &m.entries[i]; !seen[i] && !f.optional {
			r.in(f.key, func() { r.addf("missing%s", m.meant(f, all)) })
		}
	}
}

// other explains the value of a key that the type does not name.
func (m *fields) other(key, value form.Value, r *report) {
	if m.others != never {
		r.child(key, m.others, value)
		return
	}
	hint := ""
	if meant := nearest(spelling(key), m.names()); meant != "" {
		hint = ": did you mean :" + meant + "?"
	}
	r.in(key, func() { r.addf("not allowed here%s", hint) })
}

// meant returns a hint if a missing field may be present under a similar name.
func (m *fields) meant(f *field, all *form.Map) string {
	looked := 0
	for key := range all.All() {
		if looked++; looked > 100 {
			break
		}
		if _, known := m.of(key); known {
			continue
		}
		if nearest(spelling(key), []string{f.name}) != "" {
			return " (there is " + describe(key) + ": did you mean " + form.Text(f.key) + "?)"
		}
	}
	return ""
}

func (m *fields) names() []string {
	names := make([]string, len(m.entries))
	for i, f := range m.entries {
		names[i] = f.name
	}
	return names
}

func (m *fields) noun() string { return "a map" }

func (m *fields) take(v form.Value) form.Value {
	all, ok := v.(*form.Map)
	if !ok {
		return v
	}
	pairs := make([]form.Value, 0, 2*all.Len())
	for key, value := range all.All() {
		if i, ok := m.of(key); ok {
			key, value = m.entries[i].key, m.entries[i].typ.take(value)
		} else if m.others != nil {
			value = m.others.take(value)
		}
		pairs = append(pairs, key, value)
	}
	return form.NewMap(pairs...)
}

// spelling returns a keyword without its colon, or a string; "" for other keys.
func spelling(key form.Value) string {
	switch key := key.(type) {
	case string:
		return key
	case form.Keyword:
		return string(key)
	}
	return ""
}

// A mapOf is [:map-of K V].
type mapOf struct{ key, value typ }

func (m *mapOf) ok(v form.Value) bool {
	all, ok := v.(*form.Map)
	if !ok {
		return false
	}
	for key, value := range all.All() {
		if !m.key.ok(key) || !m.value.ok(value) {
			return false
		}
	}
	return true
}

func (m *mapOf) explain(v form.Value, r *report) {
	all, ok := v.(*form.Map)
	if !ok {
		r.not(v, m.noun())
		return
	}
	for key, value := range all.All() {
		if r.more {
			return
		}
		if !m.key.ok(key) {
			r.in(key, func() { r.addf("the key %s is not %s", describe(key), m.key.noun()) })
		}
		r.child(key, m.value, value)
	}
}

func (m *mapOf) noun() string { return "a map" }

func (m *mapOf) take(v form.Value) form.Value {
	all, ok := v.(*form.Map)
	if !ok {
		return v
	}
	pairs := make([]form.Value, 0, 2*all.Len())
	for key, value := range all.All() {
		pairs = append(pairs, m.takeKey(key), m.value.take(value))
	}
	return form.NewMap(pairs...)
}

// takeKey is like take, but for a key. JSON encodes every key as a string, including ints.
func (m *mapOf) takeKey(key form.Value) form.Value {
	if taken := m.key.take(key); m.key.ok(taken) {
		return taken
	}
	if s, ok := key.(string); ok {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil && strconv.FormatInt(i, 10) == s && m.key.ok(i) {
			return i
		}
	}
	return key
}

// A required is the predicate [:required-keys [:k …]], and [:has-key :k].
type required struct{ keys []form.Value }

func (p required) ok(v form.Value) bool {
	all, ok := v.(*form.Map)
	return ok && !slices.ContainsFunc(p.keys, func(key form.Value) bool { return !has(all, key) })
}

func (p required) explain(v form.Value, r *report) {
	all, ok := v.(*form.Map)
	if !ok {
		r.not(v, "a map")
		return
	}
	for _, key := range p.keys {
		if !has(all, key) {
			r.in(key, func() { r.addf("missing") })
		}
	}
}

// has reports whether a map has a key, as a keyword or as a string.
func has(m *form.Map, key form.Value) bool {
	name := spelling(key)
	if _, ok := m.Get(form.Keyword(name)); ok {
		return true
	}
	_, ok := m.Get(name)
	return ok
}

func (p required) take(v form.Value) form.Value { return v }
func (p required) noun() string                 { return "a map" }
