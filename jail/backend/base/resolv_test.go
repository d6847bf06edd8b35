package base

import (
	"strings"
	"testing"
)

func TestReachableResolvers(t *testing.T) {
	for _, tt := range []struct{ conf, want string }{
		{"nameserver 127.0.0.53\n", ""},
		{"nameserver ::1\nsearch example.org\n", ""},
		{"# comment\nsearch a.example\nnameserver 127.0.0.1\nnameserver  9.9.9.9 \noptions edns0\nsortlist x\n", "search a.example\nnameserver 9.9.9.9\noptions edns0\n"},
		{"nameserver fe80::1%eth0\nnameserver 2001:db8::1\n", "nameserver 2001:db8::1\n"},
		{"nameserver not-an-address\nnameserver 0.0.0.0\n", ""},
		{"", ""},
	} {
		if got := reachable([]byte(tt.conf)); got != tt.want {
			t.Errorf("reachable(%q) = %q, want %q", tt.conf, got, tt.want)
		}
	}
}

func FuzzReachable(f *testing.F) {
	f.Add([]byte("nameserver 9.9.9.9\nsearch x\n"))
	f.Fuzz(func(t *testing.T, conf []byte) {
		got := reachable(conf)
		if got != "" && !strings.Contains(got, "nameserver ") {
			t.Errorf("reachable(%q) = %q, without a name server", conf, got)
		}
		if again := reachable([]byte(got)); again != got {
			t.Errorf("reachable of its own result %q = %q", got, again)
		}
	})
}
