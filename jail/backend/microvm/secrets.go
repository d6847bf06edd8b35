package microvm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

var (
	_ jail.SecretHolder  = (*instance)(nil)
	_ jail.AccountHolder = (*instance)(nil)
)

// ShowSecrets implements jail.SecretHolder. The secrets are encrypted for a process in the guest that
// ends with its work, because a snapshot contains the memory of the agent and of the guest's kernel.
func (i *instance) ShowSecrets(ctx context.Context, files []jail.SecretFile) error {
	const op = "microvm.ShowSecrets"
	if i.ended() {
		return fault.Newf(fault.NotFound, op, string(i.plan.ID), "the jail has ended")
	}
	mark := layout{i.plan.Dir}.secrets()
	if len(files) > 0 {
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return err
		}
	} else if have, err := i.hasSecrets(); err != nil || !have {
		return err
	}
	secrets := make([]wire.Secret, len(files))
	for n, f := range files {
		secrets[n] = wire.Secret{Name: f.Name(), Data: f.Bytes(), UID: f.UID, GID: f.GID}
	}
	err := i.awake(ctx, func(ctx context.Context) error {
		request := wire.SecretKey{Seed: make([]byte, 32)}
		rand.Read(request.Seed)
		var key wire.SecretKey
		if err := i.guest.call(ctx, wire.SecretKeyPath, request, &key); err != nil {
			return err
		}
		sealed, err := wire.SealSecrets(key.Key, secrets)
		if err != nil {
			return fault.New(fault.Unavailable, op, string(i.plan.ID), err)
		}
		var none struct{}
		return i.guest.call(ctx, wire.SecretsPath, wire.SealedSecrets{Data: sealed}, &none)
	})
	if err == nil && len(files) == 0 {
		err = os.Remove(mark)
	}
	return err
}

// HideSecrets implements jail.SecretHolder.
func (i *instance) HideSecrets(ctx context.Context) error {
	if have, err := i.hasSecrets(); err != nil || !have {
		return err
	}
	err := i.awake(ctx, func(ctx context.Context) error {
		var none struct{}
		return i.guest.call(ctx, wire.HideSecretsPath, none, &none)
	})
	if err == nil {
		err = os.Remove(layout{i.plan.Dir}.secrets())
	}
	return err
}

// hasSecrets reports whether the jail may have secrets.
func (i *instance) hasSecrets() (bool, error) {
	_, err := os.Lstat(layout{i.plan.Dir}.secrets())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Account implements jail.AccountHolder.
func (i *instance) Account(ctx context.Context, user string) (uid, gid uint32, err error) {
	var a wire.Account
	err = i.awake(ctx, func(ctx context.Context) error {
		return i.guest.call(ctx, wire.AccountPath, wire.Account{User: user}, &a)
	})
	return a.UID, a.GID, err
}

// awake calls f while the guest runs. If the jail is frozen, the guest keeps its processes frozen.
func (i *instance) awake(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, i.backend.patience(freezeTime))
	defer cancel()
	i.pauses.Lock()
	defer i.pauses.Unlock()
	frozen, err := i.group.Frozen()
	if err != nil {
		return err
	}
	if !frozen {
		return f(ctx)
	}
	return i.whileThawed(ctx, f)
}

// whileThawed is awake for a frozen jail.
func (i *instance) whileThawed(ctx context.Context, f func(ctx context.Context) error) error {
	err := i.wake(ctx)
	if err == nil {
		err = f(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	if stopErr := i.withMonitor(ctx, monitor.stop); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stop the processors: %w", stopErr))
	}
	return errors.Join(err, i.group.Freeze(ctx))
}
