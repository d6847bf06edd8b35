package client

import (
	"context"
	"iter"
	"net/url"

	"glasshouse/api/wire"
)

// Connectors returns the connectors: inbound webhooks, outbound webhooks and relays.
func (c *Client) Connectors(ctx context.Context) ([]wire.Connector, error) {
	var p wire.Page[wire.Connector]
	err := c.do(ctx, request{method: "GET", path: "/connectors"}, &p)
	return p.Items, err
}

// Deliveries yields the deliveries of a connector by due time. State is "pending",
// "delivered" or "dead", or "" for all.
func (c *Client) Deliveries(ctx context.Context, connector, state string) iter.Seq2[wire.Delivery, error] {
	q := url.Values{}
	if state != "" {
		q.Set("state", state)
	}
	return pages[wire.Delivery](ctx, c, "/connectors/"+url.PathEscape(connector)+"/deliveries", q)
}

// RedeliverMessage retries a failed delivery.
func (c *Client) RedeliverMessage(ctx context.Context, delivery string) (wire.Delivery, error) {
	var d wire.Delivery
	err := c.do(ctx, request{method: "POST", path: "/deliveries/" + url.PathEscape(delivery) + "/redeliver"}, &d)
	return d, err
}
