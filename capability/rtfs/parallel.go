package rtfs

import (
	"context"
	"fmt"
	"sync"

	"glasshouse/capability/rtfs/form"
)

// maxConcurrent bounds the goroutines that one run has for its branches. Each may hold a
// call of the host, which may hold a sandbox.
const maxConcurrent = 8

// A group is the state that all branches of one run share, however deeply they are nested.
type group struct {
	limits  Limits        // limits of the whole run
	slots   chan struct{} // one for each goroutine
	reports sync.Mutex    // held while a step is reported to the host
	budget  budget
}

// A budget is the unused part of the limits of a run, shared by its branches. A branch takes
// portions of it, and returns the unused rest before it waits for a call or for other branches.
// The branches together can therefore use exactly the limits.
type budget struct {
	mu sync.Mutex
	// steps and alloc are those that no branch holds.
	// +checklocks:mu
	steps int64
	// +checklocks:mu
	alloc int64
	// holders is the number of branches that hold portions.
	// +checklocks:mu
	holders int
	// changed is closed after the next change. It is nil if no branch waits for one.
	// +checklocks:mu
	changed chan struct{}
}

// A dimension selects the remainder of one of the limits that branches share.
type dimension func(b *budget) *int64

// +checklocks:b.mu
func stepsOf(b *budget) *int64 { return &b.steps }

// +checklocks:b.mu
func allocOf(b *budget) *int64 { return &b.alloc }

// take takes a portion of the budget: at least need, and up to want if enough remains for the other
// branches. While the budget has less than need, take waits until other branches return portions.
// If no branch holds a portion, or if this branch is cancelled, take returns 0.
func (m *machine) take(d dimension, need, want int64) int64 {
	b := &m.group.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		left := d(b)
		if *left >= need {
			n := max(need, min(want, *left/4))
			*left -= n
			if !m.holds {
				m.holds = true
				b.holders++
			}
			return n
		}
		b.returned(m)
		if b.holders == 0 {
			return 0
		}
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-m.ctx.Done():
		}
		b.mu.Lock()
		if m.ctx.Err() != nil {
			return 0
		}
	}
}

// release returns the unused rest of a branch's portions to the budget. The branch takes new
// portions when it continues.
func (m *machine) release() {
	if !m.branch() {
		return
	}
	b := &m.group.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.returned(m)
}

// returned puts the unused portions of m back into b.
//
// +checklocks:b.mu
func (b *budget) returned(m *machine) {
	if !m.holds {
		return
	}
	used := m.granted - m.fuel
	if unused := m.limits.Steps - used; unused > 0 {
		b.steps += unused
		m.limits.Steps, m.granted, m.fuel = used, used, 0
	}
	if unused := m.limits.Alloc - m.alloc; unused > 0 {
		b.alloc += unused
		m.limits.Alloc = m.alloc
	}
	m.holds = false
	b.holders--
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// A branch is one form of a step-parallel while it runs.
type branch struct {
	machine
	fn      *Func
	cancel  context.CancelFunc
	value   form.Value
	err     error
	crashed any // the value of a panic
}

// stepParallel compiles (step-parallel [:merge-policy p] branch…). The branches run concurrently.
// Each begins with the context and the global names as they were before the step. Their changes are
// merged in source order.
//
// If a branch fails, the later branches are cancelled. The earlier branches run to their end,
// because one of them may fail too. The step returns the error of the first branch, in source
// order, that fails.
func (c *compiler) stepParallel(n *form.Node, p spot) code {
	rest := n.Items[1:]
	policy := form.Keyword("keep-existing")
	if len(rest) > 1 && rest[0].Atom == form.Keyword("merge-policy") {
		k, ok := rest[1].Atom.(form.Keyword)
		if !ok || k != "keep-existing" && k != "overwrite" && k != "merge" {
			return c.fail(rest[1], "a :merge-policy is :keep-existing, :overwrite or :merge")
		}
		policy, rest = k, rest[2:]
	}
	// Each branch is a function without parameters, so that it has its own frame.
	makers := make([]code, len(rest))
	for i, item := range rest {
		makers[i] = c.concurrent(item, p)
	}
	return func(f *frame) (form.Value, error) {
		m := f.m
		if err := m.Alloc(int64(len(makers)*16 + 24)); err != nil {
			return nil, failed(err, n)
		}
		all, err := f.fork(makers)
		if err != nil {
			return nil, failed(err, n)
		}
		f.join(all)
		if err := m.failureOf(all); err != nil {
			return nil, failed(err, n)
		}
		values := make(form.Vector, len(all))
		for i, b := range all {
			values[i] = b.value
			m.context = mergeContext(m.context, b.context, b.written, policy)
			m.written = append(m.written, b.written...)
			for g := range b.defined {
				m.setGlobal(g, b.globals[g])
			}
		}
		return values, nil
	}
}

// concurrent compiles a form as a function without parameters.
func (c *compiler) concurrent(n *form.Node, p spot) code {
	s := newScope(p.scope, "", c.depth)
	since := c.count
	fn := &proto{name: "branch"}
	fn.body = c.expr(n, spot{scope: s})
	fn.slots, fn.nest, fn.sites, fn.cost = s.slots, s.nest+frameNest, s.sites, c.cost(since)
	return func(f *frame) (form.Value, error) {
		g := &Func{p: fn, w: f.m.world, captured: make([]form.Value, len(fn.sites))}
		g.capture(f)
		return g, nil
	}
}

// fork makes a machine for each branch. They share the remaining budget of the machine of f.
func (f *frame) fork(makers []code) ([]*branch, error) {
	m := f.m
	if m.group == nil {
		m.group = &group{limits: m.limits, slots: make(chan struct{}, maxConcurrent)}
	}
	m.forks++
	all := make([]*branch, len(makers))
	for i, maker := range makers {
		if err := m.Alloc(int64(len(m.globals))*16 + 256); err != nil {
			return nil, err
		}
		fn, err := maker(f)
		if err != nil {
			return nil, err
		}
		b := &branch{fn: fn.(*Func), machine: machine{
			world: m.world, globals: append([]form.Value{}, m.globals...), host: m.host,
			limits:  Limits{Depth: m.limits.Depth, Time: m.limits.Time},
			context: m.context, deadline: m.deadline,
			group: m.group, path: fmt.Sprintf("%s%d-%d-", m.path, m.forks, i),
		}}
		b.ctx, b.cancel = context.WithCancel(m.ctx)
		b.root = frame{m: &b.machine, nest: f.nest, depth: f.depth}
		all[i] = b
	}
	if m.branch() {
		m.release()
		return all, nil
	}
	b := &m.group.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.steps, b.alloc = max(0, m.limits.Steps-(m.granted-m.fuel)), max(0, m.limits.Alloc-m.alloc)
	return all, nil
}

// join runs the branches and waits until all have ended. What they used is charged to the
// machine of f.
func (f *frame) join(all []*branch) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	run := func(i int) {
		b := all[i]
		b.run()
		if b.err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		from := i + 1
		if f := failed(b.err, nil); f.fatal && f.err.Kind == "BudgetExhausted" {
			from = 0 // the budget is empty for the others
		}
		for _, other := range all[from:] {
			other.cancel()
		}
	}
	for i := range all {
		select {
		case f.m.group.slots <- struct{}{}:
			wg.Go(func() {
				defer func() { <-f.m.group.slots }()
				run(i)
			})
		default:
			// All goroutines are busy. This one would only wait, so it runs the branch. That
			// cannot deadlock, however deeply branches are nested.
			run(i)
		}
	}
	wg.Wait()
	for _, b := range all {
		b.cancel()
		steps := b.granted - b.fuel
		f.m.granted += steps
		f.m.alloc += b.alloc
		if f.m.branch() { // the limits of a branch are the sum of its portions
			f.m.limits.Steps += steps
			f.m.limits.Alloc += b.alloc
		}
	}
	f.m.granted, f.m.fuel = f.m.granted-f.m.fuel, 0 // the next step looks at the limits
	for _, b := range all {
		if b.crashed != nil {
			panic(b.crashed) // in the goroutine of the caller, which may recover it
		}
	}
}

// run runs a branch in its machine.
func (b *branch) run() {
	defer func() {
		b.crashed = recover()
		if b.crashed != nil {
			b.err = form.Errorf("InternalError", "a branch crashed")
		}
		b.release()
	}()
	b.err = b.refuel()
	if b.err == nil {
		b.value, b.err = b.apply(&b.root, b.fn, nil)
	}
}

// failureOf returns the error of the branches: that of an exceeded limit, otherwise the first
// error. A branch that was cancelled because of another branch has no error of its own.
func (m *machine) failureOf(all []*branch) error {
	var first error
	for _, b := range all {
		if b.err == nil {
			continue
		}
		f := failed(b.err, nil)
		if f.err.Kind == "BudgetExhausted" && f.fatal {
			return b.err
		}
		if f.fatal && f.err.Kind == "Cancelled" && m.ctx.Err() == nil {
			if h, ok := m.host.(Canceller); ok {
				h.Cancelled(b.branchName())
			}
			continue
		}
		if first == nil {
			first = b.err
		}
	}
	return first
}

// mergeContext merges the context entries that a branch has written into the shared context.
func mergeContext(all, branch *form.Map, written []form.Value, policy form.Keyword) *form.Map {
	for _, k := range written {
		v, _ := branch.Get(k)
		old, exists := all.Get(k)
		x, isMap := old.(*form.Map)
		y, isMap2 := v.(*form.Map)
		switch {
		case exists && policy == "keep-existing":
			continue
		case policy == "merge" && isMap && isMap2:
			for k, e := range y.All() {
				x = x.With(k, e)
			}
			v = x
		}
		all = all.With(k, v)
	}
	return all
}
