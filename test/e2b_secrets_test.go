package test_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// A reflector is an external server that returns and keeps the X-Key header of each request.
type reflector struct {
	mu sync.Mutex
	// +checklocks:mu
	got []string
}

func (s *reflector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("X-Key")
	s.mu.Lock()
	s.got = append(s.got, r.Host+" "+key)
	s.mu.Unlock()
	w.Header().Set("X-Echo", key)
	json.NewEncoder(w).Encode(map[string]string{"key": key, "digest": fmt.Sprintf("%x", sha256.Sum256([]byte(key)))})
}

// take returns the headers received since the last call.
func (s *reflector) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.got, "|")
	s.got = nil
	return all
}

// reflected starts a daemon whose sandboxes trust a reflector at api.example.com and
// other.example.com.
func reflected(t *testing.T) (*daemonHarness, *reflector) {
	t.Helper()
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr, "other.example.com": serverAddr})
	seen := &reflector{}
	website(t, world, serverAddr+":443", authority(t, "api.example.com", "other.example.com"), seen)
	website(t, world, serverAddr+":80", nil, seen)
	tree := treeWithUser(t, "curl")
	roots := filepath.Join(tree, "etc/ssl/certs/ca-certificates.crt") // the trust store of sandboxes
	if err := os.MkdirAll(filepath.Dir(roots), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("install", "-m", "644", os.Getenv("SSL_CERT_FILE"), roots).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return open(t, tools()+fmt.Sprintf("observe: {packet_bytes: 9000}\ne2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", tree)), seen
}

// TestE2BSecretsInHeaders uses E2B's unmodified SDK to create secrets and sandboxes that
// send them in request headers.
func TestE2BSecretsInHeaders(t *testing.T) {
	const installed = "GLASSHOUSE_TEST_E2B"
	if os.Getenv(installed) == "" { // the isolated network has no package registry
		t.Setenv(installed, clientsOfE2B(t))
	}
	if !ownWorld(t) {
		return
	}
	h, _ := reflected(t)
	url := h.e2bKey().URL
	value := newCanary()
	t.Setenv("CANARY", value) // for processes started from here on, which excludes the daemon
	sdk := matrix{with: "the SDK, and a server outside"}
	for _, version := range e2bVersions {
		h.scenarios(&sdk, os.Getenv(installed), url, "e2b-"+version, version, "filled.mjs")
	}
	sdk.documented(t)
	if where := h.findValue(value); len(where) > 0 {
		t.Errorf("the value is found in %q", where)
	}
}

// keyed returns rules that set the header X-Key of requests to api.example.com.
func keyed(value string) map[string]any {
	return map[string]any{"rules": map[string]any{"api.example.com": []any{map[string]any{"transform": map[string]any{"headers": map[string]string{"X-Key": value}}}}}}
}

const askAPI = "curl -sS -i -m 20 -H 'X-Key: its own' https://api.example.com/ 2>&1 | tr -d '\\r'"

// TestSandboxSecretsStayOutside follows a canary secret of sandboxes: only the server it is
// meant for receives it, and it is found nowhere else.
func TestSandboxSecretsStayOutside(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	h, seen := reflected(t)
	mine, other := h.e2bKey(), h.e2bKey()
	value := newCanary()
	if status, got := h.e2b(mine.URL, mine.Key, "POST", "/secrets", map[string]any{"name": "key", "value": value}); status != http.StatusCreated {
		t.Fatal(status, got)
	}
	b := h.newBox(mine.URL, mine.Key, map[string]any{"network": keyed("Bearer ${e2b.secrets.key}")})
	sees := func(what string, jid id.Jail, want string) {
		t.Helper()
		said := h.sh(jid, askAPI)
		if got := seen.take(); got != want {
			t.Errorf("%s: the server got %q, want %q; the jail got %q", what, got, want, said)
		}
		if anyOf(forms(value), []byte(said)) {
			t.Errorf("%s: the jail got the value: %q", what, said)
		}
	}
	with, without := "api.example.com Bearer "+value, "api.example.com its own"
	jid := b.jail()
	sees("it", jid, with)

	// The same rules of another team refer to that team's secret, or to none.
	theirs := h.newBox(other.URL, other.Key, map[string]any{"network": keyed("Bearer ${e2b.secrets.key}")})
	sees("another key's", theirs.jail(), "")
	if status, _ := h.e2b(other.URL, other.Key, "POST", "/secrets", map[string]any{"name": "key", "value": "sk-theirs"}); status != http.StatusCreated {
		t.Error(status)
	}
	sees("another key's, with a secret of that name", theirs.jail(), "api.example.com Bearer sk-theirs")
	jails := []id.Jail{jid, theirs.jail()}

	// The operator can list the secret, but cannot grant it or create a jail with it.
	if out := h.says("secret", "ls"); !strings.Contains(out, ":key") || strings.Contains(out, value) {
		t.Errorf("secret ls: got %q", out)
	}
	list, err := h.Secrets(t.Context())
	if err != nil || len(list) != 2 || list[0].Owner == "" {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	for _, delivery := range []string{"file", "inject"} {
		g := wire.GrantSecret{Jail: jid, Delivery: delivery}
		if delivery == "inject" {
			g.Hosts = []string{"other.example.com"}
		}
		if _, err := h.GrantSecret(t.Context(), list[0].Name, g); !errors.Is(err, fault.Denied) {
			t.Errorf("grant as %s: got %v, want denied", delivery, err)
		}
	}
	var snapshots []id.Snapshot
	s, err := h.TakeSnapshot(t.Context(), jid, wire.TakeSnapshot{})
	switch {
	case errors.Is(err, fault.Unsupported):
	case err != nil:
		t.Fatal(err)
	default:
		snapshots = append(snapshots, s.ID)
		made, err := h.BranchSnapshot(t.Context(), s.ID, wire.Branch{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		jails = append(jails, made.Jails[0].ID)
		sees("a branch without a grant", made.Jails[0].ID, without)
	}
	// Concurrent forks and a resumed sandbox have the secret.
	forks := 3
	if thorough {
		forks = 50
	}
	var wg sync.WaitGroup
	for _, f := range b.forks(forks) {
		fork := f.jail()
		wg.Go(func() { h.sh(fork, askAPI) })
	}
	wg.Wait()
	if got := seen.take(); strings.Count(got, with) != forks {
		t.Errorf("with %d forks the server got %q", forks, got)
	}
	b.do("POST", "/pause", nil, http.StatusNoContent)
	if thorough {
		if where := h.findValue(value); len(where) > 0 {
			t.Errorf("while the sandbox is paused, the value is found in %q", where)
		}
	}
	b.do("POST", "/connect", map[string]any{"timeout": 300}, http.StatusCreated)
	sees("resumed", jid, with)

	// Each use is recorded with the secret's name; the value is stored nowhere.
	if got := h.secretEntries(jid); !strings.HasPrefix(got, "used") || strings.Contains(got, "refused") {
		t.Errorf("got audit log entries %q", got)
	}
	h.sh(jid, "for i in 1 2 3; do "+askAPI+"; done > /tmp/heard 2>&1; env > /tmp/env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline > /tmp/proc 2>/dev/null; sync")
	seen.take()
	snap := b.do("POST", "/snapshots", nil, http.StatusCreated)["snapshotID"].(string)
	ref, _, _ := strings.Cut(snap, ":")
	snapshots = append(snapshots, id.Snapshot(ref))
	if where := h.findValue(value); len(where) > 0 {
		t.Errorf("the value is found in %q", where)
	}
	if where := h.apiLeaks(value, jails[:2], snapshots); len(where) > 0 {
		t.Errorf("the value is in API responses %q", where)
	}
	for _, path := range []string{"/secrets", "/secrets/key", "/sandboxes/" + b.id, "/v2/sandboxes", "/v2/sandboxes/" + b.id + "/logs", "/sandboxes/" + b.id + "/logs", "/snapshots"} {
		var got any
		h.e2bInto(b.url, mine.Key, "GET", path, nil, &got)
		if text, _ := json.Marshal(got); anyOf(forms(value), text) {
			t.Errorf("GET %s reveals the value: %s", path, text)
		}
	}

	// The secret survives a kill of the daemon at any time, until it is destroyed.
	h.kill()
	h.start()
	b.url = h.e2bKey().URL
	sees("with the next daemon", jid, with)
	if status, _ := h.e2b(b.url, mine.Key, "POST", "/secrets/key", map[string]any{"value": value + "2"}); status != http.StatusOK {
		t.Error(status)
	}
	h.kill() // an acknowledged change must survive
	h.start()
	b.url = h.e2bKey().URL
	sees("renewed", jid, with+"2")
	if status, _ := h.e2b(b.url, mine.Key, "DELETE", "/secrets/key", nil); status != http.StatusNoContent {
		t.Error(status)
	}
	sees("destroyed", jid, "")
	if thorough {
		h.kill()
		h.start()
		b.url = h.e2bKey().URL
		sees("destroyed, with the next daemon", jid, "")
		if where := h.findValue(value); len(where) > 0 {
			t.Errorf("after it is destroyed the value is found in %q", where)
		}
	}
	// Self-test: the search finds a stored value.
	if status, _ := h.e2b(b.url, mine.Key, "PUT", "/sandboxes/"+b.id+"/network", keyed(value)); status != http.StatusNoContent {
		t.Error(status)
	}
	if where := h.findValue(value); len(where) == 0 {
		t.Error("the search does not find a plain-text value in a rule")
	}
}
