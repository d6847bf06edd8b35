package bundle_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/capability/bundle"
	"glasshouse/fault"
)

// An attack is a bundle that must not be installed, and why.
type attack struct {
	name string
	want bundle.Reason
	make func(s *scene) string // returns its path
}

// smuggled returns a signed bundle with an entry added during packing.
func smuggled(extra ...item) func(*scene) string {
	return func(s *scene) string {
		return file(s, "x.tar.gz", gz(s, tarOf(s, append(items(s, s.signed(good())), extra...))))
	}
}

// smuggledZip is like smuggled, but for a zip file.
func smuggledZip(extra ...item) func(*scene) string {
	return func(s *scene) string { return file(s, "x.zip", zipOf(s, append(items(s, s.signed(good())), extra...))) }
}

// packed returns a signed bundle in an archive that f has modified.
func packed(f func(s *scene, archive []byte) []byte) func(*scene) string {
	return func(s *scene) string { return file(s, "x.tar.gz", f(s, gz(s, tarOf(s, items(s, s.signed(good())))))) }
}

func packedZip(f func(s *scene, archive []byte) []byte) func(*scene) string {
	return func(s *scene) string { return file(s, "x.zip", f(s, zipOf(s, items(s, s.signed(good()))))) }
}

// changed returns a signed directory that f has modified.
func changed(f func(s *scene, dir string) error) func(*scene) string {
	return func(s *scene) string {
		dir := s.signed(good())
		s.ok(f(s, dir))
		return dir
	}
}

// claims returns a bundle with one file replaced, signed without validation.
func claims(name, text string) func(*scene) string {
	return func(s *scene) string { return s.forced(with(good(), name, text)) }
}

// forced writes files to a directory and signs them without validation.
func (s *scene) forced(files map[string]string) string {
	s.Helper()
	dir := lay(s, files)
	var listed []bundle.File
	for _, i := range items(s, dir) {
		listed = append(listed, fileOf(i))
	}
	sig := bundle.Signature{Name: "local-places", Version: "1.2.0", Publisher: "acme", Signed: now(), Files: listed}
	text, err := sig.Sign(s.key)
	s.ok(err)
	s.ok(os.WriteFile(filepath.Join(dir, bundle.SignatureFile), text, 0o644))
	return dir
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// before installs a bundle and then creates another one.
func before(version string, then func(s *scene) string) func(*scene) string {
	return func(s *scene) string {
		files := with(good(), "metadata.json", strings.Replace(metadata, "1.2.0", version, 1))
		_, err := s.Install(s.Context(), s.signed(files))
		s.ok(err)
		return then(s)
	}
}

var attacks = []attack{
	// Names.
	{"a name that climbs out", bundle.Traversal, smuggled(item{name: "../../etc/cron.d/x", body: "x"})},
	{"a name that climbs out, in a zip", bundle.Traversal, smuggledZip(item{name: "../../etc/cron.d/x", body: "x"})},
	{"a name that climbs in and out", bundle.Traversal, smuggled(item{name: "src/../../x", body: "x"})},
	{"a directory that climbs out", bundle.Traversal, smuggled(item{name: "../x/", kind: tar.TypeDir})},
	{"a name from the root", bundle.Absolute, smuggled(item{name: "/etc/passwd", body: "x"})},
	{"a name from the root, in a zip", bundle.Absolute, smuggledZip(item{name: "/etc/passwd", body: "x"})},
	{"a name on a drive", bundle.Absolute, smuggledZip(item{name: "C:/x", body: "x"})},
	{"a name with backslashes", bundle.BadName, smuggledZip(item{name: `..\..\x`, body: "x"})},
	{"a name with a line feed", bundle.BadName, smuggled(item{name: "src/a\nb", body: "x"})},
	{"a name that turns what follows around", bundle.BadName, smuggled(item{name: "src/\u202efdp.exe", body: "x"})},
	{"a name that is not UTF-8", bundle.BadName, smuggled(item{name: "src/\xff\xfe", body: "x"})},
	{"a name with an empty element", bundle.BadName, smuggled(item{name: "src//x", body: "x"})},
	{"a name that ends in a dot", bundle.BadName, smuggled(item{name: "src/x.", body: "x"})},
	{"a name of 100 kB", bundle.LongName, smuggled(item{name: strings.Repeat("x", 100<<10), body: "x"})},
	{"a name with a long element", bundle.LongName, smuggled(item{name: "src/" + strings.Repeat("x", 250), body: "x"})},
	{"a name a hundred deep", bundle.LongName, smuggled(item{name: strings.Repeat("d/", 100) + "x", body: "x"})},
	{"a file that is there twice", bundle.Duplicate, smuggled(item{name: "src/main.py", body: "import evil"})},
	{"a file that is there twice, in a zip", bundle.Duplicate, smuggledZip(item{name: "src/main.py", body: "import evil"})},
	{"a file that is a directory too", bundle.Duplicate, smuggled(item{name: "src/main.py/x", body: "x"})},
	{"a directory that is a file too", bundle.Duplicate, smuggled(item{name: "src", body: "x"})},
	{"names that differ in case", bundle.Collision, smuggled(item{name: "src/MAIN.py", body: "import evil"})},
	{"names that differ in composition", bundle.Collision, smuggled(item{name: "src/\u00e9", body: "x"}, item{name: "src/e\u0301", body: "y"})},
	{"names that differ in width", bundle.Collision, smuggled(item{name: "src/\uff4dain.py", body: "x"})},
	{"directories that differ in case", bundle.Collision, smuggled(item{name: "SRC/x", body: "x"})},

	// Special files.
	{"a symbolic link", bundle.Symlink, smuggled(item{name: "src/x", kind: tar.TypeSymlink, link: "/etc/shadow"})},
	{"a symbolic link in a zip", bundle.Symlink, smuggledZip(item{name: "src/x", kind: tar.TypeSymlink, link: "/etc/shadow"})},
	{"a symbolic link in a directory", bundle.Symlink, changed(func(_ *scene, dir string) error { return os.Symlink("/etc", filepath.Join(dir, "src/x")) })},
	{"a link in the place of a file", bundle.Symlink, changed(func(_ *scene, dir string) error {
		name := filepath.Join(dir, "src/main.py")
		return errors.Join(os.Remove(name), os.Symlink("/etc/passwd", name))
	})},
	{"a hard link", bundle.HardLink, smuggled(item{name: "src/x", kind: tar.TypeLink, link: "/etc/shadow"})},
	{"a device", bundle.Special, smuggled(item{name: "src/sda", kind: tar.TypeBlock})},
	{"a character device", bundle.Special, smuggled(item{name: "src/mem", kind: tar.TypeChar})},
	{"a pipe", bundle.Special, smuggled(item{name: "src/p", kind: tar.TypeFifo})},
	{"a pipe in a directory", bundle.Special, changed(func(_ *scene, dir string) error { return unix.Mkfifo(filepath.Join(dir, "src/p"), 0o644) })},
	{"a file that runs as its owner", bundle.Special, smuggled(item{name: "src/su", body: "x", mode: 0o4755})},

	// Archives.
	{"nothing", bundle.Malformed, func(s *scene) string { return file(s, "x.zip", nil) }},
	{"something else", bundle.Malformed, func(s *scene) string { return file(s, "x.zip", []byte("MZ this is a program")) }},
	{"a tar.gz that is cut off", bundle.Malformed, packed(func(_ *scene, b []byte) []byte { return b[:len(b)/2] })},
	{"a tar.gz with a flipped bit", bundle.Malformed, packed(func(_ *scene, b []byte) []byte { b[len(b)-6] ^= 1; return b })},
	{"a zip with a flipped bit", bundle.Malformed, packedZip(func(_ *scene, b []byte) []byte { b[75] ^= 4; return b })},
	{"a zip whose directory is elsewhere", bundle.Malformed, packedZip(func(_ *scene, b []byte) []byte { return append([]byte("PK\x03\x04 before it"), b...) })},
	{"a zip that is cut off", bundle.Trailing, packedZip(func(_ *scene, b []byte) []byte { return b[:len(b)-10] })},
	{"a zip with more behind it", bundle.Trailing, packedZip(func(_ *scene, b []byte) []byte { return append(b, "#!/bin/sh\nevil"...) })},
	{"a tar.gz with more behind it", bundle.Trailing, packed(func(_ *scene, b []byte) []byte { return append(b, "#!/bin/sh\nevil"...) })},
	{"a tar.gz with another behind it", bundle.Trailing, packed(func(s *scene, b []byte) []byte { return append(b, gz(s, []byte("evil"))...) })},
	{"a tar with more behind its end", bundle.Trailing, func(s *scene) string {
		return file(s, "x.tar.gz", gz(s, append(tarOf(s, items(s, s.signed(good()))), "evil"...)))
	}},
	{"a zip with a password", bundle.Encrypted, packedZip(func(_ *scene, b []byte) []byte {
		b[bytes.LastIndex(b, []byte("PK\x01\x02"))+8] |= 1
		return b
	})},
	{"a bomb", bundle.Bomb, smuggled(item{name: "src/zeros", body: strings.Repeat("\x00", 24<<20)})},
	{"a bomb in a zip", bundle.Bomb, smuggledZip(item{name: "src/zeros", body: strings.Repeat("\x00", 24<<20)})},
	{"a bomb of headers", bundle.Bomb, func(s *scene) string {
		return file(s, "x.tar.gz", gz(s, slices.Concat(bytes.Repeat(headerOf(s, item{name: "./", kind: tar.TypeDir}), 120_000))))
	}},
	{"a file that says it is a terabyte", bundle.TooLarge, func(s *scene) string {
		h := item{name: "src/x"}.header()
		h.Size = 1 << 40
		var b bytes.Buffer
		s.ok(tar.NewWriter(&b).WriteHeader(h))
		return file(s, "x.tar.gz", gz(s, b.Bytes()))
	}},
	{"a file of a zip that says it is a gigabyte", bundle.TooLarge, packedZip(func(_ *scene, b []byte) []byte {
		binary.LittleEndian.PutUint32(b[bytes.Index(b, []byte("PK\x01\x02"))+24:], 1<<30)
		return b
	})},
	{"a manifest of two megabytes", bundle.TooLarge, smuggled(item{name: "capabilities/x.rtfs", body: strings.Repeat("; ", 1<<20)})},
	{"an archive larger than any", bundle.TooLarge, func(s *scene) string {
		name := file(s, "x.zip", []byte("PK\x03\x04"))
		s.ok(os.Truncate(name, 300<<20))
		return name
	}},
	{"a directory larger than any", bundle.TooLarge, changed(func(_ *scene, dir string) error { return os.Truncate(filepath.Join(dir, "src/main.py"), 600<<20) })},
	{"files without number", bundle.TooMany, smuggled(many(10_001)...)},
	{"files without number in a zip", bundle.TooMany, smuggledZip(many(10_001)...)},
	{"a zip that says it has few", bundle.TooMany, func(s *scene) string {
		b := zipOf(s, many(70_000)) // 65536 more entries than the end record declares
		end := len(b) - 22
		if at := bytes.LastIndex(b, []byte("PK\x06\x06")); at > 0 { // without the zip64 record
			b = append(b[:at:at], b[end:]...)
			end = at
		}
		first := bytes.Index(b, []byte("PK\x01\x02"))
		binary.LittleEndian.PutUint16(b[end+8:], 70_000%65536)
		binary.LittleEndian.PutUint16(b[end+10:], 70_000%65536)
		binary.LittleEndian.PutUint32(b[end+12:], uint32(end-first))
		binary.LittleEndian.PutUint32(b[end+16:], uint32(first))
		return file(s, "x.zip", b)
	}},

	// Signatures.
	{"no signature", bundle.Unsigned, changed(func(_ *scene, dir string) error { return os.Remove(filepath.Join(dir, bundle.SignatureFile)) })},
	{"a signature that is no JSON", bundle.BadSignature, signature(func(string) string { return "{" })},
	{"a signature with a key twice", bundle.BadSignature, signature(func(s string) string { return strings.Replace(s, "{", `{"name": "other",`, 1) })},
	{"a signature with a key in another case", bundle.BadSignature, signature(func(s string) string { return strings.Replace(s, `"name"`, `"NAME"`, 1) })},
	{"a signature with more in it", bundle.BadSignature, signature(func(s string) string { return strings.Replace(s, "{", `{"note": "trust me",`, 1) })},
	{"a signature of something else", bundle.BadSignature, signature(func(s string) string { return strings.Replace(s, bundle.Format, "glasshouse-index/1", 1) })},
	{"a signature that is someone's word", bundle.WrongKey, signature(func(s string) string { return strings.Replace(s, `"1.2.0"`, `"9.9.9"`, 1) })},
	{"a signature that another key made", bundle.WrongKey, func(s *scene) string {
		dir := s.resigned(good(), newKey(s.T), func(*bundle.Signature) {})
		return changeFile(s, dir, bundle.SignatureFile, func(text string) string { // with the publisher's key in it
			return replaceLine(text, `"key"`, fmt.Sprintf(`  "key": %q,`, s.key.Public()))
		})
	}},
	{"a signature without a signature", bundle.WrongKey, signature(func(s string) string {
		at := strings.LastIndex(s, `"signature"`)
		return strings.TrimRight(s[:at], " \n,") + "}"
	})},
	{"a signature that lists a name outside", bundle.BadSignature, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Files[0].Path = "../x" })
	}},
	{"a signature that lists a file twice", bundle.BadSignature, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Files = append(sig.Files[:1:1], sig.Files...) })
	}},
	{"a file that was added", bundle.Unlisted, smuggled(item{name: "src/evil.py", body: "x"})},
	{"a file that was added to a directory", bundle.Unlisted, changed(func(_ *scene, dir string) error {
		return os.WriteFile(filepath.Join(dir, "capabilities/root.shell.rtfs"), []byte("x"), 0o644)
	})},
	{"a file that was taken out", bundle.Missing, changed(func(_ *scene, dir string) error { return os.Remove(filepath.Join(dir, "src/main.py")) })},
	{"a byte that was changed", bundle.Tampered, tamper("src/main.py", func(s string) string { return strings.Replace(s, "p", "q", 1) })},
	{"a line that was added", bundle.Tampered, tamper("src/main.py", func(s string) string { return s + "import evil\n" })},
	{"metadata that were changed", bundle.Tampered, tamper("metadata.json", func(s string) string { return strings.Replace(s, "standard", "elevated", 1) })},
	{"a manifest that was changed", bundle.Tampered, tamper("capabilities/places.search.rtfs", func(s string) string { return strings.Replace(s, ":standard", ":preapproved", 1) })},
	{"a file that became a program", bundle.ModeChanged, changed(func(_ *scene, dir string) error { return os.Chmod(filepath.Join(dir, "src/main.py"), 0o755) })},
	{"a program that became a file", bundle.ModeChanged, changed(func(_ *scene, dir string) error { return os.Chmod(filepath.Join(dir, "src/run.sh"), 0o644) })},
	{"another name than was signed", bundle.OtherContent, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Name = "harmless" })
	}},
	{"another version than was signed", bundle.OtherContent, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Version = "9.0.0" })
	}},
	{"another publisher than was signed", bundle.OtherContent, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Publisher = "trusted-inc" })
	}},

	// Metadata.
	{"no metadata", bundle.BadMetadata, claims("metadata.json", "")},
	{"metadata with a word that nobody knows", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, "effects", "efects", 1))},
	{"metadata in another case", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, "effects", "Effects", 1))},
	{"metadata with a tier that nobody knows", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, `"standard"`, `"harmless"`, 1))},
	{"metadata with a version that is none", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, "1.2.0", "latest", 1))},
	{"a name that is a path", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, "local-places", "../places", 1))},
	{"a description that drives the terminal", bundle.BadMetadata, claims("metadata.json", strings.Replace(metadata, "nearby", `\u001b[2J`, 1))},
	{"neither skill nor capability", bundle.BadMetadata, func(s *scene) string {
		return s.forced(map[string]string{"metadata.json": metadata, "src/x": "x"})
	}},
	{"a skill that is none", bundle.BadSkill, claims("skill.yaml", "just words\n")},
	{"a skill that shows less than it uses", bundle.Exceeds, claims("skill.yaml", strings.Replace(skillText, "tier: standard", "tier: read-only", 1))},
	{"two skills", bundle.BadSkill, claims("SKILL.md", skillText)},
	{"a manifest that is none", bundle.BadCapability, claims("capabilities/x.rtfs", "(capability")},
	{"a file for manifests without any", bundle.BadCapability, claims("capabilities/x.rtfs", "; nothing\n")},
	{"a capability that is there twice", bundle.BadCapability, claims("capabilities/x.rtfs", manifestText)},
	{"a host that is not claimed", bundle.Exceeds, claims("metadata.json", strings.Replace(metadata, "places.googleapis.com", "example.com", 1))},
	{"an effect that is not claimed", bundle.Exceeds, claims("metadata.json", strings.Replace(metadata, `"network"`, "", 1))},
	{"a secret that is not claimed", bundle.Exceeds, claims("metadata.json", strings.Replace(metadata, `"GOOGLE_PLACES_API_KEY"`, "", 1))},
	{"capabilities of a teacher", bundle.Exceeds, claims("metadata.json", strings.Replace(metadata, `"standard"`, `"informational"`, 1))},
	{"effects of a reader", bundle.Exceeds, claims("metadata.json", strings.Replace(metadata, `"standard"`, `"read-only"`, 1))},
	{"a capability for two people", bundle.Exceeds, claims("capabilities/places.search.rtfs", strings.Replace(manifestText, ":tier :standard", ":tier :elevated", 1))},

	// Trust.
	{"a publisher whom nobody knows", bundle.UnknownPublisher, func(s *scene) string {
		s.key = newKey(s.T)
		return s.signed(with(good(), "metadata.json", strings.Replace(metadata, "acme", "emca", 1)))
	}},
	{"a key that is not the publisher's", bundle.UnknownKey, func(s *scene) string {
		s.key = newKey(s.T)
		return s.signed(good())
	}},
	{"a key with the id of the publisher's", bundle.UnknownKey, func(s *scene) string {
		s.key = sameID(s, s.key)
		return s.signed(good())
	}},
	{"a key of another publisher", bundle.UnknownKey, func(s *scene) string {
		s.key = newKey(s.T)
		s.ok(s.Trust.Add(s.Context(), "other", bundle.Elevated, s.key.Public()))
		return s.signed(good())
	}},
	{"a key that was revoked", bundle.RevokedKey, func(s *scene) string {
		s.ok(s.Trust.RevokeKey(s.Context(), s.key.Public(), "it was on a laptop that was stolen"))
		return s.signed(good())
	}},
	{"a revoked key that says it signed long ago", bundle.RevokedKey, func(s *scene) string {
		s.ok(s.Trust.RevokeKey(s.Context(), s.key.Public(), ""))
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = "2020-01-01T00:00:00Z" })
	}},
	{"a key that was replaced", bundle.RetiredKey, func(s *scene) string {
		s.ok(s.Trust.Rotate(s.Context(), s.key.Public(), newKey(s.T).Public()))
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = time.Now().Add(time.Minute).UTC().Format(time.RFC3339) })
	}},
	{"a content that was revoked", bundle.RevokedBundle, func(s *scene) string {
		dir := s.signed(good())
		b, err := bundle.Open(dir)
		s.ok(err)
		s.ok(s.Trust.RevokeBundle(s.Context(), b.Digest(), "it sends what people ask"))
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = "2026-01-01T00:00:00Z" })
	}},
	{"a signature that expired", bundle.Expired, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Expires = "2021-01-01T00:00:00Z" })
	}},
	{"a bundle that expired", bundle.Expired, claims("metadata.json", strings.Replace(metadata, "{", `{"expires": "2021-01-01T00:00:00Z",`, 1))},
	{"a signature of tomorrow", bundle.NotYet, func(s *scene) string {
		return s.resigned(good(), s.key, func(sig *bundle.Signature) { sig.Signed = "2999-01-01T00:00:00Z" })
	}},
	{"more than the publisher is trusted with", bundle.TierExceeded, func(s *scene) string {
		s.ok(s.Trust.Add(s.Context(), "acme", bundle.ReadOnly, s.key.Public()))
		return s.signed(good())
	}},

	// Conflicts with the installed bundle.
	{"an older version", bundle.Downgrade, before("1.10.0", func(s *scene) string { return s.signed(good()) })},
	{"an older version, as semver orders it", bundle.Downgrade, before("1.2.0", func(s *scene) string {
		return s.signed(with(good(), "metadata.json", strings.Replace(metadata, "1.2.0", "1.2.0-rc.1", 1)))
	})},
	{"the same version with another content", bundle.Republished, before("1.2.0", func(s *scene) string {
		return s.signed(with(good(), "src/main.py", "import evil\n"))
	})},
	{"the same name from somebody else", bundle.OtherPublisher, before("1.2.0", func(s *scene) string {
		s.key = newKey(s.T)
		s.ok(s.Trust.Add(s.Context(), "other", bundle.Standard, s.key.Public()))
		return s.signed(with(good(), "metadata.json", strings.Replace(strings.Replace(metadata, "acme", "other", 1), "1.2.0", "2.0.0", 1)))
	})},
}

func many(n int) []item {
	all := make([]item, n)
	for i := range all {
		all[i].name = fmt.Sprintf("src/%d", i)
	}
	return all
}

func headerOf(s *scene, i item) []byte {
	var b bytes.Buffer
	s.ok(tar.NewWriter(&b).WriteHeader(i.header()))
	return b.Bytes()
}

func signature(f func(string) string) func(*scene) string { return tamper(bundle.SignatureFile, f) }

func tamper(name string, f func(string) string) func(*scene) string {
	return func(s *scene) string { return changeFile(s, s.signed(good()), name, f) }
}

func changeFile(s *scene, dir, name string, f func(string) string) string {
	text, err := os.ReadFile(filepath.Join(dir, name))
	s.ok(err)
	after := f(string(text))
	if after == string(text) {
		s.Fatalf("%s is unchanged", name)
	}
	s.ok(os.WriteFile(filepath.Join(dir, name), []byte(after), 0o644))
	return dir
}

// replaceLine replaces the first line that contains a word.
func replaceLine(text, word, line string) string {
	lines := strings.Split(text, "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, word) })
	lines[at] = line
	return strings.Join(lines, "\n")
}

func fileOf(i item) bundle.File {
	mode := "0644"
	if i.mode&0o111 != 0 {
		mode = "0755"
	}
	return bundle.File{Path: i.name, Mode: mode, Size: int64(len(i.body)), SHA256: sha(i.body)}
}

func TestAttacks(t *testing.T) {
	tried := map[bundle.Reason]bool{}
	for _, a := range attacks {
		tried[a.want] = true
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			path := a.make(s)
			asked, had := len(s.seen), maps.Clone(s.have)
			laid := below(t, s.Dir)

			_, err := s.Install(t.Context(), path)
			if got := bundle.ReasonOf(err); got != a.want {
				t.Fatalf("refused as %q (%v), want %q", got, err, a.want)
			}
			if fault.KindOf(err) == "" || fault.RemedyOf(err) == "" {
				t.Errorf("%v has no reason or no remedy", err)
			}
			if len(err.Error()) > 1000 || strings.ContainsAny(err.Error(), "\x1b\u202e") {
				t.Errorf("the error contains unescaped or excessive input: %.200q", err)
			}
			if text := err.Error(); strings.Contains(text, filepath.Dir(path)) || !strings.Contains(text, filepath.Base(path)) {
				t.Errorf("the error contains the path of the bundle, or lacks its name: %s", text)
			}
			if len(s.seen) != asked || len(s.have) != len(had) {
				t.Error("an approval was requested, or a bundle was registered")
			}
			if now := below(t, s.Dir); !slices.Equal(now, laid) {
				t.Errorf("left-over files: %v", now)
			}
		})
	}
	for _, r := range bundle.Rules() {
		if !tried[r] {
			t.Errorf("no attack is refused as %q", r)
		}
	}
}

func TestZipDirectoryIsAuthoritative(t *testing.T) {
	// A zip lists names in local headers and in the central directory. Only the central
	// directory counts; other data in the file is ignored.
	s := newScene(t)
	archive := zipOf(s, items(s, s.signed(good())))
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	s.ok(err)
	copy(archive[30:], strings.Repeat("x", len(z.File[0].Name)))
	b, err := bundle.Open(file(t, "x.zip", archive))
	s.ok(err)
	if got, err := s.Stage(b); err != nil || len(below(t, got.Path())) != 6+2 {
		t.Errorf("extracted %v, %v", below(t, s.Dir), err)
	}
}
