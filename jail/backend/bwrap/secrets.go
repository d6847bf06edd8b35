package bwrap

import (
	"context"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/jail"
)

var _ jail.SecretHolder = (*instance)(nil)

// ShowSecrets implements jail.SecretHolder. The host mounts the secrets in the jail's mount
// namespace. No process of the jail may mount.
func (i *instance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	if i.kind != asRoot {
		if len(files) == 0 {
			return nil
		}
		return fault.Cannot("bwrap.ShowSecrets", "mounting in a running jail needs root",
			"run the daemon as root, or inject the secret into the jail's requests")
	}
	shown := make([]secretfs.File, len(files))
	for n, f := range files {
		uid, gid, err := f.Host(i.plan.IDs)
		if err != nil {
			return fault.New(fault.Invalid, "bwrap.ShowSecrets", f.Name(), err)
		}
		shown[n] = secretfs.File{Name: f.Name(), Data: f.Bytes(), UID: uid, GID: gid}
	}
	return i.secrets(func(n secretfs.Namespace) error { return n.Show(shown) })
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(context.Context) error {
	if i.kind != asRoot {
		return nil
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
