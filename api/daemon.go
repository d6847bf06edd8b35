package api

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail"
)

// hostHandler serves the routes about the daemon and its host.
type hostHandler struct {
	jails   Manager
	doctor  func(ctx context.Context) []wire.Probe
	storage func(ctx context.Context) (wire.Storage, error) // nil: no data directory
	ready   func(ctx context.Context) error                 // nil: always
	nodes   func(ctx context.Context) ([]wire.Node, error)  // nil: this daemon shares its database of runs with no other
	version wire.Version
	closing context.Context // canceled when the daemon stops
	log     *slog.Logger
}

func (h *hostHandler) checkHealth(context.Context, none, none) (wire.Health, error) {
	return wire.Health{Status: "ok"}, nil
}

// readyTime is the timeout of the readiness checks.
const readyTime = 5 * time.Second

func (h *hostHandler) checkReadiness(ctx context.Context, _, _ none) (wire.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if h.closing.Err() != nil {
		return wire.Health{}, fault.New(fault.Unavailable, "api.checkReadiness", "", errClosing)
	}
	if h.ready == nil {
		return wire.Health{Status: "ok"}, nil
	}
	if err := h.ready(ctx); err != nil {
		// The endpoint needs no token, so the response contains no details, except that the
		// disk is full.
		h.log.Warn("not ready", "err", err)
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

func (h *hostHandler) getVersion(context.Context, none, none) (wire.Version, error) {
	return h.version, nil
}

func (h *hostHandler) listBackends(ctx context.Context, _, _ none) (wire.Page[wire.Backend], error) {
	return wire.Page[wire.Backend]{Items: each(h.jails.Backends(ctx), func(b jail.BackendInfo) wire.Backend {
		return wire.Backend(b)
	})}, nil
}

func (h *hostHandler) diagnoseHost(ctx context.Context, _, _ none) (wire.Page[wire.Probe], error) {
	page := wire.Page[wire.Probe]{Items: []wire.Probe{}}
	if h.doctor != nil {
		page.Items = append(page.Items, h.doctor(ctx)...)
	}
	return page, nil
}

func (h *hostHandler) listNodes(ctx context.Context, _, _ none) (wire.Page[wire.Node], error) {
	page := wire.Page[wire.Node]{Items: []wire.Node{}}
	if h.nodes == nil {
		return page, nil
	}
	list, err := h.nodes(ctx)
	page.Items = append(page.Items, list...)
	return page, err
}

func (h *hostHandler) getStorage(ctx context.Context, _, _ none) (wire.Storage, error) {
	if h.storage == nil {
		return wire.Storage{}, fault.Cannot("api.getStorage", "this daemon has no data directory", "start the daemon with glasshouse serve")
	}
	return h.storage(ctx)
}
