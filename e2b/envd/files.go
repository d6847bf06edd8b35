package envd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"

	"glasshouse/fault"
	"glasshouse/jail/init/protocol"
)

// A problem is an error of a plain HTTP request, one that is not a Connect RPC.
type problem struct {
	status int
	err    error
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func bad(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// writeError sends an error response in the format of E2B's envd.
func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// statuses maps Connect codes to HTTP statuses.
var statuses = map[connect.Code]int{
	connect.CodeInvalidArgument: http.StatusBadRequest, connect.CodeUnauthenticated: http.StatusUnauthorized,
	connect.CodePermissionDenied: http.StatusForbidden, connect.CodeNotFound: http.StatusNotFound,
	connect.CodeFailedPrecondition: http.StatusConflict, connect.CodeResourceExhausted: http.StatusInsufficientStorage,
	connect.CodeUnimplemented: http.StatusNotImplemented, connect.CodeUnavailable: http.StatusBadGateway,
	connect.CodeDeadlineExceeded: http.StatusGatewayTimeout, connect.CodeCanceled: 499,
}

// refused sends err as the response.
func (s *Server) refused(w http.ResponseWriter, r *http.Request, err error) {
	if p, ok := errors.AsType[*problem](err); ok {
		writeError(w, p.status, p.Error())
		return
	}
	e, _ := errors.AsType[*connect.Error](answer(err))
	status, ok := statuses[e.Code()]
	if !ok {
		s.log.Error("request failed", "path", r.URL.Path, "jail", visited(r.Context()).Jail, "err", err)
		status = http.StatusInternalServerError
	}
	writeError(w, status, e.Message())
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(v)
}

// open opens the files of a sandbox for the user in the query parameter username, otherwise for the
// user of the request.
func (s *Server) open(r *http.Request) (*desk, error) {
	v, q := visited(r.Context()), r.URL.Query()
	var name string
	var err error
	if q.Has("username") {
		name, err = v.named(q.Get("username"))
	} else {
		name, err = v.user()
	}
	if err != nil {
		return nil, err
	}
	return s.filesFor(r.Context(), v, name)
}

func (s *Server) getFile(w http.ResponseWriter, r *http.Request) {
	if err := s.sendFile(w, r); err != nil {
		s.refused(w, r, err)
	}
}

func (s *Server) sendFile(w http.ResponseWriter, r *http.Request) error {
	d, err := s.open(r)
	if err != nil {
		return err
	}
	defer d.Close()
	p, err := d.path(r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	i, err := d.resolved(r.Context(), p)
	switch {
	case errors.Is(err, fault.NotFound):
		return &problem{http.StatusNotFound, fmt.Errorf("path '%s' does not exist", p)}
	case err != nil:
		return err
	case i.Type != "file":
		return bad("path '%s' is not a regular file, but a %s", p, strings.Replace(i.Type, "dir", "directory", 1))
	}
	zipped, err := wantsGzip(r.Header)
	if err != nil {
		return err
	}
	download(w.Header(), i)
	if !zipped || partial(r.Header) {
		f := &reader{ctx: r.Context(), desk: d, path: i.Path, size: i.Size}
		defer f.Close()
		http.ServeContent(w, r, i.Name, i.MTime, f)
		return nil
	}
	body, _, err := d.Read(r.Context(), i.Path, 0, -1)
	if err != nil {
		return err
	}
	defer body.Close()
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed) // HTTP libraries send Accept-Encoding by default, so compression must be cheap
	if err != nil {
		return fmt.Errorf("create the gzip writer: %w", err)
	}
	if _, err := io.Copy(z, body); err != nil {
		panic(http.ErrAbortHandler) // part of the response has been sent: the client must notice that it is truncated
	}
	z.Close()
	return nil
}

// download sets the headers for a file from a jail. The content is untrusted: a browser must
// save it, and must neither run scripts in it nor give it the daemon's origin.
func download(h http.Header, i protocol.FileInfo) {
	kind := mime.TypeByExtension(path.Ext(i.Name))
	if kind == "" {
		kind = "application/octet-stream"
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": i.Name}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
}

// partial reports whether a request is a range request or a conditional request.
func partial(h http.Header) bool {
	return h.Get("Range") != "" || h.Get("If-Modified-Since") != "" || h.Get("If-None-Match") != "" || h.Get("If-Range") != ""
}

// wantsGzip reports whether the client prefers a response in gzip (RFC 9110, section 12.5.3).
// The error is 406 if the client accepts neither gzip nor identity.
func wantsGzip(h http.Header) (bool, error) {
	q := map[string]float64{}
	for part := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		name, rest, _ := strings.Cut(strings.TrimSpace(part), ";")
		weight := 1.0
		if value, ok := strings.CutPrefix(strings.ReplaceAll(rest, " ", ""), "q="); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil || n < 0 || n > 1 {
				return false, bad("Accept-Encoding: %.64q is not a weight from 0 to 1", value)
			}
			weight = n
		}
		q[strings.ToLower(strings.TrimSpace(name))] = weight
	}
	anything, wild := q["*"]
	zip, ok := q["gzip"]
	if !ok && wild {
		zip = anything
	}
	plain, ok := q["identity"]
	if !ok {
		plain = 1
		if wild && anything == 0 {
			plain = 0
		}
	}
	if zip == 0 && plain == 0 {
		return false, &problem{http.StatusNotAcceptable, errors.New("only the encodings gzip and identity are supported")}
	}
	_, asked := q["gzip"]
	return zip > 0 && (asked || plain == 0), nil
}

// A reader is an io.ReadSeeker of a file in a jail. The first Read after a Seek opens the file.
type reader struct {
	ctx  context.Context
	desk *desk
	path string
	size int64
	at   int64
	body io.ReadCloser
}

func (f *reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset != f.at {
		f.Close()
	}
	f.at = offset
	return offset, nil
}

func (f *reader) Read(p []byte) (n int, err error) {
	if f.body == nil {
		if f.body, _, err = f.desk.Read(f.ctx, f.path, f.at, f.size-f.at); err != nil {
			f.body = nil
			return 0, err
		}
	}
	n, err = f.body.Read(p)
	f.at += int64(n)
	return n, err
}

func (f *reader) Close() error {
	if f.body == nil {
		return nil
	}
	err := f.body.Close()
	f.body = nil
	return err
}

// A written describes an uploaded file.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

func (s *Server) postFiles(w http.ResponseWriter, r *http.Request) {
	all, err := s.takeFiles(r)
	if err != nil {
		s.refused(w, r, err)
		return
	}
	writeJSON(w, all)
}

func (s *Server) takeFiles(r *http.Request) ([]written, error) {
	d, err := s.open(r)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	meta, err := metadata(r.Header)
	if err != nil {
		return nil, err
	}
	body, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "application/octet-stream":
		return d.takeOne(r, body, meta)
	case err == nil && strings.HasPrefix(kind, "multipart/"):
		return d.takeForm(r, multipart.NewReader(body, params["boundary"]), meta)
	}
	return nil, bad("unsupported content type: %.64s, expected multipart/form-data or application/octet-stream", r.Header.Get("Content-Type"))
}

// Header prefix and limit of the metadata of a file.
const (
	metaHeader = "X-Metadata-"
	maxMetaKey = 246 // with protocol.MetaPrefix it does not exceed the kernel's XATTR_NAME_MAX
)

// metadata returns the metadata from a request's headers. It may be empty.
func metadata(h http.Header) (map[string]string, error) {
	meta, size := map[string]string{}, 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metaHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if key == "" || len(key) > maxMetaKey {
			return nil, bad("metadata key %.64q is not 1 to %d bytes long", key, maxMetaKey)
		}
		if strings.ContainsFunc(key+values[0], func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, bad("metadata of key %.64q is not printable US-ASCII", key)
		}
		meta[key] = values[0]
		size += len(protocol.MetaPrefix) + len(key) + len(values[0])
	}
	if size > protocol.MaxMeta {
		return nil, bad("metadata of %d bytes exceeds the limit of %d", size, protocol.MaxMeta)
	}
	return meta, nil
}

// unzipped returns the decompressed body of a request.
func unzipped(r *http.Request) (io.Reader, error) {
	switch h := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); h {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, bad("the body is not gzip: %w", err)
		}
		return z, nil
	default:
		return nil, bad("unsupported Content-Encoding: %.64s, expected gzip or identity", h)
	}
}

func (d *desk) takeOne(r *http.Request, body io.Reader, meta map[string]string) ([]written, error) {
	if !r.URL.Query().Has("path") {
		return nil, bad("path query parameter is required for raw body upload")
	}
	p, err := d.path(r.URL.Query().Get("path"))
	if err != nil {
		return nil, err
	}
	f, err := d.save(r.Context(), p, body, meta)
	return []written{f}, err
}

// maxParts is the maximum number of files in one upload.
const maxParts = 10_000

func (d *desk) takeForm(r *http.Request, form *multipart.Reader, meta map[string]string) ([]written, error) {
	all, seen := []written{}, map[string]bool{}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, bad("error reading form: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		name := r.URL.Query().Get("path")
		if !r.URL.Query().Has("path") {
			if name, err = fileName(part); err != nil {
				return nil, err
			}
		}
		p, err := d.path(name)
		if err != nil {
			return nil, err
		}
		if seen[p] || len(all) >= maxParts {
			return nil, bad("you cannot upload multiple files to the same path '%s' in one upload request, nor more than %d", p, maxParts)
		}
		seen[p] = true
		f, err := d.save(r.Context(), p, part, meta)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
}

// fileName returns the filename parameter of a part including directories, which Part.FileName
// removes.
func fileName(part *multipart.Part) (string, error) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", bad("a form part has no filename, and the request has no path query parameter")
	}
	return params["filename"], nil
}

// newMode is the mode of new files.
const newMode = 0o644

// save writes a file in place, so that it keeps its inode and watchers see a write.
func (d *desk) save(ctx context.Context, p string, body io.Reader, meta map[string]string) (written, error) {
	i, err := d.resolved(ctx, p)
	switch {
	case err == nil && i.Type == "dir":
		return written{}, bad("path is a directory: %s", p)
	case err != nil && !errors.Is(err, fault.NotFound):
		return written{}, err
	}
	from := &source{r: body}
	i, err = d.Write(ctx, p, from, protocol.WriteOptions{
		Mode: newMode, InPlace: true, Parents: true, UID: &d.account.owner.UID, GID: &d.account.owner.GID,
		Meta: &meta,
	})
	if err != nil && from.err != nil {
		err = bad("cannot read the request body: %w", from.err)
	}
	return written{Path: i.Path, Name: i.Name, Type: "file", Metadata: i.Meta}, err
}

// A source stores the error of its reader. It distinguishes an error of the client from one of
// the jail.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
