package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"glasshouse/api/wire"
	"glasshouse/id"
)

func filesRequest(method string, j id.Jail, rest, path string, q url.Values) request {
	if q == nil {
		q = url.Values{}
	}
	q.Set("path", path)
	return request{method: method, path: jailPath(j, "/files"+rest), query: q}
}

// Stat returns the metadata of a file. It does not follow symlinks.
func (c *Client) Stat(ctx context.Context, j id.Jail, path string) (wire.File, error) {
	var f wire.File
	err := c.do(ctx, filesRequest("GET", j, "", path, flags("stat", true)), &f)
	return f, err
}

// Files yields the entries of a directory, by name.
func (c *Client) Files(ctx context.Context, j id.Jail, path string) iter.Seq2[wire.File, error] {
	q := flags("list", true)
	q.Set("path", path)
	q.Set("limit", "1000")
	return pages[wire.File](ctx, c, jailPath(j, "/files"), q)
}

// ReadFile reads at most n bytes of a file, beginning at offset. A negative n reads to the
// end. The caller closes the reader.
func (c *Client) ReadFile(ctx context.Context, j id.Jail, path string, offset, n int64) (io.ReadCloser, error) {
	q := url.Values{"offset": {strconv.FormatInt(offset, 10)}}
	if n >= 0 {
		q.Set("bytes", strconv.FormatInt(n, 10))
	}
	return c.open(ctx, filesRequest("GET", j, "", path, q))
}

func (c *Client) open(ctx context.Context, r request) (io.ReadCloser, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteOptions configures how a file is written. The zero value replaces the file
// atomically.
type WriteOptions struct {
	Mode    fs.FileMode // mode of a new file; 0 is the default, 0644
	Append  bool
	Parents bool // create missing parent directories
	UID     *uint32
	GID     *uint32
}

// WriteFile writes the content of r to a file.
func (c *Client) WriteFile(ctx context.Context, j id.Jail, path string, r io.Reader, o WriteOptions) (wire.File, error) {
	q := flags("append", o.Append, "parents", o.Parents)
	setMode(q, o.Mode)
	for name, v := range map[string]*uint32{"uid": o.UID, "gid": o.GID} {
		if v != nil {
			q.Set(name, strconv.FormatUint(uint64(*v), 10))
		}
	}
	req := filesRequest("PUT", j, "", path, q)
	req.body = r
	var f wire.File
	err := c.do(ctx, req, &f)
	return f, err
}

func setMode(q url.Values, m fs.FileMode) {
	if m == 0 {
		return
	}
	n := m.Perm()
	for bit, special := range map[fs.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&special != 0 {
			n |= bit
		}
	}
	q.Set("mode", fmt.Sprintf("%o", uint32(n)))
}

// Mkdir creates a directory and, if parents is true, its missing parents. Mode 0 is the
// default, 0755.
func (c *Client) Mkdir(ctx context.Context, j id.Jail, path string, mode fs.FileMode, parents bool) (wire.File, error) {
	q := flags("mkdir", true, "parents", parents)
	setMode(q, mode)
	var f wire.File
	err := c.do(ctx, filesRequest("PUT", j, "", path, q), &f)
	return f, err
}

// Remove deletes a file or an empty directory, or, if recursive is true, a directory with
// its contents.
func (c *Client) Remove(ctx context.Context, j id.Jail, path string, recursive bool) error {
	return c.do(ctx, filesRequest("DELETE", j, "", path, flags("recursive", recursive)), nil)
}

// Move renames a file or directory.
func (c *Client) Move(ctx context.Context, j id.Jail, m wire.MoveFile) error {
	return c.do(ctx, request{method: "POST", path: jailPath(j, "/files/move"), json: m}, nil)
}

// Tar returns a tar archive of a file or directory tree. The caller closes it.
func (c *Client) Tar(ctx context.Context, j id.Jail, path string) (io.ReadCloser, error) {
	return c.open(ctx, filesRequest("GET", j, "", path, flags("tar", true)))
}

// Untar extracts a tar archive below path. If parents is true, it first creates path.
func (c *Client) Untar(ctx context.Context, j id.Jail, path string, r io.Reader, parents bool) error {
	req := filesRequest("PUT", j, "", path, flags("tar", true, "parents", parents))
	req.body = r
	return c.do(ctx, req, nil)
}

// Watch watches a path for changes. It returns when the watch is active. The iterator yields
// changes until ctx is cancelled or the jail stops, and can be used once.
func (c *Client) Watch(ctx context.Context, j id.Jail, path string, recursive bool) (iter.Seq2[wire.FileEvent, error], error) {
	r := filesRequest("GET", j, "/watch", path, flags("recursive", recursive))
	r.header = http.Header{"Accept": {"text/event-stream"}}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	return func(yield func(wire.FileEvent, error) bool) {
		defer resp.Body.Close()
		sse := newSSEReader(resp.Body)
		for {
			e, err := sse.next()
			switch {
			case err == io.EOF || ctx.Err() != nil:
				return
			case err != nil:
				yield(wire.FileEvent{}, c.lost(ctx, r, err))
				return
			case e.name != wire.EventChange:
				continue
			}
			var f wire.FileEvent
			if err := json.Unmarshal([]byte(e.data), &f); err != nil {
				yield(f, fmt.Errorf("client: parse change event: %w", err))
				return
			}
			if !yield(f, nil) {
				return
			}
		}
	}, nil
}
