package microvm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A qmp is a connection to QEMU's machine protocol. A guest that has taken over QEMU can answer
// anything, so answers are limited.
type qmp struct {
	c       *net.UnixConn
	in      *bufio.Reader
	release string // of QEMU
}

const (
	maxReply  = 256 << 10 // bytes of one message of a monitor
	maxEvents = 1000      // messages before an answer
)

// openMonitor connects to QEMU. Only one client can be connected. The connection ends with ctx.
func openMonitor(ctx context.Context, socket string) (*qmp, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, unresponsive("connect", err)
	}
	m := &qmp{c: c.(*net.UnixConn), in: bufio.NewReaderSize(c, maxReply)}
	context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	if _, err := m.read(); err != nil { // the greeting
		return nil, errors.Join(unresponsive("connect", err), c.Close())
	}
	var v struct {
		QEMU struct{ Major, Minor, Micro int }
	}
	if err := errors.Join(m.run("qmp_capabilities", nil, nil), m.run("query-version", nil, &v)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	m.release = fmt.Sprintf("%d.%d.%d", v.QEMU.Major, v.QEMU.Minor, v.QEMU.Micro)
	return m, nil
}

func unresponsive(command string, err error) error {
	return fault.New(fault.Unavailable, "microvm.monitor", command, fmt.Errorf("the monitor of the virtual machine does not answer: %w", err))
}

func (m *qmp) close() error    { return m.c.Close() }
func (m *qmp) version() string { return qemu{}.name() + " " + m.release }

// A reply is a message of QEMU: its greeting, an event, or an answer.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

func (m *qmp) read() (r reply, err error) {
	line, err := m.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(bytes.TrimSpace(line), &r)
}

// run runs a command and decodes its result. QEMU receives the files with it.
func (m *qmp) run(command string, args, result any, files ...*os.File) error {
	request, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, args})
	if err != nil {
		return err
	}
	var rights []byte
	for _, f := range files {
		rights = append(rights, unix.UnixRights(int(f.Fd()))...)
	}
	if _, _, err := m.c.WriteMsgUnix(append(request, '\n'), rights, nil); err != nil {
		return unresponsive(command, err)
	}
	for range maxEvents {
		r, err := m.read()
		switch {
		case err != nil:
			return unresponsive(command, err)
		case r.Error != nil:
			return fmt.Errorf("QEMU cannot %s: %s", command, text.ForTerminal(text.Clip(r.Error.Desc, 500)))
		case r.Return == nil: // an event
			continue
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(r.Return, result); err != nil {
			return unresponsive(command, err)
		}
		return nil
	}
	return unresponsive(command, errors.New("it sends nothing but events"))
}

// status returns the state of the machine, such as "running" or "paused".
func (m *qmp) status() (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.run("query-status", nil, &s)
	return s.Status, err
}

// passFile gives QEMU an open file, and returns the path by which commands know it.
func (m *qmp) passFile(f *os.File) (path string, err error) {
	var set struct {
		Set int64 `json:"fdset-id"`
	}
	if err := m.run("add-fd", nil, &set, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("/dev/fdset/%d", set.Set), nil
}
