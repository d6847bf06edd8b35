package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/host/seccomp"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// confineArg makes the agent's program the process that becomes the jail's init. It is root in a new
// user namespace, and in new namespaces of each other kind.
const confineArg = "confine"

// A confinement is what that process reads from its standard input.
type confinement struct {
	Root     string `json:"root"` // with /dev, /dev/shm, /sys and /.glasshouse mounted
	Hostname string `json:"hostname"`
}

// The jail's init, as the jail sees it.
const (
	controlDir = "/.glasshouse"
	initPath   = controlDir + "/init"
)

// confine gives up everything that a jail may not have, and executes its init. It returns only an
// error.
func confine() error {
	runtime.LockOSThread() // the thread whose capabilities and filter init gets
	var c confinement
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 1<<20)).Decode(&c); err != nil {
		return fmt.Errorf("read the confinement: %w", err)
	}
	for _, step := range []func() error{
		c.mount, c.pivot, maskPaths,
		func() error { return unix.Sethostname([]byte(c.Hostname)) },
		nullStdin, limitProcess, dropCapabilities, filterCalls,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return unix.Exec(initPath, []string{initPath}, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
}

// mount mounts the kernel's file systems of the jail's own namespaces.
func (c *confinement) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	// A mount that a namespace of another user gave cannot become the root (mount_namespaces(7)).
	if err := unix.Mount(c.Root, c.Root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "bind", Path: c.Root, Err: err}
	}
	const safe = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, at, options string
		flags             uintptr
	}{
		{"proc", "/proc", "", safe | unix.MS_NODEV},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620,gid=5", safe},
		{"mqueue", "/dev/mqueue", "", safe | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.kind, filepath.Join(c.Root, m.at), m.kind, m.flags, m.options); err != nil {
			return &os.PathError{Op: "mount " + m.kind, Path: m.at, Err: err}
		}
	}
	return nil
}

// pivot makes the jail's root that of this process, and unmounts the rest.
func (c *confinement) pivot() error {
	if err := os.Chdir(c.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // stacks the old root on the new one (pivot_root(2))
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the root of the machine: %w", err)
	}
	return os.Chdir("/")
}

// maskPaths hides paths of the kernel, and makes others read-only.
func maskPaths() error {
	for _, path := range base.Masked {
		st, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && st.IsDir() {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0")
		} else if err == nil {
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return &os.PathError{Op: "mask", Path: path, Err: err}
		}
	}
	for _, path := range base.ReadOnly {
		err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
		if err == nil {
			err = unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return &os.PathError{Op: "make read-only", Path: path, Err: err}
		}
	}
	return nil
}

// nullStdin replaces the standard streams by /dev/null of the jail, and marks all other descriptors
// as close-on-exec.
func nullStdin() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	for stream := range 3 {
		if err := unix.Dup2(fd, stream); err != nil {
			return fmt.Errorf("replace the standard streams: %w", err)
		}
	}
	return unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}

// limitProcess sets the resource limits of the jail's processes.
func limitProcess() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(jail.InitOOMScore)), 0); err != nil {
		return err
	}
	for resource, limit := range map[int]uint64{syscall.RLIMIT_NOFILE: base.MaxFiles, syscall.RLIMIT_CORE: 0} {
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", resource, err)
		}
	}
	return nil
}

// dropCapabilities leaves the thread the capabilities with which init starts.
func dropCapabilities() error {
	keep := base.InitNumbers()
	if err := base.DropBounding(keep); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for _, c := range keep {
		sets[c/32].Permitted |= 1 << (c % 32)
		sets[c/32].Effective |= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// filterCalls installs the filter for system calls.
func filterCalls() error {
	code, err := seccomp.BPF(runtime.GOARCH)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(code)/int(unsafe.Sizeof(unix.SockFilter{})))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), len(code)), code)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("install the filter for system calls: %w", errno)
	}
	return nil
}
