package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	sk_inet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	tcp_stream "github.com/checkpoint-restore/go-criu/v8/crit/images/tcp-stream"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"glasshouse/host/cgroup"
)

// TCP connections. CRIU restores a TCP connection from within its process, which needs
// CAP_NET_ADMIN in the network namespace. The namespace of a jail belongs to the host, and
// root in the jail has no capabilities over it. So CRIU restores unconnected sockets. While
// the processes are frozen, the daemon duplicates each socket from its process and restores
// the connection in TCP repair mode: the addresses, the sequence numbers and the queued data.
//
// The peer of an external connection may no longer belong to this jail. So external
// connections are dropped, unless the jail is rewound in place: see Connections.
//
// Only connections that were open in both directions are restored. A half-closed connection
// stays closed.

// A stream is one end of a connection.
type stream struct {
	sk    *sk_inet.InetSkEntry
	state *tcp_stream.TcpStreamEntry
	recv  []byte // arrived and not read
	send  []byte // written and not acknowledged
	pid   int    // pid of a process that has it open, in its pid namespace
	fd    int    // descriptor number in that process
	sock  int    // our duplicate, or -1
	reuse int    // its SO_REUSEADDR
}

// reconnect connects the sockets of frozen processes as described by the images in dir. If
// outward is set it also restores external connections where possible, without sending
// anything. If keep is not nil, keep receives them instead.
func reconnect(dir string, cg *cgroup.Cgroup, outward bool, keep *Connections) error {
	files, err := filepath.Glob(filepath.Join(dir, "tcp-stream-*.img"))
	if err != nil || len(files) == 0 {
		return err
	}
	streams, err := readStreams(dir)
	if err != nil {
		return fmt.Errorf("restore connections: %w", err)
	}
	pids, err := hostPIDs(cg)
	if err != nil {
		return fmt.Errorf("find the restored processes: %w", err)
	}
	defer func() { closeSockets(streams) }()
	for _, s := range streams {
		if !s.internal() && !outward {
			continue
		}
		s.sock, err = s.dupSocket(pids)
		if err != nil {
			return fmt.Errorf("restore a connection of process %d: %w", s.pid, err)
		}
	}
	var inward, out []*stream
	for _, s := range streams {
		switch {
		case s.internal():
			inward = append(inward, s)
		case s.sock >= 0:
			out = append(out, s)
		}
	}
	if keep != nil {
		keep.streams, streams = out, inward
	} else {
		for _, s := range out {
			_ = s.restoreAddr() // on failure it stays closed
		}
	}
	// Restore the addresses of both ends before either sends anything.
	for _, step := range []func(*stream) error{(*stream).restoreAddr, (*stream).restoreQueues, (*stream).resume} {
		for _, s := range inward {
			if err := step(s); err != nil {
				return fmt.Errorf("restore the connection from %s to %s: %w", s.source(), s.destination(), err)
			}
		}
	}
	return nil
}

// closeSockets closes our duplicates.
func closeSockets(streams []*stream) {
	for _, s := range streams {
		if s.sock >= 0 {
			unix.Close(s.sock)
			s.sock = -1
		}
	}
}

// readStreams returns the established connections, each with one process that has it open.
func readStreams(dir string) ([]*stream, error) {
	open := map[uint32]*stream{} // by file id
	err := eachRecord(filepath.Join(dir, "files.img"), func(b []byte) error {
		var f fdinfo.FileEntry
		if err := proto.Unmarshal(b, &f); err != nil {
			return err
		}
		sk := f.GetIsk()
		if sk == nil || sk.GetProto() != unix.IPPROTO_TCP || sk.GetState() != tcpEstablished {
			return nil
		}
		s, err := readStream(filepath.Join(dir, fmt.Sprintf("tcp-stream-%x.img", sk.GetIno())))
		if err != nil {
			return err
		}
		s.sk = sk
		open[f.GetId()] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []*stream
	err = eachRecord(filepath.Join(dir, "pstree.img"), func(b []byte) error {
		var p pstree.PstreeEntry
		if err := proto.Unmarshal(b, &p); err != nil {
			return err
		}
		var ids criu_core.TaskKobjIdsEntry
		err := eachRecord(filepath.Join(dir, fmt.Sprintf("ids-%d.img", p.GetPid())), func(b []byte) error { return proto.Unmarshal(b, &ids) })
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a zombie has no ids image
		}
		if err != nil {
			return err
		}
		return eachRecord(filepath.Join(dir, fmt.Sprintf("fdinfo-%d.img", ids.GetFilesId())), func(b []byte) error {
			var f fdinfo.FdinfoEntry
			if err := proto.Unmarshal(b, &f); err != nil {
				return err
			}
			if s := open[f.GetId()]; s != nil && f.GetType() == fdinfo.FdTypes_INETSK {
				s.pid, s.fd = int(p.GetPid()), int(f.GetFd())
				all = append(all, s)
				delete(open, f.GetId())
			}
			return nil
		})
	})
	return all, err
}

const tcpEstablished = 1 // TCP_ESTABLISHED of linux/tcp_states.h

// readStream reads the image of one connection: a record followed by the bytes of its two
// queues.
func readStream(name string) (*stream, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &stream{sock: -1, state: &tcp_stream.TcpStreamEntry{}}
	if len(b) < header+4 {
		return nil, fmt.Errorf("%s: truncated image", filepath.Base(name))
	}
	n := uint64(binary.LittleEndian.Uint32(b[header:]))
	rest := b[header+4:]
	if n > uint64(len(rest)) {
		return nil, fmt.Errorf("%s: truncated image", filepath.Base(name))
	}
	if err := proto.Unmarshal(rest[:n], s.state); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	rest = rest[n:]
	in, out := uint64(s.state.GetInqLen()), uint64(s.state.GetOutqLen())
	if in+out != uint64(len(rest)) || uint64(s.state.GetUnsqLen()) > out {
		return nil, fmt.Errorf("%s: queues of %d and %d bytes do not match %d bytes of data", filepath.Base(name), in, out, len(rest))
	}
	s.recv, s.send = rest[:in], rest[in:]
	return s, nil
}

// eachRecord calls f with each record of an image.
func eachRecord(name string, f func([]byte) error) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(b) < header {
		return fmt.Errorf("%s: truncated image", filepath.Base(name))
	}
	for b = b[header:]; len(b) > 0; {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return fmt.Errorf("%s: %w", filepath.Base(name), io.ErrUnexpectedEOF)
		}
		n := binary.LittleEndian.Uint32(b)
		if err := f(b[4 : 4+n]); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		b = b[4+n:]
	}
	return nil
}

// hostPIDs maps pids in the jail to pids on the host.
func hostPIDs(cg *cgroup.Cgroup) (map[int]int, error) {
	pids, err := cg.PIDs()
	if err != nil {
		return nil, err
	}
	of := map[int]int{}
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(status)) {
			if all, ok := strings.CutPrefix(line, "NSpid:"); ok {
				fields := strings.Fields(all)
				if own, err := strconv.Atoi(fields[len(fields)-1]); err == nil {
					of[own] = pid
				}
			}
		}
	}
	return of, nil
}

// dupSocket returns a duplicate of the socket. The file status flags are shared with the
// process, so it must not become an os.File.
func (s *stream) dupSocket(pids map[int]int) (int, error) {
	pid, ok := pids[s.pid]
	if !ok {
		return -1, errors.New("process not found")
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, s.fd, 0) // sets close-on-exec (pidfd_getfd(2))
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", s.fd, err)
	}
	return fd, nil
}

func (s *stream) source() netip.AddrPort { return addrPort(s.sk.SrcAddr, s.sk.GetSrcPort()) }
func (s *stream) destination() netip.AddrPort {
	return addrPort(s.sk.DstAddr, s.sk.GetDstPort())
}

func addrPort(words []uint32, port uint32) netip.AddrPort {
	var b []byte
	for _, w := range words { // in memory order
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(port))
}

// internal reports whether the peer is in the jail, too.
func (s *stream) internal() bool {
	src, dst := s.source().Addr().Unmap(), s.destination().Addr().Unmap()
	return dst.IsLoopback() || src == dst
}

// Constants of linux/tcp.h that x/sys/unix lacks.
const (
	noQueue, recvQueue, sendQueue = 0, 1, 2

	optTimestamps, optSACK, optWindowScale = 1, 2, 4 // bits of OptMask in the images
)

// restoreAddr restores the addresses and sequence numbers of a socket in repair mode. It sends
// nothing.
func (s *stream) restoreAddr() error {
	fd := s.sock
	set := func(opt, value int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, opt, value) }
	// CRIU has shut the socket down. Connecting to AF_UNSPEC resets that as well (connect(2)).
	unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec)); errno != 0 {
		return fmt.Errorf("disconnect: %w", errno)
	}
	reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	if err != nil {
		return fmt.Errorf("get SO_REUSEADDR: %w", err)
	}
	s.reuse = reuse // repair mode changes it
	if err := set(unix.TCP_REPAIR, 1); err != nil {
		return fmt.Errorf("enter TCP repair mode: %w", err)
	}
	for queue, seq := range map[int]uint32{
		recvQueue: s.state.GetInqSeq() - s.state.GetInqLen(),
		sendQueue: s.state.GetOutqSeq() - s.state.GetOutqLen(),
	} {
		if err := errors.Join(set(unix.TCP_REPAIR_QUEUE, queue), set(unix.TCP_QUEUE_SEQ, int(int32(seq)))); err != nil {
			return fmt.Errorf("set sequence number of queue %d: %w", queue, err)
		}
	}
	if err := unix.Bind(fd, sockaddr(s.source())); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(s.destination())); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return s.options(fd)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// options sets the TCP options that both ends negotiated.
func (s *stream) options(fd int) error {
	const maxSegment, windowScale, sackPermitted, timestamps = 2, 3, 4, 8
	type option struct{ code, value uint32 }
	mask := s.state.GetOptMask()
	opts := []option{{maxSegment, s.state.GetMssClamp()}}
	if mask&optWindowScale != 0 {
		opts = append(opts, option{windowScale, s.state.GetSndWscale() | s.state.GetRcvWscale()<<16})
	}
	if mask&optSACK != 0 {
		opts = append(opts, option{sackPermitted, 0})
	}
	if mask&optTimestamps != 0 {
		opts = append(opts, option{timestamps, 0})
	}
	if err := setsockopt(fd, unix.TCP_REPAIR_OPTIONS, unsafe.Pointer(&opts[0]), unsafe.Sizeof(opts[0])*uintptr(len(opts))); err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	if mask&optTimestamps != 0 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_TIMESTAMP, int(int32(s.state.GetTimestamp())))
	}
	return nil
}

func setsockopt(fd, opt int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, uintptr(opt), uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// restoreQueues restores the content of the queues and the window.
func (s *stream) restoreQueues() error {
	fd := s.sock
	if len(s.send) > 0 {
		if err := growSendBuffer(fd, len(s.send)); err != nil {
			return err
		}
	}
	sent := len(s.send) - int(s.state.GetUnsqLen())
	if err := errors.Join(enqueue(fd, recvQueue, s.recv), enqueue(fd, sendQueue, s.send[:sent])); err != nil {
		return fmt.Errorf("restore socket queues: %w", err)
	}
	window := [5]uint32{s.state.GetSndWl1(), s.state.GetSndWnd(), s.state.GetMaxWindow(), s.state.GetRcvWnd(), s.state.GetRcvWup()}
	if s.state.RcvWup == nil {
		return nil
	}
	if err := setsockopt(fd, unix.TCP_REPAIR_WINDOW, unsafe.Pointer(&window), unsafe.Sizeof(window)); err != nil {
		return fmt.Errorf("restore the TCP window: %w", err)
	}
	return nil
}

// growSendBuffer makes room for n queued bytes. The send buffer of a new socket is small, and grows
// only with its traffic; that of the dumped one had grown. Its growth stays automatic (SO_BUF_LOCK,
// socket(7)), if the kernel is Linux 5.14 or newer.
func growSendBuffer(fd, n int) error {
	size := 2*n + 64<<10 // the kernel doubles it, for its own data
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size); err != nil {
		return fmt.Errorf("grow the send buffer: %w", err)
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0)
	if err != nil && err != unix.ENOPROTOOPT {
		return fmt.Errorf("unlock the size of the send buffer: %w", err)
	}
	return nil
}

func enqueue(fd, queue int, b []byte) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
		return fmt.Errorf("select queue %d: %w", queue, err)
	}
	for len(b) > 0 {
		n, err := unix.SendmsgN(fd, b[:min(len(b), 64<<10)], nil, nil, unix.MSG_DONTWAIT)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// resume leaves TCP repair mode and sends the queued data that was not yet sent.
func (s *stream) resume() error {
	fd := s.sock
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, noQueue); err != nil {
		return fmt.Errorf("deselect the queues: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0); err != nil {
		return fmt.Errorf("leave TCP repair mode: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, s.reuse); err != nil {
		return fmt.Errorf("restore SO_REUSEADDR: %w", err)
	}
	for b := s.send[len(s.send)-int(s.state.GetUnsqLen()):]; len(b) > 0; {
		n, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_DONTWAIT)
		if err != nil {
			return fmt.Errorf("send queued data: %w", err)
		}
		b = b[n:]
	}
	return nil
}
