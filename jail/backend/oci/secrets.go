package oci

import (
	"context"
	"fmt"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jail/backend/base"
)

var _ jail.SecretHolder = (*instance)(nil)

// ShowSecrets implements jail.SecretHolder.
func (i *instance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	sentry := i.backend.kind.sentry
	if sentry && !i.plan.SecretFiles {
		if len(files) == 0 {
			return nil
		}
		return fault.Cannot("oci.ShowSecrets", "the mounts of a gVisor jail belong to gVisor's kernel and cannot be changed after its start",
			"create the jail with the runtime runc or crun, or inject the secret into its requests")
	}
	shown, err := i.HostFiles("oci.ShowSecrets", files)
	if err != nil {
		return err
	}
	if sentry {
		return i.fillSecrets(shown)
	}
	return i.Secrets(func(n secretfs.Namespace) error { return n.Show(shown) })
}

// fillSecrets shows secrets to a gVisor jail through the mount of stageSecrets.
func (i *instance) fillSecrets(shown []secretfs.File) error {
	if !i.plan.SecretFiles {
		return nil // the jail has no secret files
	}
	select {
	case <-i.Done():
		return fault.Newf(fault.NotFound, "oci.ShowSecrets", string(i.plan.ID), "the jail has ended")
	default:
		return secretfs.Fill(i.layout.secrets(), shown)
	}
}

// stageSecrets prepares the filesystem through which a gVisor jail sees secrets. gVisor
// propagates changes of a bind mount to a running jail (its option --file-access-mounts is
// "shared" by default). Unlike other staged mounts it stays mounted on the host until the jail
// ends, for ShowSecrets.
func (m *builder) stageSecrets() ([]bind, error) {
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
	target, err := base.MountPoint(m.layout.merged(), secretfs.Dir, true, first)
	if err == nil && target != secretfs.Dir {
		err = fault.Newf(fault.Conflict, "oci.Create", string(m.plan.ID), "%s resolves to %s through a symbolic link", secretfs.Dir, target)
	}
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", secretfs.Dir, err)
	}
	return []bind{{source: at, target: target}}, nil
}

// checkNoSecrets returns an error if the memory of a jail cannot be saved because its secrets
// are shown in a bind mount. gVisor reopens files by path when it restores a jail, and the
// secret files do not exist at that time.
func (i *instance) checkNoSecrets(op string) error {
	if !i.backend.kind.sentry || !i.plan.SecretFiles {
		return nil
	}
	return fault.Cannot(op, "the memory of a gVisor jail with secret files cannot be snapshotted", "stop the jail, then take a snapshot of its files")
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(context.Context) error {
	if i.backend.kind.sentry {
		return i.fillSecrets(nil)
	}
	return i.Secrets(secretfs.Namespace.Hide)
}
