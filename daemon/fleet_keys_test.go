package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"glasshouse/fault"
	"glasshouse/fleet/pki"
)

// fleetKeys returns a directory with the keys of a new fleet.
func fleetKeys(t *testing.T) string {
	t.Helper()
	files, _, err := NewFleetKeys()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEnroll(t *testing.T) {
	keys := fleetKeys(t)
	join := func(data, keys string) (*pki.Identity, error) {
		d := &Daemon{Config: Config{Data: data, Fleet: Fleet{Listen: "127.0.0.1:1", Keys: keys}}}
		if err := d.enroll(); err != nil {
			return nil, err
		}
		return pki.Open(FleetDir(data))
	}
	data := t.TempDir()
	one, err := join(data, keys)
	if err != nil {
		t.Fatal(err)
	}
	two, err := join(t.TempDir(), keys)
	if err != nil || !one.Authority().Equal(two.Authority()) || one.Issuer() == nil {
		t.Errorf("identities of one fleet = %v and %v, %v", one, two, err)
	}
	again, err := join(data, keys)
	if err != nil || !again.Certificate().Equal(one.Certificate()) {
		t.Errorf("identity after a restart = %+v, %v; want the same certificate", again, err)
	}
	for _, name := range []string{secretsKey, runsKey} {
		want, err := os.ReadFile(filepath.Join(keys, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(FleetDir(data), name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s of the node = %q, %v; want a copy", name, got, err)
		}
		if info, err := os.Stat(filepath.Join(FleetDir(data), name)); err == nil && info.Mode() != 0o600 {
			t.Errorf("mode of %s = %v, want 0600", name, info.Mode())
		}
	}
	if _, err := join(data, fleetKeys(t)); !errors.Is(err, fault.Conflict) {
		t.Errorf("enroll with the keys of another fleet = %v, want conflict", err)
	}
	// A key that does not belong to the certificate would issue certificates that no node accepts.
	mixed := fleetKeys(t)
	data2, err := os.ReadFile(filepath.Join(keys, "authority.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mixed, "authority.key"), data2, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := join(t.TempDir(), mixed); !errors.Is(err, fault.Invalid) {
		t.Errorf("enroll with mixed keys = %v, want invalid", err)
	}
	for _, name := range []string{"authority.pem", "authority.key", secretsKey, runsKey} {
		some := fleetKeys(t)
		if err := os.Remove(filepath.Join(some, name)); err != nil {
			t.Fatal(err)
		}
		fresh := t.TempDir()
		if _, err := join(fresh, some); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("enroll without %s = %v, want not exist", name, err)
		}
		if _, err := join(fresh, keys); err != nil {
			t.Errorf("enroll after a failure = %v", err)
		}
	}
}

func TestKeysAndHostsInConfig(t *testing.T) {
	c := NewConfig(0, "/root")
	c.Fleet, c.Gateway.DB = Fleet{Listen: "10.0.0.1:8443", Keys: "/keys"}, "postgres://db"
	c.Hosts = []string{"Agents.Example.com."}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{"": "10.0.0.1:8443", "10.0.0.2": "10.0.0.2:8443", "fd00::1": "[fd00::1]:8443", "box:9": "box:9"} {
		c.Fleet.Address = address
		if got := c.Fleet.address(); got != want {
			t.Errorf("address of %q = %s, want %s", address, got, want)
		}
	}
	if c.Gateway.KeyFile != filepath.Join(FleetDir(c.Data), runsKey) || c.Hosts[0] != "agents.example.com" {
		t.Errorf("key file = %s, hosts %q", c.Gateway.KeyFile, c.Hosts)
	}
	for _, bad := range []func(*Config){
		func(c *Config) { c.Fleet.Listen = "" },
		func(c *Config) { c.Hosts = []string{"https://agents.example.com"} },
		func(c *Config) { c.Hosts = []string{""} },
		func(c *Config) { c.Hosts = []string{"*.example.com"} },
	} {
		c := NewConfig(0, "/root")
		c.Fleet = Fleet{Listen: "10.0.0.1:8443", Keys: "/keys"}
		c.Gateway.DB = "postgres://db"
		bad(&c)
		if err := c.Validate(); !errors.Is(err, fault.Invalid) {
			t.Errorf("Validate of %+v, hosts %q = %v, want invalid", c.Fleet, c.Hosts, err)
		}
	}
}
