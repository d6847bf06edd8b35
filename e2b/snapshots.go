package e2b

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/snapshot"
)

// labelEnv holds the environment variables, as JSON, for the commands of sandboxes created from
// a snapshot.
const labelEnv = "e2b.env"

// A NamedSnapshot is a snapshot that a client requested.
type NamedSnapshot struct {
	snapshot.Snapshot
}

var snapName = regexp.MustCompile(`^[a-z0-9_-]{1,64}(:[A-Za-z0-9_.-]{1,64})?$`)

// Names returns the snapshot's names. The default tag is not part of a name.
func (s NamedSnapshot) Names() []string {
	if n := s.Labels[labelName]; n != "" {
		return []string{strings.TrimSuffix(n, ":"+defaultTag)}
	}
	return []string{}
}

// defaultTag is the tag of a reference without a tag.
const defaultTag = "default"

// Ref returns the template reference of the snapshot.
func (s NamedSnapshot) Ref() string { return s.name() + ":" + s.tag() }

func (s NamedSnapshot) name() string {
	name, _, _ := strings.Cut(s.Labels[labelName], ":")
	return cmp.Or(name, string(s.ID))
}

func (s NamedSnapshot) tag() string {
	_, tag, _ := strings.Cut(s.Labels[labelName], ":")
	return cmp.Or(tag, defaultTag)
}

// is reports whether a reference names the snapshot: NAME:TAG, its id, or one of these with the
// id of its build. A reference without a tag refers to the default tag.
func (s NamedSnapshot) is(ref string) bool {
	name, tag, _ := strings.Cut(ref, ":")
	tag = cmp.Or(tag, defaultTag)
	build := strings.EqualFold(tag, s.build())
	return name == string(s.ID) && (tag == defaultTag || build) || name == s.name() && (tag == s.tag() || build)
}

// build returns a UUID for the snapshot, which clients use as the build id of a template. A
// snapshot's own id has another format.
func (s NamedSnapshot) build() string {
	sum := sha256.Sum256([]byte(s.ID))
	return UUID([16]byte(sum[:16]))
}

// UUID returns random bits as a UUID of version 4 (RFC 9562, section 5.4).
func UUID(b [16]byte) string {
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

func (s NamedSnapshot) template() Template {
	of := s.Jail.Spec
	t := Template{ID: string(s.ID), Snapshot: s.ID, Mounts: of.Mounts, CPU: int(max(1, of.Limits.CPUShares/(cpuShares/2))), MemoryMB: of.Limits.MemoryMB, DiskMB: of.Limits.DiskMB}
	if n, _, _ := strings.Cut(s.Labels[labelName], ":"); n != "" {
		t.Alias = n
	}
	json.Unmarshal([]byte(s.Labels[labelEnv]), &t.Env) // written by this package
	return t
}

// Snapshot takes a snapshot of a running sandbox, which keeps running.
func (s *Sandboxes) Snapshot(ctx context.Context, team id.Token, sandbox, name string) (NamedSnapshot, error) {
	if name != "" && !snapName.MatchString(name) {
		return NamedSnapshot{}, invalid("invalid snapshot name %q: want lower case letters, digits, - and _, and a tag after a colon", short(name))
	}
	if name != "" && !strings.Contains(name, ":") {
		name += ":" + defaultTag
	}
	c, err := s.find(team, sandbox)
	if err != nil {
		return NamedSnapshot{}, err
	}
	var taken snapshot.Snapshot
	err = s.change(ctx, c, func(ctx context.Context, b Sandbox) error {
		if b.State != Running {
			return notRunning(sandbox)
		}
		env, err := json.Marshal(b.Env)
		if err != nil {
			return fmt.Errorf("encode the environment of the sandbox: %w", err)
		}
		labels := map[string]string{labelTeam: string(team), LabelSandbox: b.ID, labelEnv: string(env)}
		if name != "" {
			labels[labelName] = name
		}
		taken, err = s.cfg.Snapshots.Take(ctx, b.Jail, snapshot.TakeOptions{Labels: labels})
		return err
	})
	return NamedSnapshot{taken}, err
}

// snapshots returns the snapshots that a team requested, newest first.
func (s *Sandboxes) snapshots(ctx context.Context, team id.Token) ([]NamedSnapshot, error) {
	all, err := s.allSnapshots(ctx)
	return slices.DeleteFunc(all, func(n NamedSnapshot) bool { return n.Labels[labelTeam] != string(team) }), err
}

// allSnapshots returns the snapshots that all teams requested, newest first.
func (s *Sandboxes) allSnapshots(ctx context.Context) ([]NamedSnapshot, error) {
	all, err := s.cfg.Snapshots.List(ctx, snapshot.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the named snapshots: %w", err)
	}
	var named []NamedSnapshot
	for _, snap := range slices.Backward(all) {
		if snap.Labels[labelTeam] != "" {
			named = append(named, NamedSnapshot{snap})
		}
	}
	return named, nil
}

// snapshotNamed returns a team's newest snapshot with that id or name.
func (s *Sandboxes) snapshotNamed(ctx context.Context, team id.Token, ref string) (NamedSnapshot, bool) {
	own, err := s.snapshots(ctx, team)
	if err != nil {
		return NamedSnapshot{}, false
	}
	i := slices.IndexFunc(own, func(snap NamedSnapshot) bool { return snap.is(ref) })
	if i < 0 {
		return NamedSnapshot{}, false
	}
	return own[i], true
}

// DeleteSnapshot removes a snapshot, or all snapshots of a name. It returns fault.NotFound if
// none exists.
func (s *Sandboxes) DeleteSnapshot(ctx context.Context, team id.Token, ref string) error {
	for found := false; ; found = true {
		snap, ok := s.snapshotNamed(ctx, team, ref)
		switch {
		case !ok && found:
			return nil
		case !ok:
			return fault.Newf(fault.NotFound, "e2b.DeleteSnapshot", ref, "template '%s' not found", short(ref))
		}
		if err := s.cfg.Snapshots.Delete(ctx, snap.ID); err != nil && !errors.Is(err, fault.NotFound) {
			return fmt.Errorf("delete snapshot %s: %w", snap.ID, err)
		}
	}
}
