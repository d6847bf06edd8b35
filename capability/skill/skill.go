// Package skill implements skills: documents that teach an agent which capabilities to use,
// and how. A skill grants no permissions; it only refers to capabilities.
package skill

import "glasshouse/capability/manifest"

// A Skill is a parsed document.
type Skill struct {
	Name        string // "local-places"
	Description string
	Version     string // semver

	Capabilities []string // ids

	// Shown is the document's own description. Check compares it with the capabilities.
	Shown Shown

	Display Display

	Body   string // Markdown
	Source string // the original document
}

// Shown contains the values that a document shows to its reader. Missing values are nil or empty.
type Shown struct {
	Effects []string
	Secrets []string
	Input   []manifest.Label
	Output  []manifest.Label
	Tier    Tier
	PerUse  *bool
}

// Display is the presentation of a skill in a list.
type Display struct {
	Emoji    string
	Category string
}

// A Tier is the approval that a skill needs.
type Tier string

// The tiers in ascending order.
const (
	Informational Tier = "informational" // it names no capability
	ReadOnly      Tier = "read-only"     // its capabilities have no effects
	Standard      Tier = "standard"
	Elevated      Tier = "elevated" // one changes files or state, or is elevated itself
)

// Tiers lists all tiers in ascending order.
var Tiers = []Tier{Informational, ReadOnly, Standard, Elevated}

// Covers reports whether tier t includes tier u. An invalid tier covers nothing and is covered
// by nothing.
func (t Tier) Covers(u Tier) bool { return u.rank() >= 0 && t.rank() >= u.rank() }

func (t Tier) rank() int {
	for i, other := range Tiers {
		if t == other {
			return i
		}
	}
	return -1
}
