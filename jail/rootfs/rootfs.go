// Package rootfs resolves and creates the read-only root filesystems (trees) of jails: a Debian
// bootstrap, an OCI image, a profile of the Nix flake, or an unmodified directory of the host.
//
// It stores each created tree once, in one directory, under the digest of its content. Files in
// a tree have the same owners as inside a jail, such as 0 for root. Therefore only the daemon can
// access the directory: an untrusted image may contain set-user-id programs.
package rootfs

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/fault"
	"glasshouse/jail"
)

// Config configures a Provider.
type Config struct {
	Dir     string      // {DATA}/images; Open creates it
	Default jail.Rootfs // the tree of an empty request; default: Debian bookworm

	// Allow lists the host directories in which a request may name a directory, an OCI layout
	// or an image tar. If it is empty, requests cannot name host paths.
	Allow []string

	Mirror   string        // Debian mirror; default: the host's own if it runs that suite, otherwise deb.debian.org
	MaxBytes int64         // limit for one unpacked image; default 16 GiB
	MaxFiles int64         // limit for one unpacked image; default 1,000,000
	Grace    time.Duration // Prune keeps images that were resolved within this time; default 10 minutes

	Keychain  authn.Keychain    // credentials of registries; default: those of docker login
	Transport http.RoundTripper // to registries; default: http.DefaultTransport
	Log       *slog.Logger      // default: discard
}

// A Layer is a tree that is mounted below a jail's writable layer.
type Layer struct {
	Dir    string // directory on the host, read-only; empty for the host's own tree, which the bwrap backend binds
	Digest string // "sha256:…" of the image or archive, "dir:…" for a host directory, "host"
	Source string // the requested name with the resolved digest
	Config ImageConfig
}

// ImageConfig is the runtime configuration in an image. Only OCI images have one.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	User       string   `json:"user,omitempty"`
}

// A Provider resolves requests to layers. It is safe for concurrent use; Open
// must be called first. Two processes may share a directory.
type Provider struct {
	cfg Config
	log *slog.Logger

	mu sync.Mutex
	// +checklocks:mu
	images map[string]Image // by digest
	// +checklocks:mu
	keys map[string]string // request → digest
	// +checklocks:mu
	flights map[string]*flight // builds in progress, by key
}

// New returns a provider with cfg's defaults filled in.
func New(cfg Config) *Provider {
	if cfg.Default == (jail.Rootfs{}) {
		cfg.Default = jail.Rootfs{Debian: Suites[0]}
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 16 << 30
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = 1_000_000
	}
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Minute
	}
	if cfg.Keychain == nil {
		cfg.Keychain = authn.DefaultKeychain
	}
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{cfg: cfg, log: cfg.Log, flights: map[string]*flight{}}
}

// Resolve returns the layer that r names. It creates a missing layer, which can take a minute.
// Concurrent calls with the same request share one build.
//
// It returns fault.Invalid if r is invalid or an image is damaged or hostile, fault.Denied if a
// host path is not allowed, fault.NotFound if the image or directory does not exist,
// fault.TooLarge if an image exceeds the limits, fault.Unsupported if a tool is missing on this
// host, and fault.Unavailable if a registry or mirror does not respond.
func (p *Provider) Resolve(ctx context.Context, r jail.Rootfs) (Layer, error) {
	if r == (jail.Rootfs{User: r.User}) {
		of := r.User
		r = p.cfg.Default
		r.User = of
	}
	if err := checkOne(r); err != nil {
		return Layer{}, err
	}
	switch {
	case r.User != "":
		return p.user(ctx, r)
	case r.Host:
		return Layer{Digest: "host", Source: "host"}, nil
	case r.Dir != "":
		return p.dir(r.Dir)
	case r.OCI != "":
		return p.oci(ctx, r.OCI)
	case r.Nix != "":
		return p.nix(ctx, r.Nix)
	default:
		return p.debian(ctx, r.Debian)
	}
}

// checkOne returns an error if a request names more than one tree.
func checkOne(r jail.Rootfs) error {
	n := 0
	for _, set := range []bool{r.Debian != "", r.Dir != "", r.OCI != "", r.Nix != "", r.Host} {
		if set {
			n++
		}
	}
	if n > 1 {
		return fault.Fieldf("rootfs.Resolve", "rootfs", "only one of debian, dir, oci, nix and host can be set, not %d", n)
	}
	return nil
}

// A flight is a build in progress that several callers may wait for.
type flight struct {
	done   chan struct{}
	digest string // valid after done
	err    error  // valid after done
}

// once returns the digest for key. If it is unknown, once calls build. Concurrent callers with the
// same key share one build and its result. If the caller that runs the build is cancelled, another
// caller starts a new build.
func (p *Provider) once(ctx context.Context, key string, build func() (string, error)) (string, error) {
	for {
		p.mu.Lock()
		if digest, ok := p.keys[key]; ok {
			p.mu.Unlock()
			return digest, nil
		}
		f, busy := p.flights[key]
		if !busy {
			f = &flight{done: make(chan struct{})}
			p.flights[key] = f
		}
		p.mu.Unlock()

		if !busy {
			p.fly(key, f, build)
			return f.digest, f.err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if !errors.Is(f.err, context.Canceled) && !errors.Is(f.err, context.DeadlineExceeded) {
			return f.digest, f.err
		}
	}
}

func (p *Provider) fly(key string, f *flight, build func() (string, error)) {
	f.err = errors.New("the build panicked")
	defer func() {
		p.mu.Lock()
		delete(p.flights, key)
		p.mu.Unlock()
		close(f.done)
	}()
	f.digest, f.err = build()
}
