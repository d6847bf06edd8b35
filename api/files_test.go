package api_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/policy/access"
)

func filesPath(j any, path, more string) string {
	return fmt.Sprintf("/jails/%v/files?path=%s%s", j, url.QueryEscape(path), more)
}

func TestFileUploadAndDownload(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	name := dir + "/a b?ü&.txt"
	var f wire.File
	d.want(200, req{as: access.Operator, method: "PUT", path: filesPath(j, name, "&mode=4640"), body: "hello"}, &f)
	if f.Size != 5 || f.Mode != "4640" || f.Type != "file" || f.Path != name {
		t.Errorf("wrote %+v", f)
	}
	d.want(200, req{as: access.Operator, method: "PUT", path: filesPath(j, name, "&append"), body: chunked(" world")}, &f)
	got := d.want(200, req{as: access.Viewer, method: "GET", path: filesPath(j, name, "")}, nil)
	if string(got.body) != "hello world" || got.header.Get("Glasshouse-File-Mode") != "4640" {
		t.Errorf("read %q with %v", got.body, got.header)
	}
	d.want(200, req{as: access.Viewer, method: "GET", path: filesPath(j, name, "&stat=1")}, &f)
	if f.Size != 11 {
		t.Errorf("stat %+v, want 11 bytes", f)
	}
	if got := d.do(req{as: access.Viewer, method: "GET", path: filesPath(j, name, "&offset=6&bytes=3")}); string(got.body) != "wor" {
		t.Errorf("3 bytes from 6 on: %q", got.body)
	}
	d.want(200, req{as: access.Operator, method: "PUT", path: filesPath(j, dir+"/x/y", "&mkdir&parents&mode=750")}, &f)
	if f.Type != "dir" || f.Mode != "0750" {
		t.Errorf("made %+v", f)
	}
	d.want(204, req{as: access.Operator, method: "POST", path: fmt.Sprintf("/jails/%v/files/move", j), body: wire.MoveFile{From: name, To: dir + "/x/z"}}, nil)
	d.refused(404, req{as: access.Viewer, method: "GET", path: filesPath(j, name, "")})
	d.refused(409, req{as: access.Operator, method: "DELETE", path: filesPath(j, dir+"/x", "")})
	d.want(204, req{as: access.Operator, method: "DELETE", path: filesPath(j, dir+"/x", "&recursive")}, nil)
	if _, err := os.Stat(dir + "/x"); !os.IsNotExist(err) {
		t.Errorf("the directory was not deleted: %v", err)
	}
}

func TestDirectoriesArePaged(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	for n := range 25 {
		os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%02d", n)), nil, 0o600)
	}
	var names []string
	for after := ""; ; {
		var page wire.Page[wire.File]
		d.want(200, req{as: access.Viewer, method: "GET", path: filesPath(j, dir, "&limit=10&after="+after), header: map[string]string{"Accept": "application/json"}}, &page)
		for _, f := range page.Items {
			names = append(names, f.Name)
		}
		after = page.Next
		if after == "" {
			break
		}
	}
	if len(names) != 25 || names[0] != "f00" || names[24] != "f24" {
		t.Errorf("listed %v", names)
	}
}

func TestTarUploadAndDownload(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	tw.WriteHeader(&tar.Header{Name: "sub/", Typeflag: tar.TypeDir, Mode: 0o755})
	tw.WriteHeader(&tar.Header{Name: "sub/f", Typeflag: tar.TypeReg, Mode: 0o640, Size: 3})
	tw.Write([]byte("abc"))
	tw.Close()
	d.want(200, req{as: access.Operator, method: "PUT", path: filesPath(j, dir+"/new", "&tar&parents"), body: b.String()}, nil)
	if got, _ := os.ReadFile(dir + "/new/sub/f"); string(got) != "abc" {
		t.Fatalf("extracted %q", got)
	}
	got := d.want(200, req{as: access.Viewer, method: "GET", path: filesPath(j, dir+"/new", "&tar")}, nil)
	if got.header.Get("Content-Type") != "application/x-tar" {
		t.Errorf("a tar of type %s", got.header.Get("Content-Type"))
	}
	found := false
	for tr := tar.NewReader(bytes.NewReader(got.body)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, "sub/f") {
			data, _ := io.ReadAll(tr)
			found = string(data) == "abc"
		}
	}
	if !found {
		t.Error("the archive does not contain sub/f")
	}
	d.refused(400, req{as: access.Operator, method: "PUT", path: filesPath(j, dir, "&tar"), body: "this is no tar archive at all" + strings.Repeat("x", 600)})
}

func TestRanges(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	os.WriteFile(dir+"/f", []byte("0123456789"), 0o600)
	os.WriteFile(dir+"/empty", nil, 0o600)
	for _, c := range []struct {
		file, header string
		status       int
		body, part   string
	}{
		{"f", "bytes=0-3", 206, "0123", "bytes 0-3/10"},
		{"f", "bytes=4-", 206, "456789", "bytes 4-9/10"},
		{"f", "bytes=8-99999999999", 206, "89", "bytes 8-9/10"},
		{"f", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"f", "bytes=-99", 206, "0123456789", "bytes 0-9/10"},
		{"f", "bytes=10-", 416, "", "bytes */10"},
		{"f", "bytes=-0", 416, "", "bytes */10"},
		{"empty", "bytes=0-", 416, "", "bytes */0"},
		{"f", "bytes=3-1", 200, "0123456789", ""},
		{"f", "bytes=0-1,4-5", 200, "0123456789", ""},
		{"f", "lines=0-1", 200, "0123456789", ""},
		{"f", "bytes=+1-2", 200, "0123456789", ""},
		{"f", "bytes=a-b", 200, "0123456789", ""},
		{"f", "bytes=18446744073709551616-", 200, "0123456789", ""},
		{"f", "bytes=-", 200, "0123456789", ""},
	} {
		got := d.do(req{as: access.Viewer, method: "GET", path: filesPath(j, dir+"/"+c.file, ""), header: map[string]string{"Range": c.header}})
		if got.status != c.status || string(got.body) != c.body || got.header.Get("Content-Range") != c.part {
			t.Errorf("%s of %s: %d %q %q; want %d %q %q", c.header, c.file, got.status, got.body, got.header.Get("Content-Range"), c.status, c.body, c.part)
		}
	}
}

// A browser must not render a file of a jail as a page of the daemon.
func TestDownloadsAreNotRendered(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	name := dir + "/evil\r\nSet-Cookie: a=b\r\n.html"
	os.WriteFile(name, []byte("<script>alert(1)</script>"), 0o600)
	got := d.want(200, req{as: access.Viewer, method: "GET", path: filesPath(j, name, "")}, nil)
	if got.header.Get("Set-Cookie") != "" {
		t.Error("the file name injected a header")
	}
	if !strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") || !strings.Contains(got.header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("HTML file of a jail: got headers %v", got.header)
	}
}

func TestFilePathsAreChecked(t *testing.T) {
	d := open(t, apitest.Start(t))
	j := d.running()
	for path, field := range map[string]string{"": "path", "relative": "path", "../etc": "path", "/a\x00b": "path", "/" + strings.Repeat("a/", 3000): "path"} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if p := d.refused(400, req{as: access.Operator, method: method, path: filesPath(j, path, "")}); p.Field != field {
				t.Errorf("%s %.20q: field %q, want %q", method, path, p.Field, field)
			}
		}
	}
	for _, more := range []string{"&list&stat", "&tar&list", "&offset=-1", "&bytes=-1", "&recusive=1", "&stat=maybe"} {
		d.refused(400, req{as: access.Operator, method: "GET", path: filesPath(j, "/etc/passwd", more)})
	}
	for _, more := range []string{"&mode=9", "&mode=77777", "&tar&mkdir", "&mkdir&append", "&tar&mode=600", "&uid=-1", "&uid=4294967296"} {
		d.refused(400, req{as: access.Operator, method: "PUT", path: filesPath(j, "/tmp/never-made", more)})
	}
	d.refused(400, req{as: access.Operator, method: "POST", path: fmt.Sprintf("/jails/%v/files/move", j), body: wire.MoveFile{From: "a", To: "/b"}})
}

func TestWatch(t *testing.T) {
	d := open(t, apitest.Start(t))
	j, dir := d.running(), t.TempDir()
	resp := d.send(req{as: access.Viewer, method: "GET", path: fmt.Sprintf("/jails/%v/files/watch?path=%s", j, dir)})
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	buf := make([]byte, 1)
	resp.Body.Read(buf) // the watch is active
	os.WriteFile(dir+"/f", nil, 0o600)
	seen := make(chan string, 1)
	go func() {
		var got []byte
		for b := make([]byte, 4096); !bytes.Contains(got, []byte(`"op":"create"`)); {
			n, err := resp.Body.Read(b)
			got = append(got, b[:n]...)
			if err != nil {
				break
			}
		}
		seen <- string(got)
	}()
	select {
	case got := <-seen:
		if !strings.Contains(got, dir+"/f") || !strings.Contains(got, "event: change") {
			t.Errorf("got watch events %q", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("got no watch event")
	}
	d.refused(404, req{as: access.Viewer, method: "GET", path: fmt.Sprintf("/jails/%v/files/watch?path=/no/such/dir", j)})
}
