package jailed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"glasshouse/capability/clients"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

// runsc is gVisor's OCI runtime.
const runsc = "runsc"

// microVM is the backend of virtual machines.
const microVM = "microvm"

// suite is the Debian release of the rootfs "debian".
const suite = "bookworm"

// dataDir is the mount point of the volume in a sandbox.
const dataDir = "/data"

// layOut creates the directories of the engine and writes the client files that sandboxes
// mount. It resolves symbolic links in Config.Dir, because mounts use real paths.
func (e *Engine) layOut() (err error) {
	if err := os.MkdirAll(e.cfg.Dir, 0o711); err != nil {
		return err
	}
	if e.cfg.Dir, err = filepath.EvalSymlinks(e.cfg.Dir); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(e.clients(), 0o755), os.MkdirAll(e.volumeDir(), 0o700)); err != nil {
		return err
	}
	return fs.WalkDir(clients.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := clients.Files.ReadFile(name)
		if err != nil {
			return err
		}
		return atomicfile.Update(filepath.Join(e.clients(), filepath.Base(name)), text, 0o644)
	})
}

func (e *Engine) clients() string   { return filepath.Join(e.cfg.Dir, "clients") }
func (e *Engine) volumeDir() string { return filepath.Join(e.cfg.Dir, "volumes") }

// specOf returns the jail.Spec of a capability, without its volume and its policy.
func (e *Engine) specOf(c *engine.Installed) (jail.Spec, error) {
	r := c.Runtime
	s := jail.Spec{
		Labels:        map[string]string{label: c.ID, label + ".version": c.Version, label + ".digest": c.Digest},
		Limits:        jail.Limits{CPUShares: int64(c.Resources.CPUShares), MemoryMB: int64(c.Resources.MemoryMB), DiskMB: int64(max(quota(c), disk.MinMB)), MaxPIDs: int64(c.Resources.PIDs)},
		Network:       networkOf(c),
		Env:           environment(c),
		Cwd:           r.Workdir,
		Mounts:        []jail.Mount{{Source: e.clients(), Target: clients.Dir}},
		GrantedMounts: []string{e.clients()},
	}
	s.SecretFiles = len(c.SecretFiles()) > 0
	demanded := e.isolationOf(c)
	s.Backend, s.Runtime = demanded.backend, demanded.runtime
	if len(r.Entrypoint) == 0 {
		return s, fault.Fieldf("engine.Prepare", ":runtime :entrypoint", "must not be empty")
	}
	var err error
	s.Rootfs, err = rootfsOf(c)
	if err != nil {
		return s, err
	}
	for i, m := range c.Filesystem.Mounts {
		source, err := within(c.Dir, m.Host)
		if err != nil {
			return s, fault.Fieldf("engine.Prepare", fmt.Sprintf(":filesystem :mounts %d :host", i), "%w", err)
		}
		s.Mounts = append(s.Mounts, jail.Mount{Source: source, Target: m.Guest, Write: m.Write})
		s.GrantedMounts = append(s.GrantedMounts, source)
	}
	return s, jail.Plan{Mounts: s.Mounts}.CheckTargets()
}

// quota returns the disk quota of a capability in MiB.
func quota(c *engine.Installed) int {
	if c.Filesystem.QuotaMB > 0 {
		return c.Filesystem.QuotaMB
	}
	return defaultQuotaMB
}

// networkOf returns the network mode of a capability. NoEgress takes precedence over the
// mode in the manifest.
func networkOf(c *engine.Installed) jail.Network {
	if c.NoEgress || c.Network.Mode != "proxy" {
		return jail.Isolated
	}
	return jail.Proxied
}

func rootfsOf(c *engine.Installed) (jail.Rootfs, error) {
	r := c.Runtime
	switch {
	case r.Image != "":
		return jail.Rootfs{OCI: r.Image}, nil
	case r.Rootfs == "":
		return jail.Rootfs{}, nil // the daemon's default
	case r.Rootfs == "debian":
		return jail.Rootfs{Debian: suite}, nil
	}
	dir, err := within(c.Dir, r.Rootfs)
	if err != nil {
		return jail.Rootfs{}, fault.Fieldf("engine.Prepare", ":runtime :rootfs", "%w", err)
	}
	return jail.Rootfs{Dir: dir}, nil
}

// environment returns the environment variables of a capability's program.
func environment(c *engine.Installed) map[string]string {
	env := map[string]string{"GLASSHOUSE_CALL_SOCKET": clients.Socket, "PYTHONPATH": clients.Dir, "PYTHONDONTWRITEBYTECODE": "1"}
	if c.Runtime.Port != 0 {
		env["PORT"] = strconv.Itoa(c.Runtime.Port)
	}
	if c.Filesystem.Mode == manifest.Session || c.Filesystem.Mode == manifest.Persistent {
		env["GLASSHOUSE_DATA"] = dataDir
	}
	maps.Copy(env, c.Runtime.Env)
	if own := c.Runtime.Env["PYTHONPATH"]; own != "" {
		env["PYTHONPATH"] = own + ":" + clients.Dir
	}
	return env
}

// within returns the real path of a file below dir. It returns an error if the path leads
// out of dir through .. or a symbolic link.
func within(dir, name string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.Clean(name), os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a FIFO would block
	if err != nil {
		return "", fmt.Errorf("%s is not in the capability's directory: %w", name, err)
	}
	defer f.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// checkLimits returns an error if the backend of a jail cannot enforce limits on memory, cpu
// or disk.
func (e *Engine) checkLimits(ctx context.Context, c *engine.Installed, j jail.Jail) error {
	e.mu.Lock()
	lacks := e.lacks[j.Spec.Backend+"/"+j.Spec.Runtime]
	known := e.lacks != nil
	e.mu.Unlock()
	if !known {
		all := map[string]map[string]string{}
		for _, b := range e.cfg.Jails.Backends(ctx) {
			all[b.Name+"/"+b.Runtime] = b.Lacks
		}
		e.mu.Lock()
		e.lacks = all
		lacks = all[j.Spec.Backend+"/"+j.Spec.Runtime]
		e.mu.Unlock()
	}
	for _, what := range slices.Sorted(maps.Keys(lacks)) {
		if what != "memory" && what != "cpu" && what != "disk" {
			continue
		}
		return fault.Cannot("engine.Call", fmt.Sprintf("cannot enforce the %s limit on this host: %s", what, lacks[what]),
			"run the daemon as root, with the memory and cpu cgroup controllers enabled")
	}
	return nil
}
