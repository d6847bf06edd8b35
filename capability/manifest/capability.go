package manifest

import (
	"maps"
	"slices"

	"glasshouse/capability/rtfs/form"
)

// noVersion is the version of a manifest without one.
const noVersion = "0.0.0"

// capability parses a manifest of alternating keys and values.
func (r *reader) capability(all, id *form.Node, items []*form.Node) *Capability {
	c := &Capability{
		Version:    noVersion,
		Filesystem: Filesystem{Mode: Ephemeral},
		Network:    Network{Mode: ModeNone},
		Approval:   Approval{Tier: Standard},
		Source:     r.source(all),
	}
	s := &sections{reader: r, c: c, at: map[string]*form.Node{}}
	for i := 0; i+1 < len(items); i += 2 {
		if k, ok := items[i].Atom.(form.Keyword); ok {
			s.at[string(k)] = items[i+1]
		}
	}
	s.at[""] = all

	if c.ID = r.str(id, "capability"); c.ID != "" {
		if err := CheckID(c.ID); err != nil {
			r.problem(id, "capability", "%v", err)
		}
	}
	r.bare(all)
	r.pairs(items, "", s.keys())
	s.interim()
	s.agree()
	return c
}

// sections parses the keys of one manifest.
type sections struct {
	*reader
	c  *Capability
	at map[string]*form.Node // node of each key's value; "" is the manifest
}

func (s *sections) keys() keys {
	c := s.c
	return keys{
		"description":        func(n *form.Node) { c.Description = s.description(n, "description") },
		"version":            s.version,
		"input-schema":       func(n *form.Node) { c.Input = s.schema(n, "input-schema") },
		"output-schema":      func(n *form.Node) { c.Output = s.schema(n, "output-schema") },
		"effects":            s.effects,
		"runtime":            s.runtime,
		"implementation":     s.implementation,
		"filesystem":         s.filesystem,
		"network":            s.network,
		"egress":             s.egress,
		"secrets":            func(n *form.Node) { c.Secrets = s.set(n, "secrets", s.secret) },
		"resources":          s.resources,
		"resource-estimates": s.estimates,
		"approval":           s.approval,
		"data-classes":       s.dataClasses,
		"declassifier":       func(n *form.Node) { c.DataClasses.Declassifies = s.flag(n, "declassifier") },
		"metadata":           s.metadata,
	}
}

func (s *sections) version(n *form.Node) {
	v := s.str(n, "version")
	if v != "" && !ValidVersion(v) {
		s.problem(n, "version", "%.64q is not a semantic version such as 1.0.0", v)
		return
	}
	s.c.Version = v
}

// Effects are the effects that a capability can declare.
var Effects = []string{"network", "fs", "state", "secrets", "exec"}

func (s *sections) effects(n *form.Node) {
	s.c.Effects = s.set(n, "effects", func(n *form.Node, field string) string {
		return s.oneOf(n, field, Effects...)
	})
}

func (s *sections) approval(n *form.Node) {
	a := &s.c.Approval
	s.entries(n, "approval", keys{
		"tier": func(n *form.Node) {
			a.Tier = Tier(s.oneOf(n, "approval.tier", string(Preapproved), string(Standard), string(Elevated)))
		},
		"requires-per-use": func(n *form.Node) { a.PerUse = s.flag(n, "approval.requires-per-use") },
	})
}

// Upper bounds of requested resources. They catch mistakes; the host's limits are set by its
// operator.
const (
	maxMegabytes = 1 << 20
	maxBytes     = 1 << 50
	dayMS        = 24 * 60 * 60 * 1000
)

func (s *sections) resources(n *form.Node) {
	l := &s.c.Resources
	s.entries(n, "resources", keys{
		"cpu-shares":    func(n *form.Node) { l.CPUShares = int(s.integer(n, "resources.cpu-shares", 2, 262144)) },
		"memory-mb":     func(n *form.Node) { l.MemoryMB = int(s.integer(n, "resources.memory-mb", 1, maxMegabytes)) },
		"timeout-ms":    func(n *form.Node) { l.Timeout = s.millis(n, "resources.timeout-ms") },
		"network-bytes": func(n *form.Node) { l.NetworkBytes = s.integer(n, "resources.network-bytes", 1, maxBytes) },
		"pids":          func(n *form.Node) { l.PIDs = int(s.integer(n, "resources.pids", 1, 1<<22)) },
	})
}

// Dimensions are the dimensions of cost estimates, as in budgets.
var Dimensions = []string{"steps", "wall-clock-ms", "sandbox-cpu-ms", "network-bytes", "storage-bytes", "llm-tokens", "cost-micros"}

func (s *sections) estimates(n *form.Node) {
	known := keys{}
	for _, name := range Dimensions {
		known[name] = func(n *form.Node) { s.estimate(n, name) }
	}
	s.c.Estimates = map[string]Estimate{}
	s.entries(n, "resource-estimates", known)
	if len(s.c.Estimates) == 0 {
		s.c.Estimates = nil
	}
}

func (s *sections) estimate(n *form.Node, name string) {
	field := "resource-estimates." + name
	if n.Kind == form.AtomNode && n.Atom == nil {
		return // not applicable
	}
	if n.Kind != form.VectorNode || len(n.Items) != 2 {
		s.problem(n, field, "must be [typical worst], two integers, or nil if not applicable")
		return
	}
	before := len(s.problems)
	e := Estimate{Typical: s.integer(n.Items[0], field, 0, maxBytes), Worst: s.integer(n.Items[1], field, 0, maxBytes)}
	if e.Typical > e.Worst && len(s.problems) == before {
		s.problem(n, field, "the typical value %d exceeds the worst case %d", e.Typical, e.Worst)
	}
	s.c.Estimates[name] = e
}

func (s *sections) dataClasses(n *form.Node) {
	s.entries(n, "data-classes", keys{
		"input":  func(n *form.Node) { s.c.DataClasses.Input = s.labels(n, "data-classes.input") },
		"output": func(n *form.Node) { s.c.DataClasses.Output = s.labels(n, "data-classes.output") },
	})
}

func (s *sections) labels(n *form.Node, field string) []Label {
	var all []Label
	for _, w := range s.set(n, field, func(n *form.Node, field string) string {
		w := s.word(n, field)
		if w == "" {
			return ""
		}
		l, err := ParseLabel(w)
		if err != nil {
			s.problem(n, field, "%v", err)
		}
		return string(l)
	}) {
		all = append(all, Label(w))
	}
	return all
}

// metadata converts plain data to the same form for both syntaxes: keywords become strings.
func (s *sections) metadata(n *form.Node) {
	if n.Kind != form.MapNode {
		s.problem(n, "metadata", "must be a map, not %s", s.name(n))
		return
	}
	s.c.Metadata = map[string]form.Value{}
	for i := 0; i+1 < len(n.Items); i += 2 {
		key, ok := s.plainKey(n.Items[i], "metadata")
		if !ok {
			continue
		}
		if _, twice := s.c.Metadata[key]; twice {
			s.problem(n.Items[i], join("metadata", key), "duplicate key")
		}
		s.c.Metadata[key] = s.plain(n.Items[i+1], join("metadata", key))
		s.at[join("metadata", key)] = n.Items[i+1]
	}
}

func (s *sections) plainKey(n *form.Node, field string) (string, bool) {
	switch k := n.Atom.(type) {
	case form.Keyword:
		return string(k), true
	case string:
		if n.Kind == form.AtomNode {
			return k, true
		}
	}
	s.problem(n, field, "a key must be a keyword or a string, not %s", s.name(n))
	return "", false
}

func (s *sections) plain(n *form.Node, field string) form.Value {
	switch n.Kind {
	case form.VectorNode:
		all := form.Vector{}
		for _, item := range n.Items {
			all = append(all, s.plain(item, field))
		}
		return all
	case form.MapNode:
		m := map[string]form.Value{}
		for i := 0; i+1 < len(n.Items); i += 2 {
			key, ok := s.plainKey(n.Items[i], field)
			if !ok {
				continue
			}
			if _, twice := m[key]; twice {
				s.problem(n.Items[i], join(field, key), "duplicate key")
			}
			m[key] = s.plain(n.Items[i+1], join(field, key))
		}
		var pairs []form.Value
		for _, key := range slices.Sorted(maps.Keys(m)) {
			pairs = append(pairs, key, m[key])
		}
		return form.NewMap(pairs...)
	case form.AtomNode:
		switch v := n.Atom.(type) {
		case nil, bool, int64, float64, string:
			return v
		case form.Keyword:
			return string(v)
		case form.Resource:
			return string(v)
		}
	}
	s.problem(n, field, "must be plain data, not %s", s.name(n))
	return nil
}
