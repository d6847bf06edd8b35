package e2b

import (
	"cmp"
	"context"
	"runtime"
	"strings"

	"glasshouse/e2b/interpreter"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A Template is what sandboxes are made from: a root filesystem, or a snapshot.
type Template struct {
	ID       string
	Alias    string // as it was asked for by, if that is not the id
	Rootfs   jail.Rootfs
	Snapshot id.Snapshot  // if not "", in place of Rootfs
	Mounts   []jail.Mount // of Snapshot
	Env      map[string]string
	User     string // of commands that name none; "" is user
	Dir      string // of commands; "" is the user's home
	CPU      int    // 0 and so below: as the template base has
	MemoryMB int64
	DiskMB   int64
	Start    string // a command that is begun in each sandbox; what Snapshot has running needs none

	// Files is a snapshot of files alone on which volumes can be mounted; "" is none. A
	// sandbox that has some is made of it, in place of Snapshot, and begins with Begin.
	Files id.Snapshot
	Begin string
}

// Templates finds templates that others made. It returns fault.NotFound for one that a
// team does not have.
type Templates interface {
	Find(ctx context.Context, team id.Token, ref string) (Template, error)
}

// Base is the template of sandboxes that name none.
const Base = "base"

// What the template base has.
const (
	baseMemoryMB = 1024
	baseDiskMB   = 4096
	basePIDs     = 1024
	cpuShares    = 512 // of 1024 for each of two
)

// User is who runs the commands of a sandbox that name nobody.
const User = "user"

// find returns the template of that name: base, a snapshot of the team's, or one of
// the others'.
func (s *Sandboxes) template(ctx context.Context, team id.Token, ref string) (Template, error) {
	ref = cmp.Or(ref, Base)
	if own := strings.TrimSuffix(ref, ":"+defaultTag); own == Base || own == interpreter.Template {
		return Template{ID: own, Alias: own, Rootfs: jail.Rootfs{User: User}}.whole(), nil
	}
	if snap, ok := s.snapshotNamed(ctx, team, ref); ok {
		return snap.template().whole(), nil
	}
	if s.cfg.Templates != nil {
		t, err := s.cfg.Templates.Find(ctx, team, ref)
		return t.whole(), err
	}
	return Template{}, fault.Newf(fault.NotFound, "e2b", ref, "template '%.200s' not found", ref)
}

// whole fills in what the template base has.
func (t Template) whole() Template {
	if t.CPU == 0 {
		t.CPU = min(2, runtime.NumCPU())
	}
	if t.MemoryMB == 0 {
		t.MemoryMB = baseMemoryMB
	}
	if t.DiskMB == 0 {
		t.DiskMB = baseDiskMB
	}
	return t
}

// limits are those of a sandbox's jail.
func (t Template) limits() jail.Limits {
	return jail.Limits{CPUShares: min(cpuShares/2*int64(t.CPU), jail.MaxLimits.CPUShares), MemoryMB: t.MemoryMB, DiskMB: t.DiskMB, MaxPIDs: basePIDs}
}
