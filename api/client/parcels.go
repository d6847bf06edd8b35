package client

import (
	"context"
	"io"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// ExportSnapshot returns an archive of a snapshot. The caller closes it.
func (c *Client) ExportSnapshot(ctx context.Context, s id.Snapshot) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: snapshotPath(s, "/export")})
}

// ImportOptions configures the import of a snapshot.
type ImportOptions struct {
	FilesOnly bool // omit the processes
	Force     bool // import the processes even if they may be incompatible with the host
}

// ImportSnapshot imports a snapshot from an archive.
func (c *Client) ImportSnapshot(ctx context.Context, r io.Reader, o ImportOptions) (wire.Snapshot, error) {
	var s wire.Snapshot
	err := c.do(ctx, request{method: "POST", path: "/snapshots/import", query: flags("files_only", o.FilesOnly, "force", o.Force), body: r}, &s)
	return s, err
}
