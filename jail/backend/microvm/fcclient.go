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
	"path/filepath"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/text"
)

// A call is a PUT request to Firecracker.
type call struct {
	path string
	body any
}

// call adds a call that configures the machine.
func (m *machine) call(path string, body any) { m.calls = append(m.calls, call{path, body}) }

// An fcClient is a connection to the API of Firecracker (src/firecracker/swagger/firecracker.yaml in
// its repository).
type fcClient struct {
	ctx     context.Context
	l       layout
	http    *http.Transport
	release string
}

// openFirecracker connects to the API. The connection ends with ctx.
func openFirecracker(ctx context.Context, l layout) (*fcClient, error) {
	c := &fcClient{ctx: ctx, l: l, http: &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dialShared(ctx, l, apiSocket) },
		MaxResponseHeaderBytes: 4 << 10, DisableCompression: true,
	}}
	var v struct {
		Version string `json:"firecracker_version"`
	}
	if err := c.do(http.MethodGet, "/version", nil, &v); err != nil {
		c.close()
		return nil, err
	}
	c.release = text.ForTerminal(text.Clip(v.Version, 40))
	return c, nil
}

// do sends a request and decodes its answer. It has no answer if result is nil.
func (c *fcClient) do(method, path string, body, result any) error {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(c.ctx, method, "http://firecracker"+path, in)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.http.RoundTrip(r)
	if err != nil {
		return unresponsive(path, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxReply))
	switch {
	case err != nil:
		return unresponsive(path, err)
	case answer.StatusCode >= 400:
		return refusal(method, path, answer.StatusCode, data)
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(data, result); err != nil {
		return unresponsive(path, err)
	}
	return nil
}

// refusal returns the error in an answer.
func refusal(method, path string, status int, body []byte) error {
	var f struct {
		Message string `json:"fault_message"`
	}
	if err := json.Unmarshal(body, &f); err != nil || f.Message == "" {
		f.Message = fmt.Sprintf("status %d", status)
	}
	return fmt.Errorf("Firecracker refuses %s %s: %s", method, path, text.ForTerminal(text.Clip(f.Message, 500)))
}

func (c *fcClient) put(p call) error { return c.do(http.MethodPut, p.path, p.body, nil) }

func (c *fcClient) close() error {
	c.http.CloseIdleConnections()
	return nil
}

func (c *fcClient) version() string { return firecracker{}.name() + " " + c.release }

func (c *fcClient) paused() (bool, error) {
	var s struct {
		State string `json:"state"`
	}
	err := c.do(http.MethodGet, "/", nil, &s)
	return s.State == "Paused", err
}

// stop does nothing: Firecracker is frozen next, and up to version 1.16 a machine that was paused and
// resumed without a snapshot does not accept connections to its agent any longer.
func (c *fcClient) stop() error { return nil }

func (c *fcClient) cont() error {
	paused, err := c.paused()
	if err != nil || !paused {
		return err
	}
	return c.setState("Resumed")
}

func (c *fcClient) setState(state string) error {
	return c.do(http.MethodPatch, "/vm", map[string]string{"state": state}, nil)
}

// save implements monitor. Firecracker writes the files, to which it could write later as well, so they
// are copied.
func (c *fcClient) save(ctx context.Context, _ int, size int64, devices, memory string) (err error) {
	paused, err := c.paused()
	if err == nil && !paused {
		err = c.setState("Paused")
	}
	if err != nil {
		return err
	}
	names := []string{savedState, savedMemory}
	remove := func() error {
		var errs []error
		for _, name := range names {
			errs = append(errs, os.RemoveAll(filepath.Join(c.l.shared(), name)))
		}
		return errors.Join(errs...)
	}
	if err := remove(); err != nil { // of a killed daemon
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	err = c.put(call{"/snapshot/create", map[string]string{
		"snapshot_type": "Full", "snapshot_path": inShared(savedState), "mem_file_path": inShared(savedMemory),
	}})
	if err != nil {
		return err
	}
	state, err := openShared(c.l, savedState, unix.O_RDONLY, unix.S_IFREG)
	if err != nil {
		return err
	}
	defer state.Close()
	if err := saveState(devices, state); err != nil {
		return fmt.Errorf("save the state of the devices: %w", err)
	}
	from, err := openShared(c.l, savedMemory, unix.O_RDONLY, unix.S_IFREG)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := copyMemory(memory, from, size); err != nil {
		return fmt.Errorf("save the memory: %w", err)
	}
	return context.Cause(ctx)
}

// copyMemory copies the memory of a machine to a new file. Pages of zeros become holes.
func copyMemory(to string, from *os.File, size int64) error {
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if st.Size() != size {
		return fault.Newf(fault.Unavailable, "microvm.Dump", "", "the monitor has written %d bytes of memory, want %d", st.Size(), size)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(disk.CopySparse(f, from), f.Close())
}
