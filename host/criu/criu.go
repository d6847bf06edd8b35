// Package criu checkpoints the processes of a jail to image files and restores them with CRIU.
//
// Each operation runs one CRIU process in worker mode (criu swrk). The worker starts inside
// the network namespace of the jail. That namespace belongs to the host, so it is neither
// checkpointed nor restored. For a restore the worker also starts inside the cgroup of the
// jail. The images contain what belongs to the jail: user ids, processes, mounts, host name
// and System V IPC objects. What the host provides (the root, the device directory, bind
// mounts) is external: it is named in the images and can differ at every restore.
//
// The package keeps no state except a cache of the kernel features that CRIU detected.
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
	"glasshouse/internal/procstat"
	"glasshouse/internal/thread"
)

// A Tool is an installed CRIU. It is safe for concurrent use.
type Tool struct {
	path string
	dir  string
}

// New returns the CRIU at path. CRIU's feature cache is kept in the directory dir, or not kept
// if dir is "". New does no I/O.
func New(path, dir string) *Tool {
	return &Tool{path, dir}
}

// Probe returns nil if CRIU is installed and works with this kernel, or a fault.Unsupported
// error with the reason.
func (t *Tool) Probe(ctx context.Context) error {
	const op = "criu.Probe"
	const remedy = "run `make setup` as root to install a suitable CRIU; without it jails work, but memory snapshots do not"
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "checkpointing processes needs root", "run the daemon as root")
	}
	if _, err := exec.LookPath(t.path); err != nil {
		return fault.Cannot(op, fmt.Sprintf("%s is not installed", t.path), remedy)
	}
	if why := checkVersion(ctx, t.path); why != "" {
		return fault.Cannot(op, why, remedy)
	}
	// The detection of kernel features is slow, so its result is cached before the first jail
	// needs it.
	var out []byte
	err := thread.Alone(func() (err error) {
		if err := t.unshareMounts(); err != nil {
			return err
		}
		out, err = t.check(ctx).CombinedOutput()
		t.saveCache("/proc/thread-self")
		return err
	})
	if err != nil {
		return fault.Cannot(op, fmt.Sprintf("%s check: %v: %s", t.path, err, lastLine(string(out))), remedy)
	}
	return nil
}

// check returns the command that checks the kernel. It ends with the calling thread, and so with a
// daemon that is killed.
//
// CRIU starts processes that wait or are stopped until it kills them. They would remain if CRIU is
// killed. Therefore CRIU is the init of its own PID namespace: the kernel kills the others with it.
func (t *Tool) check(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", t.path, "check"}, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}

// checkVersion returns why the CRIU at path does not work on this kernel, or "".
func checkVersion(ctx context.Context, path string) string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "" // criu check reports the reason
	}
	_, version, _ := strings.Cut(string(out), "Version: ")
	version, _, _ = strings.Cut(version, "\n")
	return incompatible(version, unix.ByteSliceToString(u.Release[:]))
}

// incompatible returns why a CRIU release does not work on a kernel, or "". Unknown version
// formats are left to criu check. scripts/setup.sh contains the same table.
func incompatible(criu, kernel string) string {
	c, okC := release(criu)
	k, okK := release(kernel)
	switch {
	case !okC || !okK:
		return ""
	case c < 401:
		return fmt.Sprintf("CRIU %s is too old: 4.1 is needed", criu)
	case c >= 402:
		return ""
	case k >= 616: // dumps fail at every TCP and UDP socket
		return fmt.Sprintf("CRIU %s cannot dump the sockets of Linux %s: 4.2 is needed", criu, kernel)
	case k >= 611:
		// The vDSO getrandom keeps its state in memory mapped with MAP_DROPPABLE (Linux 6.11,
		// used by glibc 2.41 and Go 1.24). CRIU before 4.2 dumps it like other memory
		// (checkpoint-restore/criu#2659), so all branches of a snapshot would draw the same
		// random numbers.
		return fmt.Sprintf("CRIU %s copies the state of the random numbers of Linux %s into every branch: 4.2 is needed", criu, kernel)
	}
	return ""
}

// release encodes the first two numbers of a version: 4.2.1 is 402.
func release(version string) (int, bool) {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major*100 + minor, err == nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// runDir is the directory of CRIU's cache. CRIU uses it only if it is a tmpfs.
const runDir = "/run"

// unshareMounts moves this thread to a new mount namespace in which CRIU finds its cache.
func (t *Tool) unshareMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	// MS_SLAVE: unmounts on the host propagate into this namespace, and nothing propagates
	// back (mount_namespaces(7)).
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts slaves of the host's: %w", err)
	}
	if isTmpfs(runDir) {
		return nil
	}
	if err := unix.Mount("criu", runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount a tmpfs for CRIU's cache: %w", err)
	}
	known, err := os.ReadFile(t.cachePath())
	if err != nil {
		return nil // CRIU detects the features again
	}
	return os.WriteFile(filepath.Join(runDir, cacheName), known, 0o600)
}

func isTmpfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// cacheName is the file name of CRIU's cache.
const cacheName = "criu.kdat"

// cachePath returns the path of the saved cache of this CRIU and this boot, because another
// boot can run another kernel. It returns "" if there is no cache.
func (t *Tool) cachePath() string {
	if t.dir == "" {
		return ""
	}
	boot, err := procstat.BootID()
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
	sum := sha256.Sum256(fmt.Append(nil, boot, path, fi.Size(), fi.ModTime().UnixNano()))
	return filepath.Join(t.dir, fmt.Sprintf("criu-%x.kdat", sum[:4]))
}

// saveCache saves the cache that a CRIU wrote in the mount namespace of the process or thread
// proc.
func (t *Tool) saveCache(proc string) {
	cache := t.cachePath()
	if _, err := os.Stat(cache); cache == "" || !errors.Is(err, os.ErrNotExist) {
		return
	}
	known, err := os.ReadFile(filepath.Join(proc, "root", runDir, cacheName))
	if err != nil {
		return
	}
	stale, _ := filepath.Glob(filepath.Join(t.dir, "criu-*.kdat"))
	for _, name := range stale {
		os.Remove(name)
	}
	_ = atomicfile.Write(cache, known, 0o600) // best effort: without it the next run is slower
}
