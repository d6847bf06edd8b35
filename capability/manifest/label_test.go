package manifest_test

import (
	"testing"

	"glasshouse/capability/manifest"
)

var labels = []manifest.Label{"", "public", "public.place", "redacted", "redacted.chat", "pii", "pii.chat", "pii.chat.message", "pii.email", "secret", "secret.key"}

func TestLabelCovers(t *testing.T) {
	for _, c := range []struct {
		have, want manifest.Label
		covers     bool
	}{
		{"public", "public", true}, {"", "public", true}, {"public", "", true}, {"public", "redacted", false},
		{"redacted", "public", true}, {"pii", "redacted.chat", true}, {"secret", "pii.email", true}, {"secret.key", "pii", true},
		{"pii", "pii.chat.message", true}, {"pii.chat", "pii.chat.message", true}, {"pii.chat", "pii.chats", false},
		{"pii.chat.message", "pii", false}, {"pii.chat.message", "pii.email", false}, {"pii", "secret", false},
		{"nonsense", "pii", true}, {"secret", "nonsense", false},
	} {
		if got := c.have.Covers(c.want); got != c.covers {
			t.Errorf("%q covers %q = %v, want %v", c.have, c.want, got, c.covers)
		}
	}
}

func TestLabelJoin(t *testing.T) {
	for _, c := range []struct{ a, b, want manifest.Label }{
		{"public", "pii.chat", "pii.chat"}, {"", "", "public"}, {"pii.chat.message", "pii.chat.name", "pii.chat"},
		{"pii.chat", "pii.email", "pii"}, {"pii.chat", "pii.chat.message", "pii.chat"}, {"redacted", "secret.key", "secret.key"},
	} {
		if got := c.a.Join(c.b); got != c.want {
			t.Errorf("%q join %q = %q, want %q", c.a, c.b, got, c.want)
		}
	}
	for _, a := range labels {
		for _, b := range labels {
			ab := a.Join(b)
			if ab != b.Join(a) || !ab.Covers(a) || !ab.Covers(b) {
				t.Errorf("%q join %q = %q: not the same from both sides, or not above both", a, b, ab)
			}
			for _, c := range labels {
				if got, want := manifest.Join(a, b, c), a.Join(b.Join(c)); got != want {
					t.Errorf("(%q %q) %q = %q, and %q the other way", a, b, c, got, want)
				}
				if c.Covers(a) && c.Covers(b) && !c.Covers(ab) {
					t.Errorf("%q covers %q and %q, but not their join %q", c, a, b, ab)
				}
			}
		}
	}
}

func TestParseLabel(t *testing.T) {
	for _, s := range []string{"public", "redacted", "pii", "secret", "pii.chat.message", "secret.api-key", "public.x_y"} {
		if l, err := manifest.ParseLabel(s); err != nil || string(l) != s {
			t.Errorf("ParseLabel(%q) = %q, %v", s, l, err)
		}
	}
	for _, s := range []string{"", ":pii", "PII", "pii.", ".pii", "pii..chat", "personal", "pii chat", "pii.Chat"} {
		if l, err := manifest.ParseLabel(s); err == nil {
			t.Errorf("ParseLabel(%q) = %q, want an error", s, l)
		}
	}
}

func TestNoLabelsMeanPublic(t *testing.T) {
	if !manifest.Covered(nil, "public") || manifest.Covered(nil, "pii") || !manifest.Covered([]manifest.Label{"redacted", "pii.chat"}, "pii.chat.message") {
		t.Error("Covered: want public alone for none, and each of several to count")
	}
}
