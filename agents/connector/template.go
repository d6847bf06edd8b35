package connector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"glasshouse/fault"
)

// A template is a text with references to fields of a JSON value.
type template []part

// A part is a text, or the path of a field.
type part struct {
	text string
	path []string
}

// parseTemplate parses "a {{b.c}} d".
func parseTemplate(s string) (template, error) {
	var t template
	for s != "" {
		before, rest, found := strings.Cut(s, "{{")
		if before != "" {
			t = append(t, part{text: before})
		}
		if !found {
			return t, nil
		}
		inside, after, closed := strings.Cut(rest, "}}")
		if !closed {
			return nil, errors.New("missing }} after {{")
		}
		path := strings.Split(strings.TrimSpace(inside), ".")
		for _, word := range path {
			if word == "" || strings.ContainsAny(word, " \t\n{}") {
				return nil, fmt.Errorf("invalid field {{%.60s}}: want names separated by dots, such as {{repository.name}}", inside)
			}
		}
		t, s = append(t, part{path: path}), after
	}
	return t, nil
}

// fields reports whether a template refers to fields.
func (t template) fields() bool {
	for _, p := range t {
		if p.path != nil {
			return true
		}
	}
	return false
}

// fill returns the text with each field's value converted by as.
func (t template) fill(doc any, as func(string) string) (string, error) {
	var b strings.Builder
	for _, p := range t {
		if p.path == nil {
			b.WriteString(p.text)
			continue
		}
		text, err := field(doc, p.path)
		if err != nil {
			return "", err
		}
		b.WriteString(as(text))
	}
	return b.String(), nil
}

// field returns the value at a path: a string as it is, any other value as JSON.
func field(doc any, path []string) (string, error) {
	for i, word := range path {
		found := false
		switch v := doc.(type) {
		case map[string]any:
			doc, found = v[word]
		case []any:
			if n, err := strconv.Atoi(word); err == nil && n >= 0 && n < len(v) {
				doc, found = v[n], true
			}
		}
		if !found {
			return "", fault.Newf(fault.Invalid, "connector.field", "", "the body has no field %s", strings.Join(path[:i+1], "."))
		}
	}
	if s, ok := doc.(string); ok {
		return s, nil
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("encode the field: %w", err)
	}
	return string(text), nil
}

// decode parses one JSON value and keeps numbers in their original form.
func decode(body []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, fault.Newf(fault.Invalid, "connector.decode", "", "the body is not JSON")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fault.Newf(fault.Invalid, "connector.decode", "", "unexpected data after the JSON value")
	}
	return doc, nil
}

func verbatim(s string) string { return s }

// sessionWord converts a value to a part of a session's name.
func sessionWord(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:-", r) {
			return r
		}
		return '-'
	}, s)
}
