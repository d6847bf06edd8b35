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

// Limits of an entry.
const (
	MaxBody = 64 << 10 // bytes of its canonical body
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

// An Entry records one decision or action.
//
// Its Hash is the RFC 6962 leaf hash (the SHA-256 of a zero byte and the data) of the canonical
// JSON of all its other fields. The same hash therefore links the chain and is the leaf of the
// Merkle tree.
type Entry struct {
	Seq    int64     // 1 for the first entry, then consecutive
	Time   time.Time // when it was appended: UTC, whole milliseconds
	Kind   Kind
	Parent int64 // Seq of the entry that caused this one; 0 if none did

	Jail       id.Jail
	Session    string
	Run        string
	Capability string
	Agent      string // who acted: an agent, or an operator

	Body json.RawMessage // an object; its fields depend on Kind

	Prev Hash // the Hash of the previous entry; zero for the first
	Hash Hash
}

// MarshalJSON returns e in the export format.
func (e Entry) MarshalJSON() ([]byte, error) {
	line, _ := e.append(nil)
	return line, nil
}

// UnmarshalJSON parses an entry from JSON in any form. It checks that exactly the expected
// fields are present, but not that the hash is correct.
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

// append appends the canonical form of e to out, and returns the offset of its hash in out.
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

// seal sets the hash of e and returns e in the export format.
func (e *Entry) seal() []byte {
	line, at := e.append(nil)
	e.Hash = hashOf(line, at, nil)
	hex.Encode(line[at+len(hashAt):], e.Hash[:])
	return line
}

// hashOf hashes a line without its hash, which begins at at. room is a reusable buffer.
func hashOf(line []byte, at int, room *[]byte) Hash {
	var buf []byte
	if room != nil {
		buf = (*room)[:0]
	}
	buf = append(buf, 0) // RFC 6962, section 2.1: prefix of a leaf
	buf = append(buf, line[:at]...)
	buf = append(buf, line[at+hashLen:]...)
	if room != nil {
		*room = buf
	}
	return sha256.Sum256(buf)
}

// check returns fault.Invalid if e cannot be appended, and otherwise converts its body to the
// canonical form.
func (e *Entry) check() error {
	const op = "chain.Append"
	if !e.Kind.Known() {
		return fault.Fieldf(op, "kind", "%.80q is not a kind of entry", e.Kind)
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
	if len(e.Body) > 2*MaxBody { // reject without parsing
		return tooLarge(op, len(e.Body))
	}
	body, err := canonical(e.Body, 1)
	if err != nil {
		return fault.Fieldf(op, "body", "%w", err)
	}
	if body[0] != '{' {
		return fault.Fieldf(op, "body", "expected an object")
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
		Err:    fmt.Errorf("%d bytes exceed the maximum of %d", n, MaxBody),
		Remedy: "record a digest and store the content elsewhere",
	}
}

// checkName rejects names that databases, terminals or readers could interpret differently.
func checkName(s string) error {
	if len(s) > maxName {
		return fmt.Errorf("%d bytes exceed the maximum of %d", len(s), maxName)
	}
	if !utf8.ValidString(s) {
		return errors.New("the text is not UTF-8")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("the text contains a control character")
	}
	return nil
}

// ParseEntry parses an entry from a line in the export format. It checks that the line is
// canonical, but not that the hash is correct.
func ParseEntry(line []byte) (Entry, error) {
	var f fields
	if reason := f.parse(line); reason != "" {
		return Entry{}, fault.Newf(fault.Invalid, "chain.ParseEntry", "", "%s", reason)
	}
	return f.entry(), nil
}

// Check returns fault.Conflict if the hash of e does not match its content.
func (e *Entry) Check() error {
	c := *e
	c.seal()
	if c.Hash != e.Hash {
		return fault.Newf(fault.Conflict, "chain.Check", strconv.FormatInt(e.Seq, 10), "hash does not match the content")
	}
	return nil
}

// fields are the raw fields of a line.
type fields struct {
	agent, body, capability, jail, kind, run, session []byte
	seq, parent, ms                                   int64
	hash, prev                                        Hash
	at                                                int // offset of the hash
}

// parse splits a line into its fields. It returns the reason if the line is invalid, or "".
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
		return "trailing data"
	case f.seq == 0:
		return "sequence number is 0"
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

// A cursor reads a line of a known format. After the first error all reads fail.
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
		s.bad = fmt.Sprintf("byte %d: expected %s", s.i, literal)
		return false
	}
	s.i += len(literal)
	return true
}

// name reads a string in canonical form, which all readers interpret alike. It returns the
// string without its quotes.
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
				s.fail(before, "control character")
				return nil
			}
			break
		}
	}
	if len(raw) > 2*maxName {
		s.fail(before, "overlong name")
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
		s.fail(before, "no sequence number")
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

// lowerHex maps each lower-case hexadecimal digit to its value, and other bytes to 0xff.
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

// time reads a time in the only valid format and returns it as milliseconds since 1970.
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
	// time.Date normalizes values out of range to another day or month.
	if !digits || hour > 23 || minute > 59 || second > 59 || t.Day() != day || t.Month() != time.Month(month) {
		s.fail(before, "no time")
		return 0
	}
	s.i += len(timeForm)
	return t.UnixMilli()
}
