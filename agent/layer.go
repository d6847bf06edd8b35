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

// The versions that were tried, with all that is measured in docs/agents.md. Agents
// change monthly, and what their configuration means changes with them.
const (
	claudeVersion    = "2.1.197"
	claudeACPVersion = "0.49.0"
	codexVersion     = "0.169.0"
	codexACPVersion  = "0.16.0"
	geminiVersion    = "0.61.0"
	openCodeVersion  = "1.18.33"
	nodeVersion      = "24.21.0"
)

// A Layer is a directory of programs that is mounted, read-only, in the jails of an
// agent. Its zero value is no layer.
type Layer struct {
	Name     string
	Packages []Package
	Debian   []string // that the root filesystem must have; the default one has them
	Links    []Link
}

// A Package is one of npm, in one version. {arch} in either is this machine's.
type Package struct{ Name, Version string }

// A Link is the name under which a program of the layer is found. Its target may have
// {arch} and {triple} in it.
type Link struct{ Program, Target string }

// Mount is where the directory is mounted in the jail.
func (l Layer) Mount() string {
	if l.Name == "" {
		return ""
	}
	return "/opt/agents/" + l.Name
}

// Path is what the layer adds to the front of PATH, with a colon behind it.
func (l Layer) Path() string {
	if l.Name == "" {
		return ""
	}
	return l.Mount() + "/bin:"
}

// String names the packages.
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

// Digest names what is in the layer: a directory that was built for one digest serves
// all layers with it.
func (l Layer) Digest() string {
	data, err := json.Marshal(struct {
		Packages []Package
		Links    []Link
		Arch     string
		Recipe   int // of Build
	}{l.Packages, l.Links, runtime.GOARCH, 1})
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// forArch puts this machine's architecture into a name: {arch} as npm packages have
// it, {triple} as programs in Rust do.
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

// Dir is where Build keeps the layer under cache.
func (l Layer) Dir(cache string) string {
	return filepath.Join(cache, l.Name+"-"+l.Digest()[:16])
}

// Build returns a directory with the layer, under cache, made if it is not there: by
// npm, which must be installed on this host, and takes from its registry what has been
// published under these versions. No script of a package is run. Two may build at the
// same time.
//
// It returns fault.Unsupported where there is no npm, and fault.Unavailable if npm
// fails.
func (l Layer) Build(ctx context.Context, cache string) (dir string, err error) {
	if l.Name == "" {
		return "", fault.Fieldf("agent.Build", "layer", "the agent needs none")
	}
	dir = l.Dir(cache)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fault.Cannot("agent.Build", "the agent is installed by npm, which this host does not have", "install npm, or put the agent's program into the root filesystem")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of layers: %w", err)
	}
	made, err := os.MkdirTemp(cache, ".tmp-"+l.Name+"-")
	if err != nil {
		return "", fmt.Errorf("make the layer's directory: %w", err)
	}
	defer os.RemoveAll(made)
	if err := l.install(ctx, npm, made); err != nil {
		return "", err
	}
	if err := l.link(made); err != nil {
		return "", err
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return "", fmt.Errorf("open the layer to the jail's users: %w", err)
	}
	if err := os.Rename(made, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return dir, nil // somebody else was faster
		}
		return "", fmt.Errorf("keep the layer: %w", err)
	}
	return dir, nil
}

func (l Layer) install(ctx context.Context, npm, dir string) error {
	// What is above the directory on this host is not part of it.
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
			Remedy: "see whether npm reaches its registry: npm ping",
		}
	}
	return nil
}

// link makes the programs found under bin, and fails if one is not there: a package
// whose script was not run may leave nothing but a promise.
func (l Layer) link(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return fmt.Errorf("make the layer's bin: %w", err)
	}
	for _, k := range l.Links {
		target := forArch(k.Target)
		info, err := os.Stat(filepath.Join(dir, target))
		if err != nil {
			return fault.Newf(fault.Unavailable, "agent.Build", l.Name, "what npm installed has no %s: %w", target, err)
		}
		if err := os.Chmod(filepath.Join(dir, target), info.Mode()|0o755); err != nil {
			return fmt.Errorf("make %s a program: %w", k.Program, err)
		}
		if err := os.Symlink(path.Join("..", target), filepath.Join(dir, "bin", k.Program)); err != nil {
			return fmt.Errorf("link %s: %w", k.Program, err)
		}
	}
	return nil
}

// tail is the end of a program's output, where it says what went wrong.
func tail(s string) string {
	const most = 600
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = "…" + text.Suffix(s, most)
	}
	return s
}
