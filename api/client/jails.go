package client

import (
	"context"
	"iter"
	"net/url"
	"time"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func jailPath(j id.Jail, rest string) string { return "/jails/" + url.PathEscape(string(j)) + rest }

// CreateJail creates a jail. It is retried if the connection breaks, and creates only one
// jail.
func (c *Client) CreateJail(ctx context.Context, r wire.CreateJail) (wire.Jail, error) {
	var j wire.Jail
	err := c.once(ctx, request{method: "POST", path: "/jails", json: r}, &j)
	return j, err
}

// Jail returns a jail with its resource usage.
func (c *Client) Jail(ctx context.Context, j id.Jail) (wire.Jail, error) {
	var out wire.Jail
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "")}, &out)
	return out, err
}

// JailFilter selects jails. The zero value selects all jails.
type JailFilter struct {
	State string
	Name  string
	Label map[string]string
	Nodes string // "all": the jails of all nodes of the fleet; "self": those of the daemon that answers
}

// Jails yields the jails that match f, oldest first.
func (c *Client) Jails(ctx context.Context, f JailFilter) iter.Seq2[wire.Jail, error] {
	q := url.Values{}
	if f.State != "" {
		q.Set("state", f.State)
	}
	if f.Name != "" {
		q.Set("name", f.Name)
	}
	if f.Nodes != "" {
		q.Set("nodes", f.Nodes)
	}
	for k, v := range f.Label {
		q.Add("label", k+"="+v)
	}
	return pages[wire.Jail](ctx, c, "/jails", q)
}

// pages yields the items of a list and requests the pages as needed.
func pages[T any](ctx context.Context, c *Client, path string, q url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		next := url.Values{}
		for k, v := range q {
			next[k] = v
		}
		for {
			var page wire.Page[T]
			if err := c.do(ctx, request{method: "GET", path: path, query: next}, &page); err != nil {
				yield(*new(T), err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			next.Set("after", page.Next)
		}
	}
}

// Collect returns the items of a sequence up to its first error.
func Collect[T any](list iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for v, err := range list {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// MoveJail moves a jail to a node of the fleet, by name or ID. "" is the one with the fewest jails.
func (c *Client) MoveJail(ctx context.Context, j id.Jail, node string) (wire.MovedJail, error) {
	var m wire.MovedJail
	err := c.do(ctx, request{method: "POST", path: jailPath(j, "/move"), json: wire.MoveJail{Node: node}}, &m)
	return m, err
}

// StartJail starts a jail.
func (c *Client) StartJail(ctx context.Context, j id.Jail) (wire.Jail, error) {
	return c.moveJail(ctx, j, "/start", nil)
}

// StopJail stops a jail. Its processes are killed if they do not end within grace after
// SIGTERM, or at once if grace is 0.
func (c *Client) StopJail(ctx context.Context, j id.Jail, grace time.Duration) (wire.Jail, error) {
	ms := grace.Milliseconds()
	return c.moveJail(ctx, j, "/stop", wire.StopJail{GraceMS: &ms})
}

// PauseJail pauses (freezes) a jail.
func (c *Client) PauseJail(ctx context.Context, j id.Jail) (wire.Jail, error) {
	return c.moveJail(ctx, j, "/pause", nil)
}

// ResumeJail resumes a paused jail.
func (c *Client) ResumeJail(ctx context.Context, j id.Jail) (wire.Jail, error) {
	return c.moveJail(ctx, j, "/resume", nil)
}

func (c *Client) moveJail(ctx context.Context, j id.Jail, verb string, body any) (wire.Jail, error) {
	var out wire.Jail
	err := c.do(ctx, request{method: "POST", path: jailPath(j, verb), json: body}, &out)
	return out, err
}

// DeleteJail deletes a jail and its files, in any state.
func (c *Client) DeleteJail(ctx context.Context, j id.Jail) error {
	return c.do(ctx, request{method: "DELETE", path: jailPath(j, "")}, nil)
}

// ChangesOptions selects file changes of a jail. The zero value selects all changes in its
// root filesystem.
type ChangesOptions struct {
	Workspace bool   // changes in the workspace instead
	Path      string // only this path and the paths below it
	Unified   bool   // include unified diffs of text files
	Against   string // compare with this snapshot or jail instead
}

// Changes yields a jail's file changes, by path.
func (c *Client) Changes(ctx context.Context, j id.Jail, o ChangesOptions) iter.Seq2[wire.Change, error] {
	q := flags("workspace", o.Workspace)
	q.Set("limit", "1000")
	if o.Path != "" {
		q.Set("path", o.Path)
	}
	if o.Unified {
		q.Set("content", "unified")
	}
	if o.Against != "" {
		q.Set("against", o.Against)
	}
	return pages[wire.Change](ctx, c, jailPath(j, "/fs/diff"), q)
}

// flags returns a query with the names whose values are true. Pairs alternates names and
// values.
func flags(pairs ...any) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1].(bool) {
			q.Set(pairs[i].(string), "1")
		}
	}
	return q
}
