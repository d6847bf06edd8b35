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

// Environment is a Provider of the daemon's environment variables: "env:API_KEY". Only the
// variables in Allow are available.
type Environment struct {
	Allow []string
}

// Check implements Provider.
func (e Environment) Check(path string) error {
	if !slices.Contains(e.Allow, path) {
		return fmt.Errorf("the variable %.80q is not listed in secrets.env of the configuration", path)
	}
	return nil
}

// Fetch implements Provider.
func (e Environment) Fetch(_ context.Context, path string) ([]byte, error) {
	if err := e.Check(path); err != nil { // the configuration may have changed
		return nil, fault.New(fault.Denied, "secret.Environment.Fetch", "", err)
	}
	value, ok := os.LookupEnv(path)
	if !ok {
		return nil, fault.Newf(fault.NotFound, "secret.Environment.Fetch", path, "the variable is not set in the environment of the daemon")
	}
	return []byte(value), nil
}

// Files is a Provider of files below a directory: "file:team/api-key". The directory must be
// writable only to the daemon's user or root. Values are the unmodified content.
type Files struct {
	Dir string
}

// Check implements Provider.
func (f Files) Check(path string) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("%.80q is not a clean path relative to the secrets directory", path)
	}
	return nil
}

// Fetch implements Provider.
func (f Files) Fetch(_ context.Context, path string) ([]byte, error) {
	const op = "secret.Files.Fetch"
	if err := f.Check(path); err != nil {
		return nil, fault.New(fault.Invalid, op, "", err)
	}
	dir, err := unix.Open(f.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: f.Dir, Err: err}
	}
	defer unix.Close(dir)
	if err := checkDirPermissions(dir, f.Dir); err != nil {
		return nil, err
	}
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, fault.Newf(fault.NotFound, op, path, "no such file in the secrets directory")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, fault.Newf(fault.Denied, op, path, "the path contains a symbolic link")
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	return readPrivateFile(file, path, MaxValue)
}

// checkDirPermissions refuses a directory that other users can write to.
func checkDirPermissions(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 || st.Mode&0o022 != 0 {
		return &fault.Error{Op: "secret.Files.Fetch", On: name, Kind: fault.Denied,
			Err: errors.New("the secrets directory is writable by other users"), Remedy: "run chown to the daemon's user and chmod go-w on the directory"}
	}
	return nil
}
