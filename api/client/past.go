package client

import (
	"context"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// Past returns the state of a jail at an instant: a time, a duration before now, or the
// sequence number of an event; "" is now. If all is true, the result includes processes that
// ended before the instant.
func (c *Client) Past(ctx context.Context, j id.Jail, ts string, all bool) (wire.Past, error) {
	var p wire.Past
	q := flags("all", all)
	if ts != "" {
		q.Set("ts", ts)
	}
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/at"), query: q}, &p)
	return p, err
}

// ProfileQuery selects system calls. The zero value selects all.
type ProfileQuery struct {
	Filter    string // terms separated by spaces, as in docs/reference/events.md
	From, To  string // times, or durations before now; "" is unbounded
	Processes int    // number of processes to list, those with the most calls
}

// Profile summarizes the system calls of a jail: frequency, duration and errors.
func (c *Client) Profile(ctx context.Context, j id.Jail, q ProfileQuery) (wire.Profile, error) {
	v := url.Values{}
	for name, value := range map[string]string{"q": q.Filter, "from": q.From, "to": q.To} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Processes != 0 {
		v.Set("processes", strconv.Itoa(q.Processes))
	}
	var p wire.Profile
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/syscalls"), query: v}, &p)
	return p, err
}

// Connections summarizes the network connections of a jail by host, with the egress
// decisions.
func (c *Client) Connections(ctx context.Context, j id.Jail) (wire.Connections, error) {
	var cs wire.Connections
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/connections")}, &cs)
	return cs, err
}
