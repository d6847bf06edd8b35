package envd_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"glasshouse/e2b/envdpb"
)

// put uploads a file as a raw body.
func (w *world) put(path, text string, h ...string) {
	w.Helper()
	status, answer, _ := w.do("POST", "/files?path="+url.QueryEscape(path), strings.NewReader(text), append([]string{"Content-Type", "application/octet-stream"}, h...)...)
	if status != http.StatusOK {
		w.Fatalf("write %s: %d %s", path, status, answer)
	}
}

func (w *world) get(path string) string {
	w.Helper()
	status, text, _ := w.do("GET", "/files?path="+url.QueryEscape(path), nil)
	if status != http.StatusOK {
		w.Fatalf("read %s: %d %s", path, status, text)
	}
	return text
}

func (w *world) statOf(path string) (*envdpb.EntryInfo, error) {
	w.Helper()
	a, err := call[envdpb.StatRequest, envdpb.StatResponse](w, "/filesystem.Filesystem/Stat", &envdpb.StatRequest{Path: path})
	return a.GetEntry(), err
}

func (w *world) makeDir(path string) error {
	w.Helper()
	_, err := call[envdpb.MakeDirRequest, envdpb.MakeDirResponse](w, "/filesystem.Filesystem/MakeDir", &envdpb.MakeDirRequest{Path: path})
	return err
}

func (w *world) list(path string, depth uint32) ([]*envdpb.EntryInfo, error) {
	w.Helper()
	a, err := call[envdpb.ListDirRequest, envdpb.ListDirResponse](w, "/filesystem.Filesystem/ListDir", &envdpb.ListDirRequest{Path: path, Depth: depth})
	return a.GetEntries(), err
}

func filesOfAllKinds(w *world) {
	w.put("a/b/file.txt", "hello")
	if got := w.get("~/a/b/file.txt"); got != "hello" {
		w.Errorf("read %q", got)
	}
	e, err := w.statOf("a/b/file.txt")
	if err != nil {
		w.Fatal(err)
	}
	if e.Name != "file.txt" || e.Path != "/home/user/a/b/file.txt" || e.Type != envdpb.FileType_FILE_TYPE_FILE || e.Size != 5 || e.Mode != 0o644 ||
		e.Permissions != "-rw-r--r--" || e.Owner != "user" || e.Group != "user" || time.Since(e.ModifiedTime.AsTime()).Abs() > time.Hour {
		w.Errorf("the entry is %v", e)
	}
	if out := w.run("stat -c '%U %a' a a/b a/b/file.txt").out; out != "user 755\nuser 755\nuser 644\n" {
		w.Errorf("owners and modes are %q", out)
	}
	w.run("chmod 700 a/b/file.txt; ln a/b/file.txt a/same; ln -s b/file.txt a/link; ln -s b a/dirlink; ln -s nowhere a/dangling; ln -s loop a/loop; mkfifo a/pipe; : > a/empty")
	w.put("a/b/file.txt", "hi")
	if out := w.run("cat a/same; stat -c ' %a' a/b/file.txt").out; out != "hi 700\n" {
		w.Errorf("after overwriting, the other hard link has %q: the inode has changed", out)
	}
	w.put("a/link", "through")
	if got := w.get("a/b/file.txt"); got != "through" {
		w.Errorf("after writing through a symlink the target has %q", got)
	}
	if w.get("a/empty") != "" {
		w.Error("an empty file has content")
	}
	for name, want := range map[string]struct {
		kind        envdpb.FileType
		permissions string
		target      string
	}{
		"a":          {envdpb.FileType_FILE_TYPE_DIRECTORY, "drwxr-xr-x", ""},
		"a/link":     {envdpb.FileType_FILE_TYPE_FILE, "Lrwxrwxrwx", "/home/user/a/b/file.txt"},
		"a/dirlink":  {envdpb.FileType_FILE_TYPE_DIRECTORY, "Lrwxrwxrwx", "/home/user/a/b"},
		"a/dangling": {envdpb.FileType_FILE_TYPE_UNSPECIFIED, "Lrwxrwxrwx", "/home/user/a/dangling"},
		"a/loop":     {envdpb.FileType_FILE_TYPE_UNSPECIFIED, "Lrwxrwxrwx", "/home/user/a/loop"},
		"a/pipe":     {envdpb.FileType_FILE_TYPE_UNSPECIFIED, "prw-r--r--", ""},
	} {
		e, err := w.statOf(name)
		if err != nil || e.Type != want.kind || e.Permissions != want.permissions || e.GetSymlinkTarget() != want.target {
			w.Errorf("Stat(%s) = %v, %v; want %v", name, e, err, want)
		}
	}
	_, err = w.statOf("a/none")
	w.wantCode(err, connect.CodeNotFound, "")

	if err := w.makeDir("made/below"); err != nil {
		w.Fatal(err)
	}
	w.wantCode(w.makeDir("made/below"), connect.CodeAlreadyExists, "")
	w.wantCode(w.makeDir("a/dirlink"), connect.CodeAlreadyExists, "")
	w.wantCode(w.makeDir("a/same"), connect.CodeInvalidArgument, "not a directory")
	w.wantCode(w.makeDir("a/same/below"), connect.CodeNotFound, "")
	if out := w.run("stat -c %U made made/below").out; out != "user\nuser\n" {
		w.Errorf("owners of new directories are %q", out)
	}
}

func listing(w *world) {
	w.run("mkdir -p l/one/two/three; : > l/x; : > l/one/y; : > l/one/two/z; ln -s one l/to")
	for depth, want := range map[uint32][]string{
		0: {"one", "to", "x"}, 1: {"one", "to", "x"},
		2: {"one", "one/two", "one/y", "to", "x"},
		9: {"one", "one/two", "one/two/three", "one/two/z", "one/y", "to", "x"},
	} {
		all, err := w.list("l", depth)
		if err != nil {
			w.Fatal(err)
		}
		var got []string
		for _, e := range all {
			got = append(got, strings.TrimPrefix(e.Path, "/home/user/l/"))
		}
		if !slices.Equal(got, want) {
			w.Errorf("depth %d: %v, want %v", depth, got, want)
		}
	}
	for asked, as := range map[string]string{"l/to": "l/to/", "l/to/": "l/to/", "/home/user/l/./to": "l/to/", "l/to/../to": "l/to/", "/home/user/l/to/../to": "l/one/"} {
		all, err := w.list(asked, 1)
		if err != nil || len(all) != 2 || all[0].Path != "/home/user/"+as+"two" || all[1].Path != "/home/user/"+as+"y" {
			w.Errorf("through the symlink %s: %v, %v", asked, all, err)
		}
	}
	w.run("ln -s round l/round")
	_, err := w.list("l/round", 1)
	w.wantCode(err, connect.CodeFailedPrecondition, "cyclic symlink")
	_, err = w.list("l/x", 1)
	w.wantCode(err, connect.CodeInvalidArgument, "not a directory")
	_, err = w.list("l/none", 1)
	w.wantCode(err, connect.CodeNotFound, "")
	w.run("mkdir many; cd many; seq -f f%06g 1 12000 | while read -r n; do : > $n; done")
	if all, err := w.list("many", 1); err != nil || len(all) != 12000 || all[11999].Name != "f012000" {
		w.Errorf("%d of 12000 files, %v", len(all), err)
	}
}

func movedAndRemoved(w *world) {
	move := func(from, to string) (*envdpb.EntryInfo, error) {
		a, err := call[envdpb.MoveRequest, envdpb.MoveResponse](w, "/filesystem.Filesystem/Move", &envdpb.MoveRequest{Source: from, Destination: to})
		return a.GetEntry(), err
	}
	remove := func(path string) error {
		_, err := call[envdpb.RemoveRequest, envdpb.RemoveResponse](w, "/filesystem.Filesystem/Remove", &envdpb.RemoveRequest{Path: path})
		return err
	}
	w.run("mkdir -p m/d/e; echo one > m/a; echo two > m/b")
	if e, err := move("m/a", "m/new/place/c"); err != nil || e.Path != "/home/user/m/new/place/c" || e.Size != 4 {
		w.Errorf("moved to %v, %v", e, err)
	}
	if _, err := move("m/new/place/c", "m/b"); err != nil {
		w.Errorf("a move to an existing file: %v", err)
	}
	if got := w.get("m/b"); got != "one\n" {
		w.Errorf("after the move the destination has %q", got)
	}
	_, err := move("m/none", "m/elsewhere/x")
	w.wantCode(err, connect.CodeNotFound, "")
	if _, err := w.statOf("m/elsewhere"); connect.CodeOf(err) != connect.CodeNotFound {
		w.Errorf("the failed move of a missing file has created a directory: %v", err)
	}
	_, err = move("m/d", "m/d/e/f")
	w.wantCode(err, connect.CodeInvalidArgument, "into itself")
	for _, name := range []string{"m/d", "m/b", "m/none"} {
		if err := remove(name); err != nil {
			w.Errorf("remove %s: %v", name, err)
		}
	}
	if all, err := w.list("m", 1); err != nil || len(all) != 1 {
		w.Errorf("remaining entries: %v, %v", all, err)
	}
}

// form returns a multipart form with files. Pairs alternates names and contents.
func form(pairs ...string) (body *bytes.Buffer, kind string) {
	body = &bytes.Buffer{}
	f := multipart.NewWriter(body)
	f.WriteField("other", "is ignored")
	for i := 0; i < len(pairs); i += 2 {
		part, _ := f.CreateFormFile("file", pairs[i])
		io.WriteString(part, pairs[i+1])
	}
	f.Close()
	return body, f.FormDataContentType()
}

func zipped(s string) *bytes.Buffer {
	b := &bytes.Buffer{}
	z := gzip.NewWriter(b)
	io.WriteString(z, s)
	z.Close()
	return b
}

func uploads(w *world) {
	body, kind := form("up/one", "1", "/tmp/two", "2", "ümläut ✓ \"q\"", "3")
	status, text, _ := w.do("POST", "/files", body, "Content-Type", kind)
	want := `[{"path":"/home/user/up/one","name":"one","type":"file"},{"path":"/tmp/two","name":"two","type":"file"},{"path":"/home/user/ümläut ✓ \"q\"","name":"ümläut ✓ \"q\"","type":"file"}]`
	if status != http.StatusOK || strings.TrimSpace(text) != want {
		w.Errorf("three files: %d %s, want %s", status, text, want)
	}
	if w.get("up/one")+w.get("/tmp/two")+w.get("ümläut ✓ \"q\"") != "123" {
		w.Error("the files differ from the upload")
	}
	body, kind = form("ignored", "named by the query")
	if status, text, _ := w.do("POST", "/files?path=up/named&username=root", body, "Content-Type", kind); status != http.StatusOK || !strings.Contains(text, "/root/up/named") {
		w.Errorf("as root: %d %s", status, text)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	if status, text, _ := w.do("POST", "/files?path=up/zipped", zipped(big), "Content-Type", "application/octet-stream", "Content-Encoding", "gzip"); status != http.StatusOK {
		w.Errorf("gzip upload: %d %s", status, text)
	}
	if w.get("up/zipped") != big {
		w.Error("the decompressed file differs from the upload")
	}
	for name, q := range map[string]struct {
		query, kind, encoding string
		body                  io.Reader
		status                int
	}{
		"no path":             {"", "application/octet-stream", "", strings.NewReader("x"), 400},
		"a directory":         {"?path=up", "application/octet-stream", "", strings.NewReader("x"), 400},
		"below a file":        {"?path=up/one/x", "application/octet-stream", "", strings.NewReader("x"), 404},
		"unsupported type":    {"?path=x", "application/json", "", strings.NewReader("{}"), 400},
		"no type":             {"?path=x", "", "", strings.NewReader("{}"), 400},
		"unknown encoding":    {"?path=x", "application/octet-stream", "br", strings.NewReader("x"), 400},
		"invalid gzip":        {"?path=x", "application/octet-stream", "gzip", strings.NewReader("no gzip at all"), 400},
		"truncated gzip":      {"?path=x", "application/octet-stream", "gzip", bytes.NewReader(zipped(big).Bytes()[:1000]), 400},
		"an unknown user":     {"?path=x&username=nobody-here", "application/octet-stream", "", strings.NewReader("x"), 401},
		"a user and a group":  {"?path=x&username=user:root", "application/octet-stream", "", strings.NewReader("x"), 401},
		"truncated form":      {"", "multipart/form-data; boundary=b", "", strings.NewReader("--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nhalf"), 400},
		"part without a name": {"", "multipart/form-data; boundary=b", "", strings.NewReader("--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--\r\n"), 400},
		"a NUL":               {"?path=x%00y", "application/octet-stream", "", strings.NewReader("x"), 400},
		"a name too long":     {"?path=" + strings.Repeat("n", 300), "application/octet-stream", "", strings.NewReader("x"), 400},
		"a path too long":     {"?path=" + strings.Repeat("n/", 3000), "application/octet-stream", "", strings.NewReader("x"), 400},
		"invalid UTF-8":       {"?path=%ff%fe", "application/octet-stream", "", strings.NewReader("x"), 400},
	} {
		if status, text, _ := w.do("POST", "/files"+q.query, q.body, "Content-Type", q.kind, "Content-Encoding", q.encoding); status != q.status || !strings.Contains(text, `"message"`) {
			w.Errorf("%s: %d %s, want %d", name, status, text, q.status)
		}
	}
	body, kind = form("twice", "1", "twice", "2")
	if status, text, _ := w.do("POST", "/files", body, "Content-Type", kind); status != http.StatusBadRequest || !strings.Contains(text, "multiple files to the same path") {
		w.Errorf("two files with one path: %d %s", status, text)
	}
}

func downloads(w *world) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	w.put("down.html", big)
	status, text, h := w.do("GET", "/files?path=down.html", nil)
	if status != http.StatusOK || text != big || h.Get("Content-Length") != fmt.Sprint(len(big)) || !strings.HasPrefix(h.Get("Content-Type"), "text/html") ||
		!strings.HasPrefix(h.Get("Content-Disposition"), "attachment") || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") {
		w.Errorf("full download: %d, %d bytes, %v", status, len(text), h)
	}
	status, text, h = w.do("GET", "/files?path=down.html", nil, "Range", "bytes=5-14")
	if status != http.StatusPartialContent || text != big[5:15] {
		w.Errorf("range request: %d %q %v", status, text, h)
	}
	status, _, _ = w.do("GET", "/files?path=down.html", nil, "Range", "bytes=99999999-")
	if status != http.StatusRequestedRangeNotSatisfiable {
		w.Errorf("range beyond the end: %d", status)
	}
	status, text, h = w.do("GET", "/files?path=down.html", nil, "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(text))
	if status != http.StatusOK || h.Get("Content-Encoding") != "gzip" || err != nil {
		w.Fatalf("gzip download: %d %v %v", status, h, err)
	}
	if plain, err := io.ReadAll(z); err != nil || string(plain) != big {
		w.Errorf("decompressed download: %d bytes, %v", len(plain), err)
	}
	for q, want := range map[string]int{"path=none": 404, "path=/etc": 400, "path=/dev/null": 400, "path=/etc/shadow/x": 404, "path=~root/x": 400, "path=x&username=0": 401} {
		if status, text, _ := w.do("GET", "/files?"+q, nil); status != want || !strings.Contains(text, fmt.Sprintf(`"code":%d`, want)) {
			w.Errorf("%s: %d %s, want %d", q, status, text, want)
		}
	}
	for accept, want := range map[string]int{"gzip;q=0, identity;q=0": 406, "*;q=0": 406, "gzip;q=nine": 400, "identity": 200, "br, *;q=0.1": 200} {
		if status, text, _ := w.do("GET", "/files?path=down.html", nil, "Accept-Encoding", accept); status != want {
			w.Errorf("Accept-Encoding: %s: %d %.100s, want %d", accept, status, text, want)
		}
	}
	if status, text, _ := w.do("HEAD", "/files?path=down.html", nil); status != http.StatusOK || text != "" {
		w.Errorf("HEAD: %d %q", status, text)
	}
}

func composed(w *world) {
	w.put("c/1", "one ")
	w.put("c/2", "two ")
	w.put("c/3", "three")
	compose := func(q string) (int, string) {
		status, text, _ := w.do("POST", "/files/compose", strings.NewReader(q), "Content-Type", "application/json")
		return status, text
	}
	status, text := compose(`{"source_paths":["c/1","c/2","c/3"],"destination":"c/below/all"}`)
	if want := `{"path":"/home/user/c/below/all","name":"all","type":"file"}`; status != http.StatusOK || strings.TrimSpace(text) != want {
		w.Errorf("composed: %d %s, want %s", status, text, want)
	}
	if got := w.get("c/below/all"); got != "one two three" {
		w.Errorf("the composed file has %q", got)
	}
	if all, err := w.list("c", 1); err != nil || len(all) != 1 {
		w.Errorf("remaining entries: %v, %v", all, err)
	}
	w.put("c/4", "four")
	if status, text := compose(`{"source_paths":["c/below/all","c/4"],"destination":"c/below/all"}`); status != http.StatusOK || w.get("c/below/all") != "one two threefour" {
		w.Errorf("with the first source as destination: %d %s", status, text)
	}
	w.put("c/5", "five")
	for q, want := range map[string]int{
		`{"source_paths":["c/5","c/none"],"destination":"c/x"}`: 404, `{"source_paths":["c/5","c"],"destination":"c/x"}`: 400,
		`{"source_paths":[],"destination":"c/x"}`: 400, `{"source_paths":["c/5"]}`: 400, `{`: 400,
		`{"source_paths":["c/5"],"destination":"c/x","username":"nobody-here"}`: 401,
	} {
		if status, text := compose(q); status != want {
			w.Errorf("%s: %d %s, want %d", q, status, text, want)
		}
	}
	if w.get("c/5") != "five" {
		w.Error("a failed compose request has removed a source")
	}
}

// sign returns a signed URL as the SDK makes it.
func sign(path, operation, user, token string, until int64) string {
	text := path + ":" + operation + ":" + user + ":" + token
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("username", user)
	}
	if until != 0 {
		text += fmt.Sprintf(":%d", until)
		q.Set("signature_expiration", fmt.Sprint(until))
	}
	sum := sha256.Sum256([]byte(text))
	q.Set("signature", "v1_"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "="))
	return "/files?" + q.Encode()
}

func links(w *world) {
	safe := []string{"E2b-Sandbox-Id", "safe"}
	w.put("signed", "content")
	now := time.Now().Unix()
	for name, q := range map[string]struct {
		link   string
		status int
	}{
		"without expiration":     {sign("signed", "read", "", "secret", 0), 200},
		"with a user":            {sign("/home/user/signed", "read", "root", "secret", 0), 200},
		"not expired":            {sign("signed", "read", "user", "secret", now+60), 200},
		"expired":                {sign("signed", "read", "user", "secret", now-60), 401},
		"for upload":             {sign("signed", "write", "", "secret", 0), 401},
		"of another sandbox":     {sign("signed", "read", "", "another", 0), 401},
		"signed without a token": {sign("signed", "read", "", "", 0), 401},
		"not signed":             {"/files?path=signed", 401},
		"of another file":        {strings.Replace(sign("signed", "read", "", "secret", 0), "path=signed", "path=%2Fetc%2Fpasswd", 1), 401},
		"of another user":        {sign("signed", "read", "", "secret", 0) + "&username=root", 401},
		"changed expiration":     {strings.Replace(sign("signed", "read", "", "secret", now-60), fmt.Sprint(now-60), fmt.Sprint(now+60), 1), 401},
		"removed expiration":     {strings.Replace(sign("signed", "read", "", "secret", now-60), "signature_expiration", "x", 1), 401},
		"empty signature":        {"/files?path=signed&signature=", 401},
	} {
		if status, text, _ := w.do("GET", q.link, nil, safe...); status != q.status {
			w.Errorf("%s: %d %s, want %d", name, status, text, q.status)
		}
	}
	if status, text, _ := w.do("POST", sign("signed", "write", "", "secret", now+60), strings.NewReader("new"), append(safe, "Content-Type", "application/octet-stream")...); status != 200 || w.get("signed") != "new" {
		w.Errorf("upload with a signed URL: %d %s", status, text)
	}
	if status, _, _ := w.do("POST", sign("signed", "read", "", "secret", 0), strings.NewReader("forged"), append(safe, "Content-Type", "application/octet-stream")...); status != 401 || w.get("signed") != "new" {
		w.Errorf("upload with a signed URL for reading: %d", status)
	}
	if status, _, _ := w.do("GET", sign("signed", "read", "", "secret", 0), nil, append(safe, "X-Access-Token", "wrong")...); status != 401 {
		w.Errorf("valid signed URL with a wrong token: %d", status)
	}
}

func tokens(w *world) {
	safe := "safe"
	for name, h := range map[string]struct {
		token string
		in    bool
	}{"none": {"", false}, "the right one": {"secret", true}, "of another sandbox": {"another", false}, "a piece of it": {"secre", false}, "more than it": {"secretx", false}, "the traffic's": {"pass", false}} {
		head := []string{"E2b-Sandbox-Id", safe, "X-Access-Token", h.token}
		_, err := call[envdpb.ListRequest, envdpb.ListResponse](w, "/process.Process/List", &envdpb.ListRequest{}, head...)
		if in := err == nil; in != h.in || !in && connect.CodeOf(err) != connect.CodeUnauthenticated {
			w.Errorf("with %s token: %v", name, err)
		}
		for _, path := range []string{"/metrics", "/envs", "/files?path=/etc/passwd"} {
			if status, text, _ := w.do("GET", path, nil, head...); (status == 200) != h.in || !h.in && status != 401 {
				w.Errorf("%s with %s token: %d %.80s", path, name, status, text)
			}
		}
		if status, _, _ := w.do("POST", "/files/compose", strings.NewReader("{}"), head...); (status == 401) == h.in {
			w.Errorf("compose with %s token: %d", name, status)
		}
		if status, _, _ := w.do("GET", "/health", nil, head...); status != 204 {
			w.Errorf("/health with %s token: %d", name, status)
		}
	}
}

// paths tests symlinks and ".." that lead out of the jail's root: they must never reach files of
// the host.
func paths(w *world) {
	w.run("ln -s ../../../../../../../../etc out; ln -s /proc/1/root back; ln -s /../../../etc/hostname name")
	for _, p := range []string{"../../../../../../../etc/passwd", "/../../etc/passwd", "out/passwd", "back/etc/passwd", "~/../../../../etc/passwd"} {
		status, text, _ := w.do("GET", "/files?path="+url.QueryEscape(p), nil)
		if status == 200 && !strings.HasPrefix(text, "root:x:0:0:root:/root:/bin/bash\nuser:") {
			w.Errorf("%s: %d %.80s", p, status, text)
		}
	}
	for _, p := range []string{"a\x00b", strings.Repeat("x", 5000), "~nobody"} {
		_, err := w.statOf(p)
		w.wantCode(err, connect.CodeInvalidArgument, "")
		w.wantCode(w.makeDir(p), connect.CodeInvalidArgument, "")
	}
	if _, err := w.statOf(""); err != nil {
		w.Errorf("Stat of the empty path: %v", err)
	}
}

// brokenBodies closes a connection in the middle of a request body.
func brokenBodies(w *world) {
	u, err := url.Parse(w.url)
	if err != nil {
		w.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		w.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /files?path=broken HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nhalf")
	conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(conn)
	conn.Close()
	if bytes.Contains(answer, []byte("200 OK")) {
		w.Errorf("an upload with a truncated body succeeded: %s", answer)
	}
}

func (w *world) watch(q *envdpb.WatchDirRequest) (next func() *envdpb.FilesystemEvent, err error) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	w.Cleanup(cancel)
	s, err := connect.NewClient[envdpb.WatchDirRequest, envdpb.WatchDirResponse](http.DefaultClient, w.url+"/filesystem.Filesystem/WatchDir", connect.WithProtoJSON()).CallServerStream(ctx, connect.NewRequest(q))
	if err != nil {
		return nil, err
	}
	if !s.Receive() {
		return nil, s.Err()
	}
	if s.Msg().GetStart() == nil {
		w.Fatalf("the watch begins with %v", s.Msg())
	}
	return func() *envdpb.FilesystemEvent {
		for s.Receive() {
			if e := s.Msg().GetFilesystem(); e != nil {
				return e
			}
		}
		w.Fatalf("the watch has ended: %v", s.Err())
		return nil
	}, nil
}

func changes(w *world) {
	w.run("mkdir -p w/d; echo old > w/old; echo x > w/gone")
	next, err := w.watch(&envdpb.WatchDirRequest{Path: "w", Recursive: true, IncludeEntry: true})
	if err != nil {
		w.Fatal(err)
	}
	until := func(name string, kind envdpb.EventType) *envdpb.FilesystemEvent {
		for {
			if e := next(); e.Name == name && e.Type == kind {
				return e
			}
		}
	}
	w.put("w/old", "new")
	if e := until("old", envdpb.EventType_EVENT_TYPE_WRITE); e.GetEntry().GetPath() != "/home/user/w/old" || e.GetEntry().GetOwner() != "user" {
		w.Errorf("the entry of the write event is %v", e.Entry)
	}
	w.put("w/d/fresh", "x")
	until("d/fresh", envdpb.EventType_EVENT_TYPE_CREATE)
	until("d/fresh", envdpb.EventType_EVENT_TYPE_WRITE)
	if err := w.makeDir("w/e"); err != nil {
		w.Fatal(err)
	}
	until("e", envdpb.EventType_EVENT_TYPE_CREATE)
	w.put("w/e/inside", "x")
	until("e/inside", envdpb.EventType_EVENT_TYPE_WRITE)
	w.run("mkdir -p w/f/g/h; echo deep > w/f/g/h/file") // faster than watches of new directories can be added
	until("f/g/h/file", envdpb.EventType_EVENT_TYPE_CREATE)
	w.put("w/f/g/h/file", "again")
	until("f/g/h/file", envdpb.EventType_EVENT_TYPE_WRITE)
	w.run("chmod 600 w/old; mv w/old w/moved; rm w/gone")
	until("old", envdpb.EventType_EVENT_TYPE_CHMOD)
	until("old", envdpb.EventType_EVENT_TYPE_RENAME)
	until("moved", envdpb.EventType_EVENT_TYPE_CREATE)
	if e := until("gone", envdpb.EventType_EVENT_TYPE_REMOVE); e.Entry != nil {
		w.Errorf("the remove event has an entry: %v", e.Entry)
	}
	_, err = w.watch(&envdpb.WatchDirRequest{Path: "w/none"})
	w.wantCode(err, connect.CodeNotFound, "")
	_, err = w.watch(&envdpb.WatchDirRequest{Path: "w/moved"})
	w.wantCode(err, connect.CodeInvalidArgument, "not a directory")
}

// missedChanges watches more directories than the limit. The watch must end with an error.
func missedChanges(w *world) {
	if r := w.run("mkdir -p many && cd many && mkdir d{1..8200}"); r.end.ExitCode != 0 {
		w.Fatalf("%+v", r)
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	s, err := connect.NewClient[envdpb.WatchDirRequest, envdpb.WatchDirResponse](http.DefaultClient, w.url+"/filesystem.Filesystem/WatchDir", connect.WithProtoJSON()).
		CallServerStream(ctx, connect.NewRequest(&envdpb.WatchDirRequest{Path: "many", Recursive: true}))
	if err != nil {
		w.Fatal(err)
	}
	for s.Receive() {
	}
	w.wantCode(s.Err(), connect.CodeDataLoss, "missed")

	made := must[envdpb.CreateWatcherRequest, envdpb.CreateWatcherResponse](w, "/filesystem.Filesystem/CreateWatcher", &envdpb.CreateWatcherRequest{Path: "many", Recursive: true})
	for err = nil; err == nil && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		_, err = call[envdpb.GetWatcherEventsRequest, envdpb.GetWatcherEventsResponse](w, "/filesystem.Filesystem/GetWatcherEvents", &envdpb.GetWatcherEventsRequest{WatcherId: made.WatcherId})
	}
	w.wantCode(err, connect.CodeDataLoss, "missed")
	w.run("rm -rf many")
}

// metadata tests that metadata is stored with files, returned, moved and replaced.
func metadata(w *world) {
	stat := func(p string) map[string]string {
		w.Helper()
		return must[envdpb.StatRequest, envdpb.StatResponse](w, "/filesystem.Filesystem/Stat", &envdpb.StatRequest{Path: p}).Entry.Metadata
	}
	octets := []string{"Content-Type", "application/octet-stream"}
	send := func(p string, h ...string) (int, string) {
		status, text, _ := w.do("POST", "/files?path="+p, strings.NewReader("x"), append(h, octets...)...)
		return status, text
	}
	status, text := send("meta/f", "X-Metadata-Author", "me", "x-metadata-a.b_c", "1 = one")
	want := map[string]string{"author": "me", "a.b_c": "1 = one"}
	if status != http.StatusOK || !strings.Contains(text, `"metadata":{"a.b_c":"1 = one","author":"me"}`) {
		w.Fatalf("%d %s", status, text)
	}
	if got := stat("meta/f"); !maps.Equal(got, want) {
		w.Errorf("the metadata is %v, want %v", got, want)
	}
	list := must[envdpb.ListDirRequest, envdpb.ListDirResponse](w, "/filesystem.Filesystem/ListDir", &envdpb.ListDirRequest{Path: "meta"})
	if len(list.Entries) != 1 || !maps.Equal(list.Entries[0].Metadata, want) {
		w.Errorf("ListDir returns %v", list.Entries)
	}
	moved := must[envdpb.MoveRequest, envdpb.MoveResponse](w, "/filesystem.Filesystem/Move", &envdpb.MoveRequest{Source: "meta/f", Destination: "meta/g"})
	if !maps.Equal(moved.Entry.Metadata, want) {
		w.Errorf("after a move the metadata is %v", moved.Entry.Metadata)
	}
	send("meta/g", "X-Metadata-Other", "2")
	if got := stat("meta/g"); !maps.Equal(got, map[string]string{"other": "2"}) {
		w.Errorf("after an upload with other metadata it is %v", got)
	}
	send("meta/g")
	if got := stat("meta/g"); len(got) != 0 {
		w.Errorf("after an upload without metadata it is %v", got)
	}
	body, kind := form("meta/one", "1", "meta/two", "2")
	if status, text, _ := w.do("POST", "/files", body, "Content-Type", kind, "X-Metadata-Of", "both"); status != http.StatusOK || strings.Count(text, `"of":"both"`) != 2 {
		w.Errorf("%d %s", status, text)
	}
	for what, h := range map[string][]string{
		"not ASCII":        {"X-Metadata-A", "ü"},
		"empty key":        {"X-Metadata-", "v"},
		"long key":         {"X-Metadata-" + strings.Repeat("k", 247), "v"},
		"long value":       {"X-Metadata-A", strings.Repeat("v", 4090)},
		"too large in sum": {"X-Metadata-A", strings.Repeat("v", 3000), "X-Metadata-B", strings.Repeat("v", 3000)},
	} {
		if status, text := send("meta/bad", h...); status != http.StatusBadRequest {
			w.Errorf("%s: %d %s, want 400", what, status, text)
		}
	}
	if _, err := call[envdpb.StatRequest, envdpb.StatResponse](w, "/filesystem.Filesystem/Stat", &envdpb.StatRequest{Path: "meta/bad"}); err == nil {
		w.Error("an upload with invalid metadata has created a file")
	}
	if status, text := send("meta/most", "X-Metadata-"+strings.Repeat("k", 246), strings.Repeat("v", 3000)); status != http.StatusOK {
		w.Errorf("metadata of the maximum size: %d %s", status, text)
	}
}

func watchers(w *world) {
	w.run("mkdir -p p")
	made := must[envdpb.CreateWatcherRequest, envdpb.CreateWatcherResponse](w, "/filesystem.Filesystem/CreateWatcher", &envdpb.CreateWatcherRequest{Path: "p"})
	w.put("p/x", "x")
	events := func(h ...string) ([]*envdpb.FilesystemEvent, error) {
		a, err := call[envdpb.GetWatcherEventsRequest, envdpb.GetWatcherEventsResponse](w, "/filesystem.Filesystem/GetWatcherEvents", &envdpb.GetWatcherEventsRequest{WatcherId: made.WatcherId}, h...)
		return a.GetEvents(), err
	}
	var got []string
	for deadline := time.Now().Add(20 * time.Second); !slices.Contains(got, "x EVENT_TYPE_WRITE"); time.Sleep(10 * time.Millisecond) {
		all, err := events()
		if err != nil || time.Now().After(deadline) {
			w.Fatalf("%v, %v", got, err)
		}
		for _, e := range all {
			got = append(got, e.Name+" "+e.Type.String())
		}
	}
	if want := []string{"x EVENT_TYPE_CREATE", "x EVENT_TYPE_CHMOD", "x EVENT_TYPE_WRITE"}; !slices.Equal(got, want) {
		w.Errorf("events: %v, want %v", got, want) // without duplicates: clients count them
	}
	remove := func() error {
		_, err := call[envdpb.RemoveWatcherRequest, envdpb.RemoveWatcherResponse](w, "/filesystem.Filesystem/RemoveWatcher", &envdpb.RemoveWatcherRequest{WatcherId: made.WatcherId})
		return err
	}
	if err := remove(); err != nil {
		w.Error(err)
	}
	w.wantCode(remove(), connect.CodeNotFound, "not found")
	_, err := events()
	w.wantCode(err, connect.CodeNotFound, "not found")
	_, err = call[envdpb.CreateWatcherRequest, envdpb.CreateWatcherResponse](w, "/filesystem.Filesystem/CreateWatcher", &envdpb.CreateWatcherRequest{Path: "nowhere"})
	w.wantCode(err, connect.CodeNotFound, "")
}

func metrics(w *world) {
	status, text, _ := w.do("GET", "/metrics", nil)
	var m map[string]float64
	if err := json.Unmarshal([]byte(text), &m); err != nil || status != 200 {
		w.Fatalf("%d %s: %v", status, text, err)
	}
	if m["mem_total"] != 512<<20 || m["mem_used"] <= 0 || m["cpu_count"] < 1 || m["disk_total"] <= 0 || m["ts"] < float64(time.Now().Unix()-60) {
		w.Errorf("metrics: %s", text)
	}
	if status, text, _ := w.do("GET", "/envs", nil); status != 200 || strings.TrimSpace(text) != `{"BOTH":"sandbox","FROM":"sandbox"}` {
		w.Errorf("envs: %d %s", status, text)
	}
}
