package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/agents/autonomy"
	"glasshouse/agents/gateway"
	"glasshouse/api/wire"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy"
	"glasshouse/policy/chain"
	"glasshouse/policy/secret"
)

func TestInvalidConfigurationNamesField(t *testing.T) {
	for text, field := range map[string]string{
		"tls: {cert: a.pem}":                                           "tls",
		"pool: {size: 65}":                                             "pool.size",
		"rootfs: {allow: [srv]}":                                       "rootfs.allow",
		"workspaces: {allow: [home]}":                                  "workspaces.allow",
		"observe: {ring_kb: 1}":                                        "observe.ring_kb",
		"observe: {sources: [kernel, stars]}":                          "observe.sources",
		"observe: {syscalls: some}":                                    "observe.syscalls",
		"events: {fsync: sometimes}":                                   "events.fsync",
		"snapshots: {disk_mb: -1}":                                     "snapshots.disk_mb",
		"network: {transit: fd00::/8}":                                 "network.transit",
		"listen: nowhere":                                              "listen",
		"gateway: {jail: cloud}":                                       "gateway.jail",
		"gateway: {agent: nobody}":                                     "gateway.agent",
		"gateway: {level: 4}":                                          "gateway.level",
		"gateway: {ceiling: {memory: much}}":                           "gateway.ceiling",
		"gateway: {watchdog: {4: {wall: 1h}}}":                         "gateway.watchdog.4",
		"gateway: {watchdog: {1: {wall: -1h}}}":                        "gateway.watchdog.1",
		"gateway: {connectors: {address: here}}":                       "gateway.connectors.address",
		"gateway: {connectors: {posts: [{name: p, networks: [all]}]}}": "gateway.connectors",
		"gateway: {connectors: {hooks: [{name: h, goal: g, budget: {joy: 1}}]}}": "gateway.connectors",
		"approvals: {webhooks: [{url: 'https://a.example/'}]}":                   "approvals.webhooks[0].name",
		"approvals: {webhooks: [{name: a, url: ftp}]}":                           "approvals.webhooks[0].url",
		"approvals: {pushes: [{name: a, url: 'https://a.example/'}]}":            "approvals.pushes[0].topic",
		"approvals: {wait: -1s}":                                                 "approvals",
		"approvals: {links: here}":                                               "approvals.links",
	} {
		c, err := read(t, text)
		if err != nil {
			t.Errorf("%s = %v, want it read", text, err)
			continue
		}
		if err := c.Validate(); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != field {
			t.Errorf("%s = %v of %q, want invalid of %q", text, err, fault.FieldOf(err), field)
		}
	}
}

func TestAgentsAreConfiguredByTheEnvironment(t *testing.T) {
	c := NewConfig(0, "/root")
	c.ReadEnv(func(k string) string {
		return map[string]string{"CCOS_GATEWAY_JAIL_AGENTS": "True", "GLASSHOUSE_MODELS": "http://127.0.0.1:8081/", "GLASSHOUSE_GATEWAY_DB": "postgres://x"}[k]
	})
	if c.Gateway.Jail != gateway.InBwrap || c.Gateway.DB != "postgres://x" {
		t.Errorf("gateway = %+v, want bwrap and the database", c.Gateway)
	}
	var apis []string
	for _, p := range c.Gateway.Models.server {
		apis = append(apis, p.API+" "+p.BaseURL)
	}
	want := []string{"openai http://127.0.0.1:8081/v1", "anthropic http://127.0.0.1:8081", "gemini http://127.0.0.1:8081"}
	if !slices.Equal(apis, want) {
		t.Errorf("providers = %q, want %q", apis, want)
	}
	for uid, want := range map[int]string{0: gateway.InJail, 1000: gateway.InBwrap} {
		g := Gateway{}
		if err := g.validate(uid); err != nil || g.Jail != want || g.Agent != "builtin" {
			t.Errorf("of user %d: %s runs in %s, %v, want builtin in %s", uid, g.Agent, g.Jail, err, want)
		}
	}
	g := Gateway{Watchdog: map[int]Timers{1: {Wall: time.Hour, Step: time.Minute}}, Ceiling: map[string]string{"cpu": "2", "memory": "4Gi"}}
	if got := g.timers()[policy.Guided]; got != (autonomy.Timers{Wall: time.Hour, Step: time.Minute}) {
		t.Errorf("timers of level 1 = %+v, want those of the file", got)
	}
	if got, err := g.ceiling(); err != nil || got != (autonomy.Limits{CPU: 2000, Memory: 4096}) {
		t.Errorf("ceiling = %v, %v, want two processors and 4 GB", got, err)
	}
}

func TestConnectorsAreMadeOfTheConfiguration(t *testing.T) {
	c, err := read(t, `
gateway:
  connectors:
    address: https://host.example/hooks/
    hooks: [{name: ci, scheme: github, secret: CI, labels: [public], session: sess-ci, goal: "fix {{.text}}", agent: {preset: shell, level: 2}, budget: {steps: 9}}]
    posts: [{name: chat, sessions: ["*"], url: "https://chat.example/", networks: [10.1.0.0/16]}]
    relays: [{name: r, sessions: [a], session: b, text: x}]
`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Gateway.Connectors.config()
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Hooks) != 1 || got.Hooks[0].Secret != "CI" || !slices.Equal(got.Hooks[0].Labels, []manifest.Label{manifest.Public}) || got.Hooks[0].Entry.Limits["steps"] != 9 ||
		!strings.Contains(string(got.Hooks[0].Entry.Agent), `"preset":"shell"`) {
		t.Errorf("hooks = %+v, want one of ci", got.Hooks)
	}
	if len(got.Posts) != 1 || got.Posts[0].Networks[0].String() != "10.1.0.0/16" {
		t.Errorf("posts = %+v, want one with its network", got.Posts)
	}
	if len(got.Relays) != 1 || got.Relays[0].Entry.Session != "b" {
		t.Errorf("relays = %+v, want one to b", got.Relays)
	}
	if hosts := c.Gateway.Connectors.hosts(); !slices.Equal(hosts, []string{"host.example"}) {
		t.Errorf("hosts = %q, want host.example", hosts)
	}
	if hosts := (Approvals{Links: "https://phone.example/answers/"}).hosts(); !slices.Equal(hosts, []string{"phone.example"}) {
		t.Errorf("hosts of links = %q, want phone.example", hosts)
	}
}

// dataDir returns a directory in /tmp, so that paths of sockets are short.
func dataDir(t *testing.T, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ghd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestOneDaemonOwnsADataDirectory.
func TestOneDaemonOwnsADataDirectory(t *testing.T) {
	dir := dataDir(t, 0o711)
	first := &Daemon{Config: Config{Data: filepath.Join(dir, "data")}}
	if err := first.takeData(); err != nil {
		t.Fatal(err)
	}
	second := &Daemon{Config: first.Config}
	if err := second.takeData(); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "another daemon uses this data directory") {
		t.Errorf("a second daemon = %v, want a conflict", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.takeData(); err != nil {
		t.Errorf("after the first has ended: %v, want nil", err)
	}
	if err := errors.Join(second.Close(), second.Close()); err != nil {
		t.Errorf("Close twice = %v, want nil", err)
	}
}

func TestDataDirectoryLockWaitsForInheritedDescriptor(t *testing.T) {
	dir := dataDir(t, 0o711)
	killed := &Daemon{Config: Config{Data: dir}}
	if err := killed.takeData(); err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(int(killed.lock.Fd())) // a forked process has such a copy
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { unix.Close(copied) })
	next := &Daemon{Config: killed.Config}
	if err := next.takeData(); err != nil {
		t.Errorf("takeData = %v, want nil once the copy is closed", err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

func TestDataDirectoryThatJailsCannotTraverseIsRefused(t *testing.T) {
	dir := dataDir(t, 0o700)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := passable(data); !errors.Is(err, fault.Invalid) || !strings.Contains(fault.RemedyOf(err), "chmod o+x "+dir) {
		t.Errorf("below a directory of mode 0700 = %v, want invalid with the command that helps", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := passable(data); err != nil {
		t.Errorf("below a directory of mode 0711 = %v, want nil", err)
	}
}

func TestProgramIsInstalledUnderItsDigest(t *testing.T) {
	programs := fstest.MapFS{"init": {Data: []byte("one")}, "changed/init": {Data: []byte("other")}}
	changed, err := programs.Sub("changed")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Config: Config{Data: t.TempDir()}, Programs: programs}
	one, err := d.install("bin", "init")
	if err != nil {
		t.Fatal(err)
	}
	d.Programs = changed
	other, err := d.install("bin", "init")
	if err != nil || other == one {
		t.Errorf("another build = %s, %v, want another name than %s", other, err, one)
	}
	if err := os.WriteFile(one, []byte("broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Programs = programs
	again, err := d.install("bin", "init")
	text, rerr := os.ReadFile(again)
	if err != nil || rerr != nil || again != one || string(text) != "one" {
		t.Errorf("the same build again = %s with %q, %v, %v, want %s mended", again, text, err, rerr, one)
	}
	if info, err := os.Stat(one); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode = %v, %v, want 0755", info.Mode(), err)
	}
}

func TestPartsAreClosedInReverse(t *testing.T) {
	d := &Daemon{}
	var order []string
	for _, name := range []string{"store", "jails", "gateway"} {
		d.onClose(func() error { order = append(order, name); return errors.New(name) })
	}
	err := d.Close()
	if want := []string{"gateway", "jails", "store"}; !slices.Equal(order, want) {
		t.Errorf("closed %q, want %q", order, want)
	}
	for _, name := range order {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Close = %v, want the error of %s in it", err, name)
		}
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close again = %v, want nil", err)
	}
}

func TestSocketModeAndStaleSocketReplacement(t *testing.T) {
	dir := dataDir(t, 0o711)
	d := &Daemon{Config: Config{Socket: Socket{Path: filepath.Join(dir, "s")}}}
	if err := os.WriteFile(d.Config.Socket.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := d.listenUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(d.Config.Socket.Path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("mode = %v, %v, want 0666", info.Mode(), err)
	}
	d.Config.Listen = "127.0.0.1:0"
	tcp, err := d.listenTCP()
	if err != nil {
		t.Fatal(err)
	}
	tcp.Close()
	d.Config.TLS = TLS{Cert: "/nowhere", Key: "/nowhere"}
	if l, err := d.listenTCP(); err == nil || !strings.Contains(err.Error(), "read the TLS certificate") {
		t.Errorf("listenTCP without its certificate = %v, %v, want why", l, err)
	}
}

func TestAddressesAreThoseOfBrowsers(t *testing.T) {
	for _, tt := range []struct {
		reached string
		conf    Config
		want    []string
	}{
		{"", Config{}, nil},
		{"127.0.0.1:8082", Config{}, []string{"http://127.0.0.1:8082"}},
		{"[::]:8082", Config{TLS: TLS{Cert: "c"}}, []string{"https://127.0.0.1:8082"}},
		{"10.0.0.1:80", Config{Approvals: Approvals{Links: "https://phone.example/answers/"}}, []string{"http://10.0.0.1:80", "https://phone.example"}},
	} {
		if got := (&Daemon{Config: tt.conf, reached: tt.reached}).addresses(); !slices.Equal(got, tt.want) {
			t.Errorf("addresses at %q = %q, want %q", tt.reached, got, tt.want)
		}
	}
}

func TestToolPrefersConfiguredDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "runsc"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Config: Config{Tools: dir}}
	if got := d.Config.tool("runsc"); got != filepath.Join(dir, "runsc") {
		t.Errorf("runsc = %s, want the private one", got)
	}
	if got := d.Config.tool("runc"); got != "runc" {
		t.Errorf("runc = %s, want the system's", got)
	}
	if err := ignoreMissing(os.ErrNotExist); err != nil {
		t.Errorf("what is missing = %v, want nil", err)
	}
	if err := ignoreMissing(net.ErrClosed); err != net.ErrClosed {
		t.Errorf("another error = %v, want it", err)
	}
}

func TestLogFormatAndLevelFollowConfiguration(t *testing.T) {
	var b bytes.Buffer
	l := newLogger(&b, Log{Level: "warn", Format: "json"})
	l.Info("hidden")
	l.Warn("shown", "n", 1)
	if got := b.String(); strings.Contains(got, "hidden") || !strings.Contains(got, `"msg":"shown"`) {
		t.Errorf("log = %s, want the warning in JSON", got)
	}
	l = newLogger(&b, Log{Level: "nonsense"})
	if !l.Enabled(context.Background(), slog.LevelInfo) || l.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("a level that is none is not info")
	}
}

// withSecrets opens the secrets of a daemon.
func withSecrets(t *testing.T) governed {
	t.Helper()
	d := newGoverned(t)
	if err := d.newSecrets(); err != nil {
		t.Fatal(err)
	}
	d.jails = jail.NewManager(jail.Config{Store: d.store.Jails()}) // not open
	if err := d.secrets.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// A component reads only the secrets of its configuration, and each use is in the audit log.
func TestSecretUseByComponentIsAudited(t *testing.T) {
	d := withSecrets(t)
	if err := d.secrets.Put(t.Context(), "KEY", []byte("s3cr3t"), "ann"); err != nil {
		t.Fatal(err)
	}
	keys := credentials{d.secrets}
	for range 2 {
		v, err := keys.modelKey(t.Context(), Provider{Name: "openai", Secret: "KEY", BaseURL: "https://api.example/v1"})
		if err != nil || string(v) != "s3cr3t" {
			t.Errorf("modelKey = %q, %v, want the value", v, err)
		}
	}
	if v, err := keys.connectorKey(t.Context(), "ci", "KEY", ""); err != nil || string(v) != "s3cr3t" {
		t.Errorf("connectorKey = %q, %v, want the value", v, err)
	}
	if _, err := keys.modelKey(t.Context(), Provider{Name: "openai", Secret: "NONE", BaseURL: "https://api.example/v1"}); err == nil {
		t.Error("modelKey of a secret that there is not = nil, want an error")
	}
	granted := 0
	for _, e := range d.entries(t) {
		if e.Kind == chain.SecretGranted {
			granted++
		}
		if strings.Contains(string(e.Body), "s3cr3t") {
			t.Errorf("entry %d has the value of a secret: %s", e.Seq, e.Body)
		}
	}
	if granted != 2 {
		t.Errorf("grants = %d, want one for each part", granted)
	}
}

func TestJailsAreNotTouchedBeforeTheyAreOpen(t *testing.T) {
	d := withSecrets(t)
	if err := d.refreshSecrets(t.Context(), secret.Scope{}); err != nil {
		t.Errorf("refreshSecrets = %v, want nil", err)
	}
	if list, err := (jailSecrets{d.secrets}).Granted(t.Context(), "j-aaaaaaaaaaaa"); err != nil || len(list) != 0 {
		t.Errorf("secrets of a jail that was given none = %v, %v, want none", list, err)
	}
	if v, err := (injected{d.secrets}).Inject(t.Context(), "j-aaaaaaaaaaaa", "NONE", "a.example"); err == nil || !strings.Contains(err.Error(), "for a.example") {
		t.Errorf("Inject of a secret that there is not = %q, %v, want an error that names the host", v, err)
	}
}

func TestMarketsHaveKeys(t *testing.T) {
	d := &Daemon{Config: Config{Data: t.TempDir(), Markets: []Market{{Name: "m", Base: "/srv/market", Key: "nonsense"}}}}
	if _, err := d.openMarkets(); fault.FieldOf(err) != "markets[0].key" {
		t.Errorf("openMarkets = %v, want an error of markets[0].key", err)
	}
}

// Agents that have ended ask no more.
func TestToolServersAreBounded(t *testing.T) {
	tools := &toolServers{d: &Daemon{Version: wire.Version{Version: "1"}}}
	t.Cleanup(func() { tools.Close() })
	for n := range maxToolServers + 5 {
		c := gateway.Caller{Jail: id.Jail("j-" + strings.Repeat("a", n%7+1)), Run: id.Run(strings.Repeat("b", n/7+1))}
		for range 2 { // the second call returns the existing server
			if tools.handler(c) == nil {
				t.Fatal("handler = nil, want one")
			}
		}
	}
	count := func() (all, old int) {
		tools.mu.Lock()
		defer tools.mu.Unlock()
		return len(tools.all), len(tools.old)
	}
	if all, old := count(); all != maxToolServers || old != maxToolServers {
		t.Errorf("servers = %d in an order of %d, want %d", all, old, maxToolServers)
	}
	err := tools.Close()
	if all, _ := count(); err != nil || all != 0 {
		t.Errorf("Close = %v with %d left, want none", err, all)
	}
}

func TestCapacityIsThatOfTheHost(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "jails"), 0o711); err != nil {
		t.Fatal(err)
	}
	got, err := (&Daemon{Config: Config{Data: dir}}).capacity()
	if err != nil || got.CPU < 1000 || got.Memory < 64 || got.Disk < 1 {
		t.Errorf("capacity = %+v, %v, want that of a host", got, err)
	}
	if _, err := (&Daemon{Config: Config{Data: filepath.Join(dir, "none")}}).capacity(); err == nil {
		t.Error("capacity of a directory that there is not = nil, want an error")
	}

}
