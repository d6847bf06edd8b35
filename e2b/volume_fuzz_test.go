package e2b

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"glasshouse/fault"
	jailfs "glasshouse/jail/fs"
)

const outside = "what is outside"

// trapped is a volume with symlinks and special files created by a hostile sandbox, next to a
// file outside of the volume.
func trapped(t testing.TB) (root *jailfs.Root, canary string) {
	t.Helper()
	dir := t.TempDir()
	canary = filepath.Join(dir, "canary")
	volume := filepath.Join(dir, "files")
	err := os.WriteFile(canary, []byte(outside), 0o644)
	for _, d := range []string{volume, filepath.Join(volume, "real"), filepath.Join(volume, "real", "deep")} {
		if err == nil {
			err = os.Mkdir(d, 0o755)
		}
	}
	for name, to := range map[string]string{
		"abs": canary, "up": "../canary", "dir": dir, "dots": "..", "loop": "loop", "real/top": "/", "real/far": "../../canary", "real/deep/magic": "/proc/self/cwd", "new": "../made",
	} {
		if err == nil {
			err = os.Symlink(to, filepath.Join(volume, name))
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(volume, "file"), []byte("what is inside"), 0o644)
	}
	if err == nil {
		err = os.Link(filepath.Join(volume, "file"), filepath.Join(volume, "real", "second"))
	}
	if err == nil {
		err = syscall.Mkfifo(filepath.Join(volume, "fifo"), 0o644)
	}
	if err == nil {
		root, err = jailfs.Open(volume)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, canary
}

// FuzzVolumeContent sends arbitrary requests for the files of a volume. They must not read or
// change anything outside of the volume, and errors must be client errors.
func FuzzVolumeContent(f *testing.F) {
	for i, query := range []string{
		"path=file", "path=/", "path=abs", "path=up", "path=dir/canary", "path=..%2fcanary", "path=real/../../canary", "path=dots/canary", "path=real/top/etc/passwd",
		"path=loop", "path=fifo", "path=new&force=true", "path=a/b/c&force=true&uid=0&gid=0&mode=4095", "path=file&force=false", "path=%00", "path=/proc/self/environ",
		"path=real&depth=64", "path=real&depth=-1", "path=file&uid=70000", "path=file&mode=99999999999999999999", "path=real/deep/magic/canary", "path=" + strings.Repeat("x/", 300),
	} {
		f.Add(uint8(i), query, "written")
	}
	f.Add(uint8(3), "path=file", `{"uid": 1000, "gid": 1000, "mode": 511}`)
	f.Add(uint8(3), "path=up", `{"mode": 0}`)
	f.Add(uint8(3), "path=file", `{"mode": -1}`)
	f.Fuzz(func(t *testing.T, what uint8, query, body string) {
		root, canary := trapped(t)
		route := contents[int(what)%len(contents)]
		method, _, _ := strings.Cut(route.pattern, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, "/volumecontent/v/x", io.NopCloser(strings.NewReader(body)))
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		status, answer, err := route.do(content{Request: r, w: w, root: root, path: path.Clean("/" + q.Get("path")), q: q})
		if err != nil && err != errAnswered && fault.KindOf(err) == "" {
			t.Errorf("%s ?%s: got %v, want a client error", route.pattern, query, err)
		}
		if strings.Contains(w.Body.String(), outside) || strings.Contains(w.Body.String(), "root:") {
			t.Errorf("%s ?%s reads a file outside of the volume", route.pattern, query)
		}
		if e, ok := answer.(wireEntry); ok && status == http.StatusOK && e.Path != "" && !strings.HasPrefix(e.Path, "/") {
			t.Errorf("%s ?%s: the response names %q", route.pattern, query, e.Path)
		}
		st, err := os.Lstat(canary)
		text, _ := os.ReadFile(canary)
		if err != nil || string(text) != outside || st.Mode() != 0o644 {
			t.Errorf("%s ?%s: the file outside is %q, %v, %v", route.pattern, query, text, st, err)
		}
		beside, err := os.ReadDir(filepath.Dir(canary))
		if err != nil || len(beside) != 2 {
			t.Errorf("%s ?%s: the directory outside has %v, %v", route.pattern, query, beside, err)
		}
	})
}
