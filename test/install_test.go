package test_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A fakeRelease is a directory with the files of a release whose program is a shell script, for
// tests of scripts/install.sh. TestRelease uses a real one.
type fakeRelease struct {
	t   *testing.T
	dir string
}

// makeRelease makes a release with archives of these versions, and install.sh without a key.
func makeRelease(t *testing.T, versions ...string) fakeRelease {
	t.Helper()
	r := fakeRelease{t, t.TempDir()}
	for _, dir := range []string{r.dir, filepath.Dir(r.dir)} { // also for other users
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../scripts/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	r.write("install.sh", script)
	var sums strings.Builder
	for _, v := range versions {
		name := "glasshouse_" + v + "_linux_" + runtime.GOARCH
		archive := fakeArchive(t, name, v)
		r.write(name+".tar.gz", archive)
		fmt.Fprintf(&sums, "%x  %s.tar.gz\n", sha256.Sum256(archive), name)
	}
	r.write("SHA256SUMS", []byte(sums.String()))
	return r
}

func (r fakeRelease) path(name string) string { return filepath.Join(r.dir, name) }

func (r fakeRelease) write(name string, data []byte) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), data, 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// sign generates a key, signs SHA256SUMS, and returns the file of the public key.
func (r fakeRelease) sign() string {
	r.t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		r.t.Skip(err)
	}
	key := filepath.Join(r.t.TempDir(), "key")
	os.Remove(r.path("SHA256SUMS.sig"))
	for _, args := range [][]string{
		{"-q", "-t", "ed25519", "-N", "", "-f", key},
		{"-q", "-Y", "sign", "-f", key, "-n", "glasshouse-release", r.path("SHA256SUMS")},
	} {
		if out, err := exec.Command("ssh-keygen", args...).CombinedOutput(); err != nil {
			r.t.Fatalf("ssh-keygen %v: %v\n%s", args, err, out)
		}
	}
	return key + ".pub"
}

// fakeArchive makes an archive as scripts/tarball.sh does. The file doc/VERSION is only in the
// archive of this version.
func fakeArchive(t *testing.T, name, version string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range []struct {
		name string
		mode int64
		text string
	}{
		{"bin/glasshouse", 0o755, "#!/bin/sh\ncase $1 in --version) echo glasshouse version " + version + " ;; jail) echo j-1; echo \"$@\" >>\"$LOG\" ;; esac\n"},
		{"lib/glasshouse/setup.sh", 0o755, "#!/bin/sh\n"},
		{"share/doc/glasshouse/" + version, 0o644, "x"},
		{"install.sh", 0o755, "#!/bin/sh\nexit 1\n"},
		{"glasshouse.service", 0o644, "[Service]\nExecStart=/usr/bin/glasshouse serve --config /etc/glasshouse/config.yaml\n"},
		{"config.yaml", 0o644, "# as shipped\n"},
	} {
		text := []byte(f.text)
		if f.name == "install.sh" {
			script, err := os.ReadFile("../scripts/install.sh")
			if err != nil {
				t.Fatal(err)
			}
			text = script
		}
		if err := w.WriteHeader(&tar.Header{Name: name + "/" + f.name, Mode: f.mode, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// refused runs a command that must fail, and checks its message.
func refused(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err == nil || !regexp.MustCompile(want).Match(out) {
		t.Errorf("%v: %v, want a failure with %q:\n%s", cmd.Args, err, want, out)
	}
}

func succeeded(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(want).Match(out) {
		t.Fatalf("%v: %v, want success with %q:\n%s", cmd.Args, err, want, out)
	}
}

// filesOf returns the files and links under a directory.
func filesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(name, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// An installation is upgraded and removed, by root and by a user without root. The user's data
// directory is in the same prefix.
func TestInstallUpgradeUninstall(t *testing.T) {
	users := map[string][]string{"self": nil}
	if os.Geteuid() == 0 {
		users["user"] = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	}
	for name, as := range users {
		t.Run(name, func(t *testing.T) {
			release := makeRelease(t, "1.0", "2.0")
			home := t.TempDir()
			if as != nil {
				if err := os.Chown(home, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			prefix := filepath.Join(home, ".local")
			sh := func(args ...string) *exec.Cmd {
				all := append(slices.Clone(as), "sh")
				all = append(all, args...)
				if as == nil { // root's default is /usr/local
					all = append(all, "--prefix", prefix)
				}
				cmd := exec.Command(all[0], all[1:]...)
				cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
				cmd.Dir = "/"
				return cmd
			}
			refused(t, sh(release.path("install.sh")), "several versions[^$]*1.0\n2.0")
			refused(t, sh(release.path("install.sh"), "--version", "3.0"), "no version 3.0")
			succeeded(t, sh(release.path("install.sh"), "--version", "1.0"), "installed   glasshouse version 1.0")
			data := filepath.Join(home, ".local/share/glasshouse/token")
			if err := os.MkdirAll(filepath.Dir(data), 0o711); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}

			succeeded(t, sh(release.path("install.sh"), "--version", "2.0"), "installed   glasshouse version 2.0")
			succeeded(t, exec.Command(prefix+"/bin/glasshouse", "--version"), "version 2.0")
			want := []string{"bin/glasshouse", "lib/glasshouse/install.sh", "lib/glasshouse/installed", "lib/glasshouse/setup.sh", "share/doc/glasshouse/2.0", "share/glasshouse/token"}
			if got := filesOf(t, prefix); !slices.Equal(got, want) {
				t.Errorf("after the upgrade there are %q, want %q", got, want)
			}

			succeeded(t, sh(prefix+"/lib/glasshouse/install.sh", "--uninstall"), "removed ")
			if got := filesOf(t, prefix); !slices.Equal(got, []string{"share/glasshouse/token"}) {
				t.Errorf("after --uninstall there are %q, want only the data", got)
			}
			refused(t, sh(release.path("install.sh"), "--uninstall"), "no installation by install.sh")
		})
	}
}

func TestInstallFromURL(t *testing.T) {
	release := makeRelease(t, "1.0")
	server := httptest.NewServer(http.FileServer(http.Dir(release.dir)))
	defer server.Close()
	prefix := t.TempDir()
	for _, tool := range []string{"curl", "wget"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("not tested: %v", err)
			continue
		}
		// A PATH without the other program.
		bin := t.TempDir()
		for _, program := range []string{"sh", "id", "mktemp", "rm", "cat", "uname", "sed", "wc", "grep", "cut", "sha256sum", "tar", "gzip", "find", "sort", "mkdir", "dirname", "cp", "chmod", "mv", tool} {
			file, err := exec.LookPath(program)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(file, filepath.Join(bin, program)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-s", "--", "--prefix", prefix, server.URL)
		script, err := os.Open(release.path("install.sh"))
		if err != nil {
			t.Fatal(err)
		}
		defer script.Close()
		cmd.Stdin = script
		cmd.Env = []string{"PATH=" + bin, "HOME=/nonexistent"}
		succeeded(t, cmd, "installed   glasshouse version 1.0")
		if err := os.Remove(prefix + "/bin/glasshouse"); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, exec.Command("sh", release.path("install.sh"), "--prefix", prefix, server.URL+"/none"), "cannot be reached")
}

func TestInstallFromUnpackedArchive(t *testing.T) {
	release := makeRelease(t, "1.0")
	name := "glasshouse_1.0_linux_" + runtime.GOARCH
	succeeded(t, exec.Command("tar", "-xzf", release.path(name+".tar.gz"), "-C", release.dir), "")
	prefix := t.TempDir()
	script := filepath.Join(release.dir, name, "install.sh")
	refused(t, exec.Command("sh", script, "--prefix", prefix, "--key", release.sign()), "cannot check an unpacked archive")
	succeeded(t, exec.Command("sh", script, "--prefix", prefix), "(?s)not checked.*installed   glasshouse version 1.0")
	succeeded(t, exec.Command("sh", prefix+"/lib/glasshouse/install.sh", "--prefix", prefix, "--uninstall"), "removed ")
	if got := filesOf(t, prefix); len(got) > 0 {
		t.Errorf("after --uninstall there are %q", got)
	}
}

// Files that do not match the checksums or the signature are not installed.
func TestInstallRefusesWrongFiles(t *testing.T) {
	release := makeRelease(t, "1.0")
	prefix := t.TempDir()
	install := func(args ...string) *exec.Cmd {
		return exec.Command("sh", append([]string{release.path("install.sh"), "--prefix", prefix}, args...)...)
	}
	archive := "glasshouse_1.0_linux_" + runtime.GOARCH + ".tar.gz"
	good, err := os.ReadFile(release.path(archive))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(release.path("SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}

	release.write(archive, fakeArchive(t, strings.TrimSuffix(archive, ".tar.gz"), "evil"))
	refused(t, install(), "wrong checksum of "+archive)
	release.write(archive, good)

	key := release.sign()
	release.write("SHA256SUMS", append(slices.Clone(sums), "# changed\n"...))
	refused(t, install("--key", key), "wrong signature of SHA256SUMS")
	release.write("SHA256SUMS", sums)

	other := makeRelease(t, "1.0").sign()
	refused(t, install("--key", other), "wrong signature of SHA256SUMS")

	signature, err := os.ReadFile(release.path("SHA256SUMS.sig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(release.path("SHA256SUMS.sig")); err != nil {
		t.Fatal(err)
	}
	refused(t, install("--key", key), "not signed, but a key is given")
	if got := filesOf(t, prefix); len(got) > 0 {
		t.Fatalf("refused, and installed %q", got)
	}

	succeeded(t, install(), "signature   not checked: install.sh has no key")
	release.write("SHA256SUMS.sig", signature)
	succeeded(t, install("--key", key), "(?s)signature   ok.*checksum    ok.*installed   glasshouse version 1.0")
}

// Files of a package manager, or of unknown origin, are replaced only with --force.
func TestInstallRefusesForeignFiles(t *testing.T) {
	release := makeRelease(t, "1.0")
	prefix := t.TempDir()
	install := func(args ...string) *exec.Cmd {
		return exec.Command("sh", append([]string{release.path("install.sh"), "--prefix", prefix}, args...)...)
	}
	fakes := t.TempDir()
	if err := os.WriteFile(fakes+"/dpkg-query", []byte("#!/bin/sh\ncase $3 in *Status*) echo installed ;; *) echo 0.9 ;; esac\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := install()
	cmd.Env = append(os.Environ(), "PATH="+fakes+":"+os.Getenv("PATH"))
	refused(t, cmd, "package glasshouse 0.9 is installed.*apt install")
	if got := filesOf(t, prefix); len(got) > 0 {
		t.Fatalf("refused, and installed %q", got)
	}

	if err := os.Mkdir(prefix+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(prefix+"/bin/glasshouse", []byte("mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	refused(t, install(), "was not installed by install.sh")
	if b, err := os.ReadFile(prefix + "/bin/glasshouse"); err != nil || string(b) != "mine" {
		t.Fatalf("the file was changed: %q, %v", b, err)
	}
	succeeded(t, install("--force"), "installed   glasshouse version 1.0")
}

// As root in /usr/local the service is installed. The test has its own /usr/local, /etc, /var and
// /run, and a systemctl that logs its arguments.
func TestInstallService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	release := makeRelease(t, "1.0", "2.0")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/systemctl", []byte("#!/bin/sh\necho \"systemctl $*\" >>\"$LOG\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const script = `set -eu
cp /etc/passwd /etc/group /etc/ld.so.cache "$DIR"
for dir in /etc /var /run /usr/local; do mount -t tmpfs tmpfs $dir; done
cp "$DIR/passwd" "$DIR/group" "$DIR/ld.so.cache" /etc
mkdir -p /run/systemd/system
export PATH=$DIR:/usr/sbin:/usr/bin:/sbin:/bin
sh "$RELEASE/install.sh" --version 1.0
grep -qx 'ExecStart=/usr/local/bin/glasshouse serve --config /etc/glasshouse/config.yaml' /etc/systemd/system/glasshouse.service
grep -qx 'systemctl enable glasshouse.service' "$LOG"
grep -qx 'systemctl restart glasshouse.service' "$LOG"
[ "$(stat -c %a /var/lib/glasshouse)" = 711 ]
echo '# mine' >/etc/glasshouse/config.yaml
touch /var/lib/glasshouse/token
sh "$RELEASE/install.sh" --version 2.0
grep -qx '# mine' /etc/glasshouse/config.yaml
: >"$LOG"
/usr/local/lib/glasshouse/install.sh --uninstall
grep -qx 'jail stop j-1' "$LOG"
grep -qx 'systemctl disable --now glasshouse.service' "$LOG"
[ ! -e /etc/systemd/system/glasshouse.service ]
[ -e /etc/glasshouse/config.yaml ] && [ -e /var/lib/glasshouse/token ]
[ -z "$(find /usr/local -type f)" ]
# Without a running systemd, and in another prefix, there is no service.
sh "$RELEASE/install.sh" --version 1.0 --prefix /usr/local/other
rm -r /run/systemd
sh "$RELEASE/install.sh" --version 1.0
[ ! -e /etc/systemd/system/glasshouse.service ]
echo passed
`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "DIR="+dir, "RELEASE="+release.dir, "LOG="+dir+"/log")
	succeeded(t, cmd, "passed")
}
