package api

import (
	"context"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/rootfs"
)

// imageHandler serves the routes of root filesystems.
type imageHandler struct{ images Images }

func (h *imageHandler) listImages(_ context.Context, p paging, _ none) (wire.Page[wire.Image], error) {
	if h.images == nil {
		_, err := limit(p.Limit)
		return wire.Page[wire.Image]{Items: []wire.Image{}}, err
	}
	return pageAfter(p.Limit, p.After, func() ([]rootfs.Image, error) { return h.images.List(), nil },
		func(i rootfs.Image) string { return i.Digest }, imageOut)
}

func imageOut(i rootfs.Image) wire.Image {
	return wire.Image{Digest: i.Digest, Sources: i.Sources, Size: i.Size, Files: i.Files, CreatedAt: i.Created.UTC(), Skipped: i.Skipped}
}

func (h *imageHandler) prepareImage(ctx context.Context, _ none, r wire.Rootfs) (wire.Prepared, error) {
	if h.images == nil {
		return wire.Prepared{}, fault.Cannot("api.prepareImage", "this daemon stores no root filesystems", "")
	}
	layer, err := h.images.Prepare(ctx, jail.Rootfs(r))
	return wire.Prepared{Digest: layer.Digest, Source: layer.Source}, err
}

func (h *imageHandler) pruneImages(ctx context.Context, _, _ none) (wire.Page[wire.Image], error) {
	page := wire.Page[wire.Image]{Items: []wire.Image{}}
	if h.images == nil {
		return page, nil
	}
	gone, err := h.images.Prune(ctx)
	page.Items = each(gone, imageOut)
	return page, err
}
