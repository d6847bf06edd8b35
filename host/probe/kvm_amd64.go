package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and results of linux/kvm.h.
const (
	kvmCreateVM      = 0xAE01
	kvmVCPUMapSize   = 0xAE04
	kvmCreateVCPU    = 0xAE41
	kvmSetMemory     = 0x4020AE46
	kvmSetTSS        = 0xAE47
	kvmRun           = 0xAE80
	kvmSetRegs       = 0x4090AE82
	kvmGetSegments   = 0x8138AE83
	kvmSetSegments   = 0x4138AE84
	kvmExitIO        = 2
	kvmExitHalt      = 5
	kvmImmediateExit = 1 // offset in kvm_run
	kvmExitReason    = 8 // offset in kvm_run
)

// Physical addresses in the guest: page tables, segment and interrupt tables, stacks and code.
const (
	guestPages    = 0x1000 // and 0x2000, 0x3000
	guestSegments = 0x4000
	guestTask     = 0x5000
	guestGates    = 0x6000
	guestStack    = 0x7000
	guestKernel   = 0x8000
	guestHandler  = 0x9000
	guestUser     = 0xA000
)

// fillGuest writes the memory of a guest that enters user mode and returns to its kernel by an
// interrupt, as an operating system does. PVM emulates simpler guests.
func fillGuest(m []byte) {
	put := func(at int, values ...uint64) {
		for n, v := range values {
			binary.LittleEndian.PutUint64(m[at+8*n:], v)
		}
	}
	const present, large = 7, 1 << 7 // present, writable and for user mode; 2 MiB
	put(guestPages, guestPages+0x1000|present)
	put(guestPages+0x1000, guestPages+0x2000|present)
	put(guestPages+0x2000, present|large)
	// None, code and data of the kernel, data and code of user mode, and the task.
	put(guestSegments, 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF, 0x00CFF3000000FFFF, 0x00AFFB000000FFFF, 0x0000890000000067|guestTask<<16, 0)
	binary.LittleEndian.PutUint64(m[guestTask+4:], guestStack)                                        // the stack of the kernel
	put(guestGates+16*0x80, guestHandler&0xffff|8<<16|0xEE<<40|guestHandler>>16<<48, 0)               // an interrupt gate for user mode
	copy(m[guestKernel:], "\x6A\x1B\x68\x00\x78\x00\x00\x6A\x02\x6A\x23\x68\x00\xA0\x00\x00\x48\xCF") // push 0x1b, 0x7800, 2, 0x23, guestUser; iretq
	copy(m[guestUser:], "\xB0\x47\xCD\x80\xEB\xFE")                                                   // mov al, 0x47; int 0x80; jmp .
	copy(m[guestHandler:], "\xE6\xE9\xF4")                                                            // out 0xe9, al; hlt
}

// A kvmSegment is struct kvm_segment, and kvmSegments is struct kvm_sregs.
type (
	kvmSegment struct {
		base                                         uint64
		limit                                        uint32
		selector                                     uint16
		kind, present, dpl, db, s, l, g, avl, unused uint8
		_                                            uint8
	}
	kvmTable struct {
		base  uint64
		limit uint16
		_     [3]uint16
	}
	kvmSegments struct {
		cs, ds, es, fs, gs, ss, tr, ldt         kvmSegment
		gdt, idt                                kvmTable
		cr0, cr2, cr3, cr4, cr8, efer, apicBase uint64
		interrupts                              [4]uint64
	}
)

// bootGuest executes a few instructions in 64-bit mode in a virtual machine. It returns an error if the
// guest does not end as expected within the time limit.
func bootGuest(kvm int, limit time.Duration) error {
	vm, err := unix.IoctlRetInt(kvm, kvmCreateVM)
	if err != nil {
		return fmt.Errorf("create a virtual machine: %w", err)
	}
	defer unix.Close(vm)
	unix.IoctlSetInt(vm, kvmSetTSS, 0xfffbd000) // only processors without unrestricted guests need it
	memory, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("allocate the memory of the guest: %w", err)
	}
	defer unix.Munmap(memory)
	fillGuest(memory)
	region := struct {
		slot, flags           uint32
		guest, size, userAddr uint64
	}{size: uint64(len(memory)), userAddr: uint64(uintptr(unsafe.Pointer(&memory[0])))}
	if err := ioctl(vm, kvmSetMemory, unsafe.Pointer(&region)); err != nil {
		return fmt.Errorf("give the guest memory: %w", err)
	}
	vcpu, err := unix.IoctlRetInt(vm, kvmCreateVCPU)
	if err != nil {
		return fmt.Errorf("create a virtual processor: %w", err)
	}
	defer unix.Close(vcpu)
	size, err := unix.IoctlRetInt(kvm, kvmVCPUMapSize)
	if err != nil {
		return fmt.Errorf("ask for the size of the shared state: %w", err)
	}
	state, err := unix.Mmap(vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the shared state of the processor: %w", err)
	}
	defer unix.Munmap(state)
	var s kvmSegments
	if err := ioctl(vcpu, kvmGetSegments, unsafe.Pointer(&s)); err != nil {
		return fmt.Errorf("read the registers of the processor: %w", err)
	}
	data := kvmSegment{limit: 0xffffffff, selector: 16, kind: 3, present: 1, s: 1, db: 1, g: 1}
	s.ds, s.es, s.fs, s.gs, s.ss = data, data, data, data, data
	s.cs = kvmSegment{limit: 0xffffffff, selector: 8, kind: 11, present: 1, s: 1, l: 1, g: 1}
	s.tr = kvmSegment{base: guestTask, limit: 0x67, selector: 0x28, kind: 11, present: 1}
	s.gdt, s.idt = kvmTable{base: guestSegments, limit: 7*8 - 1}, kvmTable{base: guestGates, limit: 0xfff}
	s.cr0, s.cr3, s.cr4, s.efer = 0x80050033, guestPages, 0x20, 0x500 // paging, PAE, long mode
	if err := ioctl(vcpu, kvmSetSegments, unsafe.Pointer(&s)); err != nil {
		return fmt.Errorf("switch the processor to 64-bit mode: %w", err)
	}
	regs := [18]uint64{6: guestStack, 16: guestKernel, 17: 2} // rsp, rip, rflags
	if err := ioctl(vcpu, kvmSetRegs, unsafe.Pointer(&regs)); err != nil {
		return fmt.Errorf("set the registers of the processor: %w", err)
	}
	if err := runGuest(vcpu, state, limit); err != nil {
		return err
	}
	if reason := binary.LittleEndian.Uint32(state[kvmExitReason:]); reason != kvmExitIO {
		return fmt.Errorf("the guest ended with reason %d before its first instructions were executed", reason)
	}
	offset := binary.LittleEndian.Uint64(state[40:])
	if port := binary.LittleEndian.Uint16(state[34:]); port != 0xe9 || state[offset] != 0x47 {
		return fmt.Errorf("the guest wrote %#x to port %#x, want 0x47 to 0xe9", state[offset], port)
	}
	if err := runGuest(vcpu, state, limit); err != nil {
		return err
	}
	if reason := binary.LittleEndian.Uint32(state[kvmExitReason:]); reason != kvmExitHalt {
		return fmt.Errorf("the guest ended with reason %d, want a halt", reason)
	}
	return nil
}

// runGuest executes the guest until its next exit.
func runGuest(vcpu int, state []byte, limit time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	var late atomic.Bool
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for wait := limit; ; wait = 10 * time.Millisecond {
			select {
			case <-done:
				return
			case <-time.After(wait):
				late.Store(true)
				state[kvmImmediateExit] = 1
				unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // interrupts the system call
			}
		}
	}()
	var err error
	for {
		_, err = unix.IoctlRetInt(vcpu, kvmRun)
		if !errors.Is(err, unix.EINTR) || late.Load() {
			break
		}
	}
	close(done)
	<-stopped
	if late.Load() {
		return fmt.Errorf("the guest did not execute its first instructions within %s", limit)
	}
	if err != nil {
		return fmt.Errorf("execute the guest: %w", err)
	}
	return nil
}

func ioctl(fd int, request uint, p unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(p)); errno != 0 {
		return errno
	}
	return nil
}
