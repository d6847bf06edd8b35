package secretfs

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file that is still open for writing, for example in a child process before its execve, delays
// the seal and does not prevent it.
func TestSealWaitsForWriters(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	fd, err := Namespace{}.newFilesystem()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	held, err := unix.Openat(fd, "held", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != unix.EBUSY {
		t.Fatalf("a mount with a writer was sealed: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { unix.Close(held) })
	if err := seal(fd); err != nil {
		t.Error(err)
	}
	if _, err := unix.Openat(fd, "more", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err != unix.EROFS {
		t.Errorf("a file was created in a sealed mount: %v", err)
	}
}
