package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/enforce"
)

// verifyTime is how often new audit log entries are verified and unused jail keys are removed.
const verifyTime = time.Hour

// sweepKeys removes the certificate authorities of jails that are deleted and have no
// snapshots.
func (d *Daemon) sweepKeys(ctx context.Context) {
	err := d.kernel.Sweep(ctx, func(ctx context.Context) (specs []json.RawMessage, err error) {
		jails, err := d.store.Jails().All(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the records of jails: %w", err)
		}
		for _, j := range jails {
			specs = append(specs, j.Spec.Policy)
		}
		snapshots, err := d.store.Snapshots().All(ctx)
		for _, s := range snapshots {
			specs = append(specs, s.Jail.Spec.Policy)
		}
		return specs, err
	})
	if err != nil && ctx.Err() == nil {
		d.log.Warn("cannot remove the keys of deleted jails", "err", err)
	}
}

// watchChain verifies new audit log entries periodically and logs the result.
func (d *Daemon) watchChain() {
	d.every(verifyTime, func(ctx context.Context) {
		if r, err := d.chain.Verify(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("cannot verify the audit log", "err", err)
		} else if r.Bad != nil {
			d.log.Error("the audit log was modified", "bad", r.Bad.String())
		}
		d.sweepKeys(ctx)
	})
}

// newGovernance opens the audit log, and creates the secrets and the policy engine. The store
// must be open.
func (d *Daemon) newGovernance(ctx context.Context) error {
	c := d.Config
	key, err := chain.LoadKey(c.Data)
	if err != nil {
		return err
	}
	d.chain, err = chain.Open(ctx, chain.Config{Store: d.store.Chain(), Key: key, HeadFile: c.Audit.HeadFile, Log: d.log.With("part", "chain")})
	if err != nil {
		return err
	}
	d.onClose(d.chain.Close)
	if err := d.archiveLog(ctx); err != nil {
		return err
	}
	if err := d.newSecrets(); err != nil {
		return err
	}
	d.kernel = govern.New(govern.Config{
		Chain:   d.chain,
		Secrets: injected{d.secrets},
		Refuser: d.openRefuser(),
		Dir:     filepath.Join(c.Data, "ca"),
		Log:     d.log.With("part", "govern"),
	})
	d.watchChain()
	d.groups = &groups{log: d.log.With("part", "groups")}
	d.fences = newFences()
	d.onClose(d.groups.Close)
	d.onClose(func() error {
		d.kernel.Note(chain.DaemonStopped, policy.Subject{}, 0, struct{}{})
		return d.kernel.Close()
	})
	d.kernel.Note(chain.DaemonStarted, policy.Subject{}, 0, struct {
		Version string `json:"version"`
		PID     int    `json:"pid"`
	}{d.Version.Version, os.Getpid()})
	return nil
}

// openRefuser loads the BPF LSM programs that deny operations in the kernel, if the kernel
// supports them. Without them, policies are enforced only when an operation is evaluated.
// Doctor reports the reason.
func (d *Daemon) openRefuser() govern.Refuser {
	lsm, err := enforce.OpenLSM()
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, fault.Unsupported) {
			level = slog.LevelDebug
		}
		d.log.Log(context.Background(), level, "policy denials are not enforced by the BPF LSM", "err", err)
		return nil
	}
	d.onClose(lsm.Close)
	return lsm
}
