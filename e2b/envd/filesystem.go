package envd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"glasshouse/e2b/envdpb"
	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// filesAt returns the files of a sandbox and the absolute path of name. The caller closes the
// desk.
func (s *Server) filesAt(ctx context.Context, v *visit, name string) (*desk, string, error) {
	d, err := s.files(ctx, v)
	if err != nil {
		return nil, "", err
	}
	p, err := d.path(name)
	if err != nil {
		d.Close()
		return nil, "", err
	}
	return d, p, nil
}

func (s *Server) stat(ctx context.Context, v *visit, q *envdpb.StatRequest) (*envdpb.StatResponse, error) {
	d, p, err := s.filesAt(ctx, v, q.GetPath())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	e, err := d.entry(ctx, p)
	return &envdpb.StatResponse{Entry: e}, err
}

func (s *Server) makeDir(ctx context.Context, v *visit, q *envdpb.MakeDirRequest) (*envdpb.MakeDirResponse, error) {
	d, p, err := s.filesAt(ctx, v, q.GetPath())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	switch i, err := d.resolved(ctx, p); {
	case errors.Is(err, fault.NotFound):
	case err != nil:
		return nil, err
	case i.Type == "dir":
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", p))
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", p))
	}
	if err := d.MkdirFor(ctx, p, d.account.owner); err != nil {
		return nil, err
	}
	e, err := d.entry(ctx, p)
	return &envdpb.MakeDirResponse{Entry: e}, err
}

func (s *Server) move(ctx context.Context, v *visit, q *envdpb.MoveRequest) (*envdpb.MoveResponse, error) {
	d, err := s.files(ctx, v)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	from, err := d.path(q.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := d.path(q.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := d.Stat(ctx, from); err != nil {
		return nil, err
	}
	if err := d.MkdirFor(ctx, path.Dir(path.Clean(to)), d.account.owner); err != nil {
		return nil, err
	}
	if err := d.Move(ctx, from, to, true); err != nil {
		return nil, err
	}
	e, err := d.entry(ctx, to)
	return &envdpb.MoveResponse{Entry: e}, err
}

// Limits of one listing. A client lists larger or deeper trees in parts.
const (
	maxEntries = 100_000
	maxDepth   = 256
)

func (s *Server) listDir(ctx context.Context, v *visit, q *envdpb.ListDirRequest) (*envdpb.ListDirResponse, error) {
	d, p, err := s.filesAt(ctx, v, q.GetPath())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	i, err := d.resolved(ctx, p)
	if err != nil {
		return nil, err
	}
	if i.Type != "dir" {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", p))
	}
	n, err := namesIn(ctx, d)
	if err != nil {
		return nil, err
	}
	l := lister{desk: d, names: n, from: i.Path, as: i.Path}
	if !slices.Contains(strings.Split(p, "/"), "..") { // path.Clean of ".." is wrong after a symlink
		l.as = path.Clean(p)
	}
	if err := l.list(ctx, i.Path, int(min(max(q.GetDepth(), 1), maxDepth))); err != nil {
		return nil, err
	}
	return &envdpb.ListDirResponse{Entries: l.entries}, nil
}

// A lister lists directory trees in pre-order. Paths of entries begin with the requested path
// (as) even if that leads through a symlink to another one (from).
type lister struct {
	*desk
	names    names
	from, as string
	entries  []*envdpb.EntryInfo
}

func (l *lister) list(ctx context.Context, dir string, depth int) error {
	for after := ""; ; {
		infos, more, err := l.List(ctx, dir, after, protocol.MaxListPage)
		if err != nil {
			return err
		}
		for _, i := range infos {
			if err := l.add(ctx, i, depth); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		after = infos[len(infos)-1].Name
	}
}

func (l *lister) add(ctx context.Context, i protocol.FileInfo, depth int) error {
	if len(l.entries) >= maxEntries {
		return refuse(connect.CodeResourceExhausted, fmt.Sprintf("more than %d entries: reduce the depth", maxEntries))
	}
	e, err := l.describe(ctx, i, l.names)
	if err != nil {
		return err
	}
	e.Path = path.Join(l.as, strings.TrimPrefix(e.Path, l.from))
	l.entries = append(l.entries, e)
	if i.Type != "dir" || depth <= 1 {
		return nil
	}
	if err := l.list(ctx, i.Path, depth-1); !errors.Is(err, fault.NotFound) { // the directory may have been removed
		return err
	}
	return nil
}

func (s *Server) remove(ctx context.Context, v *visit, q *envdpb.RemoveRequest) (*envdpb.RemoveResponse, error) {
	d, p, err := s.filesAt(ctx, v, q.GetPath())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.Remove(ctx, p, true); !errors.Is(err, fault.NotFound) { // removing a missing file succeeds
		return &envdpb.RemoveResponse{}, err
	}
	return &envdpb.RemoveResponse{}, nil
}
