package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// The tested versions; docs/how-to/agents.md lists the results. New versions appear monthly and
// change the meaning of configuration, so every version is pinned.
const (
	claudeVersion    = "2.1.197"
	claudeACPVersion = "0.49.0"
	codexVersion     = "0.169.0"
	codexACPVersion  = "0.16.0"
	geminiVersion    = "0.61.0"
	openCodeVersion  = "1.18.33"
	nodeVersion      = "24.21.0"
)

// A Layer is a directory of programs that is mounted read-only in the jails of an agent. The
// zero value is an empty layer, which is not mounted.
type Layer struct {
	Name     string
	Packages []Package
	Debian   []string // required Debian packages; the default root filesystem has them
	Links    []Link
}

// A Package is one version of an npm package. {arch} in a field is the host architecture.
type Package struct{ Name, Version string }

// A Link is a program of the layer and its path in the layer. Target may contain {arch} and
// {triple}.
type Link struct{ Program, Target string }

// Mount returns the mount point in the jail, or "" for the zero value.
func (l Layer) Mount() string {
	if l.Name == "" {
		return ""
	}
	return "/opt/agents/" + l.Name
}

// Path returns the prefix that the layer adds to PATH, including the colon.
func (l Layer) Path() string {
	if l.Name == "" {
		return ""
	}
	return l.Mount() + "/bin:"
}

// String lists the packages of the layer.
func (l Layer) String() string {
	var names []string
	for _, p := range l.Packages {
		names = append(names, forArch(p.Name)+"@"+forArch(p.Version))
	}
	if len(names) == 0 {
		return "the root filesystem"
	}
	return "npm " + strings.Join(names, " ")
}

// Digest returns a digest of the layer's content. Layers with the same digest can share a
// directory.
func (l Layer) Digest() string {
	data, err := json.Marshal(struct {
		Packages []Package
		Links    []Link
		Arch     string
		Recipe   int // version of Build
	}{l.Packages, l.Links, runtime.GOARCH, 1})
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// forArch replaces {arch} by the npm name of the host architecture and {triple} by its Rust
// target triple.
func forArch(s string) string {
	arch, triple := runtime.GOARCH, runtime.GOARCH
	switch runtime.GOARCH {
	case "amd64":
		arch, triple = "x64", "x86_64"
	case "arm64":
		triple = "aarch64"
	}
	return strings.NewReplacer("{arch}", arch, "{triple}", triple+"-unknown-linux-musl").Replace(s)
}

// Dir returns the directory of the layer under cache.
func (l Layer) Dir(cache string) string {
	return filepath.Join(cache, l.Name+"-"+l.Digest()[:16])
}

// Installed reports whether Build has installed the layer under cache.
func (l Layer) Installed(cache string) bool {
	_, err := os.Stat(l.Dir(cache))
	return err == nil
}

// Build returns the directory of the layer under cache. If it does not exist, Build installs
// the packages with npm, which downloads them from its registry. Scripts of packages are
// not run. Concurrent calls for the same layer are safe.
//
// It returns fault.Unsupported if npm is not installed, and fault.Unavailable if npm fails.
func (l Layer) Build(ctx context.Context, cache string) (dir string, err error) {
	if l.Name == "" {
		return "", fault.Fieldf("agent.Build", "layer", "the agent needs no layer")
	}
	dir = l.Dir(cache)
	if l.Installed(cache) {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fault.Cannot("agent.Build", "npm is not installed on this host; it is needed to install the agent", "install npm, or add the agent's program to the root filesystem")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("create the cache of layers: %w", err)
	}
	temp, err := os.MkdirTemp(cache, ".tmp-"+l.Name+"-")
	if err != nil {
		return "", fmt.Errorf("create the directory of the layer: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := l.install(ctx, npm, temp); err != nil {
		return "", err
	}
	if err := l.link(temp); err != nil {
		return "", err
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", fmt.Errorf("make the layer readable for the jail's users: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil {
		if l.Installed(cache) {
			return dir, nil // a concurrent Build has finished first
		}
		return "", fmt.Errorf("move the layer into the cache: %w", err)
	}
	return dir, nil
}

func (l Layer) install(ctx context.Context, npm, dir string) error {
	// A package.json prevents npm from using one in a parent directory.
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{\"private\": true}\n"), 0o644); err != nil {
		return fmt.Errorf("write the layer's package.json: %w", err)
	}
	args := []string{"install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--save-exact"}
	for _, p := range l.Packages {
		args = append(args, forArch(p.Name)+"@"+forArch(p.Version))
	}
	cmd := exec.CommandContext(ctx, npm, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return &fault.Error{
			Op: "agent.Build", On: l.Name, Kind: fault.Unavailable,
			Err:    fmt.Errorf("npm install: %w: %s", err, tail(string(out))),
			Remedy: "check the connection to the npm registry: npm ping",
		}
	}
	return nil
}

// link creates the links in bin. It returns fault.Unavailable if a program is missing, for
// example because it is created by a package script, which is not run.
func (l Layer) link(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return fmt.Errorf("create bin of the layer: %w", err)
	}
	for _, k := range l.Links {
		target := forArch(k.Target)
		info, err := os.Stat(filepath.Join(dir, target))
		if err != nil {
			return fault.Newf(fault.Unavailable, "agent.Build", l.Name, "the installed packages lack %s: %w", target, err)
		}
		if err := os.Chmod(filepath.Join(dir, target), info.Mode()|0o755); err != nil {
			return fmt.Errorf("make %s executable: %w", k.Program, err)
		}
		if err := os.Symlink(path.Join("..", target), filepath.Join(dir, "bin", k.Program)); err != nil {
			return fmt.Errorf("link %s: %w", k.Program, err)
		}
	}
	return nil
}

// tail returns the end of a program's output, which usually contains the error.
func tail(s string) string {
	const limit = 600
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = "…" + text.Suffix(s, limit)
	}
	return s
}
