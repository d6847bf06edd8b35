package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
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

	mu sync.Mutex
	// +checklocks:mu
	held map[uint64]*refusals // what there is of each cgroup
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
	spec, err := loadLsm()
	if err != nil {
		return nil, err
	}
	if !hooked("file_truncate") { // before Linux 6.2; then path_truncate is all there is
		spec.Programs["cut_open"] = empty(spec.Programs["cut_open"])
	}
	if err := spec.LoadAndAssign(&l.objects, nil); err != nil {
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
	for _, p := range []*ebpf.Program{l.objects.Run, l.objects.Open, l.objects.Cut, l.objects.CutOpen, l.objects.Connect, l.objects.Send} {
		if p.Type() != ebpf.LSM {
			continue
		}
		hook, err := link.AttachLSM(link.LSMOptions{Program: p})
		if err != nil {
			return nil, fmt.Errorf("attach to the bpf security module: %w", err)
		}
		l.links = append(l.links, hook)
	}
	return l, nil
}

// hooked reports whether the kernel has a hook of that name.
func hooked(name string) bool {
	kernel, err := btf.LoadKernelSpec()
	var hook *btf.Func
	return err != nil || kernel.TypeByName("bpf_lsm_"+name, &hook) == nil
}

// empty stands in the place of a program that the kernel has no hook for.
func empty(p *ebpf.ProgramSpec) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: p.Name, Type: ebpf.RawTracepoint, License: p.License, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}
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
			t, err := l.thingOf(cgroup, f)
			if err != nil {
				return err
			}
			values[t] |= what
		}
	}
	next := &refusals{}
	if len(values) > 0 || len(r.Connect) > 0 {
		if err := l.objects.Jails.Put(cgroup, uint32(1)); err != nil {
			return fmt.Errorf("refuse a jail: %w", err)
		}
	}
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
	return l.hold(cgroup, next)
}

// hold keeps next as what there is of a cgroup, and drops what there was and is not in
// it. l.mu is held.
//
// +checklocks:l.mu
func (l *LSM) hold(cgroup uint64, next *refusals) error {
	err := l.drop(l.held[cgroup], next)
	l.held[cgroup] = next
	if len(next.things)+len(next.networks) == 0 {
		delete(l.held, cgroup)
		if gone := l.objects.Jails.Delete(cgroup); !errors.Is(gone, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return errors.Join(err, l.objects.States.Put(uint32(0), lsmState{Jails: uint32(len(l.held))}))
}

// Forget refuses the processes of a cgroup nothing any more.
func (l *LSM) Forget(cgroup uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold(cgroup, &refusals{})
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

// thingOf is a file as the kernel knows it, which it is asked: what stat says of one
// in an overlay are the numbers of another file, below.
//
// The kernel may give the directory of an overlay another number when it has forgotten
// it in between. It is then refused no more here, and still by Watch. l.mu is held.
//
// +checklocks:l.mu
func (l *LSM) thingOf(cgroup uint64, f *os.File) (t lsmThing, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return t, err
	}
	var found uint32
	if ctl := raw.Control(func(fd uintptr) {
		found, err = l.objects.Identify.Run(&ebpf.RunOptions{Context: []uint64{uint64(fd)}})
	}); ctl != nil {
		err = ctl
	}
	if err != nil {
		return t, fmt.Errorf("ask for the kernel's name of %s: %w", f.Name(), err)
	}
	var s lsmState
	if err := l.objects.States.Lookup(uint32(0), &s); err != nil {
		return t, err
	}
	if found == 0 {
		return t, fmt.Errorf("the kernel knows no file %s", f.Name())
	}
	return lsmThing{Cgroup: cgroup, Ino: s.Ino, Dev: s.Dev}, nil
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
