package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

// The image files of a gVisor checkpoint.
const (
	sentryKernel = "checkpoint.img" // the state of the kernel
	sentryPages  = "pages.img"      // the memory pages
	sentryIndex  = "pages_meta.img" // the addresses of the pages
)

// dumpSentry implements Dump for gVisor jails.
func (b *Backend) dumpSentry(ctx context.Context, p jail.Plan, i *instance, dir string) (err error) {
	if err := errors.Join(b.checkSentry("oci.Dump"), i.checkNoSecrets("oci.Dump")); err != nil {
		return err
	}
	if !i.sentryPaused.Load() {
		return fault.Newf(fault.Conflict, "oci.Dump", string(p.ID), "the jail is not paused by gVisor")
	}
	var r record
	if err := base.ReadRecord(i.layout.record(), &r); err != nil {
		return fmt.Errorf("read the record of the jail: %w", err)
	}
	n := notes{External: map[string]externalMount{}, Net: p.Network, OwnNet: r.OwnNet}
	n.Init, err = copyInit(filepath.Join(i.layout.control(), "init"), filepath.Join(dir, initFile))
	if err != nil {
		return fmt.Errorf("copy init: %w", err)
	}
	frozen, err := i.cgroup.Frozen()
	if err != nil {
		return err
	}
	if frozen {
		if err := i.cgroup.Thaw(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, i.cgroup.Freeze(context.WithoutCancel(ctx))) }()
	}
	log := filepath.Join(i.layout.bundle(), "dump.log")
	defer os.Remove(log)
	defer func() {
		if err != nil { // free the space even if gVisor keeps the files open
			for _, name := range []string{sentryKernel, sentryPages, sentryIndex} {
				os.Truncate(filepath.Join(dir, name), 0)
			}
		}
	}()
	if err := b.tool(ctx, log, "checkpoint", "--leave-running", "--compression=none", "--image-path", dir, string(p.ID)); err != nil {
		return err
	}
	if n.Sizes, err = sentrySizes(dir); err != nil {
		return fmt.Errorf("get the sizes of the images: %w", err)
	}
	text, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the notes of the checkpoint: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, notesFile), text, 0o600)
}

// sentrySizes returns the sizes of gVisor's images.
func sentrySizes(dir string) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, name := range []string{sentryKernel, sentryPages, sentryIndex} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		sizes[name] = st.Size()
	}
	return sizes, nil
}

// checkSizes returns an error if images are truncated.
func checkSizes(dir string, want map[string]int64) error {
	if want == nil {
		return nil // written by a release that did not store sizes
	}
	have, err := sentrySizes(dir)
	if err != nil {
		return fmt.Errorf("get the sizes of the images: %w", err)
	}
	if !maps.Equal(have, want) {
		return fault.Newf(fault.Invalid, "oci.Restore", dir, "gVisor's images have sizes %v, want %v", have, want)
	}
	return nil
}

// sentryFlags returns the flags that differ between jails. Only a restore reads the debug log,
// but the log is always open: otherwise the sentry's descriptors would have other numbers
// after a restore.
func (m *builder) sentryFlags(log string) (flags []string) {
	if !m.backend.kind.sentry {
		return nil
	}
	flags = append(flags, "--debug-log="+log)
	if m.ownNet {
		// The checkpoint includes this network stack. Host networking would reach nothing
		// else: the namespace has only its own loopback.
		flags = append(flags, "--network=none")
	}
	return flags
}

// loadedMessage is in the sentry's log when a jail is loaded except for the last byte of the
// index.
const loadedMessage = "Overall load took"

// restoreSentry starts a sentry that restores a jail, and pauses the sentry before the jail
// runs. runsc has no option for that. So restoreSentry holds back the last byte of the image
// index, waits for the log message that everything else is loaded, asks the sentry to pause,
// and then provides the last byte.
func (m *builder) restoreSentry(ctx context.Context, dir string) (_ *instance, err error) {
	b, p, l := m.backend, m.plan, m.layout
	if err := os.MkdirAll(b.state(), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory of the runtime: %w", err)
	}
	if m.ownNet && p.Network != jail.Isolated {
		return nil, fault.Cannot("oci.Restore", "a jail with gVisor's own network stack cannot be restored with another network",
			"restore it as isolated, or take the snapshot of a jail that is not isolated")
	}
	g, err := newRestoreGate(dir, l)
	if err != nil {
		return nil, fmt.Errorf("prepare gVisor's images: %w", err)
	}
	defer g.Close()
	m.undo.Push("remove the runtime's notes", func() error { return b.removeRuntimeState(p) })
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := b.run(loading, p, l, m.sentryFlags(l.sentryLog()), "restore", "--image-path", g.dir)
		close(g.ended)
		ended <- err
	}()
	i := &instance{backend: b, plan: p, layout: l, cgroup: m.cgroup}
	err = g.wait()
	if err == nil {
		err = i.callSentry(ctx, "Pause")
	}
	if err == nil {
		err = g.release()
	}
	if err != nil {
		cancel()
	}
	if failed := <-ended; failed != nil || err != nil {
		return nil, errors.Join(failed, err)
	}
	return m.adopt(ctx, statePaused)
}

// A restoreGate provides the images in another directory and holds back the last byte of the
// index.
type restoreGate struct {
	dir     string
	log     *os.File      // log of the sentry: a file, because a broken pipe would kill the jail
	index   *os.File      // pipe from which the sentry reads the index
	pending []byte        // bytes of the index that were not written yet
	ended   chan struct{} // closed when the runtime has exited
}

func newRestoreGate(dir string, l layout) (_ *restoreGate, err error) {
	g := &restoreGate{dir: filepath.Join(l.bundle(), "images"), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	g.pending, err = os.ReadFile(filepath.Join(dir, sentryIndex))
	if err != nil {
		return nil, err
	}
	if len(g.pending) == 0 {
		return nil, fault.Newf(fault.Invalid, "oci.Restore", dir, "%s is empty", sentryIndex)
	}
	if err := os.Mkdir(g.dir, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{sentryKernel, sentryPages} {
		from := filepath.Join(dir, name)
		if _, err := os.Stat(from); err != nil {
			return nil, err
		}
		if err := os.Symlink(from, filepath.Join(g.dir, name)); err != nil {
			return nil, err
		}
	}
	if g.index, err = makePipe(filepath.Join(g.dir, sentryIndex)); err != nil {
		return nil, err
	}
	g.log, err = os.OpenFile(l.sentryLog(), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return g, err
}

// makePipe creates a named pipe and opens both ends.
func makePipe(name string) (*os.File, error) {
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	// With both ends, open does not wait for the sentry (fifo(7)). Only a non-blocking descriptor
	// has the deadlines that wait needs.
	return os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// wait writes all but the last byte of the index and returns when the sentry has loaded
// everything else.
func (g *restoreGate) wait() error {
	last := len(g.pending) - 1
	// A pipe has a capacity of 16 pages by default (pipe(7)). The write of a longer index ends when
	// the sentry has read enough of it.
	given := make(chan error, 1)
	go func() {
		_, err := g.index.Write(g.pending[:last])
		given <- err
	}()
	for {
		var over bool
		select {
		case <-g.ended:
			over = true
		case <-time.After(time.Millisecond):
		}
		messages, err := io.ReadAll(io.NewSectionReader(g.log, 0, maxLog))
		switch {
		case err == nil && bytes.Contains(messages, []byte(loadedMessage)):
			g.pending = g.pending[last:]
			return <-given
		case err != nil || over || len(messages) == maxLog:
			g.index.SetWriteDeadline(deadlinePassed)
			return errors.Join(errors.New("gVisor's kernel did not load the jail"), err, <-given)
		}
	}
}

// maxLog is far more than the sentry logs during a restore.
const maxLog = 1 << 20

// release writes the last byte.
func (g *restoreGate) release() error {
	_, err := g.index.Write(g.pending)
	return errors.Join(err, g.index.Close())
}

// Close removes the directory. The sentry keeps the unlinked log open.
func (g *restoreGate) Close() error {
	var err error
	for _, f := range []*os.File{g.log, g.index} {
		if f != nil {
			f.Close()
		}
	}
	if g.log != nil {
		err = os.Remove(g.log.Name())
	}
	return errors.Join(err, os.RemoveAll(g.dir))
}

var deadlinePassed = time.Unix(1, 0)
