package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Host configures the probes. The zero value probes only the system.
type Host struct {
	Data  string // the data directory, need not exist; default: the temporary directory
	Tools string // where make up installs programs; default: tools/bin in Data

	// Limit is the timeout of one probe. The default of 30 seconds allows for a busy or
	// emulated host.
	Limit time.Duration
}

// cannot returns a conclusive negative result.
func cannot(reason, remedy string) error { return fault.Cannot("probe.All", reason, remedy) }

// refused converts errors that mean "not supported" or "not permitted" to a conclusive
// negative result. It returns other errors unchanged.
func refused(what string, err error, remedy string) error {
	switch {
	case err == nil || errors.Is(err, fault.Unsupported):
		return err
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if os.Geteuid() != 0 {
			return cannot(fmt.Sprintf("user %d has no permission to use %s: %v", os.Geteuid(), what, err), "run the daemon as root")
		}
		return cannot(fmt.Sprintf("root has no permission to use %s here: %v", what, err), remedy)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENOTTY):
		return cannot("this kernel does not support "+what+": "+err.Error(), remedy)
	}
	return fmt.Errorf("try %s: %w", what, err)
}

// scratch calls f with a temporary directory and removes it afterwards.
func scratch(in string, f func(dir string) (string, error)) (detail string, err error) {
	dir, err := os.MkdirTemp(in, ".glasshouse-probe-")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return "", cannot("this user may not write to "+in, "choose a data directory of your own with --data, or run as root")
	}
	if err != nil {
		return "", fmt.Errorf("make a test directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return f(dir)
}
