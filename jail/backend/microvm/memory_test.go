package microvm

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A memory stays open as long as it has a user, whatever the others do, and for a while afterwards.
func TestMemoryIsKeptForItsUsers(t *testing.T) {
	const size = 1 << 20
	image := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(image, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var r rams
		first, firstDone, err := r.get(image, size)
		if err != nil {
			t.Fatal(err)
		}
		second, secondDone, err := r.get(image, size)
		if err != nil {
			t.Fatal(err)
		}
		if first != second {
			t.Error("two users got different files, want one")
		}
		firstDone()
		firstDone() // as if a machine has started and its function ends
		time.Sleep(2 * keepRAM)
		synctest.Wait()
		if _, err := second.Stat(); err != nil {
			t.Errorf("the file is closed for its other user: %v", err)
		}
		secondDone()
		time.Sleep(2 * keepRAM)
		synctest.Wait()
		if _, err := second.Stat(); err == nil {
			t.Error("the file is open without a user")
		}
	})
}

// TestNotesOfEarlierSnapshots checks that the version of QEMU is known, and so is compared.
func TestNotesOfEarlierSnapshots(t *testing.T) {
	for text, want := range map[string]string{`{"qemu": "7.2.22"}`: "QEMU 7.2.22", `{"monitor": "Firecracker 1.12.0"}`: "Firecracker 1.12.0"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, notesFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := readNotes(dir); err != nil || n.Monitor != want {
			t.Errorf("monitor in %s = %q, %v, want %q", text, n.Monitor, err, want)
		}
	}
}
