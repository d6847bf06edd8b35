// Image builds a container image of a built glasshouse without Docker: a minimal Debian, created
// with mmdebstrap, that has the daemon and the programs that it needs. Run it in the repository:
//
//	go run ./packaging/image [flags] BINARY... OUTPUT_DIRECTORY
//
// It writes an OCI image layout as one archive, which also contains the index that docker load
// expects, and prints the name of the archive and the digest of the image. The build is
// reproducible: the same packages and commit produce the same bytes. From binaries for several
// architectures it builds a multi-architecture image. For an architecture other than the host's
// it needs qemu-user-static and binfmt_misc.
package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// suite is the oldest Debian release whose runc, crun and CRIU support all features.
const suite = "trixie"

// packages are the packages that the daemon uses, as in scripts/setup.sh and
// packaging/deb/control, and those that setup.sh needs to fetch newer versions.
var packages = []string{
	"runc", "crun", "bubblewrap", "criu", "nftables", "iptables", "iproute2", "mmdebstrap", "e2fsprogs", "mount",
	"uidmap", "patchelf", "ca-certificates", "debian-archive-keyring",
}

// excluded are files of packages that are not needed in a container.
var excluded = []string{"/usr/share/doc/*", "/usr/share/info/*", "/usr/share/man/*", "/usr/share/lintian/*", "/usr/share/locale/*", "/usr/share/bug/*"}

// hooks remove files that differ between builds, and files that the container engine provides.
var hooks = []string{
	`rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/cache/ldconfig/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/var/log/* "$1"/etc/*-`,
	`rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1/etc/machine-id"`,
	`find "$1" -xdev -name __pycache__ -prune -exec rm -rf {} +`,
}

const data = "/var/lib/glasshouse"

// A build has the parameters of an image build.
type build struct {
	out, root, mirror, version string
	epoch                      time.Time
}

// A part is the image for one architecture and its inputs.
type part struct {
	arch, binary, root string
	image              runnable
}

// A runnable is an image without an artifact type in its index entry. The library would set
// one, although an image is not an artifact. Tools that copy an index drop the field for images,
// so the copy would have another digest.
type runnable struct{ v1.Image }

func (runnable) ArtifactType() (string, error) { return "", nil }

func (p part) platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: p.arch} }

func main() {
	b := build{}
	flag.StringVar(&b.root, "root", "", "a tar file with the tree the daemon is put into (default: a Debian that mmdebstrap makes)")
	flag.StringVar(&b.mirror, "mirror", "", "of Debian (default: deb.debian.org)")
	flag.StringVar(&b.version, "version", "", "what the image is tagged with (default: from the commit)")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: image [flags] BINARY... OUTPUT_DIRECTORY")
		flag.PrintDefaults()
		os.Exit(2)
	}
	b.out = flag.Arg(flag.NArg() - 1)
	name, digest, err := b.run(flag.Args()[:flag.NArg()-1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(name, digest)
}

// tag matches a valid tag of an image reference.
var tag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

func (b *build) run(binaries []string) (name string, digest v1.Hash, err error) {
	commit, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "", digest, err
	}
	if b.version == "" {
		count, err := git("rev-list", "--count", "HEAD")
		if err != nil {
			return "", digest, err
		}
		b.version = "0.1.0-git" + count + "." + commit
	}
	if !tag.MatchString(b.version) {
		return "", digest, fmt.Errorf("%q is not a valid image tag", b.version)
	}
	when := os.Getenv("SOURCE_DATE_EPOCH")
	if when == "" {
		if when, err = git("log", "-1", "--format=%ct"); err != nil {
			return "", digest, err
		}
	}
	seconds, err := strconv.ParseInt(when, 10, 64)
	if err != nil {
		return "", digest, fmt.Errorf("parse SOURCE_DATE_EPOCH: %w", err)
	}
	b.epoch = time.Unix(seconds, 0).UTC()

	scratch, err := os.MkdirTemp("", "glasshouse-image-")
	if err != nil {
		return "", digest, err
	}
	defer os.RemoveAll(scratch)
	var parts []part
	var all []string
	for _, binary := range binaries {
		p := part{binary: binary, root: b.root}
		if p.arch, err = architecture(binary); err != nil {
			return "", digest, err
		}
		if slices.Contains(all, p.arch) {
			return "", digest, fmt.Errorf("two binaries are for %s", p.arch)
		}
		all = append(all, p.arch)
		if p.root == "" {
			p.root = filepath.Join(scratch, p.arch+".tar")
			if err := b.debian(p); err != nil {
				return "", digest, err
			}
		}
		image, err := b.image(p, commit)
		if err != nil {
			return "", digest, fmt.Errorf("create the image for %s: %w", p.arch, err)
		}
		p.image = runnable{image}
		parts = append(parts, p)
	}
	name = filepath.Join(b.out, "glasshouse_"+b.version+"_"+strings.Join(all, "-")+".oci.tar")
	digest, err = b.archive(parts, filepath.Join(scratch, "layout"), name)
	return name, digest, err
}

// architecture returns the architecture of a Go binary.
func architecture(binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	for _, s := range info.Settings {
		if s.Key == "GOARCH" {
			return s.Value, nil
		}
	}
	return "", fmt.Errorf("%s has no build information about its architecture", binary)
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// debian creates the base layer of the image as a tar file.
func (b *build) debian(p part) error {
	args := []string{"--quiet", "--architectures=" + p.arch, "--variant=essential", "--format=tar", "--include=" + strings.Join(packages, ",")}
	for _, x := range excluded {
		args = append(args, "--dpkgopt=path-exclude="+x)
	}
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
	for _, h := range hooks {
		args = append(args, "--customize-hook="+h)
	}
	args = append(args, suite, p.root)
	if b.mirror != "" {
		args = append(args, b.mirror)
	}
	cmd := exec.Command("mmdebstrap", args...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(b.epoch.Unix(), 10))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mmdebstrap: %w", err)
	}
	return nil
}

// image returns the image: the base layer and the layer with the daemon.
func (b *build) image(p part, commit string) (v1.Image, error) {
	daemon, err := b.daemon(p)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.epoch}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		open tarball.Opener
		by   string
	}{
		{func() (io.ReadCloser, error) { return os.Open(p.root) }, "mmdebstrap " + suite},
		{func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(daemon)), nil }, "glasshouse " + b.version},
	} {
		layer, err := tarball.LayerFromOpener(l.open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, fmt.Errorf("compress the layer of %s: %w", l.by, err)
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: created, CreatedBy: l.by}}); err != nil {
			return nil, fmt.Errorf("add the layer of %s: %w", l.by, err)
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the image: %w", err)
	}
	file = file.DeepCopy()
	file.Created, file.OS, file.Architecture = created, "linux", p.arch
	file.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/glasshouse"},
		Cmd:        []string{"serve", "--stop-jails"},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		WorkingDir: "/",
		StopSignal: "SIGTERM",
		Volumes:    map[string]struct{}{data: {}},
		ExposedPorts: map[string]struct{}{
			"8082/tcp": {},
		},
		// A Docker extension; the OCI image specification has no health check.
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/usr/bin/glasshouse", "health"},
			Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 3,
		},
		// There is no label for the licence, because none has been published.
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Glasshouse",
			"org.opencontainers.image.description": "Runs autonomous agents in jails, watches and governs them",
			"org.opencontainers.image.version":     b.version,
			"org.opencontainers.image.revision":    commit,
			"org.opencontainers.image.created":     b.epoch.Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(image, file)
}

// daemon returns the layer with the files of Glasshouse as a tar archive.
func (b *build) daemon(p part) ([]byte, error) {
	program, err := os.ReadFile(p.binary)
	if err != nil {
		return nil, err
	}
	setup, err := os.ReadFile("scripts/setup.sh")
	if err != nil {
		return nil, err
	}
	programs, err := filepath.Glob("cmd/glasshouse/embedded/" + p.arch + "/glasshouse-*")
	if err != nil {
		return nil, err
	}
	args := append([]string{"run", "./packaging/notices", p.binary}, programs...)
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	notices, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{
		{"usr/bin/glasshouse", 0o755, program},
		{"usr/share/doc/glasshouse/", 0o755, nil},
		{"usr/share/doc/glasshouse/copyright", 0o644, notices},
		{"usr/share/glasshouse/", 0o755, nil},
		{"usr/share/glasshouse/setup.sh", 0o755, setup},
		{strings.TrimPrefix(data, "/") + "/", 0o711, nil},
	} {
		if err := b.put(w, f.name, f.mode, int64(len(f.data)), bytes.NewReader(f.data)); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // writes the end of the archive
		return nil, fmt.Errorf("end the layer: %w", err)
	}
	return out.Bytes(), nil
}

// put adds a file, or a directory if its name ends with a slash, to an archive.
func (b *build) put(w *tar.Writer, name string, mode, size int64, data io.Reader) error {
	h := &tar.Header{Name: name, Mode: mode, Size: size, ModTime: b.epoch, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return fmt.Errorf("write the header of %s: %w", name, err)
	}
	if _, err := io.Copy(w, data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// archive writes the images as an OCI layout in dir, and the layout as one file. Images for
// several architectures are listed in an index.
func (b *build) archive(parts []part, dir, name string) (digest v1.Hash, err error) {
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, fmt.Errorf("create the OCI layout: %w", err)
	}
	names := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": b.version,
		"io.containerd.image.name":          "docker.io/library/glasshouse:" + b.version,
	})
	if len(parts) == 1 {
		if digest, err = parts[0].image.Digest(); err == nil {
			err = at.AppendImage(parts[0].image, names, layout.WithPlatform(parts[0].platform()))
		}
	} else {
		all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, p := range parts {
			platform := p.platform()
			all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: p.image, Descriptor: v1.Descriptor{Platform: &platform}})
		}
		if digest, err = all.Digest(); err == nil {
			err = at.AppendIndex(all, names)
		}
	}
	if err != nil {
		return digest, fmt.Errorf("add the images to the OCI layout: %w", err)
	}
	// Docker versions that read this list do not support indexes: they get the first image.
	if err := indexForDocker(parts[0].image, dir, "glasshouse:"+b.version); err != nil {
		return digest, fmt.Errorf("list the image for Docker: %w", err)
	}
	return digest, b.save(dir, name)
}

// save writes a layout as one file.
func (b *build) save(dir, name string) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".glasshouse-image-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if err := b.pack(tmp, os.DirFS(dir)); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// indexForDocker adds manifest.json for Docker versions that do not support OCI layouts. It lists
// the image's blobs by their paths in the archive.
func indexForDocker(image v1.Image, dir, ref string) error {
	manifest, err := image.Manifest()
	if err != nil {
		return fmt.Errorf("read the manifest of the image: %w", err)
	}
	blob := func(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
	var layers []string
	for _, l := range manifest.Layers {
		layers = append(layers, blob(l.Digest))
	}
	list, err := json.Marshal([]map[string]any{{"Config": blob(manifest.Config.Digest), "RepoTags": []string{ref}, "Layers": layers}})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), list, 0o644)
}

// pack writes the files of a tree, sorted by name.
func (b *build) pack(out io.Writer, tree fs.FS) error {
	var names []string
	err := fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	w := tar.NewWriter(out)
	for _, name := range names {
		f, err := tree.Open(name)
		if err != nil {
			return err
		}
		fi, err := f.Stat()
		if err == nil {
			err = b.put(w, name, 0o644, fi.Size(), f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return w.Close()
}
