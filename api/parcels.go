package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"glasshouse/id"
	"glasshouse/jail/snapshot"
	"glasshouse/policy/access"
)

// A Carrier exports and imports snapshots. *snapshot.Manager implements it.
type Carrier interface {
	Export(ctx context.Context, s id.Snapshot, w io.Writer) error
	Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Snapshot, error)
}

const parcelKind = "application/zstd"

// exportSnapshot responds with an archive of a snapshot.
func (h *snapshotHandler) exportSnapshot(w http.ResponseWriter, r *http.Request, p oneSnapshot) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if _, err := h.snapshots.Get(r.Context(), p.ID); err != nil {
		return err
	}
	name := string(p.ID) + ".tar.zst"
	if r.Method == http.MethodHead {
		download(w, parcelKind, name)
		return nil
	}
	w.(*recorder).stream = true
	return h.snapshots.Export(r.Context(), p.ID, &downloader{w: w, name: name, rc: http.NewResponseController(w)})
}

// A downloader sends the response headers with the first byte. Before it, the response can
// still become an error.
type downloader struct {
	w    http.ResponseWriter
	name string
	rc   *http.ResponseController
}

func (d *downloader) Write(b []byte) (int, error) {
	if d.name != "" {
		download(d.w, parcelKind, d.name)
		d.name = ""
	}
	d.rc.SetWriteDeadline(time.Now().Add(writeTime))
	return d.w.Write(b)
}

type importSnapshot struct {
	FilesOnly bool `query:"files_only" description:"Import only the files, without the processes."`
	Force     bool `query:"force" description:"Import the processes even if they ran on a different CPU or a newer kernel."`
}

// importSnapshot stores an exported snapshot.
func (h *snapshotHandler) importSnapshot(w http.ResponseWriter, r *http.Request, p importSnapshot) error {
	caller := access.CallerOf(r.Context())
	body, done := patient(r.Context(), w, r)
	defer done()
	got, err := h.snapshots.Import(r.Context(), body, snapshot.ImportOptions{
		FilesOnly: p.FilesOnly, Force: p.Force, Trusted: caller.Local && caller.Token == "",
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/snapshots/"+string(got.ID))
	return writeJSON(w, http.StatusCreated, snapshotOf(got, h.snapshots))
}
