package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// TerminalOptions selects the command of a terminal. The zero value is the jail's shell on a
// terminal of 80 by 24 characters.
type TerminalOptions struct {
	Exec id.Exec // reconnect to this command; then only Size is used
	Argv []string
	Cmd  string // a command line for /bin/sh
	User string
	Cwd  string
	Size wire.Size
}

func (o TerminalOptions) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"exec": string(o.Exec), "cmd": o.Cmd, "user": o.User, "cwd": o.Cwd} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if len(o.Argv) > 0 {
		q["argv"] = o.Argv
	}
	if o.Size != (wire.Size{}) {
		q.Set("cols", strconv.Itoa(int(o.Size.Cols)))
		q.Set("rows", strconv.Itoa(int(o.Size.Rows)))
	}
	return q
}

// A Terminal is a connection to a command's terminal. Write sends input and Read returns output.
// Write may be called concurrently with Read and with itself; Read must not be called
// concurrently with itself.
type Terminal struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	left   []byte // received, but not yet returned by Read

	mu sync.Mutex
	// +checklocks:mu
	exec wire.Exec
	// +checklocks:mu
	err error
}

// keyTime is the time limit for sending a message to the daemon.
const keyTime = 30 * time.Second

// Terminal opens a terminal. Closing it does not end the command.
func (c *Client) Terminal(ctx context.Context, j id.Jail, o TerminalOptions) (*Terminal, error) {
	r := request{method: "GET", path: jailPath(j, "/terminal"), query: o.query()}
	header := http.Header{}
	c.identify(header)
	conn, resp, err := websocket.Dial(ctx, c.base+r.path+"?"+r.query.Encode(), &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{"glasshouse"},
	})
	if err != nil {
		if resp != nil && resp.StatusCode >= 400 {
			return nil, problemOf(resp) // Dial preserves the start of the body
		}
		return nil, c.lost(ctx, r, err)
	}
	conn.SetReadLimit(maxLine)
	t := &Terminal{conn: conn}
	t.ctx, t.cancel = context.WithCancel(ctx)
	if err := t.first(); err != nil {
		return nil, errors.Join(c.lost(ctx, r, err), t.Close())
	}
	return t, nil
}

// first reads the first frame, which describes the command on the terminal.
func (t *Terminal) first() error {
	kind, data, err := t.conn.Read(t.ctx)
	if err != nil {
		return err
	}
	if kind != websocket.MessageText {
		return errors.New("the first frame of the terminal does not describe its command")
	}
	_, err = t.hear(data)
	return err
}

// Exec returns the command on the terminal: as it was at its start, or, after Read has
// returned io.EOF, as it was at its end.
func (t *Terminal) Exec() wire.Exec {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exec
}

// Err returns the last error that the daemon reported for a frame, such as an unknown
// signal, or nil.
func (t *Terminal) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Read reads output of the command. It returns io.EOF when the command has ended.
func (t *Terminal) Read(p []byte) (int, error) {
	for len(t.left) == 0 {
		kind, data, err := t.conn.Read(t.ctx)
		if err != nil {
			return 0, t.ended(err)
		}
		if kind == websocket.MessageBinary {
			t.left = data
			continue
		}
		if exit, err := t.hear(data); err != nil || exit {
			if exit {
				err = io.EOF
			}
			return 0, err
		}
	}
	n := copy(p, t.left)
	t.left = t.left[n:]
	return n, nil
}

// hear processes a text frame of the daemon. It reports whether the command has ended.
func (t *Terminal) hear(data []byte) (exit bool, err error) {
	var e wire.TerminalEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("decode the event of the terminal: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Exec != nil:
		t.exec = *e.Exec
	case e.Exit != nil:
		t.exec = *e.Exit
		return true, nil
	case e.Error != nil:
		t.err = Error(*e.Error)
	}
	return false, nil
}

// ended returns the error for a connection that broke before the command ended.
func (t *Terminal) ended(err error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if last := t.Err(); last != nil && websocket.CloseStatus(err) == websocket.StatusInternalError {
		return last
	}
	return fault.New(fault.Unavailable, "client.ended", "terminal", errors.Join(errBroken, err))
}

// Write sends p as input.
func (t *Terminal) Write(p []byte) (int, error) {
	const most = 256 << 10 // maximum size of a message
	for rest := p; len(rest) > 0; {
		n := min(len(rest), most)
		if err := t.send(websocket.MessageBinary, rest[:n]); err != nil {
			return len(p) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// Resize changes the terminal's size.
func (t *Terminal) Resize(s wire.Size) error { return t.say(wire.TerminalControl{Resize: &s}) }

// Signal sends a signal to the command's process group.
func (t *Terminal) Signal(signal string) error { return t.say(wire.TerminalControl{Signal: signal}) }

func (t *Terminal) say(c wire.TerminalControl) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the command to the terminal: %w", err)
	}
	return t.send(websocket.MessageText, data)
}

func (t *Terminal) send(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(t.ctx, keyTime)
	defer cancel()
	return t.conn.Write(ctx, kind, data)
}

// Close disconnects from the terminal. The command continues to run.
func (t *Terminal) Close() error {
	t.cancel()
	return t.conn.CloseNow()
}
