package manifest

import (
	"strings"

	"golang.org/x/mod/semver"
)

// CompareVersions returns -1, 0 or 1 as version a is before, equal to, or after b.
func CompareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// ValidVersion reports whether s is a complete semantic version: 1.2.3 with an optional
// suffix.
func ValidVersion(s string) bool {
	core, _, _ := strings.Cut(s, "+")
	core, _, _ = strings.Cut(core, "-")
	return len(s) <= 64 && strings.Count(core, ".") == 2 && semver.IsValid("v"+s)
}
