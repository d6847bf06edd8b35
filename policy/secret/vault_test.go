package secret_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/policy/secret"
)

// A fakeVault implements a part of Vault's HTTP API: reads of a key-value store of version 2
// under kv/, tokens, namespaces, and logins by AppRole.
type fakeVault struct {
	*httptest.Server
	dir string

	mu sync.Mutex
	// +checklocks:mu
	reads int
	// +checklocks:mu
	logins int
	// +checklocks:mu
	tokens map[string]bool
	// +checklocks:mu
	lease int // lease of a login in seconds
	// +checklocks:mu
	status int // status of all responses, if set
	// +checklocks:mu
	values map[string]any // by path
	// +checklocks:mu
	slow chan struct{} // reads block until it is closed; nil: they do not block
}

const (
	roleID   = "0b3f1d9c-role"
	secretID = "5f3a-secret-id"
)

func newFakeVault(t *testing.T) *fakeVault {
	s := &fakeVault{dir: t.TempDir(), tokens: map[string]bool{"root-token": true}, lease: 3600, values: map[string]any{
		"app": map[string]any{"key": canary, "number": 42, "deep": map[string]any{"a": 1}, "empty": "", "escaped": "line\n\u00e4\"" + canary},
	}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, text := range map[string]string{"ca.pem": string(ca), "token": "root-token\n", "secret-id": secretID + "\n"} {
		if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *fakeVault) path(name string) string { return filepath.Join(s.dir, name) }

// requests returns the number of reads and of logins.
func (s *fakeVault) requests() (reads, logins int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.logins
}

func (s *fakeVault) setTokens(tokens ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = map[string]bool{}
	for _, token := range tokens {
		s.tokens[token] = true
	}
}

func (s *fakeVault) setValue(path, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[path] = map[string]any{"key": value}
}

func (s *fakeVault) setStatus(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// fail writes an error response in Vault's format. It contains the canary, as the response of
// a malicious server could.
func fail(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"errors": []string{why, canary}})
}

func (s *fakeVault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status, slow := s.status, s.slow
	s.mu.Unlock()
	switch {
	case status >= 300 && status < 400:
		w.Header().Set("Location", "https://127.0.0.1:1/v1/"+canary)
		w.WriteHeader(status)
		return
	case status == 200:
		fmt.Fprintf(w, "<html>%s", canary)
		return
	case status != 0:
		fail(w, status, "Vault is sealed")
		return
	case r.Header.Get("X-Vault-Request") != "true":
		fail(w, 400, "missing X-Vault-Request")
		return
	}
	if r.URL.Path == "/v1/auth/approle/login" && r.Method == http.MethodPost {
		s.login(w, r)
		return
	}
	s.mu.Lock()
	known := s.tokens[r.Header.Get("X-Vault-Token")]
	s.mu.Unlock()
	if !known || r.URL.Path == "/v1/kv/data/forbidden" {
		fail(w, 403, "permission denied")
		return
	}
	if slow != nil {
		select {
		case <-slow:
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	name := strings.TrimPrefix(r.URL.Path, "/v1/kv/data/")
	if ns := r.Header.Get("X-Vault-Namespace"); ns != "" {
		name = ns + ":" + name
	}
	data, ok := s.values[name]
	switch {
	case r.Method != http.MethodGet:
		fail(w, 405, "unsupported operation")
	case name == "deleted": // format of a deleted version
		w.WriteHeader(404)
		fmt.Fprint(w, `{"request_id":"x","lease_duration":0,"data":{"data":null,"metadata":{"deletion_time":"2024-01-01T00:00:00Z","destroyed":false,"version":2}}}`)
	case !ok:
		w.WriteHeader(404)
		fmt.Fprint(w, `{"errors":[]}`)
	default:
		json.NewEncoder(w).Encode(map[string]any{
			"request_id": "d7e1", "lease_id": "", "renewable": false, "lease_duration": 0, "wrap_info": nil, "warnings": nil, "auth": nil,
			"data": map[string]any{"data": data, "metadata": map[string]any{"version": 1, "destroyed": false}},
		})
	}
}

func (s *fakeVault) login(w http.ResponseWriter, r *http.Request) {
	var q struct {
		RoleID   string `json:"role_id"`
		SecretID string `json:"secret_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.RoleID != roleID || q.SecretID != secretID {
		fail(w, 400, "invalid role or secret ID")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins++
	token := fmt.Sprintf("hvs.login-%d", s.logins)
	s.tokens[token] = true
	json.NewEncoder(w).Encode(map[string]any{"auth": map[string]any{"client_token": token, "lease_duration": s.lease, "renewable": true, "token_type": "service"}})
}

func (s *fakeVault) client(t *testing.T, change ...func(*secret.VaultConfig)) *secret.Vault {
	t.Helper()
	cfg := secret.VaultConfig{Address: s.URL, CAFile: s.path("ca.pem"), TokenFile: s.path("token")}
	for _, f := range change {
		f(&cfg)
	}
	v, err := secret.NewVault(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func byRole(s *fakeVault) func(*secret.VaultConfig) {
	return func(c *secret.VaultConfig) { c.TokenFile, c.RoleID, c.SecretIDFile = "", roleID, s.path("secret-id") }
}

func fetch(t *testing.T, v *secret.Vault, reference string) string {
	t.Helper()
	b, err := v.Fetch(t.Context(), reference)
	if err != nil {
		t.Fatalf("%s: %v", reference, err)
	}
	return string(b)
}

func TestVaultFetch(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t)
	for key, want := range map[string]string{"key": canary, "number": "42", "deep": `{"a":1}`, "escaped": "line\nä\"" + canary} {
		if got := fetch(t, v, "kv/data/app#"+key); got != want {
			t.Errorf("Fetch of key %s = %q, want %q", key, got, want)
		}
	}
	s.setValue("team-a:app", "theirs")
	if got := fetch(t, s.client(t, func(c *secret.VaultConfig) { c.Namespace = "team-a" }), "kv/data/app#key"); got != "theirs" {
		t.Errorf("Fetch with a namespace = %q, want theirs", got)
	}
}

func TestVaultCache(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t, func(c *secret.VaultConfig) { c.CacheTTL = time.Hour })
	first, err := v.Fetch(t.Context(), "kv/data/app#key")
	if err != nil {
		t.Fatal(err)
	}
	clear(first) // as the Manager does
	for range 5 {
		if got := fetch(t, v, "kv/data/app#key"); got != canary {
			t.Errorf("Fetch = %q, want %q", got, canary)
		}
	}
	if reads, _ := s.requests(); reads != 1 {
		t.Errorf("%d reads, want 1", reads)
	}
	s.setValue("app", "changed")
	now := s.client(t, func(c *secret.VaultConfig) { c.CacheTTL = time.Nanosecond })
	for range 2 {
		if got := fetch(t, now, "kv/data/app#key"); got != "changed" {
			t.Errorf("Fetch with a short cache = %q, want changed", got)
		}
	}
	v.Close()
	if got := fetch(t, v, "kv/data/app#key"); got != "changed" {
		t.Errorf("Fetch after Close = %q, want changed", got)
	}
}

func TestVaultAppRoleLogin(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t, byRole(s), func(c *secret.VaultConfig) { c.CacheTTL = time.Nanosecond })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { fetch(t, v, "kv/data/app#key") })
	}
	all.Wait()
	if _, logins := s.requests(); logins != 1 {
		t.Errorf("%d logins for concurrent uses, want 1", logins)
	}
	s.setTokens() // revokes the token
	if got := fetch(t, v, "kv/data/app#key"); got != canary {
		t.Errorf("Fetch = %q, want %q", got, canary)
	}
	s.mu.Lock()
	s.lease = 1 // lease of the next login
	s.mu.Unlock()
	s.setTokens()
	fetch(t, v, "kv/data/app#key")
	_, before := s.requests()
	time.Sleep(950 * time.Millisecond) // 0.9 of the lease
	fetch(t, v, "kv/data/app#key")
	if _, logins := s.requests(); logins != before+1 {
		t.Errorf("%d logins after the token expired, want %d", logins, before+1)
	}
	if _, err := v.Fetch(t.Context(), "kv/data/forbidden#key"); !errors.Is(err, fault.Denied) {
		t.Errorf("Fetch of a forbidden path = %v, want %v", err, fault.Denied)
	}
}

func TestVaultTokenFileIsReadAgain(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t, func(c *secret.VaultConfig) { c.CacheTTL = time.Nanosecond })
	fetch(t, v, "kv/data/app#key")
	s.setTokens("next-token")
	if err := os.WriteFile(s.path("token"), []byte("next-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, v, "kv/data/app#key"); got != canary {
		t.Errorf("Fetch = %q, want %q", got, canary)
	}
	if err := os.Chmod(s.path("token"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t).Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Denied) || strings.Contains(err.Error(), "token\"") {
		t.Errorf("Fetch with a token file readable by others = %v, want %v", err, fault.Denied)
	}
}

func TestVaultErrorsContainNoValue(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t)
	check := func(what string, want fault.Kind, reference string) {
		t.Helper()
		b, err := v.Fetch(t.Context(), reference)
		if fault.KindOf(err) != want || len(b) > 0 {
			t.Errorf("%s: got %v, want %s", what, err, want)
		}
		if err != nil && (strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), canary) || strings.Contains(err.Error(), "root-token")) {
			t.Errorf("%s: the error contains a value: %v", what, err)
		}
	}
	check("no permission", fault.Denied, "kv/data/forbidden#key")
	check("missing path", fault.NotFound, "kv/data/none#key")
	check("deleted version", fault.NotFound, "kv/data/deleted#key")
	check("missing key", fault.NotFound, "kv/data/app#other")
	for status, want := range map[int]fault.Kind{
		503: fault.Unavailable, 500: fault.Unavailable, 429: fault.Exhausted, 400: fault.Denied, 412: fault.Unavailable,
		473: fault.Unavailable, 307: fault.Unavailable, 200: fault.Unavailable, 204: fault.Unavailable,
	} {
		s.setStatus(status)
		check(fmt.Sprint("status ", status), want, "kv/data/app#key")
	}
	s.setStatus(503)
	if _, err := s.client(t, byRole(s)).Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Unavailable) || fault.RemedyOf(err) != "unseal Vault" {
		t.Errorf("login to a sealed Vault = %v, want %v", err, fault.Unavailable)
	}
	s.setStatus(0)
	wrong := s.client(t, byRole(s), func(c *secret.VaultConfig) { c.RoleID = "other" })
	if _, err := wrong.Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Denied) || strings.Contains(err.Error(), secretID) {
		t.Errorf("Fetch with another role = %v, want %v", err, fault.Denied)
	}
	s.Close()
	check("closed server", fault.Unavailable, "kv/data/app#key")
}

func TestVaultTimeout(t *testing.T) {
	s := newFakeVault(t)
	unblock := make(chan struct{})
	s.mu.Lock()
	s.slow = unblock
	s.mu.Unlock()
	defer close(unblock)
	v := s.client(t, func(c *secret.VaultConfig) { c.Timeout = 50 * time.Millisecond })
	if _, err := v.Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Timeout) {
		t.Errorf("Fetch = %v, want %v", err, fault.Timeout)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A server that sees the end of the request may end its response before the client stops to
// read: the client then has a response, without content.
func TestVaultResponseAfterDeadlineIsTimeout(t *testing.T) {
	v := newFakeVault(t).client(t, func(c *secret.VaultConfig) { c.Timeout = 10 * time.Millisecond })
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		v.SetTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return &http.Response{StatusCode: status, Body: http.NoBody}, nil
		}))
		if _, err := v.Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Timeout) {
			t.Errorf("Fetch with status %d after the deadline = %v, want %v", status, err, fault.Timeout)
		}
	}
}

func TestVaultCertificateIsVerified(t *testing.T) {
	s := newFakeVault(t)
	v := s.client(t, func(c *secret.VaultConfig) { c.CAFile = "" })
	if _, err := v.Fetch(t.Context(), "kv/data/app#key"); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Fetch = %v, want a certificate error", err)
	}
}

func TestInvalidVaultConfig(t *testing.T) {
	good := secret.VaultConfig{Address: "https://vault.example.com:8200", TokenFile: "/t"}
	if _, err := secret.NewVault(good); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*secret.VaultConfig){
		"no address":             func(c *secret.VaultConfig) { c.Address = "" },
		"no TLS":                 func(c *secret.VaultConfig) { c.Address = "http://vault.example.com:8200" },
		"password in address":    func(c *secret.VaultConfig) { c.Address = "https://u:p@vault.example.com" },
		"path in address":        func(c *secret.VaultConfig) { c.Address = "https://vault.example.com/v1" },
		"no identity":            func(c *secret.VaultConfig) { c.TokenFile = "" },
		"two identities":         func(c *secret.VaultConfig) { c.RoleID, c.SecretIDFile = "r", "/s" },
		"role without secret id": func(c *secret.VaultConfig) { c.TokenFile, c.RoleID = "", "r" },
		"missing CA file":        func(c *secret.VaultConfig) { c.CAFile = "/nowhere" },
	} {
		c := good
		change(&c)
		if _, err := secret.NewVault(c); err == nil {
			t.Errorf("NewVault with %s: got no error", what)
		}
	}
	v, err := secret.NewVault(secret.VaultConfig{Address: "http://127.0.0.1:8200", TokenFile: "/t"})
	if err != nil {
		t.Errorf("NewVault with a loopback address = %v", err)
	}
	for _, path := range []string{"kv/data/app#key", "team/kv/data/a/b/c#k", "kv/data/app#with#more"} {
		if err := v.Check(path); err != nil {
			t.Errorf("Check(%q) = %v", path, err)
		}
	}
	for _, path := range []string{"", "#", "kv/data/app", "kv/data/app#", "kv/app#key", "kv/data#key", "/kv/data/app#key", "kv/data/../../sys/seal#k", "kv//data/app#k", "../kv/data/a#k", "kv/data/a?version=1#k", "kv/data/%2e%2e#k", "data/app#k"} {
		if err := v.Check(path); err == nil {
			t.Errorf("Check(%q): got no error", path)
		}
	}
}

func FuzzVaultReference(f *testing.F) {
	f.Add("kv/data/app#key")
	f.Add("kv/data/../../sys/seal#k")
	v, err := secret.NewVault(secret.VaultConfig{Address: "http://127.0.0.1:8200", TokenFile: "/t"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, reference string) {
		if v.Check(reference) != nil {
			return
		}
		path, _, _ := strings.Cut(reference, "#")
		q, err := http.NewRequest("GET", secret.RequestURL("https://v.example", path), nil)
		if err != nil {
			return // Fetch refuses it
		}
		if q.URL.Path != "/v1/"+path || q.URL.RawQuery != "" || q.URL.Host != "v.example" || strings.Contains(q.URL.Path, "/../") {
			t.Errorf("request URL of %q = %s", reference, q.URL)
		}
	})
}
