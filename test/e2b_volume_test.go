package test_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A volumeAPI is the file API of a volume, used with a token of it.
type volumeAPI struct {
	*daemonHarness
	url, id, token string
}

// ask sends a request to the volume's file API.
func (v volumeAPI) ask(method, what, path, more, body string) (int, string) {
	v.Helper()
	r, err := http.NewRequestWithContext(v.Context(), method, v.url+"/volumecontent/"+v.id+"/"+what+"?path="+url.QueryEscape(path)+more, strings.NewReader(body))
	if err != nil {
		v.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+v.token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		v.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (h *daemonHarness) newVolume(url, key, name string) volumeAPI {
	h.Helper()
	status, made := h.e2b(url, key, "POST", "/volumes", map[string]any{"name": name})
	if status != http.StatusCreated {
		h.Fatal(status, made)
	}
	return volumeAPI{h, url, made["volumeID"].(string), made["token"].(string)}
}

// openWithVolumes starts a daemon with volumes of the given size.
func openWithVolumes(t *testing.T, mb int) *daemonHarness {
	return open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\", volume_mb: %d}\nrootfs: {default: {dir: %q}}\n", mb, treeWithUser(t)))
}

// TestHostileLinksInVolume creates links to outside files in a volume, and requests these
// files as the owner and with foreign tokens.
func TestHostileLinksInVolume(t *testing.T) {
	h := openWithVolumes(t, 64)
	k, other := h.e2bKey(), h.e2bKey()
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("the host's"), 0o666); err != nil {
		t.Fatal(err)
	}
	v, foreign := h.newVolume(k.URL, k.Key, "mine"), h.newVolume(k.URL, other.Key, "mine")
	foreign.ask("PUT", "file", "f", "", "the other's")
	b := h.newBox(k.URL, k.Key, map[string]any{"volumeMounts": []any{map[string]any{"name": "mine", "path": "/v"}}})
	b.sh(fmt.Sprintf(`cd /v; ln -s %[1]s abs; ln -s ../../../../../../../../../..%[1]s up; ln -s %[2]s dir; ln -s ../../../%[3]s/disk/files/f beside
		ln -s /proc/self/root/etc/passwd magic; ln -s /proc/1/root proc; ln -s loop loop; mkdir real; ln -s .. real/parent; mkfifo fifo; cp /bin/true set; chmod 4755 set`,
		canary, filepath.Dir(canary), foreign.id))

	out := func(what string, status int, text string) {
		t.Helper()
		if strings.Contains(text, "the host's") || strings.Contains(text, "the other's") || strings.Contains(text, "root:") || status/100 == 2 && what != "" {
			t.Errorf("%s: %d %q", what, status, text)
		}
	}
	for _, path := range []string{
		canary, "abs", "up", "beside", "magic", "proc/etc/passwd", "dir/canary", "loop", "../../../../../../.." + canary, "/../" + foreign.id + "/disk/files/f",
		"real/parent/../../../image", "../lost+found", "../image", "real/../../image", "a\x00b", strings.Repeat("x/", 3000), "fifo", "proc/1/environ",
	} {
		status, text := v.ask("GET", "file", path, "", "")
		out("to read "+path, status, text)
		status, text = v.ask("GET", "dir", path, "&depth=3", "")
		out("to list "+path, status, text)
	}
	for _, path := range []string{"abs", "up", "dir/canary", "../../../../.." + canary} { // written inside the volume, or refused
		status, text := v.ask("PUT", "file", path, "", "overwritten")
		out("", status, text)
		v.ask("PATCH", "path", path, "", `{"mode": 0, "uid": 1, "gid": 1}`)
		v.ask("DELETE", "path", path, "", "")
		v.ask("POST", "dir", path+"/d", "&force=true", "")
	}
	st, err := os.Stat(canary)
	if text, _ := os.ReadFile(canary); err != nil || string(text) != "the host's" || st.Mode().Perm() != 0o644 {
		t.Errorf("the host's file changed: %q, %v, %v", text, st.Mode(), err)
	}
	for _, path := range []string{"", "/", ".", "..", "real/../.."} {
		if status, text := v.ask("DELETE", "path", path, "", ""); status != http.StatusBadRequest {
			t.Errorf("DELETE %q = %d %s, want 400", path, status, text)
		}
	}
	// Set-user-ID bits and device files of a sandbox have no effect outside it.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.data+"/volumes") && !(strings.Contains(line, "nosuid") && strings.Contains(line, "nodev")) {
			t.Errorf("volume mounted without nosuid and nodev: %s", line)
		}
	}
	for _, token := range []string{"", foreign.token, k.Key, v.token[1:]} {
		stranger := v
		stranger.token = token
		if status, text := stranger.ask("GET", "dir", "/", "", ""); status != http.StatusUnauthorized {
			t.Errorf("with the token %.10q: %d %s, want 401", token, status, text)
		}
	}
	for _, try := range []struct {
		method, path string
		body         any
		want         int
	}{
		{"GET", "/volumes/" + foreign.id, nil, 404}, {"DELETE", "/volumes/" + foreign.id, nil, 404},
		{"POST", "/volumes", map[string]any{"name": "../x"}, 400}, {"POST", "/volumes", map[string]any{}, 400}, {"POST", "/volumes", map[string]any{"name": "mine"}, 400},
		{"GET", "/volumes/..%2f..", nil, 404},
		{"POST", "/v2/sandboxes", map[string]any{"templateID": "base", "volumeMounts": []any{map[string]any{"name": "other", "path": "/v", "id": foreign.id}}}, 400},
		{"POST", "/v2/sandboxes", map[string]any{"templateID": "base", "volumeMounts": []any{map[string]any{"name": "mine", "path": "/v"}, map[string]any{"name": "mine", "path": "/v/w"}}}, 400},
	} {
		if status, got := h.e2b(k.URL, k.Key, try.method, try.path, try.body); status != try.want {
			t.Errorf("%s %s %v = %d %v, want %d", try.method, try.path, try.body, status, got, try.want)
		}
	}
}

// TestVolumeSizeLimit fills a volume from the host and from a sandbox, and kills the
// daemon.
func TestVolumeSizeLimit(t *testing.T) {
	h := openWithVolumes(t, 32)
	k := h.e2bKey()
	v := h.newVolume(k.URL, k.Key, "small")
	b := h.newBox(k.URL, k.Key, map[string]any{"volumeMounts": []any{map[string]any{"name": "small", "path": "/v"}}})
	if status, text := v.ask("PUT", "file", "kept", "", "kept"); status != http.StatusCreated {
		t.Fatal(status, text)
	}
	if status, text := v.ask("PUT", "file", "large", "", strings.Repeat("x", 40<<20)); status != http.StatusInsufficientStorage {
		t.Errorf("PUT of more than the free space = %d %s, want 507", status, text)
	}
	if got := b.sh("head -c 40000000 /dev/zero 2>/dev/null >/v/full && echo all; rm /v/full; cat /v/kept"); strings.Contains(got, "all") || !strings.HasSuffix(got, "kept") {
		t.Errorf("sandbox that writes more: got %q", got)
	}
	h.kill()
	h.start()
	url := h.e2bKey().URL
	v.url, b.url = url, url
	if got := b.sh("cat /v/kept; echo after >/v/after"); got != "kept" {
		t.Errorf("after a daemon restart: got %q, want kept", got)
	}
	if status, text := v.ask("GET", "file", "after", "", ""); status != http.StatusOK || text != "after\n" {
		t.Errorf("GET of the file written since = %d %q", status, text)
	}
	if status, got := h.e2b(url, k.Key, "DELETE", "/volumes/"+v.id, nil); status != http.StatusConflict {
		t.Errorf("DELETE of a volume in use = %d %v, want 409", status, got)
	}
	b.do("POST", "/pause", nil, http.StatusNoContent)
	if status, got := h.e2b(url, k.Key, "DELETE", "/volumes/"+v.id, nil); status != http.StatusConflict {
		t.Errorf("DELETE of a paused sandbox's volume = %d %v, want 409", status, got)
	}
	b.do("DELETE", "", nil, http.StatusNoContent)
	if status, got := h.e2b(url, k.Key, "DELETE", "/volumes/"+v.id, nil); status != http.StatusNoContent {
		t.Errorf("DELETE = %d %v, want 204", status, got)
	}
	if left, _ := os.ReadDir(filepath.Join(h.data, "volumes")); len(left) != 0 {
		t.Errorf("volumes left on disk: %v", left)
	}
}

// TestVolumesInTemplateSandboxes mounts a volume in sandboxes of a template that was built
// with a running start command.
func TestVolumesInTemplateSandboxes(t *testing.T) {
	h := openWithVolumes(t, 64)
	k := h.e2bKey()
	ts := h.templates(k.URL, k.Key)
	plan := runs("echo of the template > ~/its")
	plan["startCmd"] = "echo begun >> /tmp/begun; ls /data > /tmp/saw 2>/dev/null; touch /tmp/ready; while :; do sleep 1; done"
	plan["readyCmd"] = "test -e /tmp/ready"
	build := ts.begin("made", plan)
	if state, reason, log := ts.built(build); state != "ready" || strings.Contains(log, "cannot be kept") {
		t.Fatal(state, reason, log)
	}
	v, foreign := h.newVolume(k.URL, k.Key, "mine"), h.e2bKey()
	h.newVolume(k.URL, foreign.Key, "theirs")
	if status, text := v.ask("PUT", "file", "given", "", "from outside"); status != http.StatusCreated {
		t.Fatal(status, text)
	}
	with := func(name, path string) map[string]any {
		return map[string]any{"templateID": "made", "volumeMounts": []any{map[string]any{"name": name, "path": path}}}
	}
	for _, try := range []struct {
		name, path string
		want       int
	}{{"theirs", "/data", 400}, {"none", "/data", 400}, {"mine", "/proc", 400}, {"mine", "data", 400}, {"mine", "/", 400}} {
		if status, got := h.e2b(k.URL, k.Key, "POST", "/v2/sandboxes", with(try.name, try.path)); status != try.want {
			t.Errorf("%s at %s = %d %v, want %d", try.name, try.path, status, got, try.want)
		}
	}

	b := h.newBox(k.URL, k.Key, with("mine", "/data"))
	if got := b.sh("cat /data/given /home/user/its; id -u user; stat -c %u /data"); got != "from outsideof the template\n1000\n1000" {
		t.Errorf("sandbox sees %q", got)
	}
	if !within(time.Minute, func() bool { return b.sh("cat /tmp/begun /tmp/saw 2>/dev/null || true") == "begun\ngiven" }) {
		t.Errorf("start command of a sandbox with a volume: got %q", b.sh("cat /tmp/begun /tmp/saw 2>&1 || true"))
	}
	bare := h.newBox(k.URL, k.Key, map[string]any{"templateID": "made"})
	if got := bare.sh("cat /tmp/begun; ls /data 2>/dev/null || echo none"); got != "begun\nnone" {
		t.Errorf("sandbox without a volume: got %q", got)
	}
	bare.do("DELETE", "", nil, http.StatusNoContent)

	// All sandboxes see the current content of the volume, even after pause, fork and snapshot.
	second := h.newBox(k.URL, k.Key, with("mine", "/data/below"))
	second.sh("echo second > /data/below/file")
	if got := b.sh("cat /data/file"); got != "second" {
		t.Errorf("file written by another sandbox: got %q", got)
	}
	second.do("DELETE", "", nil, http.StatusNoContent)
	fork := b.forks(1)[0]
	b.sh("echo later > /data/file")
	if got := fork.sh("cat /data/file /home/user/its"); got != "later\nof the template" {
		t.Errorf("fork sees %q", got)
	}
	fork.do("DELETE", "", nil, http.StatusNoContent)
	inUse := func(what string) {
		t.Helper()
		if status, got := h.e2b(k.URL, k.Key, "DELETE", "/volumes/"+v.id, nil); status != http.StatusConflict {
			t.Errorf("DELETE while %s = %d %v, want 409", what, status, got)
		}
	}
	inUse("a sandbox runs")
	b.do("POST", "/pause", nil, http.StatusNoContent)
	inUse("one rests")
	h.kill()
	h.start()
	k.URL = h.e2bKey().URL
	b.url, ts.url, v.url = k.URL, k.URL, k.URL
	inUse("one rests, after the daemon was killed")
	if status, text := v.ask("PUT", "file", "file", "", "meanwhile"); status != http.StatusCreated {
		t.Error(status, text)
	}
	b.do("POST", "/connect", map[string]any{"timeout": 600}, http.StatusCreated)
	if got := b.sh("cat /data/file; cat /tmp/begun"); got != "meanwhilebegun" {
		t.Errorf("resumed sandbox sees %q", got)
	}
	b.do("POST", "/snapshots", map[string]any{"name": "kept"}, http.StatusCreated)
	ts.do("DELETE", "/templates/made", nil, http.StatusNoContent)
	of := h.newBox(b.url, k.Key, map[string]any{"templateID": "kept"})
	if got := of.sh("cat /data/file /home/user/its"); got != "meanwhileof the template" {
		t.Errorf("sandbox of its snapshot sees %q", got)
	}
	of.do("DELETE", "", nil, http.StatusNoContent)
	b.do("DELETE", "", nil, http.StatusNoContent)
	if status, got := h.e2b(b.url, k.Key, "DELETE", "/volumes/"+v.id, nil); status != http.StatusNoContent {
		t.Errorf("DELETE of an unused volume = %d %v, want 204", status, got)
	}
}
