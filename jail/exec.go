package jail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/jailinit/control"
	"glasshouse/jailinit/protocol"
)

// An ExecRequest asks for a command to be run in a running jail: Argv as it is,
// or Cmd by the jail's shell.
type ExecRequest struct {
	ID      id.Exec // of who must find it again whatever happens; "": a new one
	Argv    []string
	Cmd     string
	Env     map[string]string // added to the jail's
	Cwd     string            // default: the jail's, then the workspace, then /. ~ is the user's home
	User    string            // default: the jail's, then root
	Stdin   bool              // keep stdin open for Stdin; otherwise it is empty
	PTY     *protocol.Size
	Timeout time.Duration // then the whole process group is killed; 0 means none
	Ring    int           // bytes of output kept for who comes later; 0 means 1 MiB
	Note    string        // what its status is to repeat, 64 KiB at most
}

// maxRing bounds ExecRequest.Ring: the output is kept in the jail's memory.
const maxRing = 16 << 20

func (m *Manager) protocol(j Jail, r ExecRequest) (protocol.Exec, error) {
	const op = "jail.Exec"
	argv := r.Argv
	switch {
	case len(argv) == 0 && r.Cmd == "":
		return protocol.Exec{}, fault.Fieldf(op, "argv", "nothing to run: give argv or cmd")
	case len(argv) > 0 && r.Cmd != "":
		return protocol.Exec{}, fault.Fieldf(op, "cmd", "give argv or cmd, not both")
	case r.Cmd != "":
		argv = []string{"/bin/sh", "-c", r.Cmd}
	}
	if r.ID == "" {
		r.ID = id.NewExec()
	} else if !id.Valid('x', string(r.ID)) {
		return protocol.Exec{}, fault.Fieldf(op, "id", "%.32q is not the id of a command", r.ID)
	}
	if r.Timeout < 0 {
		return protocol.Exec{}, fault.Fieldf(op, "timeout_ms", "%v is negative", r.Timeout)
	}
	if r.Ring < 0 || r.Ring > maxRing {
		return protocol.Exec{}, fault.Fieldf(op, "ring", "%d is not between 0 and %d", r.Ring, maxRing)
	}
	if len(r.Note) > protocol.MaxNote {
		return protocol.Exec{}, fault.Fieldf(op, "note", "longer than %d bytes", protocol.MaxNote)
	}
	for _, s := range append(slices.Clone(argv), r.Cwd, r.User) {
		if strings.Contains(s, "\x00") {
			return protocol.Exec{}, fault.Fieldf(op, "argv", "a NUL byte cannot be passed to a program")
		}
	}
	cwd := cmp.Or(r.Cwd, j.Spec.Cwd)
	if cwd == "" && j.Spec.Workspace != nil {
		cwd = j.Spec.Workspace.Target
	}
	env := m.environment(j, r.Env)
	if r.PTY != nil && !slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "TERM=") }) {
		env = append(env, "TERM=xterm-256color")
	}
	return protocol.Exec{
		ID: r.ID, Argv: argv, Env: env, Cwd: cmp.Or(cwd, "/"), User: cmp.Or(r.User, j.Spec.User),
		Stdin: r.Stdin, PTY: r.PTY, Timeout: r.Timeout, Ring: r.Ring, Note: r.Note,
	}, nil
}

// running returns a jail's init if it can be spoken to.
func (m *Manager) running(jid id.Jail, op string) (*cell, *live, error) {
	c, err := m.find(jid, op)
	if err != nil {
		return nil, nil, err
	}
	l, err := c.running(op)
	return c, l, err
}

// running returns what the jail has while it runs. Of one that is held it returns an error
// as well.
func (c *cell) running(op string) (*live, error) {
	j, l := c.jail.Load(), c.live.Load()
	if j.State == Running && l != nil {
		return l, l.checkHeld(op, *j)
	}
	e := &fault.Error{Op: op, On: string(j.ID), Kind: fault.Conflict, Err: errors.New("the jail is " + string(j.State))}
	switch j.State {
	case Created, Stopped, Failed:
		e.Remedy = "start it first"
	case Paused:
		e.Remedy = "resume it first"
	}
	return nil, e
}

// Exec starts a command. With o it returns the command's output as it comes;
// the caller closes the stream, which does not end the command.
func (m *Manager) Exec(ctx context.Context, jid id.Jail, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	c, err := m.find(jid, "jail.Exec")
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	if m.cfg.Commands != nil && c.jail.Load().Spec.Snapshots.Any() {
		return m.execTold(ctx, c, r, o)
	}
	return m.exec(ctx, c, r, o)
}

func (m *Manager) exec(ctx context.Context, c *cell, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	l, err := c.running("jail.Exec")
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	j := *c.jail.Load()
	req, err := m.protocol(j, r)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	stream, status, err := l.ctl.Exec(ctx, req, o)
	if err != nil { // perhaps because the program could not be read
		err = errors.Join(l.checkWritable("jail.Exec", j), err)
	}
	return stream, status, err
}

// Attach follows the output of a command that was started earlier, perhaps
// under another daemon.
func (m *Manager) Attach(ctx context.Context, jid id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error) {
	_, l, err := m.running(jid, "jail.Attach")
	if err != nil {
		return nil, err
	}
	return l.ctl.Attach(ctx, x, o)
}

// Signal sends sig to the process group of a command.
func (m *Manager) Signal(ctx context.Context, jid id.Jail, x id.Exec, sig string) error {
	_, l, err := m.running(jid, "jail.Signal")
	if err != nil {
		return err
	}
	return l.ctl.Signal(ctx, x, sig, true)
}

// Resize changes the size of a command's terminal.
func (m *Manager) Resize(ctx context.Context, jid id.Jail, x id.Exec, size protocol.Size) error {
	_, l, err := m.running(jid, "jail.Resize")
	if err != nil {
		return err
	}
	return l.ctl.Resize(ctx, x, size)
}

// Stdin writes to a command started with Stdin or PTY.
func (m *Manager) Stdin(ctx context.Context, jid id.Jail, x id.Exec) (io.WriteCloser, error) {
	_, l, err := m.running(jid, "jail.Stdin")
	if err != nil {
		return nil, err
	}
	return l.ctl.Stdin(ctx, x)
}

// Execs returns the commands of a jail that are still known, oldest first: of a
// running jail those its init keeps, of a stopped one those it kept at the end.
func (m *Manager) Execs(ctx context.Context, jid id.Jail) ([]protocol.ExecStatus, error) {
	c, err := m.find(jid, "jail.Execs")
	if err != nil {
		return nil, err
	}
	l, err := c.running("jail.Execs")
	switch {
	case err == nil:
		return l.ctl.Execs(ctx)
	case l != nil: // it is held
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(m.dir(jid), "execs", "x-*.json"))
	if err != nil {
		return nil, err
	}
	var list []protocol.ExecStatus
	for _, name := range names {
		st, _, err := readArchived(name)
		if err != nil {
			return nil, err
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b protocol.ExecStatus) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// ExecStatus returns one command of a jail, and of a stopped jail its output.
func (m *Manager) ExecStatus(ctx context.Context, jid id.Jail, x id.Exec) (protocol.ExecStatus, error) {
	c, err := m.find(jid, "jail.ExecStatus")
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	l, err := c.running("jail.ExecStatus")
	switch {
	case err == nil:
		return l.ctl.ExecStatus(ctx, x)
	case l != nil: // it is held
		return protocol.ExecStatus{}, err
	}
	st, _, err := m.archived(jid, x)
	return st, err
}

// Output calls f with the output of a command that is still kept, in order, and
// returns the command's status. It does not wait for more.
func (m *Manager) Output(ctx context.Context, jid id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	c, err := m.find(jid, "jail.Output")
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	l, err := c.running("jail.Output")
	if l != nil && err != nil { // it is held
		return protocol.ExecStatus{}, err
	}
	if err != nil {
		st, chunks, err := m.archived(jid, x)
		for _, ch := range chunks {
			if err := f(ch); err != nil {
				return st, err
			}
		}
		return st, err
	}
	return copyOutput(ctx, l.ctl, x, f)
}

func copyOutput(ctx context.Context, ctl *control.Client, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	s, err := ctl.Attach(ctx, x, control.AttachOptions{From: -1})
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	defer s.Close()
	for {
		switch ch, err := s.Next(); {
		case err == io.EOF:
			return s.Status(), nil
		case err != nil:
			return protocol.ExecStatus{}, err
		default:
			if err := f(ch); err != nil {
				return protocol.ExecStatus{}, err
			}
		}
	}
}

// An archivedExec is a command as it was when its jail stopped.
type archivedExec struct {
	Status protocol.ExecStatus
	Output []protocol.Chunk
}

// archive writes down what init knows before it ends. It is a convenience for
// who comes later: trouble with it never keeps a jail from stopping.
func (m *Manager) archive(ctx context.Context, c *cell, l *live) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	jid := c.jail.Load().ID
	log := m.cfg.Log.With("jail", jid)
	list, err := l.ctl.Execs(ctx)
	if err != nil {
		log.Warn("commands not archived", "err", err)
		return
	}
	dir := filepath.Join(m.dir(jid), "execs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		log.Warn("commands not archived", "err", err)
		return
	}
	for _, st := range list {
		if !id.Valid('x', string(st.ID)) {
			continue // init is the jail's; its words are not file names
		}
		a := archivedExec{Status: st}
		size := 0
		_, err := copyOutput(ctx, l.ctl, st.ID, func(ch protocol.Chunk) error {
			if size += len(ch.Data); size > maxRing {
				return errors.New("more output than a ring can hold")
			}
			a.Output = append(a.Output, protocol.Chunk{Stream: ch.Stream, Offset: ch.Offset, Lost: ch.Lost, Data: slices.Clone(ch.Data)})
			return nil
		})
		if err != nil {
			log.Warn("output not archived", "exec", st.ID, "err", err)
		}
		data, err := json.Marshal(a)
		if err == nil {
			err = atomicfile.Write(filepath.Join(dir, string(st.ID)+".json"), data, 0o600)
		}
		if err != nil {
			log.Warn("command not archived", "exec", st.ID, "err", err)
		}
	}
}

func (m *Manager) archived(jid id.Jail, x id.Exec) (protocol.ExecStatus, []protocol.Chunk, error) {
	if !id.Valid('x', string(x)) {
		return protocol.ExecStatus{}, nil, fault.Newf(fault.NotFound, "jail.ExecStatus", string(x), "no such command")
	}
	st, out, err := readArchived(filepath.Join(m.dir(jid), "execs", string(x)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.Newf(fault.NotFound, "jail.ExecStatus", string(x), "no such command")
	}
	return st, out, err
}

func readArchived(name string) (protocol.ExecStatus, []protocol.Chunk, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return protocol.ExecStatus{}, nil, err
	}
	var a archivedExec
	err = json.Unmarshal(data, &a)
	return a.Status, a.Output, err
}
