package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
)

// An Outcome is the result that an agent printed.
type Outcome struct {
	Text    string // final answer
	Error   string // reason of a failure; empty on success
	Session string // session id for Request.Resume
	Turns   int    // turns of the model
	Usage   Usage
	Denied  []string // names of tools in denied calls
}

// Usage is the usage that an agent reports. Billing uses the model gateway's numbers.
type Usage struct {
	InputTokens, OutputTokens, CacheReadTokens, CacheWriteTokens, ReasoningTokens int64
	CostUSD                                                                       float64
}

const (
	opOutcome = "agent.Outcome"

	maxOutput = 256 << 20 // bytes of output that are parsed
	maxLine   = 16 << 20  // bytes of a line
	maxText   = 1 << 20   // bytes of a text in an Outcome
	maxDenied = 1000
)

// eachJSONLine calls each with every line that is a JSON object. Other lines are ignored,
// because they come from other programs.
func eachJSONLine(r io.Reader, each func([]byte) error) error {
	scan := bufio.NewScanner(io.LimitReader(r, maxOutput))
	scan.Buffer(make([]byte, 0, 64<<10), maxLine)
	for scan.Scan() {
		line := scan.Bytes()
		if len(line) == 0 || line[0] != '{' || !json.Valid(line) {
			continue
		}
		if err := each(line); err != nil {
			return err
		}
	}
	if err := scan.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fault.Newf(fault.TooLarge, opOutcome, "", "the agent printed a line of more than %d MiB", maxLine>>20)
	} else if err != nil {
		return fmt.Errorf("read the output of the agent: %w", err)
	}
	return nil
}

func noResult(agent string) error {
	return &fault.Error{
		Op: opOutcome, On: agent, Kind: fault.Unavailable, Err: errors.New("the output has no result"),
		Remedy: "check the agent's standard error",
	}
}

// clipResult returns the last maxText bytes of s.
func clipResult(s string) string {
	return safetext.Suffix(s, maxText)
}

// tokens and dollars clamp untrusted numbers, so that their sum over maxOutput bytes of
// output cannot overflow.
func tokens(n float64) int64 { return int64(math.Min(math.Max(n, 0), 1<<36)) }

func dollars(n float64) float64 { return math.Min(math.Max(n, 0), 1e9) }

// claudeOutcome parses the output of claude -p --output-format json. The last object of type
// result counts.
func claudeOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	found := false
	err := eachJSONLine(r, func(line []byte) error {
		var v struct {
			Type    string  `json:"type"`
			Subtype string  `json:"subtype"`
			IsError bool    `json:"is_error"`
			Result  string  `json:"result"`
			Session string  `json:"session_id"`
			Turns   float64 `json:"num_turns"`
			Cost    float64 `json:"total_cost_usd"`
			Usage   struct {
				Input  float64 `json:"input_tokens"`
				Output float64 `json:"output_tokens"`
				Read   float64 `json:"cache_read_input_tokens"`
				Write  float64 `json:"cache_creation_input_tokens"`
			} `json:"usage"`
			Denials []struct {
				Tool string `json:"tool_name"`
			} `json:"permission_denials"`
			Errors []string `json:"errors"`
		}
		if json.Unmarshal(line, &v) != nil || v.Type != "result" {
			return nil
		}
		found = true
		out = Outcome{Text: clipResult(v.Result), Session: v.Session, Turns: int(tokens(v.Turns))}
		out.Usage = Usage{
			InputTokens: tokens(v.Usage.Input), OutputTokens: tokens(v.Usage.Output),
			CacheReadTokens: tokens(v.Usage.Read), CacheWriteTokens: tokens(v.Usage.Write), CostUSD: dollars(v.Cost),
		}
		for _, d := range v.Denials[:min(len(v.Denials), maxDenied)] {
			out.Denied = append(out.Denied, d.Tool)
		}
		if v.IsError || v.Subtype != "success" {
			out.Error = firstOf(clipResult(strings.Join(v.Errors, "; ")), out.Text, v.Subtype, "the agent ended with an error")
		}
		return nil
	})
	if err == nil && !found {
		err = noResult("claude")
	}
	return out, err
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// codexOutcome parses the output of codex exec --json, which has one event per line.
func codexOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	ended := false
	err := eachJSONLine(r, func(line []byte) error {
		var v struct {
			Type    string `json:"type"`
			Thread  string `json:"thread_id"`
			Message string `json:"message"`
			Item    struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"item"`
			Usage struct {
				Input     float64 `json:"input_tokens"`
				Cached    float64 `json:"cached_input_tokens"`
				Output    float64 `json:"output_tokens"`
				Reasoning float64 `json:"reasoning_output_tokens"`
			} `json:"usage"`
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.Unmarshal(line, &v) != nil {
			return nil
		}
		switch v.Type {
		case "thread.started":
			out.Session = v.Thread
		case "item.completed":
			if v.Item.Type == "agent_message" {
				out.Text = clipResult(v.Item.Text)
			}
		case "turn.completed":
			ended, out.Error = true, ""
			out.Turns++
			out.Usage.InputTokens += tokens(v.Usage.Input)
			out.Usage.CacheReadTokens += tokens(v.Usage.Cached)
			out.Usage.OutputTokens += tokens(v.Usage.Output)
			out.Usage.ReasoningTokens += tokens(v.Usage.Reasoning)
		case "turn.failed":
			ended = true
			out.Error = clipResult(firstOf(v.Error.Message, out.Error, "the turn failed"))
		case "error":
			out.Error = clipResult(v.Message)
		}
		return nil
	})
	if err == nil && !ended {
		if out.Error != "" {
			return out, nil
		}
		err = noResult("codex")
	}
	return out, err
}

// openCodeOutcome parses the output of opencode run --format json, which has one part per
// line.
func openCodeOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	var text strings.Builder
	ended := false
	err := eachJSONLine(r, func(line []byte) error {
		var v struct {
			Type    string `json:"type"`
			Session string `json:"sessionID"`
			Part    struct {
				Text   string  `json:"text"`
				Tool   string  `json:"tool"`
				Reason string  `json:"reason"`
				Cost   float64 `json:"cost"`
				Tokens struct {
					Input     float64 `json:"input"`
					Output    float64 `json:"output"`
					Reasoning float64 `json:"reasoning"`
					Cache     struct {
						Read  float64 `json:"read"`
						Write float64 `json:"write"`
					} `json:"cache"`
				} `json:"tokens"`
				State struct {
					Status string `json:"status"`
					Error  string `json:"error"`
				} `json:"state"`
			} `json:"part"`
			Error struct {
				Name string `json:"name"`
				Data struct {
					Message string `json:"message"`
				} `json:"data"`
			} `json:"error"`
		}
		if json.Unmarshal(line, &v) != nil {
			return nil
		}
		if v.Session != "" {
			out.Session = v.Session
		}
		switch v.Type {
		case "step_start":
			text.Reset() // only the text of the last step is the result
		case "text":
			if text.Len() < maxText {
				text.WriteString(clipResult(v.Part.Text))
			}
		case "tool_use":
			if v.Part.State.Status == "error" && isRefusal(v.Part.State.Error) && len(out.Denied) < maxDenied {
				out.Denied = append(out.Denied, v.Part.Tool)
			}
		case "step_finish":
			ended = v.Part.Reason != "tool-calls"
			out.Turns++
			u := &out.Usage
			u.InputTokens += tokens(v.Part.Tokens.Input)
			u.OutputTokens += tokens(v.Part.Tokens.Output)
			u.ReasoningTokens += tokens(v.Part.Tokens.Reasoning)
			u.CacheReadTokens += tokens(v.Part.Tokens.Cache.Read)
			u.CacheWriteTokens += tokens(v.Part.Tokens.Cache.Write)
			u.CostUSD += dollars(v.Part.Cost)
		case "error":
			ended = true
			out.Error = clipResult(firstOf(v.Error.Data.Message, v.Error.Name, "the agent ended with an error"))
		}
		return nil
	})
	out.Text = clipResult(text.String())
	if err == nil && !ended {
		err = noResult("opencode")
	}
	return out, err
}

// isRefusal reports whether the error of a tool is a denial by the plugin, a rule or a
// person.
func isRefusal(text string) bool {
	return strings.HasPrefix(text, "refused:") || strings.Contains(text, "rejected permission") || strings.Contains(text, "prevents you from using")
}

// geminiOutcome parses the output of gemini --output-format json: one object over several
// lines.
func geminiOutcome(r io.Reader) (Outcome, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxLine+1))
	if err != nil {
		return Outcome{}, fmt.Errorf("read the output of the agent: %w", err)
	}
	if len(data) > maxLine {
		return Outcome{}, fault.Newf(fault.TooLarge, opOutcome, "gemini", "the agent printed more than %d MiB", maxLine>>20)
	}
	var v struct {
		Session  string  `json:"session_id"`
		Response *string `json:"response"`
		Error    *struct {
			Message string `json:"message"`
		} `json:"error"`
		Stats struct {
			Models map[string]struct {
				API struct {
					Requests float64 `json:"totalRequests"`
				} `json:"api"`
				Tokens struct {
					Prompt   float64 `json:"prompt"`
					Output   float64 `json:"candidates"`
					Cached   float64 `json:"cached"`
					Thoughts float64 `json:"thoughts"`
				} `json:"tokens"`
			} `json:"models"`
		} `json:"stats"`
	}
	begin := strings.IndexByte(string(data), '{')
	if begin < 0 || json.NewDecoder(strings.NewReader(string(data[begin:]))).Decode(&v) != nil || v.Response == nil && v.Error == nil {
		return Outcome{}, noResult("gemini")
	}
	out := Outcome{Session: v.Session}
	if v.Response != nil {
		out.Text = clipResult(*v.Response)
	}
	if v.Error != nil {
		out.Error = clipResult(firstOf(v.Error.Message, "the agent ended with an error"))
	}
	for _, m := range v.Stats.Models {
		out.Turns += int(tokens(m.API.Requests))
		out.Usage.InputTokens += tokens(m.Tokens.Prompt)
		out.Usage.OutputTokens += tokens(m.Tokens.Output)
		out.Usage.CacheReadTokens += tokens(m.Tokens.Cached)
		out.Usage.ReasoningTokens += tokens(m.Tokens.Thoughts)
	}
	return out, nil
}

// plainOutcome returns the output of a command as its result.
func plainOutcome(r io.Reader) (Outcome, error) {
	var kept []byte
	chunk := make([]byte, 64<<10)
	for {
		n, err := r.Read(chunk)
		kept = append(kept, chunk[:n]...)
		if len(kept) > 2*maxText {
			kept = append([]byte(nil), kept[len(kept)-maxText:]...)
		}
		if errors.Is(err, io.EOF) {
			return Outcome{Text: strings.TrimRight(clipResult(strings.ToValidUTF8(string(kept), "�")), "\n")}, nil
		}
		if err != nil {
			return Outcome{}, fmt.Errorf("read the output of the command: %w", err)
		}
	}
}
