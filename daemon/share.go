package daemon

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail"
)

// shareTime is how often the size of the event logs is compared with events.share.
const shareTime = time.Minute

// lowSpace is the percentage of free space below which the daemon warns.
const lowSpace = 10

// diskSize returns the size of the file system that contains dir and its free space, in bytes.
func diskSize(dir string) (total, free int64, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(disk.Blocks) * disk.Bsize, int64(disk.Bavail) * disk.Bsize, nil
}

// shareOf returns a percentage of the size of the file system that contains dir, in bytes.
func shareOf(dir string, percent int) (int64, error) {
	total, _, err := diskSize(dir)
	return total / 100 * int64(percent), err
}

// limitLogs keeps the event logs of all jails within events.share until the daemon closes.
func (d *Daemon) limitLogs() {
	percent := d.Config.Events.Share
	if percent == 0 {
		return
	}
	d.every(shareTime, func(ctx context.Context) {
		limit, err := shareOf(d.Config.Data, percent)
		if err == nil {
			err = d.trimLogs(ctx, limit)
		}
		if err != nil && ctx.Err() == nil {
			d.log.Error("cannot limit the size of the event logs", "err", err)
		}
	})
}

// trimLogs removes the oldest closed segments until all event logs use at most limit bytes, those
// of jails without processes first.
func (d *Daemon) trimLogs(ctx context.Context, limit int64) error {
	freed, err := d.observers.Trim(ctx, limit, func(jid id.Jail) bool {
		j, err := d.jails.Get(ctx, jid)
		return err != nil || j.State == jail.Stopped || j.State == jail.Failed
	})
	if freed > 0 {
		d.log.Warn("removed the oldest segments of event logs, which exceeded events.share", "freed_bytes", freed, "limit_bytes", limit)
	}
	return err
}

// shares are the parts of the file system that event logs and snapshots may use.
type shares struct {
	events, snapshots int // percentages; 0 is no limit
}

// warnings returns warnings for the operator about the disk usage w.
func (s shares) warnings(w wire.Storage) []string {
	var list []string
	for _, part := range w.Parts {
		limit, key, remedy := 0, "", ""
		switch part.Name {
		case "events":
			limit, key, remedy = s.events, "events.share", "reduce events.segment_mb or the recording (--observe), or delete jails"
		case "snapshots":
			limit, key, remedy = s.snapshots, "snapshots.share", "delete snapshots that are not needed: automatic ones are removed, others are not"
		}
		if limit > 0 && part.Bytes > w.Total/100*int64(limit) {
			list = append(list, fmt.Sprintf("%s use %d%% of the file system, and %s is %d%%: %s", part.Name, part.Bytes*100/max(1, w.Total), key, limit, remedy))
		}
	}
	if w.Free < w.Total/100*lowSpace {
		list = append(list, fmt.Sprintf("%d%% of the file system is free: delete jails and snapshots, or enlarge it", w.Free*100/max(1, w.Total)))
	}
	return list
}

// probeDisk reports the warnings about the disk usage to doctor.
func (d *Daemon) probeDisk(ctx context.Context) wire.Probe {
	p := wire.Probe{Name: "disk usage", Status: "unknown", Need: Recommended, Purpose: "room for jails, snapshots and event logs"}
	w, err := d.storage.now(ctx)
	if err != nil {
		p.Reason = err.Error()
		return p
	}
	p.Status, p.Detail = "ok", fmt.Sprintf("%d MiB of %d MiB are free", w.Free>>20, w.Total>>20)
	if len(w.Warnings) > 0 {
		p.Status, p.Reason, p.Remedy = "warning", strings.Join(w.Warnings, "; "), "GET /storage shows the usage by category"
	}
	return p
}
