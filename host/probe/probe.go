// Package probe finds out what this host can do for jails, and what would have
// to be done about what it cannot.
//
// A probe tries the thing itself wherever that is quick and leaves nothing
// behind: it makes the namespace, loads the program, mounts the layers. It
// judges for this process, with the rights it has.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Status is what a probe found.
type Status string

const (
	OK          Status = "ok"
	Unsupported Status = "unsupported" // tried, and this host cannot
	Unknown     Status = "unknown"     // could not tell
)

// A Result is one probe's answer.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"` // version, layout and the like
	Reason string `json:"reason,omitempty"` // why not ok, a sentence
	Remedy string `json:"remedy,omitempty"` // what the reader can do or type
}

// Host is where to look. The zero value looks at the system alone.
type Host struct {
	Data  string // the data directory, whether it exists yet or not; default: the temporary directory
	Tools string // where make up puts programs; default: tools/bin in Data

	// Limit is how long one probe may take; default 30 seconds, which is long, for
	// on a machine that is busy or emulated nothing would be known otherwise.
	Limit time.Duration
}

const limit = 30 * time.Second

// A probe is one question to the host. It returns what to tell about the answer
// yes, or fault.Unsupported for no, or another error for "could not tell".
type probe struct {
	name string
	ask  func(ctx context.Context, h Host) (detail string, err error)
}

// probes are all questions, in the order a reader wants the answers.
var probes = []probe{
	{"kernel", kernel},
	{"root", privileges},
	{"user namespaces", userNamespaces},
	{"unprivileged user namespaces", unprivilegedUserNamespaces},
	{"mount namespaces", namespace(unix.CLONE_NEWNS)},
	{"pid namespaces", namespace(unix.CLONE_NEWPID)},
	{"network namespaces", namespace(unix.CLONE_NEWNET)},
	{"uts namespaces", namespace(unix.CLONE_NEWUTS)},
	{"ipc namespaces", namespace(unix.CLONE_NEWIPC)},
	{"cgroup namespaces", namespace(unix.CLONE_NEWCGROUP)},
	{"time namespaces", timeNamespaces},
	{"overlay with idmapped layers", idmappedOverlay},
	{"overlay without root", userOverlay},
	{"idmapped mounts of the data directory", idmappedMounts},
	{"sized disks", sizedDisks},
	{"reflinks in the data directory", reflinks},
	{"project quotas in the data directory", projectQuotas},
	{"cgroup limits", cgroupLimits},
	{"cgroup freeze, kill and identity", cgroupControl},
	{"pressure stall information", pressure},
	{"nftables", nftables},
	{"seccomp", seccomp},
	{"seccomp user notification", seccompNotify},
	{"landlock", landlock},
	{"bpf", bpf},
	{"btf", btf},
	{"bpf tracing of kernel types", bpfTracing},
	{"bpf lsm", bpfLSM},
	{"tcx", tcx},
	{"fanotify", fanotify},
	{"userfaultfd", userfaultfd},
	{"private tools", privateTools},
	{"runc", tool("runc", "apt-get install runc, or make setup")},
	{"crun", tool("crun", "apt-get install crun; runc does as well")},
	{"runsc", tool("runsc", "make setup, which fetches gVisor; runc does as well where its stronger isolation is not wanted")},
	{"bubblewrap", bubblewrap},
	{"criu", checkpoint},
	{"tracking of written memory", tracking},
	{"kvm", kvm},
	{"qemu", tool("qemu-system-"+qemuArch(), "apt-get install qemu-system-"+qemuPackage()+", if microVMs are wanted")},
	{"mmdebstrap", tool("mmdebstrap", "apt-get install mmdebstrap, or use rootfs.oci or rootfs.dir")},
	{"nix", tool("nix", "install nix, see https://nixos.org/download, if rootfs.nix is wanted")},
	{"postgresql", postgresql},
}

// All asks everything, at most a few seconds, and returns the answers in a fixed
// order. A probe that does not answer in time is Unknown.
func All(ctx context.Context, h Host) []Result {
	if h.Tools == "" && h.Data != "" {
		h.Tools = filepath.Join(h.Data, "tools", "bin")
	}
	h.Data = existing(h.Data)
	if h.Limit == 0 {
		h.Limit = limit
	}
	results := make([]Result, len(probes))
	// Most wait for a child or for the disk.
	slots := make(chan struct{}, 2*runtime.NumCPU())
	var wg sync.WaitGroup
	for i, p := range probes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = p.run(ctx, h)
		})
	}
	wg.Wait()
	return results
}

// existing returns the directory itself, or the nearest one above it: what will
// be made there will be on the same filesystem.
func existing(dir string) string {
	if dir == "" {
		return os.TempDir()
	}
	for {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return os.TempDir()
		}
		dir = up
	}
}

// run asks, and stops waiting when time is up: a call stuck in the kernel cannot
// be taken back.
func (p probe) run(ctx context.Context, h Host) Result {
	ctx, cancel := context.WithTimeout(ctx, h.Limit)
	defer cancel()
	answer := make(chan Result, 1)
	go func() {
		detail, err := p.ask(ctx, h)
		answer <- p.result(detail, err)
	}()
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
		return p.result("", fmt.Errorf("no answer within %v: %w", h.Limit, ctx.Err()))
	}
}

func (p probe) result(detail string, err error) Result {
	if err == nil {
		return Result{Name: p.name, Status: OK, Detail: detail}
	}
	r := Result{Name: p.name, Status: Unknown, Reason: sentence(reason(err)), Remedy: fault.RemedyOf(err)}
	if errors.Is(err, fault.Unsupported) {
		r.Status = Unsupported
	}
	if r.Remedy == "" {
		r.Remedy = "run glasshouse doctor again, as root if it was not"
	}
	return r
}

// reason is what err says without who said it and of which kind: the reader sees
// both beside it.
func reason(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil && errors.Is(err, fault.Unsupported) {
		return reason(e.Err)
	}
	return err.Error()
}

// sentence makes an error's words one: capital, full stop.
func sentence(s string) string {
	s = strings.TrimSpace(strings.ReplaceAll(s, "\n", "; "))
	if s == "" {
		return ""
	}
	if first, rest, _ := strings.Cut(s, " "); first == strings.ToLower(first) && !strings.ContainsAny(first, "/.:_=(") {
		s = strings.ToUpper(first[:1]) + first[1:] + strings.TrimSuffix(" "+rest, " ")
	}
	return strings.TrimSuffix(s, ".") + "."
}

// cannot is a conclusive no.
func cannot(reason, remedy string) error { return fault.Cannot("probe", reason, remedy) }

// refused turns the kernel's ways to say "no such thing" and "not you" into a
// conclusive no. What else went wrong stays as it is: it proves nothing.
func refused(what string, err error, remedy string) error {
	switch {
	case err == nil || errors.Is(err, fault.Unsupported):
		return err
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if os.Geteuid() != 0 {
			return cannot(fmt.Sprintf("user %d may not use %s: %v", os.Geteuid(), what, err), "run the daemon as root")
		}
		return cannot(fmt.Sprintf("even root may not use %s here: %v", what, err), remedy)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ENOTTY):
		return cannot("this kernel has no "+what+": "+err.Error(), remedy)
	}
	return fmt.Errorf("try %s: %w", what, err)
}

// scratch gives f a directory for its files, and removes it.
func scratch(in string, f func(dir string) (string, error)) (detail string, err error) {
	dir, err := os.MkdirTemp(in, ".glasshouse-probe-")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return "", cannot("this user may not write to "+in, "choose a data directory of your own with --data, or run as root")
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return f(dir)
}
