package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveMCP runs glasshouse mcp against the daemon and returns a client that is connected over
// standard input and output. The command ends with the test.
func (d *scriptedDaemon) serveMCP(args ...string) *sdk.ClientSession {
	d.Helper()
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	ended := make(chan int, 1)
	var errs strings.Builder
	go func() {
		e := Env{Stdin: fromClient, Stdout: toClient, Stderr: &errs, Getenv: func(string) string { return "" }, UID: 1000}
		ended <- Run(context.Background(), append([]string{"--addr", d.addr, "mcp"}, args...), e)
	}()
	options := &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, nil).Connect(d.Context(), &sdk.IOTransport{Reader: fromServer, Writer: toServer}, options)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		c.Close()
		toServer.Close()
		if code := <-ended; code != 0 {
			d.Errorf("glasshouse mcp: got exit code %d and %q, want 0 at the end of its input", code, errs.String())
		}
	})
	return c
}

func TestMCPServesJailsAsTools(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{
		"POST /jails":                              jailJSON,
		"GET /jails":                               items(jailJSON, `{"id":"j-bbbbbbbbbbbb","state":"stopped","rootfs":{"oci":"alpine"}}`),
		execPath:                                   `{"id":"x-aaaaaaaaaaaa","stdout":"out\n","stderr":"err\n","exit_code":3}`,
		"POST /jails/" + aJail + "/snapshot":       snapJSON,
		"POST /jails/" + aJail + "/branch":         `{"jails":[` + jailJSON + `]}`,
		"POST /snapshots/" + aSnapshot + "/branch": `{"jails":[` + jailJSON + `,` + jailJSON + `]}`,
		"GET " + filesPath + "?path=%2Fx&stat=1":   fileStat,
		"GET " + filesPath:                         "hello\n",
		"PUT " + filesPath:                         fileStat,
		"DELETE /jails/" + aJail:                   "204 ",
		"GET /capabilities":                        items(),
	})
	c := d.serveMCP()
	for _, tool := range []struct{ name, input, request, want string }{
		{
			"jail_create", `{"name":"web","image":"alpine","network":"proxy","allowed_hosts":["a.example"],"env":{"A":"1"},"memory_mb":64}`,
			`POST /jails {"name":"web","rootfs":{"oci":"alpine"},"limits":{"memory_mb":64},"network":"proxy","egress":{"allow":[{"host":"a.example"}]},"env":{"A":"1"},"start":true}`,
			`{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}`,
		},
		{
			"jail_list", `{}`, "GET /jails",
			`{"jails":[{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"},{"id":"j-bbbbbbbbbbbb","state":"stopped","image":"alpine"}]}`,
		},
		{
			"jail_exec", `{"jail":"j-aaaaaaaaaaaa","cmd":"ls","cwd":"/w","stdin":"in","timeout_ms":5}`,
			execPath + ` {"cmd":"ls","cwd":"/w","stdin":"in","timeout_ms":5}`,
			`{"exit_code":3,"stderr":"err\n","stdout":"out\n"}`,
		},
		{
			"jail_snapshot", `{"jail":"j-aaaaaaaaaaaa","name":"before"}`,
			"POST /jails/" + aJail + `/snapshot {"name":"before"}`,
			`{"id":"s-aaaaaaaaaaaa","jail":"j-aaaaaaaaaaaa","memory":true,"name":"before"}`,
		},
		{
			"jail_branch", `{"from":"j-aaaaaaaaaaaa"}`,
			"POST /jails/" + aJail + `/branch {"count":1}`,
			`{"jails":[{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}]}`,
		},
		{
			"jail_branch", `{"from":"s-aaaaaaaaaaaa","count":2}`,
			"POST /snapshots/" + aSnapshot + `/branch {"count":2}`,
			`{"jails":[{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"},{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}]}`,
		},
		{
			"jail_read_file", `{"jail":"j-aaaaaaaaaaaa","path":"/x","limit":100}`,
			"GET " + filesPath + "?bytes=100&offset=0&path=%2Fx",
			`{"content":"hello\n","encoding":"utf-8","size":6}`,
		},
		{
			"jail_write_file", `{"jail":"j-aaaaaaaaaaaa","path":"/x","content":"new"}`,
			"PUT " + filesPath + "?mode=644&parents=1&path=%2Fx new",
			`{"size":3}`,
		},
		{"jail_delete", `{"jail":"j-aaaaaaaaaaaa"}`, "DELETE /jails/" + aJail, `{}`},
	} {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: tool.name, Arguments: json.RawMessage(tool.input)})
		if err != nil {
			t.Errorf("%s: %v", tool.name, err)
			continue
		}
		got, err := json.Marshal(r.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if r.IsError || !sameJSON(t, string(got), tool.want) {
			t.Errorf("%s: got %s %s, want %s", tool.name, got, textOf(r), tool.want)
		}
		d.mu.Lock()
		last := d.requests[len(d.requests)-1]
		d.mu.Unlock()
		if last != tool.request {
			t.Errorf("%s: request: got %s, want %s", tool.name, last, tool.request)
		}
	}
}

// sameJSON compares JSON independently of the order of keys.
func sameJSON(t *testing.T, got, want string) bool {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Errorf("%q is not JSON: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// textOf returns the text of a tool's result.
func textOf(r *sdk.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "\n")
}

func TestMCPReportsDaemonErrors(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /capabilities": items()})
	d.problem = `409 {"type":"/problems/conflict","title":"conflict","status":409,"detail":"the jail is stopped","remedy":"start it"}`
	c := d.serveMCP()
	for name, input := range map[string]string{
		"jail_create":     `{}`,
		"jail_list":       `{}`,
		"jail_exec":       `{"jail":"j-aaaaaaaaaaaa","cmd":"ls"}`,
		"jail_snapshot":   `{"jail":"j-aaaaaaaaaaaa"}`,
		"jail_branch":     `{"from":"j-aaaaaaaaaaaa"}`,
		"jail_read_file":  `{"jail":"j-aaaaaaaaaaaa","path":"/x"}`,
		"jail_write_file": `{"jail":"j-aaaaaaaaaaaa","path":"/x","content":""}`,
		"jail_delete":     `{"jail":"j-aaaaaaaaaaaa"}`,
	} {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: json.RawMessage(input)})
		if err != nil || !r.IsError || !strings.Contains(textOf(r), "the jail is stopped") {
			t.Errorf("%s: got %+v, %v, want the error of the daemon", name, r, err)
		}
	}
}

func TestMCPDecodesOutputThatIsNotUTF8(t *testing.T) {
	for in, want := range map[string]string{"aGVsbG8=": "hello", "//4K": "\uFFFD\n", "": "", "not base64": "not base64"} {
		if got := decodeOutput(in); got != want {
			t.Errorf("plain(%q): got %q, want %q", in, got, want)
		}
	}
	d := newScriptedDaemon(t, map[string]string{
		"GET /capabilities": items(),
		execPath:            `{"id":"x-aaaaaaaaaaaa","encoding":"base64","stdout":"//4K","stderr":"b2sK","exit_code":137,"signal":"KILL","timed_out":true,"truncated":true}`,
	})
	c := d.serveMCP()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "jail_exec", Arguments: json.RawMessage(`{"jail":"j-aaaaaaaaaaaa","argv":["ls"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"exit_code":137,"signal":"KILL","timed_out":true,"stdout":"` + "\uFFFD" + `\n","stderr":"ok\n","truncated":true}`; !sameJSON(t, string(got), want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMCPServesNewestApprovedCapabilities(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{
		"GET /capabilities": items(
			`{"id":"mail.send","version":"2.0.0","state":"approved"}`, `{"id":"mail.send","version":"1.0.0","state":"approved"}`,
			`{"id":"mail.read","version":"1.0.0","state":"pending"}`, `{"id":"mail.old","version":"1.0.0","state":"revoked"}`),
		"GET /capabilities/mail.send?version=2.0.0": `{"id":"mail.send","version":"2.0.0","state":"approved","input_schema":{"type":"object","properties":{"to":{"type":"string"}}}}`,
		"POST /capabilities/mail.send/call":         `{"capability":"mail.send","state":"done","output":{"sent":true}}`,
	})
	c := d.serveMCP("--no-jails")
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	if got, want := strings.Join(names, " "), "mail__send"; got != want {
		t.Errorf("tools: got %q, want %q", got, want)
	}
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mail__send", Arguments: json.RawMessage(`{"to":"ann"}`)})
	if err != nil || r.IsError || !strings.Contains(textOf(r), `"sent":true`) {
		t.Errorf("a call: got %+v, %v, want its output", r, err)
	}
	if want := `POST /capabilities/mail.send/call {"input":{"to":"ann"}}`; !strings.Contains(d.asked(), want) {
		t.Errorf("requests: got\n%s\nwant %s", d.asked(), want)
	}
	d.answers["POST /capabilities/mail.send/call"] = `{"capability":"mail.send","state":"refused","error":{"kind":"denied","reason":"no rule","remedy":"add one"}}`
	r, err = c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mail__send", Arguments: json.RawMessage(`{"to":"ann"}`)})
	if err != nil || !r.IsError || textOf(r) != "denied: no rule\nWhat can be done: add one" {
		t.Errorf("a refused call: got %q, %v, want its reason and remedy", textOf(r), err)
	}
}

func TestMCPServesEventsAndSkillsAsResources(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{
		"GET /capabilities":                  items(),
		"GET /jails":                         items(jailJSON),
		"GET /jails/" + aJail:                jailJSON,
		"GET /jails/" + aJail + "/events":    "id: 1\nevent: proc\ndata: {\"type\":\"proc\",\"seq\":1}\n\nevent: end\ndata: {}\n\n",
		"GET /jails/" + aJail + "/snapshots": items(snapJSON),
		"GET /snapshots":                     items(snapJSON),
		"GET /snapshots/" + aSnapshot:        snapJSON,
		"GET /skills":                        items(`{"name":"brew","description":"makes coffee"}`, `{"name":"barred","refused":"no capability"}`),
		"GET /skills/brew":                   `{"name":"brew","text":"# Brew"}`,
	})
	c := d.serveMCP()
	list, err := c.ListResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	uris := map[string]string{}
	for _, r := range list.Resources {
		r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: r.URI})
		if err != nil {
			t.Fatal(err)
		}
		uris[r.Contents[0].URI] = r.Contents[0].Text
	}
	for name, want := range map[string]string{
		aJail:                `"backend":"oci"`,
		aJail + "/events":    `{"type":"proc","seq":1}`,
		aJail + "/snapshots": `"id":"` + aSnapshot + `"`,
		"/" + aSnapshot:      `"layering":"copied"`,
		"/brew":              "# Brew",
	} {
		found := ""
		for uri, text := range uris {
			if strings.HasSuffix(uri, name) {
				found += text
			}
		}
		if !strings.Contains(found, want) {
			t.Errorf("resource %s: got %q, want %q (there are %v)", name, found, want, uris)
		}
	}
	for uri := range uris {
		if strings.Contains(uri, "barred") {
			t.Errorf("resources: got %s, want no skill that is refused", uri)
		}
	}
	for _, gone := range []string{"GET /jails/" + aJail, "GET /jails/" + aJail + "/events", "GET /jails/" + aJail + "/snapshots", "GET /snapshots/" + aSnapshot, "GET /skills/brew"} {
		delete(d.answers, gone)
	}
	for uri := range uris {
		if r, err := c.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s, which is gone: got %+v, want an error", uri, r)
		}
	}
}

func TestMCPOverHTTPNeedsToken(t *testing.T) {
	d := newScriptedDaemon(t, map[string]string{"GET /capabilities": items(), "GET /skills": items(), "GET /jails": items(), "GET /snapshots": items()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fromServer, stdout := io.Pipe()
	ended := make(chan int, 1)
	var errs strings.Builder
	go func() {
		e := Env{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &errs, Getenv: func(string) string { return "" }}
		ended <- Run(ctx, []string{"--addr", d.addr, "mcp", "--listen", "127.0.0.1:0"}, e)
	}()
	said := bufio.NewReader(fromServer)
	line := func(prefix string) string {
		text, err := said.ReadString('\n')
		rest, ok := strings.CutPrefix(strings.TrimSuffix(text, "\n"), prefix)
		if err != nil || !ok {
			t.Fatalf("got the line %q, %v, want %q", text, err, prefix)
		}
		return rest
	}
	url := line("url: ")
	header := line("header: Authorization: ")
	for _, c := range []struct {
		header string
		want   int
	}{{"", 401}, {"Bearer ", 401}, {"Bearer wrong", 401}, {strings.TrimPrefix(header, "Bearer "), 401}, {header + "x", 401}, {header, 200}} {
		body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
		r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("with the header %.10q: got %d, want %d", c.header, resp.StatusCode, c.want)
		}
		if got := resp.Header.Get("WWW-Authenticate"); c.want == 401 && got != "Bearer" {
			t.Errorf("with the header %.10q: got WWW-Authenticate %q, want Bearer", c.header, got)
		}
	}
	cancel()
	if code := <-ended; code != 0 || errs.String() != "" {
		t.Errorf("at its end: got exit code %d and %q, want 0", code, errs.String())
	}
}

func TestMCPListensOnLoopbackOnly(t *testing.T) {
	d := newScriptedDaemon(t, nil)
	for listen, want := range map[string]struct {
		code int
		text string
	}{
		"0.0.0.0:0":  {2, "is not an address of the loopback"},
		"nonsense":   {1, "missing port"},
		"127.0.0.1:": {0, ""},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // if the address is accepted, the server stops immediately
		code, _, errs := d.runIn(ctx, "", "mcp", "--listen", listen)
		if code != want.code || !strings.Contains(errs, want.text) {
			t.Errorf("--listen %s: got exit code %d and %q, want %d and %q", listen, code, errs, want.code, want.text)
		}
	}
}

func TestMCPImportPrintsManifests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "files.rtfs")
	(&vendor{T: t}).write(file, "(capability)")
	d := newScriptedDaemon(t, map[string]string{
		"POST /capabilities/import": `{"server":"s","manifests":["(capability \"a\")\n","(capability \"` + escapedName + `\")"],"lost":["an icon of a\u001b"],"refused":["b: its type\u202e"]}`,
	})
	code, out, errs := d.run("", "mcp", "import", file)
	if want := "(capability \"a\")\n\n(capability \"\\x1b[31mred\\u202e\")\n\n"; code != 0 || out != want {
		t.Errorf("got exit code %d and %q, want 0 and %q", code, out, want)
	}
	if want := "not in any manifest: an icon of a\\x1b\nno capability: b: its type\\u202e\n"; errs != want {
		t.Errorf("stderr: got %q, want %q", errs, want)
	}
	if got, want := d.asked(), `{"manifest":"(capability)","file":"files.rtfs","dir":"`+filepath.Dir(file)+`"}`; !strings.HasSuffix(got, want) {
		t.Errorf("request: got %s, want %s", got, want)
	}
	d.requests = nil
	if code, _, errs := d.run("", "mcp", "import", file+".none"); code != 1 || !strings.Contains(errs, "no such file") || d.asked() != "" {
		t.Errorf("a file that is not there: got exit code %d, %q and the request %q, want 1, why and none", code, errs, d.asked())
	}
}
