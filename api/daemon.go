package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/rootfs"
	"glasshouse/policy/access"
)

func (s *Server) checkHealth(context.Context, none, none) (wire.Health, error) {
	return wire.Health{Status: "ok"}, nil
}

// readyTime is the timeout of the readiness checks.
const readyTime = 5 * time.Second

func (s *Server) checkReadiness(ctx context.Context, _, _ none) (wire.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if s.ctx.Err() != nil {
		return wire.Health{}, fault.New(fault.Unavailable, "api.checkReadiness", "", errClosing)
	}
	if s.o.Ready == nil {
		return wire.Health{Status: "ok"}, nil
	}
	if err := s.o.Ready(ctx); err != nil {
		// The endpoint needs no token, so the response contains no details, except that the
		// disk is full.
		s.o.Log.Warn("not ready", "err", err)
		if fault.DiskFull(err) {
			return wire.Health{}, &fault.Error{
				Op: "api.checkReadiness", Kind: fault.Unavailable, Err: errors.New("the audit log and the data of jails cannot be written: the host's disk is full"),
				Remedy: "free space on the host's disk, or delete jails and snapshots",
			}
		}
		return wire.Health{}, fault.Newf(fault.Unavailable, "api.checkReadiness", "", "the daemon is not ready; see its log for the reason")
	}
	return wire.Health{Status: "ok"}, nil
}

func (s *Server) getVersion(context.Context, none, none) (wire.Version, error) {
	return s.o.Version, nil
}

func (s *Server) listBackends(ctx context.Context, _, _ none) (wire.Page[wire.Backend], error) {
	return wire.Page[wire.Backend]{Items: each(s.o.Jails.Backends(ctx), func(b jail.BackendInfo) wire.Backend {
		return wire.Backend(b)
	})}, nil
}

func (s *Server) diagnoseHost(ctx context.Context, _, _ none) (wire.Page[wire.Probe], error) {
	page := wire.Page[wire.Probe]{Items: []wire.Probe{}}
	if s.o.Doctor != nil {
		page.Items = append(page.Items, s.o.Doctor(ctx)...)
	}
	return page, nil
}

func (s *Server) getStorage(ctx context.Context, _, _ none) (wire.Storage, error) {
	if s.o.Storage == nil {
		return wire.Storage{}, fault.Cannot("api.getStorage", "this daemon has no data directory", "start the daemon with glasshouse serve")
	}
	return s.o.Storage(ctx)
}

func (s *Server) listImages(_ context.Context, p paging, _ none) (wire.Page[wire.Image], error) {
	page := wire.Page[wire.Image]{Items: []wire.Image{}}
	n, err := limit(p.Limit)
	if err != nil || s.o.Images == nil {
		return page, err
	}
	list, err := afterID(s.o.Images.List(), p.After, func(i rootfs.Image) string { return i.Digest })
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, func(i rootfs.Image) string { return i.Digest })
	page.Items = each(list, imageOut)
	return page, nil
}

func imageOut(i rootfs.Image) wire.Image {
	return wire.Image{Digest: i.Digest, Sources: i.Sources, Size: i.Size, Files: i.Files, CreatedAt: i.Created.UTC(), Skipped: i.Skipped}
}

func (s *Server) prepareImage(ctx context.Context, _ none, r wire.Rootfs) (wire.Prepared, error) {
	if s.o.Images == nil {
		return wire.Prepared{}, fault.Cannot("api.prepareImage", "this daemon stores no root filesystems", "")
	}
	layer, err := s.o.Images.Prepare(ctx, jail.Rootfs(r))
	return wire.Prepared{Digest: layer.Digest, Source: layer.Source}, err
}

func (s *Server) pruneImages(ctx context.Context, _, _ none) (wire.Page[wire.Image], error) {
	page := wire.Page[wire.Image]{Items: []wire.Image{}}
	if s.o.Images == nil {
		return page, nil
	}
	gone, err := s.o.Images.Prune(ctx)
	page.Items = each(gone, imageOut)
	return page, err
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request, _ none) error {
	s.metrics.handler().ServeHTTP(w, r)
	return nil
}

func (s *Server) getOpenApi(w http.ResponseWriter, _ *http.Request, _ none) error {
	text, err := s.openapi()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(text)
	return err
}

func (s *Server) createToken(ctx context.Context, _ none, b wire.CreateToken) (wire.Token, error) {
	role, err := access.ParseRole(b.Role)
	if err != nil {
		return wire.Token{}, err
	}
	t, secret, err := s.o.Tokens.Create(ctx, b.Name, role, b.ExpiresAt)
	if err != nil {
		return wire.Token{}, err
	}
	w := tokenOf(t)
	w.Token = secret
	return w, nil
}

// E2B describes the listener for clients of the E2B protocol.
type E2B struct {
	URL    string // "": not served
	Domain string // parent domain of the host names of sandbox ports
	CA     string // CA certificate that clients must trust, PEM; "": a public CA
}

// createE2bKey creates an API key that is valid only on the E2B listener.
func (s *Server) createE2bKey(ctx context.Context, _ none, b wire.CreateE2BKey) (wire.E2BKey, error) {
	if s.o.E2B.URL == "" {
		return wire.E2BKey{}, fault.Cannot("api.createE2bKey", "the E2B API is disabled", "set e2b.listen in the daemon's configuration")
	}
	t, key, err := s.o.Tokens.CreateKey(ctx, cmp.Or(b.Name, access.CallerOf(ctx).Name), nil)
	return wire.E2BKey{ID: t.ID, Key: key, URL: s.o.E2B.URL, Domain: s.o.E2B.Domain, CA: s.o.E2B.CA}, err
}

func (s *Server) listTokens(ctx context.Context, p paging, _ none) (wire.Page[wire.Token], error) {
	var page wire.Page[wire.Token]
	n, err := limit(p.Limit)
	if err != nil {
		return page, err
	}
	list, err := s.o.Tokens.List(ctx)
	if err != nil {
		return page, err
	}
	list, err = afterID(list, p.After, func(t access.Token) string { return string(t.ID) })
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, func(t access.Token) string { return string(t.ID) })
	page.Items = each(list, tokenOf)
	return page, nil
}

type oneToken struct {
	ID id.Token `path:"id"`
}

func (s *Server) revokeToken(ctx context.Context, p oneToken, _ none) (none, error) {
	return none{}, s.o.Tokens.Revoke(ctx, p.ID)
}

func tokenOf(t access.Token) wire.Token {
	return wire.Token{ID: t.ID, Name: t.Name, Role: string(t.Role), CreatedAt: t.Created.UTC(), ExpiresAt: utc(t.Expires)}
}

// afterID returns the items after the one with the given key.
func afterID[T any](list []T, after string, key func(T) string) ([]T, error) {
	if after == "" {
		return list, nil
	}
	for i, v := range list {
		if key(v) == after {
			return list[i+1:], nil
		}
	}
	return nil, fault.Fieldf("api.afterID", "after", "%s no longer exists; restart from the first page", text.Visible(text.Clip(after, 64)))
}
