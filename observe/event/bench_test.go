package event_test

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"

	"glasshouse/observe/event"
)

// typical is a typical system call with a descriptor, an address and numbers.
var typical = event.Event{
	Type: event.Syscall, Seq: 1_234_567, TS: 1_706_000_000_123, NS: 81_234_567_890_123, Jail: "j-3f2akm9x7qpw",
	PID: 42, TID: 42, HostPID: 31_337, Comm: "python3", NR: 1, Name: "write",
	Args: [6]uint64{1, 140_234_567_890_123, 128, 0, 140_737_488_344_064, 8}, Ret: 128, Dur: 1234, FD: -1,
}

var withPath = func() event.Event {
	e := typical
	e.NR, e.Name, e.Ret = 257, "openat", 3
	e.Args = [6]uint64{18446744073709551516, 140_234_567_890_123, 524288, 0, 0, 0}
	e.Path = "/usr/lib/python3.11/site-packages/requests/__init__.py"
	return e
}()

var packet = event.Event{
	Type: event.Net, Seq: 1_234_568, TS: 1_706_000_000_123, NS: 81_234_567_890_999, Jail: "j-3f2akm9x7qpw", FD: -1,
	PID: 42, TID: 42, HostPID: 31_337, Comm: "python3",
	Dir: event.Egress, Proto: "tcp", Src: "10.0.0.2:54321", Dst: "93.184.216.34:443", Host: "example.com", Iface: "eth0", TCP: "ACK,PSH", Bytes: 1514,
}

var cases = []struct {
	name string
	e    *event.Event
}{{"syscall", &typical}, {"openat", &withPath}, {"packet", &packet}, {"exec", &began}}

// calls contains many different calls, so that neither branch prediction nor caches favour a
// single one.
var calls = func() []event.Event {
	r := rand.New(rand.NewPCG(1, 1))
	names := []string{"read", "write", "mmap", "epoll_wait", "futex", "newfstatat", "close", "recvfrom"}
	comms := []string{"python3", "node", "git", "bash", "cc1plus", "ThreadPoolForeg"}
	list := make([]event.Event, 2048)
	for i := range list {
		e := typical
		e.Seq += uint64(i)
		e.NS += int64(i) * r.Int64N(100_000)
		e.TS += int64(i) / 8
		e.PID = r.Int32N(1000)
		e.TID = e.PID + r.Int32N(2)
		e.HostPID = 30_000 + e.TID
		e.Comm, e.NR, e.Name = comms[r.IntN(len(comms))], r.Int32N(330), names[r.IntN(len(names))]
		for j := range e.Args {
			e.Args[j] = []uint64{0, r.Uint64N(16), r.Uint64N(1 << 17), 0x7f0000000000 | r.Uint64()>>24}[r.IntN(4)]
		}
		e.Ret = r.Int64N(1 << r.IntN(17))
		if r.IntN(8) == 0 {
			e.Ret = -r.Int64N(133)
		}
		e.Dur = 500 + r.Int64N(1<<r.IntN(20))
		list[i] = e
	}
	return list
}()

// asStruct is the record of a system call for encoding/json.
type asStruct struct {
	Type    string    `json:"type"`
	Seq     uint64    `json:"seq"`
	TS      int64     `json:"ts"`
	NS      int64     `json:"ns,omitempty"`
	Jail    string    `json:"jail"`
	PID     int32     `json:"pid"`
	TID     int32     `json:"tid"`
	HostPID int32     `json:"host_pid"`
	Comm    string    `json:"comm"`
	NR      int32     `json:"nr"`
	Name    string    `json:"name"`
	Args    [6]uint64 `json:"args"`
	Ret     int64     `json:"ret"`
	Dur     int64     `json:"dur_ns"`
	Path    string    `json:"path,omitempty"`
}

func structOf(e *event.Event) asStruct {
	return asStruct{e.Type.String(), e.Seq, e.TS, e.NS, string(e.Jail), e.PID, e.TID, e.HostPID, e.Comm, e.NR, e.Name, e.Args, e.Ret, e.Dur, e.Path}
}

// byStrconv is a simple encoder with strconv, which does not escape strings.
func byStrconv(b []byte, e *event.Event) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, e.Type.String()...)
	b = strconv.AppendUint(append(b, `","seq":`...), e.Seq, 10)
	b = strconv.AppendInt(append(b, `,"ts":`...), e.TS, 10)
	b = strconv.AppendInt(append(b, `,"ns":`...), e.NS, 10)
	b = append(append(b, `,"jail":"`...), e.Jail...)
	b = strconv.AppendInt(append(b, `","pid":`...), int64(e.PID), 10)
	b = strconv.AppendInt(append(b, `,"tid":`...), int64(e.TID), 10)
	b = strconv.AppendInt(append(b, `,"host_pid":`...), int64(e.HostPID), 10)
	b = append(append(b, `,"comm":"`...), e.Comm...)
	b = strconv.AppendInt(append(b, `","nr":`...), int64(e.NR), 10)
	b = append(append(b, `,"name":"`...), e.Name...)
	b = append(b, `","args":[`...)
	for i, a := range e.Args {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, a, 10)
	}
	b = strconv.AppendInt(append(b, `],"ret":`...), e.Ret, 10)
	b = strconv.AppendInt(append(b, `,"dur_ns":`...), e.Dur, 10)
	return append(b, '}')
}

func BenchmarkAppendJSON(b *testing.B) {
	buf := make([]byte, 0, 4096)
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.e.AppendJSON(nil))))
			for b.Loop() {
				buf = c.e.AppendJSON(buf[:0])
			}
		})
	}
	b.Run("calls", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			buf = calls[i%len(calls)].AppendJSON(buf[:0])
		}
	})
	b.Run("calls by strconv", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			buf = byStrconv(buf[:0], &calls[i%len(calls)])
		}
	})
	b.Run("syscall by strconv", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(byStrconv(nil, &typical))))
		for b.Loop() {
			buf = byStrconv(buf[:0], &typical)
		}
	})
	b.Run("syscall by encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := structOf(&typical)
			if _, err := json.Marshal(&s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, c := range cases {
		line := c.e.AppendJSON(nil)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			var e event.Event
			for b.Loop() {
				if err := event.Parse(line, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	var lines [][]byte
	for i := range calls {
		lines = append(lines, calls[i].AppendJSON(nil))
	}
	b.Run("calls", func(b *testing.B) {
		b.ReportAllocs()
		var e event.Event
		for i := 0; b.Loop(); i++ {
			if err := event.Parse(lines[i%len(lines)], &e); err != nil {
				b.Fatal(err)
			}
		}
	})
	line := typical.AppendJSON(nil)
	b.Run("syscall by encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var s asStruct
			if err := json.Unmarshal(line, &s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for _, q := range []string{"type:net", "pid:42 ret:<0", "path:/usr/lib", "path:*.py", "requests", "comm:python* dur:>1ms"} {
		f, err := event.ParseFilter(q)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(q, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Match(&withPath)
			}
		})
	}
	f, err := event.ParseFilter("dst:93.184.0.0/16:443 host:*.example.com")
	if err != nil {
		b.Fatal(err)
	}
	b.Run(f.String(), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.Match(&packet)
		}
	})
}
