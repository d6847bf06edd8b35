package criu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v8/rpc"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// A Dump describes which processes to checkpoint and their external resources.
type Dump struct {
	PID      int            // the first process of the jail
	Netns    string         // path of its network namespace
	Cgroup   *cgroup.Cgroup // must be frozen; it is still frozen when Dump returns
	External []string       // mount points, in the jail, of external mounts
	Watched  []string       // paths, in the jail, that its processes watch with inotify
	Worker   *Worker        // from ToDump, or nil
	Dir      string         // for the images: empty; a tmpfs is fastest

	// OnLinks is called with the paths of hard links in the jail that exist only during the
	// dump. They must be created again for a restore.
	OnLinks func(names []string) error
}

// maxGhost limits the dumped size of one file that was deleted while open (CRIU: ghost file).
const maxGhost = 1 << 30

// Dump checkpoints the processes of a frozen jail to d.Dir and leaves them unchanged, even if
// it fails or ctx is cancelled. The worker always completes or undoes the operation, so Dump
// may return a moment after the cancellation.
//
// Killing the worker can kill the jail: at some moments a process of the jail runs CRIU's
// parasite code.
//
// After a PreDump to the same directory the caller must call MergePreDump.
func (t *Tool) Dump(ctx context.Context, d Dump) error {
	err := t.dump(ctx, d)
	if err == nil && !hasPreDump(d.Dir) { // otherwise MergePreDump calls Wipe
		return Wipe(d.Dir)
	}
	if err == nil || ctx.Err() != nil || !hasPreDump(d.Dir) || fault.KindOf(err) != "" {
		return err
	}
	// The pre-dump may be unusable. Dump again without it, which only extends the pause.
	if again := removePreDump(d.Dir); again != nil {
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
		return fmt.Errorf("open the directory of the images: %w", err)
	}
	defer dir.Close()
	opts := options(dir)
	opts.Pid = ptr(int32(d.PID))
	opts.LeaveRunning = ptr(true)
	opts.LinkRemap, opts.NotifyScripts = ptr(true), ptr(true)
	opts.GhostLimit = ptr(uint32(maxGhost))
	opts.FreezeCgroup = ptr(d.Cgroup.Freezer())
	opts.IrmapScanPaths, opts.ForceIrmap = d.Watched, ptr(len(d.Watched) > 0)
	if hasPreDump(d.Dir) {
		opts.TrackMem, opts.ParentImg = ptr(true), ptr(preDumpDir)
	}
	for _, at := range d.External {
		opts.External = append(opts.External, "mnt["+at+"]:"+at)
	}
	req := &rpc.CriuReq{Type: ptr(rpc.CriuReqType_DUMP), Opts: opts}
	if _, err = t.work(ctx, d.Worker, workerConfig{netns: d.Netns, critical: true}, req, d.Dir, func(name string, _ int) error {
		if name != "post-dump" {
			return nil
		}
		names, err := links(d.Dir)
		if err != nil {
			return fmt.Errorf("find the links to removed files: %w", err)
		}
		if len(names) == 0 {
			return nil
		}
		return d.OnLinks(names)
	}); err != nil {
		// A killed worker leaves the processes running.
		err = errors.Join(err, d.Cgroup.Freeze(context.WithoutCancel(ctx)))
	}
	return err
}

// options returns the options that dump and restore have in common.
func options(dir *os.File) *rpc.CriuOpts {
	return &rpc.CriuOpts{
		ImagesDirFd:       ptr(int32(dir.Fd())),
		LogFile:           ptr(logName),
		LogLevel:          ptr(int32(1)),
		TcpEstablished:    ptr(true),
		NetworkLock:       ptr(rpc.CriuNetworkLockMethod_SKIP), // all processes are frozen and cannot send
		FileLocks:         ptr(true),
		ManageCgroupsMode: ptr(rpc.CriuCgMode_IGNORE),
	}
}

func ptr[T any](v T) *T { return &v }
