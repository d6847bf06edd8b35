package schema

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/problem"
	safetext "glasshouse/internal/text"
	"glasshouse/rtfs/form"
)

// A Mismatch is how a value differs from its type. It is a fault.Invalid.
type Mismatch struct {
	Problems []Problem
	More     bool // there are more problems than are listed
}

// A Problem is what is wrong at one place of a value.
type Problem struct {
	Path []form.Value // the keys and indices that lead there
	Text string
}

func (m *Mismatch) Error() string {
	all := make([]string, len(m.Problems))
	for i, p := range m.Problems {
		all[i] = p.String()
	}
	if m.More {
		all = append(all, "and more")
	}
	return strings.Join(all, "; ")
}

func (m *Mismatch) Unwrap() error { return fault.Invalid }

func (p Problem) String() string {
	if len(p.Path) == 0 {
		return p.Text
	}
	keys := make([]string, len(p.Path))
	for i, key := range p.Path {
		keys[i] = describe(key)
	}
	return "at [" + strings.Join(keys, " ") + "]: " + p.Text
}

// listed is how many problems of one value are listed.
const listed = 16

// A report is a Mismatch in the making.
type report struct {
	path     []form.Value
	problems []Problem
	more     bool
}

func (r *report) addf(format string, args ...any) {
	if len(r.problems) == listed {
		r.more = true
		return
	}
	r.problems = append(r.problems, Problem{slices.Clone(r.path), fmt.Sprintf(format, args...)})
}

// not says what v should have been.
func (r *report) not(v form.Value, noun string) { r.addf("%s is not %s", describe(v), cut(noun, 200)) }

// in goes one key or index deeper for as long as f runs.
func (r *report) in(key form.Value, f func()) {
	r.path = append(r.path, key)
	f()
	r.path = r.path[:len(r.path)-1]
}

// child explains what is at a key, if anything is wrong there.
func (r *report) child(key form.Value, t typ, v form.Value) {
	if !r.more && !t.ok(v) {
		r.in(key, func() { t.explain(v, r) })
	}
}

// describe is v in an explanation: short, however big it is.
func describe(v form.Value) string {
	switch v := v.(type) {
	case string:
		return form.Text(shorten(v))
	case form.Keyword:
		return form.Text(form.Keyword(shorten(string(v))))
	case form.Symbol:
		return form.Text(form.Symbol(shorten(string(v))))
	case form.Resource:
		return form.Text(form.Resource(shorten(string(v))))
	case big:
		return shorten(string(v))
	case *form.Map:
		return "a map of " + fmt.Sprint(v.Len())
	case form.Func:
		return "a function"
	case *form.Error:
		return "an error"
	}
	if items, ok := elements(v); ok {
		return "a vector of " + fmt.Sprint(len(items))
	}
	return form.Text(v)
}

// shorten cuts a text that is too long to stand in a line.
func shorten(s string) string { return cut(s, 60) }

// cut returns s if it has at most most+1 characters, and else most of them and "…".
func cut(s string, most int) string {
	return safetext.Columns(s, most+1)
}

// or joins nouns: "an int, a string or nil". Nobody reads more than a few.
func or(nouns []string) string {
	const most = 8
	if len(nouns) > most {
		nouns = append(slices.Clone(nouns[:most]), "something else that is allowed")
	}
	if len(nouns) < 2 {
		return strings.Join(nouns, "")
	}
	last := len(nouns) - 1
	return strings.Join(nouns[:last], ", ") + " or " + nouns[last]
}

// nearest returns what name was probably meant to be, or "". A short name is near
// to few.
func nearest(name string, known []string) string {
	best, least := "", 1+len(name)/4
	for _, k := range known {
		if k == name || len(k) > len(name)+least || len(name) > len(k)+least {
			continue
		}
		if d := problem.Distance(name, k); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}
