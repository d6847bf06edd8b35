package event

import "slices"

// An Encoder encodes events like AppendJSON. It caches the encoding of parts that rarely
// change between events: the time, the thread, the call and its arguments. The zero value is
// ready to use. It is not safe for concurrent use, and it retains strings of encoded events.
type Encoder struct {
	ts    int64
	time  text
	who   [16]whoText  // by TID
	calls [64]callText // by NR
}

// Append appends e exactly like AppendJSON.
func (c *Encoder) Append(dst []byte, e *Event) []byte {
	b := e.appendType(dst)
	b = e.appendSeq(b)
	if c.time.n == 0 || c.ts != e.TS {
		from := len(b)
		b = e.appendTS(b)
		c.ts = e.TS
		c.time.keep(b[from:])
	} else {
		b = c.time.append(b)
	}
	b = e.appendNS(b)
	// appendWho also writes the jail, which precedes the thread and is cached with it.
	switch {
	case e.Type == Syscall:
		b = c.appendWho(b, e)
		b = c.appendCall(b, e)
		b = e.appendResult(b)
	case e.Type == File:
		b = c.appendWho(b, e)
		b = e.appendFile(b)
	case e.Type == Net && e.PID != 0:
		b = c.appendWho(b, e)
		b = e.appendNet(b)
	default:
		b = e.appendJail(b)
		b = e.appendOther(b)
	}
	return e.appendEnd(b)
}

// remembered is the maximum length of a cached text. A text is copied as a fixed-size array,
// which is faster than copying its exact length.
const remembered = 128

type text struct {
	n int // 0 if empty
	b [remembered]byte
}

// keep caches b unless it is too long.
func (t *text) keep(b []byte) {
	t.n = 0
	if len(b) <= remembered {
		t.n = copy(t.b[:], b)
	}
}

func (t *text) append(b []byte) []byte {
	at := len(b)
	if cap(b)-at < remembered {
		b = slices.Grow(b, remembered)
	}
	*(*[remembered]byte)(b[at : at+remembered]) = t.b
	return b[:at+t.n]
}

// A whoText is the last encoding of a thread and its jail.
type whoText struct {
	pid, tid, hostPID int32
	comm, jail        string
	text              text
}

func (c *Encoder) appendWho(b []byte, e *Event) []byte {
	w := &c.who[uint32(e.TID)%uint32(len(c.who))]
	if w.tid == e.TID && w.pid == e.PID && w.hostPID == e.HostPID && w.comm == e.Comm && w.jail == string(e.Jail) && w.text.n > 0 {
		return w.text.append(b)
	}
	from := len(b)
	b = e.appendJail(b)
	b = e.appendWho(b)
	w.pid, w.tid, w.hostPID, w.comm, w.jail = e.PID, e.TID, e.HostPID, e.Comm, string(e.Jail)
	w.text.keep(b[from:])
	return b
}

// A callText is the last encoding of a system call. It includes the arguments if they were
// equal twice, as in a loop. Arguments that change each time are not worth caching.
type callText struct {
	nr        int32
	named     int // bytes of text before the arguments; 0 if empty
	name, abi string
	args      [6]uint64
	text      text
}

func (c *Encoder) appendCall(b []byte, e *Event) []byte {
	k := &c.calls[uint32(e.NR)%uint32(len(c.calls))]
	from := len(b)
	if k.named == 0 || k.nr != e.NR || k.name != e.Name || k.abi != e.ABI {
		b = e.appendCall(b)
		k.nr, k.name, k.abi, k.args = e.NR, e.Name, e.ABI, e.Args
		k.text.keep(b[from:])
		k.named = k.text.n
		return e.appendArgs(b)
	}
	if k.args == e.Args && k.text.n > k.named {
		return k.text.append(b)
	}
	again := k.args == e.Args
	k.args, k.text.n = e.Args, k.named
	b = k.text.append(b)
	b = e.appendArgs(b)
	if again && len(b)-from <= remembered {
		k.text.keep(b[from:])
	}
	return b
}
