package secret

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Environment provides variables of the daemon's own environment, of which its
// configuration names each: "env:API_KEY".
type Environment struct {
	Allow []string
}

// Check implements Provider.
func (e Environment) Check(path string) error {
	if !slices.Contains(e.Allow, path) {
		return fmt.Errorf("the configuration does not allow the variable %.80q; add it to secrets.env", path)
	}
	return nil
}

// Fetch implements Provider.
func (e Environment) Fetch(_ context.Context, path string) ([]byte, error) {
	if err := e.Check(path); err != nil { // the configuration may have changed
		return nil, fault.New(fault.Denied, "secret.Environment", "", err)
	}
	value, ok := os.LookupEnv(path)
	if !ok {
		return nil, fault.Newf(fault.NotFound, "secret.Environment", path, "the daemon has no such variable")
	}
	return []byte(value), nil
}

// Files provides the files below a directory that only the daemon's user or root
// can write to, as they are: "file:team/api-key".
type Files struct {
	Dir string
}

// Check implements Provider.
func (f Files) Check(path string) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("%.80q is not a clean path relative to the directory of secrets", path)
	}
	return nil
}

// Fetch implements Provider.
func (f Files) Fetch(_ context.Context, path string) ([]byte, error) {
	const op = "secret.Files"
	if err := f.Check(path); err != nil {
		return nil, fault.New(fault.Invalid, op, "", err)
	}
	dir, err := unix.Open(f.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: f.Dir, Err: err}
	}
	defer unix.Close(dir)
	if err := closedToOthers(dir, f.Dir); err != nil {
		return nil, err
	}
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, fault.Newf(fault.NotFound, op, path, "there is no such file in the directory of secrets")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, fault.Newf(fault.Denied, op, path, "the file is, or is behind, a symbolic link")
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	return readOwned(file, path, MaxValue)
}

// closedToOthers refuses a directory in which others could put a file.
func closedToOthers(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 || st.Mode&0o022 != 0 {
		return &fault.Error{Op: "secret.Files", On: name, Kind: fault.Denied,
			Err: errors.New("others than the daemon's user can put files there"), Remedy: "give it to that user, and chmod go-w it"}
	}
	return nil
}
