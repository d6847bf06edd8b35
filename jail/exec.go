package jail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// An ExecRequest describes a command to run in a running jail: Argv as it is, or Cmd by the
// jail's shell.
type ExecRequest struct {
	ID      id.Exec // chosen by a caller that must find the command after a crash; "" means a new id
	Argv    []string
	Cmd     string
	Env     map[string]string // added to the jail's
	Cwd     string            // default: the jail's, then the workspace, then /. ~ is the user's home
	User    string            // default: the jail's, then root
	Stdin   bool              // keep stdin open for Stdin; otherwise it is empty
	PTY     *protocol.Size
	Timeout time.Duration // the process group is killed after it; 0 means none
	Ring    int           // bytes of output kept for later readers; 0 means 1 MiB
	Note    string        // returned with its status; 64 KiB at most

	// Init is set by a caller that repeats a request with the same ID: the result of InitStarted
	// before the first request. If the jail has been started again since, the command may have been
	// executed, and Exec returns fault.Unavailable instead of executing it.
	Init time.Time
}

// maxRing bounds ExecRequest.Ring: the output is kept in the jail's memory.
const maxRing = 16 << 20

// execs runs commands in jails, and gives access to their files and ports.
type execs struct {
	*core
	registry *registry
}

func (xs *execs) execMessage(j Jail, r ExecRequest) (protocol.Exec, error) {
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
		return protocol.Exec{}, fault.Fieldf(op, "note", "must be at most %d bytes", protocol.MaxNote)
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
	env := xs.environment(j, r.Env)
	if r.PTY != nil && !slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "TERM=") }) {
		env = append(env, "TERM=xterm-256color")
	}
	return protocol.Exec{
		ID: r.ID, Argv: argv, Env: env, Cwd: cmp.Or(cwd, "/"), User: cmp.Or(r.User, j.Spec.User),
		Stdin: r.Stdin, PTY: r.PTY, Timeout: r.Timeout, Ring: r.Ring, Note: r.Note,
	}, nil
}

// running returns the entry and instance of a running jail.
func (xs *execs) running(jid id.Jail, op string) (*entry, *liveInstance, error) {
	e, err := xs.registry.find(jid, op)
	if err != nil {
		return nil, nil, err
	}
	l, err := e.running(op)
	return e, l, err
}

// running returns the instance of a running jail. It returns an instance and an error for a
// jail that is held.
func (e *entry) running(op string) (*liveInstance, error) {
	j, l := e.jail.Load(), e.live.Load()
	if j.State == Running && l != nil {
		return l, l.checkHeld(op, *j)
	}
	notRunning := &fault.Error{Op: op, On: string(j.ID), Kind: fault.Conflict, Err: errors.New("the jail is " + string(j.State))}
	switch j.State {
	case Created, Stopped, Failed:
		notRunning.Remedy = "start it first"
	case Paused:
		notRunning.Remedy = "resume the jail first"
	}
	return nil, notRunning
}

// Exec starts a command. If o is not nil, it returns a stream of the command's output, which
// the caller closes. Closing it does not end the command.
func (xs *execs) Exec(ctx context.Context, jid id.Jail, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	e, err := xs.registry.find(jid, "jail.Exec")
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	if xs.cfg.Commands != nil && e.jail.Load().Spec.Snapshots.Any() {
		return xs.execNotifying(ctx, e, r, o)
	}
	return xs.exec(ctx, e, r, o)
}

func (xs *execs) exec(ctx context.Context, e *entry, r ExecRequest, o *control.AttachOptions) (*control.Stream, protocol.ExecStatus, error) {
	l, err := e.running("jail.Exec")
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	j := *e.jail.Load()
	req, err := xs.execMessage(j, r)
	if err != nil {
		return nil, protocol.ExecStatus{}, err
	}
	if !r.Init.IsZero() {
		h, err := l.ctl.Hello(ctx)
		if err != nil {
			return nil, protocol.ExecStatus{}, err
		}
		if !h.Started.Equal(r.Init) {
			return nil, protocol.ExecStatus{}, &fault.Error{Op: "jail.Exec", On: string(j.ID), Kind: fault.Unavailable,
				Err:    errors.New("the jail was started again while the command was executed; whether the command had effects is unknown"),
				Remedy: "check for the effects of the command before you repeat it"}
		}
	}
	stream, status, err := l.ctl.Exec(ctx, req, o)
	if err != nil { // a failed disk may be the cause
		err = errors.Join(l.checkWritable("jail.Exec", j), err)
	}
	return stream, status, err
}

// InitStarted returns when the init of a running jail was started. A jail that is restored with its
// memory keeps its init.
func (xs *execs) InitStarted(ctx context.Context, jid id.Jail) (time.Time, error) {
	_, l, err := xs.running(jid, "jail.InitStarted")
	if err != nil {
		return time.Time{}, err
	}
	h, err := l.ctl.Hello(ctx)
	return h.Started, err
}

// Attach streams the output of a command that was started earlier, perhaps by a previous
// daemon.
func (xs *execs) Attach(ctx context.Context, jid id.Jail, x id.Exec, o control.AttachOptions) (*control.Stream, error) {
	_, l, err := xs.running(jid, "jail.Attach")
	if err != nil {
		return nil, err
	}
	return l.ctl.Attach(ctx, x, o)
}

// Signal sends sig to the process group of a command.
func (xs *execs) Signal(ctx context.Context, jid id.Jail, x id.Exec, sig string) error {
	_, l, err := xs.running(jid, "jail.Signal")
	if err != nil {
		return err
	}
	return l.ctl.Signal(ctx, x, sig, true)
}

// Resize changes the size of a command's terminal.
func (xs *execs) Resize(ctx context.Context, jid id.Jail, x id.Exec, size protocol.Size) error {
	_, l, err := xs.running(jid, "jail.Resize")
	if err != nil {
		return err
	}
	return l.ctl.Resize(ctx, x, size)
}

// Stdin writes to a command started with Stdin or PTY.
func (xs *execs) Stdin(ctx context.Context, jid id.Jail, x id.Exec) (io.WriteCloser, error) {
	_, l, err := xs.running(jid, "jail.Stdin")
	if err != nil {
		return nil, err
	}
	return l.ctl.Stdin(ctx, x)
}

// Execs returns the known commands of a jail, oldest first. For a running jail these are the
// commands that init keeps; for a stopped jail, those that init kept when it exited.
func (xs *execs) Execs(ctx context.Context, jid id.Jail) ([]protocol.ExecStatus, error) {
	e, err := xs.registry.find(jid, "jail.Execs")
	if err != nil {
		return nil, err
	}
	l, err := e.running("jail.Execs")
	switch {
	case err == nil:
		return l.ctl.Execs(ctx)
	case l != nil: // the jail is held
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(xs.registry.dir(jid), "execs", "x-*.json"))
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

// ExecStatus returns the status of one command of a running or stopped jail.
func (xs *execs) ExecStatus(ctx context.Context, jid id.Jail, x id.Exec) (protocol.ExecStatus, error) {
	e, err := xs.registry.find(jid, "jail.ExecStatus")
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	l, err := e.running("jail.ExecStatus")
	switch {
	case err == nil:
		return l.ctl.ExecStatus(ctx, x)
	case l != nil: // the jail is held
		return protocol.ExecStatus{}, err
	}
	st, _, err := xs.archived(jid, x)
	return st, err
}

// Output calls f with the retained output of a command, in order, and returns the command's
// status. It does not wait for further output.
func (xs *execs) Output(ctx context.Context, jid id.Jail, x id.Exec, f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
	e, err := xs.registry.find(jid, "jail.Output")
	if err != nil {
		return protocol.ExecStatus{}, err
	}
	l, err := e.running("jail.Output")
	if l != nil && err != nil { // the jail is held
		return protocol.ExecStatus{}, err
	}
	if err != nil {
		st, chunks, err := xs.archived(jid, x)
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
	return s.Each(f)
}

// An archivedExec is a command in the state that it had when its jail stopped.
type archivedExec struct {
	Status protocol.ExecStatus
	Output []protocol.Chunk
}

// archive saves the commands and output that init has, for requests after the stop. It is best
// effort: an error does not prevent the stop.
func (xs *execs) archive(ctx context.Context, e *entry, l *liveInstance) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	jid := e.jail.Load().ID
	log := xs.cfg.Log.With("jail", jid)
	list, err := l.ctl.Execs(ctx)
	if err != nil {
		log.Warn("cannot archive commands", "err", err)
		return
	}
	dir := filepath.Join(xs.registry.dir(jid), "execs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		log.Warn("cannot archive commands", "err", err)
		return
	}
	for _, st := range list {
		if !id.Valid('x', string(st.ID)) {
			continue // init is not trusted, so its ids are checked before they become file names
		}
		a, err := archiveExec(st, func(f func(protocol.Chunk) error) (protocol.ExecStatus, error) {
			return copyOutput(ctx, l.ctl, st.ID, f)
		})
		if err != nil {
			log.Warn("cannot archive output", "exec", st.ID, "err", err)
		}
		data, err := json.Marshal(a)
		if err == nil {
			err = atomicfile.Write(filepath.Join(dir, string(st.ID)+".json"), data, 0o600)
		}
		if err != nil {
			log.Warn("cannot archive command", "exec", st.ID, "err", err)
		}
	}
}

// archiveExec returns the archive of a command with status st. read calls its argument with the
// command's output, and returns the status at the end of that output. If read fails, the archive
// has the output before the failure, and the rest as lost.
func archiveExec(st protocol.ExecStatus, read func(func(protocol.Chunk) error) (protocol.ExecStatus, error)) (archivedExec, error) {
	a := archivedExec{Status: st}
	size, at, end := 0, st.Oldest, st.Next
	status, err := read(func(ch protocol.Chunk) error {
		next := ch.Offset + int64(len(ch.Data))
		end = max(end, next)
		size += len(ch.Data)
		if size > maxRing {
			return errors.New("the output exceeds the maximum ring size")
		}
		a.Output = append(a.Output, protocol.Chunk{Stream: ch.Stream, Offset: ch.Offset, Lost: ch.Lost, Data: slices.Clone(ch.Data)})
		at = next
		return nil
	})
	if status.ID != "" { // the command may have ended since st
		a.Status = status
	}
	end = max(end, status.Next)
	if err != nil && at < end {
		a.Output = append(a.Output, protocol.Chunk{Stream: protocol.Stdout, Offset: end, Lost: end - at})
	}
	return a, err
}

func (xs *execs) archived(jid id.Jail, x id.Exec) (protocol.ExecStatus, []protocol.Chunk, error) {
	if !id.Valid('x', string(x)) {
		return protocol.ExecStatus{}, nil, fault.Newf(fault.NotFound, "jail.ExecStatus", string(x), "no such command")
	}
	st, out, err := readArchived(filepath.Join(xs.registry.dir(jid), "execs", string(x)+".json"))
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
	if err := json.Unmarshal(data, &a); err != nil {
		return protocol.ExecStatus{}, nil, fmt.Errorf("read archived command %s: %w", name, err)
	}
	if a.Status.Ended == nil { // Stop killed it right after the archive was written
		st, err := os.Stat(name)
		if err != nil {
			return protocol.ExecStatus{}, nil, err
		}
		ended := st.ModTime()
		a.Status.Ended, a.Status.Code, a.Status.Signal = &ended, 128+int(unix.SIGKILL), "KILL"
	}
	return a.Status, a.Output, nil
}
