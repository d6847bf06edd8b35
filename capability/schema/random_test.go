package schema_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"glasshouse/capability/rtfs/form"
)

// A sampler generates types that JSON Schema can express exactly, and JSON texts. About half of
// the texts match their type.
type sampler struct{ *rand.Rand }

func newSampler(seed uint64) sampler { return sampler{rand.New(rand.NewPCG(seed, 1))} }

// A sample is a type with a generator of matching values.
type sample struct {
	typ   string
	value func() form.Value
}

func (s sampler) pick(from ...string) string { return from[s.IntN(len(from))] }

var someWords = []string{"a", "b", "name", "lat", "x/y", "a b", "red", "ä", "1", "-1", "01", "", "http://a.example/b", "me@a.example", "resource://r/1"}

func (s sampler) word() form.Value { return s.pick(someWords...) }

func (s sampler) int() form.Value { return int64(s.IntN(9) - 4) }

func (s sampler) float() form.Value { return float64(s.IntN(17)-8) / 2 }

// any returns a random value.
func (s sampler) any(depth int) form.Value {
	switch n := s.IntN(9); {
	case n == 0:
		return nil
	case n == 1:
		return s.IntN(2) == 0
	case n == 2:
		return s.int()
	case n == 3:
		return s.float()
	case n < 6 || depth <= 0:
		return s.word()
	case n < 8:
		return s.some(func() form.Value { return s.any(depth - 1) })
	}
	m := form.NewMap()
	for range s.IntN(4) {
		m = m.With(s.word(), s.any(depth-1))
	}
	return m
}

func (s sampler) some(value func() form.Value) form.Vector {
	items := form.Vector{}
	for range s.IntN(4) {
		items = append(items, value())
	}
	return items
}

// json returns a value for a type, occasionally modified.
func (s sampler) json(of sample) form.Value {
	v := of.value()
	for s.IntN(2) == 0 {
		v = s.spoil(v)
	}
	return v
}

// spoil modifies one part of a value.
func (s sampler) spoil(v form.Value) form.Value {
	if s.IntN(3) == 0 {
		return s.any(2)
	}
	switch v := v.(type) {
	case form.Vector:
		if len(v) == 0 {
			return append(v, s.any(1))
		}
		i := s.IntN(len(v))
		changed := append(form.Vector{}, v...)
		if s.IntN(4) == 0 {
			return changed[:i]
		}
		changed[i] = s.spoil(v[i])
		return changed
	case *form.Map:
		i := s.IntN(v.Len() + 1)
		for key, value := range v.All() {
			if i--; i >= 0 {
				continue
			}
			if s.IntN(4) == 0 {
				return v.Without(key)
			}
			return v.With(key, s.spoil(value))
		}
		return v.With(s.word(), s.any(1))
	}
	return s.any(1)
}

func (s sampler) typ(depth int) sample {
	n := s.IntN(18)
	if depth <= 0 {
		n %= 8
	}
	switch n {
	case 0:
		return sample{":nil", func() form.Value { return nil }}
	case 1:
		return sample{s.pick(":bool", "bool", "Bool"), func() form.Value { return s.IntN(2) == 0 }}
	case 2:
		return s.number(sample{s.pick(":int", "Int"), s.int})
	case 3:
		return s.number(sample{s.pick(":float", "float"), s.float})
	case 4:
		return s.text()
	case 5:
		return sample{":keyword", s.word}
	case 6:
		return s.enum()
	case 7:
		return sample{":any", func() form.Value { return s.any(2) }}
	case 8:
		t := s.typ(depth - 1)
		return s.sized("count", sample{"[:vector " + t.typ + "]", func() form.Value { return s.some(t.value) }})
	case 9:
		return s.array(s.typ(depth - 1))
	case 10:
		return s.tuple(depth)
	case 11, 12, 13:
		return s.fields(depth)
	case 14:
		return s.mapOf(s.typ(depth - 1))
	case 15:
		t := s.typ(depth - 1)
		return sample{"[:union " + t.typ + " :nil]", func() form.Value {
			if s.IntN(3) == 0 {
				return nil
			}
			return t.value()
		}}
	case 16:
		t, u := s.typ(depth-1), s.typ(depth-1)
		return sample{fmt.Sprintf("[%s %s %s]", s.pick(":union", ":or"), t.typ, u.typ), func() form.Value {
			if s.IntN(2) == 0 {
				return u.value()
			}
			return t.value()
		}}
	}
	return sample{"[:and " + s.fields(depth).typ + " [:map [:of2 :int ?]]]", func() form.Value { return s.any(2) }}
}

func (s sampler) number(t sample) sample {
	limit := s.pick("0", "1", "-2", "1.5", "0.0", "-2.0")
	switch s.IntN(4) {
	case 0:
		t.typ = fmt.Sprintf("[:and %s [:%s %s]]", t.typ, s.pick(">", ">=", "<", "<=", "=", "!="), limit)
	case 1:
		t.typ = fmt.Sprintf("[:and %s [:in-range %d %d]]", t.typ, -s.IntN(4), s.IntN(4))
	}
	return t
}

func (s sampler) sized(what string, t sample) sample {
	switch s.IntN(5) {
	case 0:
		t.typ = fmt.Sprintf("[:and %s [:%s%s %d]]", t.typ, s.pick("", "min-", "max-"), what, s.IntN(4))
	case 1:
		t.typ = "[:and " + t.typ + " [:non-empty]]"
	}
	return t
}

func (s sampler) text() sample {
	return s.sized("length", sample{s.pick(":string", ":string", "[:and :string [:is-url]]", "[:and :string [:is-email]]",
		`[:and :string [:matches-regex "a"]]`, `[:and :string [:matches-regex "^[a-z ]*$"] [:!= "a"]]`), s.word})
}

func (s sampler) enum() sample {
	var values form.Vector
	for range 1 + s.IntN(3) {
		switch s.IntN(4) {
		case 0:
			values = append(values, form.Keyword(s.pick("a", "red", "x/y")))
		case 1:
			values = append(values, s.int())
		default:
			values = append(values, s.any(1))
		}
	}
	text := form.Text(values)
	return sample{"[:enum " + text[1:len(text)-1] + "]", func() form.Value {
		if k, ok := values[0].(form.Keyword); ok {
			return string(k)
		}
		return values[0]
	}}
}

func (s sampler) array(t sample) sample {
	n := s.IntN(3)
	row := func() form.Value {
		items := form.Vector{}
		for range n {
			items = append(items, t.value())
		}
		return items
	}
	if s.IntN(2) == 0 {
		return sample{fmt.Sprintf("[:array %s [%d]]", t.typ, n), row}
	}
	return sample{fmt.Sprintf("[:array %s [? %d]]", t.typ, n), func() form.Value { return s.some(row) }}
}

func (s sampler) tuple(depth int) sample {
	var all []sample
	var types []string
	for range s.IntN(4) {
		t := s.typ(depth - 1)
		all, types = append(all, t), append(types, t.typ)
	}
	return sample{"[:tuple " + strings.Join(types, " ") + "]", func() form.Value {
		items := form.Vector{}
		for _, t := range all {
			items = append(items, t.value())
		}
		return items
	}}
}

func (s sampler) fields(depth int) sample {
	all := map[string]sample{}
	names := []string{}
	text := "[:map"
	for range s.IntN(4) {
		name := s.pick("a", "b", "name", "lat", "a b")
		if _, ok := all[name]; ok {
			continue
		}
		t := s.typ(depth - 1)
		all[name], names = t, append(names, name)
		key := ":" + name
		if name == "a b" {
			key = `"a b"`
		}
		text += fmt.Sprintf(s.pick(" [%s %s]", " [%s %s ?]", " [%s {:optional true} %s]", " {%s %s}", ` [%s {:description "it"} %s]`), key, t.typ)
	}
	text += s.pick("]", "]", " [:* :never]]", " [:* :int]]")
	return s.sized("count", sample{text, func() form.Value {
		m := form.NewMap()
		for _, name := range names {
			m = m.With(name, all[name].value())
		}
		return m
	}})
}

func (s sampler) mapOf(t sample) sample {
	key := s.pick(":string", ":keyword", ":int", "[:enum :a :b]", "[:and :string [:min-length 2]]")
	return sample{"[:map-of " + key + " " + t.typ + "]", func() form.Value {
		m := form.NewMap()
		for range s.IntN(3) {
			m = m.With(s.word(), t.value())
		}
		return m
	}}
}
