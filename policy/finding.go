package policy

import "fmt"

// A Finding is a rule in the files that does not do what it appears to do.
type Finding struct {
	Kind    FindingKind `json:"kind"`
	File    string      `json:"file"`
	Line    int         `json:"line,omitempty"`
	Message string      `json:"message"`
	Remedy  string      `json:"remedy,omitempty"`
}

// A FindingKind is the kind of problem with a rule.
type FindingKind string

const (
	Reading  FindingKind = "reading"   // depends on the match mode
	Never    FindingKind = "never"     // can never decide
	NoEffect FindingKind = "no effect" // the rule is never evaluated
	Evaded   FindingKind = "evaded"    // can be bypassed by known means
	Weak     FindingKind = "weak"      // compatibility with OpenCode makes it weaker than it appears
	TooMany  FindingKind = "too many"  // the limit of comparisons was reached
)

// String returns the finding in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Kind, f.Message)
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return s
}
