package rtfs

import (
	"maps"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// A unit is the compile-time state of a program or a session: the global names, macros and
// modules.
type unit struct {
	in      *Interp
	index   map[string]int // index of global names
	initial []form.Value   // values of the global names before their def
	defs    map[string]bool
	macros  map[string]*Func
	modules map[string]*module
	top     *module // names outside of modules
}

// A module is a set of global names.
type module struct {
	name    string
	names   map[string]bool
	private map[string]bool    // defined by defn-
	exports map[string]bool    // nil: all names that are not private
	aliases map[string]*module // (import m :as alias)
	only    map[string]string  // (import m :only [name]): the qualified name
}

func newModule(name string) *module {
	return &module{name: name, names: map[string]bool{}, private: map[string]bool{}, aliases: map[string]*module{}, only: map[string]string{}}
}

func newUnit(in *Interp) *unit {
	return &unit{
		in: in, index: map[string]int{}, defs: map[string]bool{}, macros: map[string]*Func{},
		modules: map[string]*module{}, top: newModule(""),
	}
}

// compile compiles a text. It resolves library names directly until the text defines one of
// them. Then it compiles the text again with a lookup of that name at run time.
func (u *unit) compile(nodes []*form.Node) (*proto, error) {
	for {
		c := &compiler{unit: u, module: u.top, assumed: map[string]bool{}, fixed: map[*form.Node]bool{}}
		main := c.program(nodes)
		wrong := false
		for name := range c.assumed {
			wrong = wrong || u.defs[name]
		}
		if wrong {
			continue
		}
		if c.err != nil {
			return nil, c.err
		}
		return main, nil
	}
}

// global returns the index of a global name.
func (u *unit) global(name string) int {
	if i, ok := u.index[name]; ok {
		return i
	}
	var v form.Value = unbound{}
	if b, ok := u.in.names[name]; ok {
		v = b
	}
	u.index[name] = len(u.initial)
	u.initial = append(u.initial, v)
	return u.index[name]
}

// fresh returns the initial global values of a program.
func (u *unit) fresh() []form.Value { return slices.Clone(u.initial) }

func (u *unit) defined() []string {
	return slices.Sorted(maps.Keys(u.defs))
}

// qualified returns the qualified name of a name in a module.
func (m *module) qualified(name string) string {
	if m.name == "" {
		return name
	}
	return m.name + "/" + name
}

// gives reports whether other modules may use a name of m.
func (m *module) gives(name string) bool {
	if m.exports == nil {
		return m.names[name] && !m.private[name]
	}
	return m.names[name] && m.exports[name]
}
