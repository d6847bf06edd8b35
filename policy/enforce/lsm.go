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

// An LSM denies operations of jails in the kernel with BPF LSM programs, whatever the Judge
// decides. It is not subject to time-of-check-to-time-of-use races, because its hooks run
// after the kernel has resolved the arguments. It can match files and addresses but not
// command lines. Not every kernel supports it. Everything else works without it.
type LSM struct {
	objects lsmObjects
	links   []link.Link

	mu sync.Mutex
	// +checklocks:mu
	installed map[uint64]*refusals // map entries of each cgroup
}

// Refusals lists the operations that are always denied to a jail.
type Refusals struct {
	Run     []*os.File     // programs
	Write   []*os.File     // files, and directories with their contents
	Connect []netip.Prefix // addresses
}

type refusals struct {
	files    []lsmObject
	networks []lsmNetwork
}

// The bits of a map value, as in lsm.bpf.c.
const (
	refuseRun   = 1
	refuseWrite = 2
)

// OpenLSM loads and attaches the BPF programs. It returns a fault.Unsupported error with the
// reason if the kernel does not support them.
func OpenLSM() (_ *LSM, err error) {
	l := &LSM{installed: map[uint64]*refusals{}}
	spec, err := loadLsm()
	if err != nil {
		return nil, err
	}
	if !hasHook("file_truncate") { // before Linux 6.2 path_truncate covers ftruncate(2), too
		spec.Programs["cut_open"] = stubProgram(spec.Programs["cut_open"])
	}
	if err := spec.LoadAndAssign(&l.objects, nil); err != nil {
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			err = errno // omit the long verifier log
		}
		return nil, fault.Cannot("enforce.OpenLSM", fmt.Sprintf("the kernel does not support BPF LSM programs: %v", err),
			"use a kernel with CONFIG_BPF_LSM, BPF trampolines and the boot parameter lsm=…,bpf; all other features work without it")
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
			return nil, fmt.Errorf("attach BPF LSM program: %w", err)
		}
		l.links = append(l.links, hook)
	}
	return l, nil
}

// hasHook reports whether the kernel has an LSM hook of that name.
func hasHook(name string) bool {
	kernel, err := btf.LoadKernelSpec()
	var hook *btf.Func
	return err != nil || kernel.TypeByName("bpf_lsm_"+name, &hook) == nil
}

// stubProgram returns a program that replaces one whose hook the kernel lacks.
func stubProgram(p *ebpf.ProgramSpec) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: p.Name, Type: ebpf.RawTracepoint, License: p.License, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}
}

// Close detaches and unloads the programs.
func (l *LSM) Close() error {
	var errs []error
	for _, hook := range l.links {
		errs = append(errs, hook.Close())
	}
	l.links = nil
	return errors.Join(append(errs, l.objects.Close())...)
}

// Refuse makes the kernel deny the operations in r to the processes of a cgroup, given by its
// id. It replaces the earlier refusals of the cgroup.
func (l *LSM) Refuse(cgroup uint64, r Refusals) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := map[lsmObject]uint32{}
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
			return fmt.Errorf("add cgroup to the LSM map: %w", err)
		}
	}
	for t, what := range values {
		if err := l.objects.Objects.Put(t, what); err != nil {
			return fmt.Errorf("add file to the LSM map: %w", err)
		}
		next.files = append(next.files, t)
	}
	for _, prefix := range r.Connect {
		n := networkOf(cgroup, prefix)
		if err := l.objects.Networks.Put(n, uint32(1)); err != nil {
			return fmt.Errorf("add network %s to the LSM map: %w", prefix, err)
		}
		next.networks = append(next.networks, n)
	}
	return l.replace(cgroup, next)
}

// replace records next as the map entries of a cgroup and removes the earlier entries that are
// not in next. The caller holds l.mu.
//
// +checklocks:l.mu
func (l *LSM) replace(cgroup uint64, next *refusals) error {
	// The maps already contain the entries of next, so an operation that both lists deny is never
	// allowed in between.
	err := l.drop(l.installed[cgroup], next)
	l.installed[cgroup] = next
	if len(next.files)+len(next.networks) == 0 {
		delete(l.installed, cgroup)
		if gone := l.objects.Jails.Delete(cgroup); !errors.Is(gone, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return errors.Join(err, l.objects.States.Put(uint32(0), lsmState{Jails: uint32(len(l.installed))}))
}

// Forget removes all refusals of a cgroup.
func (l *LSM) Forget(cgroup uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replace(cgroup, &refusals{})
}

// drop removes the map entries that are in old and not in next.
func (l *LSM) drop(old, next *refusals) error {
	if old == nil {
		return nil
	}
	var errs []error
	files, networks := map[lsmObject]bool{}, map[lsmNetwork]bool{}
	for _, t := range next.files {
		files[t] = true
	}
	for _, n := range next.networks {
		networks[n] = true
	}
	for _, t := range old.files {
		if !files[t] {
			errs = append(errs, l.objects.Objects.Delete(t))
		}
	}
	for _, n := range old.networks {
		if !networks[n] {
			errs = append(errs, l.objects.Networks.Delete(n))
		}
	}
	return errors.Join(errs...)
}

// thingOf returns the map key of a file. It asks the kernel for the inode, because stat(2)
// returns other numbers for files on overlayfs.
//
// The kernel may give an overlay directory another inode number after it has evicted the
// inode. The refusal then no longer matches here, but Watch still applies. The caller holds
// l.mu.
//
// +checklocks:l.mu
func (l *LSM) thingOf(cgroup uint64, f *os.File) (t lsmObject, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return t, fmt.Errorf("get the descriptor of %s: %w", f.Name(), err)
	}
	var found uint32
	if ctl := raw.Control(func(fd uintptr) {
		found, err = l.objects.Identify.Run(&ebpf.RunOptions{Context: []uint64{uint64(fd)}})
	}); ctl != nil {
		err = ctl
	}
	if err != nil {
		return t, fmt.Errorf("get the kernel inode of %s: %w", f.Name(), err)
	}
	var s lsmState
	if err := l.objects.States.Lookup(uint32(0), &s); err != nil {
		return t, fmt.Errorf("read the state of the LSM programs: %w", err)
	}
	if found == 0 {
		return t, fmt.Errorf("the kernel found no file for the descriptor of %s", f.Name())
	}
	return lsmObject{Cgroup: cgroup, Ino: s.Ino, Dev: s.Dev}, nil
}

// networkOf returns the map key of an address range of one cgroup. IPv4 ranges are stored as
// IPv4-mapped IPv6 ranges.
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
