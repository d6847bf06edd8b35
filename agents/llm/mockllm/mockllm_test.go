package mockllm_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"glasshouse/agents/llm/mockllm"
)

func parse(t *testing.T, script string) *mockllm.Script {
	t.Helper()
	s, err := mockllm.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask sends a request and returns status and body. If the connection is closed early, it returns
// the received part of the body and an error.
func ask(t *testing.T, h http.Handler, path, body string) (int, string, error) {
	t.Helper()
	srv := httptest.NewServer(h)
	defer srv.Close()
	res, err := http.Post(srv.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// talk returns the request body of a conversation in one API after a number of turns.
type talk func(turns int) string

// talks are conversations with the prompt "list it", in which each answer calls ls.
var talks = []struct {
	name, path string
	body       talk
	text, call string // substrings of the first answer
}{
	{"chat", "/v1/chat/completions", func(n int) string {
		m := []string{`{"role":"system","content":"be brief"}`, `{"role":"user","content":[{"type":"text","text":"list it"}]}`}
		for i := range n {
			m = append(m, fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"x_%d_0","type":"function","function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"x_%d_0","content":"file-%d"}`, i, i, i))
		}
		return `{"model":"fake-1","messages":[` + strings.Join(m, ",") + `],"tools":[{"type":"function","function":{"name":"ls"}}]}`
	}, `"content":"Let me see."`, `"arguments":"{\"dir\":\"of fake-1\",\"of\":[\"list it\",7]}"`},
	{"responses", "/v1/responses", func(n int) string {
		m := []string{`{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment>"}]}`, `{"type":"message","role":"user","content":[{"type":"input_text","text":"list it"}]}`}
		for i := range n {
			m = append(m, fmt.Sprintf(`{"type":"reasoning","summary":[]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Let me see."}]},{"type":"function_call","call_id":"x_%d_0","name":"ls","arguments":"{}"},{"type":"function_call_output","call_id":"x_%d_0","output":"file-%d"}`, i, i, i))
		}
		return `{"model":"fake-1","instructions":"be brief","input":[` + strings.Join(m, ",") + `],"tools":[{"type":"function","name":"ls"}]}`
	}, `"text":"Let me see."`, `"arguments":"{\"dir\":\"of fake-1\",\"of\":[\"list it\",7]}"`},
	{"messages", "/v1/messages", func(n int) string {
		m := []string{`{"role":"user","content":"list it"}`}
		for i := range n {
			m = append(m, fmt.Sprintf(`{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"x_%d_0","name":"ls","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"x_%d_0","content":[{"type":"text","text":"file-%d"}]},{"type":"text","text":"<reminder>list other things</reminder>"}]}`, i, i, i))
		}
		return `{"model":"fake-1","system":[{"type":"text","text":"be brief"}],"messages":[` + strings.Join(m, ",") + `],"tools":[{"name":"ls"}]}`
	}, `"text":"Let me see."`, `"input":{"dir":"of fake-1","of":["list it",7]}`},
	{"gemini", "/v1beta/models/fake-1:generateContent", func(n int) string {
		m := []string{`{"role":"user","parts":[{"text":"list it"}]}`}
		for i := range n {
			m = append(m, fmt.Sprintf(`{"role":"model","parts":[{"text":"Let me see."},{"functionCall":{"name":"ls","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"ls","response":{"output":"file-%d"}}}]}`, i))
		}
		return `{"systemInstruction":{"parts":[{"text":"be brief"}]},"contents":[` + strings.Join(m, ",") + `],"tools":[{"functionDeclarations":[{"name":"ls"}]}]}`
	}, `"text":"Let me see."`, `"args":{"dir":"of fake-1","of":["list it",7]}`},
}

const listing = `
conversations:
  - name: listing
    when: {model: "fake-*", user_matches: '^list (\w+)', system: brief}
    turns:
      - text: Let me see.
        calls: [{tool: ls, arguments: {dir: "of {{.Model}}", of: ["{{.User}}", 7]}}]
      - text: "{{index .Match 1}} has {{.Result | trim}}"
        calls: [{tool: ls}]
      - when: {result: file-2}
        text: There was {{len .Results}} times something, at last file-2.
      - text: again
        calls: [{tool: ls}]
`

func TestTurnFollowsFromHistory(t *testing.T) {
	for _, a := range talks {
		t.Run(a.name, func(t *testing.T) {
			m := mockllm.New(parse(t, listing), nil)
			for n, want := range []string{a.text, "it has", "again", "There was 3 times something, at last file-2."} {
				status, body, err := ask(t, m, a.path, a.body(n))
				if status != 200 || err != nil || !strings.Contains(body, want) || n == 1 && !strings.Contains(body, "file-0") {
					t.Errorf("after %d turns: %d %s, want %s", n, status, body, want)
				}
				if n == 0 && !strings.Contains(body, a.call) {
					t.Errorf("answer = %s, want the call %s", body, a.call)
				}
				if _, second, _ := ask(t, m, a.path, a.body(n)); second != body {
					t.Errorf("second answer to the same request = %s, want %s", second, body)
				}
			}
			seen := m.Seen()
			if s := seen[0]; s.Conversation != "listing" || s.Turn != 0 || s.User != "list it" || strings.TrimSpace(s.System) != "be brief" || s.Tools[0] != "ls" {
				t.Errorf("Seen()[0] = %+v", s)
			}
			ids := map[string]bool{}
			for n := range 3 {
				_, body, _ := ask(t, m, a.path, a.body(n))
				ids[regexp.MustCompile(`call_[0-9a-f]+_0`).FindString(body)] = true
			}
			if len(ids) != 3 {
				t.Errorf("ids of three calls = %v, want three", ids)
			}
		})
	}
}

// streamed returns path and body of the same request with streaming.
func streamed(path, body string) (string, string) {
	if strings.Contains(path, "generateContent") {
		return strings.Replace(path, "generateContent", "streamGenerateContent", 1) + "?alt=sse", body
	}
	return path, strings.Replace(body, "{", `{"stream":true,`, 1)
}

// TestStreamEqualsAnswer joins the chunks of streams.
func TestStreamEqualsAnswer(t *testing.T) {
	parts := map[string]*regexp.Regexp{
		"chat":      regexp.MustCompile(`"content":"([^"]+)"|"arguments":"((?:[^"\\]|\\.)*)"`),
		"responses": regexp.MustCompile(`"delta":"((?:[^"\\]|\\.)*)"`),
		"messages":  regexp.MustCompile(`"(?:text|partial_json)":"((?:[^"\\]|\\.)*)"`),
		"gemini":    regexp.MustCompile(`"text":"([^"]*)"|"args":(\{[^}]*\})`),
	}
	for _, a := range talks {
		t.Run(a.name, func(t *testing.T) {
			m := mockllm.New(parse(t, listing), nil)
			path, body := streamed(a.path, a.body(0))
			status, text, err := ask(t, m, path, body)
			if status != 200 || err != nil {
				t.Fatalf("%d %s %v", status, text, err)
			}
			var said strings.Builder
			for line := range strings.SplitSeq(text, "\n") {
				data, ok := strings.CutPrefix(line, "data: ")
				if !ok || data == "[DONE]" {
					continue
				}
				if !json.Valid([]byte(data)) {
					t.Fatalf("no JSON: %s", data)
				}
				if a.name == "responses" && !strings.Contains(data, `.delta"`) {
					continue
				}
				for _, g := range parts[a.name].FindAllStringSubmatch(data, -1) {
					for _, part := range g[1:] {
						if a.name != "gemini" || !strings.HasPrefix(part, "{") {
							var s string
							json.Unmarshal([]byte(`"`+part+`"`), &s)
							part = s
						}
						said.WriteString(part)
					}
				}
			}
			if got, want := said.String(), `Let me see.{"dir":"of fake-1","of":["list it",7]}`; got != want {
				t.Errorf("joined stream = %s, want %s\n%s", got, want, text)
			}
		})
	}
}

func TestCustomTool(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{turns: [{calls: [{tool: apply_patch, arguments: {input: "*** {{.User}}"}}]}]}]`), nil)
	body := `{"model":"fake-1","input":"patch","tools":[{"type":"custom","name":"apply_patch"}]}`
	_, text, _ := ask(t, m, "/v1/responses", body)
	if !strings.Contains(text, `"input":"*** patch"`) || !strings.Contains(text, `"type":"custom_tool_call"`) {
		t.Errorf("answer = %s, want a custom tool call", text)
	}
	_, text, _ = ask(t, m, "/v1/responses", strings.Replace(body, "{", `{"stream":true,`, 1))
	if !strings.Contains(text, "event: response.custom_tool_call_input.delta\n") {
		t.Errorf("stream = %s", text)
	}
}

func TestFirstOfferedToolIsCalled(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{turns: [{calls: [{any: [{tool: Bash, arguments: {command: a}}, {tool: ls, arguments: {path: b}}]}]}]}]`), nil)
	if _, text, _ := ask(t, m, talks[2].path, talks[2].body(0)); !strings.Contains(text, `"input":{"path":"b"},"name":"ls"`) {
		t.Errorf("answer = %s, want a call of ls", text)
	}
	none := strings.ReplaceAll(talks[2].body(0), `"name":"ls"`, `"name":"cat"`)
	if status, text, _ := ask(t, m, talks[2].path, none); status != 500 || !strings.Contains(text, "Bash, ls") {
		t.Errorf("request without a matching tool: %d %s", status, text)
	}
}

func TestAuxiliaryRequests(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{turns: [{text: wrong, calls: [{tool: ls}]}]}]`), nil)
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"fake-1","messages":[{"role":"system","content":"You are a title generator."},{"role":"user","content":"Please, add a button to the first page of it"}]}`, `"content":"Please add a button to the"`},
		{"/v1/messages", `{"model":"fake-1","messages":[{"role":"user","content":"add a button"}],"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"title":{"type":"string"},"ok":{"type":"boolean"}}}}}}`, `"text":"{\"ok\":false,\"title\":\"add a button\"}"`},
		{"/v1/responses", `{"model":"fake-1","instructions":"Summarize the conversation so far","input":"add a button"}`, `"text":"So far: add a button"`},
		{"/v1/chat/completions", `{"model":"fake-1","messages":[{"role":"user","content":"is it good?"}]}`, `"content":"wrong"`}, // no tools, so no call
	} {
		if status, text, _ := ask(t, m, c.path, c.body); status != 200 || !strings.Contains(text, c.want) || strings.Contains(text, `"ls"`) {
			t.Errorf("%s:\n%d %s\nwant %s", c.body, status, text, c.want)
		}
	}
}

func TestNoMatchingConversation(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{when: {user: never}, turns: [{text: no}]}]`), nil)
	if _, text, _ := ask(t, m, talks[0].path, talks[0].body(0)); !strings.Contains(text, "The script has no answer to this: list it") {
		t.Error(text)
	}
}

func TestSecondPrompt(t *testing.T) {
	m := mockllm.New(parse(t, `
conversations:
  - when: {user: first}
    turns: [{text: one}, {text: two}]
  - turns: [{text: "to {{.User}}: {{.Turn}}"}]
`), nil)
	said := `{"model":"m","messages":[{"role":"user","content":"first"},{"role":"assistant","content":"one"},{"role":"user","content":"second"}`
	if _, text, _ := ask(t, m, talks[0].path, said+`]}`); !strings.Contains(text, "to second: 0") {
		t.Errorf("answer to the second prompt = %s", text)
	}
	if _, text, _ := ask(t, m, talks[0].path, said+`,{"role":"assistant","content":"to second: 0"},{"role":"user","content":"first"}]}`); !strings.Contains(text, `"one"`) {
		t.Errorf("answer to the repeated first prompt = %s", text)
	}
}

func TestParallelCallsAreOneTurn(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{turns: [{calls: [{tool: a}, {tool: b}]}, {text: second}, {text: third}]}]`), nil)
	body := `{"model":"m","tools":[{"type":"function","name":"a"}],"input":[{"role":"user","content":"go"}%s]}`
	_, first, _ := ask(t, m, "/v1/responses", fmt.Sprintf(body, ""))
	ids := regexp.MustCompile(`"call_id":"([^"]+)"`).FindAllStringSubmatch(first, -1)
	if len(ids) != 2 {
		t.Fatal(first)
	}
	var said strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&said, `,{"type":"function_call","call_id":%q,"name":"a","arguments":"{}"},{"type":"function_call_output","call_id":%q,"output":"x"}`, id[1], id[1])
	}
	if _, text, _ := ask(t, m, "/v1/responses", fmt.Sprintf(body, said.String())); !strings.Contains(text, `"second"`) {
		t.Errorf("answer after both calls = %s, want the second turn", text)
	}
}

func TestScriptedFailures(t *testing.T) {
	m := mockllm.New(parse(t, `
conversations:
  - when: {user: busy}
    turns: [{fail: {status: 429, retry_after: 2, message: slow down}}]
  - when: {user: twice}
    turns: [{text: at last, fail: {status: 503, times: 2}}]
  - when: {user: cut}
    turns: [{text: a long text that is cut in its middle, chunk: 4, fail: {cut_after: 5}}]
  - when: {user: malformed}
    turns: [{text: a text, fail: {malformed: true}}]
`), nil)
	say := func(path, what string, stream bool) (int, string, error) {
		body := fmt.Sprintf(`{"model":"m","stream":%v,"input":%q,"messages":[{"role":"user","content":%q}]}`, stream, what, what)
		return ask(t, m, path, body)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
		if status, text, _ := say(path, "busy", true); status != 429 || !strings.Contains(text, "slow down") || !strings.Contains(text, "rate_limit_error") {
			t.Errorf("%s busy: %d %s", path, status, text)
		}
		for i, want := range []int{503, 503, 200, 200} {
			if status, text, _ := say(path, "twice", false); status != want {
				t.Errorf("%s, time %d: %d %s, want %d", path, i+1, status, text, want)
			}
		}
		for _, stream := range []bool{true, false} {
			if _, text, err := say(path, "cut", stream); err == nil || strings.Contains(text, "in its middle") {
				t.Errorf("%s cut: %q, %v", path, text, err)
			}
			_, text, _ := say(path, "malformed", stream)
			valid := true
			for line := range strings.SplitSeq(text, "\n") {
				if data := strings.TrimPrefix(line, "data: "); data != line || !stream {
					valid = valid && (data == "" || data == "[DONE]" || json.Valid([]byte(data)))
				}
			}
			if valid {
				t.Errorf("%s malformed, streamed %v: all of it is JSON: %s", path, stream, text)
			}
		}
	}
}

func TestScriptParseErrors(t *testing.T) {
	for _, c := range []struct{ script, why string }{
		{`conversation: []`, "field conversation not found"},
		{`conversations: [{turns: []}]`, "has no turns"},
		{`conversations: [{when: {user_matches: "("}, turns: [{}]}]`, "missing closing"},
		{`conversations: [{when: {turn: 1}, turns: [{}]}]`, "only in conditions of turns"},
		{`conversations: [{turns: [{when: {turn: 1}}]}]`, "have conditions"},
		{`conversations: [{turns: [{text: "{{.Usr"}]}]`, "unclosed action"},
		{`conversations: [{turns: [{calls: [{arguments: {}}]}]}]`, "a call must have"},
		{`conversations: [{turns: [{delay: 5}]}]`, "is not a duration"},
		{`conversations: [{turns: [{stop: never}]}]`, "is not \"length\""},
		{`conversations: [{turns: [{fail: {status: 200}}]}]`, "is not an HTTP error status"},
		{`{`, "did not find expected"},
	} {
		if _, err := mockllm.Parse([]byte(c.script)); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", c.script, err, c.why)
		}
	}
}

func TestTemplateError(t *testing.T) {
	m := mockllm.New(parse(t, `conversations: [{when: {user: a}, turns: [{text: "{{index .Match 9}}"}]}, {turns: [{text: "{{range $i, $e := (lines .User)}}{{end}}{{.Nothing}}"}]}]`), nil)
	if status, text, _ := ask(t, m, "/v1/responses", `{"model":"m","input":"a"}`); status != 500 || !strings.Contains(text, "out of range") {
		t.Errorf("%d %s", status, text)
	}
}

func TestDefaultScriptWithToolsOfAgents(t *testing.T) {
	for _, tool := range []string{"bash", "Bash", "exec", "exec_command", "run_shell_command"} {
		m := mockllm.New(mockllm.Default(), nil)
		body := `{"model":"fake-1","tools":[{"name":"other"},{"name":"` + tool + `"}],"messages":[{"role":"user","content":"tidy up"}%s]}`
		_, text, _ := ask(t, m, "/v1/messages", fmt.Sprintf(body, ""))
		if !strings.Contains(text, `"name":"`+tool+`"`) || !strings.Contains(text, "glasshouse-demo.txt") {
			t.Errorf("%s: %s", tool, text)
		}
		_, text, _ = ask(t, m, "/v1/messages", fmt.Sprintf(body, `,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"x","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"Glasshouse was here.\n"}]}`))
		if !strings.Contains(text, "The goal is reached.") || strings.Contains(text, "tool_use\"") {
			t.Errorf("%s, then: %s", tool, text)
		}
	}
}

func TestManualScripts(t *testing.T) {
	manual, err := os.ReadFile("../../../docs/how-to/models.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml script\n(.*?)```\n(?:\n```ask\n(.*?)```\n)?").FindAllStringSubmatch(string(manual), -1)
	if len(blocks) < 3 {
		t.Fatalf("docs/how-to/models.md has %d scripts, want at least 3", len(blocks))
	}
	for _, b := range blocks {
		m := mockllm.New(parse(t, b[1]), nil)
		for line := range strings.Lines(b[2]) {
			said, want, _ := strings.Cut(strings.TrimSpace(line), " => ")
			_, text, err := ask(t, m, "/v1/messages", fmt.Sprintf(`{"model":"fake-1","max_tokens":99,"tools":[{"name":"bash"}],"messages":[{"role":"user","content":%q}]}`, said))
			if want == "" || err != nil || !strings.Contains(text, want) {
				t.Errorf("answer to %q = %s, %v, want %q", said, text, err, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(listing))
	f.Add([]byte(`{"conversations":[{"turns":[{"text":"{{.User}}","calls":[{"any":[{"tool":"x"}]}]}]}]}`))
	f.Add([]byte("conversations: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := mockllm.Parse(text); err == nil && len(s.Models) == 0 {
			t.Error("Parse returned a script without models")
		}
	})
}

// FuzzRequest checks that every JSON answer of the server is valid.
func FuzzRequest(f *testing.F) {
	for _, a := range talks {
		f.Add(a.path, []byte(a.body(2)))
		path, body := streamed(a.path, a.body(1))
		f.Add(path, []byte(body))
	}
	m := mockllm.New(mockllm.Default(), nil)
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		if !strings.HasPrefix(path, "/v1") || strings.ContainsAny(path, " %#\n") {
			return
		}
		r, err := http.NewRequest("POST", path, strings.NewReader(string(body)))
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		m.ServeHTTP(w, r)
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %q: invalid JSON %q", path, body, w.Body)
		}
	})
}
