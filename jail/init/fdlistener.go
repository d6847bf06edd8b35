package jailinit

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// An fdListener is a listener for jails whose processes cannot have access to a socket of the
// host. It receives connections on a datagram socket: each datagram has one end of a socket
// pair as its SCM_RIGHTS descriptor (unix(7)). Only the creator of the jail knows the address
// of the datagram socket.
type fdListener struct{ net *net.UnixConn }

// listenStdin returns a listener on the datagram socket that is init's standard input.
// Commands do not inherit the socket.
func listenStdin() (net.Listener, error) {
	c, err := net.FilePacketConn(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("use standard input as the listener: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("standard input is not a unix socket"), c.Close())
	}
	return &fdListener{u}, nil
}

// Accept implements net.Listener. It ignores datagrams without a connection.
func (d *fdListener) Accept() (net.Conn, error) {
	var word [16]byte
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := d.net.ReadMsgUnix(word[:], rights)
		if err != nil {
			return nil, err
		}
		if c := connFromRights(rights[:n]); c != nil {
			return c, nil
		}
	}
}

// connFromRights returns the connection in the control message of a datagram, or nil.
func connFromRights(rights []byte) net.Conn {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		// Because of its alignment the buffer has room for two descriptors (CMSG_SPACE,
		// cmsg(3)).
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	if u, ok := c.(*net.UnixConn); ok {
		return u
	}
	c.Close()
	return nil
}

func (d *fdListener) Addr() net.Addr { return d.net.LocalAddr() }
func (d *fdListener) Close() error   { return d.net.Close() }
