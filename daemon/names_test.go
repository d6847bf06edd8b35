package daemon

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/id"
)

func question(t testing.TB, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pair() *group {
	return &group{members: map[id.Jail]member{
		"j-aaaaaaaaaaaa": {"web", netip.MustParseAddr("100.64.0.1")},
		"j-bbbbbbbbbbbb": {"web", netip.MustParseAddr("100.64.0.2")},
		"j-cccccccccccc": {"", netip.MustParseAddr("100.64.0.3")},
	}}
}

func TestMemberIsResolvedByEachName(t *testing.T) {
	g := pair()
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
		code dnsmessage.RCode
	}{
		{"web.", dnsmessage.TypeA, "100.64.0.1", 0},
		{"WEB.", dnsmessage.TypeA, "100.64.0.1", 0},
		{"j-bbbbbbbbbbbb.", dnsmessage.TypeA, "100.64.0.2", 0},
		{"j-cccccccccccc.", dnsmessage.TypeA, "100.64.0.3", 0},
		{"web.", dnsmessage.TypeAAAA, "", 0},
		{"web.", dnsmessage.TypeTXT, "", 0},
		{"elsewhere.example.", dnsmessage.TypeA, "", dnsmessage.RCodeNameError},
		{".", dnsmessage.TypeA, "", dnsmessage.RCodeNameError}, // does not match members without a name
	} {
		var m dnsmessage.Message
		if err := m.Unpack(g.answer(question(t, c.name, c.kind))); err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(m.Answers) == 1 {
			got = netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
		}
		if got != c.want || m.RCode != c.code || !m.Response || m.ID != 7 {
			t.Errorf("%s %v: %q, %v; want %q, %v", c.name, c.kind, got, m.RCode, c.want, c.code)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add(question(f, "web.", dnsmessage.TypeA))
	f.Add([]byte{0})
	g := pair()
	f.Fuzz(func(t *testing.T, b []byte) {
		if out := g.answer(b); out != nil && len(out) > len(b)+64 {
			t.Errorf("an answer of %d bytes to a question of %d", len(out), len(b))
		}
	})
}
