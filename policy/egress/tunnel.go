package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// tunnel forwards a connection that is not intercepted. first contains the bytes already
// received from the server. tunnel closes up.
func (v *visit) tunnel(ask Request, g grant, up tcpConn, first []byte) {
	defer up.Close()
	ctx, cancel := context.WithCancel(v.p.ctx)
	defer cancel()
	f, ref := v.open(ask, g, cancel)
	if ref != nil {
		if ask.TLS {
			v.alert(ask, alertDenied, ref)
		} else {
			v.abort(ask, ref)
		}
		return
	}
	to := up.RemoteAddr().String()
	f.addr.Store(&to)
	defer context.AfterFunc(ctx, func() { reset(v.client); reset(up) })()

	buffered, _ := v.br.Peek(v.br.Buffered())
	buffered = append([]byte(nil), buffered...)
	v.br.Reset(nil) // pipe reads the connection directly from here
	var wg sync.WaitGroup
	var upErr, downErr error
	wg.Go(func() {
		upErr = pipe(up, v.client, buffered, f.up)
		if upErr != nil {
			cancel()
		}
	})
	downErr = pipe(v.client, up, first, f.down)
	if downErr != nil {
		cancel()
	}
	wg.Wait()
	f.end(0, tunnelError(upErr, downErr))
}

// tunnelError returns which side closed the connection prematurely, if any. up is the error in
// the direction to the server, down the error in the direction to the client.
func tunnelError(up, down error) error {
	for _, way := range []struct {
		err            error
		source, target *refusal
	}{{up, errGone, errBroken}, {down, errBroken, errGone}} {
		switch {
		case way.err == nil, errors.Is(way.err, errSpent), errors.Is(way.err, net.ErrClosed):
			// The flow or the other direction records the reason.
		case errors.Is(way.err, errSource):
			return way.source
		default:
			return way.target
		}
	}
	return nil
}

var errBroken = refuse(ReasonUpstream, "", "the server closed the connection")

// errSource marks a read error.
var errSource = errors.New("cannot read from the connection")

// errSpent reports that the byte budget is spent.
var errSpent = errors.New("the byte limit is reached")

// chunk is the size of a read when copying, pipeSize the pipe size when splicing.
const (
	chunk    = 64 << 10
	pipeSize = 256 << 10
)

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pipe writes first and then the data of src to dst, and forwards the end of the stream.
// Before each write it calls count with the number of bytes; count returns how many of them
// may be written. An idle connection holds no buffer. A connection with much data is spliced
// in the kernel.
func pipe(dst, src tcpConn, first []byte, count func(int) int) error {
	if len(first) > 0 {
		n := count(len(first))
		if _, err := dst.Write(first[:n]); err != nil {
			return err
		}
		if n < len(first) {
			return errSpent
		}
	}
	in, err := src.SyscallConn()
	if err != nil {
		return err
	}
	// Two full reads in a row indicate a bulk transfer. Only then a pipe is worth its cost: two
	// descriptors and up to pipeSize bytes of kernel memory.
	for full := 0; full < 2; {
		n, err := copyOnce(dst, in, count)
		if err == io.EOF {
			return ignoreClosed(dst.CloseWrite())
		}
		if err != nil {
			return err
		}
		if n == chunk {
			full++
		} else {
			full = 0
		}
	}
	if err := splice(dst, in, -1, count); err != io.EOF {
		return err
	}
	return ignoreClosed(dst.CloseWrite())
}

// ignoreClosed returns nil if err reports that the other side has closed the connection
// already, and err otherwise.
func ignoreClosed(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

// copyOnce forwards the data of one read. It waits for readability without a buffer.
func copyOnce(dst tcpConn, in syscall.RawConn, count func(int) int) (n int, err error) {
	var b *[]byte
	e := in.Read(func(fd uintptr) bool {
		b = chunks.Get().(*[]byte)
		for {
			n, err = unix.Read(int(fd), *b)
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			chunks.Put(b)
			b = nil
			return false
		}
		return true
	})
	if b != nil {
		defer chunks.Put(b)
	}
	err = errors.Join(e, err)
	if err != nil {
		return 0, errors.Join(errSource, err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	may := count(n)
	if _, err := dst.Write((*b)[:may]); err != nil {
		return may, err
	}
	if may < n {
		return may, errSpent
	}
	return n, nil
}

// splice forwards data from in through a kernel pipe with splice(2), without a copy through
// user space. It forwards limit bytes. If limit is negative, it forwards all data until the
// end and returns io.EOF. A premature end is also io.EOF.
func splice(dst tcpConn, in syscall.RawConn, limit int64, count func(int) int) error {
	out, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // if it fails, the pipe keeps its default size

	const flags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK
	for limit != 0 {
		want := pipeSize
		if limit > 0 {
			want = int(min(limit, pipeSize))
		}
		// EAGAIN means that the socket is empty or that the pipe is full (splice(2)). The pipe is
		// empty here, so transfer can wait for the socket.
		n, err := transfer(in.Read, func(fd int) (int64, error) { return unix.Splice(fd, nil, fds[1], nil, want, flags) })
		if err != nil {
			return errors.Join(errSource, err)
		}
		if n == 0 {
			return io.EOF
		}
		limit -= int64(n)
		may := count(n)
		for left := may; left > 0; {
			n, err := transfer(out.Write, func(fd int) (int64, error) { return unix.Splice(fds[0], nil, fd, nil, left, flags) })
			if err != nil {
				return err
			}
			left -= n
		}
		if may < n {
			return errSpent
		}
	}
	return nil
}

// transfer makes a system call on a socket once the socket is ready.
func transfer(when func(func(fd uintptr) bool) error, call func(fd int) (int64, error)) (int, error) {
	var n int64
	var err error
	e := when(func(fd uintptr) bool {
		for {
			n, err = call(int(fd))
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	return int(n), errors.Join(e, err)
}
