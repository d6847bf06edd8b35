package agent_test

import (
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"glasshouse/agents/agent"
	"glasshouse/fault"
)

// TestOutcomeOfRealAgents parses recorded output. Each agent wrote a file and was denied a
// removal.
func TestOutcomeOfRealAgents(t *testing.T) {
	tests := map[string]agent.Outcome{
		"claude":   {Text: "Done: login is written.", Turns: 3, Usage: agent.Usage{InputTokens: 58702, OutputTokens: 41, CostUSD: 0.294535}, Denied: []string{"Bash"}},
		"codex":    {Text: "Done: login is written.", Turns: 1, Usage: agent.Usage{InputTokens: 31157, OutputTokens: 27}},
		"gemini":   {Text: "Done: login is written.", Turns: 3, Usage: agent.Usage{InputTokens: 38492, OutputTokens: 45}},
		"opencode": {Text: "Done: login is written and committed.", Turns: 6, Usage: agent.Usage{InputTokens: 51751, OutputTokens: 108}, Denied: []string{"bash"}},
	}
	for name, want := range tests {
		f, err := os.Open("testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		got, err := find(t, name).Outcome(f)
		f.Close()
		if err != nil || got.Session == "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got.Session = ""
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestOutcomeOfFailures(t *testing.T) {
	tests := []struct{ preset, printed, text, err string }{
		{"claude", `{"type":"result","subtype":"error_max_turns","is_error":false,"num_turns":3,"session_id":"s"}`, "", "error_max_turns"},
		{"claude", `{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500","session_id":"s"}`, "API Error: 500", "API Error: 500"},
		{"claude", `{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["a","b"]}`, "", "a; b"},
		{"codex", "{\"type\":\"thread.started\",\"thread_id\":\"t\"}\n{\"type\":\"error\",\"message\":\"Reconnecting... 1/2\"}\n{\"type\":\"turn.failed\",\"error\":{\"message\":\"stream disconnected\"}}\n", "", "stream disconnected"},
		{"codex", "{\"type\":\"error\",\"message\":\"Reconnecting... 1/2\"}\n{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"ok\"}}\n{\"type\":\"turn.completed\",\"usage\":{}}\n", "ok", ""},
		{"codex", "{\"type\":\"error\",\"message\":\"no such model\"}\n", "", "no such model"},
		{"opencode", `{"type":"error","sessionID":"s","error":{"name":"APIError","data":{"message":"402 budget"}}}`, "", "402 budget"},
		{"opencode", `{"type":"error","sessionID":"s","error":{"name":"UnknownError"}}`, "", "UnknownError"},
		{"gemini", "Loaded cached credentials.\n{\"error\":{\"type\":\"Error\",\"message\":\"quota\",\"code\":1}}\n", "", "quota"},
		{"shell", "hello\n\n", "hello", ""},
		{"shell", "\xff\xfe\n", "�", ""},
	}
	for _, tt := range tests {
		got, err := find(t, tt.preset).Outcome(strings.NewReader(tt.printed))
		if err != nil || got.Text != tt.text || got.Error != tt.err {
			t.Errorf("%s %s: %+v, %v, want %q and %q", tt.preset, tt.printed, got, err, tt.text, tt.err)
		}
	}
}

// TestTruncatedOutputHasNoOutcome covers empty, truncated and unrelated output.
func TestTruncatedOutputHasNoOutcome(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		output, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, printed := range []string{"", "Killed\n", string(output[:len(output)/2]), "null", "{}", "[]"} {
			if got, err := find(t, name).Outcome(strings.NewReader(printed)); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("%s %.40q: %+v, %v, want unavailable", name, printed, got, err)
			}
		}
	}
	if _, err := find(t, "builtin").Outcome(strings.NewReader("")); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("builtin: %v", err)
	}
}

// endless is a reader that returns the same byte forever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestOutputIsBounded(t *testing.T) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		if _, err := find(t, name).Outcome(endless('{')); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("%s: %v, want too large", name, err)
		}
	}
	const size = 4 << 20
	got, err := find(t, "shell").Outcome(io.LimitReader(endless('x'), size))
	if err != nil || len(got.Text) > size/2 {
		t.Errorf("kept %d bytes: %v", len(got.Text), err)
	}
	errRead := errors.New("broken pipe")
	for _, p := range agent.Presets() {
		if p.Name == "builtin" {
			continue
		}
		if _, err := p.Outcome(io.MultiReader(strings.NewReader("x\n"), errorReader{errRead})); !errors.Is(err, errRead) {
			t.Errorf("%s: %v, want %v", p.Name, err, errRead)
		}
	}
}

type errorReader struct{ err error }

func (f errorReader) Read([]byte) (int, error) { return 0, f.err }

// FuzzOutcome checks that usage is never negative.
func FuzzOutcome(f *testing.F) {
	for _, name := range []string{"claude", "codex", "gemini", "opencode"} {
		data, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/3])
	}
	f.Add([]byte(`{"type":"result","total_cost_usd":-1e308,"num_turns":1e308,"usage":{"input_tokens":-5}}`))
	f.Add([]byte(`{"type":"step_finish","part":{"reason":"stop","cost":1e308,"tokens":{"input":1e308}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range agent.Presets() {
			if p.Name == "builtin" {
				continue
			}
			got, err := p.Outcome(strings.NewReader(string(data)))
			if err != nil {
				continue
			}
			u := got.Usage
			for _, n := range []int64{u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens, int64(got.Turns)} {
				if n < 0 {
					t.Errorf("%s: negative usage in %+v", p.Name, got)
				}
			}
			if u.CostUSD < 0 || u.CostUSD != u.CostUSD {
				t.Errorf("%s: CostUSD = %v", p.Name, u.CostUSD)
			}
		}
	})
}
