package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"glasshouse/agents/connector"
	"glasshouse/agents/run"
	"glasshouse/api/wire"
	"glasshouse/fault"
)

// Connectors manages webhooks. *connector.Connectors implements it.
type Connectors interface {
	List(ctx context.Context) ([]connector.Info, error)
	Enter(ctx context.Context) (leave func(), err error)
	Receive(ctx context.Context, name string, h http.Header, body []byte) (connector.Received, error)
	Deliveries(ctx context.Context, f run.DeliveryFilter) ([]run.Delivery, error)
	Redeliver(ctx context.Context, delivery string) (run.Delivery, error)
}

// connectorHandler serves the routes of connectors and their deliveries.
type connectorHandler struct{ connectors Connectors }

type oneHook struct {
	Connector string `path:"connector"`
}

// hookTime is the time limit for receiving the body of an inbound webhook.
const hookTime = 10 * time.Second

// receiveHook accepts an inbound webhook. It verifies the signature before it parses the body.
func (h *connectorHandler) receiveHook(w http.ResponseWriter, r *http.Request, p oneHook) error {
	if r.ContentLength > connector.MaxBody {
		return fault.Newf(fault.TooLarge, "api.receiveHook", "", "the body exceeds %d bytes", connector.MaxBody)
	}
	body, err := hookBody(h.connectors, w, r)
	if err != nil {
		return err
	}
	got, err := h.connectors.Receive(r.Context(), p.Connector, r.Header, body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, wire.Received{Session: got.Session, Message: got.Message, Run: got.Run})
}

func hookBody(c Connectors, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	leave, err := c.Enter(r.Context())
	if err != nil {
		return nil, err
	}
	defer leave()
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(hookTime))
	defer rc.SetReadDeadline(time.Time{})
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, connector.MaxBody))
	if err != nil {
		return nil, tooLarge(err)
	}
	return body, nil
}

func (h *connectorHandler) listConnectors(ctx context.Context, _, _ none) (wire.Page[wire.Connector], error) {
	page := wire.Page[wire.Connector]{Items: []wire.Connector{}}
	all, err := h.connectors.List(ctx)
	page.Items = each(all, func(i connector.Info) wire.Connector {
		w := wire.Connector{Name: i.Name, Kind: string(i.Kind), Address: i.Address, Sessions: i.Sessions, Session: i.Session, Goal: i.Goal, Pending: i.Pending, Dead: i.Dead}
		return w
	})
	return page, err
}

type listDeliveries struct {
	Connector string `path:"connector"`
	State     string `query:"state" enum:"pending,delivered,dead"`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After     string `query:"after" description:"The 'next' value of the previous page."`
}

func (h *connectorHandler) listDeliveries(ctx context.Context, p listDeliveries, _ none) (wire.Page[wire.Delivery], error) {
	return pageOf(p.Limit, func(n int) ([]run.Delivery, error) {
		return h.connectors.Deliveries(ctx, run.DeliveryFilter{To: p.Connector, State: run.DeliveryState(p.State), After: p.After, Limit: n})
	}, func(d run.Delivery) string { return d.ID }, deliveryOf)
}

type oneDelivery struct {
	Delivery string `path:"delivery"`
}

func (h *connectorHandler) redeliverMessage(ctx context.Context, p oneDelivery, _ none) (wire.Delivery, error) {
	d, err := h.connectors.Redeliver(ctx, p.Delivery)
	return deliveryOf(d), err
}

func deliveryOf(d run.Delivery) wire.Delivery {
	w := wire.Delivery{ID: d.ID, Session: d.Session, Message: d.Message, Connector: d.To, State: string(d.State), Attempts: d.Attempts, Error: d.Error}
	if d.State == run.Pending {
		w.Next = at(d.Next)
	}
	return w
}
