package guest

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// Paths of the workspace.
const (
	workspaceDisk = "/run/workspace"        // the disk with the files
	workspaceDir  = stackDir + "/workspace" // the same files, with the ids of the jail
)

// mountWorkspace mounts an overlay of the writable disk over that with the workspace.
func mountWorkspace(target string) error {
	if err := mountDisk(wire.WorkspaceDisk, workspaceDisk, unix.MS_RDONLY, "noload"); err != nil {
		return err
	}
	const source = workspaceDisk + "/" + wire.WorkspaceRoot
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		return &os.PathError{Op: "stat", Path: source, Err: err}
	}
	idmap, err := base.WorkspaceIDMap(&st, ids)
	if err != nil {
		return err
	}
	defer idmap.Close()
	if err := os.MkdirAll(workspaceDir, 0o755); err != nil {
		return err
	}
	readOnly := base.NoPrivilege
	readOnly.ReadOnly = true
	if err := overlay.Clone(source, workspaceDir, overlay.CloneOptions{Options: readOnly, IDMap: idmap}); err != nil {
		return err
	}
	// An overlay has the mode of its upper layer.
	if err := unix.Chmod(volumeDir+"/ws-upper", st.Mode&0o7777); err != nil {
		return err
	}
	at, err := base.MountPoint("guest.setup", rootDir, target, true, ids.First)
	if err != nil {
		return fmt.Errorf("prepare the mount point %s: %w", target, err)
	}
	if err := jail.CheckTarget(at); err != nil {
		return fmt.Errorf("%s resolves to %s: %w", target, at, err)
	}
	return overlay.Mount(rootDir+at, []string{workspaceDir}, writableDir+"/ws-upper", writableDir+"/ws-work", base.NoPrivilege)
}
