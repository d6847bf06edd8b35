package manifest

import (
	"slices"
	"time"
)

// agree checks that different keys are consistent.
func (s *sections) agree() {
	s.agreeRuntime()
	s.agreeNetwork()
	s.agreeFiles()
	s.agreeReach()
	s.agreeEstimates()
	s.agreeClasses()
}

func (s *sections) agreeFiles() {
	f, n := s.c.Filesystem, s.at["filesystem"]
	if n == nil {
		return
	}
	fs := slices.Contains(s.c.Effects, "fs")
	if slices.ContainsFunc(f.Mounts, func(m Mount) bool { return m.Write }) && !fs {
		s.problem(n, "filesystem.mounts", "it writes to the workspace, but effects lacks :fs")
	}
	if f.Mode == Persistent && !fs && !slices.Contains(s.c.Effects, "state") {
		s.problem(n, "filesystem.mode", "its files persist between calls, but effects lacks :state and :fs")
	}
}

// agreeReach refuses settings that a runtime cannot provide or enforce.
func (s *sections) agreeReach() {
	c := s.c
	refuse := func(key, why string, given bool) {
		if at := s.at[key]; at != nil && given {
			s.problem(at, key, "%s", why)
		}
	}
	switch c.Runtime.Type {
	case RTFS:
		const pure = "an :rtfs capability has no access of its own: call a capability for it"
		refuse("filesystem", pure, len(c.Filesystem.Mounts) > 0 || c.Filesystem.Mode != Ephemeral || c.Filesystem.QuotaMB > 0)
		refuse("network", pure, c.Network.Mode != ModeNone)
		refuse("secrets", pure, len(c.Secrets) > 0)
	case Native:
		const free = "it cannot be enforced for a process on the host: use :container"
		refuse("filesystem", free, len(c.Filesystem.Mounts) > 0 || c.Filesystem.Mode != Ephemeral || c.Filesystem.QuotaMB > 0)
		refuse("network", free, true)
		refuse("egress", free, c.NoEgress)
		refuse("resources", "the traffic of a process on the host is not counted: use :container", c.Resources.NetworkBytes > 0)
	}
}

// agreeEstimates reports estimates that exceed the limits.
func (s *sections) agreeEstimates() {
	n, c := s.at["resource-estimates"], s.c
	if n == nil {
		return
	}
	if worst := c.Estimates["wall-clock-ms"].Worst; c.Resources.Timeout > 0 && time.Duration(worst)*time.Millisecond > c.Resources.Timeout {
		s.problem(n, "resource-estimates.wall-clock-ms", "the worst case %d exceeds resources.timeout-ms %d", worst, c.Resources.Timeout.Milliseconds())
	}
	if worst := c.Estimates["network-bytes"].Worst; c.Resources.NetworkBytes > 0 && worst > c.Resources.NetworkBytes {
		s.problem(n, "resource-estimates.network-bytes", "the worst case %d exceeds resources.network-bytes %d", worst, c.Resources.NetworkBytes)
	}
}

// agreeClasses derives whether the capability declassifies. An output class below an input
// class implies it.
func (s *sections) agreeClasses() {
	d, n := &s.c.DataClasses, s.at["declassifier"]
	lowers := len(d.lowered()) > 0
	switch {
	case n != nil && d.Declassifies && !lowers:
		s.problem(n, "declassifier", "no output class in data-classes is lower than the input class")
	case n != nil && !d.Declassifies && lowers:
		s.problem(n, "declassifier", "it is false, but data-classes has an output class lower than the input class")
	}
	d.Declassifies = lowers
}

// lowered returns the labels of the input that the output no longer has.
func (d DataClasses) lowered() []Label {
	var all []Label
	for _, in := range d.Input {
		if len(d.Output) > 0 && !Covered(d.Output, in) {
			all = append(all, in)
		}
	}
	return all
}
