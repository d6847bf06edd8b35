// Package rootfs finds and makes the read-only trees that jails stand on: a
// Debian bootstrap, an OCI image, a profile of the Nix flake, or a directory of
// the host as it is.
//
// What it makes it keeps under one directory, each tree under the digest of its
// content, and makes only once. A tree holds the ids it has inside a jail, root
// as 0, so the directory is closed to everybody but the daemon: a stranger's
// image may well hold a set-user-id program.
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

// Config says where trees are kept and what may become one.
type Config struct {
	Dir     string      // {DATA}/images, made if missing
	Default jail.Rootfs // what an empty request means; default: Debian bookworm

	// Allow lists the host directories under which a request may name a
	// directory, an OCI layout or an image tar. None means none may be named.
	Allow []string

	Mirror   string        // Debian mirror; default: the host's own if it runs that suite, else deb.debian.org
	MaxBytes int64         // of one unpacked image; default 16 GiB
	MaxFiles int64         // of one unpacked image; default 1,000,000
	Grace    time.Duration // how long Prune spares what was resolved last; default 10 minutes

	Keychain  authn.Keychain    // credentials of registries; default: those of docker login
	Transport http.RoundTripper // to registries; default: http.DefaultTransport
	Log       *slog.Logger      // default: discard
}

// A Layer is a tree to put under a jail's writable layer.
type Layer struct {
	Dir    string // of the host, not to be written; empty for the host's own tree, which the bwrap backend binds
	Digest string // "sha256:…" of the image or archive, "dir:…" for a host directory, "host"
	Source string // the requested name with the resolved digest
	Config ImageConfig
}

// ImageConfig is what an image says about running it. Only OCI images say it.
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
	keys map[string]string // what was asked for, to digest
	// +checklocks:mu
	flights map[string]*flight // what is being made, by key
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

// Resolve returns the layer r names, making it if it is not there yet, which can
// take a minute. Callers that ask for the same thing at once share the work.
//
// It returns fault.Invalid if r makes no sense or an image is damaged or
// hostile, fault.Denied if a host path is not allowed, fault.NotFound if there
// is no such image or directory, fault.TooLarge if an image is over the limits,
// fault.Unsupported if this host lacks the tool, and fault.Unavailable if a
// registry or mirror does not answer.
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

// checkOne refuses a request that names two trees.
func checkOne(r jail.Rootfs) error {
	n := 0
	for _, set := range []bool{r.Debian != "", r.Dir != "", r.OCI != "", r.Nix != "", r.Host} {
		if set {
			n++
		}
	}
	if n > 1 {
		return fault.Fieldf("rootfs.Resolve", "rootfs", "set one of debian, dir, oci, nix and host, not %d", n)
	}
	return nil
}

// A flight is one tree being made, for everybody who waits for it.
type flight struct {
	done   chan struct{}
	digest string // valid after done
	err    error  // valid after done
}

// once returns the digest known for key, or that of what build makes. Callers
// with the same key wait for one build and share its outcome, except that a
// caller who gave up does not make the others give up.
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
