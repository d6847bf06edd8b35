package disk

import (
	"context"
	"os"
)

// ForgetDevices clears the cache of devices, as in a new process.
func ForgetDevices() {
	known.mu.Lock()
	defer known.mu.Unlock()
	clear(known.devices)
	clear(known.images)
}

// KnownAfter returns how many images are known after so many have used one device.
func KnownAfter(images int) int {
	k := knownDevices{devices: map[imageKey]string{}, images: map[string]imageKey{}}
	for i := range images {
		k.add(imageKey{1, uint64(i)}, "/dev/loop0")
	}
	return len(k.devices)
}

// DeviceIsKnown reports whether the device of an image is found without a search.
func DeviceIsKnown(img string) bool {
	f, err := os.Open(img)
	if err != nil {
		return false
	}
	defer f.Close()
	key, err := keyOf(f)
	return err == nil && known.device(key) != ""
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
