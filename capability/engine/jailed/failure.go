package jailed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/capability/engine"
	"glasshouse/host/disk"
	"glasshouse/jail"
)

// A trouble is an error in the response of the program. A limit that the sandbox has
// exceeded may be the actual cause; see failure.
type trouble struct {
	kind   engine.Kind
	reason string
	err    error
}

func (t *trouble) Error() string { return t.reason }
func (t *trouble) Unwrap() error { return t.err }

func troublef(kind engine.Kind, err error, format string, args ...any) *trouble {
	return &trouble{kind, fmt.Sprintf(format, args...), err}
}

// failure returns why a call has failed. Exceeded limits take precedence, because they can cause
// the other errors.
func (s *sandbox) failure(ctx context.Context, err error, stats jail.Stats, statsErr error) *engine.Failure {
	c := s.c
	f := &engine.Failure{Kind: engine.Crashed, Reason: err.Error(), Err: err}
	if t, ok := errors.AsType[*trouble](err); ok {
		f.Kind, f.Err = t.kind, t.err
	}
	if f.Kind == engine.Network || f.Kind == engine.Storage {
		return f
	}
	switch cause := context.Cause(ctx); {
	case cause == errTimeout:
		f.Kind, f.Reason = engine.TimedOut, fmt.Sprintf("it exceeded its time limit of %v", s.timeout())
		return f
	case cause == errNetwork:
		f.Kind, f.Reason = engine.Network, fmt.Sprintf("it exceeded its network limit of %d bytes", c.Resources.NetworkBytes)
		return f
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		f.Kind, f.Reason = engine.TimedOut, "it exceeded the deadline of its caller"
		return f
	case cause != nil:
		f.Kind, f.Reason, f.Err = engine.Cancelled, cancelReason(ctx), cause
		return f
	}
	if s.outOfMemory(stats, statsErr) {
		f.Kind, f.Reason = engine.Memory, "it exceeded its memory limit"
		return f
	}
	if s.outOfRoom(stats, statsErr) {
		f.Kind, f.Reason = engine.Storage, fmt.Sprintf("it exceeded its disk quota of %d MiB: %s", quota(c), f.Reason)
	}
	return f
}

func (s *sandbox) timeout() time.Duration {
	if t := s.c.Resources.Timeout; t > 0 {
		return t
	}
	return defaultTimeout
}

// endTime bounds the wait until the jail of a program that has exited is reported as ended.
const endTime = 2 * time.Second

// outOfMemory reports whether the OOM killer has killed a process of the sandbox. The jail
// may have ended because of that.
func (s *sandbox) outOfMemory(stats jail.Stats, err error) bool {
	if err == nil && stats.OOMKills > s.base.kills {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		// Stats fails while the jail has ended but is recorded as running. The state is
		// read after Stats, because Stats reports no kills of an ended jail.
		now, statsErr := s.engine.cfg.Jails.Stats(ctx, s.jail)
		j, err := s.engine.cfg.Jails.Get(ctx, s.jail)
		if err != nil || j.State != jail.Running {
			return err == nil && j.OutOfMemory()
		}
		if statsErr == nil {
			return now.OOMKills > s.base.kills
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// full is the usage of a disk, in percent, from which a failure is attributed to a full
// disk. It is below 100 because a rejected write does not use space.
const full = 95

// outOfRoom reports whether the disk of the jail or its volume is full.
func (s *sandbox) outOfRoom(stats jail.Stats, err error) bool {
	if err == nil && stats.DiskLimit > 0 && stats.DiskBytes >= stats.DiskLimit/100*full {
		return true
	}
	if s.volume == "" {
		return false
	}
	used, free := volumeUse(s.volume)
	return free <= (used+free)/100*(100-full)
}

// volumeUse returns the used bytes of a volume and the bytes that are available to a program.
func volumeUse(dir string) (used, free int64) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// tooMuch returns an error if a call has exceeded its network limit or its quota, even if
// the program reports success.
func (s *sandbox) tooMuch(u engine.Usage) error {
	if limit := s.c.Resources.NetworkBytes; limit > 0 && u.NetworkOut > limit {
		return troublef(engine.Network, errNetwork, "it sent %d bytes, the limit is %d", u.NetworkOut, limit)
	}
	// The disk of a jail has at least disk.MinMB, so it does not enforce a smaller quota.
	if mb := quota(s.c); mb < disk.MinMB && u.StorageWrite > int64(mb)<<20 {
		return troublef(engine.Storage, nil, "it wrote %d bytes, the quota is %d MiB", u.StorageWrite, mb)
	}
	return nil
}
