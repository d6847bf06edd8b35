package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

const secret = `Pa55/w0rd"é+?&~end`

func TestEncodingsOfASecretAreMasked(t *testing.T) {
	quoted, _ := json.Marshal(secret)
	for name, text := range map[string]string{
		"raw":            secret,
		"base64":         base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 offset1": base64.StdEncoding.EncodeToString([]byte("u" + secret)),
		"base64 offset2": base64.StdEncoding.EncodeToString([]byte("us" + secret + "x")),
		"base64url":      base64.RawURLEncoding.EncodeToString([]byte(secret)),
		"hex":            hex.EncodeToString([]byte(secret)),
		"HEX":            strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query":          url.QueryEscape(secret),
		"path":           url.PathEscape(secret),
		"JSON":           string(quoted),
		"ASCII JSON":     strings.ReplaceAll(string(quoted), "é", `\u00e9`),
	} {
		got := New(secret + "\n").Text("before " + text + " after")
		stars := strings.Count(got, "*")
		if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || len(got) != len("before "+text+" after") {
			t.Errorf("%s: got %q, want the text around the secret and its length unchanged", name, got)
		}
		// The first and the last character of base64 depend on the neighbouring bytes.
		if stars < len(strings.Trim(text, `="`))-6 {
			t.Errorf("%s: got %q with %d stars, want at least %d", name, got, stars, len(strings.Trim(text, `="`))-6)
		}
	}
}

func TestMaskOfEmptyValues(t *testing.T) {
	if m := New("", ""); m != nil {
		t.Errorf("New of empty values = %v, want nil", m)
	}
	var m *Mask
	text, found, number := m.JSON([]byte(`{"a":1}`))
	if got := m.Text("a"); got != "a" || m.Bytes([]byte("a")) || found || number || string(text) != `{"a":1}` {
		t.Errorf("a nil Mask changed text: %q, %s", got, text)
	}
	if got := New(" a ").Text("banana"); got != "banana" {
		t.Errorf("a value that is short without its white space: got %q, want %q", got, "banana")
	}
}

func TestJSONStaysJSON(t *testing.T) {
	for _, tt := range []struct {
		value, text, want string
		number            bool
	}{
		{"hunter2", `{"hunter2":["x hunter2",1,true,null]}`, `{"*******":["x *******",1,true,null]}`, false},
		{`a"b\c`, `["a\"b\\c"]`, `["*****"]`, false},
		{"hunter2", `["\u0068unter2", "q\"hunter2"]`, `["*******", "q\"*******"]`, false},
		{"12345", `[12345, 123456, "12345", {"n":-12345}]`, `["*****", 123456, "*****", {"n":"******"}]`, true},
		{"true", `[true,"true"]`, `[true,"****"]`, false},
		{"hunter2", `["<>&"]`, `["<>&"]`, false},
		{"hunter2", `no JSON hunter2`, `no JSON *******`, false},
		{"hunter2", ``, ``, false},
	} {
		before := strings.Clone(tt.text)
		text := []byte(tt.text)
		got, found, number := New(tt.value).JSON(text)
		if string(got) != tt.want {
			t.Errorf("JSON(%s) = %s, want %s", tt.text, got, tt.want)
		}
		if found != (tt.want != tt.text) || number != tt.number {
			t.Errorf("JSON(%s) = found %t, number %t, want %t, %t", tt.text, found, number, tt.want != tt.text, tt.number)
		}
		if string(text) != before {
			t.Errorf("JSON changed its argument: got %s, want %s", text, before)
		}
	}
}

func TestReaderMasksLikeText(t *testing.T) {
	m := New("hunter2\n", "hunter2hunter3")
	text := "a hunter2 hunter2\nhunter2hunter3 hunter2hunter"
	want := m.Text(text)
	for name, r := range map[string]io.Reader{"bytes": iotest.OneByteReader(strings.NewReader(text)), "halves": iotest.HalfReader(strings.NewReader(text))} {
		if b, err := io.ReadAll(m.Reader(r)); string(b) != want || err != nil {
			t.Errorf("read by %s: got %q, %v, want %q", name, b, err, want)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, text := range []string{`{"a":"hunter2"}`, `[12345,-1e5,"\u0068unter2\\"]`, `"\ud800hunter2"`, `nothing`} {
		f.Add("hunter2", text)
		f.Add("12345", text)
	}
	f.Fuzz(func(t *testing.T, value, text string) {
		if len(value) < MinLength || len(value) > 1000 || len(text) > 1e4 {
			return
		}
		m := New(value)
		got, found, _ := m.JSON([]byte(text))
		if json.Valid([]byte(text)) && !json.Valid(got) {
			t.Fatalf("JSON(%q) of the secret %q = %q, want valid JSON", text, value, got)
		}
		if !found && string(got) != text {
			t.Fatalf("JSON(%q) = %q, and found is false", text, got)
		}
		var v any
		if json.Unmarshal(got, &v) != nil {
			return
		}
		walk(v, func(s string) {
			if again := m.Text(s); again != s && strings.Trim(value, "*") != "" && !strings.Contains(value, "*") {
				t.Fatalf("JSON(%q) = %q, in which %q still holds the secret %q", text, got, s, value)
			}
		})
	})
}

func walk(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, e := range v {
			walk(e, f)
		}
	case map[string]any:
		for k, e := range v {
			f(k)
			walk(e, f)
		}
	}
}
