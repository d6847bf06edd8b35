package bwrap

import (
	"errors"
	"os"
	"path"
	"strings"

	"glasshouse/fault"
)

// makeTarget makes sure that target, seen from the directory root, is there to
// mount on. bwrap would make it too, but would follow a symbolic link that the
// jail has left there for the next start, and out of root. A link that leads to
// a place inside root is followed, one that does not is refused.
func makeTarget(root *os.Root, target string, dir bool) error {
	rel := strings.TrimPrefix(target, "/")
	st, err := root.Stat(rel)
	switch {
	case err == nil && st.IsDir() == dir:
		return nil
	case err == nil:
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "a directory can only be mounted on a directory, a file only on a file")
	case !errors.Is(err, os.ErrNotExist):
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "cannot be mounted on: %w", err)
	}
	if err := makeEntry(root, rel, dir); err != nil {
		return fault.Newf(fault.Invalid, "bwrap.Create", target, "cannot be made to mount on: %w", err)
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
