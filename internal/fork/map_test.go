package fork_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/internal/fork"
)

func TestMappedMemoryIsNotInChildren(t *testing.T) {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	size := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(2*size)); err != nil {
		t.Fatal(err)
	}
	b, err := fork.Map(fd, int64(size), size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	b[0] = 7
	var got [1]byte
	if _, err := unix.Pread(fd, got[:], int64(size)); err != nil || got[0] != 7 {
		t.Errorf("the file has %d, %v after a write to the mapping, want 7", got[0], err)
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, mapped := strings.Cut(string(maps), "/memfd:ring")
	_, flags, _ := strings.Cut(after, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	if !mapped || !strings.Contains(flags, " dc") { // do not copy on fork: proc_pid_smaps(5)
		t.Errorf("the mapping has the flags %q, want dc", flags)
	}
	if _, err := fork.Map(-1, 0, size, unix.PROT_READ); err == nil {
		t.Error("an invalid descriptor was mapped")
	}
}
