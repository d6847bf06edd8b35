package test_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/store/postgrestest"
)

// fleetKeys creates the keys of a fleet, and returns their directory.
func fleetKeys(t *testing.T) (dir string) {
	t.Helper()
	files, _, err := daemon.NewFleetKeys()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFleetWithKeys starts the daemons of a fleet in any order, with its keys and without tokens.
func TestFleetWithKeys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolating jails for others needs root")
	}
	db := postgrestest.Start(t).URL(t)
	keys := fleetKeys(t)
	add := func(name, more string) *daemonHarness {
		t.Helper()
		return openAt(t, t.TempDir(), fmt.Sprintf("hosts: [agents.example.com]\ngateway: {db: %q}\npool: {size: 0}\nfleet: {listen: %q, name: %s, keys: %q%s}\nrootfs: {default: {dir: %q}}\n",
			db, unusedAddr(t), name, keys, more, backendtest.Rootfs(t)), "--listen", "127.0.0.1:0")
	}
	front := add("front", ", jails: none")
	add("one", "")
	add("two", "")
	text, err := os.ReadFile(filepath.Join(front.data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	cl, err := client.New(client.Options{Addr: "unix://" + filepath.Join(front.data, "glasshouse.sock"), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	var nodes []wire.Node
	if !within(10*time.Second, func() bool { // the list can be a second old
		nodes, err = client.Collect(cl.Nodes(t.Context()))
		return err == nil && len(nodes) == 3
	}) {
		t.Fatalf("nodes = %+v, %v; want three", nodes, err)
	}
	// A secret that is stored at the front end reaches a jail of another node.
	value := "from the front end"
	if err := cl.PutSecret(t.Context(), "SHARED", wire.PutSecret{Value: &value}); err != nil {
		t.Fatal(err)
	}
	j, err := cl.CreateJail(t.Context(), wire.CreateJail{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.GrantSecret(t.Context(), "SHARED", wire.GrantSecret{Jail: j.ID, Delivery: "file"}); err != nil {
		t.Fatal(err)
	}
	h := &daemonHarness{T: t, Client: cl}
	if !within(10*time.Second, func() bool { return h.sh(j.ID, "cat /run/secrets/SHARED || true") == value }) {
		t.Errorf("the secret in the jail = %q, want %q", h.sh(j.ID, "cat /run/secrets/SHARED 2>&1 || true"), value)
	}
	// Metrics of a node by way of the front end, as Prometheus asks for them.
	metrics := func(query, host string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+front.tcpAddr()+"/metrics"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	owner := ""
	for _, n := range nodes {
		status, body := metrics("?node="+n.Name, "agents.example.com")
		if status != 200 {
			t.Errorf("metrics of node %s: %d, %s", n.Name, status, body)
		}
		if strings.Contains(body, `glasshouse_jails{state="running"} 1`) {
			owner = n.Name
		}
	}
	if owner != "one" && owner != "two" {
		t.Errorf("the metrics of node %q have the jail, want those of the node that has it", owner)
	}
	if status, body := metrics("?node=three", "agents.example.com"); status != 404 {
		t.Errorf("metrics of an unknown node: %d, %s", status, body)
	}
	if status, body := metrics("", "other.example.com"); status != 403 {
		t.Errorf("request for a host name that is not configured: %d, %s; want 403", status, body)
	}
}
