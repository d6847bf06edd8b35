package builtin

import (
	"context"

	"glasshouse/capability/engine"
	"glasshouse/capability/rtfs/form"
	"glasshouse/fault"
)

// Keyed values are stored in the memory of the caller's session as RTFS text, which is
// lossless. They are accessed with the capabilities of package memory, so that each access is
// authorised and logged.

// stored returns the name of a key in memory. args must have at least least elements.
func stored(call *engine.Call, args []form.Value, least int) (string, error) {
	if len(args) < least {
		return "", wrong(call, "want at least %d arguments, got %d", least, len(args))
	}
	switch key := args[0].(type) {
	case string:
		return "kv/" + key, nil
	case form.Keyword:
		return "kv/" + string(key), nil
	}
	return "", wrong(call, "the key must be a keyword or a string, got %s", form.Text(args[0]))
}

func (e *Engine) load(ctx context.Context, call *engine.Call, key string) (form.Value, error) {
	if call.Host == nil {
		return nil, fault.Cannot(call.Capability.ID, "nested calls are not supported here", "use a daemon that was started with glasshouse serve")
	}
	out, err := call.Host.Call(ctx, "memory.get", form.NewMap(form.Keyword("key"), key))
	if err != nil {
		return nil, err
	}
	m, ok := out.(*form.Map)
	if !ok {
		return nil, nil
	}
	kept, _ := field(m, "value")
	text, ok := kept.(string)
	if !ok {
		return nil, nil
	}
	nodes, err := form.Read("kv", []byte(text))
	if err != nil || len(nodes) != 1 {
		return nil, fault.Newf(fault.Invalid, call.Capability.ID, key, "the stored value cannot be read: %v", err)
	}
	return nodes[0].Value(), nil
}

func (e *Engine) save(ctx context.Context, call *engine.Call, key string, v form.Value) (form.Value, error) {
	_, err := call.Host.Call(ctx, "memory.put", form.NewMap(form.Keyword("key"), key, form.Keyword("value"), form.Text(v)))
	return v, err
}

func (e *Engine) get(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	key, err := stored(call, args, 1)
	if err != nil {
		return nil, err
	}
	return e.load(ctx, call, key)
}

// change replaces the value of a key with the result of f. Concurrent changes are serialised.
func (e *Engine) change(ctx context.Context, call *engine.Call, args []form.Value, least int, f func(old form.Value) (form.Value, error)) (form.Value, error) {
	key, err := stored(call, args, least)
	if err != nil {
		return nil, err
	}
	e.kv.Lock()
	defer e.kv.Unlock()
	old, err := e.load(ctx, call, key)
	if err != nil {
		return nil, err
	}
	next, err := f(old)
	if err != nil {
		return nil, err
	}
	return e.save(ctx, call, key, next)
}

// asMap returns v as a map. nil is an empty map.
func asMap(call *engine.Call, v form.Value) (*form.Map, error) {
	switch v := v.(type) {
	case nil:
		return form.NewMap(), nil
	case *form.Map:
		return v, nil
	}
	return nil, wrong(call, "the value of the key is %s, not a map", form.Text(v))
}

func (e *Engine) assoc(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	if len(args)%2 == 0 {
		return nil, wrong(call, "want a key, followed by pairs of names and values")
	}
	return e.change(ctx, call, args, 3, func(old form.Value) (form.Value, error) {
		m, err := asMap(call, old)
		if err != nil {
			return nil, err
		}
		for i := 1; i < len(args); i += 2 {
			m = m.With(args[i], args[i+1])
		}
		return m, nil
	})
}

func (e *Engine) dissoc(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	return e.change(ctx, call, args, 2, func(old form.Value) (form.Value, error) {
		m, err := asMap(call, old)
		if err != nil {
			return nil, err
		}
		for _, name := range args[1:] {
			m = m.Without(name)
		}
		return m, nil
	})
}

func (e *Engine) conj(ctx context.Context, call *engine.Call, args []form.Value) (form.Value, error) {
	return e.change(ctx, call, args, 2, func(old form.Value) (form.Value, error) {
		var have form.Vector
		switch v := old.(type) {
		case nil:
		case form.Vector:
			have = v
		default:
			return nil, wrong(call, "the value of the key is %s, not a vector", form.Text(old))
		}
		all := make(form.Vector, 0, len(have)+len(args)-1)
		return append(append(all, have...), args[1:]...), nil
	})
}
