package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// A desk gives one request access to the files of a sandbox, as one user.
type desk struct {
	jail.Files
	*visit
	account account
}

// files opens the files of a sandbox for the user of the request. The caller closes them.
func (s *Server) files(ctx context.Context, v *visit) (*desk, error) {
	name, err := v.user()
	if err != nil {
		return nil, err
	}
	return s.filesFor(ctx, v, name)
}

func (s *Server) filesFor(ctx context.Context, v *visit, name string) (*desk, error) {
	f, err := s.jails.Files(ctx, v.Jail)
	if err != nil {
		return nil, fmt.Errorf("open the files of the sandbox: %w", err)
	}
	a, err := accountOf(ctx, f, name)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &desk{Files: f, visit: v, account: a}, nil
}

func (d *desk) path(p string) (string, error) { return d.expand(p, d.account.home) }

var types = map[string]envdpb.FileType{
	"file": envdpb.FileType_FILE_TYPE_FILE, "dir": envdpb.FileType_FILE_TYPE_DIRECTORY,
}

var modes = map[string]fs.FileMode{
	"dir": fs.ModeDir, "symlink": fs.ModeSymlink, "fifo": fs.ModeNamedPipe, "socket": fs.ModeSocket,
	"char": fs.ModeDevice | fs.ModeCharDevice, "block": fs.ModeDevice,
}

// entry describes the file at a path.
func (d *desk) entry(ctx context.Context, p string) (*envdpb.EntryInfo, error) {
	i, err := d.Stat(ctx, p)
	if err != nil {
		return nil, err
	}
	n, err := namesIn(ctx, d)
	if err != nil {
		return nil, err
	}
	return d.describe(ctx, i, n)
}

// describe converts a FileInfo. The type and mode of a symlink are those of its target, if the
// target exists.
func (d *desk) describe(ctx context.Context, i protocol.FileInfo, n names) (*envdpb.EntryInfo, error) {
	e := &envdpb.EntryInfo{
		Name: i.Name, Type: types[i.Type], Path: i.Path, Size: i.Size, Mode: uint32(i.Mode.Perm()),
		Permissions: (i.Mode | modes[i.Type]).String(), Owner: called(n.users, i.UID), Group: called(n.groups, i.GID),
		ModifiedTime: timestamppb.New(i.MTime), Metadata: i.Meta,
	}
	if i.Type != "symlink" {
		return e, nil
	}
	end, err := d.follow(ctx, i)
	switch {
	case err == nil:
		e.Type, e.Mode = types[end.Type], uint32(end.Mode.Perm())
	case !errors.Is(err, fault.NotFound) && !errors.Is(err, errTooManyLinks):
		return nil, err
	default:
		end = i
		e.Mode = 0
	}
	e.SymlinkTarget = &end.Path
	return e, nil
}

// maxLinks is the maximum number of symlinks that are followed, as in the kernel
// (path_resolution(7)).
const maxLinks = 40

var errTooManyLinks = refuse(connect.CodeFailedPrecondition, fmt.Sprintf("a cyclic symlink, or more than %d of them", maxLinks))

// follow returns the final target of a symlink.
func (d *desk) follow(ctx context.Context, i protocol.FileInfo) (protocol.FileInfo, error) {
	for range maxLinks {
		to := i.Target
		if !path.IsAbs(to) {
			to = strings.TrimSuffix(path.Dir(i.Path), "/") + "/" + to // not path.Join: init resolves ".." after it has followed symlinks
		}
		var err error
		if i, err = d.Stat(ctx, to); err != nil || i.Type != "symlink" {
			return i, err
		}
	}
	return i, errTooManyLinks
}

// resolved is like Stat, but follows symlinks.
func (d *desk) resolved(ctx context.Context, p string) (protocol.FileInfo, error) {
	i, err := d.Stat(ctx, p)
	if err == nil && i.Type == "symlink" {
		i, err = d.follow(ctx, i)
	}
	return i, err
}
