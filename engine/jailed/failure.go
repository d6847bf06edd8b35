package jailed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/engine"
	"glasshouse/host/disk"
	"glasshouse/jail"
)

// A trouble is how serving a call went wrong, as far as can be seen from what the
// program answers. What the sandbox met may say more.
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

// failure finds out why a call has failed. A limit that was met comes first: all
// else follows from it.
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
		f.Kind, f.Reason = engine.TimedOut, fmt.Sprintf("it took longer than the %v it may", s.timeout())
		return f
	case cause == errNetwork:
		f.Kind, f.Reason = engine.Network, fmt.Sprintf("it sent more than the %d bytes it may", c.Resources.NetworkBytes)
		return f
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		f.Kind, f.Reason = engine.TimedOut, "it took longer than its caller gave it"
		return f
	case cause != nil:
		f.Kind, f.Reason, f.Err = engine.Cancelled, unwanted(ctx), cause
		return f
	}
	if s.outOfMemory(stats, statsErr) {
		f.Kind, f.Reason = engine.Memory, "it used more memory than it may"
		return f
	}
	if s.outOfRoom(stats, statsErr) {
		f.Kind, f.Reason = engine.Storage, fmt.Sprintf("it wrote more than the %d MiB it may: %s", quota(c), f.Reason)
	}
	return f
}

func (s *sandbox) timeout() time.Duration {
	if t := s.c.Resources.Timeout; t > 0 {
		return t
	}
	return defaultTimeout
}

// endTime is how long after its program is gone a sandbox may take to be seen to be.
const endTime = 2 * time.Second

// outOfMemory reports whether memory was refused to the sandbox, which may have
// ended it.
func (s *sandbox) outOfMemory(stats jail.Stats, err error) bool {
	if err == nil && stats.OOMKills > s.base.kills {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		// Stats fails while the jail has ended and is still recorded as running. The
		// state is read afterwards: of an ended jail Stats counts nothing.
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

// full is how many of a hundred parts of a disk must be used for somebody who failed
// on it to have failed because of it: what was refused is not used.
const full = 95

// outOfRoom reports whether a disk that the sandbox writes to is full.
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

// volumeUse is what of a volume is used, and what a program could still write.
func volumeUse(dir string) (used, free int64) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, int64(st.Bavail) * st.Bsize
}

// tooMuch is the trouble of a call that has sent or written more than it may, whatever
// it says itself.
func (s *sandbox) tooMuch(u engine.Usage) error {
	if limit := s.c.Resources.NetworkBytes; limit > 0 && u.NetworkOut > limit {
		return troublef(engine.Network, errNetwork, "it sent %d bytes and may send %d", u.NetworkOut, limit)
	}
	// The disk of a jail can be no smaller than this. It holds to more.
	if mb := quota(s.c); mb < disk.MinMB && u.StorageWrite > int64(mb)<<20 {
		return troublef(engine.Storage, nil, "it wrote %d bytes and may write %d MiB", u.StorageWrite, mb)
	}
	return nil
}
