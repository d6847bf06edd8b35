package observe

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/id"
)

// logSizes returns the disk usage of the event log of each jail that has one.
func (o *Observers) logSizes() (map[id.Jail]int64, error) {
	jails, err := os.ReadDir(o.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	sizes := map[id.Jail]int64{}
	for _, j := range jails {
		dir := filepath.Join(o.cfg.Dir, j.Name(), "events")
		files, err := os.ReadDir(dir)
		if err != nil || !id.Valid('j', j.Name()) {
			continue // the log does not exist yet, or was deleted meanwhile
		}
		for _, f := range files {
			var st unix.Stat_t
			if !strings.HasPrefix(f.Name(), "packets") && unix.Lstat(filepath.Join(dir, f.Name()), &st) == nil {
				sizes[id.Jail(j.Name())] += st.Blocks * 512
			}
		}
	}
	return sizes, nil
}

// Trim removes closed segments until the event logs of all jails use at most limit bytes. It
// removes those of ended jails first, and of these the oldest ones first. It returns the
// number of bytes that it freed.
func (o *Observers) Trim(ctx context.Context, limit int64, ended func(id.Jail) bool) (freed int64, err error) {
	sizes, err := o.logSizes()
	if err != nil {
		return 0, err
	}
	var total int64
	for _, n := range sizes {
		total += n
	}
	if total <= limit {
		return 0, nil
	}
	type candidate struct {
		jail  id.Jail
		ended bool
		first uint64
		last  int64 // time of its last record
	}
	var all []candidate
	var errs []error
	for jid := range sizes {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		j, err := o.find(jid)
		if errors.Is(err, fault.NotFound) {
			continue // deleted meanwhile
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		segments, err := j.log.Segments()
		errs = append(errs, err) // those that can be read are candidates
		over := ended(jid)
		for _, s := range segments {
			if s.Closed && s.SHA256 != "" {
				all = append(all, candidate{jid, over, s.First, s.LastTS})
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.ended != b.ended {
			if a.ended {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.last, b.last)
	})
	for _, c := range all {
		if total-freed <= limit || ctx.Err() != nil {
			break
		}
		if j, err := o.find(c.jail); err == nil { // otherwise the jail was deleted
			freed += j.log.Drop(c.first)
		}
	}
	return freed, errors.Join(append(errs, ctx.Err())...)
}
