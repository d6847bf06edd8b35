package rootfs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"glasshouse/fault"
)

const opDebian = "rootfs.debian"

// Suites are the Debian releases that the recipe is tested with. The first is the default.
var Suites = []string{"bookworm", "trixie"}

// packages are the packages of a Debian tree in addition to the essential ones. It contains
// python3 instead of python3-minimal, which lacks most of the standard library, such as json.
var packages = []string{"bash", "coreutils", "curl", "ca-certificates", "python3", "git"}

// recipe is the rest of the definition of a Debian tree. The key of the tree contains a hash of
// it, so each change causes a new bootstrap.
var recipe = struct{ Include, Exclude, Hooks []string }{
	Exclude: []string{
		"/usr/share/doc/*", "/usr/share/info/*", "/usr/share/man/*", "/usr/share/lintian/*",
		"/usr/share/locale/*", "/usr/share/bug/*", "/usr/share/bash-completion/*",
	},
	Include: []string{"/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias"},
	Hooks: []string{
		// A login shell would run all profile scripts, which takes 240 to 500 ms.
		`printf '# Set the search path and nothing else: a login shell should start at once.\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n' > "$1/etc/profile"`,
		`rm -rf "$1/etc/profile.d"; mkdir "$1/etc/profile.d"`,
		`chroot "$1" useradd --create-home --user-group --uid 1000 --shell /bin/bash agent`,
		// The identity layer of each jail contains these files.
		`rm -f "$1/etc/hostname" "$1/etc/resolv.conf"`,
		`rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/var/log/* "$1"/etc/*-`,
	},
}

// epoch, 2025-01-01, is the maximum modification time of files in the tree (SOURCE_DATE_EPOCH). It
// makes the build reproducible: the same packages result in the same tree.
const epoch = 1735689600

// debian returns a Debian tree. It creates a missing tree with mmdebstrap, which takes about half a
// minute. The digest of the tree is that of mmdebstrap's archive, which is reproducible.
func (p *Provider) debian(ctx context.Context, suite string) (Layer, error) {
	if !slices.Contains(Suites, suite) {
		return Layer{}, fault.Fieldf(opDebian, "rootfs.debian", "%q is not one of %s", suite, strings.Join(Suites, ", "))
	}
	key := p.debianKey(suite)
	digest, err := p.once(ctx, key, func() (string, error) {
		return p.build(ctx, func(tree, scratch string) (Image, error) {
			return p.bootstrap(ctx, suite, key, tree, scratch)
		})
	})
	if err != nil {
		return Layer{}, err
	}
	return p.layer(digest)
}

func (p *Provider) debianKey(suite string) string {
	b, err := json.Marshal([]any{suite, packages, recipe, epoch, p.cfg.Mirror, runtime.GOARCH})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	sum := sha256.Sum256(b)
	return "debian:" + suite + ":" + hex.EncodeToString(sum[:])
}

func (p *Provider) bootstrap(ctx context.Context, suite, key, tree, scratch string) (Image, error) {
	tool, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return Image{}, fault.Cannot(opDebian, "mmdebstrap, which creates Debian root filesystems, is not installed", "apt-get install mmdebstrap")
	}
	p.log.Info("creating a Debian root filesystem, which takes about half a minute", "suite", suite)
	cmd := exec.CommandContext(ctx, tool, p.mmdebstrapArgs(ctx, suite)...)
	cmd.Env = bootstrapEnv(scratch)
	img, err := p.fromCommand(ctx, cmd, tree)
	if err != nil {
		return Image{}, bootstrapError(suite, err)
	}
	img.Sources, img.Keys = []string{"debian:" + suite}, []string{key}
	return img, nil
}

func (p *Provider) mmdebstrapArgs(ctx context.Context, suite string) []string {
	mode := "root"
	if os.Geteuid() != 0 {
		mode = "unshare"
	}
	args := []string{
		"--quiet", "--variant=minbase", "--mode=" + mode, "--format=tar",
		"--include=" + strings.Join(packages, ","),
	}
	for _, x := range recipe.Exclude {
		args = append(args, "--dpkgopt=path-exclude="+x)
	}
	for _, i := range recipe.Include {
		args = append(args, "--dpkgopt=path-include="+i)
	}
	for _, h := range recipe.Hooks {
		args = append(args, "--customize-hook="+h)
	}
	args = append(args, suite, "-")
	if p.cfg.Mirror != "" {
		return append(args, p.cfg.Mirror)
	}
	return append(args, hostMirrors(ctx, suite)...)
}

// bootstrapEnv returns the environment of mmdebstrap and of the packages' scripts. It contains
// only those variables of the daemon that are needed for network access, and no secrets.
func bootstrapEnv(scratch string) []string {
	env := []string{"LANG=C.UTF-8", "SOURCE_DATE_EPOCH=" + strconv.Itoa(epoch)}
	if os.Geteuid() == 0 {
		// sweep removes the scratch directory after a crash. Without root, mmdebstrap uses
		// subordinate ids, which cannot access the images directory.
		env = append(env, "TMPDIR="+scratch)
	}
	for _, name := range []string{
		"PATH", "HOME", "USER", "APT_CONFIG",
		"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// hostMirrors returns the apt sources from which the host gets this suite. Without any,
// mmdebstrap uses deb.debian.org.
func hostMirrors(ctx context.Context, suite string) []string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return nil
	}
	return debianLines(string(out), suite)
}

// debianLines returns apt sources for the index targets that belong to Debian.
func debianLines(targets, suite string) []string {
	var lines []string
	for target := range strings.Lines(targets) {
		f := strings.Fields(target)
		if len(f) != 3 || f[2] != "main" || !debianArchive(f[0]) {
			continue
		}
		if !slices.Contains([]string{suite, suite + "-updates", suite + "-security"}, f[1]) {
			continue
		}
		if line := "deb " + f[0] + " " + f[1] + " main"; !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	// The updates suite does not contain all packages of a system.
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " "+suite+" main") }) {
		return nil
	}
	return lines
}

func debianArchive(uri string) bool {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	last := path.Base(u.Path)
	return last == "debian" || last == "debian-security"
}

// fromCommand unpacks the tar that cmd writes to its standard output. The digest of the tree is
// that of the tar.
func (p *Provider) fromCommand(ctx context.Context, cmd *exec.Cmd, tree string) (Image, error) {
	var stderr tail
	cmd.Stderr = &stderr
	// If ctx is cancelled, the whole process group is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		// mmdebstrap mounts directories of the host, such as /dev/shm. If it is killed, they are
		// unmounted with its namespace.
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return Image{}, fmt.Errorf("open a pipe for the output of %s: %w", cmd.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return Image{}, err
	}
	img, err := p.fromTar(ctx, out, tree)
	if errors.Is(err, fault.TooLarge) {
		cmd.Cancel()
		cmd.Wait()
		return Image{}, err
	}
	out.Close()
	if werr := cmd.Wait(); werr != nil && ctx.Err() == nil {
		// The command's error is more specific than the error about its truncated tar.
		return Image{}, &commandError{name: path.Base(cmd.Path), err: werr, output: stderr.String()}
	}
	return img, cmp.Or(ctx.Err(), err)
}

// fromTar unpacks a tar. The digest of the tree is that of the tar.
func (p *Provider) fromTar(ctx context.Context, r io.Reader, tree string) (Image, error) {
	x, err := newExtractor(tree, p.cfg.MaxBytes, p.cfg.MaxFiles)
	if err != nil {
		return Image{}, err
	}
	defer x.Close()
	sum := sha256.New()
	if err := x.layer(ctx, io.TeeReader(r, sum)); err != nil {
		return Image{}, err
	}
	if err := x.finish(); err != nil {
		return Image{}, err
	}
	return Image{
		Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)),
		Size:   x.size, Files: x.files, Skipped: x.skipped,
	}, nil
}

// A commandError is the error of an external program, with the end of its stderr.
type commandError struct {
	name   string
	err    error
	output string
}

func (e *commandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, cmp.Or(e.output, "no error output"))
}

func (e *commandError) Unwrap() error { return e.err }

// bootstrapError classifies an error of mmdebstrap: an unreachable mirror is fault.Unavailable, a
// missing prerequisite on the host is fault.Unsupported.
func bootstrapError(suite string, err error) error {
	ce, ok := errors.AsType[*commandError](err)
	if !ok {
		return fmt.Errorf("bootstrap %s: %w", suite, err)
	}
	e := &fault.Error{Op: opDebian, On: suite, Err: ce}
	switch {
	case containsAny(ce.output, "Could not resolve", "Could not connect", "Connection failed", "Temporary failure", "Failed to fetch"):
		e.Kind, e.Remedy = fault.Unavailable, "check the network, or set rootfs.mirror to a Debian mirror that this host can reach"
	case containsAny(ce.output, "newuidmap", "/etc/subuid", "unprivileged_userns_clone", "unable to pick chroot mode"):
		e.Kind, e.Remedy = fault.Unsupported, "apt-get install uidmap, and give your user a range in /etc/subuid and /etc/subgid; or run the daemon as root"
	case containsAny(ce.output, "NO_PUBKEY", "not signed", "unknown keyring"):
		e.Kind, e.Remedy = fault.Unsupported, "apt-get install debian-archive-keyring"
	}
	return e
}

func containsAny(s string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(s, w) })
}

// A tail is a writer that keeps the last 2048 bytes.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	const keep = 2048
	t.b = append(t.b, b...)
	if len(t.b) > keep {
		t.b = t.b[len(t.b)-keep:]
	}
	return len(b), nil
}

func (t *tail) String() string { return string(bytes.TrimSpace(t.b)) }
