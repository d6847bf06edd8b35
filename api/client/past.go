package client

import (
	"context"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// Past returns how a jail was at an instant: a time, how long ago, or the number of a
// record; "" is now. With all those processes that ended last before are in it.
func (c *Client) Past(ctx context.Context, j id.Jail, ts string, all bool) (wire.Past, error) {
	var p wire.Past
	q := flags("all", all)
	if ts != "" {
		q.Set("ts", ts)
	}
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/at"), query: q}, &p)
	return p, err
}

// ProfileQuery says which system calls are meant. The zero value is all.
type ProfileQuery struct {
	Filter    string // terms joined by spaces, as in docs/events.md
	From, To  string // times, or how long ago; "" is no bound
	Processes int    // of so many processes the part as well
}

// Profile returns which system calls a jail made, how long they took and how they failed.
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

// Connections returns whom a jail talked to, by host, and what was decided about it.
func (c *Client) Connections(ctx context.Context, j id.Jail) (wire.Connections, error) {
	var cs wire.Connections
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/connections")}, &cs)
	return cs, err
}
