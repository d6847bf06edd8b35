package guest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A portConn is the connection over the control port as a net.Conn. Deadlines are ignored: the
// server needs them only for clients that it does not trust.
type portConn struct {
	io.ReadWriteCloser
	once   sync.Once
	closed chan struct{}
}

func (c *portConn) Close() error {
	err := os.ErrClosed
	c.once.Do(func() {
		err = c.ReadWriteCloser.Close()
		close(c.closed)
	})
	return err
}

func (c *portConn) LocalAddr() net.Addr              { return portAddr{} }
func (c *portConn) RemoteAddr() net.Addr             { return portAddr{} }
func (c *portConn) SetDeadline(time.Time) error      { return nil }
func (c *portConn) SetReadDeadline(time.Time) error  { return nil }
func (c *portConn) SetWriteDeadline(time.Time) error { return nil }
