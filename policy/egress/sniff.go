package egress

import (
	"bytes"
	"errors"
)

// protocol is the protocol of a client, detected from its first bytes.
type protocol int

const (
	protoUnknown protocol = iota // not enough bytes yet
	protoTLS
	protoHTTP
	protoOther
)

const maxLine = 8 << 10 // maximum length of an HTTP request line

// classify detects the protocol of b. Everything that a lenient server might accept as a
// request counts as HTTP, so that it is checked: leading empty lines, any method, any version.
func classify(b []byte) protocol {
	if len(b) == 0 {
		return protoUnknown
	}
	if b[0] == recordHandshake {
		if _, more, err := parseHello(b); err == nil && more {
			return protoUnknown
		}
		return protoTLS
	}
	rest := bytes.TrimLeft(b, "\r\n \t")
	if line, _, complete := bytes.Cut(rest, []byte("\n")); complete {
		if bytes.Contains(bytes.ToLower(line), []byte("http/")) {
			return protoHTTP
		}
		return protoOther
	}
	word := rest[:min(len(rest), 64)]
	for _, c := range word {
		if c == ' ' || c == '\t' {
			break // possibly a method
		}
		if !isToken(c) {
			return protoOther
		}
	}
	if len(word) == 64 && !bytes.ContainsAny(word, " \t") {
		return protoOther // longer than any method
	}
	if bytes.Contains(bytes.ToLower(rest), []byte(" http/")) || len(rest) > maxLine {
		return protoHTTP
	}
	return protoUnknown
}

const (
	recordHandshake = 22
	clientHello     = 1

	extServerName = 0
	extALPN       = 16
	extECH        = 0xfe0d
)

// A hello contains the relevant parts of a TLS ClientHello.
type hello struct {
	name string // server name (SNI) as sent; "" for none
	alpn []string
	ech  bool // contains an encrypted_client_hello extension (ECH), possibly GREASE
}

var (
	errHelloShort = errors.New("the TLS record is truncated")
	errHelloLong  = errors.New("the ClientHello is too long")
	errHelloKind  = errors.New("the message is not a ClientHello")
	errHelloTwice = errors.New("the ClientHello has a duplicate extension")
	errHelloName  = errors.New("the server_name list is not exactly one host name")
)

// parseHello parses the ClientHello at the start of b, which may span several records (RFC
// 8446, 5.1). more is true if b is an incomplete ClientHello.
func parseHello(b []byte) (h hello, more bool, err error) {
	var msg []byte
	for {
		if len(b) < 5 {
			return h, true, nil
		}
		n := int(b[3])<<8 | int(b[4])
		if b[0] != recordHandshake || b[1] != 3 || n == 0 || n > 1<<14 {
			return h, false, errHelloKind
		}
		part := b[5:min(len(b), 5+n)]
		msg = append(msg, part...)
		if len(msg) > 0 && msg[0] != clientHello {
			return h, false, errHelloKind
		}
		if len(msg) >= 4 {
			size := int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])
			if size > maxHead-1024 {
				return h, false, errHelloLong
			}
			if len(msg) >= 4+size {
				h, err = readHello(msg[4 : 4+size])
				return h, false, err
			}
		}
		if len(part) < n {
			return h, true, nil
		}
		b = b[5+n:]
	}
}

// A reader takes fields from the front of a message. After the first missing field, short is
// true and all further fields are empty.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) number(size int) (n int) {
	for _, c := range r.take(size) {
		n = n<<8 | int(c)
	}
	return n
}

// counted takes a field with a length prefix of size bytes.
func (r *reader) counted(size int) reader { return reader{b: r.take(r.number(size)), short: r.short} }

func readHello(b []byte) (h hello, err error) {
	r := reader{b: b}
	r.take(2 + 32) // version, random
	r.counted(1)   // session id
	r.counted(2)   // cipher suites
	r.counted(1)   // compression methods
	if !r.short && len(r.b) == 0 {
		return h, nil // no extensions
	}
	exts := r.counted(2)
	if r.short || len(r.b) > 0 {
		return h, errHelloShort
	}
	seen := map[int]bool{}
	for len(exts.b) > 0 {
		kind := exts.number(2)
		body := exts.counted(2)
		if exts.short {
			return h, errHelloShort
		}
		if seen[kind] {
			return h, errHelloTwice
		}
		seen[kind] = true
		switch kind {
		case extServerName:
			list := body.counted(2)
			typ := list.number(1)
			name := list.counted(2)
			if body.short || list.short || len(body.b) > 0 || len(list.b) > 0 || typ != 0 || len(name.b) == 0 {
				return h, errHelloName
			}
			h.name = string(name.b)
		case extALPN:
			list := body.counted(2)
			for len(list.b) > 0 && !list.short {
				proto := list.counted(1)
				h.alpn = append(h.alpn, string(proto.b))
			}
			if body.short || list.short {
				return h, errHelloShort
			}
		case extECH:
			h.ech = true
		}
	}
	return h, nil
}
