package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"filippo.io/age"

	"glasshouse/agents/gateway"
	"glasshouse/agents/run"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/snapshot/remote"
	"glasshouse/object"
	"glasshouse/object/dir"
	"glasshouse/object/s3"
	"glasshouse/policy/chain/archive"
)

// openObjects opens the object store that a URL names: file:///DIR or s3://BUCKET/PREFIX?endpoint=URL.
func (d *Daemon) openObjects(at string) (object.Store, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, fault.Fieldf("daemon.openObjects", "gateway.objects", "not a valid URL") // err could contain a password
	}
	switch {
	case u.Scheme == "s3":
		return s3.Open(u)
	case u.Scheme == "file" && u.Host == "" && u.Path != "" && u.RawQuery == "":
		s, err := dir.Open(u.Path)
		if err != nil {
			return nil, err
		}
		d.onClose(s.Close)
		return s, nil
	}
	return nil, fault.Fieldf("daemon.openObjects", "gateway.objects", "%q is neither file:///DIR nor s3://BUCKET", u.Redacted())
}

// archiveLog opens the object store, if one is configured, and copies the audit log there until everything
// that writes to the log has ended.
func (d *Daemon) archiveLog(ctx context.Context) error {
	c := d.Config.Gateway
	if c.Objects == "" {
		return nil
	}
	if c.DB == "" {
		return &fault.Error{Op: "daemon.archiveLog", Kind: fault.Invalid, Field: "gateway.objects",
			Err: fmt.Errorf("snapshots in an object store are for another daemon, which needs the runs"), Remedy: "set gateway.db as well"}
	}
	key, err := d.readRunsKey()
	if err != nil {
		return err
	}
	holder, err := readInstanceID(d.Config.Data)
	if err != nil {
		return err
	}
	d.objects, err = d.openObjects(c.Objects)
	if err != nil {
		return fmt.Errorf("open the object store: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.wg.Go(func() { d.warnOfObjects(ctx) })
	d.archive = &archive.Archive{Objects: d.objects, Key: key}
	copier := archive.Copier{Archive: d.archive, Node: holder, Chain: d.chain, Log: d.log.With("part", "chain")}
	var copying sync.WaitGroup
	copying.Go(func() { copier.Run(ctx) })
	d.onClose(func() error { cancel(); copying.Wait(); return nil })
	return nil
}

// readRunsKey returns the key that encrypts data of runs, and objects.
func (d *Daemon) readRunsKey() (*age.X25519Identity, error) {
	return run.ReadKey(cmp.Or(d.Config.Gateway.KeyFile, filepath.Join(d.Config.Data, "quarantine.key")))
}

// remoteSnapshots returns the copies of the snapshots of runs, or nil without an object store.
func (d *Daemon) remoteSnapshots(key *age.X25519Identity) gateway.Remote {
	if d.objects == nil {
		return nil
	}
	return &remote.Snapshots{Objects: d.objects, Local: d.snapshots, Key: key}
}

// objectsTimeout limits a check of the object store.
const objectsTimeout = 15 * time.Second

// probeObjects reports to doctor whether the object store can be used.
func (d *Daemon) probeObjects(ctx context.Context) wire.Probe {
	p := wire.Probe{Name: "object store", Status: "ok", Need: Recommended, Purpose: "runs that continue, and audit logs that can be read, after the loss of a host"}
	ctx, cancel := context.WithTimeout(ctx, objectsTimeout)
	defer cancel()
	if err := object.Check(ctx, d.objects); err != nil {
		p.Status, p.Reason, p.Remedy = "unsupported", err.Error(), fault.RemedyOf(err)
	}
	return p
}

// warnOfObjects logs why the object store cannot be used. It does not prevent the start: the store
// may be down, and copies are repeated.
func (d *Daemon) warnOfObjects(ctx context.Context) {
	if p := d.probeObjects(ctx); p.Reason != "" && ctx.Err() == nil {
		d.log.Warn("the object store cannot be used; runs would not survive the loss of this host", "err", p.Reason, "remedy", p.Remedy)
	}
}
