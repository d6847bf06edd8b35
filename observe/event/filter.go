package event

import "math"

// A Filter selects events. Its language is the same everywhere; see docs/reference/events.md. A nil
// Filter matches all events. It is immutable and safe for concurrent use.
type Filter struct {
	terms []term  // all must match; the cheapest first
	types typeSet // types of events that can match
	gaps  typeSet // gaps with lost events of these types match
}

// A typeSet is a bit set of Types.
type typeSet uint16

const everyType typeSet = 1<<Syscall | 1<<File | 1<<Net | 1<<Proc | 1<<Gap | 1<<Usage | 1<<Lineage

func (s typeSet) has(t Type) bool { return s>>t&1 != 0 }

// A term is one condition: the event has one of the values or, if the term is negated, none of
// them.
type term struct {
	key  *key
	not  bool
	alts []alt
}

// Match reports whether f matches e. It does not allocate.
//
// A gap reports lost events with unknown content. Therefore a filter that could match events
// of the lost type also matches the gap, unless a term for type or seq excludes it.
func (f *Filter) Match(e *Event) bool {
	if f == nil {
		return true
	}
	if e.Type == Gap {
		return f.matchGap(e)
	}
	if !f.types.has(e.Type) {
		return false
	}
	for i := range f.terms {
		if !f.terms[i].match(e) {
			return false
		}
	}
	return true
}

func (f *Filter) matchGap(e *Event) bool {
	// Lost events with the unknown source 0 may be of any type.
	if f.gaps == 0 || e.Source != 0 && !f.gaps.has(e.Source) {
		return false
	}
	for i := range f.terms {
		if t := &f.terms[i]; t.key.ofGaps && !t.match(e) {
			return false
		}
	}
	return true
}

func (t *term) match(e *Event) bool { return t.any(e) != t.not }

// any reports whether e has the key with one of the values.
func (t *term) any(e *Event) bool {
	k := t.key
	if !k.types.has(e.Type) {
		return false
	}
	switch {
	case k.number != nil:
		v, ok := k.number(e)
		if !ok {
			return false
		}
		for i := range t.alts {
			if t.alts[i].holds(v) {
				return true
			}
		}
	case k.text != nil:
		s := k.text(e)
		if s == "" {
			return false
		}
		for i := range t.alts {
			if t.alts[i].matchesAll(s) {
				return true
			}
		}
	default:
		for i := range t.alts {
			if k.match(e, &t.alts[i]) {
				return true
			}
		}
	}
	return false
}

// Types returns the types of events that f can match, so that readers can skip files with
// other types. Gaps are stored together with events of the lost type: Gap is listed only if f
// matches gaps of other types.
func (f *Filter) Types() []Type {
	var list []Type
	for _, t := range Types {
		if f == nil || f.types.has(t) {
			list = append(list, t)
		}
	}
	return list
}

// NotPID returns n if f is the filter -pid:n, which the UI uses to hide init. Readers can
// decide such a filter without parsing records.
func (f *Filter) NotPID() (n int32, ok bool) {
	if f == nil || len(f.terms) != 1 {
		return 0, false
	}
	t := &f.terms[0]
	if t.key.name != "pid" || !t.not || len(t.alts) != 1 || t.alts[0].lo != t.alts[0].hi {
		return 0, false
	}
	pid := t.alts[0].lo
	return int32(pid), 0 < pid && pid <= math.MaxInt32 // 0 is an event without a process
}

// plan computes the types that can match.
func (f *Filter) plan() {
	named, rest := everyType, everyType // types allowed by terms for type, and by all other terms
	for i := range f.terms {
		t := &f.terms[i]
		switch {
		case t.key.kind == typeNamed:
			var in typeSet
			for _, a := range t.alts {
				in |= 1 << a.lo
			}
			if t.not {
				in = ^in
			}
			named &= in
		case !t.not: // a negated term matches events without the key
			rest &= t.key.types
		}
	}
	f.types = named & rest
	if !named.has(Gap) {
		return
	}
	f.gaps = f.types &^ (1 << Gap)
	if f.gaps == 0 { // type:gap, alone or with terms that gaps do not have
		f.gaps = rest &^ (1 << Gap)
	}
	f.types &^= 1 << Gap
	if f.gaps&^f.types != 0 {
		f.types |= 1 << Gap
	}
}

// String returns canonical text that parses to an equal filter. Filters that differ only in
// the order of terms and alternatives have the same text.
func (f *Filter) String() string {
	if f == nil {
		return ""
	}
	var b []byte
	for i := range f.terms {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, f.terms[i].String()...)
	}
	return string(b)
}

func (t *term) String() string {
	var b []byte
	if t.not {
		b = append(b, '-')
	}
	if t.key.name != "" {
		b = append(b, t.key.name...)
		b = append(b, ':')
	}
	for i := range t.alts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, quote(t.alts[i].text, t.key.name == "")...)
	}
	return string(b)
}
