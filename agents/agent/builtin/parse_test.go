package builtin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func response(kind string, body io.Reader) *http.Response {
	return &http.Response{Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(body)}
}

func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"", "data: [DONE]\n\n", "data: {}\n\n", "data: null\n\ndata: [DONE]",
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n",
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":3,\"function\":{\"name\":\"x\",\"arguments\":\"{\"}}]}}]}\r\n\r\ndata: [DONE]\n\n",
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1}]}}]}\n\n",
		"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"name\":\"x\",\"arguments\":{\"a\":1}}}]}}]}\n\ndata: [DONE]\n\n",
		"data: {\"error\":\"x\"}\n\n", "data: {\"error\":{\"message\":\"m\"}}\n\n", "event: x\nid: 1\n: c\ndata: {\ndata: }\n\n",
		`{"choices":[{"message":{"content":[{"type":"text","text":"\ud83d"}],"tool_calls":null},"finish_reason":"length"}]}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, stream bool) {
		kind := "application/json"
		if stream {
			kind = "text/event-stream; charset=utf-8"
		}
		full, err := readAnswer(response(kind, bytes.NewReader(data)))
		slow, slowErr := readAnswer(response(kind, iotest.OneByteReader(bytes.NewReader(data))))
		if fmt.Sprint(err) != fmt.Sprint(slowErr) || !cmp.Equal(full, slow, cmp.AllowUnexported(answer{})) {
			t.Fatalf("read at once: %+v, %v; byte by byte: %+v, %v", full, err, slow, slowErr)
		}
		if err != nil {
			_, gone := errors.AsType[*retryableError](err)
			_, broke := errors.AsType[*answerError](err)
			if !gone && !broke {
				t.Fatalf("error %v is neither retryable nor an answerError", err)
			}
			return
		}
		if len(full.calls) > maxIndex+1 || !utf8.ValidString(full.text) {
			t.Fatalf("%d calls, %q", len(full.calls), full.text)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`null`))
	f.Add([]byte(`{"agent":"glasshouse-agent/1","head":1,"messages":[{"role":"system","content":"x"}]}`))
	f.Add([]byte(`{"agent":"glasshouse-agent/1","head":1,"context_tokens":-5,"step":3,"messages":[{"role":"user"},{"role":"assistant","tool_calls":[{"function":{"arguments":"[[["}}]},{"role":"tool"}],"notes":["a","b"],"tools":[{"name":"x","input_schema":7}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		info := runInfo{Goal: "g"}
		if json.Unmarshal([]byte(`{"checkpoint":{"id":"p-1","state":`+string(raw)+`}}`), &info) != nil {
			return
		}
		s, err := info.resume()
		if err != nil {
			return
		}
		s.trim()
		if b, err := encode(s); err != nil {
			t.Fatal(err)
		} else if info.Checkpoint != nil {
			info.Checkpoint.State = b
		}
		again, err := info.resume()
		if err != nil {
			t.Fatal(err)
		}
		same(t, s, again)
	})
}

// same fails the test if two states lead to different requests.
func same(t *testing.T, a, b state) {
	t.Helper()
	x, err1 := encode([]any{a.conversation(), a.Tools})
	y, err2 := encode([]any{b.conversation(), b.Tools})
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Fatalf("%v %v\n%s\n%s", err1, err2, x, y)
	}
}

// longConversation returns a random conversation that exceeds maxBytes.
func longConversation(seed uint64, turns int) state {
	r := rand.New(rand.NewPCG(seed, 1))
	text := func(most int) string {
		b := make([]rune, r.IntN(most)+1)
		for i := range b {
			b[i] = []rune("ab \n\t\"\\é☃😀<")[r.IntN(11)]
		}
		return string(b)
	}
	s := state{Kind: kind, Context: 1024 + r.IntN(8000), Head: 2, Plan: "p", Messages: []message{{Role: "system", Content: "s"}, {Role: "user", Content: text(300)}}}
	for i := range turns {
		m := message{Role: "assistant", Content: text(200)}
		var results []message
		for n := range r.IntN(4) {
			key := fmt.Sprintf("t-%d-%d", i, n)
			m.Calls = append(m.Calls, toolCall{key, "function", functionCall{"tool", fmt.Sprintf(`{"x":%q}`, text(400))}})
			results = append(results, message{Role: "tool", CallID: key, Content: text(6000)})
		}
		s.Messages = append(append(s.Messages, m), results...)
		if r.IntN(5) == 0 {
			s.Messages = append(s.Messages, message{Role: "user", Content: inboxPrompt("x", fmt.Sprintf("order %d", i))})
		}
	}
	return s
}

func TestTrimFitsAndIsIdempotent(t *testing.T) {
	for seed := range uint64(40) {
		s := longConversation(seed, 20)
		first, last := s.Messages[1].Content, s.Messages[len(s.Messages)-1]
		s.trim()
		if s.size() > s.maxBytes() {
			t.Fatalf("seed %d: size is %d bytes, want at most %d", seed, s.size(), s.maxBytes())
		}
		if s.Messages[1].Content != first {
			t.Errorf("seed %d: the goal was changed", seed)
		}
		if got := s.Messages[len(s.Messages)-1]; got.Role != last.Role || got.CallID != last.CallID {
			t.Errorf("seed %d: the newest message was dropped", seed)
		}
		again := s.clone()
		again.trim()
		same(t, s, again)
		other := longConversation(seed, 20)
		other.trim()
		same(t, s, other)
		checkResults(t, s)
	}
}

// checkResults fails the test unless each call is followed by its result and each result
// belongs to a call. Models reject other conversations.
func checkResults(t *testing.T, s state) {
	t.Helper()
	open := map[string]bool{}
	for _, m := range s.conversation() {
		switch m.Role {
		case "tool":
			if !open[m.CallID] {
				t.Fatalf("result of %q without its call", m.CallID)
			}
			delete(open, m.CallID)
		default:
			if len(open) > 0 {
				t.Fatalf("%s message before the results of %v", m.Role, open)
			}
			for _, c := range m.Calls {
				if !json.Valid([]byte(c.Function.Arguments)) {
					t.Fatalf("arguments %.80q are not JSON", c.Function.Arguments)
				}
				open[c.ID] = true
			}
		}
	}
	if len(open) > 0 {
		t.Fatalf("calls %v have no results", open)
	}
}

func TestTrimOfAGrowingConversation(t *testing.T) {
	for seed := range uint64(8) {
		all := longConversation(seed, 60)
		s := all.clone()
		s.Messages = s.Messages[:2:2]
		for i := 2; i < len(all.Messages); {
			end := i + 1
			for end < len(all.Messages) && all.Messages[end].Role != "assistant" {
				end++
			}
			s.Messages = append(s.Messages, all.Messages[i:end]...)
			s.trim()
			if s.size() > s.maxBytes() {
				t.Fatalf("seed %d: size is %d bytes, want at most %d", seed, s.size(), s.maxBytes())
			}
			checkResults(t, s)
			i = end
		}
		if len(s.Notes) == 0 || !strings.Contains(s.summary(), "older lines are gone") {
			t.Errorf("seed %d: dropped turns have no notes", seed)
		}
	}
}

func TestClip(t *testing.T) {
	for _, s := range []string{"", "a", strings.Repeat("a", 1000), strings.Repeat("☃", 1000), strings.Repeat("😀", 99)} {
		for most := range 1100 {
			got := clip(s, most)
			if len(got) > most && len(s) > most || !utf8.ValidString(got) || clip(got, most) != got {
				t.Fatalf("clip of %d bytes to %d: %d bytes, %q", len(s), most, len(got), got)
			}
			if len(s) <= most && got != s {
				t.Fatalf("clip changed a text that fits: %q", got)
			}
		}
	}
}
