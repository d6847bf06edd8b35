package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"glasshouse/jail/guest/wire"
)

// hasVsock reports whether the machine has a vsock device, as those of Firecracker, instead of a port.
func hasVsock() (bool, error) {
	names, err := filepath.Glob("/sys/bus/virtio/devices/*/device")
	if err != nil {
		return false, err
	}
	for _, name := range names {
		const vsock = "0x0013" // VIRTIO_ID_VSOCK (linux/virtio_ids.h)
		if id, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(id)) == vsock {
			return true, nil
		}
	}
	return false, nil
}

// listen serves the daemon over vsock. Each connection of a daemon is a connection of its own, and those
// of a saved machine end when it is restored.
func (a *agent) listen() error {
	listener, err := socket.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0, "vsock", nil)
	if err != nil {
		return err
	}
	err = listener.Bind(&unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: wire.VsockPort})
	if err == nil {
		err = listener.Listen(unix.SOMAXCONN)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("listen on vsock port %d: %w", wire.VsockPort, err), listener.Close())
	}
	for {
		c, from, err := listener.Accept(context.Background(), 0)
		if err != nil {
			fmt.Fprintln(os.Stderr, "glasshouse-guest: accept a connection of the daemon:", err)
			time.Sleep(20 * time.Millisecond) // no free descriptors
			continue
		}
		if vm, ok := from.(*unix.SockaddrVM); !ok || vm.CID != unix.VMADDR_CID_HOST { // not the host
			c.Close()
			continue
		}
		go func() {
			defer c.Close()
			a.serveStream(wire.NewGuestPort(c))
		}()
	}
}
