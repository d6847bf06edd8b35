package rootfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"glasshouse/fault"
)

const opOCI = "rootfs.oci"

// maxMeta is the maximum size of manifests and configurations, which are read into memory.
const maxMeta = 8 << 20

// platform is the required platform of images: jails run on the host's kernel.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// A picture is an image that has been found but not unpacked.
type picture struct {
	image  v1.Image
	digest v1.Hash  // digest of its manifest, or of its configuration if it came from a Docker archive
	source string   // the request and the digest
	keys   []string // requests that always resolve to this image
}

// oci resolves an image reference, or the absolute path of an OCI layout or an image tar. A digest
// (@sha256:…) in the request is verified.
func (p *Provider) oci(ctx context.Context, ref string) (Layer, error) {
	if strings.HasPrefix(ref, "/") {
		return p.localImage(ctx, ref)
	}
	return p.remoteImage(ctx, ref)
}

func ociKey(digest string) string { return "oci:" + digest }

func (p *Provider) remoteImage(ctx context.Context, ref string) (Layer, error) {
	r, err := name.ParseReference(ref)
	if err == nil && strings.HasPrefix(ref, ".") {
		err = errors.New("the path of a file must be absolute")
	}
	if err != nil {
		return Layer{}, fault.Fieldf(opOCI, "rootfs.oci", "%v", err)
	}
	if pin, ok := r.(name.Digest); ok {
		if digest := p.known(ociKey(pin.DigestStr())); digest != "" {
			return p.layer(digest)
		}
	}
	pic, err := p.find(ctx, r, remote.WithAuthFromKeychain(p.cfg.Keychain))
	if err != nil {
		return Layer{}, err
	}
	return p.unpack(ctx, pic)
}

// Pull resolves an image of a registry like Resolve, but always asks the registry, because a caller
// may lack access to an image that another caller has pulled. It uses login, or the credentials
// of the daemon's user if login is nil. It does not store login.
func (p *Provider) Pull(ctx context.Context, ref string, login authn.Authenticator) (Layer, error) {
	r, err := name.ParseReference(ref)
	if err != nil || strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "/") {
		return Layer{}, fault.Fieldf(opOCI, "rootfs.oci", "%.200q is not the name of an image", ref)
	}
	as := remote.WithAuthFromKeychain(p.cfg.Keychain)
	if login != nil {
		as = remote.WithAuth(login)
	}
	pic, err := p.find(ctx, r, as)
	if err == nil {
		return p.unpack(ctx, pic)
	}
	if e, ok := errors.AsType[*fault.Error](err); ok && login != nil && (e.Kind == fault.Denied || e.Kind == fault.Exhausted) {
		e.Remedy = "check the credentials that were given for " + r.Context().RegistryStr()
	}
	return Layer{}, err
}

// find looks up an image in its registry.
func (p *Provider) find(ctx context.Context, r name.Reference, as remote.Option) (picture, error) {
	desc, err := remote.Get(r, remote.WithContext(ctx), remote.WithPlatform(platform), as, remote.WithTransport(p.cfg.Transport))
	if err != nil {
		return picture{}, p.registryError(r, err)
	}
	img, err := desc.Image()
	if err != nil {
		return picture{}, p.registryError(r, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return picture{}, p.registryError(r, err)
	}
	source := "oci:" + r.Name()
	if _, pinned := r.(name.Digest); !pinned {
		source += "@" + desc.Digest.String()
	}
	return picture{
		image: img, digest: digest, source: source,
		// The digest of a manifest list identifies its image for this platform, too.
		keys: []string{ociKey(digest.String()), ociKey(desc.Digest.String())},
	}, nil
}

// known returns the digest of the image for key, or "".
func (p *Provider) known(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

// registryError adds a kind and a remedy to an error of a registry.
func (p *Provider) registryError(r name.Reference, err error) error {
	if errors.Is(err, context.Canceled) || fault.KindOf(err) != "" {
		return err
	}
	e := &fault.Error{Op: opOCI, On: r.Name(), Field: "rootfs.oci", Kind: fault.Unavailable, Err: err}
	te, answered := errors.AsType[*transport.Error](err)
	switch {
	case answered && te.StatusCode == http.StatusNotFound:
		e.Kind = fault.NotFound
	case answered && (te.StatusCode == http.StatusUnauthorized || te.StatusCode == http.StatusForbidden):
		e.Kind, e.Remedy = fault.Denied, "check the name, or log in as the daemon's user: docker login "+r.Context().RegistryStr()
	case answered && te.StatusCode == http.StatusTooManyRequests:
		e.Kind, e.Remedy = fault.Exhausted, "wait, or log in as the daemon's user: docker login "+r.Context().RegistryStr()
	case strings.Contains(err.Error(), "no child with platform"):
		e.Kind, e.Remedy = fault.Unsupported, "use an image for "+platform.String()
	case !answered:
		e.Remedy = "check the network; a local image can be used by its digest without access to the registry" + p.pins(r)
	}
	return e
}

// pins lists the digests to which the reference resolved before.
func (p *Provider) pins(r name.Reference) string {
	for _, img := range p.List() {
		for _, s := range img.Sources {
			if pin, ok := strings.CutPrefix(s, "oci:"+r.Name()+"@"); ok {
				return ": " + r.Context().Name() + "@" + pin
			}
		}
	}
	return ""
}

var pinSuffix = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

func (p *Provider) localImage(ctx context.Context, ref string) (Layer, error) {
	file, pin := ref, ""
	if m := pinSuffix.FindStringSubmatch(ref); m != nil {
		file, pin = strings.TrimSuffix(ref, m[0]), m[1]
	}
	real, fi, err := p.hostPath("rootfs.oci", file)
	if err != nil {
		return Layer{}, err
	}
	switch {
	case fi.IsDir():
		return p.layoutImage(ctx, file, real, pin)
	case fi.Mode().IsRegular():
		return p.tarImage(ctx, file, real, pin)
	}
	return Layer{}, fault.Fieldf(opOCI, "rootfs.oci", "%s is neither an OCI layout nor an image tar", file)
}

// layoutImage unpacks the image in the OCI layout dir.
func (p *Provider) layoutImage(ctx context.Context, file, dir, pin string) (Layer, error) {
	img, digest, err := fromLayout(dir, pin)
	if err != nil {
		return Layer{}, inField(file, err)
	}
	return p.unpack(ctx, picture{
		image: img, digest: digest,
		source: "oci:" + file + "@" + digest.String(),
		keys:   []string{ociKey(digest.String())},
	})
}

// inField adds the request's field that names the file to an error.
func inField(file string, err error) error {
	if fault.KindOf(err) == "" {
		return fmt.Errorf("read image %s: %w", file, err)
	}
	return &fault.Error{Op: opOCI, On: file, Field: "rootfs.oci", Kind: fault.KindOf(err), Err: err}
}

// fromLayout returns the image in an OCI layout with the requested digest, or, without a digest,
// the only one for this platform.
func fromLayout(dir, pin string) (v1.Image, v1.Hash, error) {
	if err := plainFiles(dir); err != nil {
		return nil, v1.Hash{}, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, v1.Hash{}, fault.New(fault.Invalid, opOCI, "", fmt.Errorf("not an OCI layout: %w", err))
	}
	found := map[v1.Hash]v1.Image{}
	if err := collect(index, pin, found, 0); err != nil {
		return nil, v1.Hash{}, err
	}
	if len(found) != 1 {
		var digests []string
		for h := range found {
			digests = append(digests, h.String())
		}
		return nil, v1.Hash{}, fault.Newf(fault.Invalid, opOCI, "",
			"the layout has %d images for %s; select one with %s@sha256:… %s", len(found), platform, dir, strings.Join(digests, " "))
	}
	for h, img := range found {
		return img, h, nil
	}
	panic("unreachable")
}

// plainFiles returns an error if a layout contains symlinks, devices or pipes: reading them could
// disclose other files or block.
func plainFiles(dir string) error {
	for _, top := range []string{"index.json", "oci-layout", "blobs"} {
		err := filepath.WalkDir(filepath.Join(dir, top), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.IsDir() && !d.Type().IsRegular() {
				return fault.Newf(fault.Invalid, opOCI, filepath.Base(p), "not a regular file")
			}
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			return fault.Newf(fault.Invalid, opOCI, "", "not an OCI layout: %s is missing", top)
		}
		if err != nil {
			return err
		}
	}
	fi, err := os.Stat(filepath.Join(dir, "index.json"))
	if err == nil && fi.Size() > maxMeta {
		return fault.Newf(fault.TooLarge, opOCI, "index.json", "%d bytes exceed the limit of %d", fi.Size(), maxMeta)
	}
	return err
}

// collect collects matching images, also in nested indexes.
func collect(index v1.ImageIndex, pin string, found map[v1.Hash]v1.Image, depth int) error {
	if depth > 4 {
		return fault.Newf(fault.Invalid, opOCI, "", "indexes nested too deeply")
	}
	m, err := index.IndexManifest()
	if err != nil {
		return fault.Newf(fault.Invalid, opOCI, "", "read the index: %w", err)
	}
	for _, d := range m.Manifests {
		if d.Size > maxMeta {
			return fault.Newf(fault.TooLarge, opOCI, d.Digest.String(), "the manifest of %d bytes exceeds the limit", d.Size)
		}
		if err := collectOne(index, d, pin, found, depth); err != nil {
			return err
		}
	}
	return nil
}

func collectOne(index v1.ImageIndex, d v1.Descriptor, pin string, found map[v1.Hash]v1.Image, depth int) error {
	pinned := pin == d.Digest.String()
	switch {
	case d.MediaType.IsIndex():
		child, err := index.ImageIndex(d.Digest)
		if err != nil {
			return fault.Newf(fault.Invalid, opOCI, d.Digest.String(), "read the nested index: %w", err)
		}
		raw, err := child.RawManifest()
		if err := sameDigest(raw, err, d.Digest); err != nil {
			return err
		}
		if pinned { // the digest of the index covers its images
			pin = ""
		}
		return collect(child, pin, found, depth+1)
	case !d.MediaType.IsImage(), pin != "" && !pinned:
		return nil
	case !pinned && d.Platform != nil && (d.Platform.OS != platform.OS || d.Platform.Architecture != platform.Architecture):
		return nil
	}
	img, err := index.Image(d.Digest)
	if err != nil {
		return fault.Newf(fault.Invalid, opOCI, d.Digest.String(), "read the image: %w", err)
	}
	found[d.Digest] = img
	return nil
}

// sameDigest verifies the digest of bytes that were read without verification.
func sameDigest(raw []byte, err error, want v1.Hash) error {
	if err != nil {
		return archiveError(want.String(), err)
	}
	if got := sha256.Sum256(raw); want.Algorithm != "sha256" || hex.EncodeToString(got[:]) != want.Hex {
		return fault.Newf(fault.Invalid, opOCI, want.String(), "the content has the digest sha256:%x", got)
	}
	return nil
}

// tarImage unpacks the image in a tar of docker save or of an OCI layout, optionally compressed
// with gzip.
func (p *Provider) tarImage(ctx context.Context, file, real, pin string) (Layer, error) {
	members, err := tarMembers(ctx, real)
	if err != nil {
		return Layer{}, inField(file, err)
	}
	if _, docker := members["manifest.json"]; !docker {
		return p.layoutTar(ctx, file, real, pin)
	}
	img, digest, err := fromDockerTar(real, members)
	if err != nil {
		return Layer{}, inField(file, err)
	}
	if pin != "" && pin != digest.String() {
		return Layer{}, fault.Fieldf(opOCI, "rootfs.oci", "%s contains the image %s", file, digest)
	}
	return p.unpack(ctx, picture{
		image: img, digest: digest,
		source: "oci:" + file + "@" + digest.String(),
		keys:   []string{ociKey(digest.String())},
	})
}

// tarMembers returns the sizes of the files in a tar.
func tarMembers(ctx context.Context, file string) (map[string]int64, error) {
	f, err := openTar(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const maxMembers = 10_000 // layers and their metadata
	members := map[string]int64{}
	for tr := tar.NewReader(f); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return members, nil
		}
		if err != nil {
			return nil, fault.New(fault.Invalid, opOCI, "", fmt.Errorf("not an image tar: %w", err))
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(members) == maxMembers {
			return nil, fault.Newf(fault.TooLarge, opOCI, "", "the image tar contains more than %d files", maxMembers)
		}
		members[path.Clean(hdr.Name)] = hdr.Size
	}
}

// openTar opens a tar and decompresses it if it is compressed with gzip.
func openTar(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	b := bufio.NewReader(f)
	if magic, _ := b.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		f.Close()
		return nil, fault.Newf(fault.Invalid, opOCI, "", "decompress the image tar: %w", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// fromDockerTar returns the image in a tar of docker save. Its digest is that of its
// configuration, which is Docker's image ID, because the tar lacks the manifest of the registry.
func fromDockerTar(file string, members map[string]int64) (v1.Image, v1.Hash, error) {
	open := func() (io.ReadCloser, error) { return openTar(file) }
	bad := func(err error) (v1.Image, v1.Hash, error) {
		return nil, v1.Hash{}, fault.New(fault.Invalid, opOCI, "", err)
	}
	if n := members["manifest.json"]; n > maxMeta {
		return bad(fmt.Errorf("manifest.json of %d bytes exceeds the limit", n))
	}
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return bad(fmt.Errorf("read manifest.json: %w", err))
	}
	if len(m) != 1 {
		return bad(fmt.Errorf("the tar contains %d images; run docker save with one image", len(m)))
	}
	if n := members[path.Clean(m[0].Config)]; n > maxMeta {
		return bad(fmt.Errorf("the configuration of %d bytes exceeds the limit", n))
	}
	img, err := tarball.Image(open, nil)
	if err != nil {
		return bad(fmt.Errorf("read the image: %w", err))
	}
	digest, err := img.ConfigName()
	if err != nil {
		return bad(fmt.Errorf("read the configuration: %w", err))
	}
	return img, digest, nil
}

// layoutTar unpacks the image of an OCI layout in a tar. It first unpacks the layout to a temporary
// directory in the images directory, with the same checks as for an image.
func (p *Provider) layoutTar(ctx context.Context, file, real, pin string) (Layer, error) {
	tmp, err := os.MkdirTemp(p.cfg.Dir, tmpPrefix)
	if err != nil {
		return Layer{}, fmt.Errorf("create a temporary directory: %w", err)
	}
	lock, err := lockDir(tmp)
	if err != nil {
		return Layer{}, errors.Join(err, os.Remove(tmp))
	}
	defer lock.Close()
	defer removeTree(tmp)

	if err := p.untar(ctx, real, tmp); err != nil {
		return Layer{}, inField(file, err)
	}
	return p.layoutImage(ctx, file, tmp, pin)
}

func (p *Provider) untar(ctx context.Context, file, dir string) error {
	f, err := openTar(file)
	if err != nil {
		return err
	}
	defer f.Close()
	x, err := newExtractor(dir, p.cfg.MaxBytes, p.cfg.MaxFiles)
	if err != nil {
		return err
	}
	defer x.Close()
	return x.layer(ctx, f)
}

// unpack unpacks the layers of an image into one tree, unless the tree exists.
func (p *Provider) unpack(ctx context.Context, pic picture) (Layer, error) {
	digest, err := p.once(ctx, ociKey(pic.digest.String()), func() (string, error) {
		return p.build(ctx, func(tree, _ string) (Image, error) {
			return p.flatten(ctx, pic, tree)
		})
	})
	if err != nil {
		return Layer{}, err
	}
	if err := p.note(digest, pic); err != nil {
		return Layer{}, fmt.Errorf("record the source of the image: %w", err)
	}
	return p.layer(digest)
}

// note records another request that resolves to an existing image.
func (p *Provider) note(digest string, pic picture) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	img, ok := p.images[digest]
	if !ok {
		return nil // layer returns the error
	}
	return p.learn(img, []string{pic.source}, pic.keys)
}

func (p *Provider) flatten(ctx context.Context, pic picture, tree string) (Image, error) {
	cfg, layers, err := verified(pic)
	if err != nil {
		return Image{}, err
	}
	x, err := newExtractor(tree, p.cfg.MaxBytes, p.cfg.MaxFiles)
	if err != nil {
		return Image{}, err
	}
	defer x.Close()
	for i, l := range layers {
		if err := applyLayer(ctx, x, l, cfg.RootFS.DiffIDs[i]); err != nil {
			return Image{}, fmt.Errorf("read layer %d of %s: %w", i+1, pic.source, err)
		}
	}
	if err := x.finish(); err != nil {
		return Image{}, err
	}
	return Image{
		Digest:  pic.digest.String(),
		Sources: []string{pic.source},
		Keys:    pic.keys,
		Config: ImageConfig{
			Env: cfg.Config.Env, Entrypoint: cfg.Config.Entrypoint, Cmd: cfg.Config.Cmd,
			WorkingDir: cfg.Config.WorkingDir, User: cfg.Config.User,
		},
		Size: x.size, Files: x.files, Skipped: x.skipped,
	}, nil
}

// verified verifies an image's manifest and configuration by its digest, and checks its platform.
// The configuration contains the digests of the layers, which applyLayer verifies.
func verified(pic picture) (*v1.ConfigFile, []v1.Layer, error) {
	if err := verifyMeta(pic); err != nil {
		return nil, nil, err
	}
	bad := func(err error) (*v1.ConfigFile, []v1.Layer, error) {
		return nil, nil, archiveError(pic.source, err)
	}
	cfg, err := pic.image.ConfigFile()
	if err != nil {
		return bad(fmt.Errorf("read the configuration: %w", err))
	}
	layers, err := pic.image.Layers()
	if err != nil {
		return bad(fmt.Errorf("read the list of layers: %w", err))
	}
	if len(layers) != len(cfg.RootFS.DiffIDs) {
		return bad(fmt.Errorf("the image has %d layers, but its configuration lists %d: not a filesystem image", len(layers), len(cfg.RootFS.DiffIDs)))
	}
	if cfg.OS != "" && cfg.OS != platform.OS || cfg.Architecture != "" && cfg.Architecture != platform.Architecture {
		return nil, nil, fault.Cannot(opOCI,
			fmt.Sprintf("%s is an image for %s/%s", pic.source, cfg.OS, cfg.Architecture),
			"use an image for "+platform.String())
	}
	return cfg, layers, nil
}

func verifyMeta(pic picture) error {
	id, err := pic.image.ConfigName()
	if err == nil && id == pic.digest {
		return nil // a docker tar: the digest was computed from the configuration
	}
	raw, err := pic.image.RawManifest()
	if err := sameDigest(raw, err, pic.digest); err != nil {
		return err
	}
	m, err := pic.image.Manifest()
	if err != nil {
		return fault.Newf(fault.Invalid, opOCI, pic.source, "read the manifest: %w", err)
	}
	if m.Config.Size > maxMeta {
		return fault.Newf(fault.TooLarge, opOCI, pic.source, "the configuration of %d bytes exceeds the limit", m.Config.Size)
	}
	raw, err = pic.image.RawConfigFile()
	return sameDigest(raw, err, m.Config.Digest)
}

// applyLayer unpacks one layer and verifies its digest.
func applyLayer(ctx context.Context, x *extractor, l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return archiveError("", fmt.Errorf("open the layer: %w", err))
	}
	defer r.Close()
	sum := sha256.New()
	if err := x.layer(ctx, io.TeeReader(r, sum)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return fault.Newf(fault.Invalid, opOCI, want.String(), "the layer has the digest sha256:%s", got)
	}
	return nil
}
