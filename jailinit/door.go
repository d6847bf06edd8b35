package jailinit

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A door is how connections come in where the jail's processes cannot have a
// socket of the host: it is a datagram socket, and each datagram brings one end
// of a connection. It implements net.Listener. Whoever made the jail has the
// address at which it is knocked; nobody inside does.
type door struct{ net *net.UnixConn }

// openDoor takes the door that init was given as its standard input. What it runs
// does not get it.
func openDoor() (net.Listener, error) {
	c, err := net.FilePacketConn(os.Stdin)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("standard input is no unix socket"), c.Close())
	}
	return &door{u}, nil
}

// Accept implements net.Listener. What brings no connection is nobody.
func (d *door) Accept() (net.Conn, error) {
	var word [16]byte
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := d.net.ReadMsgUnix(word[:], rights)
		if err != nil {
			return nil, err
		}
		if c := received(rights[:n]); c != nil {
			return c, nil
		}
	}
}

// received is the connection that a datagram brought, or nil.
func received(rights []byte) net.Conn {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
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

func (d *door) Addr() net.Addr { return d.net.LocalAddr() }
func (d *door) Close() error   { return d.net.Close() }
