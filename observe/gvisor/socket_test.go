package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

func TestAcceptRejectsOtherProcesses(t *testing.T) {
	// Longer than sun_path (unix(7)).
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d, err := openEndpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(d.path)
	if err != nil || st.Mode() != os.ModeDir|0o700 {
		t.Errorf("the socket's directory is %v, %v", st.Mode(), err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	here, err := os.Open(d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + itoa(int32(here.Fd())) + "/" + endpointName}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.accept(t.Context(), 1); !errors.Is(err, fault.Denied) {
		t.Errorf("connection of another process: %v, want denied", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(d.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's directory still exists: %v", err)
	}
}

func TestAcceptCancelled(t *testing.T) {
	d, err := openEndpoint(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.accept(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("accept = %v, want canceled", err)
	}
}
