// Package skill is documents that teach an agent which capabilities to use, and how.
// A skill gives no right: it names capabilities, and is no more than they are.
package skill

import "glasshouse/manifest"

// A Skill is a document that was read.
type Skill struct {
	Name        string // "local-places"
	Description string
	Version     string // semver

	Capabilities []string // the ids of those that it teaches

	// Shown is what the document says of itself. It is held against what its
	// capabilities say.
	Shown Shown

	Display Display

	Body   string // Markdown
	Source string // the document as it was given
}

// Shown is what a document shows to who reads it. What it does not say is nil, or
// empty.
type Shown struct {
	Effects []string
	Secrets []string
	Input   []manifest.Label
	Output  []manifest.Label
	Tier    Tier
	PerUse  *bool
}

// Display is how a skill looks in a list.
type Display struct {
	Emoji    string
	Category string
}

// A Tier is what a skill needs of who lets agents use it.
type Tier string

// The tiers, each above the one before.
const (
	Informational Tier = "informational" // it names no capability
	ReadOnly      Tier = "read-only"     // its capabilities have no effects
	Standard      Tier = "standard"
	Elevated      Tier = "elevated" // one changes files or state, or is elevated itself
)

// Tiers are all there are, the lowest first.
var Tiers = []Tier{Informational, ReadOnly, Standard, Elevated}

// Covers reports whether what is of tier t may have what is of tier u. A tier that
// does not exist covers nothing, and nothing covers it.
func (t Tier) Covers(u Tier) bool { return u.rank() >= 0 && t.rank() >= u.rank() }

func (t Tier) rank() int {
	for i, other := range Tiers {
		if t == other {
			return i
		}
	}
	return -1
}
