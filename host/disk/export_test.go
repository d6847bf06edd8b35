package disk

import (
	"context"
	"os"
)

// ForgetDevices makes this process as ignorant as one that just began.
func ForgetDevices() { guesses.Clear() }

// Freeze leaves a mounted volume as a Clone that is killed does.
func Freeze(mountpoint string) error {
	dir, err := os.Open(mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	return freeze(dir)
}

// WhileFrozen does something else than to clone.
func WhileFrozen(ctx context.Context, mountpoint string, work func() error) error {
	return whileFrozen(ctx, mountpoint, work)
}
