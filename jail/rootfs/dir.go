package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"glasshouse/fault"
)

// dir returns a layer for a directory of the host, which is neither copied nor written. Its
// digest identifies the directory and changes if the directory is replaced. It does not cover the
// files in the directory.
func (p *Provider) dir(path string) (Layer, error) {
	real, fi, err := p.hostPath("rootfs.dir", path)
	if err != nil {
		return Layer{}, err
	}
	if !fi.IsDir() {
		return Layer{}, fault.Fieldf("rootfs.Resolve", "rootfs.dir", "%s is not a directory", path)
	}
	return Layer{
		Dir:    real,
		Digest: "dir:" + real + "@" + strconv.FormatInt(fi.ModTime().UnixNano(), 36),
		Source: "dir:" + path,
	}, nil
}

// hostPath resolves all symlinks in path and checks that the result is in an allowed directory.
func (p *Provider) hostPath(field, path string) (string, fs.FileInfo, error) {
	const op = "rootfs.Resolve"
	if !filepath.IsAbs(path) {
		return "", nil, fault.Fieldf(op, field, "%q is not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	judged := real
	if err != nil {
		judged = filepath.Clean(path)
	}
	// The error does not disclose whether a forbidden path exists.
	if !p.allowed(judged) {
		return "", nil, &fault.Error{
			Op: op, On: path, Kind: fault.Denied, Field: field,
			Remedy: "add the path or one of its parents to rootfs.allow in the daemon's configuration",
			Err:    errors.New("this host path is not allowed by rootfs.allow"),
		}
	}
	if err != nil {
		return "", nil, notFound(op, field, path, err)
	}
	fi, err := os.Stat(real)
	if err != nil {
		return "", nil, notFound(op, field, path, err)
	}
	return real, fi, nil
}

func notFound(op, field, path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &fault.Error{Op: op, On: path, Kind: fault.NotFound, Field: field, Err: fs.ErrNotExist}
	}
	return err
}

// allowed reports whether path is at or under an allowed directory.
func (p *Provider) allowed(path string) bool {
	for _, prefix := range p.cfg.Allow {
		if under(path, filepath.Clean(prefix)) {
			return true
		}
		if real, err := filepath.EvalSymlinks(prefix); err == nil && under(path, real) {
			return true
		}
	}
	return false
}

func under(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
