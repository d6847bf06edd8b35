package template

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

type member struct {
	name string
	kind byte
	body string
	link string
	mode int64
	at   time.Time
}

func file(name, body string) member {
	return member{name: name, kind: tar.TypeReg, body: body, mode: 0o644}
}
func dir(name string) member { return member{name: name, kind: tar.TypeDir, mode: 0o755} }
func link(name, to string) member {
	return member{name: name, kind: tar.TypeSymlink, link: to, mode: 0o777}
}
func second(name, of string) member { return member{name: name, kind: tar.TypeLink, link: of} }

func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: m.kind, Size: int64(len(m.body)), Linkname: m.link, Mode: m.mode, ModTime: m.at, Uid: 1234, Gid: 1234}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

// entryLines returns the entries of an archive, one per line.
func entryLines(t testing.TB, b []byte) (lines []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%c %s %o %d:%d %s%s", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, body, h.Linkname))
	}
}

func TestPackRemovesOwners(t *testing.T) {
	sent := archive(t, dir("a/"), file("a/b", "hello"), link("a/l", "/etc/passwd"), second("a/c", "a/b"), file("./d//e", ""))
	want := []string{"5 a/ 755 0:0 ", "0 a/b 644 0:0 hello", "2 a/l 777 0:0 /etc/passwd", "1 a/c 0 0:0 a/b", "0 d/e 644 0:0 "}
	for i := range want { // tar appends a slash to the names of directories
		want[i] = strings.Replace(want[i], "a/ ", "a ", 1)
	}
	var digests []string
	for _, b := range [][]byte{sent, zipped(t, sent)} {
		var out bytes.Buffer
		digest, err := pack(t.Context(), bytes.NewReader(b), &out, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		got := entryLines(t, out.Bytes())
		for i := range got {
			got[i] = strings.Replace(got[i], "a/ ", "a ", 1)
		}
		if !slices.Equal(got, want) {
			t.Errorf("packed archive = %q, want %q", got, want)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Error("the digest of the compressed archive differs")
	}
}

func TestPackDigest(t *testing.T) {
	digest := func(members ...member) string {
		d, err := pack(t.Context(), bytes.NewReader(archive(t, members...)), io.Discard, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	later := file("a", "x")
	later.at = time.Now()
	runs := file("a", "x")
	runs.mode = 0o755
	one := digest(file("a", "x"))
	if got := digest(later); got != one {
		t.Error("the digest depends on modification times")
	}
	seen := map[string]bool{one: true}
	for _, other := range []string{digest(file("a", "y")), digest(file("b", "x")), digest(runs), digest(link("a", "x")), digest(dir("a")), digest(file("a", "x"), file("b", "")), digest()} {
		if seen[other] {
			t.Error("two different archives have the same digest")
		}
		seen[other] = true
	}
}

// hostile lists archives that must be rejected, with the kinds of the errors.
func hostile(t testing.TB) map[string]struct {
	archive []byte
	want    fault.Kind
} {
	type attack = struct {
		archive []byte
		want    fault.Kind
	}
	deep := strings.Repeat("a/", maxDepth) + "b"
	fifo := member{name: "p", kind: tar.TypeFifo}
	device := member{name: "d", kind: tar.TypeBlock}
	good := archive(t, file("a", strings.Repeat("x", 5000)))
	bomb := zipped(t, archive(t, file("zeros", strings.Repeat("\x00", 4<<20))))
	var many []member
	for i := range 3000 {
		many = append(many, dir(fmt.Sprint("d", i)))
	}
	return map[string]attack{
		"a name with ..":                {archive(t, file("../a", "")), fault.Invalid},
		"a name with .. in the middle":  {archive(t, file("a/../../b", "")), fault.Invalid},
		"an absolute name":              {archive(t, file("/etc/passwd", "")), fault.Invalid},
		"below a link":                  {archive(t, link("a", "/etc"), file("a/passwd", "")), fault.Invalid},
		"far below a link":              {archive(t, link("a", ".."), file("a/b/c/d", "")), fault.Invalid},
		"a directory after a link":      {archive(t, link("a", "/etc"), dir("a"), file("a/passwd", "")), fault.Invalid},
		"a link after a directory":      {archive(t, dir("a"), file("a/x", ""), link("a", "/etc")), fault.Invalid},
		"a link in place of a parent":   {archive(t, file("a/x", ""), link("a", "/etc"), file("a/passwd", "")), fault.Invalid},
		"below a file":                  {archive(t, file("a", ""), file("a/b", "")), fault.Invalid},
		"a hard link to a missing file": {archive(t, second("a", "etc/passwd")), fault.Invalid},
		"a hard link outside":           {archive(t, second("a", "../../etc/passwd")), fault.Invalid},
		"a hard link to a link":         {archive(t, link("a", "/etc/passwd"), second("b", "a")), fault.Invalid},
		"a hard link to a directory":    {archive(t, dir("a"), second("b", "a")), fault.Invalid},
		"a hard link to itself":         {archive(t, file("a", ""), second("a", "a")), fault.Invalid},
		"a pipe":                        {archive(t, fifo), fault.Invalid},
		"a device":                      {archive(t, device), fault.Invalid},
		"too deep":                      {archive(t, file(deep, "")), fault.Invalid},
		"a name that is too long":       {archive(t, file(strings.Repeat("x", maxPath+1), "")), fault.Invalid},
		"a bomb":                        {bomb, fault.TooLarge},
		"a bomb of empty directories":   {archive(t, many...), fault.TooLarge},
		"a large sparse file":           {sparse(1 << 32), fault.TooLarge},
		"a small sparse file":           {sparse(256 << 10), fault.Invalid},
		"a truncated archive":           {good[:2000], fault.Invalid},
		"a truncated gzip archive":      {zipped(t, good)[:60], fault.Invalid},
		"not an archive":                {bytes.Repeat([]byte("no"), 2000), fault.Invalid},
		"invalid gzip data":             {[]byte{0x1f, 0x8b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, fault.Invalid},
		"a wrong gzip checksum":         {wrongSum(zipped(t, good)), fault.Invalid},
	}
}

// sparse returns an archive with a sparse file of that size in the GNU format, without data.
func sparse(size int64) []byte {
	b := make([]byte, 1536)
	copy(b, "holes")
	copy(b[100:], "0000644\x000000000\x000000000\x0000000000000\x0000000000000\x00")
	b[156] = 'S'
	copy(b[257:], "ustar  \x00")
	copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(b[483:], fmt.Sprintf("%011o", size))
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func wrongSum(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-8] ^= 1
	return b
}

func TestPackRejectsHostileArchives(t *testing.T) {
	for name, a := range hostile(t) {
		digest, err := pack(t.Context(), bytes.NewReader(a.archive), io.Discard, 1<<20)
		if fault.KindOf(err) != a.want {
			t.Errorf("%s: %q, %v, want %s", name, digest, err, a.want)
		}
	}
}

func TestCopyDestination(t *testing.T) {
	kept := archive(t, dir("src"), file("src/a", "a"), dir("src/deep"), file("src/deep/b", "b"), second("src/c", "src/a"), link("src/l", "a"), file("srcs", "no"), file("one", "1"))
	for _, c := range []struct {
		l    destination
		want []string
	}{
		{destination{from: "src", to: "/app/", mode: -1}, []string{"0 app/a 644 7:8 a", "5 app/deep/ 755 7:8 ", "0 app/deep/b 644 7:8 b", "1 app/c 0 7:8 app/a", "2 app/l 777 7:8 a"}},
		{destination{from: "src/deep", to: "/", mode: 0o700}, []string{"0 b 700 7:8 b"}},
		{destination{from: "one", to: "/x/two", mode: 0o600}, []string{"0 x/two 600 7:8 1"}},
		{destination{from: "one", to: "/x", into: true, mode: -1}, []string{"0 x/one 644 7:8 1"}},
		{destination{from: "none", to: "/x", mode: -1}, nil},
	} {
		c.l.uid, c.l.gid = 7, 8
		var out bytes.Buffer
		n, err := rewrite(t.Context(), bytes.NewReader(kept), &out, c.l)
		if err != nil {
			t.Errorf("%+v: %v", c.l, err)
			continue
		}
		got := entryLines(t, out.Bytes())
		for i := range got {
			got[i] = strings.Replace(got[i], "app/deep 755", "app/deep/ 755", 1)
		}
		if !slices.Equal(got, c.want) || (n == 0) != (c.want == nil) {
			t.Errorf("%+v: %d, %q, want %q", c.l, n, got, c.want)
		}
	}
	if _, err := rewrite(t.Context(), bytes.NewReader(archive(t, file("a", ""), second("src/b", "a"))), io.Discard, destination{from: "src", to: "/x", mode: -1}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a hard link to a file that is not copied: %v", err)
	}
}

// FuzzPack checks that an accepted archive contains no path outside of it, and that its packed
// form is accepted, too.
func FuzzPack(f *testing.F) {
	for _, a := range hostile(f) {
		if len(a.archive) < 64<<10 {
			f.Add(a.archive)
		}
	}
	f.Add(archive(f, dir("a/"), file("a/b", "hello"), link("a/l", "/etc/passwd"), second("a/c", "a/b")))
	f.Fuzz(func(t *testing.T, sent []byte) {
		var out bytes.Buffer
		digest, err := pack(t.Context(), bytes.NewReader(sent), &out, 1<<20)
		if err != nil {
			if fault.KindOf(err) == "" {
				t.Fatalf("rejected with %v", err)
			}
			return
		}
		if out.Len() > 4<<20 {
			t.Fatalf("%d bytes were packed as %d", len(sent), out.Len())
		}
		kinds := map[string]byte{}
		for r := tar.NewReader(bytes.NewReader(out.Bytes())); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := path.Clean(h.Name)
			if !filepath.IsLocal(name) {
				t.Fatalf("%q is outside of the archive", h.Name)
			}
			for above := path.Dir(name); above != "."; above = path.Dir(above) {
				if k, known := kinds[above]; known && k != tar.TypeDir {
					t.Fatalf("the parent of %q is not a directory", name)
				}
			}
			if h.Typeflag == tar.TypeLink && kinds[path.Clean(h.Linkname)] != tar.TypeReg && kinds[path.Clean(h.Linkname)] != tar.TypeLink {
				t.Fatalf("%q is a hard link to %q", name, h.Linkname)
			}
			kinds[name] = h.Typeflag
		}
		again, err := pack(t.Context(), bytes.NewReader(out.Bytes()), io.Discard, 4<<20)
		if err != nil || again != digest {
			t.Errorf("digest after a second pack = %s, %v, want %s", again, err, digest)
		}
		if _, err := rewrite(t.Context(), bytes.NewReader(out.Bytes()), io.Discard, destination{from: ".", to: "/x", mode: -1}); err != nil {
			t.Errorf("rewrite: %v", err)
		}
	})
}

func TestFilesBelongToTeam(t *testing.T) {
	f, err := openFiles(filepath.Join(t.TempDir(), "files"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	mine, other := id.NewToken(), id.NewToken()
	hash := strings.Repeat("0a", 32)
	put := func(team id.Token, hash string, b []byte) error {
		return f.put(context.Background(), team, hash, bytes.NewReader(b))
	}
	if err := put(mine, hash, archive(t, file("a", "1"))); err != nil {
		t.Fatal(err)
	}
	_, first, err := f.find(mine, hash)
	if err != nil || first == "" {
		t.Fatal(first, err)
	}
	if _, _, err := f.find(other, hash); !errors.Is(err, fault.NotFound) {
		t.Errorf("another team finds the archive: %v", err)
	}
	if err := put(mine, hash, archive(t, file("a", "2"))); err != nil {
		t.Fatal(err)
	}
	if _, second, err := f.find(mine, hash); err != nil || second == first {
		t.Errorf("archive after a second upload = %s, %v", second, err)
	}
	if err := put(mine, hash, []byte("no")); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Join(f.dir, string(mine)))
	if err != nil || len(left) != 1 {
		t.Errorf("archives = %v, %v, want one file", left, err)
	}

	// The last upload stays, and of the others the most recently used one.
	f.total = 3 * 512 * 4
	for i := range 6 {
		if err := put(mine, fmt.Sprintf("%064x", i), archive(t, file("a", fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(i-100) * time.Hour)
		name, _, err := f.find(mine, fmt.Sprintf("%064x", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := f.find(mine, fmt.Sprintf("%064x", 0)); !errors.Is(err, fault.NotFound) {
		t.Errorf("the oldest archive remains: %v", err)
	}
	if _, _, err := f.find(mine, fmt.Sprintf("%064x", 5)); err != nil {
		t.Errorf("the newest archive was removed: %v", err)
	}
	if err := f.removeUnused(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(f.dir, string(mine))); err != nil || len(left) != 0 {
		t.Errorf("archives after removeUnused = %v, %v, want none", left, err)
	}
}

func TestUploadLinkScope(t *testing.T) {
	f, err := openFiles(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	team, hash := id.NewToken(), strings.Repeat("0a", 32)
	link := f.sign(team, hash, time.Now().Add(time.Minute))
	if gotTeam, gotHash, err := f.signed(link); err != nil || gotTeam != team || gotHash != hash {
		t.Errorf("the link is for %s %s, %v", gotTeam, gotHash, err)
	}
	other, err := openFiles(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"nothing": "", "a dot": ".", "four dots": "....", "another's": other.sign(team, hash, time.Now().Add(time.Minute)),
		"too old": f.sign(team, hash, time.Now().Add(-time.Minute)), "another team": strings.Replace(link, string(team), string(id.NewToken()), 1),
		"another hash": strings.Replace(link, "0a", "0b", 1), "cut": link[:len(link)-1], "longer": link + "0",
	} {
		if team, hash, err := f.signed(bad); !errors.Is(err, fault.Denied) {
			t.Errorf("%s: %s %s, %v", name, team, hash, err)
		}
	}
}
