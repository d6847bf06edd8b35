package criu

import (
	"context"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/rpc"

	"glasshouse/host/cgroup"
)

// A Restore says from which images processes are made, and where.
type Restore struct {
	Dir    string            // of the images
	Root   string            // the root of their mount namespace, a mount of the host
	Lent   map[string]string // what the host lends them: by mount point in the jail, a mount of the host
	Netns  string            // path of the network namespace they are in
	Cgroup *cgroup.Cgroup    // empty; frozen when Restore returns
	Worker *Worker           // from ToRestore, or nil

	// Lazy makes the processes without the memory that MapOf tells of. A server
	// of package pages must wait for them in Dir.
	Lazy bool

	// Close closes all TCP connections, also those of the jail with itself,
	// instead of making them again.
	Close bool

	// Keep, if it is not nil, gets the connections that lead out of the jail, which
	// are in no network yet.
	Keep *Connections
}

// Restore makes the processes in r.Dir again and returns the first one's pid.
// They are frozen and have not executed an instruction. If it fails, what it has
// begun is in the cgroup, for the caller to kill.
func (t *Tool) Restore(ctx context.Context, r Restore) (pid int, err error) {
	dir, err := os.Open(r.Dir)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	opts := options(dir)
	opts.Root = ptr(r.Root)
	opts.NotifyScripts = ptr(true)
	opts.TcpClose = ptr(true) // we connect them, unless r.Close
	for at, from := range r.Lent {
		opts.External = append(opts.External, "mnt["+at+"]:"+from)
	}
	at := place{netns: r.Netns, cgroup: r.Cgroup}
	if r.Lazy {
		opts.LazyPages = ptr(true)
	}
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_RESTORE), Opts: opts}
	resp, workErr := t.work(ctx, r.Worker, at, req, r.Dir, func(name string, worker int) error {
		if name != "pre-resume" {
			return nil
		}
		// All is made and held. CRIU, which was born in the cgroup for them to be
		// born there too, leaves it, or it would be frozen with them. Not before: as
		// long as it is there, who kills the jail's cgroup ends all of this.
		if err := r.Cgroup.Expel(worker); err != nil {
			return fmt.Errorf("take criu out of the cgroup: %w", err)
		}
		return r.Cgroup.FreezeSoon()
	})
	if err = workErr; err != nil {
		return 0, err
	}
	if err = r.Cgroup.Freeze(ctx); err == nil {
		err = reconnect(r.Dir, r.Cgroup, !r.Close, r.Keep)
	}
	return int(resp.GetRestore().GetPid()), err
}
