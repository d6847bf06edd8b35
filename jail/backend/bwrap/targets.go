package bwrap

import (
	"errors"
	"os"
	"path"
	"strings"

	"glasshouse/fault"
)

// makeTarget creates the mount point target below the directory root if it is missing. bwrap
// would create it as well, but would follow a symbolic link out of root that the jail created
// before its next start. makeTarget follows a link within root and returns an error for any
// other.
func makeTarget(root *os.Root, target string, dir bool) error {
	rel := strings.TrimPrefix(target, "/")
	st, err := root.Stat(rel)
	switch {
	case err == nil && st.IsDir() == dir:
		return nil
	case err == nil:
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "a directory must be mounted on a directory, and a file on a file")
	case !errors.Is(err, os.ErrNotExist):
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "invalid mount point: %w", err)
	}
	if err := makeEntry(root, rel, dir); err != nil {
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "create mount point: %w", err)
	}
	return nil
}

func makeEntry(root *os.Root, rel string, dir bool) error {
	if dir {
		return root.MkdirAll(rel, 0o755)
	}
	if err := root.MkdirAll(path.Dir(rel), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(rel, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
