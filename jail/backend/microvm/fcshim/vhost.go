package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// QEMU has a vsock device whose packets the host's kernel handles (vhost-vsock-device), and one with a
// process (vhost-user-vsock-device), whose state it cannot save. So the double takes the place of the kernel: a filter of
// QEMU's process passes the system calls for the device, ioctl(2) with the type of vhost (linux/vhost.h), to this one.

// filtered is the name under which this program installs the filter and then executes QEMU.
const filtered = "fcshim-qemu"

// execFiltered executes a program with the filter, and passes the descriptor of its listener to the socket.
func execFiltered(socket int, program string, args []string) error {
	const (
		offsetNumber, offsetRequest = 0, 24 // in struct seccomp_data
		vhostType                   = 0xaf00
	)
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_IOCTL, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offsetRequest, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xff00},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: vhostType, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return err
	}
	runtime.LockOSThread() // which executes QEMU
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	program1 := syscall.SockFprog{Len: uint16(len(raw)), Filter: (*syscall.SockFilter)(unsafe.Pointer(&raw[0]))}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program1)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	unix.Close(socket)
	return syscall.Exec(program, args, os.Environ())
}

// receiveListener returns the listener from the other end of the socket.
func receiveListener(c *net.UnixConn) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(err, errors.New("QEMU's process has not sent the listener of its filter"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(err, errors.New("not one listener"))
	}
	return fds[0], nil
}

// A notice is struct seccomp_notif, and an answer struct seccomp_notif_resp.
type notice struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id         uint64
	value      int64
	err, flags uint32
}

// listen executes the system calls for the device until QEMU ends.
func (d *device) listen(listener int) {
	for {
		var n notice
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			if errno == unix.EINTR || errno == unix.ENOENT {
				continue
			}
			return
		}
		a := answer{id: n.id}
		d.v.mu.Lock()
		err := d.ioctl(int(n.pid), uint32(n.args[1]), uintptr(n.args[2]))
		d.v.mu.Unlock()
		if err != nil {
			errno, ok := errors.AsType[unix.Errno](err)
			if !ok {
				fmt.Println("fcshim: vsock:", err)
				errno = unix.EINVAL
			}
			a.err = uint32(-int32(errno))
		}
		unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// A region is a part of the guest's memory as QEMU has mapped it.
type region struct{ guest, size, user, flags uint64 }

// A device is the vhost device. Its lock is held while memory of the guest is used.
type device struct {
	v    *vsock
	pid  int
	pidf int
	ram  []byte

	regions []region
	queues  [2]queue // to the guest, and from it
	running bool
}

// features are VIRTIO_F_VERSION_1 and VHOST_F_LOG_ALL, without which QEMU saves no device.
const features = 1<<32 | 1<<26

// ioctl executes a system call of a thread. The caller has locked the device.
func (d *device) ioctl(thread int, request uint32, arg uintptr) error {
	const outward = 2 << 30 // the kernel writes the argument
	in := make([]byte, request>>16&0x3fff)
	if len(in) > 0 {
		if err := copyFrom(thread, arg, in); err != nil {
			return err
		}
	}
	number := func(at int) uint32 { return binary.LittleEndian.Uint32(in[at:]) }
	long := func(at int) uint64 { return binary.LittleEndian.Uint64(in[at:]) }
	vring := func() (*queue, error) {
		if n := number(0); n < 2 {
			return &d.queues[n], nil
		}
		return nil, unix.ENOBUFS
	}
	put := func(value []byte) error { return copyTo(thread, arg, value) }
	switch nr := request & 0xff; {
	case nr == 0x00 && request&outward != 0:
		return put(binary.LittleEndian.AppendUint64(nil, features))
	case nr == 0x00, nr == 0x01, nr == 0x23, nr == 0x25: // features, the owner, polling
		return nil
	case nr == 0x26:
		return put(make([]byte, 8))
	case nr == 0x60: // the address of the guest
		if long(0) != uint64(d.v.c.CID) {
			return fmt.Errorf("CID %d", long(0))
		}
		return nil
	case nr == 0x61:
		d.running = number(0) != 0
		d.v.wake()
		return nil
	case nr == 0x03:
		regions := make([]byte, 32*number(0))
		if err := copyFrom(thread, arg+8, regions); err != nil {
			return err
		}
		d.regions = nil
		for ; len(regions) > 0; regions = regions[32:] {
			at := func(n int) uint64 { return binary.LittleEndian.Uint64(regions[8*n:]) }
			d.regions = append(d.regions, region{at(0), at(1), at(2), at(3)})
		}
		return nil
	case nr >= 0x10 && nr <= 0x22:
		q, err := vring()
		if err != nil {
			return err
		}
		return d.setQueue(q, nr, request&outward != 0, in, put)
	}
	return fmt.Errorf("unknown request %#x", request)
}

// setQueue executes a system call for a queue.
func (d *device) setQueue(q *queue, nr uint32, get bool, in []byte, put func([]byte) error) error {
	value := binary.LittleEndian.Uint32(in[4:])
	switch nr {
	case 0x10:
		q.size = uint16(value)
	case 0x11:
		for n, to := range []*uint64{&q.descriptors, &q.used, &q.available} {
			at, err := d.guestAddress(binary.LittleEndian.Uint64(in[8+8*n:]))
			if err != nil {
				return err
			}
			*to = at
		}
	case 0x12:
		if get {
			return put(binary.LittleEndian.AppendUint32(in[:4:4], uint32(q.next)))
		}
		q.next = uint16(value)
	case 0x20, 0x21:
		f, err := d.takeFile(int32(value))
		if err != nil {
			return err
		}
		if nr == 0x21 {
			q.call.Close()
			q.call = f
			return nil
		}
		q.kick.Close()
		q.kick = f
		if f != nil {
			go d.v.awaitKicks(f)
		}
	case 0x22:
	default:
		return fmt.Errorf("unknown request %#x for a queue", nr)
	}
	return nil
}

// takeFile returns a file of QEMU, or nil.
func (d *device) takeFile(number int32) (*os.File, error) {
	if number < 0 {
		return nil, nil
	}
	fd, err := unix.PidfdGetfd(d.pidf, int(number), 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), unix.SetNonblock(fd, true)
}

// guestAddress translates an address of QEMU.
func (d *device) guestAddress(user uint64) (uint64, error) {
	for _, r := range d.regions {
		if user >= r.user && user-r.user < r.size {
			return r.guest + user - r.user, nil
		}
	}
	return 0, fmt.Errorf("no memory at %#x of QEMU", user)
}

func copyFrom(thread int, from uintptr, to []byte) error {
	if len(to) == 0 {
		return nil
	}
	n, err := unix.ProcessVMReadv(thread, []unix.Iovec{{Base: &to[0], Len: uint64(len(to))}}, []unix.RemoteIovec{{Base: from, Len: len(to)}}, 0)
	if err == nil && n != len(to) {
		err = unix.EFAULT
	}
	return os.NewSyscallError("process_vm_readv", err)
}

func copyTo(thread int, to uintptr, from []byte) error {
	n, err := unix.ProcessVMWritev(thread, []unix.Iovec{{Base: &from[0], Len: uint64(len(from))}}, []unix.RemoteIovec{{Base: to, Len: len(from)}}, 0)
	if err == nil && n != len(from) {
		err = unix.EFAULT
	}
	return os.NewSyscallError("process_vm_writev", err)
}

// A queue is a split virtqueue (virtio 1.2, section 2.7). The addresses are those of the guest.
type queue struct {
	size                         uint16
	descriptors, available, used uint64
	next                         uint16 // index of the next available chain
	kick, call                   *os.File
}

// A part is a part of a chain of descriptors.
type part struct {
	data     []byte
	writable bool
}

// take returns the next available chain, and what returns it with a number of written bytes.
func (d *device) take(q *queue) (chain []part, done func(written int), ok bool) {
	if !d.running || q.size == 0 || q.descriptors == 0 {
		return nil, nil, false
	}
	short := func(at uint64) uint16 { return binary.LittleEndian.Uint16(d.ram[at:]) }
	if short(q.available+2) == q.next {
		return nil, nil, false
	}
	head := short(q.available + 4 + 2*uint64(q.next%q.size))
	q.next++
	for n, i := 0, head; n < int(q.size); n++ {
		at := q.descriptors + 16*uint64(i%q.size)
		address, length, flags := binary.LittleEndian.Uint64(d.ram[at:]), binary.LittleEndian.Uint32(d.ram[at+8:]), short(at+12)
		chain = append(chain, part{d.ram[address : address+uint64(length)], flags&2 != 0})
		if flags&1 == 0 {
			break
		}
		i = short(at + 14)
	}
	return chain, func(written int) {
		index := short(q.used + 2)
		at := q.used + 4 + 8*uint64(index%q.size)
		binary.LittleEndian.PutUint32(d.ram[at:], uint32(head))
		binary.LittleEndian.PutUint32(d.ram[at+4:], uint32(written))
		binary.LittleEndian.PutUint16(d.ram[q.used+2:], index+1)
		if q.call != nil {
			q.call.Write(binary.LittleEndian.AppendUint64(nil, 1))
		}
	}, true
}
