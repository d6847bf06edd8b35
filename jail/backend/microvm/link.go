package microvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/guest/wire"
)

// A link is the connection to the agent of a machine. Through its socket, clients reach the jail's
// init as on a host. The agent is not trusted: sizes and times are limited.
type link struct {
	dial     func(ctx context.Context) (net.Conn, error) // to the port of the agent
	listener *net.UnixListener
	ctx      context.Context // ends when the link is closed
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	conn *http.ClientConn
	// +checklocks:mu
	suspended int
}

// openLink listens on the socket at path. It connects to the agent when it is needed.
func openLink(dial func(ctx context.Context) (net.Conn, error), path string) (*link, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l := &link{dial: dial}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	var err error
	l.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.listener.Close())
	}
	l.wg.Go(l.accept)
	return l, nil
}

// close disconnects from the agent. The jail runs on.
func (l *link) close() {
	l.listener.Close()
	l.cancel()
	l.mu.Lock()
	if l.conn != nil {
		l.conn.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// suspend disconnects from the agent until resume is called. Requests fail meanwhile.
func (l *link) suspend() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspended++
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.suspended--
	}
}

func (l *link) accept() {
	for {
		c, err := l.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(5 * time.Millisecond) // no free descriptors
			continue
		}
		l.wg.Go(func() { l.forward(c) })
	}
}

// maxAnswer bounds an answer of the agent that is no stream.
const maxAnswer = 1 << 20

// connect returns the connection to the agent, a new one if the last one has ended.
func (l *link) connect(ctx context.Context) (*http.ClientConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	if l.suspended > 0 {
		return nil, errors.New("the machine is being saved")
	}
	if l.conn != nil && l.conn.Err() == nil {
		return l.conn, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	greeted, err := l.greet(ctx)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: 4 << 10,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return greeted, nil },
		HTTP2:       &http.HTTP2Config{MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: 16 << 20},
	}
	conn, err := t.NewClientConn(ctx, "http", "guest:80")
	if err != nil {
		return nil, errors.Join(err, greeted.Close())
	}
	l.conn = conn
	return conn, nil
}

// errNotListening means that the agent does not accept connections yet.
var errNotListening = errors.New("the guest does not listen")

// greet connects to the agent. It waits for an agent that does not listen, or is restored with its
// machine and closes the connections of before.
func (l *link) greet(ctx context.Context) (net.Conn, error) {
	for {
		raw, err := l.dial(ctx)
		if err == nil {
			var greeted net.Conn
			greeted, err = wire.Greet(ctx, raw)
			if err == nil {
				return greeted, nil
			}
			err = errors.Join(err, raw.Close())
		}
		if !slices.ContainsFunc([]error{errNotListening, io.EOF, unix.ECONNRESET, unix.EPIPE}, func(e error) bool { return errors.Is(err, e) }) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wait waits until the agent answers.
func (l *link) wait(ctx context.Context) error {
	if _, err := l.connect(ctx); err != nil {
		return unreachable("", err)
	}
	return nil
}

// call sends a request to the agent and decodes its answer.
func (l *link) call(ctx context.Context, path string, in, out any) error {
	return l.callUpTo(ctx, path, in, out, maxAnswer)
}

// callUpTo is like call, for an answer that may have limit bytes.
func (l *link) callUpTo(ctx context.Context, path string, in, out any, limit int64) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	answer, err := l.post(ctx, path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, limit))
	if err != nil {
		return unreachable(path, err)
	}
	if int64(len(data)) == limit {
		return fault.Newf(fault.Unavailable, "guest"+path, "", "the answer of the guest exceeds %d MiB", limit>>20)
	}
	if answer.StatusCode != http.StatusOK {
		var f wire.Failure
		if err := json.Unmarshal(data, &f); err != nil {
			return unreachable(path, fmt.Errorf("status %d", answer.StatusCode))
		}
		return f.Fault("guest" + path)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return unreachable(path, err)
	}
	return nil
}

func (l *link) post(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, unreachable(path, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest"+path, body)
	if err != nil {
		return nil, err
	}
	answer, err := conn.RoundTrip(r)
	if err != nil {
		return nil, unreachable(path, err)
	}
	return answer, nil
}

func unreachable(path string, err error) error {
	return fault.New(fault.Unavailable, "guest"+path, "", fmt.Errorf("the guest does not answer: %w", err))
}

// greetTime limits the wait for an agent that does not answer, on behalf of a client of init.
const greetTime = 10 * time.Second

// forward connects a client to the jail's init.
func (l *link) forward(c *net.UnixConn) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	defer c.Close()
	waiting := time.AfterFunc(greetTime, cancel)
	answer, err := l.post(ctx, wire.InitPath, &clientBody{c})
	waiting.Stop()
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return
	}
	if _, err := io.Copy(c, answer.Body); err == nil {
		c.CloseWrite()
	}
}

// A clientBody is what a client sends, as the body of a request. Close ends a pending Read, for which
// the end of the request waits, and leaves the other direction open.
type clientBody struct{ c *net.UnixConn }

func (b *clientBody) Read(p []byte) (int, error) { return b.c.Read(p) }
func (b *clientBody) Close() error               { return b.c.SetReadDeadline(time.Unix(1, 0)) }
