package bwrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/internal/procstat"
	"glasshouse/jail"
)

var _ jail.Differ = (*Backend)(nil)

// A comparison contains the parameters of the stage diff.
type comparison struct {
	jail.ChangesOptions
	Volume string `json:"volume,omitempty"` // path of a live jail's volume; if empty the stage mounts it
}

// Changes implements jail.Differ. A stage compares the files: without root only root in the
// jail can read the files of its other users, and as root the volume is mounted only in the
// jail's namespaces.
func (b *Backend) Changes(ctx context.Context, p jail.Plan, opts jail.ChangesOptions) (changes []jail.Change, err error) {
	const op = "bwrap.Changes"
	if err := checkPaths(p, op); err != nil {
		return nil, err
	}
	if opts.Workspace && p.Workspace == nil {
		return nil, fault.Newf(fault.Conflict, op, string(p.ID), "the jail has no workspace")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("compare files of %s: %w", p.ID, err)
		}
	}()
	o, err := b.newRequest(p)
	if err != nil {
		return nil, err
	}
	if err := b.sharedLayers(&o); err != nil {
		return nil, err
	}
	volume, err := o.visibleVolume()
	if err != nil {
		return nil, err
	}
	o.Compare = comparison{ChangesOptions: opts, Volume: volume}
	s, err := b.startStage(stageDiff, o)
	if err != nil {
		return nil, err
	}
	r, err := s.next(ctx)
	if err != nil {
		s.cmd.Process.Kill() // it may need much more time
	}
	if ended := s.close(); err == nil {
		err = ended
	}
	if o.Compare.Volume == "" {
		err = errors.Join(err, releaseVolume(context.WithoutCancel(ctx), layout{p.Dir}))
	}
	return r.Changes, err
}

// visibleVolume returns the path of a live jail's mounted volume on the host, or "" if the
// jail is not live. The outer bwrap is in the namespace in which the volume was mounted.
// Mounting the volume a second time would destroy the files.
func (o *stageRequest) visibleVolume() (string, error) {
	l := layout{o.Plan.Dir}
	if o.Identity.Kind != asRoot {
		return l.volume(), nil // an ordinary directory
	}
	r, err := readRecord(o.Plan)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the record of the jail: %w", err)
	}
	if belongsTo(r.Monitor, o.Plan) {
		return filepath.Join(fmt.Sprintf("/proc/%d/root", r.Monitor), l.volume()), nil
	}
	if now, err := procstat.Identify(r.PID); err == nil && now == r.Identity {
		return "", fault.Newf(fault.Conflict, "bwrap.Changes", string(o.Plan.ID), "the bwrap process of the jail was killed, so its files are not accessible; stop the jail first")
	}
	return "", nil
}

// diff is the stage that compares files.
func (o *stageRequest) diff() error {
	l := layout{o.Plan.Dir}
	volume := o.Compare.Volume
	if volume == "" {
		if err := o.mountVolume(); err != nil {
			return err
		}
		volume = l.volume()
	}
	upper, lower := l.upper(), o.lower()
	if !exists(l.identity()) {
		lower = lower[1:]
	}
	if o.Compare.Workspace {
		upper, lower = l.wsUpper(), []string{o.Plan.Workspace.Source}
	}
	upper = filepath.Join(volume, filepath.Base(upper))
	var changes []jail.Change
	if exists(upper) { // otherwise the jail was never started
		found, err := overlay.Diff(context.Background(), upper, lower, overlay.DiffOptions{
			Owners: !o.Compare.Workspace, // a workspace's owner is root in the jail
			Below:  o.Compare.Below, Text: o.Compare.Text, After: o.Compare.After,
		})
		if err != nil {
			return err
		}
		for _, c := range found {
			changes = append(changes, jail.Change(c))
		}
	}
	writeReport(report{Changes: changes})
	return nil
}
