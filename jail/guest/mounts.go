package guest

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
	"glasshouse/jail/guest/wire"
)

// mountsDir has the disks with copies of files of the host.
const mountsDir = "/run/mounts"

// mountCopy mounts a disk with a copy of a file or directory of the host in the root of the jail,
// which does not run yet. Its files have the owners in the jail that they have on the host.
func mountCopy(m wire.Mount, idmap *os.File) error {
	from := filepath.Join(mountsDir, m.Disk)
	if err := mountDisk(m.Disk, from, unix.MS_RDONLY, "noload"); err != nil {
		return err
	}
	if m.File {
		from = filepath.Join(from, wire.MountedFile)
	}
	const op = "guest.setup"
	real, err := base.MountPoint(op, rootDir, m.Target, !m.File, ids.First)
	if err != nil {
		return err
	}
	// The daemon has seen only the name, but a symbolic link can lead to a reserved path.
	if err := jail.CheckTarget(real); err != nil {
		return fault.Newf(fault.Invalid, op, m.Target, "it resolves to %s: %w", real, err)
	}
	options := base.NoPrivilege
	options.ReadOnly = true
	return overlay.Clone(from, filepath.Join(rootDir, real), overlay.CloneOptions{IDMap: idmap, Options: options})
}
