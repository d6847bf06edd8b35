package event

import (
	"net/netip"
	"testing"
)

// FuzzParseAddr compares parseAddr with net/netip.
func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "01.2.3.4", "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "fe80::1", "02:00:00:00:00:01", "1::2::3", ":::", "12345::", "1:2", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := netip.ParseAddr(s)
		if err == nil && want.Zone() != "" {
			return // addresses with a zone are not in the kernel's format
		}
		got, ok := parseAddr(s)
		if ok && err != nil {
			for i := range len(s) {
				if s[i] == '%' {
					return
				}
			}
		}
		if ok != (err == nil) || ok && got != want.Unmap() {
			t.Errorf("parseAddr(%q) = %v, %v; netip says %v, %v", s, got, ok, want, err)
		}
	})
}
