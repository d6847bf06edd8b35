package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"glasshouse/fault"
	"glasshouse/jail"
)

// flattenAt is the number of layers of a jail or snapshot above which they are merged into
// one. Each layer costs a mount at every start and a lookup for every missing name, and
// overlayfs accepts a few hundred layers at most.
var flattenAt = 24

// flattenSoon merges in the background all stacks with too many layers.
func (ss *snapshots) flattenSoon() {
	if len(ss.cfg.Layers) == 0 || ss.ctx.Err() != nil {
		return
	}
	ss.wg.Go(func() {
		if err := ss.flattenDeep(ss.ctx); err != nil && ss.ctx.Err() == nil {
			ss.cfg.Log.Warn("cannot merge snapshot layers", "err", err)
		}
	})
}

// flattenDeep merges all stacks with too many layers. A running jail keeps its layers until it
// next moves to a new one.
func (ss *snapshots) flattenDeep(ctx context.Context) error {
	ss.flattenMu.Lock() // one merge at a time
	defer ss.flattenMu.Unlock()
	for {
		chain, backend, err := ss.longestStack(ctx)
		if err != nil || chain == nil {
			return err
		}
		if err := ss.flatten(ctx, backend, chain); err != nil {
			return err
		}
	}
}

// longestStack returns the longest stack of layers that exceeds flattenAt and can be merged, or nil,
// and the backend of its jail. Other stacks that end with a part of it benefit when that is merged
// next.
func (ss *snapshots) longestStack(ctx context.Context) (chain []string, backend string, _ error) {
	ss.mu.Lock()
	for _, s := range ss.all {
		if ss.mergeable(s.Jail, chain) {
			chain, backend = s.Jail.Sealed, s.Jail.Spec.Backend
		}
	}
	ss.mu.Unlock()
	jails, err := ss.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("list the jails: %w", err)
	}
	for _, j := range jails {
		if (j.State == jail.Stopped || j.State == jail.Failed) && ss.mergeable(j, chain) {
			chain, backend = j.Sealed, j.Spec.Backend
		}
	}
	return chain, backend, nil
}

// mergeable reports whether the layers of a jail can be merged and exceed flattenAt and the length of
// chain.
func (ss *snapshots) mergeable(j jail.Jail, chain []string) bool {
	return len(j.Sealed) > max(flattenAt, len(chain)) && ss.cfg.Layers[j.Spec.Backend] != nil
}

// flatten merges layers into a file next to the topmost one, and switches all snapshots and
// stopped jails to it. It may be interrupted at any time: both versions exist and have the
// same contents until the old layers are no longer used.
func (ss *snapshots) flatten(ctx context.Context, backend string, chain []string) error {
	if few := ss.shortestStack(chain); len(few) < len(chain) { // already merged for other users
		return errors.Join(ss.restack(ctx, chain, few), ss.sweep(ctx))
	}
	ss.mu.Lock()
	giveBack := ss.pinFiles(chain)
	ss.mu.Unlock()
	to, err := freeName(filepath.Dir(chain[0]))
	if err != nil {
		giveBack()
		return fmt.Errorf("find a name for the merged layer: %w", err)
	}
	made := ss.protect(to)
	err = ss.cfg.Layers[backend].Flatten(ctx, chain, to)
	if err == nil {
		err = ss.restack(ctx, chain, []string{to})
	}
	made()
	giveBack()
	return errors.Join(err, ss.sweep(ctx))
}

// freeName returns an unused file name for a merged layer.
func freeName(dir string) (string, error) {
	for n := 1; ; n++ {
		at := filepath.Join(dir, fmt.Sprintf("fs-flat-%d.img", n))
		if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
			return at, nil
		} else if err != nil {
			return "", err
		}
	}
}

// restack switches snapshots and stopped jails from the layers chain to the equivalent layers
// to. No files are removed meanwhile.
func (ss *snapshots) restack(ctx context.Context, chain, to []string) error {
	ss.filesMu.RLock()
	defer ss.filesMu.RUnlock()
	ss.mu.Lock()
	var errs []error
	for _, s := range ss.all {
		if sealed, ok := jail.ReplaceLayerSuffix(s.Jail.Sealed, chain, to); ok {
			next := *s
			next.Jail.Sealed = sealed
			if len(sealed) == 1 {
				next.Flattened = chain
			}
			errs = append(errs, ss.update(ctx, next))
		}
	}
	ss.mu.Unlock()
	jails, err := ss.cfg.Jails.List(ctx, jail.ListOptions{})
	errs = append(errs, err)
	for _, j := range jails {
		if _, ok := jail.ReplaceLayerSuffix(j.Sealed, chain, to); !ok {
			continue
		}
		if _, err := ss.cfg.Jails.ReplaceLayers(ctx, j.ID, chain, to); !errors.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// update stores a changed snapshot. The caller holds mu.
// +checklocks:ss.mu
func (ss *snapshots) update(ctx context.Context, s Snapshot) error {
	if err := ss.cfg.Store.Put(ctx, s); err != nil {
		return fmt.Errorf("record snapshot %s: %w", s.ID, err)
	}
	ss.all[s.ID] = &s
	return writeMeta(ss.dir(s.Jail.ID, s.ID), s)
}

// shortestStack returns the shortest known stack of layers with the same contents as sealed.
func (ss *snapshots) shortestStack(sealed []string) []string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	few := sealed
	for _, s := range ss.all {
		if fewer, ok := jail.ReplaceLayerSuffix(sealed, s.Flattened, s.Jail.Sealed); ok && len(fewer) < len(few) {
			few = fewer
		}
	}
	return slices.Clone(few)
}
