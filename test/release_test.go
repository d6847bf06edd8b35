package test_test

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// madeRelease runs make release in a clone and moves the files to out.
func madeRelease(t *testing.T, root, out, key string, env ...string) {
	t.Helper()
	cmd := exec.Command("make", "-s", "-C", root, "release")
	cmd.Env = append(os.Environ(), "GLASSHOUSE_RELEASE_KEY="+key)
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make release: %v\n%s", err, b)
	}
	if want := map[bool]string{true: "not signed", false: "signed by 256 SHA256"}[key == ""]; !strings.Contains(string(b), "\n"+want) {
		t.Errorf("make release does not say %q:\n%s", want, b)
	}
	if err := os.Rename(filepath.Join(root, "bin/release"), out); err != nil {
		t.Fatal(err)
	}
}

// sumsOf returns the SHA-256 sums of the files in a directory.
func sumsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, name := range filesOf(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sums[name] = fmt.Sprintf("%x", sha256.Sum256(b))
	}
	return sums
}

// clone makes a clone of the commit, with another commit for the working tree's changes.
func clone(t *testing.T, dir string) string {
	t.Helper()
	script := `git clone -q --no-hardlinks .. "$0" && git ls-files -z --cached --others --exclude-standard --full-name .. |
	(cd .. && xargs -0 -I{} sh -c '[ ! -e "{}" ] || printf "%s\0" "{}"' | tar -c --null -T -) | tar -x -C "$0" && cd "$0" && git add -A &&
	GIT_COMMITTER_DATE="@1700000000 +0000" git -c user.name=t -c user.email=t@localhost commit -q --allow-empty --date "@1700000000 +0000" -m changes`
	if out, err := exec.Command("bash", "-e", "-o", "pipefail", "-c", script, dir).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	return dir
}

// Two clones of one commit in different directories, with different umasks and time zones, make
// the same release. The package and the archive are installed from its files.
func TestRelease(t *testing.T) {
	onlyThorough(t)
	if os.Geteuid() != 0 {
		t.Skip("creating a Debian tree needs root")
	}
	for _, tool := range []string{"mmdebstrap", "dpkg-deb", "ssh-keygen", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	tmp := t.TempDir()
	key := filepath.Join(tmp, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, second := filepath.Join(tmp, "first"), filepath.Join(tmp, "second")
	madeRelease(t, clone(t, filepath.Join(tmp, "a")), first, key)
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	madeRelease(t, clone(t, filepath.Join(tmp, "another/directory")), second, string(secret), "TZ=Asia/Tokyo", "LC_ALL=C", "GOFLAGS=-buildvcs=true")
	sums := sumsOf(t, first)
	if again := sumsOf(t, second); !maps.Equal(sums, again) {
		t.Errorf("the second release of the same commit differs:\n%v\n%v", sums, again)
	}

	names := slices.Sorted(maps.Keys(sums))
	version := strings.TrimSuffix(strings.TrimPrefix(names[slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "_linux_amd64.tar.gz") })], "glasshouse_"), "_linux_amd64.tar.gz")
	if !regexp.MustCompile(`^0\.1\.0-git[0-9]+\.[0-9a-f]+$`).MatchString(version) {
		t.Errorf("version = %q", version)
	}
	debVersion := strings.Replace(version, "-", "~", 1)
	want := []string{"SHA256SUMS", "SHA256SUMS.sig"}
	for _, arch := range []string{"amd64", "arm64"} {
		stem := "glasshouse_" + version + "_linux_" + arch
		want = append(want, "glasshouse_"+debVersion+"_"+arch+".deb", stem+".cdx.json", stem+".tar.gz")
	}
	want = append(want, "install.sh")
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("files = %q, want %q", names, want)
	}
	listed, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains(string(listed), sums[name]+"  "+name+"\n") {
			t.Errorf("SHA256SUMS lacks %s %s", sums[name], name)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		checkSBOM(t, first, version, arch)
	}

	// The archive, with the key of the release in install.sh.
	prefix := filepath.Join(tmp, "prefix")
	install := exec.Command("sh", first+"/install.sh", "--prefix", prefix)
	succeeded(t, install, "(?s)signature   ok.*checksum    ok.*installed .*"+regexp.QuoteMeta(version))
	program, err := elf.Open(prefix + "/bin/glasshouse")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is not static")
		}
	}
	for _, name := range []string{"share/bash-completion/completions/glasshouse", "share/zsh/site-functions/_glasshouse", "share/fish/vendor_completions.d/glasshouse.fish", "share/man/man1/glasshouse-run.1.gz", "share/doc/glasshouse/copyright", "lib/glasshouse/setup.sh"} {
		if _, err := os.Stat(filepath.Join(prefix, name)); err != nil {
			t.Error(err)
		}
	}
	succeeded(t, exec.Command("tar", "-tzf", filepath.Join(first, "glasshouse_"+version+"_linux_arm64.tar.gz")), `(?s)/LICENSE\n.*/NOTICE\n.*/README.md\n.*/bin/glasshouse\n.*/glasshouse.service\n.*/install.sh\n`)

	// The package, in a Debian tree.
	deb := filepath.Join(first, "glasshouse_"+debVersion+"_"+runtime.GOARCH+".deb")
	hook := `cp "$DEB" "$1/g.deb" && chroot "$1" dpkg --force-depends -i /g.deb && chroot "$1" glasshouse --version && rm "$1/g.deb"`
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--variant=essential", "--include=init-system-helpers", "--format=null", "--customize-hook="+hook, "bookworm", "/dev/null")
	cmd.Env = append(os.Environ(), "DEB="+deb)
	succeeded(t, cmd, regexp.QuoteMeta(version))

	// Without a key.
	madeRelease(t, filepath.Join(tmp, "a"), filepath.Join(tmp, "unsigned"), "")
	if _, err := os.Stat(filepath.Join(tmp, "unsigned/SHA256SUMS.sig")); err == nil {
		t.Error("a release without a key is signed")
	}
}

// checkSBOM compares the SBOM of an architecture with go version -m of the program in the archive.
func checkSBOM(t *testing.T, dir, version, arch string) {
	t.Helper()
	stem := "glasshouse_" + version + "_linux_" + arch
	data, err := os.ReadFile(filepath.Join(dir, stem+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		BomFormat, SpecVersion, SerialNumber string
		Metadata                             struct {
			Component struct {
				Components []struct{ Hashes []struct{ Content string } }
			}
		}
		Components []struct{ PURL string }
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	succeeded(t, exec.Command("tar", "-xzf", filepath.Join(dir, stem+".tar.gz"), "-C", tmp), "")
	program := filepath.Join(tmp, stem, "bin/glasshouse")
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if got := doc.Metadata.Component.Components[0].Hashes[0].Content; got != fmt.Sprintf("%x", sha256.Sum256(b)) {
		t.Errorf("%s: the SBOM is of another program: %s", arch, got)
	}
	purls := map[string]bool{}
	for _, c := range doc.Components {
		purls[c.PURL] = true
	}
	out, err := exec.Command("go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)\t`).FindAllStringSubmatch(string(out), -1)
	if len(deps) < 50 {
		t.Fatalf("the program has %d modules", len(deps))
	}
	for _, d := range deps {
		if p := "pkg:golang/" + d[1] + "@" + strings.ReplaceAll(d[2], "+", "%2B"); !purls[p] {
			t.Errorf("%s: the SBOM lacks %s", arch, p)
		}
	}
	for _, name := range []string{"pkg:golang/std@", "pkg:npm/svelte@", "pkg:npm/%40xterm/xterm@"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(purls)), func(p string) bool { return strings.HasPrefix(p, name) }) {
			t.Errorf("%s: the SBOM lacks %s", arch, name)
		}
	}
}
