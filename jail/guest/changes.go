package guest

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

// changes lists the changes in the writable layer, or those between another one and it. The layers are
// those with the ids of the jail, because files of the lowest layer have no others.
func (a *agent) changes(ctx context.Context, q wire.Changes) ([]jail.Change, error) {
	b, err := a.running()
	if err != nil {
		return nil, err
	}
	lower, upper := lowerLayers(len(b.setup.Layers)), "/upper"
	if q.Workspace {
		if b.setup.Workspace == "" {
			return nil, fault.Newf(fault.Conflict, "guest.changes", "", "the jail has no workspace")
		}
		lower, upper = []string{workspaceDir}, "/ws-upper"
	}
	was, now := overlay.Stack{Base: lower}, overlay.Stack{Base: lower, Layers: []string{writableDir + upper}}
	if q.Other {
		if b.setup.Other == "" {
			return nil, fault.Newf(fault.Conflict, "guest.changes", "", "the machine has no disk to compare with")
		}
		was.Layers = []string{otherDir + upper}
	}
	// Without memory the kernel would end processes of the jail.
	var system unix.Sysinfo_t
	if err := unix.Sysinfo(&system); err != nil {
		return nil, os.NewSyscallError("sysinfo", err)
	}
	const least = 8 << 20 // the kernel can free as much
	memory := max(least, int64(system.Freeram)*int64(system.Unit)/2)
	found, err := overlay.Compare(ctx, was, now, overlay.DiffOptions{Owners: !q.Workspace, Below: q.Below, Text: q.Text, After: q.After, Memory: memory})
	if err != nil {
		return nil, err
	}
	changes := make([]jail.Change, 0, len(found))
	for _, c := range found {
		changes = append(changes, jail.Change(c))
	}
	return changes, nil
}
