package oci

import (
	"context"

	"glasshouse/fault"
	"glasshouse/jail"
)

func (b *Backend) sentryCanCheckpoint(context.Context) error {
	return fault.Cannot("oci.CanCheckpoint", "checkpoints of gVisor", "use the runtime runc")
}

func (b *Backend) sentryDump(context.Context, *instance, string) error { return nil }

func (m *making) sentryRestore(context.Context, string) (jail.Instance, error) { return nil, nil }
