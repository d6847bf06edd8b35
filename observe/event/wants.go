package event

import "slices"

// Wants reports whether a selection records the system call with a name. Sampling is left to
// the source.
func (s Selection) Wants(call string) bool {
	switch {
	case slices.Contains(s.Ignore, call):
		return false
	case slices.Contains(s.Allow, call):
		return true
	case s.Syscalls == "security":
		return slices.Contains(Security, call)
	default:
		return s.Syscalls != "off"
	}
}
