package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// fileHandler serves the routes of files.
type fileHandler struct {
	jails   Manager
	streams *streams
	metrics *metrics
	log     *slog.Logger
}

type getFile struct {
	ID     id.Jail `path:"id"`
	Path   string  `query:"path" required:"true" description:"Absolute path in the jail."`
	List   bool    `query:"list" description:"List the entries of a directory as JSON. Equivalent to Accept: application/json."`
	Stat   bool    `query:"stat" description:"Return the file's metadata as JSON."`
	Tar    bool    `query:"tar" description:"Return a tar archive of the file or directory tree."`
	Offset int64   `query:"offset" minimum:"0" description:"Offset of the first byte. A Range header takes precedence."`
	Bytes  *int64  `query:"bytes" minimum:"0" description:"Maximum number of bytes."`
	Limit  int     `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of entries per page. Default 100."`
	After  string  `query:"after" description:"The 'next' value of the previous page, which is a name."`
}

func (h *fileHandler) getFile(w http.ResponseWriter, r *http.Request, p getFile) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if n := count(p.List, p.Stat, p.Tar); n > 1 {
		return fault.Fieldf("api.getFile", "path", "list, stat and tar exclude each other")
	}
	return h.withFiles(r.Context(), p.ID, p.Path, func(f jail.Files) error {
		switch {
		case p.Tar:
			return sendTar(w, r, f, p)
		case p.Stat:
			return sendStat(w, r, f, p.Path)
		case p.List || accepts(r, "application/json"):
			return sendList(w, r, f, p)
		}
		return sendFile(w, r, f, p)
	})
}

// withFiles calls f with the files of a jail.
func (h *fileHandler) withFiles(ctx context.Context, j id.Jail, path string, f func(jail.Files) error) error {
	if err := checkPath("path", path); err != nil {
		return err
	}
	files, err := h.jails.Files(ctx, j)
	if err != nil {
		return err
	}
	defer func() {
		if err := files.Close(); err != nil {
			h.log.Error("files not closed", "jail", j, "err", err)
		}
	}()
	return f(files)
}

// checkPath requires an absolute path. jail.Files resolves it inside the jail and prevents
// escapes.
func checkPath(field, p string) error {
	switch {
	case p == "":
		return fault.Fieldf("api.checkPath", field, "path is missing")
	case !strings.HasPrefix(p, "/"):
		return fault.Fieldf("api.checkPath", field, "%q is not absolute", text.Clip(p, 64))
	case strings.Contains(p, "\x00"):
		return fault.Fieldf("api.checkPath", field, "a path must not contain NUL")
	case len(p) > protocol.MaxPath:
		return fault.Fieldf("api.checkPath", field, "longer than %d bytes", protocol.MaxPath)
	}
	return nil
}

func count(flags ...bool) int {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}

func sendStat(w http.ResponseWriter, r *http.Request, f jail.Files, name string) error {
	info, err := f.Stat(r.Context(), name)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, fileOf(info))
}

func sendList(w http.ResponseWriter, r *http.Request, f jail.Files, p getFile) error {
	n, err := limit(p.Limit)
	if err != nil {
		return err
	}
	list, more, err := f.List(r.Context(), p.Path, p.After, n)
	if err != nil {
		return err
	}
	page := wire.Page[wire.File]{Items: each(list, fileOf)}
	if more && len(list) > 0 {
		page.Next = list[len(list)-1].Name
	}
	return writeJSON(w, http.StatusOK, page)
}

func sendTar(w http.ResponseWriter, r *http.Request, f jail.Files, p getFile) error {
	body, err := f.Tar(r.Context(), p.Path)
	if err != nil {
		return err
	}
	defer body.Close()
	download(w, "application/x-tar", path.Base(p.Path)+".tar")
	return send(w, r, body)
}

// sendFile sends the content of a file, or the requested range.
func sendFile(w http.ResponseWriter, r *http.Request, f jail.Files, p getFile) error {
	info, err := f.Stat(r.Context(), p.Path)
	if err != nil {
		return err
	}
	part, err := partOf(r, p, info)
	if errors.Is(err, errNoPart) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return nil
	}
	if err != nil {
		return err
	}
	body, info, err := f.Read(r.Context(), p.Path, part.offset, part.limit)
	if err != nil {
		return err
	}
	defer body.Close()
	kind := mime.TypeByExtension(path.Ext(p.Path))
	if kind == "" {
		kind = "application/octet-stream"
	}
	download(w, kind, path.Base(p.Path))
	h := w.Header()
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.MTime.UTC().Format(http.TimeFormat))
	h.Set("Glasshouse-File-Mode", octal(info.Mode))
	if part.ranged {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.offset, part.offset+part.limit-1, info.Size))
		h.Set("Content-Length", strconv.FormatInt(part.limit, 10))
		w.WriteHeader(http.StatusPartialContent)
	}
	return send(w, r, body)
}

// download sets the response headers for data from a jail. The data is untrusted: the headers
// make a browser save it instead of rendering it, and give it no origin.
func download(w http.ResponseWriter, kind, name string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

// send copies body to the client until the client disconnects.
func send(w http.ResponseWriter, r *http.Request, body io.Reader) error {
	if r.Method == http.MethodHead {
		return nil
	}
	rc := http.NewResponseController(w)
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			rc.SetWriteDeadline(time.Now().Add(writeTime))
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// A part is the requested range of a file. A negative limit means up to the end.
type part struct {
	offset, limit int64
	ranged        bool // requested by a Range header
}

var errNoPart = errors.New("the range is outside the file")

func partOf(r *http.Request, p getFile, info protocol.FileInfo) (part, error) {
	if h := r.Header.Get("Range"); h != "" && info.Type == "file" {
		from, n, err := parseRange(h, info.Size)
		if err != nil || n >= 0 {
			return part{from, n, true}, err
		}
	}
	if p.Offset < 0 {
		return part{}, fault.Fieldf("api.partOf", "offset", "%d is not a valid offset", p.Offset)
	}
	all := part{offset: p.Offset, limit: -1}
	if p.Bytes != nil {
		if *p.Bytes < 0 {
			return part{}, fault.Fieldf("api.partOf", "bytes", "%d is not a valid length", *p.Bytes)
		}
		all.limit = *p.Bytes
	}
	return all, nil
}

// parseRange returns the start and length of a single byte range. For several ranges, other
// units and invalid values the length is negative: a server may ignore a Range header and send
// the whole file (RFC 9110, 14.2).
func parseRange(h string, size int64) (from, n int64, err error) {
	spec, ok := strings.CutPrefix(h, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || strings.Contains(spec, ",") {
		return 0, -1, nil
	}
	if first == "" { // suffix range: the last n bytes
		n, ok := digits(last)
		switch {
		case !ok:
			return 0, -1, nil
		case n == 0 || size == 0:
			return 0, 0, errNoPart
		}
		n = min(n, size)
		return size - n, n, nil
	}
	from, ok = digits(first)
	if !ok {
		return 0, -1, nil
	}
	to := size - 1
	if last != "" {
		l, ok := digits(last)
		if !ok || l < from {
			return 0, -1, nil
		}
		to = min(to, l)
	}
	if from >= size {
		return 0, 0, errNoPart
	}
	return from, to - from + 1, nil
}

func digits(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil && s[0] != '+'
}

type putFile struct {
	ID      id.Jail `path:"id"`
	Path    string  `query:"path" required:"true" description:"Absolute path in the jail."`
	Tar     bool    `query:"tar" description:"The body is a tar archive to extract below path."`
	Mkdir   bool    `query:"mkdir" description:"Create a directory. The request has no body."`
	Mode    string  `query:"mode" description:"Permission bits of a new file or directory, in octal." pattern:"^[0-7]{1,5}$"`
	Append  bool    `query:"append" description:"Append to the file. Default: replace it atomically."`
	Parents bool    `query:"parents" description:"Create missing parent directories."`
	UID     *uint32 `query:"uid"`
	GID     *uint32 `query:"gid"`
}

func (h *fileHandler) putFile(w http.ResponseWriter, r *http.Request, p putFile) error {
	if p.Tar && p.Mkdir {
		return fault.Fieldf("api.putFile", "path", "tar and mkdir exclude each other")
	}
	mode, err := modeOf(p.Mode)
	if err != nil {
		return err
	}
	return h.withFiles(r.Context(), p.ID, p.Path, func(f jail.Files) error {
		switch {
		case p.Tar:
			return putTar(w, r, f, p)
		case p.Mkdir:
			return h.mkdir(w, r, f, p, mode)
		}
		body, done := patient(r.Context(), w, r)
		defer done()
		info, err := f.Write(r.Context(), p.Path, body, protocol.WriteOptions{
			Mode: mode, Append: p.Append, Parents: p.Parents, UID: p.UID, GID: p.GID,
		})
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, fileOf(info))
	})
}

func putTar(w http.ResponseWriter, r *http.Request, f jail.Files, p putFile) error {
	if p.Mode != "" || p.Append || p.UID != nil || p.GID != nil {
		return fault.Fieldf("api.putTar", "tar", "mode and parents are not allowed with tar: the archive contains the attributes of its files")
	}
	if p.Parents {
		if err := f.Mkdir(r.Context(), p.Path, 0, true); err != nil {
			return err
		}
	}
	body, done := patient(r.Context(), w, r)
	defer done()
	if err := f.Untar(r.Context(), p.Path, body); err != nil {
		return err
	}
	return sendStat(w, r, f, p.Path)
}

func (h *fileHandler) mkdir(w http.ResponseWriter, r *http.Request, f jail.Files, p putFile, mode fs.FileMode) error {
	if p.Append || p.UID != nil || p.GID != nil {
		return fault.Fieldf("api.mkdir", "mkdir", "only mode and parents are allowed with mkdir")
	}
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if err := f.Mkdir(r.Context(), p.Path, mode, p.Parents); err != nil {
		return err
	}
	return sendStat(w, r, f, p.Path)
}

type deleteFile struct {
	ID        id.Jail `path:"id"`
	Path      string  `query:"path" required:"true" description:"Absolute path in the jail."`
	Recursive bool    `query:"recursive" description:"Delete a directory with its contents."`
}

func (h *fileHandler) deleteFile(ctx context.Context, p deleteFile, _ none) (none, error) {
	return none{}, h.withFiles(ctx, p.ID, p.Path, func(f jail.Files) error {
		return f.Remove(ctx, p.Path, p.Recursive)
	})
}

func (h *fileHandler) moveFile(ctx context.Context, p oneJail, b wire.MoveFile) (none, error) {
	if err := checkPath("to", b.To); err != nil {
		return none{}, err
	}
	if err := checkPath("from", b.From); err != nil {
		return none{}, err
	}
	return none{}, h.withFiles(ctx, p.ID, b.From, func(f jail.Files) error {
		return f.Move(ctx, b.From, b.To, b.Replace)
	})
}

type watchFiles struct {
	ID        id.Jail `path:"id"`
	Path      string  `query:"path" required:"true" description:"Absolute path in the jail."`
	Recursive bool    `query:"recursive" description:"Also watch subdirectories."`
}

// watchFiles streams file changes until the client disconnects or the jail stops.
func (h *fileHandler) watchFiles(w http.ResponseWriter, r *http.Request, p watchFiles) error {
	if err := checkPath("path", p.Path); err != nil {
		return err
	}
	ctx, cancel := h.streams.context(r)
	defer cancel()
	changes, err := h.jails.Watch(ctx, p.ID, p.Path, p.Recursive)
	if err != nil {
		return err
	}
	defer h.metrics.opened("watch")()
	e := startEvents(w, writeTime)
	if err := e.beat(); err != nil { // confirms that the watch is active
		return err
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			err = e.send("", wire.EventChange, wire.FileEvent(c))
		case <-beat.C:
			err = e.beat()
		}
		if err != nil {
			return err
		}
	}
}

// patient returns a reader for a body of any length. It reads until ctx ends. The client may
// be slow, but must not pause for longer than maxPause. The caller must call done.
func patient(ctx context.Context, w http.ResponseWriter, r *http.Request) (body io.Reader, done func() bool) {
	p := &patientReader{ctx: ctx, r: r.Body, rc: http.NewResponseController(w)}
	return p, context.AfterFunc(ctx, func() { p.rc.SetReadDeadline(time.Now()) })
}

// maxPause is the maximum pause of a client within a body.
const maxPause = time.Minute

type patientReader struct {
	ctx context.Context
	r   io.Reader
	rc  *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	p.rc.SetReadDeadline(time.Now().Add(maxPause))
	if p.ctx.Err() != nil { // the deadline may be the one that the canceled context set
		return 0, context.Cause(p.ctx)
	}
	n, err := p.r.Read(b)
	if err != nil && p.ctx.Err() != nil {
		return n, context.Cause(p.ctx)
	}
	if err != nil {
		p.rc.SetReadDeadline(time.Time{}) // net/http would treat an expired deadline as a closed connection
	}
	return n, err
}

func modeOf(s string) (fs.FileMode, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fault.Fieldf("api.modeOf", "mode", "%q is not octal permission bits", text.Clip(s, 64))
	}
	mode := fs.FileMode(n & 0o777)
	for bit, m := range specialBits {
		if n&bit != 0 {
			mode |= m
		}
	}
	return mode, nil
}

var specialBits = map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky}

func octal(m fs.FileMode) string {
	n := uint64(m.Perm())
	for bit, special := range specialBits {
		if m&special != 0 {
			n |= bit
		}
	}
	return fmt.Sprintf("%04o", n)
}

func fileOf(i protocol.FileInfo) wire.File {
	return wire.File{
		Path: i.Path, Name: i.Name, Type: i.Type, Mode: octal(i.Mode), Size: i.Size,
		UID: i.UID, GID: i.GID, MTime: i.MTime.UTC(), Target: i.Target,
	}
}
