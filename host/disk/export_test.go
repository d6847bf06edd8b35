package disk

import (
	"context"
	"os"
)

// ForgetDevices clears the cache of devices, as in a new process.
func ForgetDevices() { guesses.Clear() }

// Freeze leaves a mounted volume frozen, as a killed Clone does.
func Freeze(mountpoint string) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	return freeze(dir)
}

// WhileFrozen runs other work than cloning.
func WhileFrozen(ctx context.Context, mountpoint string, work func() error) error {
	return whileFrozen(ctx, mountpoint, work)
}
