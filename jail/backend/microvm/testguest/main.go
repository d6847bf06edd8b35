// Command testguest is glasshouse-guest for a test of snapshots. When the jail runs, it starts two processes
// that use what the filter for system calls denies to jails, outside of the jail, but with its files: one
// with an io_uring, and one that serves a FUSE file system.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/jail/guest"
)

func main() {
	parts := map[string]func() error{"ring": ring, "fuse": fuse}
	if len(os.Args) > 1 && parts[os.Args[1]] != nil {
		runtime.LockOSThread() // the thread that enters the jail's mount namespace
		fmt.Fprintln(os.Stderr, os.Args[1], parts[os.Args[1]]())
		os.Exit(1)
	}
	if os.Getpid() == 1 {
		go func() {
			for jail() == "" {
				time.Sleep(50 * time.Millisecond)
			}
			for part := range parts {
				cmd := exec.Command("/init", part)
				cmd.Stderr = os.Stderr
				if err := cmd.Start(); err != nil {
					fmt.Fprintln(os.Stderr, part, err)
				}
			}
		}()
	}
	os.Exit(guest.Main(os.Args))
}

// jail returns the directory in /proc of the jail's init, or "".
func jail() string {
	names, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, name := range names {
		if target, _ := os.Readlink(name); target == "/.glasshouse/init" {
			return filepath.Dir(name)
		}
	}
	return ""
}

// enter makes the jail's files those of the thread, and its root user their owner.
func enter() error {
	ns, err := os.Open(jail() + "/ns/mnt")
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat("/tmp", &st); err != nil {
		return err
	}
	unix.SetfsgidRetGid(int(st.Gid))
	unix.SetfsuidRetUid(int(st.Uid))
	return nil
}

// ring appends what is written to a named pipe to a file. A read of the pipe into a registered buffer is
// always in flight. The layout of the rings is in io_uring_setup(2) and linux/io_uring.h.
func ring() error {
	if err := enter(); err != nil {
		return err
	}
	if err := unix.Mkfifo("/tmp/ring.in", 0o666); err != nil {
		return err
	}
	pipe, err := unix.Open("/tmp/ring.in", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	var p [30]uint32 // io_uring_params: offsets of the submission ring from 10 on, of the completion ring from 20 on
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return errno
	}
	const offsetOfEntries = 0x10000000 // IORING_OFF_SQES
	rings, err := unix.Mmap(int(fd), 0, int(max(p[25]+p[1]*16, p[16]+p[0]*4)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	entries, err := unix.Mmap(int(fd), offsetOfEntries, 4*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	buffer, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	address := uint64(uintptr(unsafe.Pointer(&buffer[0])))
	vector := unix.Iovec{Base: &buffer[0], Len: 4096}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, 0, uintptr(unsafe.Pointer(&vector)), 1, 0, 0); errno != 0 { // IORING_REGISTER_BUFFERS
		return errno
	}
	word := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&rings[offset])) }
	for {
		tail := word(p[11])
		n := *tail & *word(p[12])
		e := make([]byte, 64) // io_uring_sqe
		e[0] = 4              // IORING_OP_READ_FIXED
		binary.LittleEndian.PutUint32(e[4:], uint32(pipe))
		binary.LittleEndian.PutUint64(e[8:], ^uint64(0)) // a pipe has no offsets
		binary.LittleEndian.PutUint64(e[16:], address)
		binary.LittleEndian.PutUint32(e[24:], uint32(len(buffer)))
		copy(entries[n*64:], e)
		*word(p[16] + n*4) = n
		atomic.StoreUint32(tail, *tail+1)
		for submit := uintptr(1); ; submit = 0 {
			_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, fd, submit, 1, 1, 0, 0) // IORING_ENTER_GETEVENTS
			if errno != 0 && errno != unix.EINTR {
				return errno
			}
			if atomic.LoadUint32(word(p[21])) != *word(p[20]) {
				break
			}
		}
		head := word(p[20])
		result := int32(*word(p[25] + (*head&*word(p[22]))*16 + 8))
		atomic.StoreUint32(head, *head+1)
		if result <= 0 {
			return syscall.Errno(-result)
		}
		out, err := os.OpenFile("/tmp/ring.out", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		out.Write(buffer[:result])
		out.Close()
	}
}

// Nodes of the FUSE file system: a file that has another number at each reading, and one whose reading is
// answered when the number is read.
const (
	root = iota + 1
	number
	slow
)

// fuse serves the file system at /tmp/fuse. The messages are in linux/fuse.h.
func fuse() error {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := enter(); err != nil {
		return err
	}
	if err := os.Mkdir("/tmp/fuse", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("test", "/tmp/fuse", "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		return err
	}
	attributes := func(node uint64) (a [22]uint32) { // fuse_attr
		a[0], a[15], a[16] = uint32(node), unix.S_IFREG|0o444, 1 // inode, mode, links
		if node == root {
			a[15] = unix.S_IFDIR | 0o555
		}
		return a
	}
	answer := func(unique uint64, errno syscall.Errno, parts ...any) {
		var body []byte
		for _, p := range parts {
			body, _ = binary.Append(body, binary.LittleEndian, p)
		}
		head := binary.LittleEndian.AppendUint32(nil, uint32(16+len(body)))
		head = binary.LittleEndian.AppendUint32(head, uint32(-int32(errno)))
		unix.Write(fd, append(binary.LittleEndian.AppendUint64(head, unique), body...))
	}
	var count, pending uint64
	for buf := make([]byte, 1<<20); ; {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		operation, unique, node := binary.LittleEndian.Uint32(buf[4:]), binary.LittleEndian.Uint64(buf[8:]), binary.LittleEndian.Uint64(buf[16:])
		switch operation {
		case 26: // FUSE_INIT
			answer(unique, 0, [16]uint32{7, 31, 0, 0, 0, 1 << 16})
		case 1: // FUSE_LOOKUP
			found := map[string]uint64{"number": number, "slow": slow}[strings.TrimRight(string(buf[40:n]), "\x00")]
			if found == 0 {
				answer(unique, unix.ENOENT)
				continue
			}
			answer(unique, 0, [5]uint64{found}, attributes(found))
		case 3: // FUSE_GETATTR
			answer(unique, 0, [2]uint64{}, attributes(node))
		case 14: // FUSE_OPEN
			answer(unique, 0, [2]uint64{0, 1}) // FOPEN_DIRECT_IO
		case 15: // FUSE_READ
			switch {
			case binary.LittleEndian.Uint64(buf[48:]) > 0:
				answer(unique, 0)
			case node == slow:
				pending = unique
				os.WriteFile("/tmp/fuse.pending", nil, 0o644)
			default:
				count++
				answer(unique, 0, []byte(fmt.Sprintln(count)))
				if pending != 0 {
					answer(pending, 0, []byte(fmt.Sprintln("answered at", count)))
					pending = 0
				}
			}
		case 2, 36: // FUSE_FORGET and FUSE_INTERRUPT have no answer
		case 18, 25: // FUSE_RELEASE, FUSE_FLUSH
			answer(unique, 0)
		default:
			answer(unique, unix.ENOSYS)
		}
	}
}
