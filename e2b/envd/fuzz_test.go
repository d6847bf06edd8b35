package envd

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzLink checks that no forged signature is accepted.
func FuzzLink(f *testing.F) {
	f.Add("path=a&signature=v1_x", "")
	f.Add("path=a&username=b&signature_expiration=99999999999&signature=v1_", "wrong")
	f.Add("signature&signature_expiration=-1", "token")
	f.Fuzz(func(t *testing.T, query, said string) {
		q, _ := url.ParseQuery(query)
		if signed("an unguessable token", said, q, "read", time.Now()) == nil {
			t.Errorf("the query %q with the token %q was accepted", query, said)
		}
	})
}

// FuzzPath checks that each path is rejected or becomes absolute.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"", "~", "~/a", "~root", "a/../../b", "/x//y", "a\x00b", "~\x00", "../../.."} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := (&visit{}).expand(p, "/home/user")
		if err == nil && (!path.IsAbs(got) || strings.ContainsRune(got, 0)) {
			t.Errorf("%q became %q", p, got)
		}
		if got, err := (&visit{}).directory(p); err == nil && !path.IsAbs(got) && !strings.HasPrefix(got, "~/") {
			t.Errorf("the directory %q became %q", p, got)
		}
	})
}

// FuzzName checks that an accepted user name is neither a uid nor contains a group.
func FuzzName(f *testing.F) {
	for _, n := range []string{"", "user", "0", "a:b", "18446744073709551616", "x\ny", "+1", "-1"} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := (&visit{}).named(name)
		if err == nil && (got == "" || strings.ContainsAny(got, ":/\x00\n") || strings.Trim(got, "0123456789") == "") {
			t.Errorf("%q is accepted as the user %q", name, got)
		}
	})
}

// FuzzEncoding checks that gzip is used only for clients that accept it.
func FuzzEncoding(f *testing.F) {
	for _, h := range []string{"gzip", "gzip;q=0", "*;q=0", "identity;q=0, gzip;q=0.5", ";;,,=", "gzip;q=NaN", "br;q=1e309"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, h string) {
		zip, err := wantsGzip(http.Header{"Accept-Encoding": {h}})
		if zip && (err != nil || !strings.Contains(strings.ToLower(h), "gzip") && !strings.Contains(h, "*")) {
			t.Errorf("gzip is used for %q", h)
		}
	})
}

// FuzzNote checks that notes do not exceed protocol.MaxNote and are valid UTF-8.
func FuzzNote(f *testing.F) {
	f.Add("tag", "K", "v", "dir")
	f.Add(strings.Repeat("t", 70_000), "K", "v", "dir")
	f.Add("t", strings.Repeat("K", 70_000), "\xff", "\x00")
	f.Fuzz(func(t *testing.T, tag, key, value, dir string) {
		text, err := note{Tag: &tag, Envs: map[string]string{key: value}, Cwd: &dir}.write()
		if err == nil && (len(text) > 64<<10 || !utf8.ValidString(text)) {
			t.Errorf("a note of %d bytes", len(text))
		}
	})
}
