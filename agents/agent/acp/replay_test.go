package acp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"glasshouse/agents/agent/acp"
)

// replay is an agent that sends the recorded output of a real agent. It sends each response
// after the request that it answers.
func replay(t *testing.T, file string) (io.WriteCloser, io.ReadCloser) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	fromHost, toAgent := io.Pipe()
	fromAgent, toHost := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer f.Close()
		defer toHost.Close()
		defer fromHost.Close()
		received := map[string]bool{}
		dec := json.NewDecoder(fromHost)
		until := func(key string) bool {
			for !received[key] {
				var m struct {
					ID     json.RawMessage `json:"id"`
					Method string          `json:"method"`
				}
				if dec.Decode(&m) != nil {
					return false
				}
				received[fmt.Sprint(m.Method != "", " ", string(m.ID))] = true
			}
			return true
		}
		// Messages after the response to a prompt follow the next request.
		next := ""
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var m struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
			}
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				t.Errorf("%s: %v", file, err)
				return
			}
			if m.Method == "" {
				next = "true " + string(m.ID)
			}
			if next != "" && !until(next) {
				return
			}
			fmt.Fprintf(toHost, "%s\n", lines.Bytes())
			if m.Method == "" {
				next = "true " + strconv.Itoa(int(m.ID[0]-'0')+1)
			}
			if m.Method != "" && m.ID != nil && !until("false "+string(m.ID)) {
				return
			}
		}
		io.Copy(io.Discard, fromHost)
	}()
	t.Cleanup(func() { <-done })
	return toAgent, fromAgent
}

// TestRecordedAgents replays real agents. Each wrote a file, was denied a removal, and then
// received a second prompt.
func TestRecordedAgents(t *testing.T) {
	tests := []struct {
		file, agent, remove string
		titled              bool
		paths               string
		tools               []string
	}{
		{"opencode", "OpenCode 1.18.33", "rm -rf auth", false, "/home/work/auth/login.ts", []string{"write", "bash", "bash", "bash"}},
		{"claude", "@agentclientprotocol/claude-agent-acp 0.49.0", "rm -rf login.ts", false, "/home/work/login.ts", []string{"Write", "Bash", "Write", "Bash"}},
		{"codex", "codex-acp 0.16.0", "rm -rf login.ts", false, "", []string{"", ""}},
		{"gemini", "gemini-cli 0.61.0", "rm -rf login.ts", true, "/home/work/login.ts", []string{"", "", "", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			h := &host{decide: func(_ context.Context, c acp.ToolCall) (acp.Verdict, error) {
				return acp.Verdict{Allow: !strings.Contains(c.Command, "rm -rf"), Reason: "gone is gone"}, nil
			}}
			turns := 0
			h.next = func(_ context.Context, turn acp.Turn) (string, error) {
				turns++
				if turns == 1 {
					if len(turn.Refused) != 1 || turn.Refused[0].Call.Command != tt.remove {
						t.Errorf("refusals = %+v, want one of %s", turn.Refused, tt.remove)
					}
					return "go on", nil
				}
				return "", nil
			}
			in, out := replay(t, filepath.Join("testdata", tt.file+".acp"))
			got, err := acp.Drive(t.Context(), acp.Pipes(in, out), h, acp.Options{Cwd: "/home/work", Prompt: "go"})
			if err != nil {
				t.Fatal(err)
			}
			if got.Agent != tt.agent || got.Turns != 2 || got.Last.Stop != "end_turn" || !strings.Contains(got.Last.Text, "Done: login is written") {
				t.Errorf("result %+v", got)
			}
			var tools, paths []string
			for _, c := range h.asked {
				tools, paths = append(tools, c.Tool), append(paths, c.Paths...)
				if c.Command == tt.remove && c.CommandFromTitle != tt.titled {
					t.Errorf("Titled = %t, want %t: %+v", c.CommandFromTitle, tt.titled, c)
				}
			}
			if !slices.Equal(tools, tt.tools) {
				t.Errorf("tools %q, want %q", tools, tt.tools)
			}
			if tt.paths != "" && !slices.Contains(paths, tt.paths) {
				t.Errorf("paths %q, want %s", paths, tt.paths)
			}
		})
	}
}

// TestToolCallInput checks the fields that are extracted from the inputs of all agents.
func TestToolCallInput(t *testing.T) {
	tests := []struct{ input, command, cwd, url, paths string }{
		{`{"command":"ls -l","description":"x"}`, "ls -l", "", "", ""},
		{`{"command":["/bin/bash","-lc","a && b"],"cwd":"/w"}`, "a && b", "/w", "", ""},
		{`{"command":["rm","a b","-f"]}`, "rm 'a b' -f", "", "", ""},
		{`{"command":["bash","-c"]}`, "bash -c", "", "", ""},
		{`{"cmd":"make","workdir":"/w"}`, "make", "/w", "", ""},
		{`{"command":7,"cwd":[]}`, "", "", "", ""},
		{`{"filePath":"/a","content":"c"}`, "", "", "", "/a"},
		{`{"filepath":"/a"}`, "", "", "", "/a"},
		{`{"file_path":"/a","notebook_path":"/b"}`, "", "", "", "/a /b"},
		{`{"changes":{"/b":{},"/a":{}}}`, "", "", "", "/a /b"},
		{`{"changes":[{"path":"/c"}]}`, "", "", "", "/c"},
		{`{"url":"https://x"}`, "", "", "https://x", ""},
		{`"text"`, "", "", "", ""},
	}
	for _, tt := range tests {
		h := &host{}
		in, out := answerThen(map[string]string{"initialize": `{"protocolVersion":1}`, "session/new": `{"sessionId":"s1"}`}, "session/prompt",
			`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"x","rawInput":`+tt.input+`}}}`+"\n"+
				`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`+"\n")
		if _, err := acp.Drive(t.Context(), acp.Pipes(in, out), h, acp.Options{Cwd: "/", Prompt: "go"}); err != nil {
			t.Fatal(err)
		}
		c := h.updates[0].Call
		if c.Command != tt.command || c.Cwd != tt.cwd || c.URL != tt.url || strings.Join(c.Paths, " ") != tt.paths {
			t.Errorf("input %s: got call %+v, want %+v", tt.input, c, tt)
		}
	}
}
