package jail

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"glasshouse/fault"
	"glasshouse/id"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// Files reads and writes the files of one jail. Paths are resolved in the jail and cannot lead
// out of it. The caller closes it.
type Files interface {
	Stat(ctx context.Context, path string) (protocol.FileInfo, error)
	List(ctx context.Context, path, after string, limit int) (infos []protocol.FileInfo, more bool, err error)
	Read(ctx context.Context, path string, offset, limit int64) (io.ReadCloser, protocol.FileInfo, error)
	Write(ctx context.Context, path string, r io.Reader, o protocol.WriteOptions) (protocol.FileInfo, error)
	Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error
	MkdirFor(ctx context.Context, path string, o protocol.Owner) error
	Remove(ctx context.Context, path string, recursive bool) error
	Move(ctx context.Context, from, to string, replace bool) error
	Tar(ctx context.Context, path string) (io.ReadCloser, error)
	Untar(ctx context.Context, path string, r io.Reader) error
	Close() error
}

// Files returns access to a jail's files: through its init if it is live, otherwise through a
// mount on the host or its backend. While the files of a stopped jail are open, Files holds the jail's lock,
// so the jail cannot be started or removed.
func (xs *execs) Files(ctx context.Context, jid id.Jail) (Files, error) {
	const op = "jail.Files"
	e, unlock, err := xs.registry.lock(ctx, jid, op)
	if err != nil {
		return nil, err
	}
	j, l := *e.jail.Load(), e.live.Load()
	if l != nil && j.State != Paused {
		unlock()
		if err := l.checkHeld(op, j); err != nil {
			return nil, err
		}
		return liveFiles{l.ctl}, nil
	}
	if j.State != Stopped && j.State != Failed {
		unlock()
		return nil, &fault.Error{Op: op, On: string(jid), Kind: fault.Conflict, Err: errors.New("the jail is " + string(j.State)), Remedy: "resume the jail first"}
	}
	files, err := xs.stoppedFiles(ctx, j)
	if err != nil {
		unlock()
		return nil, err
	}
	return &lockedFiles{files, unlock}, nil
}

func (xs *execs) stoppedFiles(ctx context.Context, j Jail) (Files, error) {
	b, err := xs.registry.backend(j.Spec)
	if err != nil {
		return nil, err
	}
	if server, ok := b.(FileServer); ok {
		socket, done, err := server.ServeFiles(ctx, xs.registry.plan(j))
		if err != nil {
			return nil, err
		}
		return servedFiles{control.Dial(socket), done}, nil
	}
	dir, unmount, err := b.Mount(ctx, xs.registry.plan(j))
	if err != nil {
		return nil, err
	}
	root, err := jailfs.Open(dir)
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	var targets []string
	if j.Spec.Workspace != nil {
		targets = append(targets, j.Spec.Workspace.At())
	}
	for _, m := range j.Spec.Mounts {
		targets = append(targets, m.Target)
	}
	if err := root.Mounts(targets); err != nil {
		return nil, errors.Join(err, root.Close(), unmount())
	}
	return hostFiles{root, unmount}, nil
}

// liveFiles are a running jail's files, through its init.
type liveFiles struct{ *control.Client }

func (liveFiles) Close() error { return nil }

// servedFiles are a stopped jail's files, through its backend.
type servedFiles struct {
	*control.Client
	done func() error
}

func (f servedFiles) Close() error { return f.done() }

// hostFiles are a stopped jail's files, mounted on the host.
type hostFiles struct {
	*jailfs.Root
	unmount func() error
}

func (f hostFiles) Close() error { return errors.Join(f.Root.Close(), f.unmount()) }

// lockedFiles are the files of a jail that is locked until they are closed.
type lockedFiles struct {
	Files
	unlock func()
}

func (f *lockedFiles) Close() error {
	if f.unlock == nil {
		return nil
	}
	defer f.unlock()
	f.unlock = nil
	return f.Files.Close()
}

// Watch reports changes below path in a running jail until ctx ends.
func (xs *execs) Watch(ctx context.Context, jid id.Jail, path string, recursive bool) (<-chan protocol.FileEvent, error) {
	_, l, err := xs.running(jid, "jail.Watch")
	if err != nil {
		return nil, err
	}
	return l.ctl.Watch(ctx, path, recursive)
}
