package bwrap

import (
	"context"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/jail"
)

var _ jail.SecretHolder = (*instance)(nil)

// ShowSecrets implements jail.SecretHolder.
func (i *instance) ShowSecrets(_ context.Context, files []jail.SecretFile) error {
	if i.kind != asRoot {
		if len(files) == 0 {
			return nil
		}
		return fault.Cannot("bwrap.ShowSecrets", "mounting in a running jail needs root",
			"run the daemon as root, or inject the secret into the jail's requests")
	}
	shown, err := i.HostFiles("bwrap.ShowSecrets", files)
	if err != nil {
		return err
	}
	return i.Secrets(func(n secretfs.Namespace) error { return n.Show(shown) })
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(context.Context) error {
	if i.kind != asRoot {
		return nil
	}
	return i.Secrets(secretfs.Namespace.Hide)
}
