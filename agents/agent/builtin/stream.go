package builtin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
)

const (
	maxLine   = 8 << 20 // bytes of a line or an event of a stream
	maxAnswer = 8 << 20 // bytes of an answer
	maxIndex  = 1024    // largest index of a call in an answer
)

// An answer is a complete response of the model.
type answer struct {
	text      string
	calls     []call
	truncated bool // the model reached its output limit
}

type call struct{ Name, Arguments string }

// A chunk is one event of a stream, or an entire answer without streaming.
type chunk struct {
	Choices []struct {
		Index   int    `json:"index"`
		Delta   delta  `json:"delta"`
		Message delta  `json:"message"`
		Finish  string `json:"finish_reason"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

type delta struct {
	Content json.RawMessage `json:"content"`
	Calls   []struct {
		Index    *int `json:"index"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// readAnswer reads an answer, streamed or not. It returns a retryableError if the connection
// ends before the answer is complete.
func readAnswer(resp *http.Response) (*answer, error) {
	b := &answerBuilder{}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "application/json" {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, &retryableError{err: err}
		}
		if err := b.add(body); err != nil {
			return nil, err
		}
		return b.answer(), nil
	}
	done, err := readEvents(resp.Body, b.add)
	if err != nil {
		return nil, err
	}
	if !done && !b.finished {
		return nil, &retryableError{err: errors.New("the stream ended before the response was complete")}
	}
	return b.answer(), nil
}

// readEvents calls add with the data of each event of a stream of server-sent events until
// the event "[DONE]". done reports whether that event was received.
func readEvents(r io.Reader, add func([]byte) error) (done bool, err error) {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, 64<<10), maxLine)
	var data []byte
	flush := func() (bool, error) {
		event := bytes.TrimSpace(data)
		data = data[:0]
		switch {
		case len(event) == 0:
			return false, nil
		case string(event) == "[DONE]":
			return true, nil
		}
		return false, add(event)
	}
	for scan.Scan() {
		line := bytes.TrimSuffix(scan.Bytes(), []byte("\r"))
		if len(line) == 0 {
			if done, err := flush(); done || err != nil {
				return done, err
			}
			continue
		}
		if field, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if len(data)+len(field) > maxLine {
				return false, &answerError{"an event is too long"}
			}
			data = append(append(data, bytes.TrimPrefix(field, []byte(" "))...), '\n')
		}
	}
	if errors.Is(scan.Err(), bufio.ErrTooLong) {
		return false, &answerError{"a line is too long"}
	}
	if scan.Err() != nil {
		return false, &retryableError{err: scan.Err()}
	}
	return flush()
}

// An answerBuilder assembles an answer from chunks.
type answerBuilder struct {
	text      strings.Builder
	calls     []*callBuilder
	size      int
	truncated bool
	finished  bool
}

type callBuilder struct {
	name      string
	arguments strings.Builder
}

// add adds one chunk. It reads only the first choice, because requests ask for one.
func (b *answerBuilder) add(event []byte) error {
	b.size += len(event)
	if b.size > 4*maxAnswer {
		return &answerError{"the answer is too long"}
	}
	var c chunk
	if err := json.Unmarshal(event, &c); err != nil {
		return &answerError{fmt.Sprintf("an event is not JSON: %v", err)}
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return &answerError{errorText(c.Error)}
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue
		}
		for _, d := range []delta{choice.Delta, choice.Message} {
			if err := b.addDelta(d); err != nil {
				return err
			}
		}
		if choice.Finish != "" {
			b.finished = true
			b.truncated = b.truncated || choice.Finish == "length"
		}
	}
	return nil
}

func (b *answerBuilder) addDelta(d delta) error {
	b.text.WriteString(contentText(d.Content))
	for i, c := range d.Calls {
		index := i
		if c.Index != nil {
			index = *c.Index
		}
		if index < 0 || index > maxIndex {
			return &answerError{fmt.Sprintf("a call has the index %d", index)}
		}
		for len(b.calls) <= index {
			b.calls = append(b.calls, &callBuilder{})
		}
		into := b.calls[index]
		if into.name == "" { // some providers repeat the name in each chunk
			into.name = c.Function.Name
		}
		into.arguments.WriteString(outputText(c.Function.Arguments)) // a string; some providers send an object
	}
	return nil
}

// contentText returns the text of a content field, which is a string or a list of parts.
func contentText(raw json.RawMessage) string {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

func (b *answerBuilder) answer() *answer {
	a := &answer{text: readable(b.text.String()), truncated: b.truncated}
	for _, c := range b.calls {
		if c.name != "" || c.arguments.Len() > 0 { // an index without data is not a call
			a.calls = append(a.calls, call{c.name, c.arguments.String()})
		}
	}
	return a
}
