package policy

import "fmt"

// A Finding is something in the files that does not do what it seems to.
type Finding struct {
	Kind    FindingKind `json:"kind"`
	File    string      `json:"file"`
	Line    int         `json:"line,omitempty"`
	Message string      `json:"message"`
	Remedy  string      `json:"remedy,omitempty"`
}

// A FindingKind says what is wrong with a rule.
type FindingKind string

const (
	Reading  FindingKind = "reading"   // the other way to read the file would change it
	Never    FindingKind = "never"     // it can never decide anything
	NoEffect FindingKind = "no effect" // nothing looks at it
	Evaded   FindingKind = "evaded"    // known ways lead around it
	Weak     FindingKind = "weak"      // exactness with OpenCode makes it weaker than it looks
	TooMany  FindingKind = "too many"  // there was more to look at than is looked at
)

// String is the finding in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Kind, f.Message)
	if f.Remedy != "" {
		s += "; " + f.Remedy
	}
	return s
}
