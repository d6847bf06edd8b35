package event

import "math/bits"

// AppendJSON appends e as one JSON object without a newline. It allocates only to grow dst and
// does not use reflection, because it must handle a million events per second.
func (e *Event) AppendJSON(dst []byte) []byte {
	// eventlog reads type, seq, ts and ns at the start of a line without parsing the rest. They
	// come first, in this order, in every event.
	b := e.appendType(dst)
	b = e.appendSeq(b)
	b = e.appendTS(b)
	b = e.appendNS(b)
	b = e.appendJail(b)
	switch {
	case e.Type == Syscall:
		b = e.appendWho(b)
		b = e.appendCall(b)
		b = e.appendArgs(b)
		b = e.appendResult(b)
	case e.Type == File:
		b = e.appendWho(b)
		b = e.appendFile(b)
	case e.Type == Net && e.PID != 0:
		b = e.appendWho(b)
		b = e.appendNet(b)
	default:
		b = e.appendOther(b)
	}
	return e.appendEnd(b)
}

func (e *Event) appendType(b []byte) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, e.Type.String()...)
	return append(b, '"')
}

// appendOther appends the fields of events without an acting thread.
func (e *Event) appendOther(b []byte) []byte {
	switch e.Type {
	case Net:
		return e.appendNet(b)
	case Proc:
		b = e.appendOp(b)
		b = e.appendWho(b)
		b = e.appendProc(b)
		if e.Op == OpExit {
			b = e.appendExit(b)
		}
		return b
	case Gap:
		return e.appendGap(b)
	case Usage:
		return e.appendUsage(b)
	case Lineage:
		return e.appendLineage(b)
	}
	return b
}

func (e *Event) appendEnd(b []byte) []byte {
	if e.Flags != 0 {
		b = appendFlags(b, e.Flags)
	}
	return append(b, '}')
}

func appendUints(b []byte, list []uint64) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendUint(b, v)
	}
	return append(b, ']')
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// hasBytes reports whether the number of bytes is meaningful for a file operation. For some
// operations zero is meaningful, too.
func hasBytes(e *Event) bool {
	return e.Bytes != 0 || e.Op == OpRead || e.Op == OpWrite || e.Op == OpTruncate || e.Op == OpAllocate
}

// parseFlag returns the flag with a name, or 0.
func parseFlag(s []byte) Flags {
	for i, name := range flagNames {
		if name == string(s) {
			return 1 << i
		}
	}
	return 0
}

func appendFlags(b []byte, f Flags) []byte {
	for ; f != 0; f &= f - 1 {
		i := bits.TrailingZeros16(uint16(f))
		if i >= len(flagNames) {
			break
		}
		b = append(b, ',', '"')
		b = append(b, flagNames[i]...)
		b = append(b, `":true`...)
	}
	return b
}
