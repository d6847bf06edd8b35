package fork

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Map maps memory that the kernel shares with this process, but not with its children. A fork copies
// the page tables of such mappings, unlike those of files, which takes milliseconds with the rings
// of hundreds of jails.
func Map(fd int, offset int64, length, prot int) ([]byte, error) {
	b, err := unix.Mmap(fd, offset, length, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	return b, nil
}
