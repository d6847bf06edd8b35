package oci

import (
	"context"
	"fmt"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
)

var _ jail.SecretHolder = (*instance)(nil)

// ShowSecrets implements jail.SecretHolder. The host mounts, in the jail's mount
// namespace: nobody in the jail may, its init neither, and init's memory, which
// is part of snapshots, never holds a value.
func (i *instance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	sentry := i.backend.kind.sentry
	if sentry && !i.plan.SecretFiles {
		if len(files) == 0 {
			return nil
		}
		return fault.Cannot("oci.ShowSecrets", "what a jail of gVisor has mounted is known to its own kernel alone, in which nobody can mount any more",
			"make the jail with the runtime runc or crun, or have the secret put into its requests")
	}
	shown := make([]secretfs.File, len(files))
	for n, f := range files {
		uid, gid, err := f.Host(i.plan.IDs)
		if err != nil {
			return fault.New(fault.Invalid, "oci.ShowSecrets", f.Name(), err)
		}
		shown[n] = secretfs.File{Name: f.Name(), Data: f.Bytes(), UID: uid, GID: gid}
	}
	if sentry {
		return i.fillSecrets(shown)
	}
	return i.secrets(func(n secretfs.Namespace) error { return n.Show(shown) })
}

// fillSecrets shows secrets to a jail of gVisor, through the mount of stageSecrets.
func (i *instance) fillSecrets(shown []secretfs.File) error {
	if !i.plan.SecretFiles {
		return nil // it has none
	}
	select {
	case <-i.Done():
		return fault.Newf(fault.NotFound, "oci.ShowSecrets", string(i.plan.ID), "the jail has ended")
	default:
		return secretfs.Fill(i.layout.secrets(), shown)
	}
}

// stageSecrets prepares the filesystem through which a jail of gVisor is shown secrets:
// gVisor passes changes of a bind mount on to the jail while it runs (its option
// --file-access-mounts is "shared" by default). Unlike other staged mounts it stays on
// the host, for ShowSecrets, until the jail ends.
func (m *making) stageSecrets() ([]bind, error) {
	if !m.backend.kind.sentry || !m.plan.SecretFiles {
		return nil, nil
	}
	at, first := m.layout.secrets(), m.plan.IDs.First
	if err := dirs.Make(at); err != nil {
		return nil, err
	}
	if err := secretfs.MountOn(at, first, first); err != nil {
		return nil, fmt.Errorf("mount a filesystem for secrets: %w", err)
	}
	target, err := mountPoint(m.layout.merged(), secretfs.Dir, true, first)
	if err == nil && target != secretfs.Dir {
		err = fault.Newf(fault.Conflict, "oci.Create", string(m.plan.ID), "%s is behind a symbolic link, to %s", secretfs.Dir, target)
	}
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", secretfs.Dir, err)
	}
	return []bind{{source: at, target: target}}, nil
}

// checkNoSecrets returns an error if the memory of a jail cannot be saved because its
// secrets are shown in a bind mount: gVisor opens files again by their paths when it
// restores a jail, and the files of secrets are not there at that time.
func (i *instance) checkNoSecrets(op string) error {
	if !i.backend.kind.sentry || !i.plan.SecretFiles {
		return nil
	}
	return fault.Cannot(op, "a jail of gVisor with secrets as files is not snapshotted with its memory", "stop the jail, and snapshot its files")
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(context.Context) error {
	if i.backend.kind.sentry {
		return i.fillSecrets(nil)
	}
	return i.secrets(secretfs.Namespace.Hide)
}

func (i *instance) secrets(do func(secretfs.Namespace) error) error {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	first := i.plan.IDs.First
	controlErr := conn.Control(func(fd uintptr) {
		err = do(secretfs.Namespace{PID: i.pid, PIDFD: int(fd), UID: first, GID: first})
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
