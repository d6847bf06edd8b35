package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const seccompRemedy = "use a kernel with CONFIG_SECCOMP_FILTER"

// actionAvailable returns an error if the kernel does not support a filter action
// (SECCOMP_GET_ACTION_AVAIL of seccomp(2)).
func actionAvailable(action uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	if errno != 0 {
		return errno
	}
	return nil
}

func seccomp(context.Context, Host) (string, error) {
	for _, action := range []uint32{unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_ALLOW} {
		if err := actionAvailable(action); err != nil {
			return "", refused("seccomp filters", err, seccompRemedy)
		}
	}
	return "", nil
}

func seccompNotify(context.Context, Host) (string, error) {
	return "", refused("seccomp user notification", actionAvailable(unix.SECCOMP_RET_USER_NOTIF), "use Linux 5.0 or later")
}

func landlock(context.Context, Host) (string, error) {
	// With this flag the call returns the ABI and creates no ruleset
	// (landlock_create_ruleset(2)).
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return "", refused("Landlock", errno, "boot with landlock in the lsm= list, on a kernel with CONFIG_SECURITY_LANDLOCK")
	}
	return "ABI " + strconv.Itoa(int(abi)), nil
}

// fanotify marks the filesystem of the data directory, which will contain the jails' files.
func fanotify(_ context.Context, h Host) (string, error) {
	const remedy = "use Linux 5.9 or later with CONFIG_FANOTIFY, and give the daemon CAP_SYS_ADMIN"
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_REPORT_DFID_NAME, unix.O_RDONLY)
	if err != nil {
		return "", refused("fanotify with file names", err, remedy)
	}
	defer unix.Close(fd)
	err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_DELETE_SELF, unix.AT_FDCWD, h.Data)
	return "on " + filesystem(h.Data), refused("fanotify on a whole filesystem", err, remedy)
}

func userfaultfd(context.Context, Host) (string, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return "", refused("userfaultfd", errno, "sysctl -w vm.unprivileged_userfaultfd=1, on a kernel with CONFIG_USERFAULTFD")
	}
	unix.Close(int(fd))
	// With 0 callers need CAP_SYS_PTRACE in the initial user namespace (userfaultfd(2)).
	if v, err := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd"); err == nil && len(v) > 0 && v[0] == '0' {
		return "for root only: large jails are branched after all their memory is loaded; with sysctl -w vm.unprivileged_userfaultfd=1, before. Jails themselves cannot use it", nil
	}
	return "", nil
}

func kvm(context.Context, Host) (string, error) {
	const remedy = "on a physical machine: enable virtualization in the firmware and run modprobe kvm; on a virtual machine: enable nested virtualization on its host"
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENXIO, unix.ENODEV:
		return "", cannot("/dev/kvm does not exist", remedy)
	case unix.EACCES, unix.EPERM:
		return "", cannot("this user has no permission to open /dev/kvm", "add the user to the group kvm: usermod -aG kvm USER")
	default:
		return "", fmt.Errorf("open /dev/kvm: %w", err)
	}
	defer unix.Close(fd)
	const getAPIVersion = 0xAE00 // KVM_GET_API_VERSION of linux/kvm.h: _IO(0xAE, 0x00)
	v, err := unix.IoctlRetInt(fd, getAPIVersion)
	if err != nil {
		return "", fmt.Errorf("ask KVM for its version: %w", err)
	}
	detail, err := kvmKind("/sys/module", "API "+strconv.Itoa(v))
	if err != nil {
		return "", err
	}
	switch err := bootGuest(fd, guestTimeout); {
	case errors.Is(err, errors.ErrUnsupported):
		return detail + "; no guest was started to test it", nil
	case err != nil:
		return "", cannot(fmt.Sprintf("%s, but a guest in 64-bit mode does not work: %v", detail, err), remedy)
	}
	return detail + "; guests in 64-bit mode work", nil
}

// guestTimeout limits the time of the guest that tests KVM. It takes milliseconds.
const guestTimeout = 2 * time.Second

// kvmKind distinguishes PVM from hardware-assisted KVM. PVM implements /dev/kvm on a machine
// without nested virtualization. Its guests need a kernel that was built for PVM
// (CONFIG_PVM_GUEST of the patches at github.com/virt-pvm/linux). Other guests hang.
func kvmKind(modules, detail string) (string, error) {
	if _, err := os.Stat(filepath.Join(modules, "kvm_pvm")); err == nil {
		return "", cannot("/dev/kvm is PVM, on which only guests with a kernel built for PVM boot",
			"enable nested virtualization on the host of this machine")
	}
	return detail, nil
}

// KVM returns nil if guests can run with KVM, or a fault.Unsupported error with reason and remedy.
func KVM(ctx context.Context) error {
	_, err := kvm(ctx, Host{})
	return err
}
