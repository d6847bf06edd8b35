package daemon

import (
	"context"
	"os"
	"path/filepath"

	"glasshouse/chain"
	"glasshouse/govern"
	"glasshouse/policy"
)

// openGovernance opens what decides and what records decisions. The store is
// open; the jails are not.
func (d *Daemon) openGovernance(ctx context.Context) error {
	c := d.Config
	key, err := chain.LoadKey(c.Data)
	if err != nil {
		return err
	}
	d.chain, err = chain.Open(ctx, chain.Config{Store: d.store.Chain(), Key: key, Log: d.log.With("part", "chain")})
	if err != nil {
		return err
	}
	d.onClose(d.chain.Close)
	if err := d.openSecrets(ctx); err != nil {
		return err
	}
	d.kernel = govern.New(govern.Config{
		Chain:   d.chain,
		Secrets: injected{d.secrets},
		Dir:     filepath.Join(c.Data, "ca"),
		Log:     d.log.With("part", "govern"),
	})
	d.groups = &groups{log: d.log.With("part", "groups")}
	d.onClose(d.groups.Close)
	d.onClose(func() error {
		d.kernel.Note(chain.DaemonStopped, policy.Subject{}, 0, struct{}{})
		return d.kernel.Close()
	})
	d.kernel.Note(chain.DaemonStarted, policy.Subject{}, 0, struct {
		Version string `json:"version"`
		PID     int    `json:"pid"`
	}{d.Version.Version, os.Getpid()})
	return d.openApprovals(ctx)
}
