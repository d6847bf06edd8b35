package egress

import (
	"bytes"
	"errors"
)

// spoken is what a client speaks, judged by its first bytes.
type spoken int

const (
	spokeNothing spoken = iota // it has not said enough
	spokeTLS
	spokeHTTP
	spokeOther
)

const maxLine = 8 << 10 // of what may be the first line of a request

// classify says what begins so. What a lenient server might take for a request is
// HTTP, so that it is looked at: empty lines before it, any method, any version.
func classify(b []byte) spoken {
	if len(b) == 0 {
		return spokeNothing
	}
	if b[0] == recordHandshake {
		if _, more, err := parseHello(b); err == nil && more {
			return spokeNothing
		}
		return spokeTLS
	}
	rest := bytes.TrimLeft(b, "\r\n \t")
	if line, _, whole := bytes.Cut(rest, []byte("\n")); whole {
		if bytes.Contains(bytes.ToLower(line), []byte("http/")) {
			return spokeHTTP
		}
		return spokeOther
	}
	word := rest[:min(len(rest), 64)]
	for _, c := range word {
		if c == ' ' || c == '\t' {
			break // a method, perhaps
		}
		if !isToken(c) {
			return spokeOther
		}
	}
	if len(word) == 64 && !bytes.ContainsAny(word, " \t") {
		return spokeOther // a method is not as long
	}
	if bytes.Contains(bytes.ToLower(rest), []byte(" http/")) || len(rest) > maxLine {
		return spokeHTTP
	}
	return spokeNothing
}

const (
	recordHandshake = 22
	clientHello     = 1

	extServerName = 0
	extALPN       = 16
	extECH        = 0xfe0d
)

// A hello is what matters of a TLS ClientHello.
type hello struct {
	name string // the host it names, as it is written; "" for none
	alpn []string
	ech  bool // there is an encrypted hello in it, or what looks like one
}

var (
	errHelloShort = errors.New("it ends too early")
	errHelloLong  = errors.New("it is longer than any")
	errHelloKind  = errors.New("it is no ClientHello")
	errHelloTwice = errors.New("it has an extension twice")
	errHelloName  = errors.New("its list of names is not one host name")
)

// parseHello reads the ClientHello with which b begins, which may come in several
// records. more is true if b is the beginning of one.
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

// A reader takes fields from the front of a message. After one that is not there
// short is true and all others are empty.
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

// counted takes a field that begins with its length, a number of so many bytes.
func (r *reader) counted(size int) reader { return reader{b: r.take(r.number(size)), short: r.short} }

func readHello(b []byte) (h hello, err error) {
	r := reader{b: b}
	r.take(2 + 32) // version, random
	r.counted(1)   // session
	r.counted(2)   // ciphers
	r.counted(1)   // compressions
	if !r.short && len(r.b) == 0 {
		return h, nil // without extensions
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
