package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A vsock is the device by which clients of the host reach the guest (docs/vsock.md of Firecracker).
type vsock struct {
	c    vsockDevice
	l    net.Listener
	port string
}

func newVsock(c vsockDevice) (*vsock, error) {
	l, err := net.Listen("unix", c.Path)
	if err != nil {
		return nil, err
	}
	v := &vsock{c: c, l: l, port: fmt.Sprintf("@fcshim-%d", os.Getpid())}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go v.serve(c)
		}
	}()
	return v, nil
}

func (v *vsock) device() ([]string, error) {
	l, err := net.Listen("unix", v.port)
	if err != nil {
		return nil, err
	}
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return []string{"-chardev", fmt.Sprintf("socket,id=port,fd=%d,server=on,wait=off", fd), "-device", "virtio-serial-device",
		"-device", "virtserialport,chardev=port,name=glasshouse.control"}, nil
}

func (v *vsock) reset() {}

func (v *vsock) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	var port uint32
	if _, err := fmt.Fscanf(in, "CONNECT %d\n", &port); err != nil {
		return
	}
	g, err := net.Dial("unix", v.port)
	if err != nil {
		return
	}
	defer g.Close()
	fmt.Fprintf(c, "OK %d\n", 1024)
	go func() { io.Copy(g, in); g.Close() }()
	io.Copy(c, g)
}
