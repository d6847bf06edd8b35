package criu

import (
	"context"
	"errors"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/rpc"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// A Dump says which processes are written down, and what they have from the
// host.
type Dump struct {
	PID     int            // the first process of the jail
	Netns   string         // path of its network namespace
	Cgroup  *cgroup.Cgroup // frozen: it is frozen when Dump returns, too
	Lent    []string       // mount points, in the jail, of what the host lends it
	Watched []string       // paths, in the jail, of what its processes watch by inotify
	Worker  *Worker        // from ToDump, or nil
	Dir     string         // for the images: empty, and on a filesystem in memory if it is to be quick

	// Linked is told of names in the jail that files have for the time of the
	// dump, and must have again for a restore.
	Linked func(names []string) error
}

// maxGhost bounds what is written down of one file that was deleted while open.
const maxGhost = 1 << 30

// Dump writes a frozen jail's processes to d.Dir and leaves them as they were,
// also if it fails or is called off: what was begun is always finished or undone
// by the worker itself, which may take a moment.
//
// Whoever kills the worker, as root can, may kill the jail: there are instants in
// which a process of it runs the worker's code in place of its own.
//
// After a PreDump to the same directory Whole is to follow.
func (t *Tool) Dump(ctx context.Context, d Dump) error {
	err := t.dump(ctx, d)
	if err == nil && !isAhead(d.Dir) { // else Whole does
		return Wipe(d.Dir)
	}
	if err == nil || ctx.Err() != nil || !isAhead(d.Dir) || fault.KindOf(err) != "" {
		return err
	}
	// What was written ahead may be of no use. The jail waits longer, that is all.
	if again := forgetAhead(d.Dir); again != nil {
		return errors.Join(err, again)
	}
	d.Worker = nil
	if again := t.dump(ctx, d); again != nil {
		return errors.Join(again, err)
	}
	return Wipe(d.Dir)
}

func (t *Tool) dump(ctx context.Context, d Dump) error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	opts := options(dir)
	opts.Pid = ptr(int32(d.PID))
	opts.LeaveRunning = ptr(true)
	opts.LinkRemap, opts.NotifyScripts = ptr(true), ptr(true)
	opts.GhostLimit = ptr(uint32(maxGhost))
	opts.FreezeCgroup = ptr(d.Cgroup.Freezer())
	opts.IrmapScanPaths, opts.ForceIrmap = d.Watched, ptr(len(d.Watched) > 0)
	if isAhead(d.Dir) {
		opts.TrackMem, opts.ParentImg = ptr(true), ptr(ahead)
	}
	for _, at := range d.Lent {
		opts.External = append(opts.External, "mnt["+at+"]:"+at)
	}
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_DUMP), Opts: opts}
	if _, err = t.work(ctx, d.Worker, place{netns: d.Netns, precious: true}, req, d.Dir, func(name string, _ int) error {
		if name != "post-dump" {
			return nil
		}
		names, err := links(d.Dir)
		if err != nil || len(names) == 0 {
			return err
		}
		return d.Linked(names)
	}); err != nil {
		// A worker that was killed has left them running.
		err = errors.Join(err, d.Cgroup.Freeze(context.WithoutCancel(ctx)))
	}
	return err
}

// options are those of both directions.
func options(dir *os.File) *rpc.CriuOpts {
	return &rpc.CriuOpts{
		ImagesDirFd:       ptr(int32(dir.Fd())),
		LogFile:           ptr(logName),
		LogLevel:          ptr(int32(1)),
		TcpEstablished:    ptr(true),
		NetworkLock:       ptr(rpc.CriuNetworkLockMethod_SKIP), // nobody runs who could send
		FileLocks:         ptr(true),
		ManageCgroupsMode: ptr(rpc.CriuCgMode_IGNORE),
	}
}

func ptr[T any](v T) *T { return &v }
