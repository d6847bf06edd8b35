package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"glasshouse/fault"
	"glasshouse/jail/nix"
)

const opNix = "rootfs.nix"

// Profiles are the profiles of the flake.
var Profiles = []string{"base", "python", "node", "build"}

// nix returns the tree of a profile of the flake, and builds it if it is missing. The tree is a
// copy, so that garbage collection in the Nix store does not affect jails.
func (p *Provider) nix(ctx context.Context, profile string) (Layer, error) {
	if !slices.Contains(Profiles, profile) {
		return Layer{}, fault.Fieldf(opNix, "rootfs.nix", "%q is not one of %s", profile, strings.Join(Profiles, ", "))
	}
	key, err := nixKey(profile)
	if err != nil {
		return Layer{}, err
	}
	digest, err := p.once(ctx, key, func() (string, error) {
		return p.build(ctx, func(tree, scratch string) (Image, error) {
			return p.nixBuild(ctx, profile, key, tree, scratch)
		})
	})
	if err != nil {
		return Layer{}, err
	}
	return p.layer(digest)
}

// nixKey returns the key of a profile. It depends on the content of the flake.
func nixKey(profile string) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(nix.Flake, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(nix.Flake, name)
		fmt.Fprintf(sum, "%s %d\n%s", name, len(b), b)
		return err
	})
	return "nix:" + profile + ":" + hex.EncodeToString(sum.Sum(nil)), err
}

func (p *Provider) nixBuild(ctx context.Context, profile, key, tree, scratch string) (Image, error) {
	tool, err := exec.LookPath("nix")
	if err != nil {
		return Image{}, fault.Cannot(opNix, "nix, which builds the flake's profiles, is not installed", "install nix, see https://nixos.org/download, or use rootfs.debian")
	}
	flake := filepath.Join(scratch, "flake")
	if err := os.CopyFS(flake, nix.Flake); err != nil {
		return Image{}, fmt.Errorf("write flake: %w", err)
	}
	p.log.Info("building a root filesystem with nix, which can take minutes", "profile", profile)
	out, err := p.nixOutput(ctx, tool, flake, profile, filepath.Join(scratch, "result"))
	if err != nil {
		return Image{}, err
	}
	img, err := p.copyTree(ctx, out, tree)
	if err != nil {
		return Image{}, fmt.Errorf("copy %s out of the Nix store: %w", out, err)
	}
	img.Sources, img.Keys = []string{"nix:" + profile}, []string{key}
	return img, nil
}

// nixOutput builds a profile and returns its path in the store. The result link is a garbage
// collection root: it retains the path until it has been copied.
func (p *Provider) nixOutput(ctx context.Context, tool, flake, profile, link string) (string, error) {
	cmd := exec.CommandContext(ctx, tool, "--extra-experimental-features", "nix-command flakes",
		"build", "--out-link", link, "path:"+flake+"#rootfs-"+profile)
	var stderr tail
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", nixError(profile, &commandError{name: "nix build", err: err, output: stderr.String()})
	}
	out, err := filepath.EvalSymlinks(link)
	if err != nil {
		return "", fmt.Errorf("resolve the result link of nix: %w", err)
	}
	return out, nil
}

func nixError(profile string, err *commandError) error {
	e := &fault.Error{Op: opNix, On: profile, Err: err}
	if containsAny(err.output, "unable to download", "Couldn't resolve host", "Could not resolve host", "cannot fetch", "Connection refused") {
		e.Kind, e.Remedy = fault.Unavailable, "check the network: the flake's nixpkgs comes from github.com, packages from cache.nixos.org"
	}
	return e
}

// copyTree copies a tree of the Nix store, in which all files are read-only and owned by root. In
// the copy, files are writable by their owner, and the user agent owns its home.
func (p *Provider) copyTree(ctx context.Context, from, tree string) (Image, error) {
	r, w := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		w.CloseWithError(tarTree(ctx, from, w, map[string]int{"home/agent": 1000}))
	})
	img, err := p.fromTar(ctx, r, tree)
	r.CloseWithError(err) // unblocks the writer if the reader has failed
	wg.Wait()
	return img, err
}
