package test_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/capability/mcp/mcptest"
	"glasshouse/id"
)

// e2bVersions are the tested releases of E2B's SDK, and e2bScenarios the files of test/e2b that
// use them.
var (
	e2bVersions  = newest("2.45.0", "2.51.0")
	e2bScenarios = []string{"control.mjs", "data.mjs", "volumes.mjs", "secrets.mjs", "templates.mjs", "theirs.mjs"}
)

// newest returns all versions in a thorough run, and otherwise the last.
func newest(versions ...string) []string {
	if thorough {
		return versions
	}
	return versions[len(versions)-1:]
}

// An area is a part of the live tests of E2B's SDK, with the scenarios that test the same
// features.
type area struct {
	name  string
	tests int // number of E2B's tests
	not   int // number of those that cannot pass here; docs/reference/e2b.md gives the reasons
	by    []string
}

var areas = []area{
	{"api", 13, 0, []string{"get information about a sandbox", "list sandboxes by metadata and state, in pages", "pages list the newest first, in any state", "kill a sandbox"}},
	{"commands", 19, 1, []string{
		"a failed command reports its exit code and output", "run a command with a user, a directory and environment variables", "a sandbox reads its own id and metadata", "list, connect to and kill a background command",
		"send input to a command and close it", "a command is killed at its timeout", "commands with any bytes, with closed input, with two readers", "a stream reports that its sandbox was killed",
	}},
	{"files", 56, 0, []string{
		"write and read files in all formats", "stat, list, rename and remove files", "files keep their metadata", "watch files for changes", "download files by signed links only",
		"write many files at once, also as root", "list directories, links and attributes", "signed links: upload without a name, ranges, the error after expiry",
	}},
	{"git", 24, 0, []string{"git"}},
	{"pty", 8, 0, []string{"type into, resize, connect to and kill a terminal", "commands with any bytes, with closed input, with two readers"}},
	{"connect, create, host, kill, secure, timeout", 15, 1, []string{
		"create a sandbox and run a command", "connecting does not shorten the timeout", "reach a server in a sandbox by host, by path and over a WebSocket", "kill a sandbox while a command runs",
		"secure mode requires the token", "change the timeout of a sandbox",
	}},
	{"lifecycle, metrics", 5, 1, []string{
		"pause at the timeout and resume on a request", "a sandbox paused at its timeout resumes when a client connects", "get metrics of a sandbox", "metrics of a requested time range",
	}},
	{"fork", 4, 0, []string{"fork a running sandbox five times", "a sandbox paused at its timeout resumes when a client connects"}},
	{"snapshot", 16, 1, []string{
		"pause and resume with memory", "pause and resume with files only", "output of a command continues after a pause", "snapshot a sandbox and create others from it", "find snapshots by name",
	}},
	{"network", 15, 0, []string{"change the network rules of a sandbox", "ports: token, TLS and Host header"}},
	{"template", 16, 0, []string{
		"build a template and create a sandbox from it", "copy files into a template", "a failed build names its step", "tag builds", "list and delete templates; they belong to one API key",
		"builds with missing users, with links, and in the background",
	}},
	{"volume", 1, 0, []string{"several sandboxes share a volume, and it outlives them"}},
}

// areasDocumented checks that docs/reference/e2b.md has the results of the scenarios of each area.
func (m *matrix) areasDocumented(t *testing.T) {
	t.Helper()
	in := matrix{with: "E2B's live tests of | theirs | not here", versions: m.versions, well: map[string]map[string]bool{}}
	for _, a := range areas {
		row := fmt.Sprintf("%s | %d | %d", a.name, a.tests, a.not)
		in.order, in.well[row] = append(in.order, row), map[string]bool{}
		for _, version := range m.versions {
			all := true
			for _, scenario := range a.by {
				well, run := m.well[scenario]
				if !run {
					t.Errorf("%s: scenario %q does not exist", a.name, scenario)
				}
				all = all && well[version]
			}
			in.well[row][version] = all
		}
	}
	in.documented(t)
}

// openForE2B starts a daemon that serves the E2B API.
func openForE2B(t *testing.T) (h *daemonHarness, url string) {
	t.Helper()
	h = open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t)))
	return h, h.e2bKey().URL
}

func (h *daemonHarness) e2bKey() wire.E2BKey {
	h.Helper()
	k, err := h.CreateE2BKey(h.Context(), wire.CreateE2BKey{})
	if err != nil {
		h.Fatal(err)
	}
	return k
}

// treeWithUser is the small root filesystem with the user that sandboxes have, and programs of
// this host.
func treeWithUser(t *testing.T, programs ...string) string {
	t.Helper()
	dir := rootfsWith(t, programs...)
	for name, line := range map[string]string{"etc/passwd": "user:x:1000:1000::/home/user:/bin/bash\n", "etc/group": "user:x:1000:\n"} {
		old, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append([]byte(line), old...), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	home := filepath.Join(dir, "home/user")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	return dir
}

// buildPortServer builds a server for the ports of sandboxes.
func buildPortServer(t *testing.T, dir string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "server"), "glasshouse/e2b/envd/testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestE2BSDK runs typical uses of E2B's unmodified packages, and checks that
// docs/reference/e2b.md has the results.
func TestE2BSDK(t *testing.T) {
	dir := clientsOfE2B(t)
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\"}\nrootfs: {default: {dir: %q}}\n", treeWithPython(t)))
	url := h.e2bKey().URL
	buildPortServer(t, dir)
	t.Setenv("REGISTRY", imageRegistry(t)) // registry of template images
	t.Setenv("PRIVATE_REGISTRY", imageRegistry(t, "me", "mine"))
	sdk := matrix{with: "the SDK"}
	for _, version := range e2bVersions {
		h.scenarios(&sdk, dir, url, "e2b-"+version, version, e2bScenarios...)
	}
	sdk.documented(t)
	sdk.areasDocumented(t)
	code := matrix{with: codePackage}
	h.scenarios(&code, dir, url, codePackage, codeVersion, "code.mjs")
	code.documented(t)
	compute := matrix{with: computePackage}
	h.scenarios(&compute, dir, url, computePackage, computeVersion, "compute.mjs")
	compute.documented(t)
}

// TestCodeInterpreterPictures builds a template with matplotlib, pandas and PIL from Debian's
// packages, and draws with them.
func TestCodeInterpreterPictures(t *testing.T) {
	if !thorough {
		t.Skip("installs about 200 packages: runs with GLASSHOUSE_TEST=all")
	}
	host, dir := debian(t), clientsOfE2B(t)
	data := t.TempDir()
	if err := shareImages(host, data); err != nil {
		t.Fatal(err)
	}
	h := openAt(t, data, tools()+"e2b: {listen: \"127.0.0.1:0\"}\npool: {size: 0}\nrootfs: {default: {debian: bookworm}}\n")
	code := matrix{with: codePackage}
	h.scenarios(&code, dir, h.e2bKey().URL, codePackage, codeVersion, "charts.mjs")
	code.documented(t)
}

// computePackage is ComputeSDK's package for E2B sandboxes.
const (
	computePackage = "@computesdk/e2b"
	computeVersion = "1.7.52"
)

// codePackage is E2B's package for running code; its version is pinned with the others.
const (
	codePackage = "@e2b/code-interpreter"
	codeVersion = "2.8.0"
)

// treeWithPython is like treeWithUser, but also has python3, node and git of this host.
func treeWithPython(t *testing.T, programs ...string) string {
	t.Helper()
	const python = "/usr/bin/python3"
	dir := treeWithUser(t, append(programs, python, "node", "pgrep", "git")...)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"git-upload-pack", "git-receive-pack"} { // git calls these programs itself
		if err := os.Symlink("git", filepath.Join(dir, filepath.Dir(git), name)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(python, "-Ic", "import sysconfig; print(sysconfig.get_path('stdlib'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	lib := strings.TrimSpace(string(out))
	to := filepath.Join(dir, lib)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", lib, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// clientsOfE2B returns a directory with test/e2b and the packages it uses.
func clientsOfE2B(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	lock, err := os.ReadFile("e2b/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	packages := mcptest.Cached(t, fmt.Sprintf("e2b-clients-%.8x", sha256.Sum256(lock)), "node_modules", func(dir string) {
		install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
		install.Dir = dir
		for _, cmd := range []*exec.Cmd{exec.Command("cp", "e2b/package.json", "e2b/package-lock.json", dir), install} {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
		}
	})
	dir := t.TempDir()
	if out, err := exec.Command("cp", "-a", "e2b/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A matrix holds the results of scenarios by version of a client.
type matrix struct {
	with     string
	versions []string
	order    []string // order of the scenarios
	well     map[string]map[string]bool
	cannot   map[string]string // "VERSION/SCENARIO": the error of a scenario that cannot pass; docs/reference/e2b.md has the reason
}

// scenarios runs the scenarios of files with a package.
func (h *daemonHarness) scenarios(m *matrix, dir, url, pkg, version string, files ...string) {
	h.Helper()
	key, other := h.e2bKey(), h.e2bKey()
	cmd := exec.CommandContext(h.Context(), "node", append([]string{"run.mjs", pkg}, files...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "E2B_API_KEY="+key.Key, "OTHER_KEY="+other.Key, "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_VOLUME_API_URL="+url)
	h.outcomes(m, version, cmd)
}

// outcomes runs a command that prints the results of scenarios.
func (h *daemonHarness) outcomes(m *matrix, version string, cmd *exec.Cmd) {
	h.Helper()
	if m.well == nil {
		m.well = map[string]map[string]bool{}
	}
	m.versions = append(m.versions, version)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		h.Errorf("%s: %v\n%s", version, err, said.Bytes())
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var got struct {
			Scenario string `json:"scenario"`
			MS       int    `json:"ms"`
			Error    string `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			h.Logf("%s: %s", version, lines.Text())
			continue
		}
		if m.well[got.Scenario] == nil {
			m.well[got.Scenario], m.order = map[string]bool{}, append(m.order, got.Scenario)
		}
		m.well[got.Scenario][version] = got.Error == ""
		h.T.Run(version+"/"+got.Scenario, func(t *testing.T) {
			why, cannot := m.cannot[version+"/"+got.Scenario]
			switch {
			case cannot && !strings.Contains(got.Error, why):
				t.Errorf("got %q, want an error with %q", got.Error, why)
			case !cannot && got.Error != "":
				t.Error(got.Error)
			}
			t.Logf("%d ms", got.MS)
		})
	}
}

// documented checks that docs/reference/e2b.md has the result of each scenario, in a table with a column
// for each version. A thorough run covers all versions of the table.
func (m *matrix) documented(t *testing.T) {
	t.Helper()
	if len(m.order) == 0 {
		t.Fatal("no scenario was run")
	}
	doc, err := os.ReadFile("../docs/reference/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	// A scenario can have more than one cell.
	cells := func(line, name string) []string {
		rest, ok := strings.CutPrefix(line, "| "+name+" | ")
		if !ok {
			return nil
		}
		return strings.Split(strings.TrimSuffix(rest, " |"), " | ")
	}
	first, table := "with "+m.with, strings.Split(string(doc), "\n")
	begin := slices.IndexFunc(table, func(line string) bool { return cells(line, first) != nil })
	if begin < 0 {
		t.Fatalf("docs/reference/e2b.md: got no table %q", first)
	}
	table = table[begin:]
	if end := slices.IndexFunc(table, func(line string) bool { return !strings.HasPrefix(line, "|") }); end >= 0 {
		table = table[:end]
	}
	columns := cells(table[0], first)
	rows := map[string][]string{}
	for _, scenario := range m.order {
		for _, line := range table {
			if row := cells(line, scenario); row != nil {
				rows[scenario] = row
			}
		}
	}
	if thorough && !slices.Equal(columns, m.versions) {
		t.Errorf("docs/reference/e2b.md, %q: got columns %q, want %q", first, columns, m.versions)
	}
	for _, version := range m.versions {
		i := slices.Index(columns, version)
		if i < 0 {
			t.Errorf("docs/reference/e2b.md, %q: got columns %q, want %q too", first, columns, version)
			continue
		}
		for _, scenario := range m.order {
			want := map[bool]string{true: "yes", false: "no"}[m.well[scenario][version]]
			if row := rows[scenario]; i >= len(row) || row[i] != want {
				t.Errorf("docs/reference/e2b.md, %q with %s: got %q, want %s", scenario, version, row, want)
			}
		}
	}
}

// e2b sends a request to E2B's control API and returns the status and the response.
func (h *daemonHarness) e2b(url, key, method, path string, body any) (int, map[string]any) {
	h.Helper()
	var got map[string]any
	status := h.e2bInto(url, key, method, path, body, &got)
	return status, got
}

// e2bInto decodes the response into got if it fits, and returns the status.
func (h *daemonHarness) e2bInto(url, key, method, path string, body, got any) int {
	h.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		h.Fatal(err)
	}
	r, err := http.NewRequestWithContext(h.Context(), method, url+path, bytes.NewReader(text))
	if err != nil {
		h.Fatal(err)
	}
	r.Header.Set("X-API-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	json.NewDecoder(resp.Body).Decode(got) // a response of another type is judged by its status
	return resp.StatusCode
}

// jailIn returns the jail of a sandbox.
func (h *daemonHarness) jailIn(sandbox string) string {
	h.Helper()
	jails, err := client.Collect(h.Jails(h.Context(), client.JailFilter{Name: sandbox}))
	if err != nil || len(jails) != 1 {
		h.Fatalf("the jail of %s: %v, %v", sandbox, jails, err)
	}
	return string(jails[0].ID)
}

// The daemon and the CLI say what sandboxes can reach, and e2b.reach limits it.
func TestE2BReach(t *testing.T) {
	t.Run("open", func(t *testing.T) {
		h, _ := openForE2B(t)
		if log := h.log.String(); !strings.Contains(log, "can reach the whole Internet") || !strings.Contains(log, "e2b.reach") {
			t.Errorf("the daemon does not log what sandboxes can reach:\n%s", log)
		}
		if _, errs, code := h.glasshouse(h.data, "e2b"); code != 0 || !strings.Contains(errs, "whole Internet") {
			t.Errorf("glasshouse e2b: exit code %d, %q, want what sandboxes can reach", code, errs)
		}
	})
	t.Run("limited", func(t *testing.T) {
		h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\", reach: [\"*.example.com\"]}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t)))
		if log := h.log.String(); strings.Contains(log, "whole Internet") {
			t.Errorf("the daemon warns although e2b.reach is set:\n%s", log)
		}
		if _, errs, code := h.glasshouse(h.data, "e2b"); code != 0 || !strings.Contains(errs, "only e2b.reach: *.example.com") {
			t.Errorf("glasshouse e2b: exit code %d, %q, want the hosts", code, errs)
		}
		k := h.e2bKey()
		deny := []string{"0.0.0.0/0"}
		if status, got := h.e2b(k.URL, k.Key, "POST", "/v2/sandboxes", map[string]any{"templateID": "base", "network": map[string]any{"allowOut": []string{"example.org"}, "denyOut": deny}}); status != http.StatusBadRequest {
			t.Errorf("a sandbox that may reach another host = %d %v, want 400", status, got)
		}
		status, box := h.e2b(k.URL, k.Key, "POST", "/v2/sandboxes", map[string]any{"templateID": "base"})
		if status != http.StatusCreated {
			t.Fatal(status, box)
		}
		sandbox := box["sandboxID"].(string)
		if status, got := h.e2b(k.URL, k.Key, "PUT", "/sandboxes/"+sandbox+"/network", map[string]any{"allowOut": []string{"8.8.8.8"}}); status != http.StatusBadRequest {
			t.Errorf("a later change to another host = %d %v, want 400", status, got)
		}
		out, errs, code := h.glasshouse("", "egress", "show", h.jailIn(sandbox))
		if code != 0 || !strings.Contains(out, "*.example.com") || strings.Contains(out, "0.0.0.0/0") {
			t.Errorf("egress rules of the sandbox: exit code %d, %s%s", code, out, errs)
		}
	})
}

func TestE2BKeyIsolation(t *testing.T) {
	h, url := openForE2B(t)
	mine, other := h.e2bKey(), h.e2bKey()
	status, box := h.e2b(url, mine.Key, "POST", "/v2/sandboxes", map[string]any{"templateID": "base", "unknown": []int{1}})
	if status != http.StatusCreated || box["envdAccessToken"] == "" {
		t.Fatal(status, box)
	}
	sandbox := box["sandboxID"].(string)
	status, snap := h.e2b(url, mine.Key, "POST", "/sandboxes/"+sandbox+"/snapshots", map[string]any{"name": "mine"})
	if status != http.StatusCreated {
		t.Fatal(status, snap)
	}
	for _, try := range []struct {
		method, path string
		body         any
		want         int
	}{
		{"GET", "", nil, 404}, {"DELETE", "", nil, 404}, {"POST", "/connect", map[string]any{"timeout": 5}, 404},
		{"POST", "/timeout", map[string]any{"timeout": 0}, 404}, {"POST", "/refreshes", map[string]any{"duration": 5}, 404},
		{"POST", "/pause", nil, 404}, {"POST", "/resume", nil, 404}, {"POST", "/fork", map[string]any{"count": 1}, 404},
		{"POST", "/snapshots", nil, 404}, {"PUT", "/network", map[string]any{}, 404}, {"GET", "/metrics", nil, 404}, {"GET", "/logs", nil, 404},
	} {
		if status, got := h.e2b(url, other.Key, try.method, "/sandboxes/"+sandbox+try.path, try.body); status != try.want {
			t.Errorf("%s %s of another key = %d %v, want %d", try.method, try.path, status, got, try.want)
		}
	}
	for _, ref := range []string{"mine", "mine:default", snap["snapshotID"].(string)} {
		if status, got := h.e2b(url, other.Key, "POST", "/sandboxes", map[string]any{"templateID": ref}); status != 404 {
			t.Errorf("sandbox of another key's snapshot %s = %d %v, want 404", ref, status, got)
		}
		if status, got := h.e2b(url, other.Key, "DELETE", "/templates/"+ref, nil); status != 404 {
			t.Errorf("DELETE of another key's snapshot %s = %d %v, want 404", ref, status, got)
		}
	}
	// An E2B key authorizes only the E2B API, and other tokens do not authorize it.
	for _, secret := range []string{"", "e2b_", mine.Key + "0", "gh_0", strings.Repeat("e2b_", 1000)} {
		if status, got := h.e2b(url, secret, "GET", "/sandboxes/"+sandbox, nil); status != 401 {
			t.Errorf("the key %.20q = %d %v, want 401", secret, status, got)
		}
	}
	if _, _, code := h.glasshouse(h.data, "token", "rm", string(mine.ID)); code != 0 {
		t.Fatal("the key is not revoked")
	}
	if status, got := h.e2b(url, mine.Key, "GET", "/sandboxes/"+sandbox, nil); status != 401 {
		t.Errorf("revoked key = %d %v, want 401", status, got)
	}
}

func TestSandboxStateFollowsJail(t *testing.T) {
	h, url := openForE2B(t)
	key := h.e2bKey().Key
	var boxes [2]string
	for i := range boxes {
		status, box := h.e2b(url, key, "POST", "/v2/sandboxes", map[string]any{"templateID": "base"})
		if status != http.StatusCreated {
			t.Fatal(status, box)
		}
		boxes[i] = box["sandboxID"].(string)
	}
	jails, err := client.Collect(h.Jails(t.Context(), client.JailFilter{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jails { // a jail has the name of its sandbox
		switch j.Name {
		case boxes[0]:
			h.says("jail", "stop", string(j.ID))
		case boxes[1]:
			h.says("jail", "rm", string(j.ID))
		}
	}
	if _, got := h.e2b(url, key, "GET", "/sandboxes/"+boxes[0], nil); got["state"] != "paused" {
		t.Errorf("sandbox of a stopped jail is %v, want paused", got["state"])
	}
	if status, got := h.e2b(url, key, "POST", "/sandboxes/"+boxes[0]+"/connect", map[string]any{"timeout": 60}); status != http.StatusCreated {
		t.Errorf("connect = %d %v, want 201", status, got)
	}
	if status, _ := h.e2b(url, key, "GET", "/sandboxes/"+boxes[1], nil); status != http.StatusNotFound {
		t.Errorf("sandbox of a removed jail = %d, want 404", status)
	}
	if _, _, code := h.glasshouse(h.data, "jail", "create", "--label", "e2b.sandbox="+boxes[0]); code == 0 {
		t.Error("a client can create a jail with a sandbox's label")
	}
}

func TestIdleSandboxIsPaused(t *testing.T) {
	h := open(t, tools()+fmt.Sprintf("e2b: {listen: \"127.0.0.1:0\", idle: 1s}\nrootfs: {default: {dir: %q}}\n", treeWithUser(t)))
	url, key := h.e2bKey().URL, h.e2bKey().Key
	create := func(body map[string]any) (sandbox, token string) {
		t.Helper()
		body["templateID"], body["timeout"] = "base", 3600
		status, box := h.e2b(url, key, "POST", "/v2/sandboxes", body)
		if status != http.StatusCreated {
			t.Fatal(status, box)
		}
		return box["sandboxID"].(string), box["envdAccessToken"].(string)
	}
	state := func(sandbox string) any {
		_, got := h.e2b(url, key, "GET", "/sandboxes/"+sandbox, nil)
		return got["state"]
	}
	started := func(sandbox string) any {
		_, got := h.e2b(url, key, "GET", "/sandboxes/"+sandbox, nil)
		return got["startedAt"]
	}
	inside := func(sandbox, token, method, path string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"E2b-Sandbox-Id": sandbox, "E2b-Sandbox-Port": "49983", "X-Access-Token": token, "Content-Type": "application/json"} {
			r.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	wakes := map[string]any{"autoPause": true, "autoResume": map[string]any{"enabled": true}}
	works, _ := create(maps.Clone(wakes))
	if !within(time.Minute, func() bool { // it may be paused before its command starts, so connect first
		h.e2b(url, key, "POST", "/sandboxes/"+works+"/connect", map[string]any{"timeout": 3600})
		_, err := h.Exec(t.Context(), id.Jail(h.jailIn(works)), wire.ExecRequest{Cmd: "while ! [ -e /tmp/done ]; do sleep 0.05; done", Detach: true})
		return err == nil
	}) {
		t.Fatalf("no command started; the sandbox is %v", state(works))
	}
	rests, token := create(maps.Clone(wakes))
	stays, _ := create(map[string]any{"autoPause": true}) // nothing would resume it
	resting := func(sandbox string) bool { return state(sandbox) == "paused" }
	if !within(time.Minute, func() bool { return resting(rests) }) {
		t.Fatalf("idle sandbox is %v, want paused", state(rests))
	}
	for what, sandbox := range map[string]string{"one in which a command runs": works, "one that does not wake": stays} {
		if got := state(sandbox); got != "running" {
			t.Errorf("%s is %v, want running", what, got)
		}
	}
	// The time of the last start proves a resume even if the idle sandbox is paused again before
	// the test reads its state.
	before := started(rests)
	if status := inside(rests, "", "GET", "/health"); status != http.StatusForbidden || started(rests) != before {
		t.Errorf("GET /health without the token: got %d and started at %v, want 403 and %v", status, started(rests), before)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{{"GET", "/health", http.StatusNoContent}, {"POST", "/process.Process/List", http.StatusOK}} {
		before := started(rests)
		if status := inside(rests, token, c.method, c.path); status != c.want || started(rests) == before {
			t.Errorf("%s %s of a paused sandbox: got %d and started at %v, want %d and a later start than %v", c.method, c.path, status, started(rests), c.want, before)
		}
		if !within(time.Minute, func() bool { return resting(rests) }) {
			t.Errorf("idle after %s %s: got %v, want paused", c.method, c.path, state(rests))
		}
	}
	h.says("jail", "exec", h.jailIn(works), "--", "touch", "/tmp/done")
	if !within(time.Minute, func() bool { return resting(works) }) {
		t.Errorf("idle after its command has ended: got %v, want paused", state(works))
	}
}

// The daemon is killed while sandboxes are being paused. They survive with their memory.
func TestSandboxSurvivesDaemonKillDuringPause(t *testing.T) {
	h, url := openForE2B(t)
	key := h.e2bKey().Key
	rounds := 1
	if thorough {
		rounds = 8
	}
	for round := range rounds {
		var boxes []string
		for range 3 {
			status, box := h.e2b(url, key, "POST", "/v2/sandboxes", map[string]any{"templateID": "base", "autoPause": true})
			if status != http.StatusCreated {
				t.Fatal(status, box)
			}
			sandbox := box["sandboxID"].(string)
			h.says("jail", "exec", "-d", h.jailIn(sandbox), "--", "sh", "-c", "echo $$ > /tmp/pid; while :; do sleep 1; done")
			h.says("jail", "exec", h.jailIn(sandbox), "--", "sh", "-c", "until [ -s /tmp/pid ]; do sleep 0.02; done")
			boxes = append(boxes, sandbox)
		}
		for _, sandbox := range boxes {
			if status, got := h.e2b(url, key, "POST", "/sandboxes/"+sandbox+"/timeout", map[string]any{"timeout": 0}); status != http.StatusNoContent {
				t.Fatal(status, got)
			}
		}
		time.Sleep(time.Duration(round) * 60 * time.Millisecond) // do not wait: the kill happens at any stage
		h.kill()
		h.start()
		url = h.e2bKey().URL
		for _, sandbox := range boxes {
			if status, got := h.e2b(url, key, "POST", "/sandboxes/"+sandbox+"/connect", map[string]any{"timeout": 600}); status/100 != 2 {
				t.Fatalf("round %d: connect = %d %v", round, status, got)
			}
			h.says("jail", "exec", h.jailIn(sandbox), "--", "sh", "-c", "kill -0 $(cat /tmp/pid)")
			if status, got := h.e2b(url, key, "DELETE", "/sandboxes/"+sandbox, nil); status != http.StatusNoContent {
				t.Fatal(status, got)
			}
		}
	}
}

func TestSandboxTimeoutAfterDaemonKill(t *testing.T) {
	h, url := openForE2B(t)
	key := h.e2bKey().Key
	create := func(body map[string]any) string {
		t.Helper()
		body["templateID"] = "base"
		status, box := h.e2b(url, key, "POST", "/v2/sandboxes", body)
		if status != http.StatusCreated {
			t.Fatal(status, box)
		}
		return box["sandboxID"].(string)
	}
	state := func(sandbox string) any {
		status, got := h.e2b(url, key, "GET", "/sandboxes/"+sandbox, nil)
		if status == http.StatusNotFound {
			return "gone"
		}
		return got["state"]
	}
	stays, rests, ends, lazy := create(map[string]any{}), create(map[string]any{}), create(map[string]any{"timeout": 30}), create(map[string]any{"timeout": 30, "autoPause": true})
	if status, got := h.e2b(url, key, "POST", "/sandboxes/"+rests+"/pause", nil); status != http.StatusNoContent {
		t.Fatal(status, got)
	}
	for _, sandbox := range []string{ends, lazy} { // their timeouts expire soon after the daemon is killed
		if status, got := h.e2b(url, key, "POST", "/sandboxes/"+sandbox+"/timeout", map[string]any{"timeout": 1}); status != http.StatusNoContent {
			t.Fatal(status, got)
		}
	}
	h.kill()
	h.start()
	url = h.e2bKey().URL
	for sandbox, want := range map[string]string{stays: "running", rests: "paused", ends: "gone", lazy: "paused"} {
		if !within(30*time.Second, func() bool { return state(sandbox) == want }) {
			t.Errorf("%s is %v, want %s", sandbox, state(sandbox), want)
		}
	}
	if status, got := h.e2b(url, key, "POST", "/sandboxes/"+rests+"/connect", map[string]any{"timeout": 60}); status != http.StatusCreated {
		t.Errorf("connect to a paused sandbox = %d %v, want 201", status, got)
	}
	for _, sandbox := range []string{stays, rests, lazy} {
		if status, got := h.e2b(url, key, "DELETE", "/sandboxes/"+sandbox, nil); status != http.StatusNoContent {
			t.Errorf("kill = %d %v", status, got)
		}
	}
	if left := h.says("jail", "ls", "-q"); strings.TrimSpace(left) != "" {
		t.Errorf("jails left: %s", left)
	}
	if left := h.says("snapshot", "ls", "-q"); strings.TrimSpace(left) != "" {
		t.Errorf("snapshots left: %s", left)
	}
}
