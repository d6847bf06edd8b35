package daemon

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"filippo.io/age"

	"glasshouse/agents/gateway"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/snapshot/remote"
	"glasshouse/object"
	"glasshouse/object/dir"
	"glasshouse/object/s3"
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

// remoteSnapshots returns the copies of the snapshots of runs, or nil without an object store.
func (d *Daemon) remoteSnapshots(ctx context.Context, key *age.X25519Identity) (gateway.Remote, error) {
	at := d.Config.Gateway.Objects
	if at == "" {
		return nil, nil
	}
	if d.Config.Gateway.DB == "" {
		return nil, &fault.Error{Op: "daemon.remoteSnapshots", Kind: fault.Invalid, Field: "gateway.objects",
			Err: fmt.Errorf("snapshots in an object store are for another daemon, which needs the runs"), Remedy: "set gateway.db as well"}
	}
	objects, err := d.openObjects(at)
	if err != nil {
		return nil, fmt.Errorf("open the object store: %w", err)
	}
	d.objects = objects
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.onClose(func() error { cancel(); return nil })
	d.wg.Go(func() { d.warnOfObjects(ctx) })
	return &remote.Snapshots{Objects: objects, Local: d.snapshots, Key: key}, nil
}

// objectsTimeout limits a check of the object store.
const objectsTimeout = 15 * time.Second

// probeObjects reports to doctor whether the object store can be used.
func (d *Daemon) probeObjects(ctx context.Context) wire.Probe {
	p := wire.Probe{Name: "object store", Status: "ok", Need: Recommended, Purpose: "runs that continue after the loss of a host"}
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
