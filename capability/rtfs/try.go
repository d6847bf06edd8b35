package rtfs

import (
	"unicode"
	"unicode/utf8"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/lib"
)

// A catcher is one (catch type name body…).
type catcher struct {
	wants form.Value // kind, keyword or class to match; nil: everything
	slots []int      // slots of the names to which the error is bound
	body  code
}

// try compiles (try body… (catch type name body…)… (finally body…)).
func (c *compiler) try(n *form.Node, p spot) code {
	body := n.Items[1:]
	var catches []*form.Node
	var finally *form.Node
	for len(body) > 0 {
		last := body[len(body)-1]
		isLast := last.Kind == form.ListNode && (headOf(last) == "catch" || headOf(last) == "finally")
		if !isLast {
			break
		}
		body = body[:len(body)-1]
		if headOf(last) == "catch" {
			catches = append([]*form.Node{last}, catches...)
		} else if finally != nil || len(catches) > 0 {
			return c.fail(last, "finally must be the last clause of its try, and the only finally")
		} else {
			finally = last
		}
	}
	if catches == nil && finally == nil {
		return c.fail(n, "try needs a catch or a finally")
	}
	do := c.sequence(body, p.inner())
	// The last form of a catch is in tail position, so it may be a recur or a tail call. With a
	// finally, it is not.
	last := p
	if finally != nil {
		last = p.inner()
	}
	catchers := make([]catcher, len(catches))
	for i, n := range catches {
		catchers[i] = c.catch(n, last)
	}
	var after code
	if finally != nil {
		after = c.sequence(finally.Items[1:], p.inner())
	}
	return func(f *frame) (form.Value, error) {
		v, err := f.attempt(do, catchers)
		if after == nil {
			return v, err
		}
		base := len(f.m.args)
		_, err2 := after(f)
		f.m.args = f.m.args[:base]
		if err2 != nil && (err == nil || !failed(err, n).fatal) {
			return nil, err2
		}
		return v, err
	}
}

// attempt runs a body and, if it fails, the matching catch.
func (f *frame) attempt(do code, catchers []catcher) (form.Value, error) {
	base := len(f.m.args)
	v, err := do(f)
	if err == nil {
		return v, nil
	}
	f.m.args = f.m.args[:base] // arguments of calls that were not made
	failure := failed(err, nil)
	if failure.fatal {
		return nil, err
	}
	e := failure.value()
	for _, c := range catchers {
		if !c.catches(e) {
			continue
		}
		for _, slot := range c.slots {
			f.slots[slot] = e
		}
		return c.body(f)
	}
	return nil, err
}

// catch compiles (catch type name body…) and (catch name body…).
func (c *compiler) catch(n *form.Node, p spot) catcher {
	if len(n.Items) < 2 {
		c.fail(n, "catch takes a type, a name and a body")
		return catcher{}
	}
	defer p.release(p.mark())
	what, rest := n.Items[1], n.Items[2:]
	var cat catcher
	declare := func(n *form.Node) { cat.slots = append(cat.slots, p.declare(string(n.Atom.(form.Symbol)))) }
	name, named := what.Atom.(form.Symbol)
	switch {
	case named && (len(rest) == 0 || !isName(rest[0]) || len(rest) == 1 && !capital(string(name))):
		declare(what) // (catch e body…)
	case len(rest) == 0 || !isName(rest[0]):
		c.fail(n, "catch takes a type, a name and a body")
		return cat
	default:
		if named && !capital(string(name)) && name != "_" {
			declare(what)
		}
		cat.wants = wanted(what.Value())
		declare(rest[0])
		rest = rest[1:]
	}
	cat.body = c.body(n, rest, p)
	return cat
}

// wanted returns the value that a catch matches; nil if it catches everything.
func wanted(what form.Value) form.Value {
	switch w := what.(type) {
	case form.Symbol:
		if w == "Exception" || w == "Error" || !capital(string(w)) {
			return nil
		}
		return string(w)
	}
	return what
}

func capital(name string) bool {
	r, _ := utf8.DecodeRuneInString(name)
	return unicode.IsUpper(r)
}

// catches reports whether a catch matches the kind or the data of an error.
func (c *catcher) catches(e *form.Error) bool {
	switch want := c.wants.(type) {
	case nil:
		return true
	case string:
		return want == e.Kind || want == lib.Class(e)
	case form.Keyword:
		switch want {
		case "error", form.Keyword(e.Kind):
			return true
		case "capability-error":
			return lib.Class(e) == "HostError"
		case "security-error":
			return e.Kind == "SecurityViolation"
		}
		typ, _ := lib.Fields(e).Get(form.Keyword("type"))
		return form.Equal(typ, want) || form.Equal(e.Data, want)
	}
	return false
}
