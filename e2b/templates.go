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

// A Template is the origin of sandboxes: a root filesystem or a snapshot.
type Template struct {
	ID       string
	Alias    string // the requested name, if it is not the id
	Rootfs   jail.Rootfs
	Snapshot id.Snapshot  // if not "", used in place of Rootfs
	Mounts   []jail.Mount // mounts of Snapshot
	Env      map[string]string
	User     string // user of commands without a user; "" is user
	Dir      string // working directory of commands; "" is the user's home
	CPU      int    // 0, here and in the fields below: as the template base has
	MemoryMB int64
	DiskMB   int64
	Start    string // a command to start in each sandbox; not needed if Snapshot contains running processes

	// Files is a files-only snapshot on which volumes can be mounted; "" means none. A sandbox
	// with volumes is created from Files, in place of Snapshot, and starts Begin.
	Files id.Snapshot
	Begin string
}

// Templates finds built templates. It returns fault.NotFound for a template that the team does
// not have.
type Templates interface {
	Find(ctx context.Context, team id.Token, ref string) (Template, error)
}

// Base is the default template.
const Base = "base"

// Resources of the template base.
const (
	baseMemoryMB = 1024
	baseDiskMB   = 4096
	basePIDs     = 1024
	cpuShares    = 512 // two processors with a weight of 256 each
)

// User is the default user of a sandbox's commands.
const User = "user"

// template returns the template of a name: base, a snapshot of the team, or a built template.
func (s *Sandboxes) template(ctx context.Context, team id.Token, ref string) (Template, error) {
	ref = cmp.Or(ref, Base)
	if own := strings.TrimSuffix(ref, ":"+defaultTag); isBase(own) {
		return Template{ID: own, Alias: own, Rootfs: jail.Rootfs{User: User}}.withDefaults(), nil
	}
	if snap, ok := s.snapshotNamed(ctx, team, ref); ok {
		return snap.template().withDefaults(), nil
	}
	if s.cfg.Templates != nil {
		t, err := s.cfg.Templates.Find(ctx, team, ref)
		return t.withDefaults(), err
	}
	return Template{}, fault.Newf(fault.NotFound, "e2b.template", ref, "template '%.200s' not found", ref)
}

// isBase reports whether a name is that of a template that each daemon has.
func isBase(name string) bool { return name == Base || name == interpreter.Template }

// withDefaults fills in the defaults of the template base.
func (t Template) withDefaults() Template {
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

// limits returns the resource limits of a sandbox's jail.
func (t Template) limits() jail.Limits {
	return jail.Limits{CPUShares: min(cpuShares/2*int64(t.CPU), jail.MaxLimits.CPUShares), MemoryMB: t.MemoryMB, DiskMB: t.DiskMB, MaxPIDs: basePIDs}
}
