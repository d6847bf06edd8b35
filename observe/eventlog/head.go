package eventlog

import (
	"bytes"

	"glasshouse/observe/event"
)

// A head holds the first fields of a line. They suffice to order and find lines, and are read
// without parsing the rest.
type head struct {
	typ event.Type
	seq uint64
	ts  int64
	ns  int64
}

// parseHead reads the head of a line in the format of event.AppendJSON. It rejects lines that
// were not written by a log or were damaged later.
func parseHead(line []byte) (h head, ok bool) {
	const begin = `{"type":"`
	// The shortest record consists of the braces, the field names and one digit each.
	if len(line) < 32 || string(line[:len(begin)]) != begin || line[len(line)-1] != '}' {
		return h, false
	}
	b := line[len(begin):]
	n := 0
	switch b[0] {
	case 's':
		h.typ, n = event.Syscall, len("syscall")
	case 'f':
		h.typ, n = event.File, len("file")
	case 'n':
		h.typ, n = event.Net, len("net")
	case 'p':
		h.typ, n = event.Proc, len("proc")
	case 'g':
		h.typ, n = event.Gap, len("gap")
	case 'l':
		h.typ, n = event.Lineage, len("lineage")
	case 'u':
		h.typ, n = event.Usage, len("usage")
	default:
		return h, false
	}
	if string(b[:n]) != h.typ.String() {
		return h, false
	}
	b, ok = after(b[n:], `","seq":`)
	if !ok {
		return h, false
	}
	seq, b, ok := digits(b)
	if !ok || seq == 0 {
		return h, false
	}
	h.seq = seq
	b, ok = after(b, `,"ts":`)
	if !ok {
		return h, false
	}
	h.ts, b, ok = integer(b)
	if !ok {
		return h, false
	}
	if rest, has := after(b, `,"ns":`); has {
		h.ns, b, ok = integer(rest)
		if !ok {
			return h, false
		}
	}
	// After a power failure a file may contain zeros in place of the text.
	return h, len(b) > 0 && (b[0] == ',' || b[0] == '}') && bytes.IndexByte(b, 0) < 0
}

func after(b []byte, s string) ([]byte, bool) {
	if len(b) < len(s) || string(b[:len(s)]) != s {
		return b, false
	}
	return b[len(s):], true
}

func digits(b []byte) (v uint64, rest []byte, ok bool) {
	// 19 digits fit in 64 bits, so v does not wrap.
	i := 0
	for ; i < len(b) && i < 19 && b[i]-'0' <= 9; i++ {
		v = v*10 + uint64(b[i]-'0')
	}
	return v, b[i:], i > 0
}

func integer(b []byte) (v int64, rest []byte, ok bool) {
	minus := len(b) > 0 && b[0] == '-'
	if minus {
		b = b[1:]
	}
	u, rest, ok := digits(b)
	if u > 1<<63-1 {
		return 0, rest, false
	}
	if minus {
		return -int64(u), rest, ok
	}
	return int64(u), rest, ok
}
