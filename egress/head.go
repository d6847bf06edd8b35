package egress

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"glasshouse/internal/text"
)

// A head is what matters of the head of an HTTP/1 request that can be read in one
// way only.
type head struct {
	method, target string
	host           string // of the Host header; hasHost tells an empty one from none
	hasHost        bool
}

const maxFields = 256

var preface = []byte("PRI * HTTP/2.0\r\n")

// headEnd returns the length of the head with which b begins, or 0 if it does not
// end in b. A head that ends otherwise than it must ends there too, and
// checkHead refuses it.
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

// checkHead reads the head of a request as strictly as RFC 9112 allows, and
// more: whatever two programs might read differently is an error.
func checkHead(b []byte) (h head, err error) {
	rest, ok := bytes.CutSuffix(b, []byte("\r\n\r\n"))
	if !ok {
		return h, errors.New("its lines do not end in CR LF")
	}
	lines := strings.Split(string(rest), "\r\n")
	for _, line := range lines {
		for i := range len(line) {
			if c := line[i]; c < ' ' && c != '\t' || c == 0x7f {
				return h, fmt.Errorf("there is the byte %#02x in it", c)
			}
		}
	}
	version, err := h.requestLine(lines[0])
	if err != nil {
		return h, err
	}
	fields := lines[1:]
	if len(fields) > maxFields {
		return h, fmt.Errorf("it has more than %d fields", maxFields)
	}
	var length, coding int
	for _, line := range fields {
		name, value, ok := strings.Cut(line, ":")
		switch {
		case line == "" || line[0] == ' ' || line[0] == '\t':
			return h, errors.New("a field goes on in the next line")
		case !ok:
			return h, errors.New("a field has no colon")
		case name == "" || strings.IndexFunc(name, func(r rune) bool { return r > 0x7f || !isToken(byte(r)) }) >= 0:
			return h, fmt.Errorf("%q is no name of a field", text.Clip(name, 40))
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			if h.hasHost {
				return h, errors.New("it has two Host fields")
			}
			h.host, h.hasHost = value, true
		case "content-length":
			if length++; length > 1 {
				return h, errors.New("it has two Content-Length fields")
			}
			if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
				return h, errors.New("its Content-Length is not a number")
			}
		case "transfer-encoding":
			if coding++; coding > 1 {
				return h, errors.New("it has two Transfer-Encoding fields")
			}
			if !strings.EqualFold(value, "chunked") {
				return h, errors.New("its Transfer-Encoding is not chunked")
			}
		case "content_length", "transfer_encoding":
			return h, fmt.Errorf("%s is read by some as what decides where the body ends", name)
		}
	}
	switch {
	case length > 0 && coding > 0:
		return h, errors.New("it has both Content-Length and Transfer-Encoding")
	case coding > 0 && version == "HTTP/1.0":
		return h, errors.New("it has a Transfer-Encoding, which HTTP/1.0 does not know")
	case !h.hasHost && version == "HTTP/1.1":
		return h, errors.New("it has no Host field")
	}
	return h, nil
}

func (h *head) requestLine(line string) (version string, err error) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return "", errors.New("its first line is not method, target and version")
	}
	h.method, h.target, version = parts[0], parts[1], parts[2]
	if h.method == "" || len(h.method) > 32 {
		return "", errors.New("it has no method")
	}
	for i := range len(h.method) {
		if !isToken(h.method[i]) {
			return "", errors.New("its method is no word")
		}
	}
	if h.target == "" {
		return "", errors.New("it has no target")
	}
	for i := range len(h.target) {
		if c := h.target[i]; c <= ' ' || c >= 0x7f {
			return "", errors.New("its target has bytes that must be escaped")
		}
	}
	if strings.Contains(h.target, "#") {
		return "", errors.New("its target has a fragment")
	}
	if version != "HTTP/1.1" && version != "HTTP/1.0" {
		return "", errors.New("its version is neither HTTP/1.1 nor HTTP/1.0")
	}
	return version, nil
}

// isToken reports whether c may stand in a token (RFC 9110, 5.6.2).
func isToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
