package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
)

// What an entry may hold.
const (
	MaxBody = 64 << 10 // bytes of its body, written canonically
	maxName = 256      // bytes of each of its names
	maxSeq  = 1<<53 - 1
)

// A Hash is a SHA-256 digest. As text it is 64 hexadecimal digits.
type Hash [sha256.Size]byte

func (h Hash) String() string               { return hex.EncodeToString(h[:]) }
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

func (h *Hash) UnmarshalText(text []byte) error {
	if !parseHash(h, text) {
		return fault.Newf(fault.Invalid, "chain.Hash", "", "%.80q is not 64 hexadecimal digits", text)
	}
	return nil
}

// An Entry is one thing that was decided or done.
//
// Its Hash is the RFC 6962 leaf hash, SHA-256 of a zero byte and what follows, of
// the canonical JSON of all its other fields. So the entries' hashes are at the
// same time the links of the chain and the leaves of the tree.
type Entry struct {
	Seq    int64     // 1 for the first, and one more for each
	Time   time.Time // when it was appended: UTC, whole milliseconds
	Kind   Kind
	Parent int64 // Seq of the entry that caused this one; 0 if none did

	Jail       id.Jail
	Session    string
	Run        string
	Capability string
	Agent      string // who acted: an agent, or an operator

	Body json.RawMessage // an object; what it says depends on Kind

	Prev Hash // the Hash of the entry before; zero for the first
	Hash Hash
}

// MarshalJSON writes e as it is exported.
func (e Entry) MarshalJSON() ([]byte, error) {
	line, _ := e.append(nil)
	return line, nil
}

// UnmarshalJSON reads an entry however its JSON is written. That it has every
// field, and no other, is checked; that its hash is right is not.
func (e *Entry) UnmarshalJSON(data []byte) error {
	line, err := Canonical(data)
	if err != nil {
		return err
	}
	*e, err = ParseEntry(line)
	return err
}

const (
	timeForm = "2006-01-02T15:04:05.000Z"
	hashAt   = `"hash":"`
	hashLen  = len(hashAt) + 2*sha256.Size + len(`",`)
)

// append writes e canonically, and returns where in out its hash begins.
// e.Body must be canonical, and its names checked.
func (e *Entry) append(out []byte) (line []byte, at int) {
	body := []byte(e.Body)
	if len(body) == 0 {
		body = []byte("{}")
	}
	out = append(out, `{"agent":`...)
	out = appendString(out, e.Agent)
	out = append(append(out, `,"body":`...), body...)
	out = append(out, `,"capability":`...)
	out = append(appendString(out, e.Capability), ',')
	at = len(out)
	out = append(out, hashAt...)
	out = hex.AppendEncode(out, e.Hash[:])
	out = append(out, `","jail":`...)
	out = appendString(out, string(e.Jail))
	out = append(out, `,"kind":`...)
	out = appendString(out, string(e.Kind))
	out = append(out, `,"parent":`...)
	out = strconv.AppendInt(out, e.Parent, 10)
	out = append(out, `,"prev":"`...)
	out = hex.AppendEncode(out, e.Prev[:])
	out = append(out, `","run":`...)
	out = appendString(out, e.Run)
	out = append(out, `,"seq":`...)
	out = strconv.AppendInt(out, e.Seq, 10)
	out = append(out, `,"session":`...)
	out = appendString(out, e.Session)
	out = append(out, `,"time":"`...)
	out = e.Time.UTC().AppendFormat(out, timeForm)
	return append(out, `"}`...), at
}

// seal gives e its hash, and returns it as it is exported.
func (e *Entry) seal() []byte {
	line, at := e.append(nil)
	e.Hash = hashOf(line, at, nil)
	hex.Encode(line[at+len(hashAt):], e.Hash[:])
	return line
}

// hashOf hashes a line but for its hash, which begins at at. room is reused.
func hashOf(line []byte, at int, room *[]byte) Hash {
	var buf []byte
	if room != nil {
		buf = (*room)[:0]
	}
	buf = append(buf, 0) // RFC 6962, section 2.1: a leaf
	buf = append(buf, line[:at]...)
	buf = append(buf, line[at+hashLen:]...)
	if room != nil {
		*room = buf
	}
	return sha256.Sum256(buf)
}

// check returns an Invalid error if e cannot be appended, and makes its body
// canonical.
func (e *Entry) check() error {
	const op = "chain.Append"
	if !e.Kind.Known() {
		return fault.Fieldf(op, "kind", "%.80q is no kind of entry", e.Kind)
	}
	for _, n := range []struct{ field, value string }{
		{"jail", string(e.Jail)}, {"session", e.Session}, {"run", e.Run}, {"capability", e.Capability}, {"agent", e.Agent},
	} {
		if err := checkName(n.value); err != nil {
			return fault.Fieldf(op, n.field, "%w", err)
		}
	}
	if len(e.Body) == 0 {
		e.Body = json.RawMessage("{}")
		return nil
	}
	if len(e.Body) > 2*MaxBody { // do not even look at it
		return tooLarge(op, len(e.Body))
	}
	body, err := canonical(e.Body, 1)
	if err != nil {
		return fault.Fieldf(op, "body", "%w", err)
	}
	if body[0] != '{' {
		return fault.Fieldf(op, "body", "want an object")
	}
	if len(body) > MaxBody {
		return tooLarge(op, len(body))
	}
	e.Body = body
	return nil
}

func tooLarge(op string, n int) error {
	return &fault.Error{
		Op: op, Kind: fault.TooLarge, Field: "body",
		Err:    fmt.Errorf("%d bytes are more than %d", n, MaxBody),
		Remedy: "record a digest, and keep the content elsewhere",
	}
}

// checkName keeps out of names what databases, terminals and readers take
// differently.
func checkName(s string) error {
	if len(s) > maxName {
		return fmt.Errorf("%d bytes are more than %d", len(s), maxName)
	}
	if !utf8.ValidString(s) {
		return errors.New("not UTF-8")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("a control character")
	}
	return nil
}

// ParseEntry reads an entry from a line as it is exported. It checks that the
// line is written in the one way there is; that the hash is right it does not.
func ParseEntry(line []byte) (Entry, error) {
	var f fields
	if reason := f.parse(line); reason != "" {
		return Entry{}, fault.Newf(fault.Invalid, "chain.ParseEntry", "", "%s", reason)
	}
	return f.entry(), nil
}

// Check reports whether e's hash is that of its content.
func (e *Entry) Check() error {
	c := *e
	if c.seal(); c.Hash != e.Hash {
		return fault.Newf(fault.Conflict, "chain.Check", strconv.FormatInt(e.Seq, 10), "the hash is not that of the content")
	}
	return nil
}

// fields are the parts of a line, as they are written there.
type fields struct {
	agent, body, capability, jail, kind, run, session []byte
	seq, parent, ms                                   int64
	hash, prev                                        Hash
	at                                                int // where the hash is
}

// parse takes a line apart. It returns what is wrong with it, or "".
func (f *fields) parse(line []byte) (reason string) {
	s := cursor{b: line}
	f.agent = s.name(`{"agent":`)
	f.body = s.object(`,"body":`)
	f.capability = s.name(`,"capability":`)
	f.at = s.i + 1
	s.hash(`,"hash":"`, &f.hash)
	f.jail = s.name(`","jail":`)
	f.kind = s.name(`,"kind":`)
	f.parent = s.integer(`,"parent":`)
	s.hash(`,"prev":"`, &f.prev)
	f.run = s.name(`","run":`)
	f.seq = s.integer(`,"seq":`)
	f.session = s.name(`,"session":`)
	f.ms = s.time(`,"time":"`)
	s.skip(`"}`)
	switch {
	case s.bad != "":
		return s.bad
	case s.i != len(line):
		return "there is more behind its end"
	case f.seq == 0:
		return "its number is 0"
	}
	return ""
}

func (f *fields) entry() Entry {
	return Entry{
		Seq: f.seq, Time: time.UnixMilli(f.ms).UTC(), Kind: Kind(unquote(f.kind)), Parent: f.parent,
		Jail: id.Jail(unquote(f.jail)), Session: unquote(f.session), Run: unquote(f.run),
		Capability: unquote(f.capability), Agent: unquote(f.agent),
		Body: json.RawMessage(string(f.body)), Prev: f.prev, Hash: f.hash,
	}
}

// A cursor reads a line of known form. After the first thing that is wrong it
// reads nothing more.
type cursor struct {
	b   []byte
	i   int
	bad string
}

func (s *cursor) fail(before, what string) {
	if s.bad == "" {
		s.bad = fmt.Sprintf("byte %d: %s after %s", s.i, what, before)
	}
}

func (s *cursor) skip(literal string) bool {
	if s.bad != "" {
		return false
	}
	if len(s.b)-s.i < len(literal) || string(s.b[s.i:s.i+len(literal)]) != literal {
		s.bad = fmt.Sprintf("byte %d: want %s", s.i, literal)
		return false
	}
	s.i += len(literal)
	return true
}

// name reads a string of which the chain is sure that every reader takes it
// alike. It returns it without its quotes.
func (s *cursor) name(before string) []byte {
	if !s.skip(before) {
		return nil
	}
	end := scanString(s.b, s.i)
	if end < 0 {
		s.fail(before, "no canonical string")
		return nil
	}
	raw := s.b[s.i+1 : end-1]
	for _, c := range raw {
		if c == '\\' || c == 0x7f {
			if checkName(unquote(raw)) != nil {
				s.fail(before, "a control character")
				return nil
			}
			break
		}
	}
	if len(raw) > 2*maxName {
		s.fail(before, "too long a name")
	}
	s.i = end
	return raw
}

func (s *cursor) object(before string) []byte {
	if !s.skip(before) {
		return nil
	}
	end := -1
	if s.i < len(s.b) && s.b[s.i] == '{' {
		end = scanValue(s.b, s.i, 1)
	}
	if end < 0 || end-s.i > MaxBody {
		s.fail(before, "no canonical object")
		return nil
	}
	raw := s.b[s.i:end]
	s.i = end
	return raw
}

func (s *cursor) integer(before string) int64 {
	if !s.skip(before) {
		return 0
	}
	start := s.i
	var n int64
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' && n <= maxSeq {
		n = n*10 + int64(s.b[s.i]-'0')
		s.i++
	}
	if s.i == start || s.b[start] == '0' && s.i > start+1 || n > maxSeq {
		s.fail(before, "no number of an entry")
	}
	return n
}

func (s *cursor) hash(before string, h *Hash) {
	if !s.skip(before) {
		return
	}
	if len(s.b)-s.i < 2*len(h) || !parseHash(h, s.b[s.i:s.i+2*len(h)]) {
		s.fail(before, "no hash")
		return
	}
	s.i += 2 * len(h)
}

// lowerHex is the value of each lower-case hexadecimal digit, 0xff for the rest.
var lowerHex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for v, c := range []byte(hexDigits) {
		t[c] = byte(v)
	}
	return t
}()

func parseHash(h *Hash, text []byte) bool {
	if len(text) != 2*len(h) {
		return false
	}
	for i := range h {
		hi, lo := lowerHex[text[2*i]], lowerHex[text[2*i+1]]
		if hi|lo > 0xf {
			return false
		}
		h[i] = hi<<4 | lo
	}
	return true
}

// time reads a time in the one form there is, as milliseconds since 1970.
func (s *cursor) time(before string) int64 {
	if !s.skip(before) {
		return 0
	}
	if len(s.b)-s.i < len(timeForm) {
		s.fail(before, "no time")
		return 0
	}
	text := s.b[s.i : s.i+len(timeForm)]
	digits := true
	n := func(from, to int, after byte) (v int) {
		for _, c := range text[from:to] {
			digits = digits && c >= '0' && c <= '9'
			v = v*10 + int(c-'0')
		}
		digits = digits && text[to] == after
		return v
	}
	year, month, day := n(0, 4, '-'), n(5, 7, '-'), n(8, 10, 'T')
	hour, minute, second, ms := n(11, 13, ':'), n(14, 16, ':'), n(17, 19, '.'), n(20, 23, 'Z')
	t := time.Date(year, time.Month(month), day, hour, minute, second, ms*1e6, time.UTC)
	// What is out of range, Date makes another day or month of.
	if !digits || hour > 23 || minute > 59 || second > 59 || t.Day() != day || t.Month() != time.Month(month) {
		s.fail(before, "no time")
		return 0
	}
	s.i += len(timeForm)
	return t.UnixMilli()
}
