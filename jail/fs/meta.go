package jailfs

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// metaOf returns the metadata of the file base in the directory fd, or of fd itself if base is
// "". It returns nil if the filesystem does not support extended attributes. It uses a path in
// /proc instead of opening the file, because opening a device can have side effects.
func metaOf(fd int, base string) map[string]string {
	name, list, get := "/proc/self/fd/"+strconv.Itoa(fd), unix.Listxattr, unix.Getxattr
	if base != "" {
		name += "/" + base
		list, get = unix.Llistxattr, unix.Lgetxattr
	}
	n, err := list(name, nil)
	if err != nil || n == 0 {
		return nil
	}
	names := make([]byte, n)
	if n, err = list(name, names); err != nil {
		return nil
	}
	var meta map[string]string
	value, left := make([]byte, protocol.MaxMeta), protocol.MaxMeta
	for attr := range strings.SplitSeq(string(names[:n]), "\x00") {
		key, ok := strings.CutPrefix(attr, protocol.MetaPrefix)
		if !ok {
			continue
		}
		n, err := get(name, attr, value)
		if err != nil || !printable(key) || !printable(string(value[:n])) {
			continue // not set by setMeta, but by a program in the jail
		}
		if left -= len(attr) + n; left < 0 {
			break
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = string(value[:n])
	}
	return meta
}

// printable reports whether s is printable ASCII, as metadata must be.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// setMeta replaces the metadata of an open file. It returns fault.Unsupported if meta is not
// empty and the filesystem does not support extended attributes.
func setMeta(fd int, meta map[string]string) error {
	size := 0
	for key, value := range meta {
		size += len(protocol.MetaPrefix) + len(key) + len(value)
		if key == "" || !printable(key) || !printable(value) || size > protocol.MaxMeta {
			return fault.Fieldf("Write", "meta", "names and values must be printable ASCII of at most %d bytes in total", protocol.MaxMeta)
		}
	}
	for key, value := range meta {
		switch err := unix.Fsetxattr(fd, protocol.MetaPrefix+key, []byte(value), 0); err {
		case nil:
		case unix.EOPNOTSUPP:
			return fault.Cannot("Write", "the filesystem does not support user extended attributes", "")
		case unix.ERANGE, unix.E2BIG:
			return fault.Fieldf("Write", "meta", "a name is too long")
		default:
			return fmt.Errorf("set the attribute %q: %w", key, err)
		}
	}
	names := make([]byte, maxXattr)
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return nil // the file has no metadata that could be removed
	}
	for attr := range strings.SplitSeq(string(names[:n]), "\x00") {
		key, ok := strings.CutPrefix(attr, protocol.MetaPrefix)
		if _, stays := meta[key]; !ok || stays {
			continue
		}
		if err := unix.Fremovexattr(fd, attr); err != nil && err != unix.ENODATA {
			return fmt.Errorf("remove the attribute %q: %w", key, err)
		}
	}
	return nil
}
