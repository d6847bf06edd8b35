package cli

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"glasshouse/fault"
)

// pod returns the environment and the credentials of a Pod of a cluster with a server.
func pod(t *testing.T, h http.HandlerFunc) (getenv func(string) string, dir string) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, text := range map[string]string{
		"token": "secret-token\n", "namespace": "agents",
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
	return func(name string) string { return env[name] }, dir
}

func TestCreateSecret(t *testing.T) {
	var status int
	var answer string
	var got struct {
		APIVersion, Kind, Type string
		Metadata               struct{ Name string }
		Data                   map[string][]byte
	}
	getenv, dir := pod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/api/v1/namespaces/agents/secrets" || r.Header.Get("Authorization") != "Bearer secret-token" {
			t.Errorf("request = %s %s with %q", r.Method, r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
		w.Write([]byte(answer))
	})
	k, err := ownCluster(getenv, dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"authority.key": []byte("key\n")}
	for _, c := range []struct {
		status  int
		answer  string
		created bool
		err     fault.Kind
	}{
		{201, "{}", true, ""},
		{409, `{"message":"secrets \"keys\" already exists"}`, false, ""},
		{403, `{"message":"secrets is forbidden"}`, false, fault.Denied},
		{401, "", false, fault.Denied},
		{500, "no JSON", false, fault.Unavailable},
	} {
		status, answer = c.status, c.answer
		created, err := k.createSecret(t.Context(), "keys", files)
		if created != c.created || (err == nil) != (c.err == "") || err != nil && !errors.Is(err, c.err) {
			t.Errorf("createSecret with status %d = %t, %v; want %t, %q", c.status, created, err, c.created, c.err)
		}
	}
	if got.APIVersion != "v1" || got.Kind != "Secret" || got.Type != "Opaque" || got.Metadata.Name != "keys" || string(got.Data["authority.key"]) != "key\n" {
		t.Errorf("Secret = %+v", got)
	}
	if _, err := ownCluster(func(string) string { return "" }, dir); !errors.Is(err, fault.Unsupported) {
		t.Errorf("ownCluster outside of Kubernetes = %v, want unsupported", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ownCluster(getenv, dir); !errors.Is(err, fault.Invalid) {
		t.Errorf("ownCluster without a certificate = %v, want invalid", err)
	}
}

func TestFleetKeysCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	env := map[string]string{"HOME": t.TempDir()}
	if code, out, errs := runWithoutDaemon(t, env, "fleet", "init", "--keys", dir); code != 0 {
		t.Fatalf("fleet init --keys = %d, %s, %s", code, out, errs)
	}
	entries, err := os.ReadDir(dir)
	modes := map[string]os.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		modes[e.Name()] = info.Mode()
	}
	if names := slices.Sorted(maps.Keys(modes)); err != nil || !slices.Equal(names, []string{"authority.key", "authority.pem", "runs.key", "secrets.key"}) {
		t.Errorf("files = %q, %v", names, err)
	}
	for name, mode := range modes {
		if mode != 0o600 {
			t.Errorf("mode of %s = %v, want 0600", name, mode)
		}
	}
	if code, _, errs := runWithoutDaemon(t, env, "fleet", "init", "--keys", dir); code == 0 {
		t.Errorf("fleet init has replaced keys: %s", errs)
	}
	if code, _, errs := runWithoutDaemon(t, env, "fleet", "init", "--kubernetes-secret", "keys"); code == 0 {
		t.Errorf("fleet init has created a Secret outside of Kubernetes: %s", errs)
	}
}
