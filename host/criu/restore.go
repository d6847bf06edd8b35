package criu

import (
	"context"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/rpc"

	"glasshouse/host/cgroup"
)

// A Restore describes which images to restore and where.
type Restore struct {
	Dir      string            // directory of the images
	Root     string            // the root of their mount namespace, a mount on the host
	External map[string]string // external mounts: mount point in the jail to mount on the host
	Netns    string            // path of their network namespace
	Cgroup   *cgroup.Cgroup    // empty; frozen when Restore returns
	Worker   *Worker           // from ToRestore, or nil

	// Lazy restores the processes without the memory that LazyMap lists. A server of package
	// pages must be listening in Dir.
	Lazy bool

	// CloseConnections closes all TCP connections instead of restoring them, including connections within
	// the jail.
	CloseConnections bool

	// KeepConnections, if not nil, receives the external connections of the jail, which are not yet
	// connected.
	KeepConnections *Connections
}

// Restore restores the processes in r.Dir and returns the pid of the first one. They are
// frozen and have not executed an instruction. If Restore fails the caller must kill the
// processes in the cgroup.
func (t *Tool) Restore(ctx context.Context, r Restore) (pid int, err error) {
	dir, err := os.Open(r.Dir)
	if err != nil {
		return 0, fmt.Errorf("open the directory of the images: %w", err)
	}
	defer dir.Close()
	opts := options(dir)
	opts.Root = ptr(r.Root)
	opts.NotifyScripts = ptr(true)
	opts.TcpClose = ptr(true) // reconnect connects them, unless r.CloseConnections
	for at, from := range r.External {
		opts.External = append(opts.External, "mnt["+at+"]:"+from)
	}
	at := workerConfig{netns: r.Netns, cgroup: r.Cgroup}
	if r.Lazy {
		opts.LazyPages = ptr(true)
	}
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_RESTORE), Opts: opts}
	resp, workErr := t.work(ctx, r.Worker, at, req, r.Dir, func(name string, worker int) error {
		if name != "pre-resume" {
			return nil
		}
		// All processes exist and are stopped. CRIU was started in the cgroup so that its
		// children belong to it. It leaves the cgroup now, because it would be frozen with
		// them. It must not leave earlier: until now killing the cgroup ends the whole
		// restore.
		if err := r.Cgroup.MoveOut(worker); err != nil {
			return fmt.Errorf("move criu out of the cgroup: %w", err)
		}
		return r.Cgroup.FreezeSoon()
	})
	if err = workErr; err != nil {
		return 0, err
	}
	if err = r.Cgroup.Freeze(ctx); err == nil {
		err = reconnect(r.Dir, r.Cgroup, !r.CloseConnections, r.KeepConnections)
	}
	return int(resp.GetRestore().GetPid()), err
}
