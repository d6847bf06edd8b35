package egress

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"glasshouse/internal/text"
)

// A head holds the relevant parts of an unambiguous HTTP/1 request head.
type head struct {
	method, target string
	host           string // value of the Host header; hasHost distinguishes an empty one from none
	hasHost        bool
}

const maxFields = 256

var preface = []byte("PRI * HTTP/2.0\r\n")

// headEnd returns the length of the request head at the start of b, or 0 if b does not contain
// its end. It also accepts malformed line endings, which checkHead then refuses.
func headEnd(b []byte) int {
	end := 0
	for i := 0; i < len(b); {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		end = i + n + 1
		rest := b[end:]
		if bytes.HasPrefix(rest, []byte("\r\n")) {
			return end + 2
		}
		if bytes.HasPrefix(rest, []byte("\n")) {
			return end + 1
		}
		i = end
	}
	return 0
}

// checkHead parses a request head. It is stricter than RFC 9112: it rejects everything that
// two implementations might interpret differently.
func checkHead(b []byte) (h head, err error) {
	// A recipient may or may not accept a bare LF as the end of a line (RFC 9112, 2.2).
	rest, ok := bytes.CutSuffix(b, []byte("\r\n\r\n"))
	if !ok {
		return h, errors.New("lines do not end in CR LF")
	}
	lines := strings.Split(string(rest), "\r\n")
	for _, line := range lines {
		for i := range len(line) {
			if c := line[i]; c < ' ' && c != '\t' || c == 0x7f {
				return h, fmt.Errorf("contains the byte %#02x", c)
			}
		}
	}
	version, err := h.requestLine(lines[0])
	if err != nil {
		return h, err
	}
	fields := lines[1:]
	if len(fields) > maxFields {
		return h, fmt.Errorf("more than %d header fields", maxFields)
	}
	var length, coding int
	for _, line := range fields {
		name, value, ok := strings.Cut(line, ":")
		switch {
		// obs-fold, which continues a field or starts another, depending on the recipient (RFC
		// 9112, 5.2).
		case line == "" || line[0] == ' ' || line[0] == '\t':
			return h, errors.New("a header field is folded over several lines")
		case !ok:
			return h, errors.New("a header field has no colon")
		// This refuses a space before the colon as well, as RFC 9112, 5.1 requires.
		case name == "" || strings.IndexFunc(name, func(r rune) bool { return r > 0x7f || !isToken(byte(r)) }) >= 0:
			return h, fmt.Errorf("%q is not a valid field name", text.Clip(name, 40))
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			if h.hasHost {
				return h, errors.New("two Host fields")
			}
			h.host, h.hasHost = value, true
		case "content-length":
			length++
			// A recipient may merge equal lengths or refuse them (RFC 9110, 8.6).
			if length > 1 {
				return h, errors.New("two Content-Length fields")
			}
			// A number of 18 digits cannot overflow an int64.
			if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
				return h, errors.New("Content-Length is not a number")
			}
		case "transfer-encoding":
			coding++
			if coding > 1 {
				return h, errors.New("two Transfer-Encoding fields")
			}
			if !strings.EqualFold(value, "chunked") {
				return h, errors.New("Transfer-Encoding is not chunked")
			}
		// CGI maps - and _ to the same variable name (RFC 3875, 4.1.18).
		case "content_length", "transfer_encoding":
			return h, fmt.Errorf("some servers use %s to determine the body length", name)
		}
	}
	switch {
	// Recipients that prefer different fields disagree on the end of the message: request
	// smuggling (RFC 9112, 6.1 and 11.2).
	case length > 0 && coding > 0:
		return h, errors.New("both Content-Length and Transfer-Encoding are set")
	// The framing of such a message is faulty (RFC 9112, 6.1).
	case coding > 0 && version == "HTTP/1.0":
		return h, errors.New("HTTP/1.0 does not support Transfer-Encoding")
	case !h.hasHost && version == "HTTP/1.1":
		return h, errors.New("no Host field")
	}
	return h, nil
}

func (h *head) requestLine(line string) (version string, err error) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return "", errors.New("the request line is not METHOD TARGET VERSION")
	}
	h.method, h.target, version = parts[0], parts[1], parts[2]
	if h.method == "" || len(h.method) > 32 {
		return "", errors.New("no method")
	}
	for i := range len(h.method) {
		if !isToken(h.method[i]) {
			return "", errors.New("the method is not a token")
		}
	}
	if h.target == "" {
		return "", errors.New("no target")
	}
	for i := range len(h.target) {
		if c := h.target[i]; c <= ' ' || c >= 0x7f {
			return "", errors.New("the target contains bytes that must be escaped")
		}
	}
	if strings.Contains(h.target, "#") {
		return "", errors.New("the target has a fragment")
	}
	if version != "HTTP/1.1" && version != "HTTP/1.0" {
		return "", errors.New("the version is neither HTTP/1.1 nor HTTP/1.0")
	}
	return version, nil
}

// isToken reports whether c is allowed in a token (RFC 9110, 5.6.2).
func isToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
