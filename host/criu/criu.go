// Package criu writes the processes of a jail to files and makes them again
// from there, with CRIU.
//
// CRIU is driven through its worker mode, one process an operation: it has to be
// started inside the network namespace of the jail, which is the host's and so
// is neither written down nor made again, and for a restore inside the jail's
// cgroup. What is the jail's own (user ids, processes, mounts, host name, System
// V objects) is in the images; what the host lends it (its root, its directory
// of devices, mounted directories) is named on both sides and may be another one
// at every restore.
//
// The package keeps no state but a cache of what CRIU found out about the kernel.
package criu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
	"glasshouse/internal/thread"
)

// A Tool is CRIU as this host has it. It is safe for concurrent use.
type Tool struct {
	path string
	dir  string
}

// New returns the CRIU at path, which keeps a cache file in the directory dir, or
// none if dir is "". It touches nothing.
func New(path, dir string) *Tool {
	return &Tool{path, dir}
}

// Probe returns nil if CRIU is installed and fits this kernel, or a
// fault.Unsupported error with the reason.
func (t *Tool) Probe(ctx context.Context) error {
	const op = "criu.Probe"
	const remedy = "make setup, as root, which installs one that fits or fetches it; without, jails work and snapshots of memory do not"
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "writing down processes needs root", "run the daemon as root")
	}
	if _, err := exec.LookPath(t.path); err != nil {
		return fault.Cannot(op, fmt.Sprintf("%s is not installed", t.path), remedy)
	}
	if why := tooOld(ctx, t.path); why != "" {
		return fault.Cannot(op, why, remedy)
	}
	// What it finds out about the kernel takes it longer than a jail should wait:
	// it is kept, for the first jail too.
	var out []byte
	err := thread.Alone(func() (err error) {
		if err := t.ownMounts(); err != nil {
			return err
		}
		out, err = exec.CommandContext(ctx, t.path, "check").CombinedOutput()
		t.learn("/proc/thread-self")
		return err
	})
	if err != nil {
		return fault.Cannot(op, fmt.Sprintf("%s check: %v: %s", t.path, err, lastLine(string(out))), remedy)
	}
	return nil
}

// tooOld returns what the CRIU at path lacks on this kernel, or "".
func tooOld(ctx context.Context, path string) string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "" // check says more
	}
	_, version, _ := strings.Cut(string(out), "Version: ")
	version, _, _ = strings.Cut(version, "\n")
	return lacks(version, unix.ByteSliceToString(u.Release[:]))
}

// lacks returns what a release of CRIU lacks on a kernel, or "". What cannot be
// read is left to criu check. scripts/setup.sh has the same table.
func lacks(criu, kernel string) string {
	c, okC := release(criu)
	k, okK := release(kernel)
	switch {
	case !okC || !okK:
		return ""
	case c < 401:
		return fmt.Sprintf("CRIU %s is too old: 4.1 is needed", criu)
	case c >= 402:
		return ""
	case k >= 616: // it fails at every TCP and UDP socket
		return fmt.Sprintf("CRIU %s cannot dump the sockets of Linux %s: 4.2 is needed", criu, kernel)
	case k >= 611:
		// The vDSO's getrandom keeps its state in memory mapped with MAP_DROPPABLE
		// (Linux 6.11, used by glibc 2.41 and Go 1.24). CRIU before 4.2 dumps that as
		// other memory (checkpoint-restore/criu#2659), so that the branches of one
		// snapshot would draw the same random numbers.
		return fmt.Sprintf("CRIU %s copies the state of the random numbers of Linux %s into every branch: 4.2 is needed", criu, kernel)
	}
	return ""
}

// release is a version's first two numbers as one: 4.2.1 is 402.
func release(version string) (int, bool) {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major*100 + minor, err == nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// runDir is where CRIU keeps its cache, and only if it is a tmpfs.
const runDir = "/run"

// ownMounts gives this thread a mount namespace of its own, in which CRIU finds
// its cache.
func (t *Tool) ownMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// What the host unmounts meanwhile goes here too; nothing goes back.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts follow the host's: %w", err)
	}
	if isMemory(runDir) {
		return nil
	}
	if err := unix.Mount("criu", runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount a tmpfs for CRIU's cache: %w", err)
	}
	known, err := os.ReadFile(t.cache())
	if err != nil {
		return nil // CRIU asks the kernel again
	}
	return os.WriteFile(filepath.Join(runDir, kdat), known, 0o600)
}

func isMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// kdat is CRIU's name for its cache.
const kdat = "criu.kdat"

// cache is where what this CRIU found out about this kernel is kept between two
// runs: another boot may be of another kernel.
func (t *Tool) cache() string {
	if t.dir == "" {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	path, err := exec.LookPath(t.path)
	if err != nil {
		return ""
	}
	fi, err := os.Stat(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Append(boot, path, fi.Size(), fi.ModTime().UnixNano()))
	return filepath.Join(t.dir, fmt.Sprintf("criu-%x.kdat", sum[:4]))
}

// learn keeps what a CRIU found out that had the mounts of the process or thread
// proc.
func (t *Tool) learn(proc string) {
	cache := t.cache()
	if _, err := os.Stat(cache); cache == "" || !errors.Is(err, os.ErrNotExist) {
		return
	}
	known, err := os.ReadFile(filepath.Join(proc, "root", runDir, kdat))
	if err != nil {
		return
	}
	stale, _ := filepath.Glob(filepath.Join(t.dir, "criu-*.kdat"))
	for _, name := range stale {
		os.Remove(name)
	}
	_ = atomicfile.Write(cache, known, 0o600) // without it the next run is slower
}
