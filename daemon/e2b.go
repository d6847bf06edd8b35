package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/api"
	"glasshouse/e2b"
	"glasshouse/e2b/authority"
	"glasshouse/e2b/envd"
	"glasshouse/e2b/template"
	"glasshouse/egress"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/host/disk"
	"glasshouse/rootfs"
)

// E2B is the listener for clients of the E2B protocol.
type E2B struct {
	Listen   string        `yaml:"listen"` // TCP address; "" means there is no such listener
	Domain   string        `yaml:"domain"` // below which ports of sandboxes are hosts, with the port unless it is TLS's; "" means localhost and the port
	TLS      E2BTLS        `yaml:"tls"`
	VolumeMB int64         `yaml:"volume_mb"` // MiB of a new volume; it takes as much of the disk as its files
	Idle     time.Duration `yaml:"idle"`      // without work after which sandboxes that wake for who comes rest; 0 means never before their time
	Builds   Builds        `yaml:"builds"`    // of templates
}

// E2BTLS is whether, and with which certificate, the listener speaks TLS.
type E2BTLS struct {
	Auto bool   `yaml:"auto"` // with certificates of an authority that the daemon makes, unless Cert is set
	Cert string `yaml:"cert"` // file; for the domain and all names below it
	Key  string `yaml:"key"`
}

func (t E2BTLS) on() bool { return t.Auto || t.Cert != "" }

// Builds says what builds of templates may.
type Builds struct {
	Reach    *[]string `yaml:"reach"`     // hosts that they reach; nil means those on the Internet
	UploadMB int64     `yaml:"upload_mb"` // MiB of the files of one COPY; 0 means 1024
	AtOnce   int       `yaml:"at_once"`   // how many go on at the same time; 0 means 2
}

func (b Builds) validate() error {
	switch {
	case b.UploadMB < 0:
		return fault.Fieldf("config", "e2b.builds.upload_mb", "%d is negative", b.UploadMB)
	case b.AtOnce < 0:
		return fault.Fieldf("config", "e2b.builds.at_once", "%d is negative", b.AtOnce)
	case b.Reach == nil:
		return nil
	}
	var r egress.Rules
	for _, host := range *b.Reach {
		r.Allow = append(r.Allow, egress.Rule{Host: host})
	}
	if _, err := r.Explain(egress.Request{Host: "example.com"}); err != nil {
		return fault.Fieldf("config", "e2b.builds.reach", "%v", err)
	}
	return nil
}

func (c E2B) validate(insecure bool) error {
	if err := c.Builds.validate(); err != nil {
		return err
	}
	if c.Idle < 0 {
		return fault.Fieldf("config", "e2b.idle", "%s is less than nothing", c.Idle)
	}
	if c.Listen == "" {
		return nil
	}
	if c.VolumeMB < disk.MinMB {
		return fault.Fieldf("config", "e2b.volume_mb", "%d MiB is under the minimum of %d", c.VolumeMB, disk.MinMB)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fault.Fieldf("config", "e2b.listen", "%q is not host:port", c.Listen)
	}
	switch {
	case (c.TLS.Cert == "") != (c.TLS.Key == ""):
		return fault.Fieldf("config", "e2b.tls", "a certificate and its key come together")
	case c.TLS.Cert != "" && c.Domain == "":
		return fault.Fieldf("config", "e2b.domain", "e2b.tls.cert needs the domain that it is for")
	}
	if !loopback(host) && !insecure && !c.TLS.on() {
		return &fault.Error{Op: "config", Kind: fault.Invalid, Field: "e2b.listen",
			Err:    fmt.Errorf("%s can be reached from other machines, and keys would cross the network in the clear", c.Listen),
			Remedy: "set e2b.tls, or listen on 127.0.0.1 with a proxy that speaks TLS before it, or say --insecure"}
	}
	return nil
}

// pull has the images of templates from their registries.
func pull(images *rootfs.Provider) func(context.Context, string, authn.Authenticator) (string, error) {
	return func(ctx context.Context, image string, login authn.Authenticator) (string, error) {
		layer, err := images.Pull(ctx, image, login)
		return layer.Digest, err
	}
}

// openE2B opens the listener for clients of the E2B protocol, if it is configured. The
// jails and snapshots are open.
func (d *Daemon) openE2B(ctx context.Context) error {
	c := d.Config.E2B
	log := d.log.With("part", "e2b")
	volumes := e2b.NewVolumes(e2b.VolumesConfig{
		Store: d.store.Volumes(), Dir: filepath.Join(d.Config.Data, "volumes"), Templates: filepath.Join(d.Config.Data, "templates"),
		SizeMB: c.VolumeMB, Log: log,
	})
	d.onClose(volumes.Close)
	if err := volumes.Start(ctx); err != nil {
		return err
	}
	var reach []string
	if c.Builds.Reach != nil {
		reach = append([]string{}, *c.Builds.Reach...)
	}
	templates := template.New(template.Config{
		Store: d.store.Templates(), Dir: filepath.Join(d.Config.Data, "e2b"), Jails: d.jails, Snapshots: d.snapshots,
		Resolve: layers{d.images}.Resolve, Pull: pull(d.images), Govern: governSandbox,
		Reach: reach, UploadMB: c.Builds.UploadMB, AtOnce: c.Builds.AtOnce, Log: log,
	})
	d.onClose(templates.Close)
	if err := templates.Start(ctx); err != nil {
		return err
	}
	boxes := e2b.New(e2b.Config{
		Store: d.store.Sandboxes(), Volumes: volumes, Jails: d.jails, Snapshots: d.snapshots, Templates: templates, Govern: governSandbox, Idle: c.Idle, Log: log,
	})
	d.onClose(boxes.Close)
	if err := boxes.Start(ctx); err != nil { // also without the door: their time goes on
		return err
	}
	if c.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	d.e2b = api.E2B{URL: "http://" + l.Addr().String(), Domain: c.Domain}
	if c.Domain == "" {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		d.e2b.Domain = net.JoinHostPort("localhost", port)
	}
	if c.TLS.on() {
		config, err := d.e2bTLS(c)
		if err != nil {
			l.Close()
			return err
		}
		l = tls.NewListener(l, config)
		d.e2b.URL = "https://" + l.Addr().String()
		if c.Domain != "" {
			d.e2b.URL = "https://api." + c.Domain // the address may be all of the host's
		}
	}
	inside := envd.New(envd.Config{Boxes: boxes, Jails: d.jails, Log: log})
	server := e2b.Listener(e2b.NewServer(e2b.ServerConfig{
		Sandboxes: boxes, Volumes: volumes, Secrets: d.secrets, Inside: inside,
		Keys: d.tokens, Domain: d.e2b.Domain, Uploads: http.HandlerFunc(templates.Receive), More: templates.Handler(), Log: log,
	}), log)
	d.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), graceful)
		defer cancel()
		err := inside.Close() // its streams would be waited for
		if server.Shutdown(ctx) != nil {
			err = errors.Join(err, server.Close())
		}
		return err
	})
	d.log.Info("listening for clients of E2B", "e2b", l.Addr())
	d.wg.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.serveErr <- err
		}
	})
	return nil
}

// e2bTLS returns how the listener for clients of E2B speaks TLS. An authority of the
// daemon's own goes into d.e2b, from where clients get its certificate.
func (d *Daemon) e2bTLS(c E2B) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.TLS.Cert != "" {
		cert, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
		if err != nil {
			return nil, fmt.Errorf("read the TLS certificate for clients of E2B: %w", err)
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
		d.log.Info("a certificate authority was made for clients of E2B; glasshouse e2b prints what they need to trust it", "domain", host)
	}
	d.e2b.CA = a.PEM()
	config.GetCertificate = a.Certificate
	return config, nil
}

// governSandbox has a sandbox's egress ruled by r. The rest stays as it was.
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
