package manifest

import (
	"strings"

	"golang.org/x/mod/semver"
)

// CompareVersions returns -1, 0 or 1 as version a is before, as good as, or after b.
func CompareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// ValidVersion reports whether s is semver in full: 1.2.3, with what may follow.
func ValidVersion(s string) bool {
	core, _, _ := strings.Cut(s, "+")
	core, _, _ = strings.Cut(core, "-")
	return len(s) <= 64 && strings.Count(core, ".") == 2 && semver.IsValid("v"+s)
}
