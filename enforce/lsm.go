package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// An LSM refuses, in the kernel, what no process of a jail may do whatever a Judge
// says, and closes what Watch cannot: nothing can be swapped after the kernel has
// resolved it. It knows files and addresses, no command lines. Not every kernel
// takes its programs; all else works without.
type LSM struct {
	objects lsmObjects
	links   []link.Link

	mu   sync.Mutex
	held map[uint64]*refusals // what there is of each cgroup. guarded by mu
}

// Refusals are what a jail may not do at all.
type Refusals struct {
	Run     []*os.File     // programs
	Write   []*os.File     // files, and directories with all below them
	Connect []netip.Prefix // addresses
}

type refusals struct {
	things   []lsmThing
	networks []lsmNetwork
}

// What the programs know a file to be refused for.
const (
	refuseRun   = 1
	refuseWrite = 2
)

// OpenLSM loads the programs and has the kernel ask them. Where it does not take
// them it returns a fault.Unsupported error with the reason.
func OpenLSM() (_ *LSM, err error) {
	l := &LSM{held: map[uint64]*refusals{}}
	if err := loadLsmObjects(&l.objects, nil); err != nil {
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			err = errno // without the verifier's words, of which there are many
		}
		return nil, fault.Cannot("enforce.OpenLSM", fmt.Sprintf("the kernel does not take programs of the bpf security module: %v", err),
			"use a kernel with CONFIG_BPF_LSM, trampolines for BPF, and lsm=…,bpf; all but this works without")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for _, p := range []*ebpf.Program{l.objects.Run, l.objects.Open, l.objects.Connect} {
		hook, err := link.AttachLSM(link.LSMOptions{Program: p})
		if err != nil {
			return nil, fmt.Errorf("attach to the bpf security module: %w", err)
		}
		l.links = append(l.links, hook)
	}
	return l, nil
}

// Close takes everything back.
func (l *LSM) Close() error {
	var errs []error
	for _, hook := range l.links {
		errs = append(errs, hook.Close())
	}
	l.links = nil
	return errors.Join(append(errs, l.objects.Close())...)
}

// Refuse has the kernel refuse all that r names to the processes of a cgroup, by
// its id, in place of what it refused them before.
func (l *LSM) Refuse(cgroup uint64, r Refusals) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := map[lsmThing]uint32{}
	for what, files := range map[uint32][]*os.File{refuseRun: r.Run, refuseWrite: r.Write} {
		for _, f := range files {
			t, err := thingOf(cgroup, f)
			if err != nil {
				return err
			}
			values[t] |= what
		}
	}
	next := &refusals{}
	for t, what := range values {
		if err := l.objects.Things.Put(t, what); err != nil {
			return fmt.Errorf("refuse a file: %w", err)
		}
		next.things = append(next.things, t)
	}
	for _, prefix := range r.Connect {
		n := networkOf(cgroup, prefix)
		if err := l.objects.Networks.Put(n, uint32(1)); err != nil {
			return fmt.Errorf("refuse %s: %w", prefix, err)
		}
		next.networks = append(next.networks, n)
	}
	err := l.drop(l.held[cgroup], next)
	l.held[cgroup] = next
	return err
}

// Forget refuses the processes of a cgroup nothing any more.
func (l *LSM) Forget(cgroup uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.drop(l.held[cgroup], &refusals{})
	delete(l.held, cgroup)
	return err
}

// drop removes what is in old and not in next.
func (l *LSM) drop(old, next *refusals) error {
	if old == nil {
		return nil
	}
	var errs []error
	things, networks := map[lsmThing]bool{}, map[lsmNetwork]bool{}
	for _, t := range next.things {
		things[t] = true
	}
	for _, n := range next.networks {
		networks[n] = true
	}
	for _, t := range old.things {
		if !things[t] {
			errs = append(errs, l.objects.Things.Delete(t))
		}
	}
	for _, n := range old.networks {
		if !networks[n] {
			errs = append(errs, l.objects.Networks.Delete(n))
		}
	}
	return errors.Join(errs...)
}

// thingOf is a file as the kernel knows it.
func thingOf(cgroup uint64, f *os.File) (t lsmThing, err error) {
	var st unix.Stat_t
	raw, err := f.SyscallConn()
	if err != nil {
		return t, err
	}
	if ctl := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }); ctl != nil {
		err = ctl
	}
	const minorBits = 20
	return lsmThing{Cgroup: cgroup, Ino: st.Ino, Dev: unix.Major(st.Dev)<<minorBits | unix.Minor(st.Dev)}, err
}

// networkOf is a range of addresses of one cgroup. All are written as those of
// IPv6.
func networkOf(cgroup uint64, prefix netip.Prefix) (n lsmNetwork) {
	const cgroupBits, mapped = 64, 96
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += mapped
	}
	n.Length = uint32(cgroupBits + bits)
	binary.NativeEndian.PutUint64(n.Cgroup[:], cgroup)
	n.Addr = prefix.Masked().Addr().As16()
	return n
}
