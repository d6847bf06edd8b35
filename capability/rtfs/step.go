package rtfs

import (
	"strings"

	"glasshouse/capability/rtfs/form"
)

// step compiles (step "name" options… body…). The host is notified when it begins and ends.
func (c *compiler) step(n *form.Node, p spot) code {
	if len(n.Items) < 2 {
		return c.fail(n, "step takes a name and a body")
	}
	name := c.expr(n.Items[1], p.inner())
	rest := n.Items[2:]
	options := map[form.Keyword]code{}
	for len(rest) > 1 {
		key, ok := rest[0].Atom.(form.Keyword)
		if !ok || key != "expose-context" && key != "context-keys" && key != "params" {
			break
		}
		options[key] = c.expr(rest[1], p.inner())
		rest = rest[2:]
	}
	defer p.release(p.mark())
	slot := p.declare("%params")
	body := c.sequence(rest, p.inner())
	return func(f *frame) (form.Value, error) {
		s, err := f.stepOf(name, options)
		if err != nil {
			return nil, failed(err, n)
		}
		f.slots[slot] = s.Params
		f.m.report(s, Started, nil, nil)
		v, err := body(f)
		if err != nil {
			f.m.report(s, StepFailed, nil, failed(err, n).value())
			return nil, err
		}
		f.m.report(s, Completed, v, nil)
		return v, nil
	}
}

// stepOf evaluates the options of a step.
func (f *frame) stepOf(name code, options map[form.Keyword]code) (Step, error) {
	s := Step{Params: form.NewMap()}
	title, err := name(f)
	if err != nil {
		return s, err
	}
	switch title := title.(type) {
	case string:
		s.Name = title
	case form.Keyword:
		s.Name = string(title)
	default:
		return s, form.Errorf("TypeError", "the name of a step must be a string, got %s", brief(title))
	}
	if params, ok := options["params"]; ok {
		v, err := params(f)
		if err != nil {
			return s, err
		}
		if s.Params, ok = v.(*form.Map); !ok {
			return s, form.Errorf("TypeError", "the :params of a step must be a map, got %s", brief(v))
		}
	}
	return s, f.exposed(&s, options)
}

// exposed sets the part of the context that a step shows the host: all of it, or some keys.
func (f *frame) exposed(s *Step, options map[form.Keyword]code) error {
	expose, ok := options["expose-context"]
	if !ok {
		return nil
	}
	v, err := expose(f)
	if err != nil || !truthy(v) {
		return err
	}
	keys, ok := options["context-keys"]
	if !ok {
		s.Context = f.m.context
		return nil
	}
	if v, err = keys(f); err != nil {
		return err
	}
	all, ok := sequence(v)
	if !ok {
		return form.Errorf("TypeError", "the :context-keys of a step must be a vector, got %s", brief(v))
	}
	s.Context = form.NewMap()
	for _, k := range all {
		if value, ok := f.m.around(k); ok {
			s.Context = s.Context.With(k, value)
		}
	}
	return nil
}

// report reports a step to a host that is a Reporter, one step at a time.
func (m *machine) report(s Step, phase Phase, v form.Value, err error) {
	r, ok := m.host.(Reporter)
	if !ok {
		return
	}
	if m.group != nil {
		m.group.reports.Lock()
		defer m.group.reports.Unlock()
	}
	s.Phase, s.Value, s.Err, s.Branch = phase, v, err, m.branchName()
	r.Step(m.ctx, s)
}

// branchName returns the name of the branch that the machine runs, or "".
func (m *machine) branchName() string { return strings.TrimSuffix(m.path, "-") }

// maxTurns is the maximum number of iterations of a step-loop.
const maxTurns = 10_000

// stepLoop compiles (step-loop condition body…).
func (c *compiler) stepLoop(n *form.Node, p spot) code {
	if len(n.Items) < 2 {
		return c.fail(n, "step-loop takes a condition and a body")
	}
	test, body := c.test(n.Items[1], p), c.sequence(n.Items[2:], p.inner())
	return func(f *frame) (form.Value, error) {
		var last form.Value
		for i := 0; ; i++ {
			yes, err := test(f)
			if err != nil || !yes {
				return last, err
			}
			if i == maxTurns {
				return nil, failed(form.Errorf("Generic", "step-loop exceeds %d iterations", maxTurns), n)
			}
			if err := f.m.Step(1); err != nil {
				return nil, failed(err, n)
			}
			if last, err = body(f); err != nil {
				return nil, err
			}
		}
	}
}
