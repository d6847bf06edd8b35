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

// An Outcome is what an agent printed of its work.
type Outcome struct {
	Text    string // what it says at the end
	Error   string // why it gave up; empty if it did not
	Session string // to go on with, as Request.Resume
	Turns   int    // of the model
	Usage   Usage
	Denied  []string // tools that it was refused
}

// Usage is what an agent counted itself. The model gateway's numbers are what is paid.
type Usage struct {
	InputTokens, OutputTokens, CacheReadTokens, CacheWriteTokens, ReasoningTokens int64
	CostUSD                                                                       float64
}

const (
	opOutcome = "agent.Outcome"

	maxOutput = 256 << 20 // bytes of what an agent printed that are looked at
	maxLine   = 16 << 20  // of one line
	maxText   = 1 << 20   // of what is kept of its words
	maxDenied = 1000
)

// lines calls each with every line of JSON. Lines that are no JSON objects are other
// programs' words, and passed over.
func lines(r io.Reader, each func([]byte) error) error {
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
		return fmt.Errorf("read what the agent printed: %w", err)
	}
	return nil
}

func noResult(agent string) error {
	return &fault.Error{
		Op: opOutcome, On: agent, Kind: fault.Unavailable, Err: errors.New("what it printed has no result"),
		Remedy: "see what it wrote to its standard error",
	}
}

// keep shortens text to what is kept, its end.
func keep(s string) string {
	return safetext.Suffix(s, maxText)
}

// tokens and dollars are numbers of a stranger's: as many lines of them as are read
// still make a sum.
func tokens(n float64) int64 { return int64(math.Min(math.Max(n, 0), 1<<36)) }

func dollars(n float64) float64 { return math.Min(math.Max(n, 0), 1e9) }

// claudeOutcome reads claude -p --output-format json: one object, the last of type
// result where there are several.
func claudeOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	found := false
	err := lines(r, func(line []byte) error {
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
		out = Outcome{Text: keep(v.Result), Session: v.Session, Turns: int(tokens(v.Turns))}
		out.Usage = Usage{
			InputTokens: tokens(v.Usage.Input), OutputTokens: tokens(v.Usage.Output),
			CacheReadTokens: tokens(v.Usage.Read), CacheWriteTokens: tokens(v.Usage.Write), CostUSD: dollars(v.Cost),
		}
		for _, d := range v.Denials[:min(len(v.Denials), maxDenied)] {
			out.Denied = append(out.Denied, d.Tool)
		}
		if v.IsError || v.Subtype != "success" {
			out.Error = firstOf(keep(strings.Join(v.Errors, "; ")), out.Text, v.Subtype, "it ended with an error")
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

// codexOutcome reads codex exec --json: a line for each event.
func codexOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	ended := false
	err := lines(r, func(line []byte) error {
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
				out.Text = keep(v.Item.Text)
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
			out.Error = keep(firstOf(v.Error.Message, out.Error, "the turn failed"))
		case "error":
			out.Error = keep(v.Message)
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

// openCodeOutcome reads opencode run --format json: a line for each part.
func openCodeOutcome(r io.Reader) (Outcome, error) {
	var out Outcome
	var text strings.Builder
	ended := false
	err := lines(r, func(line []byte) error {
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
			text.Reset() // what it said before it went on is no result
		case "text":
			if text.Len() < maxText {
				text.WriteString(keep(v.Part.Text))
			}
		case "tool_use":
			if v.Part.State.Status == "error" && refused(v.Part.State.Error) && len(out.Denied) < maxDenied {
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
			out.Error = keep(firstOf(v.Error.Data.Message, v.Error.Name, "it ended with an error"))
		}
		return nil
	})
	out.Text = keep(text.String())
	if err == nil && !ended {
		err = noResult("opencode")
	}
	return out, err
}

// refused tells whether an error of a tool is a no: of the plugin, of a rule, of a
// person who was asked.
func refused(text string) bool {
	return strings.HasPrefix(text, "refused:") || strings.Contains(text, "rejected permission") || strings.Contains(text, "prevents you from using")
}

// geminiOutcome reads gemini --output-format json: one object over many lines.
func geminiOutcome(r io.Reader) (Outcome, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxLine+1))
	if err != nil {
		return Outcome{}, fmt.Errorf("read what the agent printed: %w", err)
	}
	if len(data) > maxLine {
		return Outcome{}, fault.Newf(fault.TooLarge, opOutcome, "gemini", "it printed more than %d MiB", maxLine>>20)
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
		out.Text = keep(*v.Response)
	}
	if v.Error != nil {
		out.Error = keep(firstOf(v.Error.Message, "it ended with an error"))
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

// plainOutcome takes what a command printed for its result.
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
			return Outcome{Text: strings.TrimRight(keep(strings.ToValidUTF8(string(kept), "�")), "\n")}, nil
		}
		if err != nil {
			return Outcome{}, fmt.Errorf("read what the command printed: %w", err)
		}
	}
}
