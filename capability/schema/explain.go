package schema

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/rtfs/problem"
	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// A Mismatch describes how a value differs from its type. Its fault kind is fault.Invalid.
type Mismatch struct {
	Problems []Problem
	More     bool // the list of problems is truncated
}

// A Problem describes an error at one position in a value.
type Problem struct {
	Path []form.Value // keys and indices from the root to the position
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

// listed is the maximum number of problems in a Mismatch.
const listed = 16

// A report collects the problems of a Mismatch.
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

// not reports that v is not the expected noun.
func (r *report) not(v form.Value, noun string) { r.addf("%s is not %s", describe(v), cut(noun, 200)) }

// in runs f with key appended to the path.
func (r *report) in(key form.Value, f func()) {
	r.path = append(r.path, key)
	f()
	r.path = r.path[:len(r.path)-1]
}

// child explains v, the value at key, if it is not of type t.
func (r *report) child(key form.Value, t typ, v form.Value) {
	if !r.more && !t.ok(v) {
		r.in(key, func() { t.explain(v, r) })
	}
}

// describe returns a short description of v for messages, independent of its size.
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

// shorten truncates a text to fit in one line.
func shorten(s string) string { return cut(s, 60) }

// cut returns s if it has at most most+1 characters, and otherwise its first characters and
// "…".
func cut(s string, most int) string {
	return safetext.Columns(s, most+1)
}

// or joins nouns, for example "an int, a string or nil". It lists only the first few.
func or(nouns []string) string {
	const most = 8
	if len(nouns) > most {
		nouns = append(slices.Clone(nouns[:most]), "another allowed type")
	}
	if len(nouns) < 2 {
		return strings.Join(nouns, "")
	}
	last := len(nouns) - 1
	return strings.Join(nouns[:last], ", ") + " or " + nouns[last]
}

// nearest returns the known name that name was probably meant to be, or "". Short names must be
// closer than long ones.
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
