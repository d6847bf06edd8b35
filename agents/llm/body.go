package llm

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"glasshouse/fault"
)

// A field is a field of a JSON object and the position of its value in the object's text.
type field struct {
	name       string
	value      json.RawMessage
	start, end int
}

// object finds the fields of a JSON object, so that one can be changed while the other bytes
// stay the same. It refuses duplicate names, because the provider might use the other value.
// Values are slices of text, not copies.
func object(text []byte) ([]field, error) {
	if !json.Valid(text) {
		var v any
		return nil, notJSON(json.Unmarshal(text, &v), "")
	}
	s := scanner{text: text}
	s.space()
	if s.text[s.at] != '{' {
		return nil, notJSON(nil, "not an object")
	}
	var fields []field
	seen := map[string]bool{}
	for s.at++; ; s.at++ { // after the brace, and after each comma
		s.space()
		if s.text[s.at] == '}' {
			return fields, nil
		}
		var f field
		if err := json.Unmarshal(s.value(), &f.name); err != nil {
			return nil, notJSON(err, "")
		}
		name := strings.ToLower(f.name)
		if seen[name] {
			return nil, notJSON(nil, "duplicate field "+quoted(f.name))
		}
		seen[name] = true
		s.space()
		s.at++ // the colon
		s.space()
		f.start = s.at
		f.value = s.value()
		f.end = s.at
		fields = append(fields, f)
		if s.space(); s.text[s.at] == '}' {
			return fields, nil
		}
	}
}

// A scanner walks over valid JSON.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t' || s.text[s.at] == '\n' || s.text[s.at] == '\r') {
		s.at++
	}
}

// value returns the value that begins at the current position and moves behind it.
func (s *scanner) value() []byte {
	start := s.at
	for depth := 0; s.at < len(s.text); {
		switch c := s.text[s.at]; c {
		case '"':
			s.literal()
		case '{', '[':
			depth++
			s.at++
		case '}', ']', ',', ' ', '\t', '\n', '\r', ':':
			if depth == 0 {
				return s.text[start:s.at] // behind a number or a word
			}
			if c == '}' || c == ']' {
				depth--
			}
			s.at++
		default:
			s.at++
			continue // within a number or a word
		}
		if depth == 0 {
			return s.text[start:s.at]
		}
	}
	return s.text[start:s.at]
}

// literal moves behind a string: behind the next quote that follows an even number of
// backslashes.
func (s *scanner) literal() {
	for s.at++; ; s.at++ {
		s.at += bytes.IndexByte(s.text[s.at:], '"')
		n := s.at
		for s.text[n-1] == '\\' {
			n--
		}
		if (s.at-n)%2 == 0 {
			s.at++
			return
		}
	}
}

func notJSON(err error, why string) error {
	if why == "" && err != nil {
		why = err.Error()
	}
	return fault.Newf(fault.Invalid, "llm.notJSON", "", "the body is not a JSON object that can be forwarded: %s", why)
}

// find returns the field with exactly this name, or nil.
func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// set returns an object's text with the value of one field replaced. A missing field is
// inserted first.
func set(text []byte, name string, value []byte) ([]byte, error) {
	fields, err := object(text)
	if err != nil {
		return nil, err
	}
	if f := find(fields, name); f != nil {
		return bytes.Join([][]byte{text[:f.start], value, text[f.end:]}, nil), nil
	}
	key, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	at := bytes.IndexByte(text, '{') + 1
	put := append(append(key, ':'), value...)
	if len(fields) > 0 {
		put = append(put, ',')
	}
	return bytes.Join([][]byte{text[:at], put, text[at:]}, nil), nil
}

// An ask is the part of a request that the gateway interprets.
type ask struct {
	model  string
	stream bool
	usage  bool  // chat completions: stream_options.include_usage is set
	limit  int64 // maximum tokens of the answer; 0: none
	input  int64 // estimated tokens of the input

	choices int64 // number of alternative answers; 0: one
}

// read parses the relevant part of a request. model is the model in the path, if the API has
// it there.
func (f *format) read(body []byte, model string) (ask, error) {
	fields, err := object(body)
	if err != nil {
		return ask{}, err
	}
	a := ask{model: model, stream: f.streams, input: estimateRequest(body)}
	if err := strictNames(fields); err != nil {
		return ask{}, err
	}
	if model == "" {
		if err := decode(fields, "model", &a.model); err != nil {
			return ask{}, err
		}
		if a.model == "" {
			return ask{}, fault.Fieldf("llm.read", "model", "the request names no model")
		}
		if err := decode(fields, "stream", &a.stream); err != nil {
			return ask{}, err
		}
	}
	if len(a.model) > 256 || strings.ContainsFunc(a.model, func(r rune) bool { return r <= ' ' || r == utf8.RuneError || r == 0x7f }) {
		return ask{}, fault.Fieldf("llm.read", "model", "%s is not a valid model name", quoted(a.model))
	}
	if err := f.limits(fields, &a); err != nil {
		return ask{}, err
	}
	return a, nil
}

// watched are the fields of all APIs that the gateway reads.
var watched = []string{"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "background", "generationConfig"}

// strictNames refuses fields whose names differ from those that are read only in case: some
// servers match field names case-insensitively.
func strictNames(fields []field) error {
	for _, f := range fields {
		for _, name := range watched {
			if f.name != name && strings.EqualFold(f.name, name) {
				return fault.Fieldf("llm.strictNames", name, "the field must be spelled %s", quoted(f.name))
			}
		}
	}
	return nil
}

// decode decodes a field if it is present and not null.
func decode(fields []field, name string, into any) error {
	f := find(fields, name)
	if f == nil || string(f.value) == "null" {
		return nil
	}
	if err := json.Unmarshal(f.value, into); err != nil {
		return fault.Fieldf("llm.decode", name, "%s has the wrong type", quoted(string(f.value)))
	}
	return nil
}

// most returns the largest of the given fields; requests can limit their answer with an old
// and a new field.
func most(fields []field, names ...string) (int64, error) {
	var largest int64
	for _, name := range names {
		var n float64
		if err := decode(fields, name, &n); err != nil {
			return 0, err
		}
		if n < 0 || n > maxTokens {
			return 0, fault.Fieldf("llm.most", name, "want a number of tokens from 1 to %d", maxTokens)
		}
		largest = max(largest, int64(n))
	}
	return largest, nil
}

// estimate returns the estimated number of tokens of a text: one per four characters of Latin
// script, and one per character of other scripts.
func estimate(text string) int64 {
	var ascii, other int64
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c < utf8.RuneSelf:
			ascii++
		case c >= 0xC0: // a sign begins
			other++
		}
	}
	return (ascii+3)/4 + other
}

// image is the estimate in tokens of an image or file, and blob the minimum length of a run
// without spaces that counts as one.
const (
	image = 1600
	blob  = 2048
)

// estimateRequest estimates the input tokens of a request. It includes the JSON syntax and the
// schemas of tools, which models read as well.
func estimateRequest(body []byte) int64 {
	var total, run, other int64
	flush := func() {
		if run >= blob {
			other += image
		} else {
			total += run
		}
		run = 0
	}
	for _, c := range body {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '=' || c == '-' || c == '_':
			run++
		case c < utf8.RuneSelf:
			flush()
			total++
		default:
			flush()
			if c >= 0xC0 {
				other++
			}
		}
	}
	flush()
	return min((total+3)/4+other, maxTokens)
}
