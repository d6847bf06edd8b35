// Package probe determines which features for jails this host supports, and the remedies for
// missing ones.
//
// Where it is fast and leaves nothing behind, a probe uses the feature itself: it creates the
// namespace, loads the program or mounts the layers. The results apply to this process with
// its privileges.
package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Status is the result of a probe.
type Status string

const (
	OK          Status = "ok"
	Unsupported Status = "unsupported" // the host does not support it
	Unknown     Status = "unknown"     // the probe failed
)

// A Result is the result of one probe.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"` // version, layout and the like
	Reason string `json:"reason,omitempty"` // reason if the status is not OK, as a sentence
	Remedy string `json:"remedy,omitempty"` // instruction or command for the user
}

const limit = 30 * time.Second

// A probe checks one feature. It returns details if the feature is supported,
// fault.Unsupported if it is not, or another error if the result is unknown.
type probe struct {
	name string
	ask  func(ctx context.Context, h Host) (detail string, err error)
}

// probes are all probes in display order.
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
	{"crun", tool("crun", "apt-get install crun; runc works as well")},
	{"runsc", tool("runsc", "make setup, which downloads gVisor; runc works as well, with weaker isolation")},
	{"bubblewrap", bubblewrap},
	{"criu", checkpoint},
	{"tracking of written memory", tracking},
	{"kvm", kvm},
	{"qemu", tool("qemu-system-"+machineName(), "apt-get install qemu-system-"+qemuPackage()+", to use microVMs")},
	{"mmdebstrap", tool("mmdebstrap", "apt-get install mmdebstrap, or use rootfs.oci or rootfs.dir")},
	{"nix", tool("nix", "install nix, see https://nixos.org/download, to use rootfs.nix")},
	{"postgresql", postgresql},
}

// All runs all probes, which takes a few seconds at most, and returns the results in a fixed
// order. A probe that times out is Unknown.
func All(ctx context.Context, h Host) []Result {
	if h.Tools == "" && h.Data != "" {
		h.Tools = filepath.Join(h.Data, "tools", "bin")
	}
	h.Data = existing(h.Data)
	if h.Limit == 0 {
		h.Limit = limit
	}
	results := make([]Result, len(probes))
	// Most probes wait for a child process or the disk.
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

// existing returns the directory or its nearest existing ancestor, which is on the same
// filesystem.
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

// run runs a probe until it times out. A blocked system call cannot be cancelled.
func (p probe) run(ctx context.Context, h Host) Result {
	ctx, cancel := context.WithTimeout(ctx, h.Limit)
	defer cancel()
	answer := make(chan Result, 1) // buffered, so that a probe can end after its timeout
	go func() {
		detail, err := p.ask(ctx, h)
		answer <- p.result(detail, err)
	}()
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
		return p.result("", fmt.Errorf("no result within %v: %w", h.Limit, ctx.Err()))
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
		r.Remedy = "run glasshouse doctor again, as root if possible"
	}
	return r
}

// reason returns the message of err without its operation and kind, which are displayed
// separately.
func reason(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil && errors.Is(err, fault.Unsupported) {
		return reason(e.Err)
	}
	return err.Error()
}

// sentence formats an error as a sentence.
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
