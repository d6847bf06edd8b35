package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

func read(t *testing.T, text string) (Config, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewConfig(0, "/root")
	return c, c.ReadFile(name)
}

func TestDocumentedConfigurationEqualsDefaults(t *testing.T) {
	doc, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	sample := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(doc)
	if sample == nil {
		t.Fatal("docs/reference/configuration.md shows no file")
	}
	got, err := read(t, string(sample[1]))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	want := NewConfig(0, "/root")
	if got.Data != want.Data || got.Listen != want.Listen || got.Backend != want.Backend || got.Runtime != want.Runtime ||
		got.Log != want.Log || got.Rootfs.Default != want.Rootfs.Default || got.Pool != want.Pool || got.Insecure {
		t.Errorf("the documented file gives %+v, the defaults are %+v", got, want)
	}
}

func TestReadFileSetsOnlyItsKeys(t *testing.T) {
	c, err := read(t, "rootfs: {default: {dir: /srv/tree}}\npool: {size: 3, ttl: 90s}\nmounts: {allow: [/srv]}\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Rootfs.Default != (jail.Rootfs{Dir: "/srv/tree"}) || c.Pool != (Pool{3, 90 * time.Second}) || c.Listen != "127.0.0.1:8082" {
		t.Errorf("config = %+v", c)
	}
	if c, err := read(t, ""); err != nil || c.Rootfs.Default.Debian != "bookworm" {
		t.Errorf("an empty file = %+v, %v; want the defaults", c.Rootfs, err)
	}
	for _, text := range []string{"limit: 3", "pool: {sise: 1}", "pool: []", "listen: [", "pool: {ttl: soon}"} {
		if _, err := read(t, text); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q = %v, want invalid", text, err)
		}
	}
}

func TestValidateRejectsUnintendedExposure(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:8082": true, "[::1]:1": true, "localhost:0": true, "": true,
		"0.0.0.0:8082": false, ":8082": false, "10.1.2.3:80": false, "example.com:1": false, "8082": false,
	} {
		c := NewConfig(0, "/root")
		c.Listen = listen
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("listen %q = %v, want ok: %v", listen, err, ok)
		}
	}
	c := NewConfig(0, "/root")
	c.Listen, c.Insecure = "0.0.0.0:1", true
	if err := c.Validate(); err != nil {
		t.Errorf("said --insecure: %v", err)
	}
	c = NewConfig(0, "/root")
	c.Mounts.Allow = []string{"srv"}
	if err := c.Validate(); err == nil || fault.FieldOf(err) != "mounts.allow" {
		t.Errorf("a relative prefix = %v, want it named", err)
	}
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	c, err := read(t, "db: postgres://file\ndata: /from/file\n")
	if err != nil {
		t.Fatal(err)
	}
	c.ReadEnv(func(k string) string {
		return map[string]string{"GLASSHOUSE_DB": "postgres://env"}[k]
	})
	if c.DB != "postgres://env" || c.Data != "/from/file" {
		t.Errorf("db %s, data %s", c.DB, c.Data)
	}
}

func TestListenAddressFromEnvironment(t *testing.T) {
	for _, tt := range []struct {
		listen, addr, want string
		warns              bool
	}{
		{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1", false},
		{"127.0.0.1:1", "", "127.0.0.1:1", false},
		{"", "127.0.0.1:2", "127.0.0.1:2", true}, // the old name
		{"", "http://other:8082", "default", false},
		{"", "unix:///run/glasshouse.sock", "default", false},
	} {
		c := Config{Listen: "default"}
		warning := c.ReadEnv(func(k string) string {
			return map[string]string{"GLASSHOUSE_LISTEN": tt.listen, "GLASSHOUSE_ADDR": tt.addr}[k]
		})
		if c.Listen != tt.want || (warning != "") != tt.warns {
			t.Errorf("GLASSHOUSE_LISTEN=%s GLASSHOUSE_ADDR=%s: listens on %s with the warning %q", tt.listen, tt.addr, c.Listen, warning)
		}
	}
}

func TestWithoutRootNothingNeedsRoot(t *testing.T) {
	c := NewConfig(1000, "/home/u")
	if !strings.HasPrefix(c.Data, "/home/u/") || c.Backend != "bwrap" || c.Runtime != "" || !c.Rootfs.Default.Host {
		t.Errorf("defaults without root = %+v", c)
	}
}

func TestInvalidConfigurationFilesAreRejected(t *testing.T) {
	for _, text := range []string{
		"unknown: 1", "listen: [1]", "pool: {size: many}", "pool: {ttl: 10}", "\t", "listen: a\nlisten: b", "\x00",
		"listen: 127.0.0.1:1\n---\ninsecure: true\n", "first_id: -1", "gateway: {watchdog: {one: {}}}",
	} {
		if c, err := read(t, text); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q = %+v, %v, want invalid", text, c.Pool, err)
		}
	}
	for _, text := range []string{"", "\n# nothing\n", "---\nlisten: 127.0.0.1:1\n", "listen: 127.0.0.1:1\n...\n"} {
		if _, err := read(t, text); err != nil {
			t.Errorf("%q = %v, want it read", text, err)
		}
	}
	c := NewConfig(0, "/root")
	if err := c.ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadFile of none = %v, want that there is none", err)
	}
}

func TestFleetConfig(t *testing.T) {
	shared := Gateway{DB: "postgres://db/g"}
	for _, c := range []struct {
		fleet   Fleet
		gateway Gateway
		field   string // of the error; "" if it is valid
		address string
	}{
		{Fleet{}, Gateway{}, "", ""},
		{Fleet{Name: "box"}, shared, "", ""},
		{Fleet{Listen: "10.0.0.5:8443"}, shared, "", "10.0.0.5:8443"},
		{Fleet{Listen: "0.0.0.0:8443", Address: "box.example:8443", Jails: "none"}, shared, "", "box.example:8443"},
		{Fleet{Listen: "10.0.0.5:8443"}, Gateway{}, "fleet.listen", ""},
		{Fleet{Listen: "10.0.0.5"}, shared, "fleet.listen", ""},
		{Fleet{Listen: "0.0.0.0:8443"}, shared, "fleet.address", ""},
		{Fleet{Listen: ":8443"}, shared, "fleet.address", ""},
		{Fleet{Listen: "[::]:8443"}, shared, "fleet.address", ""},
		{Fleet{Listen: "10.0.0.5:0"}, shared, "fleet.address", ""},
		{Fleet{Listen: "10.0.0.5:8443", Address: "box"}, shared, "fleet.address", ""},
		{Fleet{Address: "10.0.0.5:8443"}, shared, "fleet.address", ""},
		{Fleet{Jails: "none"}, shared, "fleet.jails", ""},
		{Fleet{Listen: "10.0.0.5:8443", Jails: "some"}, shared, "fleet.jails", ""},
	} {
		err := c.fleet.validate(c.gateway)
		if got := fault.FieldOf(err); got != c.field || (err == nil) != (c.field == "") {
			t.Errorf("%+v: %v, want an error about %q", c.fleet, err, c.field)
		}
		if got := c.fleet.address(); err == nil && got != c.address {
			t.Errorf("%+v: other daemons use the address %q, want %q", c.fleet, got, c.address)
		}
	}
}
