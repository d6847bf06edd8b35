package microvm

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

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
