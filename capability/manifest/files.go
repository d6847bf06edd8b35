package manifest

import (
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/rtfs/form"
)

func (s *sections) filesystem(n *form.Node) {
	f := &s.c.Filesystem
	s.entries(n, "filesystem", keys{
		"mode": func(n *form.Node) {
			f.Mode = Mode(s.oneOf(n, "filesystem.mode", string(Ephemeral), string(Session), string(Persistent)))
		},
		"mounts":   s.mounts,
		"quota-mb": func(n *form.Node) { f.QuotaMB = int(s.integer(n, "filesystem.quota-mb", 1, maxMegabytes)) },
	})
}

// reserved are the directories of a sandbox that are already in use.
var reserved = []string{"/proc", "/sys", "/dev", "/run/secrets", "/.glasshouse"}

func (s *sections) mounts(n *form.Node) {
	const field = "filesystem.mounts"
	for i, item := range s.list(n, field) {
		at := fmt.Sprintf("%s[%d]", field, i)
		var m Mount
		if !s.entries(item, at, keys{
			"host":  func(n *form.Node) { m.Host = s.within(n, at+".host") },
			"guest": func(n *form.Node) { m.Guest = s.guest(n, at+".guest") },
			"mode":  func(n *form.Node) { m.Write = s.oneOf(n, at+".mode", "ro", "rw") == "rw" },
		}) {
			continue
		}
		for _, key := range []string{"host", "guest"} {
			if !hasKey(item, key) {
				s.problem(item, at+"."+key, "is required")
			}
		}
		if m.Guest != "" && slices.ContainsFunc(s.c.Filesystem.Mounts, func(o Mount) bool { return o.Guest == m.Guest }) {
			s.problem(item, at+".guest", "duplicate mount at %s", m.Guest)
		}
		s.c.Filesystem.Mounts = append(s.c.Filesystem.Mounts, m)
	}
}

func (s *sections) guest(n *form.Node, field string) string {
	p := s.absolute(n, field)
	if p == "" {
		return ""
	}
	if slices.ContainsFunc(reserved, func(r string) bool { return under(p, r) || under(r, p) }) {
		s.problem(n, field, "%s is reserved: choose another mount point", p)
		return ""
	}
	return p
}

// under reports whether p is dir or a path below it.
func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") || dir == "."
}

func hasKey(n *form.Node, key string) bool {
	for i := 0; i < len(n.Items); i += 2 {
		if n.Items[i].Atom == form.Value(form.Keyword(key)) {
			return true
		}
	}
	return false
}
