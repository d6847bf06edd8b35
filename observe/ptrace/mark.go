package ptrace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/internal/atomicfile"
)

// markName is a file in a jail's directory that says which init was watched. A
// daemon that finds it there with the same init has missed something.
const markName = "ptrace"

// identify names a process so that no other is ever named the same.
func identify(pid int) (string, error) {
	st, err := readStat(pid, "stat")
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d\n", strings.TrimSpace(string(boot)), pid, st.start), nil
}

// watched reports whether the init was watched before.
func watched(dir, init string) bool {
	if dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, markName))
	return err == nil && string(b) == init
}

func mark(dir, init string) error {
	if dir == "" {
		return nil
	}
	return atomicfile.Write(filepath.Join(dir, markName), []byte(init), 0o600)
}

func unmark(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, markName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
