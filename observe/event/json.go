package event

import "math/bits"

// AppendJSON appends e as one JSON object without a newline. It allocates only to grow dst and
// does not use reflection, because it must handle a million events per second.
func (e *Event) AppendJSON(dst []byte) []byte {
	b := e.appendSeq(dst)
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

func (e *Event) appendSeq(b []byte) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, e.Type.String()...)
	b = append(b, `","seq":`...)
	return appendUint(b, e.Seq)
}

func (e *Event) appendTS(b []byte) []byte {
	b = append(b, `,"ts":`...)
	return appendInt(b, e.TS)
}

func (e *Event) appendNS(b []byte) []byte { return optionalInt(b, `,"ns":`, e.NS) }

func (e *Event) appendJail(b []byte) []byte {
	b = append(b, `,"jail":`...)
	return appendString(b, string(e.Jail))
}

func (e *Event) appendWho(b []byte) []byte {
	b = append(b, `,"pid":`...)
	b = appendInt(b, int64(e.PID))
	b = append(b, `,"tid":`...)
	b = appendInt(b, int64(e.TID))
	b = append(b, `,"host_pid":`...)
	b = appendInt(b, int64(e.HostPID))
	b = append(b, `,"comm":`...)
	return appendString(b, e.Comm)
}

// appendOther appends the fields of events without an acting thread.
func (e *Event) appendOther(b []byte) []byte {
	switch e.Type {
	case Net:
		return e.appendNet(b)
	case Proc:
		return e.appendProc(b)
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

func (e *Event) appendCall(b []byte) []byte {
	b = append(b, `,"nr":`...)
	b = appendInt(b, int64(e.NR))
	b = append(b, `,"name":`...)
	b = appendString(b, e.Name)
	return optional(b, `,"abi":`, e.ABI)
}

func (e *Event) appendArgs(b []byte) []byte {
	b = append(b, `,"args":[`...)
	for i, a := range e.Args {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendUint(b, a)
	}
	return append(b, ']')
}

func (e *Event) appendResult(b []byte) []byte {
	if e.Flags&Unfinished == 0 {
		b = append(b, `,"ret":`...)
		b = appendInt(b, e.Ret)
	}
	if e.Flags&Partial == 0 {
		b = append(b, `,"dur_ns":`...)
		b = appendInt(b, e.Dur)
	}
	b = optional(b, `,"path":`, e.Path)
	b = optional(b, `,"to":`, e.To)
	b = optional(b, `,"real":`, e.Real)
	return optional(b, `,"addr":`, e.Addr)
}

func (e *Event) appendFile(b []byte) []byte {
	b = append(b, `,"op":`...)
	b = appendString(b, e.Op)
	b = append(b, `,"path":`...)
	b = appendString(b, e.Path)
	b = optional(b, `,"to":`, e.To)
	if tellsBytes(e) {
		b = append(b, `,"bytes":`...)
		b = appendInt(b, e.Bytes)
	}
	b = optionalInt(b, `,"calls":`, e.Calls)
	if e.FD >= 0 {
		b = append(b, `,"fd":`...)
		b = appendInt(b, int64(e.FD))
	}
	if e.Ret < 0 {
		b = append(b, `,"ret":`...)
		b = appendInt(b, e.Ret)
	}
	return b
}

// tellsBytes reports whether the number of bytes is meaningful for a file operation. For some
// operations zero is meaningful, too.
func tellsBytes(e *Event) bool {
	return e.Bytes != 0 || e.Op == OpRead || e.Op == OpWrite || e.Op == OpTruncate || e.Op == OpAllocate
}

func (e *Event) appendNet(b []byte) []byte {
	b = append(b, `,"dir":`...)
	b = appendString(b, e.Dir)
	b = append(b, `,"proto":`...)
	b = appendString(b, e.Proto)
	b = append(b, `,"src":`...)
	b = appendString(b, e.Src)
	b = append(b, `,"dst":`...)
	b = appendString(b, e.Dst)
	b = append(b, `,"bytes":`...)
	b = appendInt(b, e.Bytes)
	b = optional(b, `,"host":`, e.Host)
	b = optional(b, `,"iface":`, e.Iface)
	b = optional(b, `,"tcp":`, e.TCP)
	b = optionalInt(b, `,"packets":`, e.Packets)
	return optionalInt(b, `,"begin":`, e.Begin)
}

func (e *Event) appendProc(b []byte) []byte {
	b = append(b, `,"op":`...)
	b = appendString(b, e.Op)
	b = e.appendWho(b)
	b = append(b, `,"ppid":`...)
	b = appendInt(b, int64(e.PPID))
	b = append(b, `,"uid":`...)
	b = appendUint(b, uint64(e.UID))
	b = append(b, `,"gid":`...)
	b = appendUint(b, uint64(e.GID))
	b = optional(b, `,"exe":`, e.Exe)
	if e.Argv != nil {
		b = append(b, `,"argv":[`...)
		for i, a := range e.Argv {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, a)
		}
		b = append(b, ']')
	}
	b = optional(b, `,"cwd":`, e.Cwd)
	b = optionalInt(b, `,"begin":`, e.Begin)
	if e.Op != OpExit {
		return b
	}
	if e.Signal != "" {
		b = optional(b, `,"signal":`, e.Signal)
	} else {
		b = append(b, `,"exit_code":`...)
		b = appendInt(b, int64(e.Code))
	}
	b = append(b, `,"user_ns":`...)
	b = appendInt(b, e.UserNS)
	b = append(b, `,"system_ns":`...)
	b = appendInt(b, e.SystemNS)
	return optionalInt(b, `,"rss":`, e.RSS)
}

func (e *Event) appendGap(b []byte) []byte {
	b = append(b, `,"source":"`...)
	b = append(b, e.Source.String()...)
	b = append(b, `","lost":`...)
	b = appendInt(b, e.Lost)
	b = append(b, `,"reason":`...)
	b = appendString(b, e.Reason)
	if e.From != 0 {
		b = append(b, `,"from":`...)
		b = appendUint(b, e.From)
	}
	if e.Through != 0 {
		b = append(b, `,"through":`...)
		b = appendUint(b, e.Through)
	}
	return b
}

func (e *Event) appendUsage(b []byte) []byte {
	for _, f := range [...]struct {
		name string
		v    int64
	}{
		{`,"cpu_ns":`, e.CPU}, {`,"memory_bytes":`, e.Memory}, {`,"pids":`, e.PIDs},
		{`,"disk_bytes":`, e.Disk}, {`,"rx_bytes":`, e.Rx}, {`,"tx_bytes":`, e.Tx},
	} {
		b = append(b, f.name...)
		b = appendInt(b, f.v)
	}
	return b
}

func (e *Event) appendLineage(b []byte) []byte {
	b = append(b, `,"op":`...)
	b = appendString(b, e.Op)
	b = append(b, `,"snapshot":`...)
	b = appendString(b, string(e.Snapshot))
	b = append(b, `,"parent":`...)
	b = appendString(b, string(e.Parent))
	b = append(b, `,"parent_seq":`...)
	return appendUint(b, e.ParentSeq)
}

var flagNames = [...]string{"denied", "unfinished", "partial", "child", "cut", "raced", "injected", "unresolved", "existing", "thread", "read_only"}

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

func optional(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	return appendString(append(b, name...), s)
}

func optionalInt(b []byte, name string, v int64) []byte {
	if v == 0 {
		return b
	}
	return appendInt(append(b, name...), v)
}
