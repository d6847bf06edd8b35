package daemon

import (
	"strings"
	"testing"

	"glasshouse/fault"
)

func TestWhichAddressesForE2BAreAccepted(t *testing.T) {
	for _, c := range []struct {
		name     string
		e2b      E2B
		insecure bool
		field    string // "": it is accepted
		text     string
	}{
		{"none", E2B{}, false, "", ""},
		{"loopback", E2B{Listen: "127.0.0.1:8083"}, false, "", ""},
		{"no port", E2B{Listen: "127.0.0.1"}, false, "e2b.listen", "is not host:port"},
		{"all addresses", E2B{Listen: ":8083"}, false, "e2b.listen", "would be sent unencrypted"},
		{"all addresses, insecure", E2B{Listen: ":8083"}, true, "", ""},
		{"all addresses by TLS", E2B{Listen: ":8083", TLS: E2BTLS{Auto: true}}, false, "", ""},
		{"a certificate", E2B{Listen: ":443", Domain: "example.com", TLS: E2BTLS{Cert: "c", Key: "k"}}, false, "", ""},
		{"a certificate without a key", E2B{Listen: ":443", Domain: "example.com", TLS: E2BTLS{Cert: "c"}}, false, "e2b.tls", "must be set together"},
		{"a key without a certificate", E2B{Listen: "127.0.0.1:443", TLS: E2BTLS{Key: "k"}}, false, "e2b.tls", "must be set together"},
		{"a certificate without a domain", E2B{Listen: ":443", TLS: E2BTLS{Cert: "c", Key: "k"}}, false, "e2b.domain", "must be set if e2b.tls.cert is set"},
	} {
		c.e2b.VolumeMB = 4096
		err := c.e2b.validate(c.insecure)
		if fault.FieldOf(err) != c.field || c.field != "" && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want the field %q and %q", c.name, err, c.field, c.text)
		}
	}
}
