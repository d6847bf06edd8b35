package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"glasshouse/internal/text"
	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// eventLine formats an event as one line: time, process, action. Text from the jail is escaped,
// so that it cannot control the terminal.
func eventLine(out screen, e *event.Event) string {
	when := out.paint(faint, time.UnixMilli(e.TS).Local().Format("15:04:05.000"))
	who := fmt.Sprintf("%6s %-15s", "-", "-")
	if e.PID != 0 {
		who = fmt.Sprintf("%6d %-15s", e.PID, text.Visible(e.Comm))
	}
	return when + " " + who + "  " + eventWhat(out, e) + eventFlags(out, e.Flags)
}

func eventWhat(out screen, e *event.Event) string {
	switch e.Type {
	case event.Syscall:
		return callLine(out, e)
	case event.File:
		return fileLine(out, e)
	case event.Net:
		return netLine(out, e)
	case event.Proc:
		return procLine(out, e)
	case event.Gap:
		n := "an unknown number of"
		if e.Lost >= 0 {
			n = strconv.FormatInt(e.Lost, 10)
		}
		return out.paint(yellow, fmt.Sprintf("-- %s %v events are missing here: %s", n, e.Source, text.Visible(e.Reason)))
	case event.Usage:
		return out.paint(faint, fmt.Sprintf("uses: cpu %v, memory %s, %s, disk %s, received %s, sent %s",
			time.Duration(e.CPU).Round(time.Millisecond), size(e.Memory), counted(e.PIDs, "process", "processes"), size(e.Disk), size(e.Rx), size(e.Tx)))
	case event.Lineage:
		return out.paint(bold, text.Visible(e.Op)) + fmt.Sprintf(" %s of %s at %d", text.Visible(string(e.Snapshot)), text.Visible(string(e.Parent)), e.ParentSeq)
	}
	return "?"
}

func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func eventFlags(out screen, f event.Flags) string {
	names := f.Names()
	if len(names) == 0 {
		return ""
	}
	return " " + out.paint(yellow, "["+strings.Join(names, " ")+"]")
}

// callLine formats a system call as strace does. The event does not contain the number of
// arguments, so trailing zero arguments without a known meaning are omitted.
func callLine(out screen, e *event.Event) string {
	var b strings.Builder
	name := text.Visible(e.Name)
	if e.ABI != "" {
		name += "/" + text.Visible(e.ABI)
	}
	b.WriteString(out.paint(bold, name) + "(" + strings.Join(callArgs(e), ", ") + ")")
	if e.Real != "" {
		b.WriteString(" -> " + quote(e.Real))
	}
	switch {
	case e.Flags&event.Unfinished != 0:
		b.WriteString(" = ?")
	case e.Ret < 0 && e.Ret >= -4095:
		word := event.ErrnoName(e.Ret)
		if word == "" {
			word = strconv.FormatInt(e.Ret, 10)
		}
		b.WriteString(" = " + out.paint(red, word))
	default:
		b.WriteString(" = " + number(uint64(e.Ret)))
	}
	if e.Dur > 0 && e.Flags&event.Partial == 0 {
		b.WriteString(" " + out.paint(faint, "<"+short(time.Duration(e.Dur))+">"))
	}
	return b.String()
}

func callArgs(e *event.Event) []string {
	shape := syscalls.Shapes[e.Name]
	texts := map[int8]string{}
	last := 0
	put := func(at int8, text string) {
		if at > 0 && int(at) <= len(e.Args) {
			texts[at] = text
			last = max(last, int(at))
		}
	}
	for _, fd := range []int8{shape.Dir, shape.ToDir, shape.FD, shape.FD2} {
		if fd > 0 {
			put(fd, descriptor(e.Args[fd-1]))
		}
	}
	left := []string{} // texts without an argument position
	for _, a := range []struct {
		at   int8
		text string
	}{{shape.Path, e.Path}, {shape.To, e.To}, {shape.Addr, e.Addr}} {
		switch {
		case a.text == "":
		case a.at > 0:
			put(a.at, quote(a.text))
		default:
			left = append(left, quote(a.text))
		}
	}
	for i, v := range e.Args {
		if v != 0 {
			last = max(last, i+1)
		}
	}
	args := make([]string, 0, last+len(left))
	for i := range last {
		if text, ok := texts[int8(i+1)]; ok {
			args = append(args, text)
		} else {
			args = append(args, number(e.Args[i]))
		}
	}
	return append(args, left...)
}

// descriptor reads an argument as the kernel does: a descriptor is the lower 32 bits, as an int.
func descriptor(v uint64) string {
	const atCwd = -100
	if fd := int32(uint32(v)); fd != atCwd {
		return strconv.Itoa(int(fd))
	}
	return "AT_FDCWD"
}

// number formats an argument or a result: small numbers in decimal, others in hexadecimal
// because they are mostly addresses and flags.
func number(v uint64) string {
	switch n := int64(v); {
	case n < 0 && n >= -4095:
		return strconv.FormatInt(n, 10)
	case v < 1<<31:
		return strconv.FormatUint(v, 10)
	}
	return "0x" + strconv.FormatUint(v, 16)
}

// maxQuoted is the number of bytes of a string from the jail that a line shows; --json shows all
// of it.
const maxQuoted = 256

func quote(s string) string {
	rest := ""
	if len(s) > maxQuoted {
		s, rest = text.Prefix(s, maxQuoted), "…"
	}
	return `"` + strings.ReplaceAll(text.Visible(s), `"`, `\"`) + `"` + rest
}

// short formats a duration with three digits at most.
func short(d time.Duration) string {
	for _, unit := range []time.Duration{time.Hour, time.Minute, time.Second, time.Millisecond, time.Microsecond} {
		if d >= 100*unit {
			return d.Round(unit).String()
		}
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

func fileLine(out screen, e *event.Event) string {
	var b strings.Builder
	b.WriteString(out.paint(green, text.Visible(e.Op)) + " " + quote(e.Path))
	if e.To != "" {
		b.WriteString(" -> " + quote(e.To))
	}
	if e.Bytes != 0 || e.Op == event.OpRead || e.Op == event.OpWrite {
		b.WriteString(" " + counted(e.Bytes, "byte", "bytes"))
	}
	if e.Ret < 0 {
		b.WriteString(" = " + out.paint(red, event.ErrnoName(e.Ret)))
	}
	return b.String()
}

var arrows = map[string]string{event.Egress: "->", event.Ingress: "<-", event.Loopback: "~>"}

// netLine shows the jail's side on the left, regardless of the direction.
func netLine(out screen, e *event.Event) string {
	here, there := e.Src, e.Dst
	if e.Dir == event.Ingress {
		here, there = there, here
	}
	arrow := arrows[e.Dir]
	if arrow == "" {
		arrow = "--"
	}
	var b strings.Builder
	b.WriteString(out.paint(blue, text.Visible(e.Proto)) + " " + text.Visible(here) + " " + arrow + " " + text.Visible(there))
	if e.Host != "" {
		b.WriteString(" (" + text.Visible(e.Host) + ")")
	}
	b.WriteString(" " + counted(e.Bytes, "byte", "bytes"))
	if e.Packets > 0 {
		b.WriteString(" in " + counted(e.Packets, "packet", "packets"))
	}
	if e.TCP != "" {
		b.WriteString(" " + text.Visible(e.TCP))
	}
	return b.String()
}

func procLine(out screen, e *event.Event) string {
	name := out.paint(cyan, text.Visible(e.Op))
	switch e.Op {
	case event.OpExec:
		line := name + " " + quote(e.Exe)
		for i, a := range e.Argv {
			if i == 16 {
				return line + fmt.Sprintf(" … %d more", len(e.Argv)-i)
			}
			line += " " + quote(a)
		}
		return line
	case event.OpExit:
		how := out.paint(statusStyle(e.Code != 0), fmt.Sprintf("%d", e.Code))
		if e.Signal != "" {
			how = out.paint(red, "by "+text.Visible(e.Signal))
		}
		return fmt.Sprintf("%s %s, user %s, system %s", name, how, short(time.Duration(e.UserNS)), short(time.Duration(e.SystemNS)))
	}
	return fmt.Sprintf("%s by %d", name, e.PPID)
}

func statusStyle(bad bool) style {
	if bad {
		return red
	}
	return faint
}
