package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/api"
	"glasshouse/e2b"
	"glasshouse/e2b/authority"
	"glasshouse/e2b/envd"
	"glasshouse/e2b/template"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/govern"
	"glasshouse/host/disk"
	"glasshouse/jail/rootfs"
	"glasshouse/policy/egress"
)

// E2B configures the listener for clients of the E2B protocol.
type E2B struct {
	Listen   string        `yaml:"listen"` // TCP address; "" disables the listener
	Domain   string        `yaml:"domain"` // parent domain of the host names of sandbox ports, with the port unless it is 443; "" means localhost and the port
	TLS      E2BTLS        `yaml:"tls"`
	Backend  string        `yaml:"backend"`   // backend of new sandboxes and template builds: oci or microvm; "" means oci
	VolumeMB int64         `yaml:"volume_mb"` // MiB of a new volume; it uses only as much disk as its files
	Idle     time.Duration `yaml:"idle"`      // idle time before auto-resumable sandboxes are paused; 0 disables
	Reach    *[]string     `yaml:"reach"`     // hosts that sandboxes may reach; nil means the Internet
	Builds   Builds        `yaml:"builds"`    // template builds
}

// E2BTLS configures TLS of the listener.
type E2BTLS struct {
	Auto bool   `yaml:"auto"` // issue certificates from a generated authority, unless Cert is set
	Cert string `yaml:"cert"` // certificate file for the domain and its subdomains
	Key  string `yaml:"key"`
}

func (t E2BTLS) on() bool { return t.Auto || t.Cert != "" }

// Builds configures template builds.
type Builds struct {
	Reach    *[]string `yaml:"reach"`     // hosts that builds may reach; nil means the Internet
	UploadMB int64     `yaml:"upload_mb"` // maximum MiB of the files of one COPY; 0 means 1024
	AtOnce   int       `yaml:"at_once"`   // maximum number of concurrent builds; 0 means 2
}

func (b Builds) validate() error {
	switch {
	case b.UploadMB < 0:
		return fault.Fieldf("config", "e2b.builds.upload_mb", "%d is negative", b.UploadMB)
	case b.AtOnce < 0:
		return fault.Fieldf("config", "e2b.builds.at_once", "%d is negative", b.AtOnce)
	}
	return validReach("e2b.builds.reach", b.Reach)
}

// validReach checks the list of hosts in a field; nil is the Internet.
func validReach(field string, hosts *[]string) error {
	if hosts == nil {
		return nil
	}
	var r egress.Rules
	for _, host := range *hosts {
		r.Allow = append(r.Allow, egress.Rule{Host: host})
	}
	if _, err := r.Explain(egress.Request{Host: "example.com"}); err != nil {
		return fault.Fieldf("config", field, "%v", err)
	}
	return nil
}

// reachOf returns the hosts of a list; nil is the Internet, and an empty list is not.
func reachOf(hosts *[]string) []string {
	if hosts == nil {
		return nil
	}
	return append([]string{}, *hosts...)
}

func (c E2B) validate(insecure bool) error {
	if err := c.Builds.validate(); err != nil {
		return err
	}
	if err := validReach("e2b.reach", c.Reach); err != nil {
		return err
	}
	for _, host := range reachOf(c.Reach) {
		if p, err := netip.ParsePrefix(host); err == nil && p.Bits() == 0 { // includes private networks
			return fault.Fieldf("config", "e2b.reach", "%s is every address, also of private networks: remove e2b.reach to allow the Internet", host)
		}
	}
	if !slices.Contains([]string{"", "oci", "microvm"}, c.Backend) {
		return fault.Fieldf("config", "e2b.backend", "%q is neither oci nor microvm", c.Backend)
	}
	if c.Idle < 0 {
		return fault.Fieldf("config", "e2b.idle", "%s is negative", c.Idle)
	}
	if c.Listen == "" {
		return nil
	}
	if c.VolumeMB < disk.MinMB {
		return fault.Fieldf("config", "e2b.volume_mb", "%d MiB is below the minimum of %d", c.VolumeMB, disk.MinMB)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fault.Fieldf("config", "e2b.listen", "%q is not host:port", c.Listen)
	}
	switch {
	case (c.TLS.Cert == "") != (c.TLS.Key == ""):
		return fault.Fieldf("config", "e2b.tls", "cert and key must be set together")
	case c.TLS.Cert != "" && c.Domain == "":
		return fault.Fieldf("config", "e2b.domain", "must be set if e2b.tls.cert is set")
	}
	if !loopback(host) && !insecure && !c.TLS.on() {
		return &fault.Error{Op: "config", Kind: fault.Invalid, Field: "e2b.listen",
			Err:    fmt.Errorf("%s is reachable from other machines, and keys would be sent unencrypted", c.Listen),
			Remedy: "set e2b.tls, listen on 127.0.0.1 behind a TLS proxy, or use --insecure"}
	}
	return nil
}

// pull returns a function that pulls the images of templates from their registries.
func pull(images *rootfs.Provider) func(context.Context, string, authn.Authenticator) (string, error) {
	return func(ctx context.Context, image string, login authn.Authenticator) (string, error) {
		layer, err := images.Pull(ctx, image, login)
		return layer.Digest, err
	}
}

// openE2B opens the listener for E2B clients if it is configured. The jails and snapshots must
// be open.
func (d *Daemon) openE2B(ctx context.Context) error {
	c := d.Config.E2B
	log := d.log.With("part", "e2b")
	volumes := e2b.NewVolumes(e2b.VolumesConfig{
		Store: d.store.Volumes(), Dir: filepath.Join(d.Config.Data, "volumes"), Templates: filepath.Join(d.Config.Data, "templates"),
		SizeMB: c.VolumeMB, Log: log,
	})
	d.onClose(volumes.Close)
	if err := volumes.Start(ctx); err != nil {
		return fmt.Errorf("open the volumes of E2B: %w", err)
	}
	templates := template.New(template.Config{
		Store: d.store.Templates(), Dir: filepath.Join(d.Config.Data, "e2b"), Jails: d.jails, Snapshots: d.snapshots, Backend: cmp.Or(c.Backend, "oci"),
		Resolve: layers{d.images}.Resolve, Pull: pull(d.images), Govern: governSandbox,
		EgressHosts: reachOf(c.Builds.Reach), UploadMB: c.Builds.UploadMB, MaxBuilds: c.Builds.AtOnce, Log: log,
		Fleet: d.e2bFleet(), Changed: d.published,
	})
	d.onClose(templates.Close)
	if err := templates.Start(ctx); err != nil {
		return fmt.Errorf("open the templates of E2B: %w", err)
	}
	boxes := e2b.New(e2b.Config{
		Store: d.store.Sandboxes(), Volumes: volumes, Jails: d.jails, Snapshots: d.snapshots, Backend: cmp.Or(c.Backend, "oci"), Templates: templates, Govern: governSandbox, Reach: reachOf(c.Reach), Idle: c.Idle, Log: log,
	})
	d.onClose(boxes.Close)
	if err := boxes.Start(ctx); err != nil { // start it even without a listener, because timeouts of existing sandboxes continue
		return fmt.Errorf("open the sandboxes of E2B: %w", err)
	}
	if c.Listen == "" && d.router == nil {
		return nil
	}
	l, err := d.listenE2B(c)
	if err != nil {
		return err
	}
	inside := envd.New(envd.Config{Boxes: boxes, Jails: d.jails, Log: log})
	handler := e2b.NewServer(e2b.ServerConfig{
		Sandboxes: boxes, Volumes: volumes, Secrets: d.secrets, Ports: inside,
		Keys: d.tokens, Domain: d.e2b.Domain, Uploads: http.HandlerFunc(templates.Receive), Fallback: templates.Handler(), Log: log,
		Fleet: d.e2bFleet(), Front: d.Config.Fleet.front(), Changed: d.published,
	})
	server := e2b.NewHTTPServer(handler, log)
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), graceful)
		defer cancel()
		err := inside.Close() // otherwise Shutdown would wait for its streams
		if server.Shutdown(ctx) != nil {
			err = errors.Join(err, server.Close())
		}
		return err
	})
	d.forNodes = http.HandlerFunc(handler.ServeNode)
	d.owned = func(ctx context.Context) ([]fleet.Object, error) {
		all, err := handler.Objects(ctx)
		if err != nil {
			return nil, err
		}
		more, err := templates.Objects()
		return append(all, more...), err
	}
	d.serveE2B = func() error {
		if l == nil {
			return nil
		}
		d.log.Info("listening for clients of E2B", "e2b", l.Addr())
		err := server.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}
	if c.Reach == nil && l != nil {
		d.log.Warn("sandboxes of E2B clients can reach the whole Internet unless the client forbids it; e2b.reach limits them")
	}
	return nil
}

// listenE2B opens the listener for clients of E2B, or returns nil if none is configured.
func (d *Daemon) listenE2B(c E2B) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("open the listener for clients of E2B: %w", err)
	}
	d.e2b = api.E2B{URL: "http://" + l.Addr().String(), Domain: c.Domain, Reach: reachOf(c.Reach)}
	if c.Domain == "" {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		d.e2b.Domain = net.JoinHostPort("localhost", port)
	}
	if c.TLS.on() {
		config, err := d.e2bTLS(c)
		if err != nil {
			l.Close()
			return nil, err
		}
		l = tls.NewListener(l, config)
		d.e2b.URL = "https://" + l.Addr().String()
		if c.Domain != "" {
			d.e2b.URL = "https://api." + c.Domain // the listen address may be a wildcard
		}
	}
	return l, nil
}

// e2bTLS returns the TLS configuration of the listener for E2B clients. If the daemon issues
// certificates, e2bTLS stores its authority in d.e2b, from which clients get it.
func (d *Daemon) e2bTLS(c E2B) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.TLS.Cert != "" {
		cert, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
		if err != nil {
			return nil, fmt.Errorf("read the TLS certificate for E2B clients: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
		return config, nil
	}
	host := d.e2b.Domain
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, made, err := authority.Open(filepath.Join(d.Config.Data, "e2b", "tls"), host)
	if err != nil {
		return nil, err
	}
	if made {
		d.log.Info("created a certificate authority for E2B clients; glasshouse e2b prints the client settings", "domain", host)
	}
	d.e2b.CA = a.PEM()
	config.GetCertificate = a.Certificate
	return config, nil
}

// governSandbox replaces the egress rules of a sandbox's policy with r.
func governSandbox(was json.RawMessage, r egress.Rules) (json.RawMessage, error) {
	return govern.Change(was, func(s *govern.Spec) error {
		s.Egress = &govern.Egress{}
		for _, rule := range r.Allow {
			s.Egress.Allow = append(s.Egress.Allow, govern.Rule{Name: rule.Name, Host: strings.ToLower(rule.Host), Internet: rule.Internet, Deny: rule.Deny})
		}
		for _, t := range r.Transform {
			s.Egress.Transform = append(s.Egress.Transform, govern.Transform(t))
		}
		return nil
	})
}
