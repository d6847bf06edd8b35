package test_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/daemon"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/store/postgrestest"
)

// TestE2BSDKAtFront runs typical uses of E2B's unmodified package at a node without jails, which
// passes them to two others.
func TestE2BSDKAtFront(t *testing.T) {
	if testing.Short() {
		t.Skip("repeats TestE2BSDK by way of another node")
	}
	dir := clientsOfE2B(t)
	_, _, _, front := openFleet(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithPython(t)))
	buildPortServer(t, dir)
	t.Setenv("REGISTRY", imageRegistry(t))
	t.Setenv("PRIVATE_REGISTRY", imageRegistry(t, "me", "mine"))
	m := matrix{with: "a front end"}
	version := e2bVersions[len(e2bVersions)-1]
	scenarios := []string{"control.mjs", "data.mjs"} // requests to the API, and to the sandboxes
	if thorough {
		scenarios = e2bScenarios
	}
	front.scenarios(&m, dir, front.e2bKey().URL, "e2b-"+version, version, scenarios...)
}

// A fleetNode is a daemon of a fleet.
type fleetNode struct {
	*daemonHarness
	name, addr string
}

// as returns a client of a node with the token of a user.
func (n *fleetNode) as(token, node string) *client.Client {
	n.Helper()
	cl, err := client.New(client.Options{Addr: "unix://" + filepath.Join(n.data, "glasshouse.sock"), Token: token, Node: node})
	if err != nil {
		n.Fatal(err)
	}
	return cl
}

// unusedAddr returns a local TCP address at which nothing listens.
func unusedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A testFleet has one database, and a token of an administrator.
type testFleet struct {
	*testing.T
	server  *postgrestest.Server
	db, key string
	objects string // URL of the object store
	nodes   []*fleetNode
	token   string
	config  string   // further lines of each node's configuration
	args    []string // of each daemon
}

// add starts a node whose data directory has a certificate.
func (f *testFleet) add(name, data, more string) *fleetNode {
	f.Helper()
	n := &fleetNode{name: name, addr: unusedAddr(f.T)}
	n.daemonHarness = openAt(f.T, data, fmt.Sprintf("gateway: {db: %q, key_file: %q, objects: %q}\npool: {size: 0}\nfleet: {listen: %q, name: %s%s}\n%s", f.db, f.key, f.objects, n.addr, name, more, f.config), f.args...)
	f.nodes = append(f.nodes, n)
	return n
}

// join lets a data directory join with the command that a node prints.
func (f *testFleet) join(at *fleetNode) (data string) {
	f.Helper()
	data = f.TempDir()
	command, stderr, code := at.glasshouse(data, "node", "token")
	if code != 0 {
		f.Fatalf("node token: %s", stderr)
	}
	args := strings.Fields(command)[1:]
	if _, stderr, code := at.glasshouse(data, append(args, "--data", data)...); code != 0 {
		f.Fatalf("%s: %s", command, stderr)
	}
	// The token was used.
	if _, stderr, code := at.glasshouse(data, append(args, "--data", f.TempDir())...); code == 0 || !strings.Contains(stderr, "used before") {
		f.Errorf("a token was accepted twice: %d, %s", code, stderr)
	}
	return data
}

// openFleet starts a fleet with the nodes one and two, and front, which has no jails.
func openFleet(t *testing.T, config string, args ...string) (f *testFleet, one, two, front *fleetNode) {
	if os.Geteuid() != 0 {
		t.Skip("isolating jails for others needs root")
	}
	server := postgrestest.Start(t)
	f = &testFleet{T: t, server: server, db: server.URL(t), key: filepath.Join(t.TempDir(), "shared.key"), objects: "file://" + t.TempDir(), config: config, args: args}
	data := t.TempDir()
	if _, err := daemon.InitFleet(data); err != nil {
		t.Fatal(err)
	}
	one = f.add("one", data, "")
	text, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	f.token = strings.TrimSpace(string(text))
	two = f.add("two", f.join(one), "")
	front = f.add("front", f.join(one), ", jails: none")
	return f, one, two, front
}

// TestFleet uses jails of one node by way of the others.
func TestFleet(t *testing.T) {
	f, one, two, front := openFleet(t, "")
	ctx := t.Context()
	nodes, err := client.Collect(front.Nodes(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.Arch == "" || n.Kernel == "" || n.CPUs == 0 || n.FreeMemory <= 0 || n.Memory < n.FreeMemory || n.FreeDisk <= 0 || n.Disk < n.FreeDisk {
			t.Errorf("facts of node %s = %+v, want those of its host", n.Name, n)
		}
	}
	found, err := client.Collect(front.as(f.token, "two").Doctor(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"shared database": "warning", "clock": "ok", "fleet certificate": "ok"} { // the test server does not write to disk
		if !slices.ContainsFunc(found, func(p wire.Probe) bool { return p.Name == name && p.Status == want }) {
			t.Errorf("the doctor of node two has no %s with state %s: %+v", name, want, found)
		}
	}
	// A jail is created on the node that the user selects, and is found by its ID at each node.
	j, err := one.as(f.token, "two").CreateJail(ctx, wire.CreateJail{Name: "remote", Labels: map[string]string{"team": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Jail(ctx, j.ID); err != nil {
		t.Fatalf("the selected node does not have the jail: %v", err)
	}
	for _, n := range []*fleetNode{one, front} {
		n.useRemotely(f.token, two, j.ID)
	}
	// Without jails of its own, a node chooses another one.
	var placed []string // names of the jails and their nodes
	count := map[string]int{}
	for n := range 3 {
		p, err := front.as(f.token, "").CreateJail(ctx, wire.CreateJail{Name: fmt.Sprintf("placed-%d", n)})
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []*fleetNode{one, two} {
			if _, err := at.Jail(ctx, p.ID); err == nil {
				placed = append(placed, p.Name+"@"+at.name)
				count[at.name]++
			}
		}
		// It is visible at once at all nodes.
		if got, err := one.as(f.token, "").Jail(ctx, p.ID); err != nil || got.ID != p.ID {
			t.Errorf("node one does not find a new jail: %v", err)
		}
	}
	if count["one"] != 2 || count["two"] != 1 {
		t.Errorf("jails were placed on %v, want two on node one, which had none", count)
	}
	f.checkBranches(one, two, front)
	f.checkMoves(one, two, front)
	f.checkRetries(front)
	f.checkLists(one, front, append([]string{"remote@two"}, placed...))
	f.checkAccess(one, two, j.ID)
	f.checkApproval(one, two, front)
	f.checkSecrets(one, two)
	f.checkCapabilities(one, two)
	f.checkOperations(two, one)
	f.checkAuditLogs(two, front)
	f.checkRemoval(one, two, j.ID)
}

// useRemotely calls operations of several kinds for a jail of another node, and compares the
// results with those of the owner.
func (n *fleetNode) useRemotely(token string, owner *fleetNode, j id.Jail) {
	n.Helper()
	ctx := n.Context()
	cl := n.as(token, "")
	if _, err := cl.StartJail(ctx, j); err != nil {
		n.Fatalf("start by way of node %s: %v", n.name, err)
	}
	x, err := cl.Exec(ctx, j, wire.ExecRequest{Cmd: "echo out; echo err >&2; exit 3"})
	if err != nil {
		n.Fatal(err)
	}
	stdout, stderr, err := client.Output(x)
	if err != nil || string(stdout) != "out\n" || string(stderr) != "err\n" || x.ExitCode == nil || *x.ExitCode != 3 {
		n.Errorf("exec by way of node %s = %q, %q, %+v, %v", n.name, stdout, stderr, x, err)
	}
	// A file that does not fit into buffers, in both directions.
	want := make([]byte, 20<<20)
	rand.NewChaCha8([32]byte{}).Read(want)
	if _, err := cl.WriteFile(ctx, j, "/tmp/large", bytes.NewReader(want), client.WriteOptions{}); err != nil {
		n.Fatal(err)
	}
	r, err := cl.ReadFile(ctx, j, "/tmp/large", 0, -1)
	if err != nil {
		n.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, want) {
		n.Errorf("read %d bytes by way of node %s, %v, want those that were written", len(got), n.name, err)
	}
	// Events arrive while the stream continues.
	following, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	seen := false
	for e, err := range cl.Events(following, j, client.EventQuery{Follow: true}) {
		if err != nil {
			n.Fatalf("events by way of node %s: %v", n.name, err)
		}
		seen = bytes.Contains(e.JSON, []byte("/tmp/large"))
		if seen {
			break
		}
	}
	if !seen {
		n.Errorf("the events by way of node %s do not have the file", n.name)
	}
	// A WebSocket.
	term, err := cl.Terminal(ctx, j, client.TerminalOptions{Cmd: "read x; echo got $x"})
	if err != nil {
		n.Fatalf("terminal by way of node %s: %v", n.name, err)
	}
	if _, err := io.WriteString(term, "hello\n"); err != nil {
		n.Error(err)
	}
	text, err := io.ReadAll(term)
	if err := errors.Join(err, term.Close()); err != nil || !strings.Contains(string(text), "got hello") {
		n.Errorf("terminal by way of node %s = %q, %v", n.name, text, err)
	}
	taken, err := cl.TakeSnapshot(ctx, j, wire.TakeSnapshot{})
	if err != nil {
		n.Fatal(err)
	}
	if s, err := cl.Snapshot(ctx, taken.ID); err != nil || s.Jail != j {
		n.Errorf("snapshot by way of node %s = %+v, %v", n.name, s, err)
	}
	if err := cl.DeleteSnapshot(ctx, taken.ID); err != nil {
		n.Error(err)
	}
	// The responses are those of the owner.
	mine, err := owner.as(token, "").Jail(ctx, j)
	if err != nil {
		n.Fatal(err)
	}
	theirs, err := cl.Jail(ctx, j)
	mine.Usage, theirs.Usage = nil, nil
	mine.Observation, theirs.Observation = nil, nil
	if a, b := fmt.Sprintf("%+v", mine), fmt.Sprintf("%+v", theirs); err != nil || a != b {
		n.Errorf("node %s responds with %s, %v, the owner with %s", n.name, b, err, a)
	}
	if _, err := cl.StopJail(ctx, j, 0); err != nil {
		n.Error(err)
	}
	if _, err := cl.Jail(ctx, "j-aaaaaaaaaaaa"); !errors.Is(err, fault.NotFound) {
		n.Errorf("a jail that does not exist: %v, want not found", err)
	}
}

// createWithKey creates a jail with an idempotency key.
func (n *fleetNode) createWithKey(token, key string) (id.Jail, error) {
	status, body, err := n.raw(token, http.MethodPost, "/jails", "{}", "Idempotency-Key", key)
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err != nil {
		return "", err
	}
	var j wire.Jail
	err = json.Unmarshal(body, &j)
	return j.ID, err
}

// raw sends a request with a JSON body and a header, and returns the response.
func (n *fleetNode) raw(token, method, path, body string, header ...string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(n.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	socket := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.data, "glasshouse.sock"))
	}}
	response, err := socket.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return response.StatusCode, got, err
}

// checkOperations sends each operation of the API about an object of one node to that node and to
// another one, and compares the responses.
func (f *testFleet) checkOperations(owner, other *fleetNode) {
	f.Helper()
	ctx := f.Context()
	cl := owner.as(f.token, "")
	j := owner.running(wire.CreateJail{Name: "compared"})
	taken, err := cl.TakeSnapshot(ctx, j.ID, wire.TakeSnapshot{})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := cl.PauseJail(ctx, j.ID); err != nil { // so that it stays the same
		f.Fatal(err)
	}
	_, text, err := owner.raw(f.token, http.MethodGet, "/openapi.json", "")
	if err != nil {
		f.Fatal(err)
	}
	var spec struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		f.Fatal(err)
	}
	compared, succeeded := 0, 0
	for _, method := range []string{"get", "put", "patch", "post"} { // a second deletion has another response
		for _, path := range slices.Backward(slices.Sorted(maps.Keys(spec.Paths))) {
			if _, ok := spec.Paths[path][method]; !ok {
				continue
			}
			at := strings.NewReplacer("/jails/{id}", "/jails/"+string(j.ID), "/sandbox/{id}", "/sandbox/"+string(j.ID), "{sid}", string(taken.ID)).Replace(path)
			if at == path {
				continue // not about an object of a node
			}
			if strings.HasSuffix(at, "/events") {
				at += "?follow=false"
			}
			compared++
			if f.compare(owner, other, strings.ToUpper(method), pathParameter.ReplaceAllString(at, "unknown")) == http.StatusOK {
				succeeded++
			}
		}
	}
	if compared < 40 || succeeded < 10 {
		f.Errorf("%d operations were compared, of which %d succeeded, want 40 and 10 at least", compared, succeeded)
	}
	if err := cl.DeleteJail(ctx, j.ID); err != nil && !errors.Is(err, fault.NotFound) {
		f.Error(err)
	}
}

var pathParameter = regexp.MustCompile(`\{[^}]*\}`)

// compare sends a request with a body that most operations refuse to the owner of an object and to
// another node. It returns the status of the owner.
func (f *testFleet) compare(owner, other *fleetNode, method, path string) int {
	f.Helper()
	body := ""
	if method != http.MethodGet {
		body = `{"no such member":1}`
	}
	status, want, err := owner.raw(f.token, method, path, body)
	if err != nil {
		f.Errorf("%s %s at the owner: %v", method, path, err)
	}
	again, got, err := other.raw(f.token, method, path, body)
	if err != nil || again != status {
		f.Errorf("%s %s at another node = %d %.200s, %v, want %d %.200s", method, path, again, got, err, status, want)
	} else if !bytes.Equal(got, want) && !strings.HasSuffix(path, "/export") && !strings.HasSuffix(path, "/diff") { // with the time of the request
		f.Errorf("%s %s at another node = %.300s, want %.300s", method, path, got, want)
	}
	return status
}

// checkRetries repeats requests for new jails at two front ends at once.
func (f *testFleet) checkRetries(front *fleetNode) {
	f.Helper()
	second := f.add("front2", f.join(f.nodes[0]), ", jails: none")
	const keys = 20
	var made [keys][4]id.Jail
	var wg sync.WaitGroup
	for i := range keys {
		for n := range made[i] {
			wg.Go(func() {
				var err error
				made[i][n], err = []*fleetNode{front, second}[n%2].createWithKey(f.token, fmt.Sprint("key-", i))
				if err != nil {
					f.Errorf("create a jail with key %d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
	for i, ids := range made {
		for _, j := range ids {
			if j != ids[0] {
				f.Errorf("key %d has created the jails %q, want one", i, ids)
				break
			}
		}
		if err := second.as(f.token, "").DeleteJail(f.Context(), ids[0]); err != nil {
			f.Error(err)
		}
	}
}

// checkLists compares the lists of all jails with those of the nodes.
func (f *testFleet) checkLists(one, front *fleetNode, want []string) {
	f.Helper()
	ctx := f.Context()
	names := func(cl *client.Client, filter client.JailFilter) (list []string) {
		all, err := client.Collect(cl.Jails(ctx, filter))
		if err != nil {
			f.Fatal(err)
		}
		for _, j := range all {
			list = append(list, strings.TrimSuffix(j.Name+"@"+j.Node, "@"))
		}
		return list
	}
	of := func(node string) (list []string) {
		for _, name := range want {
			if name, ok := strings.CutSuffix(name, "@"+node); ok {
				list = append(list, name)
			}
		}
		return list
	}
	check := func(what string, got, want []string) {
		f.Helper()
		if !slices.Equal(got, want) {
			f.Errorf("%s = %q, want %q", what, got, want)
		}
	}
	within(10*time.Second, func() bool { // the index is a second old at most
		return len(names(one.Client, client.JailFilter{Nodes: "all"})) == len(want)
	})
	check("jails of all nodes", names(one.Client, client.JailFilter{Nodes: "all"}), want)
	check("jails at the front", names(front.Client, client.JailFilter{}), want)
	check("jails of node one", names(one.Client, client.JailFilter{}), of("one"))
	check("jails of the front", names(front.Client, client.JailFilter{Nodes: "self"}), nil)
	check("jails with a label", names(one.Client, client.JailFilter{Nodes: "all", Label: map[string]string{"team": "a"}}), want[:1])
	check("jails of node two", names(one.as(f.token, "two"), client.JailFilter{}), of("two"))
	out, stderr, code := one.glasshouse(one.data, "jail", "ls", "--all-nodes")
	if code != 0 || strings.Count(out, " two\n") != 2 || strings.Count(out, " one\n") != 2 {
		f.Errorf("jail ls --all-nodes = %d, %s%s, want two jails of each node", code, out, stderr)
	}
	out, stderr, code = one.glasshouse(one.data, "node", "ls")
	if code != 0 || strings.Count(out, "\n") != 5 || strings.Count(out, "up,front") != 2 {
		f.Errorf("node ls = %d, %s%s, want four nodes", code, out, stderr)
	}
}

// checkAccess tries to reach a jail of another node without the right to.
func (f *testFleet) checkAccess(one, two *fleetNode, j id.Jail) {
	f.Helper()
	ctx := f.Context()
	// The local administrator of a node has no rights on another one.
	if _, err := one.StopJail(ctx, j, 0); !errors.Is(err, fault.Denied) || !strings.Contains(fault.RemedyOf(err), "GLASSHOUSE_TOKEN") {
		f.Errorf("stop by the local socket of another node = %v, want denied and how to go on", err)
	}
	viewer, err := one.CreateToken(ctx, wire.CreateToken{Name: "viewer", Role: "viewer"})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := one.as(viewer.Token, "").Jail(ctx, j); err != nil {
		f.Errorf("a viewer reads a jail of another node: %v", err)
	}
	if _, err := one.as(viewer.Token, "").StopJail(ctx, j, 0); !errors.Is(err, fault.Denied) {
		f.Errorf("a viewer stops a jail of another node: %v, want denied", err)
	}
	if err := two.RevokeToken(ctx, viewer.ID); err != nil {
		f.Fatal(err)
	}
	if !within(10*time.Second, func() bool { // other nodes remember it for two seconds
		_, err = one.as(viewer.Token, "").Jail(ctx, j)
		return errors.Is(err, fault.Unauthenticated)
	}) {
		f.Errorf("a token that another node revoked: %v, want unauthenticated", err)
	}
	if _, err := one.as(f.token, "nowhere").Jail(ctx, j); !errors.Is(err, fault.NotFound) {
		f.Errorf("a node that does not exist: %v, want not found", err)
	}
	// A client without the certificate of a node reaches nothing, with whatever token.
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for _, path := range []string{"/jails", "/health", "/fleet/head", "/fleet/renew"} {
		method := http.MethodGet
		if strings.HasPrefix(path, "/fleet/") {
			method = http.MethodPost
		}
		r, err := http.NewRequestWithContext(ctx, method, "https://"+two.addr+path, strings.NewReader("{}"))
		if err != nil {
			f.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+f.token)
		if method == http.MethodPost {
			r.Header.Set("Glasshouse-Call", "node")
		}
		response, err := plain.Do(r)
		if err != nil {
			f.Fatal(err)
		}
		response.Body.Close()
		want := http.StatusUnauthorized
		if path == "/fleet/renew" {
			want = http.StatusNotImplemented // only the first node issues certificates
		}
		if response.StatusCode != want {
			f.Errorf("%s without a certificate = %s, want %d", path, response.Status, want)
		}
	}
}

// checkApproval answers a question of one node at another.
func (f *testFleet) checkApproval(one, two, front *fleetNode) {
	f.Helper()
	ctx := f.Context()
	j := two.running(wire.CreateJail{Policy: &wire.Policy{Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission": {"bash": "ask"}}`}}, Level: 3, Match: "last"}})
	answered := make(chan error, 1)
	go func() {
		v, err := two.Decide(ctx, j.ID, wire.Decide{Question: wire.Question{Action: "bash", Resource: "rm -rf build"}})
		if err == nil && !v.Allow {
			err = fmt.Errorf("the verdict is %+v, want allow", v)
		}
		answered <- err
	}()
	var pending []wire.Approval
	if !within(30*time.Second, func() bool {
		pending, _ = two.Approvals(ctx, "pending", "")
		return len(pending) == 1
	}) {
		f.Fatalf("approvals = %+v, want one", pending)
	}
	var everywhere []wire.Approval
	if !within(10*time.Second, func() bool {
		var err error
		everywhere, err = one.as(f.token, "").ApprovalsOfAllNodes(ctx, "")
		if err != nil {
			f.Fatal(err)
		}
		return len(everywhere) == 1
	}) || everywhere[0].ID != pending[0].ID || everywhere[0].Node != "two" || everywhere[0].Title != pending[0].Title {
		f.Errorf("approvals of all nodes = %+v, want that of node two", everywhere)
	}
	if list, err := front.as(f.token, "").Approvals(ctx, "pending", ""); err != nil || len(list) != 1 || list[0].ID != pending[0].ID {
		f.Errorf("approvals at the front end = %+v, %v, want that of node two", list, err)
	}
	var err error
	if !within(10*time.Second, func() bool {
		_, err = one.as(f.token, "").Answer(ctx, pending[0].ID, wire.AnswerApproval{Answer: "allow"})
		return !errors.Is(err, fault.NotFound) // the index is a second old at most
	}) || err != nil {
		f.Errorf("answer at another node: %v", err)
	}
	if err := <-answered; err != nil {
		f.Error(err)
	}
	if err := two.DeleteJail(ctx, j.ID); err != nil {
		f.Error(err)
	}
}

// checkSecrets uses a secret of one node in a jail of another.
func (f *testFleet) checkSecrets(one, two *fleetNode) {
	f.Helper()
	ctx := f.Context()
	j := two.running(wire.CreateJail{})
	value := "shared-value"
	if err := one.PutSecret(ctx, "SHARED", wire.PutSecret{Value: &value}); err != nil {
		f.Fatal(err)
	}
	g, err := one.GrantSecret(ctx, "SHARED", wire.GrantSecret{Jail: j.ID, Delivery: "file"})
	if err != nil {
		f.Fatal(err)
	}
	read := func() string {
		x, err := two.Exec(ctx, j.ID, wire.ExecRequest{Cmd: "cat /run/secrets/SHARED"})
		if err != nil {
			f.Fatal(err)
		}
		out, _, err := client.Output(x)
		if err != nil {
			f.Fatal(err)
		}
		return string(out)
	}
	eventually := func(what, want string) {
		f.Helper()
		var got string
		same := func() bool {
			got = read()
			return got == want
		}
		if !within(20*time.Second, same) {
			f.Errorf("%s: the file of the secret contains %q, want %q", what, got, want)
		}
	}
	eventually("a grant by another node", value)
	value = "another-value"
	if err := one.PutSecret(ctx, "SHARED", wire.PutSecret{Value: &value}); err != nil {
		f.Fatal(err)
	}
	eventually("a new value", value)
	if err := one.RevokeGrant(ctx, g.ID); err != nil {
		f.Fatal(err)
	}
	eventually("after the revocation", "")
	if err := two.DeleteJail(ctx, j.ID); err != nil {
		f.Error(err)
	}
}

// checkCapabilities calls a capability of one node at another, in a jail with the copied files.
func (f *testFleet) checkCapabilities(one, two *fleetNode) {
	f.Helper()
	ctx := f.Context()
	dir := shop(f.T)
	list, err := one.Register(ctx, wire.Register{Dir: dir, Manifest: manifests})
	if err != nil {
		f.Fatal(err)
	}
	input := wire.Call{Input: []byte(`{"text": "abc"}`)}
	if _, err := two.Call(ctx, "text.count", input); fault.KindOf(err) != fault.Denied {
		f.Errorf("a call at another node before the approval: %v, want Denied", err)
	}
	if _, err := one.Answer(ctx, list[1].Approval, wire.AnswerApproval{Answer: "allow"}); err != nil {
		f.Fatal(err)
	}
	var called wire.Called
	if !within(20*time.Second, func() bool {
		called, err = two.Call(ctx, "text.count", input)
		return err == nil
	}) || !strings.Contains(string(called.Output), `"before":""`) {
		f.Errorf("a call at another node = %+v, %v, want the output of the copied program", called, err)
	}
	if _, err := two.RevokeCapability(ctx, "text.count", wire.RevokeCapability{Reason: "it is wrong"}); err != nil {
		f.Fatal(err)
	}
	if !within(20*time.Second, func() bool {
		_, err = one.Call(ctx, "text.count", input)
		return fault.KindOf(err) == fault.Denied
	}) {
		f.Errorf("a call after the revocation at another node: %v, want Denied", err)
	}
}

// checkBranches creates jails on several nodes from a snapshot of one.
func (f *testFleet) checkBranches(one, two, front *fleetNode) {
	f.Helper()
	ctx := f.Context()
	cl := front.as(f.token, "")
	from, err := two.CreateJail(ctx, wire.CreateJail{Start: true, Name: "origin"})
	if err != nil {
		f.Fatal(err)
	}
	run := func(j id.Jail, line string) string {
		f.Helper()
		return f.text(cl, j, line)
	}
	run(from.ID, "(trap '' HUP; "+counter+") >/dev/null 2>&1 & head -c 3000000 /dev/urandom > /root/data; sleep 0.2")
	sum := run(from.ID, "sha256sum /root/data")
	taken, err := cl.TakeSnapshot(ctx, from.ID, wire.TakeSnapshot{})
	if err != nil {
		f.Fatal(err)
	}
	count := func(j id.Jail) int {
		n, err := strconv.Atoi(run(j, "cat /tmp/count"))
		if err != nil {
			f.Error(err)
		}
		return n
	}
	at := count(from.ID)
	var made []wire.Jail
	for _, n := range []*fleetNode{one, two} {
		for range 2 {
			b, err := front.as(f.token, n.name).BranchSnapshot(ctx, taken.ID, wire.Branch{Count: 1})
			if err != nil || len(b.Jails) != 1 {
				f.Fatalf("branch on node %s: %v, %v", n.name, b.Errors, err)
			}
			if _, err := n.Jail(ctx, b.Jails[0].ID); err != nil {
				f.Errorf("a branch is not on node %s, which was selected: %v", n.name, err)
			}
			made = append(made, b.Jails[0])
		}
	}
	spread, err := cl.BranchSnapshot(ctx, taken.ID, wire.Branch{Count: 4, Spread: true, Overrides: wire.Overrides{Name: "spread"}})
	if err != nil || len(spread.Jails) != 4 {
		f.Fatalf("spread = %d jails, %v, %v, want 4", len(spread.Jails), spread.Errors, err)
	}
	here := map[string]int{}
	for _, j := range spread.Jails {
		if _, err := one.Jail(ctx, j.ID); err == nil {
			here[j.Name]++
		}
	}
	if len(here) != 2 {
		f.Errorf("%v of four branches are on node one, want two", here)
	}
	for _, j := range append(made, spread.Jails...) {
		if got := run(j.ID, "sha256sum /root/data"); got != sum {
			f.Errorf("a file of a branch has the digest %s, want %s", got, sum)
		}
		if !within(10*time.Second, func() bool { return count(j.ID) > at+5 }) {
			f.Errorf("the counter of branch %s does not continue from %d", j.ID, at)
		}
	}
	if n := strings.Count(one.log.String(), "copied a snapshot of another node"); n != 1 {
		f.Errorf("node one has copied the snapshot %d times, want once", n)
	}
	// The copy is not a snapshot of its own.
	for s, err := range one.as(f.token, "one").Snapshots(ctx, client.SnapshotFilter{}) {
		if err != nil || s.ID == taken.ID {
			f.Errorf("node one lists %s, %v, want no copy", s.ID, err)
		}
	}
	for _, j := range append(append(made, spread.Jails...), from) {
		if err := cl.DeleteJail(ctx, j.ID); err != nil {
			f.Error(err)
		}
	}
	if err := one.as(f.token, "").DeleteSnapshot(ctx, taken.ID); err != nil {
		f.Error(err)
	}
	if _, err := two.Snapshot(ctx, taken.ID); !errors.Is(err, fault.NotFound) {
		f.Errorf("a snapshot that was deleted at a node with a copy: %v, want not found", err)
	}
	if _, err := front.as(f.token, "one").BranchSnapshot(ctx, taken.ID, wire.Branch{Count: 1}); !errors.Is(err, fault.NotFound) {
		f.Errorf("branch of a deleted snapshot at a node with a copy: %v, want not found", err)
	}
}

// text runs a command in a jail, on whatever node it is.
func (f *testFleet) text(cl *client.Client, j id.Jail, line string) string {
	f.Helper()
	x, err := cl.Exec(f.Context(), j, wire.ExecRequest{Cmd: line})
	if err != nil {
		f.Fatal(err)
	}
	out, stderr, err := client.Output(x)
	if err != nil || len(stderr) > 0 {
		f.Errorf("%s in %s: %s, %v", line, j, stderr, err)
	}
	return strings.TrimSpace(string(out))
}

// grant stores a secret, and gives it to a jail as a file.
func (f *testFleet) grant(n *fleetNode, j id.Jail, name, value string) {
	f.Helper()
	if err := n.PutSecret(f.Context(), name, wire.PutSecret{Value: &value}); err != nil {
		f.Fatal(err)
	}
	if _, err := n.GrantSecret(f.Context(), name, wire.GrantSecret{Jail: j, Delivery: "file"}); err != nil {
		f.Fatal(err)
	}
}

// checkMoves moves a jail between nodes.
func (f *testFleet) checkMoves(one, two, front *fleetNode) {
	f.Helper()
	ctx := f.Context()
	cl := front.as(f.token, "")
	j, err := one.CreateJail(ctx, wire.CreateJail{Start: true, Name: "moving", Labels: map[string]string{"a": "b"}})
	if err != nil {
		f.Fatal(err)
	}
	f.text(cl, j.ID, "(trap '' HUP; "+counter+") >/dev/null 2>&1 & echo text > /root/file; cat /proc/sys/kernel/hostname > /root/name; sleep 0.2")
	counted := func() int {
		n, err := strconv.Atoi(f.text(cl, j.ID, "cat /tmp/count"))
		if err != nil {
			f.Error(err)
		}
		return n
	}
	at := counted()
	f.grant(one, j.ID, "MOVED", "kept")
	var last uint64
	numbers := func() (all []uint64, ops []string) {
		for e, err := range cl.Events(ctx, j.ID, client.EventQuery{}) {
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, e.Seq)
			if e.Type == "lineage" {
				var l struct{ Op string }
				if err := json.Unmarshal(e.JSON, &l); err != nil {
					f.Error(err)
				}
				ops = append(ops, l.Op)
			}
		}
		return all, ops
	}
	all, _ := numbers()
	last = all[len(all)-1]
	taken, err := cl.TakeSnapshot(ctx, j.ID, wire.TakeSnapshot{Name: "before"})
	if err != nil {
		f.Fatal(err)
	}
	move := func(to string) {
		f.Helper()
		m, err := front.as(f.token, "").MoveJail(ctx, j.ID, to)
		if err != nil || m.Name != to {
			f.Fatalf("move to %s = %+v, %v", to, m, err)
		}
	}
	check := func(now, before *fleetNode) {
		f.Helper()
		got, err := now.Jail(ctx, j.ID)
		if err != nil || got.State != "running" || got.Name != "moving" || got.Labels["a"] != "b" || !got.CreatedAt.Equal(j.CreatedAt) {
			f.Errorf("after the move, node %s has %+v, %v", now.name, got, err)
		}
		if _, err := front.as(f.token, before.name).Jail(ctx, j.ID); !errors.Is(err, fault.NotFound) {
			f.Errorf("after the move, node %s still has the jail: %v", before.name, err)
		}
		if text := f.text(cl, j.ID, "cat /root/file /root/name /proc/sys/kernel/hostname /run/secrets/MOVED"); text != "text\n"+string(j.ID)+"\n"+string(j.ID)+"\nkept" {
			f.Errorf("files after the move = %q", text)
		}
		if !within(10*time.Second, func() bool { return counted() > at+5 }) {
			f.Errorf("the counter does not continue from %d", at)
		}
		at = counted()
		all, ops := numbers()
		for i, n := range all {
			if i > 0 && n != all[i-1]+1 {
				f.Fatalf("event %d follows %d", n, all[i-1])
			}
		}
		if all[0] != 1 || all[len(all)-1] <= last || !slices.Contains(ops, "move") {
			f.Errorf("events %d to %d with the operations %v, want all from before and after the move", all[0], all[len(all)-1], ops)
		}
		last = all[len(all)-1]
	}
	move("two")
	check(two, one)
	// A request that another node still sends to the old one is passed on.
	if _, err := cl.PauseJail(ctx, j.ID); err != nil {
		f.Error(err)
	}
	if _, err := cl.ResumeJail(ctx, j.ID); err != nil {
		f.Error(err)
	}
	move("one")
	check(one, two)
	move("two")
	// A snapshot that was taken on another node can be used.
	if _, err := cl.RewindJail(ctx, j.ID, taken.ID); err != nil {
		f.Errorf("rewind to a snapshot of the first node: %v", err)
	}
	if text := f.text(cl, j.ID, "cat /root/file"); text != "text" {
		f.Errorf("file after the rewind = %q", text)
	}
	for _, c := range []struct {
		to   string
		want fault.Kind
	}{{"two", fault.Conflict}, {"front", fault.Exhausted}, {"nowhere", fault.NotFound}} {
		if _, err := cl.MoveJail(ctx, j.ID, c.to); fault.KindOf(err) != c.want {
			f.Errorf("move to %s = %v, want %s", c.to, err, c.want)
		}
	}
	// The other node refuses a jail whose name it has. The jail continues where it is.
	other, err := one.CreateJail(ctx, wire.CreateJail{Name: "moving"})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := cl.MoveJail(ctx, j.ID, "one"); !errors.Is(err, fault.Conflict) {
		f.Errorf("move to a node with a jail of the same name = %v, want conflict", err)
	}
	if got, err := two.Jail(ctx, j.ID); err != nil || got.State != "running" {
		f.Errorf("after a failed move: %+v, %v, want the jail running on its node", got, err)
	}
	at = counted()
	if !within(10*time.Second, func() bool { return counted() > at+5 }) {
		f.Error("the counter does not continue after a failed move")
	}
	if err := cl.DeleteJail(ctx, other.ID); err != nil {
		f.Error(err)
	}
	if err := cl.DeleteJail(ctx, j.ID); err != nil {
		f.Error(err)
	}
	if err := cl.DeleteSnapshot(ctx, taken.ID); err != nil {
		f.Error(err)
	}
	for _, n := range []*fleetNode{one, two} {
		for s, err := range n.Snapshots(ctx, client.SnapshotFilter{}) {
			if err != nil || s.Jail == j.ID {
				f.Errorf("node %s still has snapshot %s (%s), %v", n.name, s.ID, s.Reason, err)
			}
		}
	}
	if _, err := front.as(f.token, "two").RestoreSnapshot(ctx, taken.ID, wire.Overrides{}); !errors.Is(err, fault.NotFound) {
		f.Errorf("restore of a deleted snapshot at a node with a copy: %v, want not found", err)
	}
}

// TestMovesSurviveKills kills a daemon at a random moment of each move. The jail must then continue on
// one of the nodes, and its counter must not go back.
func TestMovesSurviveKills(t *testing.T) {
	f, one, two, front := openFleet(t, "")
	ctx := t.Context()
	cl := front.as(f.token, "")
	j, err := one.CreateJail(ctx, wire.CreateJail{Start: true})
	if err != nil {
		t.Fatal(err)
	}
	f.text(cl, j.ID, "(trap '' HUP; "+counter+") >/dev/null 2>&1 & sleep 0.2")
	f.grant(one, j.ID, "MOVED", "kept")
	// state returns the node with the running jail, and its count.
	state := func() (at *fleetNode, count int) {
		for _, n := range []*fleetNode{one, two} {
			x, err := front.as(f.token, n.name).Exec(ctx, j.ID, wire.ExecRequest{Cmd: "cat /tmp/count"})
			if err != nil {
				continue
			}
			out, _, err := client.Output(x)
			if err != nil {
				continue
			}
			if c, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil {
				if at != nil {
					t.Fatalf("both nodes run the jail")
				}
				at, count = n, c
			}
		}
		return at, count
	}
	moves := 8
	if thorough {
		moves = 100
	}
	var ends []string
	at, count := state()
	for n := range moves {
		to := two
		if at == two {
			to = one
		}
		done := make(chan error, 1)
		go func() {
			_, err := cl.MoveJail(ctx, j.ID, to.name)
			done <- err
		}()
		victim := []*fleetNode{at, to}[n%2]
		delay := time.Duration(rand.IntN(900)) * time.Millisecond
		time.Sleep(delay)
		victim.kill()
		err := <-done
		victim.start()
		var now *fleetNode
		var counted int
		if !within(time.Minute, func() bool {
			now, counted = state()
			return now != nil
		}) {
			for _, n := range []*fleetNode{one, two} {
				got, err := n.as(f.token, n.name).Jail(ctx, j.ID)
				t.Errorf("node %s has %+v, %v\n%s", n.name, got, err, n.log)
			}
			t.Fatalf("no node runs the jail after %s was killed %s after the begin of a move from %s to %s (%v)", victim.name, delay, at.name, to.name, err)
		}
		if counted < count {
			t.Errorf("the jail has counted to %d, and before the move to %d", counted, count)
		}
		ends = append(ends, fmt.Sprintf("%s after %s: on %s", victim.name, delay, now.name))
		at, count = now, counted
	}
	t.Log(strings.Join(ends, "\n"))
	if text := f.text(cl, j.ID, "cat /run/secrets/MOVED"); text != "kept" {
		t.Errorf("the secret of the jail is %q after %d moves, want it kept", text, moves)
	}
	for _, n := range []*fleetNode{one, two} {
		if !within(20*time.Second, func() bool {
			all, err := client.Collect(n.Snapshots(ctx, client.SnapshotFilter{}))
			return err == nil && len(all) == 0
		}) {
			t.Errorf("node %s still has snapshots", n.name)
		}
	}
	if err := cl.DeleteJail(ctx, j.ID); err != nil {
		t.Error(err)
	}
}

// checkAuditLogs removes entries of the log of a node, which the others notice.
func (f *testFleet) checkAuditLogs(two, front *fleetNode) {
	f.Helper()
	ctx := f.Context()
	verify := func() (out string, code int) {
		f.Helper()
		f.Run("verify", func(t *testing.T) {
			t.Setenv("GLASSHOUSE_TOKEN", f.token)
			var stderr string
			out, stderr, code = front.glasshouse(front.data, "audit", "verify", "--fleet")
			out += stderr
		})
		return out, code
	}
	var self wire.Node
	for n, err := range two.Nodes(ctx) {
		if err != nil {
			f.Fatal(err)
		}
		if n.Self {
			self = n
		}
	}
	var seen int64
	if !within(30*time.Second, func() bool {
		logs, err := front.WitnessedLogs(ctx)
		for _, l := range logs {
			if l.Node == self.ID {
				seen = l.Entries
			}
		}
		return err == nil && len(logs) == len(f.nodes)-1 && seen > 0
	}) {
		f.Fatal("the front end has not seen the logs of all other nodes")
	}
	var out string
	var code int
	if !within(20*time.Second, func() bool { // the other nodes have seen that of the front end
		out, code = verify()
		return code != 0 || strings.Count(out, "were seen by") == len(f.nodes)
	}) || code != 0 || strings.Count(out, ": intact, ") != len(f.nodes) {
		f.Errorf("audit verify --fleet = exit code %d, %s, want %d intact logs with witnesses", code, out, len(f.nodes))
	}
	two.stop() // it copies its last entries to the object store
	db, err := sql.Open("sqlite", filepath.Join(two.data, "glasshouse.db"))
	if err != nil {
		f.Fatal(err)
	}
	const cut = 50
	var all int64 // other nodes can have seen more than the front end
	if err := db.QueryRow("SELECT MAX(seq) FROM chain_entries").Scan(&all); err != nil {
		f.Fatal(err)
	}
	for _, statement := range []string{"DELETE FROM chain_entries WHERE seq > $1", "DELETE FROM chain_checkpoints WHERE size > $1"} {
		if _, err := db.Exec(statement, seen-cut); err != nil {
			f.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	two.start()
	if !within(20*time.Second, func() bool { // the other nodes reach it again
		out, code = verify()
		return code != 0 && strings.Contains(out, "and had")
	}) {
		f.Errorf("audit verify --fleet with a log that was truncated = exit code %d, %s, want an error", code, out)
	}
	found := regexp.MustCompile(`(?m)^two: BAD, .*; at least (\d+) entries are missing$`).FindStringSubmatch(out)
	if found == nil || strings.Count(out, ": intact, ") != len(f.nodes)-1 {
		f.Fatalf("audit verify --fleet with a log that was truncated: %s, want node two and the number of missing entries", out)
	}
	if n, err := strconv.Atoi(found[1]); err != nil || n < 1 || int64(n) > all-(seen-cut) { // the restart adds entries
		f.Errorf("%d entries are missing, %v, want at most the %d that were removed", n, err, all-(seen-cut))
	}
	// The object store still has them.
	var copied, stderr string
	f.Run("export", func(t *testing.T) {
		t.Setenv("GLASSHOUSE_TOKEN", f.token)
		copied, stderr, code = front.glasshouse(front.data, "audit", "export", "--stored", "two")
	})
	pub, err := os.ReadFile(filepath.Join(two.data, "chain.pub"))
	if err != nil {
		f.Fatal(err)
	}
	name := filepath.Join(f.TempDir(), "copy.jsonl")
	if err := os.WriteFile(name, []byte(copied), 0o600); err != nil {
		f.Fatal(err)
	}
	report, _, verified := front.glasshouse(front.data, "audit", "verify", "--export", name, "--key", strings.TrimSpace(string(pub)))
	if want := fmt.Sprintf("%d entries verified", all); code != 0 || verified != 0 || !strings.Contains(report, want) {
		f.Errorf("copy of the truncated log: exit codes %d, %d, %s%s, want %s", code, verified, stderr, report, want)
	}
	if want := fmt.Sprintf("; %d are in the object store", all); !strings.Contains(out, want) {
		f.Errorf("audit verify --fleet = %s, want %s", out, want)
	}
	// The other nodes remember it, also when the log has grown again.
	if !within(30*time.Second, func() bool {
		logs, err := front.WitnessedLogs(ctx)
		return err == nil && slices.ContainsFunc(logs, func(l wire.WitnessedLog) bool {
			return l.Node == self.ID && l.Conflict != nil
		})
	}) {
		f.Error("the front end has not noticed that the log of another node was truncated")
	}
}

// leaveCopy makes a node copy a snapshot of another one. The node must remove the copy when it is not
// in the fleet any longer, although the snapshot exists.
func (f *testFleet) leaveCopy(owner, copier *fleetNode) {
	f.Helper()
	ctx := f.Context()
	j, err := owner.CreateJail(ctx, wire.CreateJail{Start: true})
	if err != nil {
		f.Fatal(err)
	}
	taken, err := owner.TakeSnapshot(ctx, j.ID, wire.TakeSnapshot{})
	if err != nil {
		f.Fatal(err)
	}
	branch, err := owner.as(f.token, copier.name).BranchSnapshot(ctx, taken.ID, wire.Branch{Count: 1})
	if err != nil || len(branch.Jails) != 1 {
		f.Fatalf("branch on node %s: %v, %v", copier.name, branch.Errors, err)
	}
	copied := filepath.Join(copier.data, "jails", string(j.ID), "snapshots", string(taken.ID), "metadata.json")
	if !within(30*time.Second, func() bool { _, err := os.Stat(copied); return err == nil }) {
		f.Errorf("node %s does not store its copy of a snapshot", copier.name)
	}
	for _, made := range []id.Jail{branch.Jails[0].ID, j.ID} {
		if err := owner.as(f.token, "").DeleteJail(ctx, made); err != nil {
			f.Error(err)
		}
	}
}

// checkRemoval kills a node and removes it from the fleet.
func (f *testFleet) checkRemoval(one, two *fleetNode, j id.Jail) {
	f.Helper()
	ctx := f.Context()
	f.leaveCopy(one, two)
	if _, stderr, code := one.glasshouse(one.data, "node", "drain", "two"); code != 0 {
		f.Errorf("node drain: %s", stderr)
	}
	if err := one.RemoveNode(ctx, "two", false); !errors.Is(err, fault.Conflict) {
		f.Errorf("removal of a node with jails = %v, want conflict", err)
	}
	two.kill()
	if _, err := one.as(f.token, "").Jail(ctx, j); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "two") {
		f.Errorf("a jail of a dead node = %v, want unavailable and its name", err)
	}
	two.start()
	if !within(20*time.Second, func() bool { _, err := one.as(f.token, "").Jail(ctx, j); return err == nil }) {
		f.Error("the jail of a node that started again is not found")
	}
	var out string
	var code int
	f.Run("drain", func(t *testing.T) {
		t.Setenv("GLASSHOUSE_TOKEN", f.token)
		var stderr string
		out, stderr, code = one.glasshouse(one.data, "node", "drain", "two", "--move")
		out += stderr
	})
	if _, err := one.Jail(ctx, j); err != nil || code != 0 || !strings.Contains(out, "remote: moved to one") {
		f.Errorf("node drain --move = exit code %d, %s, and the jail: %v, want it on the other node", code, out, err)
	}
	if err := one.RemoveNode(ctx, "two", true); err != nil {
		f.Fatal(err)
	}
	// Its daemon still runs, with a valid certificate and the token of a user.
	mine, err := one.CreateJail(ctx, wire.CreateJail{})
	if err != nil {
		f.Fatal(err)
	}
	if !within(30*time.Second, func() bool {
		_, err = two.as(f.token, "").Jail(ctx, mine.ID)
		return errors.Is(err, fault.Unavailable)
	}) || !strings.Contains(err.Error(), "not in the fleet") {
		f.Errorf("a removed node reads a jail of the fleet: %v, want a refusal", err)
	}
	// With another configuration, it works alone.
	two.kill()
	if err := os.WriteFile(two.config, fmt.Appendf(nil, "rootfs: {default: {dir: %q}}\npool: {size: 0}\n", backendtest.Rootfs(f.T)), 0o600); err != nil {
		f.Fatal(err)
	}
	two.start()
}
