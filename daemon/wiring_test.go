package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/agents/gateway"
	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/engine/builtin"
	"glasshouse/capability/manifest"
	"glasshouse/capability/market"
	"glasshouse/capability/memory"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/eventlog"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
	"glasshouse/policy/secret"
)

func TestMarketsNamesAndBuildsAreChecked(t *testing.T) {
	hosts := func(h ...string) *[]string { return &h }
	for _, c := range []struct {
		name  string
		err   error
		field string
	}{
		{"two of a name", validMarkets([]Market{{Name: "a", Base: "x"}, {Name: "a", Base: "y"}}), "markets[1].name"},
		{"a path", validMarkets([]Market{{Name: "a/b", Base: "x"}}), "markets[0].name"},
		{"no name", validMarkets([]Market{{Base: "x"}}), "markets[0].name"},
		{"no base", validMarkets([]Market{{Name: "a"}}), "markets[0].base"},
		{"good markets", validMarkets([]Market{{Name: "a", Base: "x"}, {Name: "b", Base: "x"}}), ""},
		{"uploads", Builds{UploadMB: -1}.validate(), "e2b.builds.upload_mb"},
		{"at once", Builds{AtOnce: -1}.validate(), "e2b.builds.at_once"},
		{"reach", Builds{Reach: hosts("a b")}.validate(), "e2b.builds.reach"},
		{"good builds", Builds{Reach: hosts("*.example.com", "10.0.0.0/8")}.validate(), ""},
		{"idle", E2B{Idle: -1}.validate(false), "e2b.idle"},
		{"volume", E2B{Listen: "127.0.0.1:1", VolumeMB: 1}.validate(false), "e2b.volume_mb"},
		{"backend", E2B{Backend: "bwrap"}.validate(false), "e2b.backend"},
		{"budget", func() error { _, err := Entry{Budget: map[string]int64{"joy": 1}}.entry(); return err }(), "limits.joy"},
	} {
		if got := fault.FieldOf(c.err); (c.err == nil) != (c.field == "") || c.field != "" && c.name != "budget" && got != c.field {
			t.Errorf("%s = %v of %q, want of %q", c.name, c.err, got, c.field)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example.com": false} {
		if got := loopback(host); got != want {
			t.Errorf("loopback(%q) = %v, want %v", host, got, want)
		}
	}
}

// A database must belong to one data directory, because a daemon removes the jails that are not in
// its database.
func TestDatabaseBelongsToOneDataDirectory(t *testing.T) {
	for _, c := range []struct {
		name         string
		file, record string // identifiers in the directory and in the database; "" is none
		jails        bool
		want         string // the name after it; "" is a conflict
	}{
		{"both new", "", "", false, "*"},
		{"new, with jails of a directory from before", "", "", true, "*"},
		{"the same", "mine", "mine", true, "mine"},
		{"killed before the database had it", "mine", "", false, "mine"},
		{"another's database", "mine", "theirs", false, ""},
		{"a new directory with another's database", "", "theirs", false, ""},
		{"a new database for jails", "mine", "", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newGoverned(t)
			file := filepath.Join(d.Config.Data, "house")
			if c.file != "" {
				if err := os.WriteFile(file, []byte(c.file+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.record != "" {
				if _, err := d.store.InstanceID(t.Context(), c.record); err != nil {
					t.Fatal(err)
				}
			}
			if c.jails {
				if err := os.MkdirAll(filepath.Join(d.Config.Data, "jails", string(shelved)), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			err := d.bindDatabase(t.Context())
			if c.want == "" {
				if !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
					t.Errorf("bindDatabase = %v, want a conflict with a remedy", err)
				}
				if have, err := d.store.InstanceID(t.Context(), ""); err != nil || have != c.record {
					t.Errorf("the database is of %q, %v, want %q as before", have, err, c.record)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			have, serr := d.store.InstanceID(t.Context(), "")
			if got := strings.TrimSpace(string(text)); err != nil || serr != nil || got != have || got == "" || c.want != "*" && got != c.want {
				t.Errorf("the directory is %q and the database of %q, %v, %v, want both %q", got, have, err, serr, c.want)
			}
			if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("the file's mode is %v, %v, want 0600", fi.Mode(), err)
			}
			if err := d.bindDatabase(t.Context()); err != nil {
				t.Errorf("the next start = %v, want nil", err)
			}
		})
	}
	d := newGoverned(t)
	if err := os.Mkdir(filepath.Join(d.Config.Data, "house"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.bindDatabase(t.Context()); err == nil || errors.Is(err, fault.Conflict) {
		t.Errorf("a file that cannot be read = %v, want its error", err)
	}
}

func TestSegmentsAreSealedOnce(t *testing.T) {
	d := newGoverned(t)
	var log bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	one := eventlog.Segment{File: "syscalls-1.jsonl", First: 1, Last: 9, SHA256: strings.Repeat("ab", 32)}
	d.notes().seal(shelved, one, false)
	d.notes().seal(shelved, one, true) // found by a starting daemon
	other := one
	other.SHA256 = strings.Repeat("cd", 32)
	d.notes().seal(shelved, other, true)
	sealed, err := d.chain.Sealed(t.Context(), shelved)
	if err != nil || len(sealed) != 2 || sealed[0].Stream != "syscalls" || sealed[0].Last != 9 || sealed[1].SHA256 != other.SHA256 {
		t.Errorf("sealed = %+v, %v, want both texts once", sealed, err)
	}
	if log.Len() != 0 {
		t.Errorf("the log is %s, want nothing", log.String())
	}
	d.notes().seal(shelved, eventlog.Segment{File: "syscalls-2.jsonl", SHA256: "none"}, false)
	if !strings.Contains(log.String(), "syscalls-2.jsonl") {
		t.Errorf("the log is %s, want the segment that was not sealed", log.String())
	}
}

func TestSecretEventsAreInTheAuditLog(t *testing.T) {
	d := newGoverned(t)
	kinds := []secret.Kind{secret.Stored, secret.Rotated, secret.Deleted, secret.Granted, secret.Revoked, secret.Expired, secret.Used, secret.Refused}
	want := []chain.Kind{chain.SecretStored, chain.SecretStored, chain.SecretDeleted, chain.SecretGranted, chain.SecretRevoked, chain.SecretRevoked, chain.SecretUsed, chain.SecretRefused}
	for _, kind := range kinds {
		e := secret.Event{Kind: kind, Secret: "KEY", By: "ann", Who: secret.Scope{Jail: shelved, Session: "s", Run: "r-1", Capability: "a.b"}}
		if err := (secretRecorder{d.chain}).Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.kinds(t); !slices.Equal(got, want) {
		t.Errorf("entries = %v, want %v", got, want)
	}
	if e := d.entries(t)[0]; e.Jail != shelved || e.Session != "s" || e.Run != "r-1" || e.Capability != "a.b" || e.Agent != "ann" {
		t.Errorf("the entry is %+v, want who asked", e)
	}
}

func TestSecretsThatCannotBeOpenedStopTheDaemon(t *testing.T) {
	for name, c := range map[string]Secrets{
		"no passphrase":         {Passphrase: "env:GLASSHOUSE_NO_SUCH_VARIABLE"},
		"a strange passphrase":  {Passphrase: "tell me"},
		"a directory as a key":  {KeyFile: t.TempDir()},
		"a vault without https": {Vault: Vault{Address: "nowhere"}},
	} {
		d := newGoverned(t)
		d.Config.Secrets = c
		err := d.newSecrets()
		if err == nil {
			err = d.secrets.Open(t.Context())
		}
		if err == nil {
			t.Errorf("%s: the secrets are open, want an error", name)
		}
		d.Close()
	}
}

func TestCapabilityEgressIsLimitedToManifestHosts(t *testing.T) {
	proxied := manifest.Network{Mode: manifest.ModeProxy, Hosts: []string{"a.example", "b.example"}, Ports: []uint16{8443}, Rate: 30,
		Inject: []manifest.Inject{{Secret: "ALL", As: "bearer"}, {Secret: "ONE", Host: "b.example", As: "header", Name: "X-Key"}}}
	c := func(change func(*manifest.Capability)) *engine.Installed {
		m := &manifest.Capability{ID: "a.b", Version: "1.0.0", Network: proxied, Runtime: manifest.Spec{Type: manifest.Container}}
		change(m)
		return &engine.Installed{Capability: m}
	}
	for name, in := range map[string]*engine.Installed{
		"no egress": c(func(m *manifest.Capability) { m.NoEgress = true }),
		"no mode":   c(func(m *manifest.Capability) { m.Network.Mode = manifest.ModeNone }),
		"no hosts":  c(func(m *manifest.Capability) { m.Network.Hosts = nil }),
	} {
		if got, err := governCapability(t.Context(), in); got != nil || err != nil {
			t.Errorf("%s = %s, %v, want nothing", name, got, err)
		}
	}
	want := &govern.Egress{Allow: []govern.Rule{
		{Name: "a.b", Host: "a.example", Ports: []uint16{8443}, Capability: "a.b", Inject: []govern.Inject{{Secret: "ALL", As: egress.Bearer}}},
		{Name: "a.b", Host: "b.example", Ports: []uint16{8443}, Capability: "a.b", Inject: []govern.Inject{{Secret: "ALL", As: egress.Bearer}, {Secret: "ONE", As: egress.Header, Name: "X-Key"}}},
	}}
	want.Limit.Requests, want.Limit.PerMS = 30, 60_000
	if diff := cmp.Diff(want, egressOf(c(func(*manifest.Capability) {}))); diff != "" {
		t.Errorf("egress (-want +got): %s", diff)
	}
	one := func(m *manifest.Capability) {
		m.Filesystem.Mode, m.Resources.NetworkBytes = manifest.Ephemeral, 1000
	}
	if got := egressOf(c(one)).Limit.Bytes; got != 1000 {
		t.Errorf("the bytes of a sandbox that serves one call = %d, want 1000", got)
	}
	if got := egressOf(c(func(m *manifest.Capability) { one(m); m.Runtime.Type = manifest.WASM })).Limit.Bytes; got != 0 {
		t.Errorf("the bytes of a module = %d, want no limit of the proxy's", got)
	}
}

func TestSandboxGetsOnlyGrantsOfItsManifest(t *testing.T) {
	d := withSecrets(t)
	for _, name := range []string{"FILE", "ALL", "ONE", "OTHER"} {
		if err := d.secrets.Put(t.Context(), name, []byte("value of "+name), "ann"); err != nil {
			t.Fatal(err)
		}
	}
	c := &engine.Installed{Capability: &manifest.Capability{ID: "a.b", Version: "1.0.0", Secrets: []string{"FILE", "ALL", "ONE"}, Network: manifest.Network{
		Mode: manifest.ModeProxy, Hosts: []string{"a.example", "b.example"},
		Inject: []manifest.Inject{{Secret: "ALL", As: "bearer"}, {Secret: "ONE", Host: "b.example", As: "bearer"}},
	}}}
	if err := d.grantSandbox(t.Context(), shelved, c); err != nil {
		t.Fatal(err)
	}
	files, err := jailSecrets{d.secrets}.Granted(t.Context(), shelved)
	if err != nil || len(files) != 1 || files[0].Name() != "FILE" || string(files[0].Bytes()) != "value of FILE" {
		t.Errorf("the sandbox has the files %v, %v, want FILE", files, err)
	}
	for _, u := range []struct {
		name, host string
		ok         bool
	}{{"ALL", "a.example", true}, {"ALL", "b.example", true}, {"ONE", "b.example", true}, {"ONE", "a.example", false}, {"ALL", "c.example", false}, {"FILE", "a.example", false}, {"OTHER", "a.example", false}} {
		got, err := injected{d.secrets}.Inject(t.Context(), shelved, u.name, u.host)
		if (err == nil) != u.ok || u.ok && string(got) != "value of "+u.name {
			t.Errorf("Inject(%s, %s) = %q, %v, want success %v", u.name, u.host, got, err, u.ok)
		}
	}
	keys := credentials{d.secrets}
	if got, err := keys.lend(t.Context(), c, "OTHER", "a.example"); err != nil || string(got) != "value of OTHER" {
		t.Errorf("lend = %q, %v, want the value", got, err)
	}
	if _, err := keys.lend(t.Context(), c, "OTHER", "c.example"); err == nil || !strings.Contains(err.Error(), "for c.example") {
		t.Errorf("lend to a host that the manifest does not name = %v, want an error that names it", err)
	}
	c.Secrets = []string{"NONE"}
	if err := d.grantSandbox(t.Context(), shelved, c); err == nil {
		t.Error("grantSandbox of a secret that there is not = nil, want an error")
	}
	if got := (injected{d.secrets}).Missing("", []string{"FILE", "NONE", "ALL"}); !slices.Equal(got, []string{"NONE"}) {
		t.Errorf("Missing = %q, want NONE", got)
	}
}

// recorder is an engine that records its calls.
type recorder struct {
	engine.Engine
	name  string
	calls *[]string
}

func (r recorder) note(op string) error { *r.calls = append(*r.calls, r.name+" "+op); return nil }

func (r recorder) Prepare(context.Context, *engine.Installed) error    { return r.note("prepare") }
func (r recorder) Drop(context.Context, *engine.Installed, bool) error { return r.note("drop") }
func (r recorder) EndSession(context.Context, string) error            { return r.note("end") }
func (r recorder) Close() error                                        { return r.note("close") }

func (recorder) CheckRuntime(context.Context, *engine.Installed) error { return nil }

func (r recorder) Call(context.Context, *engine.Call) (engine.Result, error) {
	return engine.Result{}, r.note("call")
}

func TestEachCapabilityIsRunByTheEngineOfItsKind(t *testing.T) {
	var calls []string
	in := func(r manifest.Runtime, stdio manifest.Stdio, cid string) *engine.Installed {
		return &engine.Installed{Capability: &manifest.Capability{ID: cid, Runtime: manifest.Spec{Type: r, Stdio: stdio}}}
	}
	all := engines{
		manifest.Container: spoken{recorder{name: "jailed", calls: &calls}, recorder{name: "mcp", calls: &calls}},
		manifest.RTFS:      recorder{name: "pure", calls: &calls},
		manifest.Builtin:   builtins{recorder{name: "memory", calls: &calls}, recorder{name: "functions", calls: &calls}},
	}
	plain, server := in(manifest.Container, manifest.JSONStdio, "a.b"), in(manifest.Container, manifest.MCPStdio, "a.c")
	ctx := t.Context()
	for _, c := range []*engine.Installed{plain, server, in(manifest.RTFS, "", "a.d")} {
		if err := errors.Join(all.prepare(ctx, c), all.drop(ctx, c, true)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*engine.Installed{plain, server, in(manifest.Builtin, "", "memory.get"), in(manifest.Builtin, "", builtin.Prefix+"read-file")} {
		if _, err := all[c.Runtime.Type].Call(ctx, &engine.Call{Capability: c}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(all[manifest.Container].EndSession(ctx, "s"), all[manifest.Container].Close()); err != nil {
		t.Fatal(err)
	}
	want := []string{"jailed prepare", "jailed drop", "mcp prepare", "mcp drop", "pure prepare", "pure drop",
		"jailed call", "mcp call", "memory call", "functions call", "mcp end", "jailed end", "mcp close"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got): %s", diff)
	}
}

// withRegistry opens an empty registry.
func withRegistry(t *testing.T) governed {
	t.Helper()
	d := withSecrets(t)
	if err := d.openApprovals(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	d.trust, err = bundle.OpenTrust(filepath.Join(d.Config.Data, bundle.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	d.registry, err = registry.Open(t.Context(), registry.Config{
		Store: d.store.Capabilities(), Approvals: d.approvals, Trust: d.trust,
		Dir: filepath.Join(d.Config.Data, "capabilities"), Bundles: filepath.Join(d.Config.Data, "bundles"),
		Prepare: engines{}.prepare, Dropped: engines{}.drop, Changed: d.notes().noteCapability, Installed: d.notes().noteBundle, Log: d.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	d.onClose(d.registry.Close)
	return d
}

func TestBuiltinsResolveWithoutInstallation(t *testing.T) {
	d := withRegistry(t)
	w := newWithMemory(d.registry)
	for _, in := range memory.Installed() {
		if got, err := w.Resolve(in.ID); err != nil || got.ID != in.ID {
			t.Errorf("Resolve(%s) = %v, %v, want it", in.ID, got, err)
		}
	}
	if _, err := w.Resolve("none.such"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Resolve of none = %v, want not found", err)
	}
	if got := (taught{d.registry}).Approved(); len(got) != len(memory.Installed()) {
		t.Errorf("an agent is told of %d capabilities, want the %d that are built in", len(got), len(memory.Installed()))
	}
	if _, _, err := (taught{d.registry}).Skill("none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Skill of none = %v, want not found", err)
	}
	if p := d.barredBundles(); p.Status != "ok" || !strings.HasPrefix(p.Detail, "0 installed") {
		t.Errorf("the doctor says %+v, want ok and none installed", p)
	}
	f := &fetches{d: d.Daemon}
	revoked := &engine.Installed{Capability: &manifest.Capability{ID: "a.b", Version: "1.0.0", Network: manifest.Network{Mode: manifest.ModeProxy, Hosts: []string{"a.example"}}}}
	if _, err := f.Do(t.Context(), &engine.Call{Capability: revoked}, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("a request of a capability that is not installed = %v, want not found", err)
	}
}

func TestVersionsAndBundlesAreInTheAuditLogBeforeTheyCount(t *testing.T) {
	d := newGoverned(t)
	rec := registry.Record{ID: "a.b", Version: "1.2.3", Digest: "sha256:d", State: registry.Approved, Widens: []string{"network"}, By: "ann", Trust: true}
	if err := d.notes().noteCapability(t.Context(), rec, &manifest.Capability{Runtime: manifest.Spec{Type: manifest.WASM}}); err != nil {
		t.Fatal(err)
	}
	b := registry.Bundle{Name: "places", Now: &bundle.Installed{}}
	b.Now.Version, b.Now.Digest = "2.0.0", "sha256:e"
	if err := d.notes().noteBundle(t.Context(), b, "bob"); err != nil {
		t.Fatal(err)
	}
	all := d.entries(t)
	if len(all) != 2 || all[0].Kind != chain.OperatorActed || all[0].Capability != "a.b" || all[0].Agent != "ann" || all[1].Kind != chain.BundleInstalled || all[1].Agent != "bob" {
		t.Fatalf("entries = %+v, want one of ann and one of bob", all)
	}
	for n, parts := range [][]string{{`"what":"capability approved"`, `"runtime":"wasm"`, `"new":["network"]`, `"trust":true`}, {`"bundle":"places"`, `"version":"2.0.0"`}} {
		for _, part := range parts {
			if !strings.Contains(string(all[n].Body), part) {
				t.Errorf("entry %d = %s, want %s in it", n, all[n].Body, part)
			}
		}
	}
	d.chain.Close() // an entry that is not recorded has no effect
	if err := d.notes().noteCapability(t.Context(), rec, &manifest.Capability{}); err == nil {
		t.Error("noteCapability without the audit log = nil, want an error")
	}
	if err := d.notes().noteBundle(t.Context(), b, "bob"); err == nil {
		t.Error("noteBundle without the audit log = nil, want an error")
	}
}

func TestEgressOfSandboxKeepsOtherRules(t *testing.T) {
	was, err := json.Marshal(govern.Spec{CA: "c-1", Egress: &govern.Egress{Ask: true, Allow: []govern.Rule{{Host: "old.example"}}}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := governSandbox(was, egress.Rules{
		Allow:     []egress.Rule{{Name: "n", Host: "API.Example.com", Internet: true}, {Host: "10.0.0.0/8", Deny: true}},
		Transform: []egress.Transform{{Host: "a.example", Headers: map[string]string{"X": "y"}, Owner: "t-1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var s govern.Spec
	if err := json.Unmarshal(got, &s); err != nil {
		t.Fatal(err)
	}
	want := govern.Spec{CA: "c-1", Egress: &govern.Egress{
		Allow:     []govern.Rule{{Name: "n", Host: "api.example.com", Internet: true}, {Host: "10.0.0.0/8", Deny: true}},
		Transform: []govern.Transform{{Host: "a.example", Headers: map[string]string{"X": "y"}, Owner: "t-1"}},
	}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("rules (-want +got): %s", diff)
	}
	if _, err := governSandbox(json.RawMessage(`{"unknown":1`), egress.Rules{}); err == nil {
		t.Error("governSandbox of what is no JSON = nil, want an error")
	}
}

// The authority for E2B clients is created once, for the domain without its port.
func TestClientsOfE2BAreGivenTheAuthoritysCertificate(t *testing.T) {
	d := newGoverned(t)
	d.e2b.Domain = "localhost:8083"
	config, err := d.e2bTLS(E2B{TLS: E2BTLS{Auto: true}})
	if err != nil || len(d.e2b.CA) == 0 || config.MinVersion != tls.VersionTLS12 {
		t.Fatalf("e2bTLS = %+v, %v, want a configuration and an authority", config, err)
	}
	first := d.e2b.CA
	cert, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: "8000-sandbox.localhost"})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(first))
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "8000-sandbox.localhost"}); err != nil {
		t.Errorf("the certificate of a port = %v, want one of the authority", err)
	}
	if _, err := d.e2bTLS(E2B{TLS: E2BTLS{Auto: true}}); err != nil || string(d.e2b.CA) != string(first) {
		t.Errorf("the next daemon's authority differs, %v, want the same", err)
	}
	entries, err := os.ReadDir(filepath.Join(d.Config.Data, "e2b", "tls"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(d.Config.Data, "e2b", "tls", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if block, _ := pem.Decode(text); block != nil && strings.Contains(block.Type, "KEY") && fi.Mode().Perm() != 0o600 {
			t.Errorf("the key %s has the mode %v, want 0600", e.Name(), fi.Mode())
		}
	}
	if _, err := d.e2bTLS(E2B{TLS: E2BTLS{Cert: "/nowhere", Key: "/nowhere"}}); err == nil || !strings.Contains(err.Error(), "read the TLS certificate") {
		t.Errorf("a certificate that is not there = %v, want why", err)
	}
}

// answering serves a group's names on the loopback interface, as join does in a network
// namespace.
func answering(t *testing.T, g *groups) net.Addr {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gr := pair()
	gr.endpointNS, gr.conn = "gate", conn
	g.open, g.in = map[string]*group{"gate": gr}, map[id.Jail]*group{}
	for jid := range gr.members {
		g.in[jid] = gr
	}
	done := make(chan struct{})
	go func() { gr.serve(g.log); close(done) }()
	t.Cleanup(func() { conn.Close(); <-done })
	return conn.LocalAddr()
}

func lookup(t *testing.T, at net.Addr, name string) (netip.Addr, dnsmessage.RCode) {
	t.Helper()
	conn, err := net.Dial("udp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("garbage")); err != nil { // gets no answer
		t.Fatal(err)
	}
	if _, err := conn.Write(question(t, name, dnsmessage.TypeA)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	if len(m.Answers) == 0 {
		return netip.Addr{}, m.RCode
	}
	return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A), m.RCode
}

func TestGroupFollowsItsMembers(t *testing.T) {
	g := &groups{log: slog.New(slog.DiscardHandler)}
	at := answering(t, g)
	first, second := netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("100.64.0.2")
	want := func(name string, where netip.Addr) {
		t.Helper()
		code := dnsmessage.RCodeNameError
		if where.IsValid() {
			code = dnsmessage.RCodeSuccess
		}
		if got, rcode := lookup(t, at, name); got != where || rcode != code {
			t.Errorf("%s is at %v with %v, want %v with %v", name, got, rcode, where, code)
		}
	}
	want("web.", first)
	g.rename("j-aaaaaaaaaaaa", "API")
	want("api.", first)
	want("web.", second)
	g.rename("j-aaaaaaaaaaaa", "not a name")
	want("api.", netip.Addr{})
	want("j-aaaaaaaaaaaa.", first)
	g.rename("j-dddddddddddd", "web") // in no group
	g.leave("j-bbbbbbbbbbbb")
	g.leave("j-bbbbbbbbbbbb")
	want("web.", netip.Addr{})
	if err := g.join("gate", "j-eeeeeeeeeeee", "new", second); err != nil {
		t.Fatal(err)
	}
	want("new.", second)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			jid := id.Jail(fmt.Sprintf("j-%012d", n))
			for range 50 {
				if err := g.join("gate", jid, "many", first); err != nil {
					t.Error(err)
				}
				g.rename(jid, "few")
				g.leave(jid)
			}
		})
	}
	wg.Wait()
	want("few.", netip.Addr{})
	for _, jid := range []id.Jail{"j-aaaaaaaaaaaa", "j-cccccccccccc", "j-eeeeeeeeeeee"} {
		g.leave(jid)
	}
	if len(g.open) != 0 || len(g.in) != 0 {
		t.Errorf("%d groups and %d members are left, want none", len(g.open), len(g.in))
	}
	if err := errors.Join(g.Close(), g.Close()); err != nil {
		t.Errorf("Close twice = %v, want nil", err)
	}
}

func TestFailingMarketDoesNotAffectOthers(t *testing.T) {
	dir := t.TempDir()
	vendor, err := bundle.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	for name, text := range map[string]string{
		bundle.MetadataFile: `{"name": "places", "version": "2.0.0", "publisher": "acme", "tier": "informational", "description": "All about places"}`,
		"skill.yaml":        "---\nname: places\ndescription: teaches\nversion: \"2.0.0\"\n---\n\n# places\n\nThink first.\n",
	} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := bundle.Sign(src, vendor, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Pack(filepath.Join(dir, "places-2.0.0.tar.gz")); err != nil {
		t.Fatal(err)
	}
	if _, err := market.Publish(dir, vendor, time.Hour); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Config: Config{Data: t.TempDir(), Markets: []Market{
		{Name: "gone", Base: filepath.Join(dir, "none"), Key: vendor.Public().String()}, {Name: "here", Base: dir, Key: vendor.Public().String()},
	}}}
	m, err := d.openMarkets()
	if err != nil {
		t.Fatal(err)
	}
	found, err := m.Search(t.Context(), []string{"places"})
	if err == nil || len(found["here"]) != 1 || found["here"][0].Version != "2.0.0" {
		t.Errorf("Search = %+v, %v, want the offer of one market and the error of the other", found, err)
	}
	now := bundle.Installed{}
	now.Name, now.Version, now.Publisher = "places", "1.0.0", found["here"][0].Publisher
	updates, err := m.Outdated(t.Context(), []registry.Bundle{{Name: "places", Now: &now}, {Name: "on its way"}})
	if err == nil || len(updates) != 1 {
		t.Errorf("Outdated = %+v, %v, want what one market says and the error of the other", updates, err)
	}
	file, err := m.Fetch(t.Context(), "places", "2.0.0", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := bundle.Open(file); err != nil || got.Digest() != b.Digest() {
		t.Errorf("the bundle fetched is %v, want %s", err, b.Digest())
	}
	if _, err := m.Fetch(t.Context(), "none", "", t.TempDir()); err == nil {
		t.Error("Fetch of none = nil, want an error")
	}
	if _, err := (&markets{}).Fetch(t.Context(), "places", "", t.TempDir()); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Fetch without a market = %v, want unsupported with a remedy", err)
	}
}

// A vendor's models can be used from the moment in which its key is granted, until the grant ends.
func TestVendorsNeedOnlyAGrant(t *testing.T) {
	d := withSecrets(t)
	v := ModelVendors[0]
	p := d.vendors()[0]
	grant := func(secretName string, hosts ...string) secret.Grant {
		t.Helper()
		if err := d.secrets.Put(t.Context(), secretName, []byte("the key "+secretName), "ann"); err != nil {
			t.Fatal(err)
		}
		g, err := d.secrets.Grant(t.Context(), secret.Grant{Secret: secretName, To: v.Scope(), Delivery: secret.Inject, Hosts: hosts, By: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if p.Ready() {
		t.Error("without a grant, the vendor is ready")
	}
	grant("OTHER", "api.example.com")
	if p.Ready() {
		t.Error("with a key for another host, the vendor is ready")
	}
	if _, err := p.Key(t.Context()); !errors.Is(err, fault.Denied) {
		t.Errorf("without a grant, Key = %v, want denied", err)
	}
	grant("OLD", v.Host())
	g := grant("NEW", v.Host())
	if !p.Ready() {
		t.Error("with a grant, the vendor is not ready")
	}
	if key, err := p.Key(t.Context()); err != nil || string(key) != "the key NEW" {
		t.Errorf("Key = %q, %v, want the one that was granted last", key, err)
	}
	if err := d.secrets.Revoke(t.Context(), g.ID, "ann"); err != nil {
		t.Fatal(err)
	}
	if key, err := p.Key(t.Context()); err != nil || string(key) != "the key OLD" {
		t.Errorf("after the end of the newer grant, Key = %q, %v, want the other one", key, err)
	}
	if err := d.secrets.Delete(t.Context(), "OLD", "ann"); err != nil {
		t.Fatal(err)
	}
	if p.Ready() {
		t.Error("after its secret was deleted, the vendor is ready")
	}
}

func TestModelsAreMadeOfTheConfiguration(t *testing.T) {
	d := newGoverned(t)
	d.gateway = gateway.New(gateway.Config{})
	if err := d.openModels(); err != nil || d.models == nil {
		t.Errorf("without providers = %v, %v, want those of the vendors", d.models, err)
	}
	good := Provider{Name: "p", API: "openai", BaseURL: "https://api.example/v1", Secret: "KEY", Models: []string{"*"}}
	d.Config.Gateway = Gateway{Model: "big", Models: Models{Providers: []Provider{good}, Aliases: []ModelAlias{{Name: "small", Provider: "p", Model: "s"}}, Prices: []ModelPrice{{Model: "big", Input: 3}}}}
	if err := d.openModels(); err != nil || d.models == nil {
		t.Errorf("with a provider = %v, want models", err)
	}
	for name, change := range map[string]func(*Provider){
		"an API that is none": func(p *Provider) { p.API = "telepathy" },
		"an address":          func(p *Provider) { p.BaseURL = "nowhere" },
		"no name":             func(p *Provider) { p.Name = "" },
	} {
		p := good
		change(&p)
		d.Config.Gateway.Models.Providers = []Provider{p}
		if err := d.openModels(); err == nil {
			t.Errorf("openModels with %s = nil, want an error", name)
		}
	}
	if _, err := (credentials{}).modelKey(t.Context(), Provider{BaseURL: "://"}); err == nil {
		t.Error("modelKey of an address that is none = nil, want an error")
	}
}

func TestMissingEmbeddedProgramsErrorNamesBuildCommand(t *testing.T) {
	d := &Daemon{Config: Config{Data: t.TempDir()}}
	for _, name := range []string{"glasshouse-init", "glasshouse-agent"} {
		if _, err := d.install("bin", name); !errors.Is(err, fault.Unsupported) || !strings.Contains(fault.RemedyOf(err), "make build") {
			t.Errorf("install of %s = %v, want unsupported with how to build it", name, err)
		}
	}
	d.Programs = fstest.MapFS{"glasshouse-init": {Data: []byte("init")}}
	got, err := d.install("bin", "glasshouse-init")
	if err != nil || filepath.Dir(got) != filepath.Join(d.Config.Data, "bin") {
		t.Errorf("install = %s, %v, want a file in bin", got, err)
	}
}

func TestRunEndsWithItsContextOrItsListener(t *testing.T) {
	for _, c := range []struct {
		name string
		fail error
	}{{"context", nil}, {"listener", net.ErrClosed}} {
		d := &Daemon{log: slog.New(slog.DiscardHandler), serveErr: make(chan error, 1)}
		closed := 0
		d.onClose(func() error { closed++; return errors.New("a part failed") })
		ctx, cancel := context.WithCancel(t.Context())
		if c.fail != nil {
			d.serveErr <- c.fail
		} else {
			cancel()
		}
		err := d.Run(ctx)
		cancel()
		if closed != 1 || err == nil || !strings.Contains(err.Error(), "a part failed") || c.fail != nil && !errors.Is(err, c.fail) {
			t.Errorf("%s: Run = %v with %d parts closed, want the errors of the listener and of the part", c.name, err, closed)
		}
	}
	d := newGoverned(t)
	d.withJails(t) // none is running, so there is nothing to stop
	d.serveErr, d.Config.StopJails = make(chan error), true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil {
		t.Errorf("Run with jails that have stopped = %v, want nil", err)
	}
}

func TestSecretFileIsReadAtUse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	f := fromFile(name)
	if _, err := f(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there = %v, want that", err)
	}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(name, []byte(" "+want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f(t.Context()); err != nil || string(got) != want {
			t.Errorf("the file = %q, %v, want %q", got, err, want)
		}
	}
	for _, empty := range []string{"", " \n"} {
		if err := os.WriteFile(name, []byte(empty), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f(t.Context()); !errors.Is(err, fault.Invalid) {
			t.Errorf("a file that holds %q: got %q, %v, want invalid", empty, got, err)
		}
	}
}

func TestPinsThatWatchJailsStayMounted(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "network", "j-aaaaaaaaaaaa"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := dropPins(dir); err != nil {
		t.Errorf("dropPins with a jail = %v, want nil", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "network")); err != nil {
		t.Fatal(err)
	}
	var path *os.PathError
	if err := dropPins(dir); !errors.As(err, &path) || path.Op != "unmount" { // it is not a mount point
		t.Errorf("dropPins without jails = %v, want that it tries to unmount", err)
	}
	if under("", "kernel") != "" || under("/run", "kernel") != "/run/kernel" {
		t.Errorf("under = %q and %q, want nothing below no directory", under("", "kernel"), under("/run", "kernel"))
	}
	for _, p := range observing(t.Context()) {
		if p.Name == "" || !slices.Contains([]string{"ok", "unsupported", "unknown"}, p.Status) || p.Status == "unsupported" && p.Reason == "" {
			t.Errorf("the doctor says %+v, want a name, a status and a reason", p)
		}
	}
}

func TestDiskCountIsCachedAndCancellable(t *testing.T) {
	dir := t.TempDir()
	s := newStorage(dir, 0, func() []jail.Spares { return nil })
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := s.now(t.Context())
	if err != nil || len(first.Parts) != 1 || first.Parts[0].Name != "other" || first.Parts[0].Files != 1 || first.Total < first.Free || first.Pool == nil {
		t.Fatalf("the count = %+v, %v, want one file", first, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "two"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := s.now(t.Context()); err != nil || again.At != first.At || again.Parts[0].Files != 1 {
		t.Errorf("the next count = %+v, %v, want the one from before", again, err)
	}
	s.lock <- struct{}{} // another count is in progress
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.now(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a count that is given up = %v, want %v", err, context.Canceled)
	}
	<-s.lock
	if _, err := newStorage(dir, 0, nil).now(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a count with a cancelled context = %v, want %v", err, context.Canceled)
	}
	if _, err := newStorage(filepath.Join(dir, "none"), 0, nil).now(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the count of no directory = %v, want that there is none", err)
	}
	for path, want := range map[string]string{
		"jails": "jails", "jails/j-a": "jails", "jails/j-a/events/x": "events", "jails/j-a/snapshots/s/x": "snapshots", "jails/j-a/other/events": "jails",
		"pages/x": "snapshots", "bundles/x": "capabilities", "sandboxes/x": "capabilities", "agent/x": "agents", "glasshouse.db-shm": "database", "house": "other", "eventsx": "other",
	} {
		if got := partOf(path); got != want {
			t.Errorf("partOf(%s) = %s, want %s", path, got, want)
		}
	}
}
