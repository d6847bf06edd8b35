package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/capability/bundle"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
)

// Bundles is the registry of bundles as the API uses it.
type Bundles interface {
	Install(ctx context.Context, path, by string) (registry.Bundle, error)
	Bundles() []registry.Bundle
	RemoveBundle(ctx context.Context, name string) error
	NotCallableReason(name string) error
	TrustChanged(ctx context.Context) error
}

// bundleHandler serves the routes of installed bundles.
type bundleHandler struct {
	bundles Bundles
	audit   *auditLog
}

type installBundle struct {
	Name string `query:"name" required:"true" description:"File name of the archive. The extension determines the archive format."`
}

// maxBundle is the maximum size of an archive.
const maxBundle = 256 << 20

// maxName bounds the file name of an archive, in bytes (NAME_MAX in limits.h of Linux).
const maxName = 255

// tempBundle begins the names of directories for archives that are being installed.
const tempBundle = "glasshouse-bundle-"

// installBundle stores an uploaded archive and creates an approval request for its content.
func (h *bundleHandler) installBundle(w http.ResponseWriter, r *http.Request, p installBundle) error {
	if p.Name != filepath.Base(p.Name) || len(p.Name) > maxName || strings.Contains(p.Name, "\x00") || !bundle.IsArchive(p.Name) {
		return fault.Fieldf("api.installBundle", "name", "%.80q is not an archive name: it must end in %s", p.Name, strings.Join(bundle.Archives, ", "))
	}
	dir, err := os.MkdirTemp("", tempBundle)
	if err != nil {
		return fmt.Errorf("create a directory for the archive: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, p.Name) // errors about the bundle contain this file name
	body, done := patient(r.Context(), w, r)
	defer done()
	if err := receive(file, body); err != nil {
		return err
	}
	b, err := h.bundles.Install(r.Context(), file, access.CallerOf(r.Context()).Name)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, bundleOf(h.bundles, b))
}

func receive(file string, from io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create a file for the archive: %w", err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(from, maxBundle+1))
	if err == nil && n > maxBundle {
		err = fault.Newf(fault.Exhausted, "api.receive", "", "the archive exceeds %d MiB", maxBundle>>20)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func bundleOf(caps Bundles, b registry.Bundle) wire.Bundle {
	w := wire.Bundle{Name: b.Name, Capabilities: append([]string{}, b.Capabilities...), Skill: b.Skill}
	if n := b.Now; n != nil {
		w.Version, w.Publisher, w.Tier, w.Digest, w.Installed = n.Version, n.Publisher, string(n.Tier), n.Digest, utc(&n.At)
		if !n.Until.IsZero() {
			w.Until = utc(&n.Until)
		}
		if why := caps.NotCallableReason(b.Name); why != nil {
			w.Barred, w.Remedy = why.Error(), fault.RemedyOf(why)
		}
	}
	if n := b.Next; n != nil {
		w.Next = &wire.BundleInstall{Version: n.Version, Digest: n.Digest, State: string(n.State), Approval: n.Approval, Why: n.Why}
	}
	return w
}

func (h *bundleHandler) listBundles(context.Context, none, none) (wire.Page[wire.Bundle], error) {
	page := wire.Page[wire.Bundle]{Items: []wire.Bundle{}}
	for _, b := range h.bundles.Bundles() {
		page.Items = append(page.Items, bundleOf(h.bundles, b))
	}
	return page, nil
}

type oneBundle struct {
	Name string `path:"name"`
}

func (h *bundleHandler) deleteBundle(ctx context.Context, p oneBundle, _ none) (none, error) {
	if err := h.bundles.RemoveBundle(ctx, p.Name); err != nil {
		return none{}, err
	}
	h.audit.note(ctx, chain.BundleRemoved, map[string]string{"bundle": p.Name})
	return none{}, nil
}
