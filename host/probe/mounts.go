package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/host/disk"
	"glasshouse/host/overlay"
)

func idmappedOverlay(_ context.Context, h Host) (string, error) { return "", overlay.ProbeIn(h.Data) }

func sizedDisks(context.Context, Host) (string, error) {
	return "ext4 images through loop devices", disk.Probe()
}

// userOverlay mounts an overlay in a user namespace of an ordinary user, which copy-on-write
// workspaces under bubblewrap need.
func userOverlay(ctx context.Context, h Host) (string, error) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return "", fmt.Errorf("find the program unshare: %w", err)
	}
	return scratch(h.Data, func(dir string) (string, error) {
		for _, d := range []string{"l", "u", "w", "m"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				return "", err
			}
		}
		cmd := exec.CommandContext(ctx, unshare, "--user", "--map-root-user", "--mount",
			"mount", "-t", "overlay", "overlay", "-o", "userxattr,lowerdir=l,upperdir=u,workdir=w", "m")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if _, ended := errors.AsType[*exec.ExitError](err); ended && ctx.Err() == nil {
			return "", cannot("an overlay cannot be mounted in a user namespace: "+strings.TrimSpace(string(out)),
				"use Linux 5.11 or later with overlayfs (modprobe overlay), a data directory that is not on an overlay, and enable user namespaces")
		}
		return "", err
	})
}

// idmappedMounts maps the ids of the data directory's filesystem in a detached mount, which ends
// with its descriptor.
func idmappedMounts(_ context.Context, h Host) (string, error) {
	kind := filesystem(h.Data)
	if os.Geteuid() != 0 {
		return "", cannot("mapping the ids of a mount needs root", "run the daemon as root")
	}
	ids, err := overlay.IDMapFD(100_000, 65_536)
	if err != nil {
		return "", refused("user namespace with mapped ids", err, userNSRemedy)
	}
	defer ids.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, h.Data, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return "", refused("copies of mounts", err, "use Linux 5.12 or later, and give the daemon CAP_SYS_ADMIN")
	}
	defer unix.Close(tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ids.Fd()),
	})
	return kind, refused("id maps on "+kind, err, "put the data directory on ext4, xfs or btrfs")
}

// filesystem returns the type of the filesystem of dir.
func filesystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "this filesystem"
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.F2FS_SUPER_MAGIC: "f2fs",
		unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs", unix.FUSE_SUPER_MAGIC: "fuse",
	}
	if name := names[int64(st.Type)]; name != "" {
		return name
	}
	return fmt.Sprintf("filesystem type %#x", st.Type)
}

// reflinks clones a file. With reflinks branches of snapshots share unchanged blocks.
func reflinks(_ context.Context, h Host) (string, error) {
	return scratch(h.Data, func(dir string) (string, error) {
		from := filepath.Join(dir, "a")
		if err := os.WriteFile(from, make([]byte, 4096), 0o600); err != nil {
			return "", err
		}
		src, err := os.Open(from)
		if err != nil {
			return "", err
		}
		defer src.Close()
		dst, err := os.Create(filepath.Join(dir, "b"))
		if err != nil {
			return "", err
		}
		defer dst.Close()
		err = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
		kind := filesystem(dir)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EXDEV) {
			return "", cannot("this "+kind+" cannot share blocks between files, so branches are full copies", "put the data directory on xfs or btrfs if branches are large")
		}
		return kind, err
	})
}

// projectQuotas queries the state of project quotas on the data directory's filesystem. Nothing
// depends on them: sized disks are used instead.
func projectQuotas(_ context.Context, h Host) (string, error) {
	dir, err := os.Open(h.Data)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	const (
		getInfo  = 0x800005 // Q_GETINFO of linux/quota.h
		projects = 2        // PRJQUOTA
	)
	var info [3]uint64 // struct if_dqinfo: three words, the last one with two fields
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), getInfo<<8|projects, 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	kind, remedy := filesystem(h.Data), "no action is needed: jails have sized disks; mount with prjquota to enable quotas"
	switch errno {
	case 0:
		return kind, nil
	case unix.ESRCH, unix.ENOSYS, unix.EINVAL, unix.ENOTBLK, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENODEV:
		return "", cannot("project quotas are disabled on this "+kind+", or the kernel does not support them", remedy)
	}
	return "", refused("quota state", errno, remedy)
}
