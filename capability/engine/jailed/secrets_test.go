package jailed

import (
	"context"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/jail"
)

// checks implements Jails and accepts every spec.
type checks struct{ Jails }

func (checks) Check(s jail.Spec) (jail.Spec, error) { return s, nil }
func (checks) Backends(_ context.Context) []jail.BackendInfo {
	return []jail.BackendInfo{{Name: "oci", Runtime: runsc, Usable: true}}
}

func TestSecretFilesInJailSpec(t *testing.T) {
	all, err := manifest.Read("m.rtfs", []byte(`
		(capability "a.file" :version "1.0.0" :effects [:network] :secrets [:KEY]
		  :runtime {:type :gvisor :image "x" :entrypoint ["/x"]}
		  :network {:mode :proxy :allowed-hosts ["a.example.com"]})
		(capability "a.inject" :version "1.0.0" :effects [:network] :secrets [:KEY]
		  :runtime {:type :gvisor :image "x" :entrypoint ["/x"]}
		  :network {:mode :proxy :allowed-hosts ["a.example.com"] :inject [{:secret :KEY :bearer true}]})`))
	if err != nil {
		t.Fatal(err)
	}
	e := New(Config{Jails: checks{}, Dir: t.TempDir()})
	for i, files := range []bool{true, false} {
		c := &engine.Installed{Capability: all[i]}
		if err := e.Prepare(t.Context(), c); err != nil {
			t.Errorf("Prepare of %s = %v, want no error", c.ID, err)
		}
		spec, err := e.specOf(c)
		if err != nil || spec.SecretFiles != files {
			t.Errorf("the jail of %s has SecretFiles %t, %v, want %t", c.ID, spec.SecretFiles, err, files)
		}
	}
}
