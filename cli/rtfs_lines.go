package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"glasshouse/capability/rtfs"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// A request is a line from another program.
type request struct {
	ID    json.RawMessage `json:"id"`
	Src   string          `json:"src"`
	Type  string          `json:"type"`
	Value *string         `json:"value"`
}

// A response is the line that answers a request.
type response struct {
	ID    json.RawMessage `json:"id"`
	Value *string         `json:"value,omitempty"`
	Valid *bool           `json:"valid,omitempty"`
	Error *lineError      `json:"error,omitempty"`
}

type lineError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// eachLine answers every line as soon as it arrives.
func eachLine(in io.Reader, out io.Writer, answer func(request) response) error {
	lines := bufio.NewReader(in)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for {
		line, err := lines.ReadBytes('\n')
		line = bytes.TrimSpace(line)
		if len(line) > 0 {
			if err := enc.Encode(answerLine(line, answer)); err != nil {
				return fmt.Errorf("write the response: %w", err)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the next line: %w", err)
		}
	}
}

func answerLine(line []byte, answer func(request) response) response {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return r.failed(form.Errorf("JsonError", "the line is not a request: %v", err))
	}
	return answer(r)
}

// failed returns an error response. The error's kind is that of the language.
func (r request) failed(err error) response {
	e, ok := errors.AsType[*form.Error](err)
	if !ok {
		e = &form.Error{Kind: "InternalError", Message: err.Error()}
	}
	return response{ID: r.id(), Error: &lineError{Kind: e.Kind, Message: e.Message}}
}

// id returns the id of the request, or null if it has none.
func (r request) id() json.RawMessage {
	if len(r.ID) == 0 {
		return json.RawMessage("null")
	}
	return r.ID
}

// lineLimits are lower than the usual limits of a program, because other requests wait.
var lineLimits = rtfs.Limits{Steps: 20_000_000, Alloc: 256 << 20, Time: 5 * time.Second}

func evalLine(ctx context.Context, r request) response {
	p, err := rtfs.New(rtfs.Config{Host: stubHost{}, Check: compileType, Limits: lineLimits}).Compile("", []byte(r.Src))
	if err != nil {
		return r.failed(err)
	}
	v, err := p.Run(ctx)
	if err != nil {
		return r.failed(err)
	}
	text, err := valueText(v)
	if err != nil {
		return r.failed(err)
	}
	return response{ID: r.id(), Value: &text}
}

// A stubHost implements the calls that a program can do without: it prints nothing, ignores
// steps, and returns the name of a resource as its handle.
type stubHost struct{}

func (stubHost) Call(_ context.Context, id string, input form.Value) (form.Value, error) {
	switch id {
	case "ccos.io.println", "ccos.io.print", "ccos.io.log":
		return nil, nil
	}
	return nil, unknownCapability(id)
}

func validateLine(r request) response {
	t, err := schema.Parse("", r.Type)
	if err != nil {
		return r.failed(err)
	}
	valid := true
	if r.Value != nil {
		v, err := readValue(*r.Value)
		if err != nil {
			return r.failed(err)
		}
		valid = t.Check(v) == nil
	}
	return response{ID: r.id(), Valid: &valid}
}

// readValue reads the text of one value.
func readValue(text string) (form.Value, error) {
	nodes, err := form.Read("", []byte(text))
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, form.Errorf("ParseError", "expects one value, got %d", len(nodes))
	}
	return nodes[0].Value(), nil
}
