package test_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/api/wire"
	"glasshouse/capability/mcp/mcptest"
	"glasshouse/id"
)

// mcpCommand returns the command glasshouse mcp, as an MCP client starts it.
func (h *daemonHarness) mcpCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(h.bin, append([]string{"mcp"}, args...)...)
	cmd.Env = append(os.Environ(), "GLASSHOUSE_DATA="+h.data)
	return cmd
}

// connect returns a client of the MCP SDK.
func (h *daemonHarness) connect(by sdk.Transport) *sdk.ClientSession {
	h.Helper()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(h.Context(), by, nil)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { s.Close() })
	return s
}

// tool calls a tool, and returns its result as JSON and whether it failed.
func (h *daemonHarness) tool(s *sdk.ClientSession, name, input string) (string, bool) {
	h.Helper()
	r, err := s.CallTool(h.Context(), &sdk.CallToolParams{Name: name, Arguments: json.RawMessage(input)})
	if err != nil {
		h.Fatalf("%s: %v", name, err)
	}
	var text strings.Builder
	for _, c := range r.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	return text.String(), r.IsError
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func TestMCPClientCallsCapabilitiesAndJails(t *testing.T) {
	h := open(t, "")
	p := &publisher{h, shop(t)}
	p.does("capability", "register", "m.rtfs") // text.count is not approved yet

	s := h.connect(&sdk.CommandTransport{Command: h.mcpCommand()})
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]*sdk.Tool{}
	for _, tool := range list.Tools {
		names[tool.Name] = tool
	}
	if names["math__double"] == nil || names["jail_create"] == nil || names["text__count"] != nil {
		t.Fatalf("got tools %v", names)
	}
	if out, failed := h.tool(s, "math__double", `{"x":21}`); failed || out != `{"y":42}` {
		t.Errorf("math.double: got %s", out)
	}
	if out, failed := h.tool(s, "math__double", `{"x":"much"}`); !failed || !strings.Contains(out, "[:x]") {
		t.Errorf("an invalid input: got %s", out)
	}
	c, err := h.Capability(t.Context(), "text.count", "")
	if err != nil {
		t.Fatal(err)
	}
	p.does("approve", string(c.Approval))
	h.approved("text.count")
	if out, failed := h.tool(s, "text__count", `{"text":"hello"}`); failed || !strings.Contains(out, `"bytes":16`) {
		t.Errorf("text.count after its approval: got %s", out)
	}

	out, failed := h.tool(s, "jail_create", `{"name":"tools"}`)
	var jail struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(out), &jail); failed || err != nil || jail.ID == "" {
		t.Fatalf("jail_create: got %s, %v", out, err)
	}
	if out, failed := h.tool(s, "jail_exec", `{"jail":"`+jail.ID+`","cmd":"echo from the jail"}`); failed || !strings.Contains(out, "from the jail") {
		t.Errorf("jail_exec: got %s", out)
	}

	uri := "glasshouse://jails/" + jail.ID
	resources := map[string]bool{}
	for r, err := range s.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		resources[r.URI] = true
	}
	if !resources[uri] || !resources[uri+"/events"] {
		t.Errorf("resources = %v, want %s and its events", resources, uri)
	}
	for _, c := range []struct{ uri, want string }{{uri, `"state":"running"`}, {uri + "/events", `"seq":`}, {uri + "/snapshots", "[]"}} {
		r, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: c.uri})
		if err != nil || len(r.Contents) != 1 || !strings.Contains(r.Contents[0].Text, c.want) {
			t.Errorf("read %s = %+v, %v, want %s", c.uri, r, err, c.want)
		}
	}

	// The same over HTTP, with the printed token.
	cmd := h.mcpCommand("--listen", "127.0.0.1:0")
	printed, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}()
	lines := bufio.NewScanner(printed)
	said := map[string]string{}
	for len(said) < 2 && lines.Scan() {
		what, value, _ := strings.Cut(lines.Text(), ": ")
		said[what] = value
	}
	if r, err := http.Post(said["url"], "application/json", strings.NewReader("{}")); err != nil || r.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: got %v, %v, want 401", r, err)
	} else {
		r.Body.Close()
	}
	_, token, _ := strings.Cut(said["header"], ": ")
	web := h.connect(&sdk.StreamableClientTransport{Endpoint: said["url"], HTTPClient: &http.Client{Transport: bearer(token)}})
	if out, failed := h.tool(web, "math__double", `{"x":2}`); failed || out != `{"y":4}` {
		t.Errorf("math.double over HTTP: got %s", out)
	}
	if out, failed := h.tool(web, "jail_delete", `{"jail":"`+jail.ID+`"}`); failed {
		t.Errorf("jail_delete over HTTP: got %s", out)
	}
}

// A published MCP server runs in a jail. Its tools become capabilities, which require approval
// and are called like others.
func TestImportedMCPToolsAreGoverned(t *testing.T) {
	if !thorough {
		t.Skip("copies thousands of files durably: runs with GLASSHOUSE_TEST=all")
	}
	installed := mcptest.Install(t)
	root := rootfsWith(t, "node")
	if out, err := exec.Command("cp", "-a", installed, filepath.Join(root, "srv")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Dir(root)
	h := open(t, fmt.Sprintf("rootfs: {default: {dir: %q}, allow: [%q]}\n", root, dir))
	p := &publisher{h, dir}
	rewrite(t, filepath.Join(p.dir, "files.rtfs"), fmt.Sprintf(`(capability "files" :version "1.0.0" :description "Files" :effects [:exec :fs :state]
  :runtime {:type :container :rootfs "root" :stdio :mcp :startup-timeout-ms 60000 :entrypoint [%q %q "/data"]}
  :filesystem {:mode :session} :resources {:timeout-ms 60000 :memory-mb 512})`, node, "/srv/"+mcptest.Program))
	manifests := p.does("mcp", "import", "files.rtfs")
	if !strings.Contains(manifests, `"files.read_text_file"`) || !strings.Contains(manifests, `"files.write_file"`) {
		t.Fatalf("got imported manifests\n%s", manifests)
	}
	var two strings.Builder // two tools suffice, because each is registered with a copy of all files
	for m := range strings.SplitSeq(manifests, "\n\n") {
		if strings.Contains(m, `"files.read_text_file"`) || strings.Contains(m, `"files.write_file"`) {
			two.WriteString(m + "\n\n")
		}
	}
	rewrite(t, filepath.Join(p.dir, "tools.rtfs"), two.String())
	p.does("capability", "register", "tools.rtfs")
	p.refuses("approv", "call", "files.read_text_file", `{"path":"/data/a"}`) // not approved yet
	for _, cid := range []string{"files.read_text_file", "files.write_file"} {
		c, err := h.Capability(t.Context(), cid, "")
		if err != nil {
			t.Fatal(err)
		}
		p.does("approve", string(c.Approval))
		h.approved(cid)
	}
	p.does("call", "files.write_file", `{"path":"/data/a","content":"seen"}`, "--session", "s1")
	if out := p.does("call", "files.read_text_file", `{"path":"/data/a"}`, "--session", "s1"); !strings.Contains(out, "seen") {
		t.Errorf("second read in the session: got %s", out)
	}
	p.refuses("", "call", "files.read_text_file", `{"path":"/data/a"}`, "--session", "s2") // another session has its own directory
	p.refuses("", "call", "files.read_text_file", `{"path":"/etc/passwd"}`, "--session", "s1")
}

// An agent can read only its own jail over MCP.
func TestMCPAgentReadsOnlyItsOwnJail(t *testing.T) {
	h := open(t, models(t, modelThatCounts)+fmt.Sprintf("rootfs: {default: {dir: %q}}\n", rootfsWith(t, "curl")))
	var jails, snapshots []string
	for _, session := range []string{"sess-a", "sess-b"} {
		if _, err := h.OpenSession(h.Context(), wire.OpenSession{ID: session, Group: "crew"}); err != nil {
			t.Fatal(err)
		}
		j := h.running(wire.CreateJail{Session: session})
		s, err := h.TakeSnapshot(h.Context(), j.ID, wire.TakeSnapshot{})
		if err != nil {
			t.Fatal(err)
		}
		jails, snapshots = append(jails, string(j.ID)), append(snapshots, string(s.ID))
	}
	ask := func(method, uri string) string {
		return h.sh(id.Jail(jails[0]), fmt.Sprintf(`curl -s -m 20 -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' `+
			`-d '{"jsonrpc":"2.0","id":1,"method":%q,"params":{"uri":%q}}' http://localhost:4097/mcp`, method, uri))
	}
	var list string
	if !within(20*time.Second, func() bool {
		list = ask("resources/list", "")
		return strings.Contains(list, jails[0])
	}) {
		t.Fatalf("resources/list = %s, want those of %s\n%s", list, jails[0], h.log)
	}
	if strings.Contains(list, jails[1]) || strings.Contains(list, snapshots[1]) || !strings.Contains(list, snapshots[0]) {
		t.Errorf("resources/list = %s, want nothing of %s", list, jails[1])
	}
	for i, want := range []bool{true, false} {
		for _, uri := range []string{
			"glasshouse://jails/" + jails[i], "glasshouse://jails/" + jails[i] + "/events",
			"glasshouse://jails/" + jails[i] + "/snapshots", "glasshouse://snapshots/" + snapshots[i],
		} {
			got := ask("resources/read", uri)
			if read := strings.Contains(got, `"contents"`); read != want || strings.Contains(got, "internal error") {
				t.Errorf("read %s = %.300s, want contents %t", uri, got, want)
			}
		}
	}
}
