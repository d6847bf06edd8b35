package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/observe/syscalls"

	"go.yaml.in/yaml/v3"
)

// Config is the configuration of a daemon. Defaults come from NewConfig. A file, the
// environment and flags override them, in that order.
type Config struct {
	Data     string   `yaml:"data"`     // data directory
	Listen   string   `yaml:"listen"`   // TCP address of the API; "" means only the Unix socket
	Hosts    []string `yaml:"hosts"`    // host names by which clients reach that address
	DB       string   `yaml:"db"`       // postgres://…; "" means SQLite in the data directory
	Insecure bool     `yaml:"insecure"` // allow a non-loopback TCP address without TLS

	StopJails bool `yaml:"stop_jails"` // stop all jails with the daemon, for hosts where they cannot outlive it

	TLS    TLS    `yaml:"tls"`
	Socket Socket `yaml:"socket"`
	Log    Log    `yaml:"log"`

	Backend string `yaml:"backend"` // default backend: oci, microvm, bwrap
	Runtime string `yaml:"runtime"` // default runtime of oci jails: runc, crun, runsc
	Tools   string `yaml:"tools"`   // directory of private tools installed by make up; default {data}/tools/bin

	Rootfs     Rootfs  `yaml:"rootfs"`
	Mounts     Allow   `yaml:"mounts"`     // host paths that jails may mount
	Workspaces Allow   `yaml:"workspaces"` // host paths that remote callers may use copy-on-write
	Pool       Pool    `yaml:"pool"`
	FirstID    uint32  `yaml:"first_id"` // first host uid and gid for jails
	Network    Network `yaml:"network"`

	Observe Observe `yaml:"observe"`
	Events  Events  `yaml:"events"`

	Snapshots Snapshots `yaml:"snapshots"`
	Approvals Approvals `yaml:"approvals"`
	Audit     Audit     `yaml:"audit"`
	Markets   []Market  `yaml:"markets"`
	Secrets   Secrets   `yaml:"secrets"`
	Gateway   Gateway   `yaml:"gateway"`
	RTFS      RTFS      `yaml:"rtfs"`

	Capabilities Capabilities `yaml:"capabilities"`

	MicroVM MicroVM `yaml:"microvm"`

	E2B E2B `yaml:"e2b"`

	Fleet Fleet `yaml:"fleet"`
}

// Capabilities configures how capabilities are executed.
type Capabilities struct {
	MicroVM string `yaml:"microvm"` // what isolates those that require a virtual machine instead of one: gvisor, or ""
}

// MicroVM configures virtual machines for jails.
type MicroVM struct {
	Emulate bool   `yaml:"emulate"` // without KVM, emulate the processor, which is many times slower
	Kernel  string `yaml:"kernel"`  // directory with boot/vmlinuz-* and lib/modules/*; default {data}/tools/kernel, then the host's
	QEMU    string `yaml:"qemu"`    // path of qemu-system-x86_64; default: looked up in PATH

	Firecracker string `yaml:"firecracker"` // path of firecracker, which then runs the machines instead of QEMU
}

// kernels returns the directories in which the kernel of virtual machines is looked up.
func (m MicroVM) kernels(data string) []string {
	if m.Kernel != "" {
		return []string{m.Kernel}
	}
	return []string{filepath.Join(data, "tools/kernel"), "/"}
}

// Snapshots configures caching and limits of snapshots.
type Snapshots struct {
	MemoryMB int64 `yaml:"memory_mb"` // MiB of memory for cached process images
	Copies   int   `yaml:"copies"`    // frozen spare copies per snapshot for branches and rewinds; 0 means none
	CopiesMB int64 `yaml:"copies_mb"` // MiB of memory for all spare copies
	DiskMB   int64 `yaml:"disk_mb"`   // MiB for all automatic snapshots; 0 means Share
	Share    int   `yaml:"share"`     // percentage of the file system for all automatic snapshots; 0 means no limit
}

// Audit configures the audit log.
type Audit struct {
	HeadFile string `yaml:"head_file"` // file outside the data directory to which signed heads are appended; "" means none
}

// TLS names the certificate of the TCP listener.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Socket configures the local listener.
type Socket struct {
	Path  string `yaml:"path"`  // default {data}/glasshouse.sock
	Group string `yaml:"group"` // members of this group have the operator role; "" means no group
}

// Log configures the daemon's log on standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text, json
}

// Rootfs configures the sources of root filesystems.
type Rootfs struct {
	Default jail.Rootfs `yaml:"default"` // default root filesystem
	Mirror  string      `yaml:"mirror"`  // Debian mirror; "" means the host's
	Allow   []string    `yaml:"allow"`   // host prefixes that rootfs.dir and rootfs.oci may name
}

// Allow lists allowed path prefixes on the host.
type Allow struct {
	Allow []string `yaml:"allow"`
}

// Pool configures the warm pool.
type Pool struct {
	Size int           `yaml:"size"` // spares per shape; 0 means none
	TTL  time.Duration `yaml:"ttl"`  // spares are removed after this time without demand
}

// Network configures the host side of jails with full network access.
type Network struct {
	Transit string `yaml:"transit"` // addresses between jails and host

	transit netip.Prefix // parsed by Validate
}

// NewConfig returns the defaults for root or for an unprivileged user. Unprivileged users get
// a backend and a root filesystem that need no installation.
func NewConfig(uid int, home string) Config {
	c := Config{
		Data: "/var/lib/glasshouse", Listen: "127.0.0.1:8082",
		Log:     Log{Level: "info", Format: "text"},
		Backend: "oci", Runtime: "runc",
		Rootfs:  Rootfs{Default: jail.Rootfs{Debian: "bookworm"}},
		Network: Network{Transit: "100.64.0.0/16"},
		Pool:    Pool{Size: 1, TTL: 10 * time.Minute},
		Observe: Observe{Syscalls: "all", Sample: 1, Files: "all", Network: "packets", OnOverload: "throttle", RingKB: 1024, Sources: sourceNames},
		Events:  Events{Fsync: "none", SegmentMB: 64, KeepMB: 8192, Share: 20},

		Snapshots: Snapshots{MemoryMB: 1024, CopiesMB: 1024, Share: 20},
		E2B:       E2B{VolumeMB: 4096},
		Gateway:   Gateway{KeepAge: 24 * time.Hour},
		Approvals: Approvals{Wait: 15 * time.Minute, Limit: 32, Keep: 90 * 24 * time.Hour},
	}
	if uid != 0 {
		c.Data = filepath.Join(home, ".local/share/glasshouse")
		c.Backend, c.Runtime = "bwrap", ""
		c.Rootfs.Default = jail.Rootfs{Host: true}
	}
	return c
}

// ReadFile reads settings from a YAML file. Unknown keys are errors, so that a misspelt limit
// is not ignored.
func (c *Config) ReadFile(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	// The sources of a root filesystem are alternatives: the file replaces the default and
	// does not extend it.
	def := c.Rootfs.Default
	c.Rootfs.Default = jail.Rootfs{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "config", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); err == nil { // a second document would be ignored
		return fault.Newf(fault.Invalid, "config", name, "the file has more than one YAML document: remove the line ---")
	} else if !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "config", name, err)
	}
	if c.Rootfs.Default == (jail.Rootfs{}) {
		c.Rootfs.Default = def
	}
	return nil
}

// ReadEnv reads settings from the environment. It returns a warning about a variable with an old
// name, or "".
func (c *Config) ReadEnv(getenv func(string) string) (warning string) {
	// GLASSHOUSE_ADDR is the address that clients use. It was also the address to listen on, and
	// is until the next release, unless it is a URL.
	if old := getenv("GLASSHOUSE_ADDR"); old != "" && !strings.Contains(old, "://") && getenv("GLASSHOUSE_LISTEN") == "" {
		c.Listen = old
		warning = "the daemon's listen address is now GLASSHOUSE_LISTEN; GLASSHOUSE_ADDR will be only for clients in the next release"
	}
	for name, field := range map[string]*string{
		"GLASSHOUSE_DATA": &c.Data, "GLASSHOUSE_LISTEN": &c.Listen, "GLASSHOUSE_DB": &c.DB, "GLASSHOUSE_E2B": &c.E2B.Listen,
		"GLASSHOUSE_FLEET_NAME": &c.Fleet.Name, "GLASSHOUSE_FLEET_ADDRESS": &c.Fleet.Address,
	} {
		if v := getenv(name); v != "" {
			*field = v
		}
	}
	c.Gateway.readEnv(getenv)
	return warning
}

// Validate sets derived settings. It rejects invalid settings and those that would
// unintentionally expose the daemon to the network.
func (c *Config) Validate() error {
	const op = "config"
	abs, err := filepath.Abs(c.Data)
	if err != nil {
		return fmt.Errorf("make the path of the data directory absolute: %w", err)
	}
	c.Data = abs
	if c.Socket.Path == "" {
		c.Socket.Path = filepath.Join(c.Data, "glasshouse.sock")
	}
	if c.Tools == "" {
		c.Tools = filepath.Join(c.Data, "tools/bin")
	}
	if c.Fleet.Keys != "" && c.Gateway.KeyFile == "" {
		c.Gateway.KeyFile = filepath.Join(FleetDir(c.Data), runsKey)
	}
	for i, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, "/:*?# \t") {
			return fault.Fieldf(op, "hosts", "%q is not a host name", h)
		}
		c.Hosts[i] = strings.ToLower(strings.TrimSuffix(h, "."))
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return fault.Fieldf(op, "tls", "cert and key must be set together")
	}
	if c.Pool.Size < 0 || c.Pool.Size > 64 {
		return fault.Fieldf(op, "pool.size", "%d is not between 0 and 64", c.Pool.Size)
	}
	for field, prefixes := range map[string][]string{"mounts.allow": c.Mounts.Allow, "workspaces.allow": c.Workspaces.Allow, "rootfs.allow": c.Rootfs.Allow} {
		for _, p := range prefixes {
			if !filepath.IsAbs(p) {
				return fault.Fieldf(op, field, "%q is not an absolute path", p)
			}
		}
	}
	if err := c.Observe.selection().Check(op, "observe.", syscalls.Known); err != nil {
		return err
	}
	if c.Observe.RingKB < 64 || c.Observe.RingKB > 1<<20 {
		return fault.Fieldf(op, "observe.ring_kb", "%d is not between 64 and %d", c.Observe.RingKB, 1<<20)
	}
	for _, s := range c.Observe.Sources {
		if !slices.Contains(sourceNames, s) {
			return fault.Fieldf(op, "observe.sources", "%q is not one of %v", s, sourceNames)
		}
	}
	if err := c.Events.policy().Check(op, "events."); err != nil {
		return err
	}
	for field, n := range map[string]int{"events.share": c.Events.Share, "snapshots.share": c.Snapshots.Share} {
		if n < 0 || n > 100 {
			return fault.Fieldf(op, field, "%d is not a percentage between 0 and 100", n)
		}
	}
	if vm := c.Capabilities.MicroVM; vm != "" && vm != string(manifest.GVisor) {
		return fault.Fieldf(op, "capabilities.microvm", "%q is not gvisor, or empty", vm)
	}
	if err := validMarkets(c.Markets); err != nil {
		return err
	}
	if err := c.Gateway.validate(os.Geteuid()); err != nil {
		return err
	}
	if err := c.Fleet.validate(c.Gateway); err != nil {
		return err
	}
	if err := c.Approvals.validate(); err != nil {
		return err
	}
	if err := c.E2B.validate(c.Insecure); err != nil {
		return err
	}
	if c.Snapshots.DiskMB < 0 {
		return fault.Fieldf(op, "snapshots.disk_mb", "%d is negative", c.Snapshots.DiskMB)
	}
	if c.Network.transit, err = netip.ParsePrefix(c.Network.Transit); err != nil || !c.Network.transit.Addr().Is4() {
		return fault.Fieldf(op, "network.transit", "%q is not an IPv4 prefix such as 100.64.0.0/16", c.Network.Transit)
	}
	if c.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fault.Fieldf(op, "listen", "%q is not host:port", c.Listen)
	}
	if !loopback(host) && c.TLS.Cert == "" && !c.Insecure {
		return &fault.Error{Op: op, Kind: fault.Invalid, Field: "listen",
			Err:    fmt.Errorf("%s is reachable from other machines, and without TLS, tokens would be sent unencrypted", c.Listen),
			Remedy: "listen on 127.0.0.1, set tls.cert and tls.key, or use --insecure"}
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
