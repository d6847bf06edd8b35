package disk

import (
	"context"
	"os"
)

// ForgetDevices clears the cache of devices, as in a new process.
func ForgetDevices() { guesses.Clear() }

// DeviceIsKnown reports whether the device of an image is found without a search.
func DeviceIsKnown(img string) bool {
	f, err := os.Open(img)
	if err != nil {
		return false
	}
	defer f.Close()
	key, err := keyOf(f)
	_, known := guesses.Load(key)
	return err == nil && known
}

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
