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

// flattenAt is how many layers a jail or snapshot may stand on before they are
// merged into one. Each costs a mount at every start and a look-up at every miss,
// and the kernel takes a few hundred at the most.
var flattenAt = 24

// flattenSoon flattens in the background whatever stands on too many layers.
func (k *Keeper) flattenSoon() {
	if k.cfg.Layers == nil || k.ctx.Err() != nil {
		return
	}
	k.wg.Go(func() {
		if err := k.flattenDeep(k.ctx); err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Warn("layers of snapshots were not merged", "err", err)
		}
	})
}

// flattenDeep flattens whatever stands on too many layers. A live jail goes on
// over its own until it next moves to a new layer.
func (k *Keeper) flattenDeep(ctx context.Context) error {
	k.flattening.Lock() // one after the other
	defer k.flattening.Unlock()
	for {
		chain, err := k.deepest(ctx)
		if err != nil || chain == nil {
			return err
		}
		if err := k.flatten(ctx, chain); err != nil {
			return err
		}
	}
}

// deepest returns the longest list of layers that is too long, or nil. Those that
// end with a shorter one profit when that is flattened next.
func (k *Keeper) deepest(ctx context.Context) (chain []string, _ error) {
	k.mu.Lock()
	for _, s := range k.all {
		chain = longer(chain, s.Jail.Sealed)
	}
	k.mu.Unlock()
	jails, err := k.cfg.Jails.List(ctx, jail.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, j := range jails {
		if j.State == jail.Stopped || j.State == jail.Failed {
			chain = longer(chain, j.Sealed)
		}
	}
	return chain, nil
}

// longer returns layers if they are too many, and more than those of chain.
func longer(chain, layers []string) []string {
	if len(layers) > max(flattenAt, len(chain)) {
		return layers
	}
	return chain
}

// flatten merges layers into one, beside the topmost, and has everything that
// does not run stand on that. It may end at any moment: both are there, and show
// the same, until nothing stands on the former any more.
func (k *Keeper) flatten(ctx context.Context, chain []string) error {
	if few := k.below(chain); len(few) < len(chain) { // it was done for others
		return errors.Join(k.restack(ctx, chain, few), k.sweep(ctx))
	}
	k.mu.Lock()
	giveBack := k.lend(chain)
	k.mu.Unlock()
	to, err := freeName(filepath.Dir(chain[0]))
	if err != nil {
		giveBack()
		return err
	}
	made := k.making(to)
	err = k.cfg.Layers.Flatten(ctx, chain, to)
	if err == nil {
		err = k.restack(ctx, chain, []string{to})
	}
	made()
	giveBack()
	return errors.Join(err, k.sweep(ctx))
}

// freeName returns the name of a layer that is not there yet.
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

// restack has what stood on some layers, and does not run, stand on others that
// show the same. Nothing is removed meanwhile.
func (k *Keeper) restack(ctx context.Context, chain, to []string) error {
	k.tidying.RLock()
	defer k.tidying.RUnlock()
	k.mu.Lock()
	var errs []error
	for _, s := range k.all {
		if sealed, ok := jail.Restacked(s.Jail.Sealed, chain, to); ok {
			next := *s
			next.Jail.Sealed = sealed
			if len(sealed) == 1 {
				next.Flattened = chain
			}
			errs = append(errs, k.replace(ctx, next))
		}
	}
	k.mu.Unlock()
	jails, err := k.cfg.Jails.List(ctx, jail.ListOptions{})
	errs = append(errs, err)
	for _, j := range jails {
		if _, ok := jail.Restacked(j.Sealed, chain, to); !ok {
			continue
		}
		if _, err := k.cfg.Jails.Restack(ctx, j.ID, chain, to); !errors.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// replace writes down a snapshot that has changed. The caller holds mu.
//
// +checklocks:k.mu
func (k *Keeper) replace(ctx context.Context, s Snapshot) error {
	if err := k.cfg.Store.Put(ctx, s); err != nil {
		return err
	}
	k.all[s.ID] = &s
	return writeMeta(k.dir(s.Jail.ID, s.ID), s)
}

// below returns layers that show the same as those a jail stands on, and are as
// few as are known.
func (k *Keeper) below(sealed []string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	few := sealed
	for _, s := range k.all {
		if fewer, ok := jail.Restacked(sealed, s.Flattened, s.Jail.Sealed); ok && len(fewer) < len(few) {
			few = fewer
		}
	}
	return slices.Clone(few)
}
