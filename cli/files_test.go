package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	filesPath = "/jails/" + aJail + "/files"
	fileStat  = `{"name":"x","type":"file","mode":"640","uid":1,"gid":2,"size":6,"mtime":"2026-01-02T15:04:05Z"}`
	dirStat   = `{"name":"x","type":"dir","mode":"755"}`
)

func TestFilesCommands(t *testing.T) {
	type m = map[string]string
	checkLines(t, []lineTest{
		{
			line: "files stat " + aJail + ":/x", answers: m{"GET " + filesPath: fileStat},
			want: "GET " + filesPath + "?path=%2Fx&stat=1",
			out:  "file 640 1:2 6 ",
		},
		{
			line: "--json files stat " + aJail + ":/x", answers: m{"GET " + filesPath: fileStat},
			want: "GET " + filesPath + "?path=%2Fx&stat=1",
			out:  "\"name\": \"x\",\n\"type\": \"file\",",
		},
		{
			line: "files mkdir " + aJail + ":/a/b", answers: m{"PUT " + filesPath: dirStat},
			want: "PUT " + filesPath + "?mkdir=1&mode=755&parents=1&path=%2Fa%2Fb",
		},
		{
			line: "--json files mkdir --mode 700 " + aJail + ":/a~b\x1b", answers: m{"PUT " + filesPath: dirStat},
			want: "PUT " + filesPath + "?mkdir=1&mode=700&parents=1&path=%2Fa+b%1B",
			out:  "\"type\": \"dir\",",
		},
		{line: "files mkdir --mode 17777 " + aJail + ":/a", errs: `--mode "17777" is not octal permission bits`, code: 2},
		{line: "files mkdir --mode rwx " + aJail + ":/a", errs: `--mode "rwx" is not octal permission bits`, code: 2},
		{
			line: "files rm " + aJail + ":/x", answers: m{"DELETE " + filesPath: `409 {"title":"conflict","status":409,"detail":"the directory is not empty","remedy":"give --recursive"}`},
			want: "DELETE " + filesPath + "?path=%2Fx",
			errs: "glasshouse: the directory is not empty\n  try: give --recursive\n", code: 1,
		},
		{
			line: "files mv " + aJail + ":/a b", answers: m{"POST " + filesPath + "/move": "204 "},
			want: "POST " + filesPath + `/move {"from":"/a","to":"b"}`,
		},
		{line: "files stat " + aJail, errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "files stat :/x", errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "files stat ./a:/x", errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "files mv /a /b", errs: "is not JAIL:PATH with an absolute path", code: 2},
		{line: "files stat", errs: "accepts 1 arg(s), received 0", code: 2},
	})
}

func TestCopyFileFromJail(t *testing.T) {
	out := func(t *testing.T) (string, *scriptedDaemon) {
		return t.TempDir(), newScriptedDaemon(t, map[string]string{
			"GET " + filesPath + "?path=%2Fetc%2Fx&stat=1":   fileStat,
			"GET " + filesPath + "?offset=0&path=%2Fetc%2Fx": "\x1b[2Jraw\n",
		})
	}
	read := func(t *testing.T, name string) string {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	t.Run("to standard output", func(t *testing.T) {
		_, d := out(t)
		code, got, errs := d.run("", "cp", aJail+":/etc/x", "-")
		if want := "\x1b[2Jraw\n"; code != 0 || got != want || errs != "" {
			t.Errorf("got exit code %d, %q and %q, want 0 and %q as it is", code, got, errs, want)
		}
	})
	t.Run("to a file", func(t *testing.T) {
		dir, d := out(t)
		to := filepath.Join(dir, "to")
		if code, _, errs := d.run("", "cp", aJail+":/etc/x", to); code != 0 {
			t.Fatalf("got exit code %d and %q, want 0", code, errs)
		}
		if got, want := read(t, to), "\x1b[2Jraw\n"; got != want {
			t.Errorf("the file: got %q, want %q", got, want)
		}
	})
	t.Run("into a directory", func(t *testing.T) {
		dir, d := out(t)
		if code, _, errs := d.run("", "cp", aJail+":/etc/x", dir); code != 0 {
			t.Fatalf("got exit code %d and %q, want 0", code, errs)
		}
		if got, want := read(t, filepath.Join(dir, "x")), "\x1b[2Jraw\n"; got != want {
			t.Errorf("the file: got %q, want %q", got, want)
		}
	})
	t.Run("to where no file can be", func(t *testing.T) {
		dir, d := out(t)
		code, _, errs := d.run("", "cp", aJail+":/etc/x", filepath.Join(dir, "none", "to"))
		if want := "no such file or directory"; code != 1 || !strings.Contains(errs, want) {
			t.Errorf("got exit code %d and %q, want 1 and %q", code, errs, want)
		}
	})
	t.Run("the stream breaks", func(t *testing.T) {
		dir, d := out(t)
		d.answers["GET "+filesPath+"?offset=0&path=%2Fetc%2Fx"] = "first half" + cutSuffix
		code, _, errs := d.run("", "cp", aJail+":/etc/x", filepath.Join(dir, "to"))
		if want := "unexpected EOF"; code != 1 || !strings.Contains(errs, want) {
			t.Errorf("got exit code %d and %q, want 1 and %q", code, errs, want)
		}
	})
	t.Run("the file is gone meanwhile", func(t *testing.T) {
		dir, d := out(t)
		delete(d.answers, "GET "+filesPath+"?offset=0&path=%2Fetc%2Fx")
		to := filepath.Join(dir, "to")
		code, _, errs := d.run("", "cp", aJail+":/etc/x", to)
		if want := "nothing is there"; code != 1 || !strings.Contains(errs, want) {
			t.Errorf("got exit code %d and %q, want 1 and %q", code, errs, want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Error("the target: got a file, want none")
		}
	})
}

// tarOf returns an archive of these entries.
func tarOf(t *testing.T, entries ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A jail chooses the names and links in an archive of its files. Extraction must not write
// outside of the target.
func TestCopyDirectoryFromJail(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		entries []tar.Header
		want    []string
		errs    string
	}{
		{
			name: "all kinds of files",
			entries: []tar.Header{
				{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
				{Typeflag: tar.TypeDir, Name: "./d/", Mode: 0o500},
				{Typeflag: tar.TypeReg, Name: "./d/f", Mode: 0o4755},
				{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "d/f"},
				{Typeflag: tar.TypeLink, Name: "h", Linkname: "./d/f"},
				{Typeflag: tar.TypeFifo, Name: "fifo"},
				{Typeflag: tar.TypeChar, Name: "null"},
			},
			want: []string{"d/", "d/f 755 content of ./d/f", "h 755 content of ./d/f", "l -> d/f"},
		},
		{
			name:    "an empty directory",
			entries: []tar.Header{{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}},
		},
		{
			name:    "a name that leads out",
			entries: []tar.Header{{Typeflag: tar.TypeReg, Name: "../outside/planted"}},
			errs:    "unpack ../outside/planted: ",
		},
		{
			name:    "an absolute name",
			entries: []tar.Header{{Typeflag: tar.TypeReg, Name: outside + "/planted"}},
			errs:    "planted: ",
		},
		{
			name: "a file behind a link that leads out",
			entries: []tar.Header{
				{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside},
				{Typeflag: tar.TypeReg, Name: "l/planted"},
			},
			want: []string{"l -> " + outside},
			errs: "unpack l/planted: ",
		},
		{
			name: "a file in place of a link that leads out",
			entries: []tar.Header{
				{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside + "/planted"},
				{Typeflag: tar.TypeReg, Name: "l"},
			},
			want: []string{"l -> " + outside + "/planted"},
			errs: "unpack l: ",
		},
		{
			name:    "a hard link to what is outside",
			entries: []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}},
			errs:    "unpack h: ",
		},
		{
			name:    "a name that drives a terminal",
			entries: []tar.Header{{Typeflag: tar.TypeReg, Name: "../\x1b[2J"}},
			errs:    `unpack ../\x1b[2J: `,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			to := filepath.Join(t.TempDir(), "a", "b")
			d := newScriptedDaemon(t, map[string]string{
				"GET " + filesPath + "?path=%2Fd&stat=1": dirStat,
				"GET " + filesPath + "?path=%2Fd&tar=1":  tarOf(t, c.entries...),
			})
			code, out, errs := d.run("", "cp", aJail+":/d", to)
			if wantCode := min(len(c.errs), 1); code != wantCode || out != "" || !strings.Contains(errs, c.errs) {
				t.Errorf("got exit code %d, %q and %q, want %d and %q", code, out, errs, wantCode, c.errs)
			}
			if got := content(t, to); !slices.Equal(got, c.want) {
				t.Errorf("the target: got %q, want %q", got, c.want)
			}
		})
	}
	t.Cleanup(func() {
		if got := content(t, outside); len(got) > 0 {
			t.Errorf("outside of the target: got %q, want nothing", got)
		}
	})
}

func TestIncompleteDirectoryCopyFails(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET " + filesPath + "?path=%2Fd&stat=1": dirStat})
	code, _, errs := d.run("", "cp", aJail+":/d", "-")
	if want := "/d is a directory"; code != 2 || !strings.Contains(errs, want) {
		t.Errorf("to standard output: got exit code %d and %q, want 2 and %q", code, errs, want)
	}
	archive := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"}, tar.Header{Typeflag: tar.TypeReg, Name: "g"})
	for what, answer := range map[string]string{"a stream that breaks": archive[:700] + cutSuffix, "an archive that ends in a file": archive[:520], "no archive": "<html>"} {
		d.answers["GET "+filesPath+"?path=%2Fd&tar=1"] = answer
		code, _, errs := d.run("", "cp", aJail+":/d", t.TempDir())
		if code != 1 || errs == "" {
			t.Errorf("%s: got exit code %d and %q, want 1 and why", what, code, errs)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := d.run("", "cp", aJail+":/d", file); code != 1 || !strings.Contains(errs, "not a directory") {
		t.Errorf("to a file: got exit code %d and %q, want 1 and why", code, errs)
	}
}

func TestCopyFilesIntoJail(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "run.sh")
	if err := os.WriteFile(script, []byte("true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(script, 0o750); err != nil {
		t.Fatal(err)
	}
	put := "PUT " + filesPath
	type m = map[string]string
	for _, c := range []struct {
		name, from, to string
		stdin          string
		answers        map[string]string
		want           []string
		errs           string
		code           int
	}{
		{
			name: "a file", from: script, to: "/bin/run",
			answers: m{put: fileStat},
			want:    []string{"GET " + filesPath + "?path=%2Fbin%2Frun&stat=1", put + "?mode=750&parents=1&path=%2Fbin%2Frun true"},
		},
		{
			name: "a file into a directory", from: script, to: "/bin",
			answers: m{"GET " + filesPath: dirStat, put: fileStat},
			want:    []string{"GET " + filesPath + "?path=%2Fbin&stat=1", put + "?mode=750&parents=1&path=%2Fbin%2Frun.sh true"},
		},
		{
			name: "standard input", from: "-", to: "/x", stdin: "typed\n",
			answers: m{put: fileStat},
			want:    []string{put + "?parents=1&path=%2Fx typed"},
		},
		{name: "nothing", from: filepath.Join(dir, "none"), to: "/x", errs: "no such file", code: 1},
		{
			name: "a full disk", from: "-", to: "/x", stdin: "typed\n",
			answers: m{put: `507 {"type":"/problems/no-space","title":"no space","status":507,"detail":"the disk of the jail is full","remedy":"glasshouse jail limits --disk"}`},
			want:    []string{put + "?parents=1&path=%2Fx typed"},
			errs:    "the disk of the jail is full\n  try: glasshouse jail limits --disk\n", code: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, c.answers)
			code, out, errs := d.run(c.stdin, "cp", c.from, aJail+":"+c.to)
			if code != c.code || out != "" || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
				t.Errorf("got exit code %d, %q and %q, want %d and %q", code, out, errs, c.code, c.errs)
			}
			if got := d.requests; !slices.Equal(got, c.want) {
				t.Errorf("requests: got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCopyDirectoryIntoJail(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"a.txt": 0o644, "sub/b.sh": 0o755} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	d := newScriptedDaemon(t, map[string]string{"PUT " + filesPath: "204 "})
	if code, _, errs := d.run("", "cp", dir, aJail+":/d"); code != 0 {
		t.Fatalf("got exit code %d and %q, want 0", code, errs)
	}
	if len(d.requests) != 1 {
		t.Fatalf("requests: got %d, want 1", len(d.requests))
	}
	line, archive, _ := strings.Cut(strings.TrimPrefix(d.requests[0], "PUT "), " ")
	if want := filesPath + "?parents=1&path=%2Fd&tar=1"; line != want {
		t.Errorf("request: got %q, want %q", line, want)
	}
	got := map[string]string{}
	for r := tar.NewReader(strings.NewReader(archive)); ; {
		h, err := r.Next()
		if err != nil {
			break // the request and thus the archive were trimmed
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(text)
	}
	for _, name := range []string{"a.txt", "sub/b.sh"} {
		if got[name] != name {
			t.Errorf("%s in the archive: got %q, want %q", name, got[name], name)
		}
	}
}

func TestFilesWatch(t *testing.T) {
	const path = "GET " + filesPath + "/watch"
	d := newScriptedDaemon(t, map[string]string{path: sse("change", map[string]string{"op": "create", "path": "/tmp/\x1b[2J"}) + sse("change", map[string]string{"op": "remove", "path": "/tmp/x"}) + openSuffix})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs strings.Builder
	// The command ends after it has printed the second change.
	stdout := writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "remove") {
			cancel()
		}
		return out.Write(p)
	})
	code := Run(ctx, []string{"--addr", d.addr, "files", "watch", "-r", aJail + ":/tmp"},
		Env{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &errs, Getenv: func(string) string { return "" }})
	want := "create   /tmp/\\x1b[2J\nremove   /tmp/x\n"
	if code != 0 || out.String() != want || errs.String() != "" {
		t.Errorf("got exit code %d, %q and %q, want 0 and %q", code, out.String(), errs.String(), want)
	}
	if got, want := d.asked(), path+"?path=%2Ftmp&recursive=1"; got != want {
		t.Errorf("request: got %q, want %q", got, want)
	}
}

func TestParseRootfs(t *testing.T) {
	for in, want := range map[string]string{
		"":                "default",
		"host":            "host",
		"debian:bookworm": "debian bookworm",
		"dir:/srv/root":   "dir /srv/root",
		"oci:node:24":     "node:24",
		"nix:python":      "nix python",
	} {
		r, err := parseRootfs(in)
		if got := rootfsName(r); err != nil || got != want {
			t.Errorf("--rootfs %s: got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"oci", "oci:", "debian", "dir:", "nix:", "host:x", "floppy:a", ":", ":x", " "} {
		if r, err := parseRootfs(in); err == nil || !strings.Contains(err.Error(), "--rootfs") {
			t.Errorf("--rootfs %q: got %+v, %v, want an error", in, r, err)
		}
	}
}

func TestParseMount(t *testing.T) {
	for in, want := range map[string]bool{"/a:/b": false, "/a:/b:ro": false, "/a:/b:rw": true} {
		got, err := parseMount(in)
		if err != nil || got.Source != "/a" || got.Target != "/b" || got.Write != want {
			t.Errorf("--mount %s: got %+v, %v, want /a on /b, written %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "/a", "/a:/b:x", "/a:/b:rw:ro"} {
		if got, err := parseMount(in); err == nil {
			t.Errorf("--mount %q: got %+v, want an error", in, got)
		}
	}
}
