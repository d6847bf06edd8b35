package test_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"glasshouse/jail/backend/backendtest"
)

// imageRegistry serves the small root filesystem as the image test/tree:1, with an additional
// file and variable, and returns the registry's address. With a name and a password it requires
// basic authentication.
func imageRegistry(t *testing.T, login ...string) string {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); len(login) > 0 && (name != login[0] || password != login[1]) {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			http.Error(w, `{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	more := t.TempDir()
	if err := os.WriteFile(filepath.Join(more, "of-the-image"), []byte("image\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, err := exec.Command("tar", "-C", backendtest.Rootfs(t), "-c", ".", "-C", more, "of-the-image").Output()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tree)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config.Env = "linux", runtime.GOARCH, []string{"FROM_IMAGE=yes"}
	img, err = mutate.ConfigFile(img, cfg)
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host + "/test/tree:1")
	if err != nil {
		t.Fatal(err)
	}
	as := authn.Anonymous
	if len(login) > 0 {
		as = &authn.Basic{Username: login[0], Password: login[1]}
	}
	if err := remote.Write(ref, img, remote.WithAuth(as)); err != nil {
		t.Fatal(err)
	}
	return host
}

// templates is the template API as used with one key.
type templates struct {
	h        *daemonHarness
	url, key string
}

func (h *daemonHarness) templates(url, key string) templates { return templates{h, url, key} }

// do sends a request and expects the given status.
func (ts templates) do(method, path string, body any, want int) map[string]any {
	ts.h.Helper()
	status, got := ts.h.e2b(ts.url, ts.key, method, path, body)
	if status != want {
		ts.h.Fatalf("%s %s = %d %v, want %d", method, path, status, got, want)
	}
	return got
}

// begin starts the build of a template and returns the path of the build.
func (ts templates) begin(name string, plan map[string]any) string {
	ts.h.Helper()
	made := ts.do("POST", "/v3/templates", map[string]any{"name": name, "memoryMB": 256}, http.StatusAccepted)
	path := fmt.Sprintf("/templates/%s/builds/%s", made["templateID"], made["buildID"])
	if plan["fromTemplate"] == nil && plan["fromImage"] == nil {
		plan["fromImage"] = "e2bdev/base"
	}
	ts.do("POST", "/v2"+path, plan, http.StatusAccepted)
	return path
}

func runs(commands ...string) map[string]any {
	var steps []map[string]any
	for _, c := range commands {
		steps = append(steps, map[string]any{"type": "RUN", "args": []string{c}})
	}
	return map[string]any{"steps": steps}
}

// status returns the state of a build, the reason of its failure, and its log.
func (ts templates) status(build string) (state, reason, log string) {
	ts.h.Helper()
	got := ts.do("GET", build+"/status", nil, http.StatusOK)
	if r, ok := got["reason"].(map[string]any); ok {
		reason = r["message"].(string)
	}
	for _, e := range got["logEntries"].([]any) {
		log += e.(map[string]any)["message"].(string) + "\n"
	}
	return got["status"].(string), reason, log
}

// built waits for the end of a build.
func (ts templates) built(build string) (state, reason, log string) {
	ts.h.Helper()
	if !within(2*time.Minute, func() bool {
		state, reason, log = ts.status(build)
		return state == "ready" || state == "error"
	}) {
		ts.h.Fatalf("the build is %s:\n%s", state, log)
	}
	return state, reason, log
}

// layers returns the existing snapshots.
func (h *daemonHarness) layers() []string {
	h.Helper()
	return strings.Fields(h.says("snapshot", "ls", "-q"))
}

func TestTemplateBuildFailsAfterDaemonKill(t *testing.T) {
	h, url := openForE2B(t)
	ts := h.templates(url, h.e2bKey().Key)
	build := ts.begin("slow", runs("echo one > ~/one", "echo at it; sleep 600"))
	if !within(time.Minute, func() bool { _, _, log := ts.status(build); return strings.Contains(log, "at it") }) {
		_, _, log := ts.status(build)
		t.Fatalf("the second step did not start:\n%s", log)
	}
	waits := ts.do("POST", "/v3/templates", map[string]any{"name": "waits"}, http.StatusAccepted)
	h.kill()
	h.start()
	ts.url = h.e2bKey().URL
	if state, reason, log := ts.status(build); state != "error" || !strings.Contains(reason, "daemon") || !strings.Contains(log, "at it") {
		t.Errorf("build is %s: %q, want an error that names the daemon\n%s", state, reason, log)
	}
	if left := h.says("jail", "ls", "-q"); strings.TrimSpace(left) != "" {
		t.Errorf("jails left: %s", left)
	}
	if got := h.layers(); len(got) != 1 {
		t.Errorf("got snapshots %v, want only that of the finished step", got)
	}
	if status, got := h.e2b(ts.url, ts.key, "POST", "/v2/sandboxes", map[string]any{"templateID": "slow"}); status != http.StatusNotFound {
		t.Errorf("sandbox of a failed template: got %d %v, want 404", status, got)
	}

	// Finished steps come from the cache, and the queued build still runs.
	again := ts.begin("slow", runs("echo one > ~/one", "echo two > ~/two"))
	state, reason, log := ts.built(again)
	if state != "ready" || strings.Count(log, "CACHED") != 1 {
		t.Errorf("second build is %s: %s\n%s", state, reason, log)
	}
	of := fmt.Sprintf("/templates/%s/builds/%s", waits["templateID"], waits["buildID"])
	ts.do("POST", "/v2"+of, map[string]any{"fromTemplate": "slow"}, http.StatusAccepted)
	if state, reason, log := ts.built(of); state != "ready" {
		t.Errorf("queued build is %s: %s\n%s", state, reason, log)
	}

	// An orderly shutdown of the daemon has the same result.
	build = ts.begin("slow", runs("echo at it; sleep 600"))
	if !within(time.Minute, func() bool { _, _, log := ts.status(build); return strings.Contains(log, "at it") }) {
		t.Fatal("the step did not start")
	}
	h.cmd.Process.Signal(syscall.SIGTERM)
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("the daemon exited: %v", err)
	}
	h.start()
	ts.url = h.e2bKey().URL
	if state, reason, _ := ts.status(build); state != "error" || !strings.Contains(reason, "daemon") {
		t.Errorf("build is %s: %q, want an error that names the daemon", state, reason)
	}
	if left := h.says("jail", "ls", "-q"); strings.TrimSpace(left) != "" {
		t.Errorf("jails left: %s", left)
	}
	b := h.newBox(ts.url, ts.key, map[string]any{"templateID": "slow"})
	if got := b.sh("cat /home/user/one /home/user/two"); got != "one\ntwo" {
		t.Errorf("files of the sandbox: got %q", got)
	}
	b.do("DELETE", "", nil, http.StatusNoContent)
}

// The daemon is killed while builds snapshot their steps. All recorded snapshots are complete,
// no others exist, and the next builds reuse them.
func TestTemplateLayersAfterDaemonKills(t *testing.T) {
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\", builds: {at_once: 3}}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t)))
	ts := h.templates(h.e2bKey().URL, h.e2bKey().Key)
	rounds, builds, steps := 1, 2, 2
	if thorough {
		rounds, builds, steps = 8, 3, 3
	}
	frozen := func() int {
		found, err := filepath.Glob(filepath.Join(h.data, "jails", "*", "snapshots", "*", "metadata.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	for round := range rounds {
		name := func(i int) string { return fmt.Sprintf("t%d-%d", round, i) }
		plan := func(i int) map[string]any {
			var lines []string
			for n := range steps {
				lines = append(lines, fmt.Sprintf("echo %s %d >> ~/it", name(i), n))
			}
			return runs(lines...)
		}
		before := frozen()
		var paths []string
		for i := range builds {
			paths = append(paths, ts.begin(name(i), plan(i)))
		}
		if !within(2*time.Minute, func() bool { return frozen() >= before+1+round%(builds*steps) }) { // then kill it immediately
			t.Fatalf("round %d: no snapshot was taken", round)
		}
		h.kill()
		h.start()
		ts.url = h.e2bKey().URL
		for _, path := range paths {
			if state, reason, _ := ts.status(path); state != "ready" && (state != "error" || !strings.Contains(reason, "daemon")) {
				t.Errorf("round %d: build is %s: %s", round, state, reason)
			}
		}
		if left := strings.TrimSpace(h.says("jail", "ls", "-q")); left != "" {
			t.Errorf("round %d: jails left: %s", round, left)
		}
		left := len(h.layers()) - before
		cached := 0
		for i := range builds {
			state, reason, log := ts.built(ts.begin(name(i), plan(i)))
			if state != "ready" {
				t.Fatalf("round %d: second build is %s: %s\n%s", round, state, reason, log)
			}
			cached += strings.Count(log, "CACHED")
			b := h.newBox(ts.url, ts.key, map[string]any{"templateID": name(i)})
			want := ""
			for n := range steps {
				want += fmt.Sprintf("%s %d\n", name(i), n)
			}
			if got := b.sh("cat /home/user/it"); got != strings.TrimSpace(want) {
				t.Errorf("round %d: sandbox has %q, want %q", round, got, want)
			}
			b.do("DELETE", "", nil, http.StatusNoContent)
		}
		if cached != left {
			t.Errorf("round %d: %d snapshots were left, but %d steps came from the cache", round, left, cached)
		}
		if got, want := len(h.layers())-before, builds*steps; got != want {
			t.Errorf("round %d: got %d snapshots, want one for each of %d steps", round, got, want)
		}
	}
}

func TestDeleteTemplateCancelsBuilds(t *testing.T) {
	h, url := openForE2B(t)
	ts := h.templates(url, h.e2bKey().Key)
	build := ts.begin("gone", runs("echo at it; sleep 600"))
	if !within(time.Minute, func() bool { _, _, log := ts.status(build); return strings.Contains(log, "at it") }) {
		t.Fatal("the step did not start")
	}
	ts.do("DELETE", "/templates/gone", nil, http.StatusNoContent)
	ts.do("GET", build+"/status", nil, http.StatusNotFound)
	if !within(time.Minute, func() bool { return strings.TrimSpace(h.says("jail", "ls", "-q")) == "" }) {
		t.Error("the build's jail still exists")
	}
	if got := h.layers(); len(got) != 0 {
		t.Errorf("snapshots left: %v", got)
	}
}

func TestTemplatesBelongToOneKey(t *testing.T) {
	h, url := openForE2B(t)
	mine, other := h.templates(url, h.e2bKey().Key), h.templates(url, h.e2bKey().Key)
	build := mine.begin("mine", runs("true"))
	if state, reason, log := mine.built(build); state != "ready" {
		t.Fatal(state, reason, log)
	}
	template := strings.Split(build, "/")[2]
	hash := strings.Repeat("0a", 32)
	for _, try := range []struct {
		method, path string
		body         any
	}{
		{"GET", "/templates/mine", nil}, {"GET", "/templates/" + template, nil}, {"GET", build + "/status", nil}, {"GET", build + "/logs", nil},
		{"POST", "/v2" + build, map[string]any{"fromImage": "e2bdev/base"}}, {"GET", "/templates/" + template + "/files/" + hash, nil},
		{"PATCH", "/v2/templates/mine", map[string]any{"public": true}}, {"DELETE", "/templates/" + template, nil}, {"GET", "/templates/aliases/mine", nil},
		{"GET", "/templates/mine/tags", nil}, {"POST", "/templates/tags", map[string]any{"target": "mine", "tags": []string{"x"}}},
		{"DELETE", "/templates/tags", map[string]any{"name": "mine", "tags": []string{"x"}}}, {"POST", "/sandboxes", map[string]any{"templateID": template}},
	} {
		other.do(try.method, try.path, try.body, http.StatusNotFound)
		if status, got := h.e2b(url, "", try.method, try.path, try.body); status != http.StatusUnauthorized {
			t.Errorf("%s %s without a key = %d %v", try.method, try.path, status, got)
		}
	}
	var all []any
	if status := h.e2bInto(url, other.key, "GET", "/templates", nil, &all); status != http.StatusOK || len(all) != 0 {
		t.Errorf("list with another key: got %d %v, want 200 and nothing", status, all)
	}
	if state, reason, _ := other.built(other.begin("theirs", map[string]any{"fromTemplate": "mine"})); state != "error" || !strings.Contains(reason, "not found") {
		t.Errorf("template based on another key's: got %s: %s, want not found", state, reason)
	}
	mine.do("PATCH", "/v2/templates/mine", map[string]any{"public": true}, http.StatusNotImplemented)

	// Uploading files requires a valid link.
	link := mine.do("GET", "/templates/"+template+"/files/"+hash, nil, http.StatusCreated)["url"].(string)
	send := func(to string, body []byte) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "PUT", to, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := send(link[:len(link)-1]+"x", tarOf(t, "a", "1")); got != http.StatusForbidden {
		t.Errorf("upload with a forged link: got %d, want 403", got)
	}
	if got := send(link, tarOf(t, "../../a", "1")); got != http.StatusBadRequest {
		t.Errorf("upload with an outside path: got %d, want 400", got)
	}
	if got := send(link, []byte("no archive")); got != http.StatusBadRequest {
		t.Errorf("upload of a non-archive: got %d, want 400", got)
	}
	mine.do("GET", "/templates/"+template+"/files/..%2f..%2fetc", nil, http.StatusBadRequest)
	copying := map[string]any{"steps": []any{map[string]any{"type": "COPY", "args": []string{"a", "/home/user/b"}, "filesHash": hash}, map[string]any{"type": "RUN", "args": []string{"grep 1 ~/b"}}}}
	if state, reason, _ := mine.built(mine.begin("mine", copying)); state != "error" || !strings.Contains(reason, "were not sent") {
		t.Errorf("build without its files: got %s: %s", state, reason)
	}
	if got := send(link, tarOf(t, "a", "1")); got != http.StatusOK {
		t.Errorf("upload: got %d, want 200", got)
	}
	if state, reason, log := mine.built(mine.begin("mine", copying)); state != "ready" {
		t.Errorf("build with its files: got %s: %s\n%s", state, reason, log)
	}
	if state, reason, _ := other.built(other.begin("theirs", copying)); state != "error" || !strings.Contains(reason, "were not sent") {
		t.Errorf("build with another key's files: got %s: %s", state, reason)
	}
}

// TestRegistryCredentialsAreNotKept pulls images from a registry that requires a name
// and a password.
func TestRegistryCredentialsAreNotKept(t *testing.T) {
	const user, password = "somebody", "pass-4f1d9a7c3e"
	image := imageRegistry(t, user, password) + "/test/tree:1"
	h, url := openForE2B(t)
	k := h.e2bKey()
	mine, other := h.templates(url, k.Key), h.templates(url, h.e2bKey().Key)
	plan := func(image string, with map[string]any) map[string]any {
		p := runs("cat /of-the-image; echo $FROM_IMAGE")
		p["fromImage"] = image
		if with != nil {
			p["fromImageRegistry"] = with
		}
		return p
	}
	right := map[string]any{"type": "registry", "username": user, "password": password}
	fails := func(ts templates, p map[string]any, want string) {
		t.Helper()
		state, reason, log := ts.built(ts.begin("private", p))
		if state != "error" || !strings.Contains(reason, want) || strings.Contains(reason+log, password) {
			t.Errorf("build without credentials: got %s: %s\n%s", state, reason, log)
		}
	}
	fails(mine, plan(image, nil), "UNAUTHORIZED")
	fails(mine, plan(image, map[string]any{"type": "registry", "username": user, "password": password + "?"}), "the credentials that were given")
	waits := mine.do("POST", "/v3/templates", map[string]any{"name": "private"}, http.StatusAccepted)
	of := fmt.Sprintf("/v2/templates/%s/builds/%s", waits["templateID"], waits["buildID"])
	for _, with := range []map[string]any{{"type": "registry", "username": user}, {"type": "other", "password": password}, {"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": password, "awsRegion": "a.example.com/"}} {
		if said := fmt.Sprint(mine.do("POST", of, plan(image, with), http.StatusBadRequest)); strings.Contains(said, password) {
			t.Errorf("the error for %v reveals the password: %s", with, said)
		}
	}
	state, reason, log := mine.built(mine.begin("private", plan(image, right)))
	if state != "ready" || !strings.Contains(log, "image\nyes\n") {
		t.Fatalf("build with credentials: got %s: %s\n%s", state, reason, log)
	}
	// A local image is not available to other keys without credentials, and the daemon does not
	// keep the credentials.
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	there, err := remote.Head(ref, remote.WithAuth(&authn.Basic{Username: user, Password: password}))
	if err != nil {
		t.Fatal(err)
	}
	pinned := ref.Context().Name() + "@" + there.Digest.String()
	for _, ref := range []string{image, pinned} {
		fails(other, plan(ref, nil), "UNAUTHORIZED")
		fails(mine, plan(ref, nil), "UNAUTHORIZED")
	}
	if state, reason, log := other.built(other.begin("private", plan(pinned, right))); state != "ready" {
		t.Errorf("build of another key with credentials: got %s: %s\n%s", state, reason, log)
	}
	b := h.newBox(url, k.Key, map[string]any{"templateID": "private"})
	if got := b.sh("cat /of-the-image; env | grep -c " + password); got != "image\n0" {
		t.Errorf("sandbox printed %q", got)
	}
	b.do("DELETE", "", nil, http.StatusNoContent)
	h.kill() // so that the log files are complete
	for _, secret := range []string{password, base64.StdEncoding.EncodeToString([]byte(user + ":" + password))} {
		if strings.Contains(h.log.String(), secret) {
			t.Error("the daemon's log contains the password")
		}
		// Disk images of jails are not searched, because they are gigabytes; the sandbox is
		// checked above.
		found, err := exec.Command("find", h.data, "-xdev", "-type", "f", "-size", "-64M", "-exec", "grep", "-laF", "-e", secret, "{}", "+").Output()
		if exit, _ := err.(*exec.ExitError); len(found) > 0 || exit == nil || exit.ExitCode() != 1 {
			t.Errorf("the password is found in %s, %v", found, err)
		}
	}
}

// TestTemplateCopyThroughHostileLinks copies files through links, created by a step, that point
// to a world-writable directory of the host.
func TestTemplateCopyThroughHostileLinks(t *testing.T) {
	h, url := openForE2B(t)
	ts := h.templates(url, h.e2bKey().Key)
	outside := shortTemp(t)
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	traps := fmt.Sprintf("ln -s %[1]s ~/abs; ln -s ../../../../../../../..%[1]s ~/up; ln -s /proc/1/root%[1]s ~/proc; ln -s %[1]s/new ~/file", outside)
	base := ts.begin("trapped", runs(traps))
	if state, reason, log := ts.built(base); state != "ready" {
		t.Fatal(state, reason, log)
	}
	hash := strings.Repeat("0b", 32)
	link := ts.do("GET", "/templates/trapped/files/"+hash, nil, http.StatusCreated)["url"].(string)
	r, err := http.NewRequestWithContext(t.Context(), "PUT", link, bytes.NewReader(tarOf(t, "a", "planted")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	for _, to := range []string{"/home/user/abs/a", "/home/user/up/a", "/home/user/proc/a", "/home/user/file", "/home/user/abs/", "../../../../../.." + outside + "/a"} {
		state, reason, _ := ts.built(ts.begin("copied", map[string]any{"fromTemplate": "trapped", "steps": []any{
			map[string]any{"type": "COPY", "args": []string{"a", to}, "filesHash": hash},
		}}))
		t.Logf("COPY a %s: %s %s", to, state, reason) // the copy lands inside, or fails
		if found, err := os.ReadDir(outside); err != nil || len(found) != 0 {
			t.Fatalf("COPY a %s: outside directory has %v, %v; want no entries", to, found, err)
		}
	}
}

func tarOf(t *testing.T, name, body string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(body)), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestTemplateBuildEgress sends requests to an allowed and a denied host from
// a step.
func TestTemplateBuildEgress(t *testing.T) {
	if !ownWorld(t) {
		return
	}
	world := internet(t)
	named(t, map[string]string{"packages.example.com": serverAddr, "other.example.com": serverAddr})
	website(t, world, serverAddr+":80", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.Host, "was reached") }))
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\", builds: {reach: [packages.example.com]}}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t, "curl")))
	k := h.e2bKey()
	ts := h.templates(k.URL, k.Key)
	state, reason, log := ts.built(ts.begin("net", runs(
		"curl -sS --max-time 20 http://packages.example.com/",
		"curl -sS --fail --max-time 20 http://other.example.com/ || echo refused",
	)))
	if state != "ready" {
		t.Fatalf("%s: %s\n%s", state, reason, log)
	}
	for _, want := range []string{"may reach packages.example.com\n", "packages.example.com was reached", "refused"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "other.example.com was reached") {
		t.Errorf("a denied host was reached:\n%s", log)
	}
}
