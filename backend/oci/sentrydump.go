package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail"
)

// What gVisor writes a jail down to.
const (
	sentryKernel = "checkpoint.img" // all but what was in memory
	sentryPages  = "pages.img"      // what was
	sentryIndex  = "pages_meta.img" // where in memory
)

// dumpSentry is Dump for jails of gVisor.
func (b *Backend) dumpSentry(ctx context.Context, p jail.Plan, i *instance, dir string) (err error) {
	if err := errors.Join(b.sentryCan("oci.Dump"), i.checkNoSecrets("oci.Dump")); err != nil {
		return err
	}
	if !i.still.Load() {
		return fault.Newf(fault.Conflict, "oci.Dump", string(p.ID), "the jail is not still")
	}
	r, err := readRecord(i.layout.record())
	if err != nil {
		return err
	}
	n := notes{Lent: map[string]loan{}, Net: p.Network, OwnNet: r.OwnNet}
	if n.Init, err = keepInit(filepath.Join(i.layout.control(), "init"), filepath.Join(dir, initFile)); err != nil {
		return err
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
		if err != nil { // gVisor may hold on to what it could not fill
			for _, name := range []string{sentryKernel, sentryPages, sentryIndex} {
				os.Truncate(filepath.Join(dir, name), 0)
			}
		}
	}()
	if err := b.tool(ctx, log, "checkpoint", "--leave-running", "--compression=none", "--image-path", dir, string(p.ID)); err != nil {
		return err
	}
	if n.Sizes, err = sentrySizes(dir); err != nil {
		return err
	}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, notesFile), text, 0o600)
}

// sentrySizes are the sizes of gVisor's images.
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

// checkSizes refuses images of which something is missing.
func checkSizes(dir string, want map[string]int64) error {
	if want == nil {
		return nil // of a release before they were noted
	}
	have, err := sentrySizes(dir)
	if err != nil {
		return err
	}
	if !maps.Equal(have, want) {
		return fault.Newf(fault.Invalid, "oci.Restore", dir, "gVisor's images have %v bytes, and had %v", have, want)
	}
	return nil
}

// sentryFlags are those that differ from jail to jail. Somebody listens to what is
// said only while a jail is made again, but then the sentry's descriptors have to
// have the numbers that they had at first.
func (m *making) sentryFlags(log string) (flags []string) {
	if !m.backend.kind.sentry {
		return nil
	}
	if flags = append(flags, "--debug-log="+log); m.ownNet {
		// Which is written down with all that goes on in it. There is nobody to be
		// reached by the host's: its loopback is the jail's alone.
		flags = append(flags, "--network=none")
	}
	return flags
}

// loadedWord is what the sentry says in its log when a jail is there again, but for
// what the last of the index has.
const loadedWord = "Overall load took"

// restoreSentry starts a kernel that has a jail again, and stills it before the
// jail has run. That takes a gate: the kernel says in its log when all is there, is
// told then to be still, and only after that gets the last byte that it waits for.
func (m *making) restoreSentry(ctx context.Context, dir string) (_ *instance, err error) {
	b, p, l := m.backend, m.plan, m.layout
	if err := os.MkdirAll(b.state(), 0o700); err != nil {
		return nil, err
	}
	if m.ownNet && p.Network != jail.Isolated {
		return nil, fault.Cannot("oci.Restore", "a jail that gVisor has given a network of its own cannot get another",
			"leave it isolated, or take the snapshot of a jail that is not")
	}
	g, err := openGate(dir, l)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	m.undo.Push("remove the runtime's notes", func() error { return b.forget(p) })
	m.undo.Push("kill its processes", func() error { return m.cgroup.Kill(context.Background()) })
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := b.run(loading, p, l, m.sentryFlags(l.sentryLog()), "restore", "--image-path", g.dir)
		close(g.over)
		ended <- err
	}()
	i := &instance{backend: b, plan: p, layout: l, cgroup: m.cgroup}
	err = g.wait()
	if err == nil {
		err = i.tell(ctx, "Pause")
	}
	if err == nil {
		err = g.open()
	}
	if err != nil {
		cancel()
	}
	if failed := <-ended; failed != nil || err != nil {
		return nil, errors.Join(failed, err)
	}
	return m.adopt(ctx, still)
}

// A gate is where images are read from that lie somewhere else, the last byte of
// which is kept back.
type gate struct {
	dir   string
	log   *os.File      // what the sentry says; a pipe that breaks would be the jail's end
	index *os.File      // what it reads
	rest  []byte        // and has not been given yet
	over  chan struct{} // closed when nobody says anything any more
}

func openGate(dir string, l layout) (_ *gate, err error) {
	g := &gate{dir: filepath.Join(l.bundle(), "images"), over: make(chan struct{})}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if g.rest, err = os.ReadFile(filepath.Join(dir, sentryIndex)); err != nil {
		return nil, err
	}
	if len(g.rest) == 0 {
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

// makePipe makes a named pipe and opens both of its ends.
func makePipe(name string) (*os.File, error) {
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	return os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// wait gives the sentry all but the last byte and returns when it has everything
// else.
func (g *gate) wait() error {
	last := len(g.rest) - 1
	given := make(chan error, 1)
	go func() {
		_, err := g.index.Write(g.rest[:last])
		given <- err
	}()
	for {
		var over bool
		select {
		case <-g.over:
			over = true
		case <-time.After(time.Millisecond):
		}
		said, err := io.ReadAll(io.NewSectionReader(g.log, 0, maxSaid))
		switch {
		case err == nil && bytes.Contains(said, []byte(loadedWord)):
			g.rest = g.rest[last:]
			return <-given
		case err != nil || over || len(said) == maxSaid:
			g.index.SetWriteDeadline(past)
			return errors.Join(errors.New("gVisor's kernel did not load the jail"), err, <-given)
		}
	}
}

// maxSaid is far more than the sentry says until then.
const maxSaid = 1 << 20

// open gives the sentry the last byte.
func (g *gate) open() error {
	_, err := g.index.Write(g.rest)
	return errors.Join(err, g.index.Close())
}

// Close takes away what only the way in needed. The log lives on without a name.
func (g *gate) Close() error {
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

var past = time.Unix(1, 0)
