package e2b

import (
	"crypto/subtle"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet"
	jailfs "glasshouse/jail/fs"
	"glasshouse/jail/init/protocol"
)

type wireVolume struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
	Token    string `json:"token,omitempty"`
}

func volumeOf(v Volume) wireVolume { return wireVolume{v.ID, v.Name, v.Token} }

type newVolume struct {
	Name string `json:"name"`
}

func createVolume(r request) (int, any, error) {
	var b newVolume
	if err := r.read(&b); err != nil {
		return 0, nil, err
	}
	v, err := r.s.cfg.Volumes.Create(r.Context(), r.team, b.Name)
	return http.StatusCreated, volumeOf(v), err
}

func listVolumes(r request) (int, any, error) {
	all := []wireVolume{}
	for _, v := range r.s.cfg.Volumes.List(r.team) {
		all = append(all, wireVolume{VolumeID: v.ID, Name: v.Name})
	}
	others, err := Others[wireVolume](r.Context(), r.s.cfg.Fleet, fleet.Volume, r.team)
	return http.StatusOK, append(all, others...), err
}

func getVolume(r request) (int, any, error) {
	v, err := r.s.cfg.Volumes.Get(r.team, r.PathValue("volume"))
	return http.StatusOK, volumeOf(v), err
}

func destroyVolume(r request) (int, any, error) {
	return http.StatusNoContent, nil, r.s.cfg.Volumes.Destroy(r.Context(), r.team, r.PathValue("volume"))
}

// contents lists the operations on the files of volumes, which are authenticated by the volume's
// token.
var contents = []struct {
	pattern string
	do      func(content) (int, any, error)
}{
	{"GET /volumecontent/{volume}/dir", listFiles},
	{"POST /volumecontent/{volume}/dir", makeDir},
	{"GET /volumecontent/{volume}/path", statFile},
	{"PATCH /volumecontent/{volume}/path", changeFile},
	{"DELETE /volumecontent/{volume}/path", removeFile},
	{"GET /volumecontent/{volume}/file", readFile},
	{"PUT /volumecontent/{volume}/file", writeFile},
}

// A content is one request for the files of a volume. root confines all paths, regardless of
// symlinks that a sandbox has created in the volume.
type content struct {
	*http.Request
	w    http.ResponseWriter
	root *jailfs.Root
	path string // absolute in the volume
	q    url.Values
}

// errAnswered means that the response has been sent.
var errAnswered = errors.New("the response has been sent")

// content serves a request for the files of a volume.
func (s *Server) content(do func(content) (int, any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer Recover(s.cfg.Log, w, r)
		if s.elsewhere(w, r, "") {
			return
		}
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		root, done, err := s.cfg.Volumes.open(r.Context(), r.PathValue("volume"), token)
		if err != nil {
			WriteError(s.cfg.Log, w, r, err)
			return
		}
		defer done()
		q := r.URL.Query()
		c := content{Request: r, w: w, root: root, path: path.Clean("/" + q.Get("path")), q: q}
		status, body, err := do(c)
		switch {
		case err == errAnswered:
		case err != nil:
			WriteError(s.cfg.Log, w, r, err)
		default:
			WriteJSON(w, status, body)
		}
	})
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

type wireEntry struct {
	Name   string    `json:"name"`
	Path   string    `json:"path"`
	Type   string    `json:"type"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

var entryTypes = map[string]string{"file": "file", "dir": "directory", "symlink": "symlink"}

func entryOf(i protocol.FileInfo) wireEntry {
	kind, ok := entryTypes[i.Type]
	if !ok {
		kind = "unknown"
	}
	mode := uint32(i.Mode.Perm())
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if i.Mode&bit != 0 {
			mode |= unix
		}
	}
	return wireEntry{i.Name, i.Path, kind, i.Size, mode, i.UID, i.GID, i.ATime, i.MTime, i.CTime, i.Target}
}

func statFile(c content) (int, any, error) {
	i, err := c.root.Stat(c.Context(), c.path)
	return http.StatusOK, entryOf(i), err
}

// Limits of a directory listing.
const (
	maxDepth   = 64
	maxEntries = 10_000
)

func listFiles(c content) (int, any, error) {
	depth, err := c.number("depth", 1, maxDepth)
	if err != nil {
		return 0, nil, err
	}
	all := []wireEntry{}
	err = c.list(c.path, max(depth, 1), &all)
	return http.StatusOK, all, err
}

// list adds the entries of a directory and of its subdirectories. It does not follow symlinks.
func (c content) list(dir string, depth int, all *[]wireEntry) error {
	for after, more := "", true; more; {
		page, next, err := c.root.List(c.Context(), dir, after, 0)
		if err != nil {
			return err
		}
		for _, i := range page {
			if len(*all) >= maxEntries {
				return fault.Newf(fault.TooLarge, "e2b.list", dir, "there are more than %d files: use a smaller depth or a subdirectory", maxEntries)
			}
			*all = append(*all, entryOf(i))
			if i.Type != "dir" || depth == 1 {
				continue
			}
			if err := c.list(i.Path, depth-1, all); err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
		}
		more = next
		if more {
			after = page[len(page)-1].Name
		}
	}
	return nil
}

// number parses a number between 0 and most in the query.
func (c content) number(name string, otherwise, most int) (int, error) {
	s := c.q.Get(name)
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, invalid("invalid %s %q: want 0 to %d", name, short(s), most)
	}
	return n, nil
}

// Limits of file attributes: the uids of sandboxes, and permissions with the set-id and sticky
// bits.
const (
	maxUser = 1<<16 - 1
	maxMode = 0o7777
)

// change parses the new owner and mode of a file.
func (c content) change() (jailfs.Change, error) {
	var b wireChange
	for name, to := range map[string]**int64{"uid": &b.UID, "gid": &b.GID, "mode": &b.Mode} {
		if !c.q.Has(name) {
			continue
		}
		n, err := c.number(name, 0, maxUser)
		if err != nil {
			return jailfs.Change{}, err
		}
		wide := int64(n)
		*to = &wide
	}
	return b.change()
}

type wireChange struct {
	UID  *int64 `json:"uid"`
	GID  *int64 `json:"gid"`
	Mode *int64 `json:"mode"`
}

func (b wireChange) change() (c jailfs.Change, err error) {
	for _, f := range []struct {
		name string
		from *int64
		to   **uint32
	}{{"uid", b.UID, &c.UID}, {"gid", b.GID, &c.GID}} {
		if f.from == nil {
			continue
		}
		if *f.from < 0 || *f.from > maxUser {
			return c, invalid("invalid %s %d: want 0 to %d", f.name, *f.from, maxUser)
		}
		n := uint32(*f.from)
		*f.to = &n
	}
	if b.Mode != nil {
		if *b.Mode < 0 || *b.Mode > maxMode {
			return c, invalid("invalid mode %d: want 0 to %d", *b.Mode, maxMode)
		}
		mode := fs.FileMode(*b.Mode & 0o777)
		for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
			if *b.Mode&unix != 0 {
				mode |= bit
			}
		}
		c.Mode = &mode
	}
	return c, nil
}

func changeFile(c content) (int, any, error) {
	var b wireChange
	if err := ReadBody(c.w, c.Request, &b, maxBody); err != nil {
		return 0, nil, err
	}
	change, err := b.change()
	if err == nil {
		err = c.root.Change(c.Context(), c.path, change)
	}
	if err != nil {
		return 0, nil, err
	}
	return statFile(c)
}

// withOwner fills in the owner of a new file, by default the sandbox's user.
func withOwner(ch jailfs.Change) jailfs.Change {
	user := uint32(owner)
	if ch.UID == nil {
		ch.UID = &user
	}
	if ch.GID == nil {
		ch.GID = &user
	}
	return ch
}

func (c content) exists() (bool, error) {
	_, err := c.root.Stat(c.Context(), c.path)
	if errors.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

func makeDir(c content) (int, any, error) {
	change, err := c.change()
	if err != nil {
		return 0, nil, err
	}
	force := c.q.Get("force") == "true"
	exists, err := c.exists()
	switch {
	case err != nil:
		return 0, nil, err
	case exists && !force:
		return 0, nil, fault.Newf(fault.Conflict, "e2b.makeDir", c.path, "%s already exists", short(c.path))
	case !exists:
		change = withOwner(change)
	}
	if force {
		err = c.root.MkdirFor(c.Context(), c.path, protocol.Owner{UID: owner, GID: owner})
	} else {
		err = c.root.Mkdir(c.Context(), c.path, 0o755, false)
	}
	if err == nil {
		err = c.root.Change(c.Context(), c.path, change)
	}
	if err != nil {
		return 0, nil, err
	}
	status, body, err := statFile(c)
	if err == nil {
		status = http.StatusCreated
	}
	return status, body, err
}

func removeFile(c content) (int, any, error) {
	if c.path == "/" {
		return 0, nil, invalid("cannot remove the root directory of a volume: destroy the volume")
	}
	return http.StatusNoContent, nil, c.root.Remove(c.Context(), c.path, true)
}

func readFile(c content) (int, any, error) {
	body, i, err := c.root.Read(c.Context(), c.path, 0, -1)
	if err != nil {
		return 0, nil, err
	}
	defer body.Close()
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": i.Name}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	c.w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(c.w, body); err != nil {
		panic(http.ErrAbortHandler) // the client must not regard the response as complete
	}
	return 0, nil, errAnswered
}

func writeFile(c content) (int, any, error) {
	change, err := c.change()
	if err != nil {
		return 0, nil, err
	}
	exists, err := c.exists()
	switch {
	case err != nil:
		return 0, nil, err
	case exists && c.q.Get("force") == "false":
		return 0, nil, fault.Newf(fault.Conflict, "e2b.writeFile", c.path, "%s already exists", short(c.path))
	case !exists:
		change = withOwner(change)
	}
	o := protocol.WriteOptions{Parents: true, UID: change.UID, GID: change.GID}
	if _, err := c.root.Write(c.Context(), c.path, source{c.Body}, o); err != nil {
		return 0, nil, err
	}
	if change.Mode != nil {
		if err := c.root.Change(c.Context(), c.path, jailfs.Change{Mode: change.Mode}); err != nil {
			return 0, nil, err
		}
	}
	status, body, err := statFile(c)
	if err == nil {
		status = http.StatusCreated
	}
	return status, body, err
}

// A source is a request body. A body that ends early is the client's error.
type source struct{ r io.Reader }

func (s source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = invalid("cannot read the request body: %v", err)
	}
	return n, err
}
