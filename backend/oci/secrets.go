package oci

import (
	"context"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/jail"
)

var _ jail.SecretHolder = (*instance)(nil)

// ShowSecrets implements jail.SecretHolder. The host mounts, in the jail's mount
// namespace: nobody in the jail may, its init neither, and init's memory, which
// is part of snapshots, never holds a value.
func (i *instance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	if i.backend.kind.sentry {
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
	return i.secrets(func(n secretfs.Namespace) error { return n.Show(shown) })
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(context.Context) error {
	if i.backend.kind.sentry {
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
