package snapshot

import (
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// Check returns nil, or a fault.Invalid error that names the first invalid field.
func (o TakeOptions) Check() error {
	const op = "snapshot.Take"
	if len(o.Name) > 128 || strings.ContainsFunc(o.Name, func(r rune) bool { return r < ' ' }) {
		return fault.Fieldf(op, "name", "must be at most 128 bytes without control characters")
	}
	if len(o.Labels) > 64 {
		return fault.Fieldf(op, "labels", "%d labels exceed the maximum of 64", len(o.Labels))
	}
	switch o.Layering {
	case "", jail.Copied, jail.Stacked:
		return nil
	}
	return fault.Fieldf(op, "layering", "%q is neither %q nor %q", o.Layering, jail.Copied, jail.Stacked)
}

// reserveName reserves the name of a new snapshot. It returns fault.Conflict if a snapshot has or
// gets the name. The caller calls releaseName when the snapshot is listed, or was not taken.
func (ss *snapshots) reserveName(name string) error {
	if name == "" {
		return nil
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.reserved[name] {
		return jail.NameTaken("snapshot.Take", "snapshot", "", name)
	}
	for sid, s := range ss.all {
		if s.Name == name {
			return jail.NameTaken("snapshot.Take", "snapshot", string(sid), name)
		}
	}
	ss.reserved[name] = true
	return nil
}

func (ss *snapshots) releaseName(name string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.reserved, name)
}

// newest returns the time of the last snapshot of a jail, or the zero time.
func (ss *snapshots) newest(j id.Jail) (last time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.all {
		if s.Jail.ID == j && s.Created.After(last) {
			last = s.Created
		}
	}
	return last
}

// LastOf returns the last snapshot in the history of a jail: the last that was taken of it,
// or the one that it was created from or rewound to. It returns "" if there is no such
// snapshot.
func (ss *snapshots) LastOf(jid id.Jail) id.Snapshot {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.last[jid]
}

// Spares returns the number of frozen spares of a snapshot.
func (ss *snapshots) Spares(sid id.Snapshot) int { return ss.cfg.Jails.Copies(sid) }
