package microvm

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/jail"
)

// ThawProcess lets QEMU run, but not the processors of its machine.
func ThawProcess(t *testing.T, i jail.Instance) {
	t.Helper()
	if err := i.(*instance).group.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// PrivateMemory returns the size of the memory that a machine does not share with others.
func PrivateMemory(t *testing.T, i jail.Instance) (bytes int64) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", i.PID()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ours := false
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, _, _ := strings.Cut(s.Text(), " "); strings.Contains(name, "-") { // a range of addresses
			ours = strings.Contains(s.Text(), "/memfd:"+ramName)
		}
		var kib int64
		if _, err := fmt.Sscanf(s.Text(), "Anonymous: %d kB", &kib); err == nil && ours {
			bytes += kib << 10
		}
	}
	return bytes
}

// SetReaderIdle sets the time after which an unused machine that serves files ends.
func SetReaderIdle(b *Backend, d time.Duration) { b.readerIdle = d }

// UnpackKernel is unpackKernel for tests.
var UnpackKernel = unpackKernel

// MigrationParameter returns a parameter of the QEMU of a jail.
func MigrationParameter(ctx context.Context, i jail.Instance, name string) (value any, err error) {
	err = i.(*instance).withMonitor(ctx, func(m monitor) error {
		var all map[string]any
		err := m.(*qmp).run("query-migrate-parameters", nil, &all)
		value = all[name]
		return err
	})
	return value, err
}

// UseDouble lets the backend use a test double of Firecracker.
func UseDouble(b *Backend) { b.double = true }

// OpenFirecracker connects to the API of the Firecracker of the jail in a directory.
func OpenFirecracker(ctx context.Context, dir string) error {
	c, err := openFirecracker(ctx, layout{dir})
	if err != nil {
		return err
	}
	return c.close()
}

// DialFirecracker connects to the agent of the Firecracker of the jail in a directory.
func DialFirecracker(ctx context.Context, dir string) error {
	c, err := firecracker{}.dial(ctx, layout{dir})
	if err != nil {
		return err
	}
	return c.Close()
}

// OpenSaved opens a file that the Firecracker of the jail in a directory has saved.
func OpenSaved(dir, name string) error {
	f, err := openShared(layout{dir}, name, unix.O_RDONLY, unix.S_IFREG)
	if err != nil {
		return err
	}
	return f.Close()
}
