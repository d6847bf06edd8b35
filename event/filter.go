package event

import "math"

// A Filter says which records are meant. There is one language for it
// everywhere; docs/events.md describes it. A nil Filter means all records. It is
// immutable and safe for concurrent use.
type Filter struct {
	terms []term  // all must hold; the cheap ones first
	types typeSet // of records that can be meant
	gaps  typeSet // a gap among records of these types is meant
}

// A typeSet has the bit of each Type.
type typeSet uint16

const everyType typeSet = 1<<Syscall | 1<<File | 1<<Net | 1<<Proc | 1<<Gap | 1<<Usage | 1<<Lineage

func (s typeSet) has(t Type) bool { return s>>t&1 != 0 }

// A term is one condition: the record has one of the values, or none of them if
// the term is negated.
type term struct {
	key  *key
	not  bool
	alts []alt
}

// Match reports whether f means e. It allocates nothing.
//
// A gap says that records are missing, and nobody knows what they were. It is
// therefore meant by every filter that could mean a record of the type that is
// missing, unless a term for type or seq says otherwise.
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

// any reports whether e has the key, with one of the values.
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
			if t.alts[i].whole(s) {
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

// Types lists the types of which f can mean records, so that a reader may skip
// files that hold only others. Gaps are kept beside the records they tell of:
// Gap is listed only if f means gaps among others than those.
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
	return int32(pid), 0 < pid && pid <= math.MaxInt32 // 0 stands for a record without a process
}

// plan finds out which types can be meant.
func (f *Filter) plan() {
	named, rest := everyType, everyType // what terms for type leave, and what the others do
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
		case !t.not: // a record without the key is meant by its negation
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

// String returns f as text from which ParseFilter makes the same. Filters that
// differ in nothing but the order of terms and alternatives have the same text.
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
