package rtfs

import (
	"fmt"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// intrinsics returns the functions that need the machine: calls of the host and the context of
// a run.
func intrinsics() []lib.Builtin {
	all := []lib.Builtin{
		{Name: "call", Min: 1, Max: -1, Args: "[id & input]", Doc: "Calls a capability. One argument is its input; several are a vector.", Fn: callHost},
		{Name: "llm-execute", Min: 2, Max: 4, Args: "[model prompt :system text]", Doc: "Asks a model, through the host.", Fn: askModel},
		{Name: "context/get", Min: 1, Max: 2, Args: "[key other?]", Doc: "What the run has around it.", Fn: contextGet},
		{Name: "context/set", Min: 2, Max: 2, Args: "[key value]", Doc: "Changes what the run has around it, until the run ends.", Fn: contextSet},
		{Name: "gensym", Min: 0, Max: 1, Args: "[prefix?]", Doc: "A symbol that the run has not had before.", Fn: gensym},
	}
	for name, id := range lib.HostNames {
		input := inputOf
		if says(id) {
			input = func(args []form.Value) form.Value { return append(form.Vector{}, args...) }
		}
		all = append(all, lib.Builtin{
			Name: name, Min: 0, Max: -1, Args: "[& args]", Doc: fmt.Sprintf("Calls %s.", id),
			Fn: func(c lib.Call, args []form.Value) (form.Value, error) { return machineOf(c).call(id, input(args)) },
		})
	}
	return all
}

// says reports whether a capability prints its arguments. It receives them as a vector even if
// there is only one, because printing [1 2] differs from printing 1 and 2.
func says(id string) bool {
	return id == "ccos.io.println" || id == "ccos.io.print" || id == "ccos.io.log"
}

// machineOf returns the machine behind a library call.
func machineOf(c lib.Call) *machine { return c.(*machine) }

// inputOf returns the input of a capability for the arguments of a call.
func inputOf(args []form.Value) form.Value {
	switch len(args) {
	case 0:
		return form.NewMap()
	case 1:
		return args[0]
	}
	return append(form.Vector{}, args...)
}

func callHost(c lib.Call, args []form.Value) (form.Value, error) {
	switch id := args[0].(type) {
	case string:
		return machineOf(c).call(id, inputOf(args[1:]))
	case form.Keyword:
		return machineOf(c).call(string(id), inputOf(args[1:]))
	}
	return nil, form.Errorf("TypeError", "call takes the id of a capability, got %s", brief(args[0]))
}

func askModel(c lib.Call, args []form.Value) (form.Value, error) {
	model, ok := args[0].(string)
	prompt, ok2 := args[1].(string)
	if !ok || !ok2 {
		return nil, form.Errorf("TypeError", "llm-execute takes the name of a model and a prompt, both strings")
	}
	input := form.NewMap(form.Keyword("model"), model, form.Keyword("prompt"), prompt)
	if len(args) > 2 {
		if len(args) != 4 || args[2] != form.Keyword("system") {
			return nil, form.Errorf("InvalidArgument", "llm-execute takes :system and a string after the prompt")
		}
		input = input.With(form.Keyword("system"), args[3])
	}
	return machineOf(c).call("llm.execute", input)
}

// around looks up a key in the context, as a keyword and as a string.
func (m *machine) around(key form.Value) (form.Value, bool) {
	if !isAtom(key) {
		return nil, false
	}
	if v, ok := m.context.Get(key); ok {
		return v, true
	}
	switch k := key.(type) {
	case form.Keyword:
		return m.context.Get(string(k))
	case string:
		return m.context.Get(form.Keyword(k))
	}
	return nil, false
}

func contextGet(c lib.Call, args []form.Value) (form.Value, error) {
	v, ok := machineOf(c).around(args[0])
	if !ok && len(args) == 2 {
		return args[1], nil
	}
	return v, nil
}

func contextSet(c lib.Call, args []form.Value) (form.Value, error) {
	m := machineOf(c)
	if !isAtom(args[0]) {
		return nil, form.Errorf("TypeError", "a key of the context must be a keyword or a string, got %s", brief(args[0]))
	}
	if err := m.Alloc(int64(m.context.Len()+1) * 48); err != nil {
		return nil, err
	}
	m.context = m.context.With(args[0], args[1])
	m.written = append(m.written, args[0])
	return args[1], nil
}

func gensym(c lib.Call, args []form.Value) (form.Value, error) {
	prefix := "G__"
	if len(args) == 1 {
		switch p := args[0].(type) {
		case string:
			prefix = p
		case form.Symbol:
			prefix = string(p)
		default:
			return nil, form.Errorf("TypeError", "gensym takes a string, got %s", brief(p))
		}
	}
	m := machineOf(c)
	m.names++
	return form.Symbol(fmt.Sprint(prefix, m.path, m.names)), nil
}

// isShortGet recognizes (get :key), which reads the context of a run.
func isShortGet(n *form.Node) bool {
	if len(n.Items) != 2 {
		return false
	}
	_, ok := n.Items[1].Atom.(form.Keyword)
	return ok
}

// getContext compiles (get :key). It falls back to the variable of that name.
func (c *compiler) getContext(n *form.Node, p spot) code {
	key := n.Items[1].Atom.(form.Keyword)
	var variable code
	if _, ok := p.find(string(key)); ok || c.defs[c.module.qualified(string(key))] {
		variable = c.symbol(n, string(key), p)
	}
	return func(f *frame) (form.Value, error) {
		if v, ok := f.m.around(key); ok || variable == nil {
			return v, nil
		}
		return variable(f)
	}
}

// reference compiles @name and @:key. If the context lacks the key, @name evaluates to itself
// and @:key to the variable of that name.
func (c *compiler) reference(n *form.Node, name string, p spot) code {
	key, keyed := strings.CutPrefix(name, "@:")
	other := constant(name)
	if keyed {
		other = c.symbol(n, key, p)
	} else {
		key = name[1:]
	}
	return func(f *frame) (form.Value, error) {
		if v, ok := f.m.around(form.Keyword(key)); ok {
			return v, nil
		}
		return other(f)
	}
}
