package gvisor

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	safetext "glasshouse/internal/text"
)

// gVisor sends each message as one datagram: a header and a protocol buffer. The header and
// field numbers are those of gVisor's pkg/sentry/seccheck (wire.go, points/*.proto) as of
// release 20240729. They are a stable interface, so later versions only add fields. The few
// fields needed are decoded here: gVisor's generated package would add its whole module as a
// dependency, and an allocation for every field.

// headerSize is the size of the first version of the header. A header contains its own size.
const headerSize = 8

// A kind is the type of a message.
type kind uint16

const (
	kindClone      kind = 2
	kindExec       kind = 3
	kindExitNotify kind = 4
	kindTaskExit   kind = 5
	kindRaw        kind = 6
	kindOpen       kind = 7
	kindClose      kind = 8
	kindRead       kind = 9
	kindConnect    kind = 10
	kindExecve     kind = 11
	kindChdir      kind = 13
	kindChroot     kind = 21
	kindBind       kind = 24
	kindAccept     kind = 25
	kindInotifyAdd kind = 31
	kindWrite      kind = 34
)

// A meaning is the content of a message field.
type meaning uint8

const (
	none meaning = iota
	number
	arg1
	arg2
	arg3
	arg4
	arg5
	arg6
	fdPath
	pathname
	address
	argument
	binaryPath
	status
	newThread
	newProcess
	newFlags
)

// fields defines the fields of each message by number. The first two fields of a call's
// message are its context and its result. The first field of any other message is its context.
var fields = map[kind][]meaning{
	kindClone:      {3: newThread, 4: newProcess, 6: newFlags},
	kindExec:       {2: binaryPath, 3: argument},
	kindExitNotify: {2: status},
	kindTaskExit:   {2: status},
	kindRaw:        {4: number, 5: arg1, 6: arg2, 7: arg3, 8: arg4, 9: arg5, 10: arg6},
	kindOpen:       {3: number, 5: fdPath, 6: pathname},
	kindClose:      {3: number, 5: fdPath},
	kindRead:       {3: number, 5: fdPath},
	kindWrite:      {3: number, 5: fdPath},
	kindConnect:    {3: number, 6: address},
	kindBind:       {3: number, 6: address},
	kindAccept:     {3: number, 6: address},
	kindExecve:     {3: number, 5: fdPath, 6: pathname, 7: argument},
	kindChdir:      {3: number, 5: fdPath, 6: pathname},
	kindChroot:     {3: number, 4: pathname},
	kindInotifyAdd: {3: number, 6: pathname},
}

// isCall reports whether messages of the kind describe a system call.
func (k kind) isCall() bool { return k >= kindRaw }

// A point is one message. Its byte slices refer to the datagram.
type point struct {
	kind     kind
	time     int64 // nanoseconds since the Unix epoch
	tid, pid int32
	uid, gid uint32
	cwd      []byte
	name     []byte // name of the thread

	nr     uint64
	args   [6]uint64
	exit   bool // the call returned: result or errno is set
	result int64
	errno  int64

	fdPath   []byte
	pathname []byte
	address  []byte
	binary   []byte
	argv     [][]byte

	status         int32 // wait status (wait(2))
	newTID, newPID int32
	newFlags       uint64
}

var errMalformed = errors.New("not a gVisor message")

// maxArgs and maxArgBytes bound the recorded arguments of a program. Longer ones are
// truncated.
const (
	maxArgs     = 4096
	maxArgBytes = 128 << 10
)

// maxText bounds other text. It is four times PATH_MAX, because paths of descriptors can be
// longer than PATH_MAX.
const maxText = 16 << 10

// header returns the kind of a datagram's message and the number of messages dropped so far in
// the session, modulo 1<<32.
func header(b []byte) (k kind, dropped uint32, payload []byte, err error) {
	if len(b) < headerSize {
		return 0, 0, nil, errMalformed
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < headerSize || size > len(b) {
		return 0, 0, nil, errMalformed
	}
	return kind(binary.NativeEndian.Uint16(b[2:])), binary.NativeEndian.Uint32(b[4:]), b[size:], nil
}

// parse decodes a message into p, which then refers to b. It ignores unknown fields and kinds.
func (p *point) parse(k kind, b []byte) error {
	*p = point{kind: k, argv: p.argv[:0]}
	meanings := fields[k]
	return each(b, func(n protowire.Number, v uint64, data []byte) error {
		switch {
		case n == 1:
			return p.context(data)
		case n == 2 && k.isCall():
			p.exit = true
			return p.returned(data)
		case int(n) < len(meanings):
			p.set(meanings[n], v, data)
		}
		return nil
	})
}

func (p *point) set(m meaning, v uint64, data []byte) {
	switch m {
	case number:
		p.nr = v
	case arg1, arg2, arg3, arg4, arg5, arg6:
		p.args[m-arg1] = v
	case fdPath:
		p.fdPath = short(data)
	case pathname:
		p.pathname = short(data)
	case address:
		p.address = short(data)
	case argument:
		if len(p.argv) <= maxArgs { // one more marks truncation
			p.argv = append(p.argv, data)
		}
	case binaryPath:
		p.binary = short(data)
	case status:
		p.status = int32(v)
	case newThread:
		p.newTID = int32(v)
	case newProcess:
		p.newPID = int32(v)
	case newFlags:
		p.newFlags = v
	}
}

// short returns the first maxText bytes of b without copying, cut at a character boundary.
func short(b []byte) []byte {
	if len(b) <= maxText {
		return b
	}
	// A character has at most utf8.UTFMax bytes, so only the bytes around the cut are
	// inspected.
	start := maxText - utf8.UTFMax
	around := string(b[start:min(len(b), maxText+utf8.UTFMax)])
	return b[:start+len(safetext.Prefix(around, utf8.UTFMax))]
}

func (p *point) context(b []byte) error {
	return each(b, func(n protowire.Number, v uint64, data []byte) error {
		switch n {
		case 1:
			p.time = int64(v)
		case 2:
			p.tid = int32(v)
		case 4:
			p.pid = int32(v)
		case 7:
			return p.credentials(data)
		case 8:
			p.cwd = short(data)
		case 9:
			p.name = short(data)
		}
		return nil
	})
}

func (p *point) credentials(b []byte) error {
	return each(b, func(n protowire.Number, v uint64, _ []byte) error {
		switch n {
		case 1:
			p.uid = uint32(v)
		case 4:
			p.gid = uint32(v)
		}
		return nil
	})
}

func (p *point) returned(b []byte) error {
	return each(b, func(n protowire.Number, v uint64, _ []byte) error {
		switch n {
		case 1:
			p.result = int64(v)
		case 2:
			p.errno = int64(v)
		}
		return nil
	})
}

// ret returns the result of the call as seen by the process.
func (p *point) ret() int64 {
	if p.errno != 0 {
		return -p.errno
	}
	return p.result
}

// each calls f for every field of a message, with the value of a number or the bytes of a
// length-delimited field.
func each(b []byte, f func(n protowire.Number, v uint64, data []byte) error) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errMalformed
		}
		b = b[size:]
		var v uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(n, typ, b)
		}
		if size < 0 {
			return errMalformed
		}
		b = b[size:]
		if err := f(n, v, data); err != nil {
			return err
		}
	}
	return nil
}

// handshake is the first message of both sides: the protocol version.
var handshake = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)

// checkHandshake rejects a peer with an unsupported version.
func checkHandshake(b []byte) error {
	var version uint64
	err := each(b, func(n protowire.Number, v uint64, _ []byte) error {
		if n == 1 {
			version = v
		}
		return nil
	})
	if err == nil && version < 1 {
		err = errMalformed
	}
	return err
}
