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
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/observe/syscalls"

	"go.yaml.in/yaml/v3"
)

// Config is everything a daemon can be told. Defaults come from NewConfig; a
// file, the environment and flags change them, in that order.
type Config struct {
	Data     string `yaml:"data"`     // everything the daemon keeps
	Listen   string `yaml:"listen"`   // TCP address of the API; "" means the unix socket alone
	DB       string `yaml:"db"`       // postgres://…; "" means SQLite in the data directory
	Insecure bool   `yaml:"insecure"` // allow a TCP address that is not loopback without TLS

	StopJails bool `yaml:"stop_jails"` // with the daemon, where jails could not outlive it

	TLS    TLS    `yaml:"tls"`
	Socket Socket `yaml:"socket"`
	Log    Log    `yaml:"log"`

	Backend string `yaml:"backend"` // of a jail that names none: oci, bwrap
	Runtime string `yaml:"runtime"` // of an oci jail that names none: runc, crun, runsc
	Tools   string `yaml:"tools"`   // where make up puts private tools; default {data}/tools/bin

	Rootfs     Rootfs  `yaml:"rootfs"`
	Mounts     Allow   `yaml:"mounts"`     // what of the host jails may mount
	Workspaces Allow   `yaml:"workspaces"` // what of the host remote callers may use copy-on-write
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

	E2B E2B `yaml:"e2b"`
}

// Snapshots says what of snapshots is kept at hand.
type Snapshots struct {
	MemoryMB int64 `yaml:"memory_mb"` // MiB of memory, for the images of processes that are likely to be needed soon
	Copies   int   `yaml:"copies"`    // frozen copies of a snapshot that wait for a branch or a rewind; 0 means none
	CopiesMB int64 `yaml:"copies_mb"` // MiB of memory, for all such copies together
	DiskMB   int64 `yaml:"disk_mb"`   // MiB for all snapshots that are taken unasked; 0 means no limit
}

// Audit is about the audit log.
type Audit struct {
	HeadFile string `yaml:"head_file"` // signed heads are appended to it; outside of the data directory; "" means none
}

// TLS names the certificate of the TCP listener.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Socket is the local listener.
type Socket struct {
	Path  string `yaml:"path"`  // default {data}/glasshouse.sock
	Group string `yaml:"group"` // members of this group may use it as operators; "" means nobody
}

// Log says what the daemon writes to standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text, json
}

// Rootfs says where root filesystems come from.
type Rootfs struct {
	Default jail.Rootfs `yaml:"default"` // of a jail that names none
	Mirror  string      `yaml:"mirror"`  // of Debian; "" means what the host uses
	Allow   []string    `yaml:"allow"`   // host prefixes that rootfs.dir and rootfs.oci may name
}

// Allow lists path prefixes of the host.
type Allow struct {
	Allow []string `yaml:"allow"`
}

// Pool says how many jails are made ahead of need.
type Pool struct {
	Size int           `yaml:"size"` // spares per shape; 0 means none
	TTL  time.Duration `yaml:"ttl"`  // without demand, spares go after this
}

// Network is the host's side of jails with full network.
type Network struct {
	Transit string `yaml:"transit"` // addresses between jails and host

	transit netip.Prefix // Transit, once validated
}

// NewConfig returns the defaults for root, or for a user without root: those
// get the backend and the root filesystem that need nothing installed for them.
func NewConfig(uid int, home string) Config {
	c := Config{
		Data: "/var/lib/glasshouse", Listen: "127.0.0.1:8082",
		Log:     Log{Level: "info", Format: "text"},
		Backend: "oci", Runtime: "runc",
		Rootfs:  Rootfs{Default: jail.Rootfs{Debian: "bookworm"}},
		Network: Network{Transit: "100.64.0.0/16"},
		Pool:    Pool{Size: 1, TTL: 10 * time.Minute},
		Observe: Observe{Syscalls: "all", Sample: 1, Files: "all", Network: "packets", OnOverload: "throttle", RingKB: 1024, Sources: sourceNames},
		Events:  Events{Fsync: "none", SegmentMB: 64, KeepMB: 8192},

		Snapshots: Snapshots{MemoryMB: 1024, CopiesMB: 1024},
		E2B:       E2B{VolumeMB: 4096},
		Approvals: Approvals{Wait: 15 * time.Minute, Limit: 32, Keep: 90 * 24 * time.Hour},
	}
	if uid != 0 {
		c.Data = filepath.Join(home, ".local/share/glasshouse")
		c.Backend, c.Runtime = "bwrap", ""
		c.Rootfs.Default = jail.Rootfs{Host: true}
	}
	return c
}

// ReadFile sets what the YAML file at name says. Unknown words are errors: a
// misspelt limit must not be a missing one.
func (c *Config) ReadFile(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	// A root filesystem is one of several words: what the file says replaces
	// the default and is not added to it.
	def := c.Rootfs.Default
	c.Rootfs.Default = jail.Rootfs{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "config", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); err == nil { // it would be ignored
		return fault.Newf(fault.Invalid, "config", name, "the file has more than one document: remove the line ---")
	} else if !errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "config", name, err)
	}
	if c.Rootfs.Default == (jail.Rootfs{}) {
		c.Rootfs.Default = def
	}
	return nil
}

// ReadEnv sets what the environment says.
func (c *Config) ReadEnv(getenv func(string) string) {
	for name, field := range map[string]*string{
		"GLASSHOUSE_DATA": &c.Data, "GLASSHOUSE_ADDR": &c.Listen, "GLASSHOUSE_DB": &c.DB, "GLASSHOUSE_E2B": &c.E2B.Listen,
	} {
		if v := getenv(name); v != "" {
			*field = v
		}
	}
	c.Gateway.readEnv(getenv)
}

// Validate fills in what follows from the rest, and refuses what cannot work
// or would open the daemon to the network unawares.
func (c *Config) Validate() error {
	const op = "config"
	abs, err := filepath.Abs(c.Data)
	if err != nil {
		return err
	}
	c.Data = abs
	if c.Socket.Path == "" {
		c.Socket.Path = filepath.Join(c.Data, "glasshouse.sock")
	}
	if c.Tools == "" {
		c.Tools = filepath.Join(c.Data, "tools/bin")
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return fault.Fieldf(op, "tls", "a certificate and its key come together")
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
	if err := validMarkets(c.Markets); err != nil {
		return err
	}
	if err := c.Gateway.validate(os.Geteuid()); err != nil {
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
		return fault.Fieldf(op, "network.transit", "%q is not a range of IPv4 addresses such as 100.64.0.0/16", c.Network.Transit)
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
			Err:    fmt.Errorf("%s can be reached from other machines, and without TLS tokens would cross the network in the clear", c.Listen),
			Remedy: "listen on 127.0.0.1, give tls.cert and tls.key, or say --insecure"}
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
