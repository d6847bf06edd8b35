package redact

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON text with its strings masked, keys included. A number that is a
// secret becomes a string of stars, and number reports that there was one. Text that is
// not JSON is masked as text. The result does not share memory with text if anything was
// masked.
func (m *Mask) JSON(text []byte) (masked []byte, found, number bool) {
	if m == nil || len(text) == 0 {
		return text, false, false
	}
	if !json.Valid(text) {
		masked = bytes.Clone(text)
		return masked, m.Bytes(masked), false
	}
	var out bytes.Buffer
	for i := 0; i < len(text); {
		end := i + 1
		switch c := text[i]; {
		case c == '"':
			end = stringEnd(text, i)
			if hidden, ok := m.jsonString(text[i:end]); ok {
				out.Write(hidden)
				found = true
			} else {
				out.Write(text[i:end])
			}
		case c == '-' || c >= '0' && c <= '9':
			for end < len(text) && bytes.IndexByte([]byte("0123456789.eE+-"), text[end]) >= 0 {
				end++
			}
			if token := text[i:end]; m.exact[string(token)] || m.exact[string(bytes.TrimPrefix(token, []byte("-")))] {
				out.WriteByte('"')
				out.Write(bytes.Repeat([]byte("*"), len(token)))
				out.WriteByte('"')
				found, number = true, true
			} else {
				out.Write(token)
			}
		default:
			out.WriteByte(c)
		}
		i = end
	}
	if !found {
		return text, false, false
	}
	return out.Bytes(), true, number
}

// stringEnd returns the index after the string that begins at i of a valid JSON text.
func stringEnd(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// jsonString returns a string token masked, if it holds a secret.
func (m *Mask) jsonString(token []byte) ([]byte, bool) {
	var s string
	if err := json.Unmarshal(token, &s); err != nil {
		return nil, false
	}
	hidden := m.Text(s)
	if hidden == s {
		return nil, false
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(hidden); err != nil { // a string always can be encoded
		return nil, false
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}
