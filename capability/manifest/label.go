package manifest

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/problem"
)

// A Label is a data classification: a class with an optional dotted subclass, such as
// pii.chat.message. The zero value is Public.
type Label string

// The classes in ascending order.
const (
	Public   Label = "public"
	Redacted Label = "redacted" // data of a higher class, with the protected parts removed
	PII      Label = "pii"      // personal data
	Secret   Label = "secret"
)

var classes = []Label{Public, Redacted, PII, Secret}

// ParseLabel parses a label.
func ParseLabel(s string) (Label, error) {
	class, _, _ := strings.Cut(s, ".")
	if !slices.Contains(classes, Label(class)) {
		return "", fmt.Errorf("%.60q is not a data class: use public, redacted, pii or secret, optionally with a subclass such as pii.chat.message%s",
			s, problem.Meant(class, "public", "redacted", "pii", "secret"))
	}
	if len(s) > 128 || !dotted.MatchString(s) {
		return "", fmt.Errorf("%.60q is not a valid data class: use lower-case words separated by dots, at most 128 characters", s)
	}
	return Label(s), nil
}

// Class returns the class of the label, without the subclass.
func (l Label) Class() Label {
	if l == "" {
		return Public
	}
	class, _, _ := strings.Cut(string(l), ".")
	return Label(class)
}

// rank orders the classes. An invalid label ranks above all, so that no mistake grants access.
func (l Label) rank() int {
	if i := slices.Index(classes, l.Class()); i >= 0 {
		return i
	}
	return len(classes)
}

// Covers reports whether clearance for l includes m: m has a lower class, or the same class
// and a subclass within l.
func (l Label) Covers(m Label) bool {
	if l.rank() != m.rank() {
		return l.rank() > m.rank()
	}
	return l.Class() == m.Class() && (m == l || l == l.Class() || l == "" || strings.HasPrefix(string(m), string(l)+"."))
}

// Join returns the lowest label that covers both. Data derived from two inputs has this label.
func (l Label) Join(m Label) Label {
	switch {
	case l.Covers(m):
		return l.orPublic()
	case m.Covers(l):
		return m.orPublic()
	}
	a, b := strings.Split(string(l), "."), strings.Split(string(m), ".")
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return Label(strings.Join(a[:max(n, 1)], "."))
}

func (l Label) orPublic() Label {
	if l == "" {
		return Public
	}
	return l
}

// Join returns the lowest label that covers all of labels, or Public if there are none.
func Join(labels ...Label) Label {
	if len(labels) == 0 {
		return Public
	}
	all := labels[0].orPublic()
	for _, l := range labels[1:] {
		all = all.Join(l)
	}
	return all
}

// Covered reports whether one of the labels covers m. No labels means Public.
func Covered(labels []Label, m Label) bool {
	return Public.Covers(m) || slices.ContainsFunc(labels, func(l Label) bool { return l.Covers(m) })
}
