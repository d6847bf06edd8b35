package jailfs

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/jailinit/protocol"
)

// metaOf returns what is kept with the file that is base in the directory of fd, or with
// fd's own if base is "". Where nothing can be kept there is nothing. It goes by /proc,
// as the file itself may be one that opening does something to.
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
			continue // it is a program's of the jail, and nothing that a client has kept
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

// printable reports whether s can be part of what is kept.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// setMeta has meta kept with an open file, and nothing else. To those that allow it no
// attributes it returns fault.Unsupported if there is something to keep.
func setMeta(fd int, meta map[string]string) error {
	size := 0
	for key, value := range meta {
		size += len(protocol.MetaPrefix) + len(key) + len(value)
		if key == "" || !printable(key) || !printable(value) || size > protocol.MaxMeta {
			return fault.Fieldf("Write", "meta", "want names and values of printable ASCII, of %d bytes in all", protocol.MaxMeta)
		}
	}
	for key, value := range meta {
		switch err := unix.Fsetxattr(fd, protocol.MetaPrefix+key, []byte(value), 0); err {
		case nil:
		case unix.EOPNOTSUPP:
			return fault.Cannot("Write", "the file's filesystem keeps nothing with files", "")
		case unix.ERANGE, unix.E2BIG:
			return fault.Fieldf("Write", "meta", "a name is too long")
		default:
			return err
		}
	}
	names := make([]byte, maxXattr)
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return nil // there are none
	}
	for attr := range strings.SplitSeq(string(names[:n]), "\x00") {
		key, ok := strings.CutPrefix(attr, protocol.MetaPrefix)
		if _, stays := meta[key]; !ok || stays {
			continue
		}
		if err := unix.Fremovexattr(fd, attr); err != nil && err != unix.ENODATA {
			return err
		}
	}
	return nil
}
