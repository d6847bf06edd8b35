package test_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/id"
)

// A box is a sandbox and the key it is used with.
type box struct {
	h        *daemonHarness
	url, key string
	id       string
}

// newBox creates a sandbox.
func (h *daemonHarness) newBox(url, key string, body map[string]any) box {
	h.Helper()
	if body["templateID"] == nil {
		body["templateID"] = "base"
	}
	status, made := h.e2b(url, key, "POST", "/v2/sandboxes", body)
	if status != http.StatusCreated {
		h.Fatal(status, made)
	}
	return box{h, url, key, made["sandboxID"].(string)}
}

// do sends a request about a sandbox and expects the given status.
func (b box) do(method, path string, body any, want int) map[string]any {
	b.h.Helper()
	status, got := b.h.e2b(b.url, b.key, method, "/sandboxes/"+b.id+path, body)
	if status != want {
		b.h.Fatalf("%s %s = %d %v, want %d", method, path, status, got, want)
	}
	return got
}

// forks forks the sandbox n times.
func (b box) forks(n int) (made []box) {
	b.h.Helper()
	var all []struct {
		Sandbox struct {
			ID string `json:"sandboxID"`
		} `json:"sandbox"`
		Error any `json:"error"`
	}
	if status := b.h.e2bInto(b.url, b.key, "POST", "/sandboxes/"+b.id+"/fork", map[string]any{"count": n, "timeout": 600}, &all); status != http.StatusCreated {
		b.h.Fatal(status, all)
	}
	for _, f := range all {
		if f.Error != nil {
			b.h.Fatal(f.Error)
		}
		made = append(made, box{b.h, b.url, b.key, f.Sandbox.ID})
	}
	return made
}

// jail returns the jail of a sandbox, which has the sandbox's id as its name.
func (b box) jail() id.Jail {
	b.h.Helper()
	jails, err := client.Collect(b.h.Jails(b.h.Context(), client.JailFilter{}))
	if err != nil {
		b.h.Fatal(err)
	}
	for _, j := range jails {
		if j.Name == b.id {
			return j.ID
		}
	}
	b.h.Fatalf("sandbox %s has no jail", b.id)
	return ""
}

func (b box) sh(line string) string {
	b.h.Helper()
	return b.h.sh(b.jail(), line)
}

// TestSandboxEgressRulesPersist sends the same requests from a sandbox, its forks and the
// resumed sandbox: each applies the egress rules and headers of its own sandbox.
func TestSandboxEgressRulesPersist(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr, "other.example.com": serverAddr})
	seen := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s saw %q", r.Host, r.Header["X-Key"]) })
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
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", tree))
	k := h.e2bKey()

	const api, other = "https://api.example.com/", "http://other.example.com/"
	ask := func(b box, url string) string {
		t.Helper()
		return b.sh("curl -s -m 20 -H 'X-Key: its own' " + url + " || echo failed $?")
	}
	sees := func(what string, b box, key, otherKey string) {
		t.Helper()
		if got, want := ask(b, api), fmt.Sprintf("api.example.com saw [%q]", key); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
		got := ask(b, other)
		if reached := strings.Contains(got, " saw "); reached != (otherKey != "") || reached && !strings.Contains(got, otherKey) {
			t.Errorf("%s: the other host returned %q, want key %q", what, got, otherKey)
		}
	}
	network := func(key string) map[string]any {
		return map[string]any{
			"allowOut": []string{"api.example.com"}, "denyOut": []string{"0.0.0.0/0"},
			"rules": map[string]any{"api.example.com": []any{map[string]any{"transform": map[string]any{"headers": map[string]string{"X-Key": key}}}}},
		}
	}
	nothing := map[string]any{}

	b := h.newBox(k.URL, k.Key, map[string]any{"network": network("first")})
	sees("it", b, "first", "")
	forks := b.forks(2)
	for _, f := range forks {
		sees("a fork", f, "first", "")
	}
	// Changes affect only one sandbox.
	forks[0].do("PUT", "/network", network("fork's"), http.StatusNoContent)
	forks[1].do("PUT", "/network", nothing, http.StatusNoContent)
	sees("a fork that was changed", forks[0], "fork's", "")
	sees("a fork that may do all", forks[1], "its own", "its own")
	sees("it, when its forks were changed", b, "first", "")
	if thorough {
		sees("a fork's fork", forks[0].forks(1)[0], "fork's", "")
	}

	for what, memory := range map[string]bool{"with its memory": true, "with its files": false} {
		if !memory && !thorough {
			continue
		}
		b.do("POST", "/pause", map[string]any{"memory": memory}, http.StatusNoContent)
		b.do("PUT", "/network", nothing, http.StatusConflict)
		b.do("POST", "/connect", map[string]any{"timeout": 300}, http.StatusCreated)
		sees("resumed "+what, b, "first", "")
	}
	if thorough {
		b.do("PUT", "/network", network("second"), http.StatusNoContent)
		b.do("POST", "/pause", nil, http.StatusNoContent)
		b.do("POST", "/resume", map[string]any{"timeout": 300}, http.StatusCreated)
		sees("resumed as it was last", b, "second", "")
		h.kill()
		h.start()
		b.url = h.e2bKey().URL
		sees("with the next daemon", b, "second", "")
	}

	// A snapshot contains files and processes. The egress rules come from the request that
	// creates a sandbox from it.
	snap := b.do("POST", "/snapshots", nil, http.StatusCreated)["snapshotID"]
	sees("of a snapshot", h.newBox(b.url, k.Key, map[string]any{"templateID": snap}), "its own", "its own")
	sees("of a snapshot, with a key", h.newBox(b.url, k.Key, map[string]any{"templateID": snap, "network": network("third")}), "third", "")
	plain := h.newBox(b.url, k.Key, map[string]any{})
	sees("a plain one", plain, "its own", "its own")
	fork := plain.forks(1)[0]
	sees("a plain one's fork", fork, "its own", "its own")
	fork.do("PUT", "/network", network("late"), http.StatusNoContent)
	sees("a plain one's fork that was changed", fork, "late", "")
	snap = plain.do("POST", "/snapshots", nil, http.StatusCreated)["snapshotID"]
	sees("of a plain one's snapshot", h.newBox(b.url, k.Key, map[string]any{"templateID": snap}), "its own", "its own")
	for range 2 { // some of them may come frozen from the warm pool
		sees("of a plain one's snapshot, with a key", h.newBox(b.url, k.Key, map[string]any{"templateID": snap, "network": network("fourth")}), "fourth", "")
	}
}
