package control

import (
	"context"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// maxName bounds a file name. A name of 255 bytes, the kernel's limit, becomes longer when
// invalid UTF-8 in it is replaced.
const maxName = 1024

// fileRequest returns a request after it has checked for paths that JSON would modify.
func fileRequest(op protocol.Op, p string) (*protocol.Request, error) {
	// encoding/json replaces invalid bytes by U+FFFD, which can be the name of another file.
	if !utf8.ValidString(p) {
		return nil, fault.Fieldf(string(op), "path", "%.40q is not UTF-8", p)
	}
	return &protocol.Request{Op: op, Path: p}, nil
}

// Stat describes a file. A symlink at the end of path is not followed.
func (c *Client) Stat(ctx context.Context, path string) (protocol.FileInfo, error) {
	var info protocol.FileInfo
	q, err := fileRequest(protocol.OpStat, path)
	if err != nil {
		return info, err
	}
	if err := c.call(ctx, q, &info); err != nil {
		return protocol.FileInfo{}, err
	}
	return info, checkInfo(info)
}

// List returns at most limit entries of a directory (0 means 1000), sorted by name, that
// follow the name after. more reports whether there are others.
func (c *Client) List(ctx context.Context, dir, after string, limit int) (infos []protocol.FileInfo, more bool, err error) {
	q, err := fileRequest(protocol.OpList, dir)
	if err != nil {
		return nil, false, err
	}
	q.After, q.Limit = after, int64(limit)
	conn, err := c.open(ctx, q)
	if err != nil {
		return nil, false, err
	}
	defer conn.close()
	for last := after; ; {
		kind, payload, err := conn.next()
		if err != nil {
			return nil, false, err
		}
		if kind == protocol.FrameEnd {
			var end protocol.Listed
			err := conn.decode(kind, payload, protocol.FrameEnd, &end)
			// More without a name would make the caller request the same page forever.
			return infos, end.More && len(infos) > 0, err
		}
		var batch []protocol.FileInfo
		if err := conn.decode(kind, payload, protocol.FrameReply, &batch); err != nil {
			return nil, false, err
		}
		for _, info := range batch {
			if err := checkInfo(info); err != nil {
				return nil, false, err
			}
			// Callers page by the last name, so the order matters. A name with a slash and
			// the names . and .. would lead out of the directory in Path.
			if info.Name < last || info.Name == "" || info.Name == "." || info.Name == ".." || strings.Contains(info.Name, "/") {
				return nil, false, hostile("an invalid listing")
			}
			info.Path = path.Join("/", dir, info.Name)
			infos, last = append(infos, info), info.Name
		}
		if len(infos) > protocol.MaxListPage {
			return nil, false, hostile("a listing without end")
		}
	}
}

var fileTypes = map[string]bool{"file": true, "dir": true, "symlink": true, "fifo": true, "socket": true, "char": true, "block": true}

func checkInfo(info protocol.FileInfo) error {
	if !fileTypes[info.Type] || info.Size < 0 || len(info.Name) > maxName || len(info.Path) > 4*protocol.MaxPath || len(info.Target) > 4*protocol.MaxPath {
		return hostile("an invalid file description")
	}
	return nil
}

// Read returns at most limit bytes of a regular file from offset on, or all if limit is
// negative. The caller closes the reader.
func (c *Client) Read(ctx context.Context, path string, offset, limit int64) (io.ReadCloser, protocol.FileInfo, error) {
	q, err := fileRequest(protocol.OpRead, path)
	if err != nil {
		return nil, protocol.FileInfo{}, err
	}
	q.Offset, q.Limit = offset, limit
	conn, err := c.open(ctx, q)
	if err != nil {
		return nil, protocol.FileInfo{}, err
	}
	var info protocol.FileInfo
	if err = conn.expect(protocol.FrameReply, &info); err == nil {
		err = checkInfo(info)
	}
	if err != nil {
		conn.close()
		return nil, protocol.FileInfo{}, err
	}
	if limit < 0 {
		limit = 1<<63 - 1
	}
	return &download{conn: conn, allowed: limit}, info, nil
}

// A download reads Data frames up to an End frame.
type download struct {
	conn    *conn
	allowed int64 // bytes that may still follow
	left    []byte
	err     error
}

func (d *download) Read(p []byte) (int, error) {
	for len(d.left) == 0 {
		if d.err != nil {
			return 0, d.err
		}
		d.left, d.err = d.next()
	}
	n := copy(p, d.left)
	d.left = d.left[n:]
	return n, nil
}

func (d *download) next() ([]byte, error) {
	kind, payload, err := d.conn.next()
	if err != nil {
		return nil, err
	}
	if kind == protocol.FrameEnd {
		return nil, io.EOF
	}
	if err := d.conn.decode(kind, payload, protocol.FrameData, nil); err != nil {
		return nil, err
	}
	d.allowed -= int64(len(payload))
	if d.allowed < 0 {
		return nil, hostile("more data than requested")
	}
	return payload, nil
}

func (d *download) Close() error { return d.conn.close() }

// Write creates or replaces a file with the content of r, or appends to it. If r fails the
// file is unchanged, except after a partial append.
func (c *Client) Write(ctx context.Context, path string, r io.Reader, opts protocol.WriteOptions) (protocol.FileInfo, error) {
	var info protocol.FileInfo
	q, err := fileRequest(protocol.OpWrite, path)
	if err != nil {
		return info, err
	}
	q.Write = &opts
	if err := c.upload(ctx, q, r, &info); err != nil {
		return protocol.FileInfo{}, err
	}
	return info, checkInfo(info)
}

// upload sends q and the content of r, and decodes the reply into end.
func (c *Client) upload(ctx context.Context, q *protocol.Request, r io.Reader, end any) error {
	conn, err := c.open(ctx, q)
	if err != nil {
		return err
	}
	defer conn.close()
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		return err
	}
	buf := make([]byte, protocol.MaxData)
	for {
		n, err := r.Read(buf)
		if sendErr := conn.send(func(w *protocol.Writer) error { return w.Data(buf[:n]) }); sendErr != nil {
			return sendErr
		}
		if err == io.EOF {
			return conn.finish(end)
		}
		if err != nil {
			return err // init discards an upload without End
		}
	}
}

// Mkdir creates a directory. With parents it also creates missing parents, and the directory
// may exist. Mode 0 means 0755.
func (c *Client) Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	q, err := fileRequest(protocol.OpMkdir, path)
	if err != nil {
		return err
	}
	q.Mode, q.Parents = mode, parents
	return c.call(ctx, q, nil)
}

// MkdirFor creates a directory and its missing parents with owner o. The directory may exist.
func (c *Client) MkdirFor(ctx context.Context, path string, o protocol.Owner) error {
	q, err := fileRequest(protocol.OpMkdir, path)
	if err != nil {
		return err
	}
	q.Parents, q.Owner = true, &o
	return c.call(ctx, q, nil)
}

// Remove removes a file or an empty directory, or with recursive a directory and its contents.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	q, err := fileRequest(protocol.OpRemove, path)
	if err != nil {
		return err
	}
	q.Recursive = recursive
	return c.call(ctx, q, nil)
}

// Move renames a file or directory, with replace also over an existing file.
func (c *Client) Move(ctx context.Context, from, to string, replace bool) error {
	q, err := fileRequest(protocol.OpMove, from)
	if err != nil {
		return err
	}
	if !utf8.ValidString(to) {
		return fault.Fieldf("move", "to", "%.40q is not UTF-8", to)
	}
	q.To, q.Replace = to, replace
	return c.call(ctx, q, nil)
}

// Tar returns a tar archive of the tree at path. The caller closes it.
func (c *Client) Tar(ctx context.Context, path string) (io.ReadCloser, error) {
	q, err := fileRequest(protocol.OpTar, path)
	if err != nil {
		return nil, err
	}
	conn, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		conn.close()
		return nil, err
	}
	return &download{conn: conn, allowed: 1<<63 - 1}, nil
}

// Untar extracts a tar archive below path.
func (c *Client) Untar(ctx context.Context, path string, r io.Reader) error {
	q, err := fileRequest(protocol.OpUntar, path)
	if err != nil {
		return err
	}
	return c.upload(ctx, q, r, nil)
}

var fileOps = map[string]bool{"create": true, "write": true, "delete": true, "rename": true, "attrib": true, "overflow": true}

// Watch reports changes of a file, or of the entries of a directory, until ctx ends or the
// file is removed; then the channel is closed. A receiver that is too slow gets an overflow
// event, and so does one whose jail was parked.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) (<-chan protocol.FileEvent, error) {
	q, err := fileRequest(protocol.OpWatch, path)
	if err != nil {
		return nil, err
	}
	q.Recursive = recursive
	conn, err := c.watch(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	w := &watch{client: c, conn: conn, q: q, events: make(chan protocol.FileEvent, 64)}
	go w.run(ctx)
	return w.events, nil
}

// watch starts a watch, or restarts it after a park.
func (c *Client) watch(ctx context.Context, q *protocol.Request, parked *conn) (*conn, error) {
	conn, err := c.reopen(ctx, q, parked)
	if err != nil {
		return nil, err
	}
	if err := conn.expect(protocol.FrameReply, nil); err != nil {
		conn.close()
		return nil, err
	}
	return conn, nil
}

type watch struct {
	client *Client
	conn   *conn
	q      *protocol.Request
	came   bool // an event has arrived on this connection
	events chan protocol.FileEvent
}

func (w *watch) run(ctx context.Context) {
	defer close(w.events)
	defer func() { w.conn.close() }()
	for {
		e, err := w.next()
		switch {
		case err == errParked:
			e, err = w.again(ctx, w.conn)
		case isBroken(err) && w.came:
			// If init breaks every connection, the client must not reconnect forever. Therefore
			// each connection must deliver an event before it breaks.
			e, err = w.again(ctx, nil)
		}
		if err != nil {
			return
		}
		select {
		case w.events <- e:
		case <-ctx.Done():
			return
		}
	}
}

// next returns errParked if the connection was closed by a park.
func (w *watch) next() (e protocol.FileEvent, err error) {
	kind, payload, err := w.conn.read()
	switch {
	case err != nil:
		return e, w.conn.ended(err)
	case kind == protocol.FrameParked:
		return e, errParked
	}
	w.came = true
	if err := w.conn.decode(kind, payload, protocol.FrameEvent, &e); err != nil {
		return e, err
	}
	if !fileOps[e.Op] || len(e.Path) > 4*protocol.MaxPath {
		return e, hostile("an invalid event")
	}
	return e, nil
}

// again restarts the watch. Changes in the meantime are lost.
func (w *watch) again(ctx context.Context, parked *conn) (protocol.FileEvent, error) {
	w.conn.close()
	conn, err := w.client.watch(ctx, w.q, parked)
	if err != nil {
		return protocol.FileEvent{}, err
	}
	w.conn, w.came = conn, false
	return protocol.FileEvent{Path: path.Join("/", w.q.Path), Op: "overflow", Dir: true}, nil
}
