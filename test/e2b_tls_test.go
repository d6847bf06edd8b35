package test_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/capability/mcp/mcptest"
)

// pythonSDKs are the tested releases of the Python package e2b.
var pythonSDKs = newest("1.0.5", "2.63.0")

// exports returns the environment variables that glasshouse e2b prints.
func (h *daemonHarness) exports() map[string]string {
	h.Helper()
	h.Setenv("XDG_STATE_HOME", h.TempDir())
	out, errs, code := h.glasshouse(h.data, "e2b")
	if code != 0 {
		h.Fatalf("glasshouse e2b: %d %s", code, errs)
	}
	vars := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok {
			h.Fatalf("glasshouse e2b printed %q, want a variable", line)
		}
		vars[name] = value
	}
	return vars
}

// TestE2BSDKsOverTLS uses only the output of glasshouse e2b. SDKs before 2.0 accept
// only a domain, which they use with TLS.
func TestE2BSDKsOverTLS(t *testing.T) {
	dir := clientsOfE2B(t)
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t)), "--e2b-tls")
	vars := h.exports()
	if !strings.HasPrefix(vars["E2B_API_URL"], "https://127.0.0.1:") || !strings.HasPrefix(vars["E2B_DOMAIN"], "localhost:") {
		t.Fatalf("got %v, want an address by TLS and a domain", vars)
	}

	// Check which connections the printed certificate authority verifies.
	text, err := os.ReadFile(vars["NODE_EXTRA_CA_CERTS"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatalf("%s is not a certificate", text)
	}
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	resp, err := trusting.Get(vars["E2B_API_URL"] + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("/health: got %d by HTTP/%d, want 200 by HTTP/2", resp.StatusCode, resp.ProtoMajor)
	}
	if _, err := http.Get(vars["E2B_API_URL"] + "/health"); err == nil {
		t.Error("a client without the certificate authority got a response")
	}
	resp, err = http.Get(strings.Replace(vars["E2B_API_URL"], "https:", "http:", 1) + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: got %d, want 400", resp.StatusCode)
	}

	old := matrix{with: "SDKs by TLS", cannot: map[string]string{
		// Its parser rejects fields that the protocol added later.
		"Python 1.0.5/list and stat files": `"filesystem.EntryInfo" has no field named "size"`,
	}}
	env := func(names ...string) []string {
		env := os.Environ()
		for _, name := range names {
			env = append(env, name+"="+vars[name])
		}
		return env
	}
	for _, version := range newest("1.0.5", "1.5.0") {
		cmd := exec.CommandContext(t.Context(), "node", "--import", "./names.mjs", "run.mjs", "e2b-"+version, "old.mjs")
		cmd.Dir = dir
		cmd.Env = env("E2B_API_KEY", "E2B_DOMAIN", "NODE_EXTRA_CA_CERTS")
		h.outcomes(&old, "JavaScript "+version, cmd)
	}
	for _, version := range pythonSDKs {
		cmd := exec.CommandContext(t.Context(), pythonWith(t, "e2b=="+version), "old.py")
		cmd.Dir = dir
		cmd.Env = env("E2B_API_KEY", "E2B_DOMAIN", "SSL_CERT_FILE")
		h.outcomes(&old, "Python "+version, cmd)
	}
	old.documented(t)
}

// pythonWith returns a Python that has a package of PyPI.
func pythonWith(t *testing.T, requirement string) string {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "python3", "-c", "import venv, ensurepip").Run(); err != nil {
		t.Skipf("python3 cannot make environments: %v", err)
	}
	version, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print(sys.implementation.cache_tag)").Output()
	if err != nil {
		t.Fatal(err)
	}
	name := "venv-" + strings.TrimSpace(string(version)) + "-" + requirement
	const python = "bin/python"
	return filepath.Join(mcptest.Cached(t, name, python, func(dir string) {
		for _, cmd := range []*exec.Cmd{
			exec.CommandContext(t.Context(), "python3", "-m", "venv", dir),
			exec.CommandContext(t.Context(), filepath.Join(dir, python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement),
		} {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
		}
	}), python)
}
