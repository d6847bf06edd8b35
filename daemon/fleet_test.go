package daemon

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/agents/run"
	"glasshouse/e2b"
	"glasshouse/e2b/template"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/store"
)

func TestInitFleet(t *testing.T) {
	data := filepath.Join(t.TempDir(), "new")
	authority, err := InitFleet(data)
	if err != nil || !strings.HasPrefix(authority, "sha256:") {
		t.Fatalf("InitFleet = %q, %v, want a fingerprint", authority, err)
	}
	node, err := readInstanceID(data)
	if err != nil || node == "" {
		t.Errorf("instance ID = %q, %v, want one for the certificate", node, err)
	}
	if _, err := InitFleet(data); !errors.Is(err, fault.Conflict) {
		t.Errorf("second InitFleet = %v, want conflict", err)
	}
	if again, err := nodeID(data); err != nil || again != node {
		t.Errorf("instance ID = %q, %v, want %q as before", again, err, node)
	}
	if err := JoinFleet(t.Context(), data, "127.0.0.1:1", "t", authority); !errors.Is(err, fault.Conflict) {
		t.Errorf("JoinFleet of a node in a fleet = %v, want conflict", err)
	}
}

// Tokens of a daemon remain valid when it joins a fleet, also if the move is interrupted.
func TestTokensAreShared(t *testing.T) {
	open := func() *store.Store {
		s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	d := &Daemon{store: open(), work: open()}
	own, shared := &access.Tokens{Store: d.store.Tokens()}, &access.Tokens{Store: d.work.Tokens()}
	var secrets []string
	for _, name := range []string{"ann", "ben"} {
		_, secret, err := own.Create(t.Context(), name, access.Operator, nil, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	list, err := own.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Store.Add(t.Context(), list[0]); err != nil { // by a daemon that was killed
		t.Fatal(err)
	}
	for range 2 {
		if err := d.shareTokens(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range secrets {
		if _, err := shared.Check(t.Context(), secret); err != nil {
			t.Errorf("a token in the shared database: %v", err)
		}
	}
	// A token that another daemon revokes does not come back.
	if err := shared.Revoke(t.Context(), list[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := d.shareTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Check(t.Context(), secrets[0]); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("a revoked token: %v, want unauthenticated", err)
	}
}

// Jails that others depend on stay on their node.
func TestMovableJails(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "g.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	d := &Daemon{work: s}
	key, err := chain.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	log, err := chain.Open(t.Context(), chain.Config{Key: key, Store: s.Chain()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	runs, err := run.New(t.Context(), run.Config{Store: s.Runs(), Chain: log, Holder: "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runs.Close() })
	if _, err := runs.Open(t.Context(), run.Session{ID: "shared", Settings: run.Settings{Jail: "j-aaaaaaaaaaaa"}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		jail jail.Jail
		want fault.Kind
	}{
		"plain":             {jail.Jail{ID: "j-bbbbbbbbbbbb", Spec: jail.Spec{Labels: map[string]string{"team": "a"}}}, ""},
		"jail of a session": {jail.Jail{ID: "j-aaaaaaaaaaaa"}, fault.Unsupported},
		"sandbox":           {jail.Jail{Spec: jail.Spec{Labels: map[string]string{e2b.LabelSandbox: "x"}}}, fault.Unsupported},
		"build":             {jail.Jail{Spec: jail.Spec{Labels: map[string]string{template.LabelBuild: "x"}}}, fault.Unsupported},
	} {
		if err := d.movable(t.Context(), c.jail); fault.KindOf(err) != c.want {
			t.Errorf("%s: movable = %v, want %q", name, err, c.want)
		}
	}
}
