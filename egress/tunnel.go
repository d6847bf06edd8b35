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

// tunnel carries a connection into which is not looked. first is what the server
// has said already. It closes up.
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

	said, _ := v.br.Peek(v.br.Buffered())
	said = append([]byte(nil), said...)
	v.br.Reset(nil) // from here on it is only copied, without this buffer
	var wg sync.WaitGroup
	var upErr, downErr error
	wg.Go(func() {
		upErr = pipe(up, v.client, said, f.up)
		if upErr != nil {
			cancel()
		}
	})
	if downErr = pipe(v.client, up, first, f.down); downErr != nil {
		cancel()
	}
	wg.Wait()
	f.end(0, tunnelError(upErr, downErr))
}

// tunnelError says which side broke off, if one did. up is what went wrong on the
// way to the server, down on the way back.
func tunnelError(up, down error) error {
	for _, way := range []struct {
		err            error
		source, target *refusal
	}{{up, errGone, errBroken}, {down, errBroken, errGone}} {
		switch {
		case way.err == nil, errors.Is(way.err, errSpent), errors.Is(way.err, net.ErrClosed):
			// The flow knows, or the other way does.
		case errors.Is(way.err, errSource):
			return way.source
		default:
			return way.target
		}
	}
	return nil
}

var errBroken = refuse(ReasonUpstream, "", "the server broke off")

// errSource marks what went wrong with reading.
var errSource = errors.New("cannot be read")

// errSpent is that no more may be passed on.
var errSpent = errors.New("spent")

// chunk is how much is read at once by copying, and pipeSize by splicing.
const (
	chunk    = 64 << 10
	pipeSize = 256 << 10
)

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pipe writes first to dst and then what comes from src until its end, which it
// passes on. count is told how much is to be written and says how much may be.
// A connection that is silent holds no buffer, and one that sends much is spliced
// by the kernel.
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

// ignoreClosed is err unless it says that the other side has closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

// copyOnce passes on what one read gives. It waits for that without a buffer.
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
	if err = errors.Join(e, err); err != nil {
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

// splice passes on what comes from in through a pipe of the kernel's, so that no
// byte is copied through this process: limit bytes, or if that is negative all
// until the end, which is io.EOF, as it is if the end comes early.
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
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // if not, it is smaller

	const flags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK
	for limit != 0 {
		want := pipeSize
		if limit > 0 {
			want = int(min(limit, pipeSize))
		}
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

// transfer makes one call on a socket when it is ready for it.
func transfer(when func(func(fd uintptr) bool) error, call func(fd int) (int64, error)) (int, error) {
	var n int64
	var err error
	e := when(func(fd uintptr) bool {
		for {
			if n, err = call(int(fd)); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	return int(n), errors.Join(e, err)
}
