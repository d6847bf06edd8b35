package eventlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"glasshouse/observe/event"
)

// syscallRecord sets e to a typical system call record of about 250 bytes without artificial
// repetition.
func syscallRecord(n int, e *event.Event) {
	h := uint64(n) * 0x9e3779b97f4a7c15
	names := [...]string{"read", "write", "openat", "close", "fstat", "mmap", "futex", "epoll_wait"}
	k := int(h>>40) % len(names)
	*e = event.Event{
		Type: event.Syscall, TS: 1_706_000_000_000 + int64(n/50), NS: 81_234_567_000_000 + int64(n)*20_000 + int64(h>>52),
		PID: 42 + int32(h>>60), TID: 42 + int32(h>>60), HostPID: 120_042 + int32(h>>60), Comm: "python3", FD: -1,
		NR: int32(k), Name: names[k], Dur: 700 + int64(h>>50)%3000, Ret: int64(h>>44) % 4096,
		Args: [6]uint64{h >> 59, 0x7ffd_1234_0000 + (h>>30)%65536*16, (h >> 48) % 8192, 0, 0x7f12_3456_7000 + (h>>20)%256*4096, 0},
	}
	if k == 2 {
		e.Path = fmt.Sprintf("/usr/lib/python3.13/site-packages/module_%d.py", (h>>33)%500)
	}
}

// BenchmarkAppend measures the complete path of a record to the kernel's page cache.
func BenchmarkAppend(b *testing.B) { benchmarkAppend(b, syscallRecord) }

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkEncode measures the encoding part of BenchmarkAppend, with and without the
// encoder's cache of earlier records.
func BenchmarkEncode(b *testing.B) {
	for _, kind := range []struct {
		name   string
		record func(int, *event.Event)
	}{{"mixed", syscallRecord}, {"storm", stormRecord}} {
		records := make([]event.Event, 1024)
		for n := range records {
			kind.record(n, &records[n])
			records[n].Jail = jid
		}
		buf := make([]byte, 0, 1024)
		run := func(name string, encode func(*event.Event)) {
			b.Run(kind.name+"/"+name, func(b *testing.B) {
				before := cpu()
				for n := range b.N {
					e := &records[n&1023]
					e.Seq = uint64(1_000_000 + n)
					encode(e)
				}
				b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/record")
			})
		}
		run("AppendJSON", func(e *event.Event) { buf = e.AppendJSON(buf[:0]) })
		var enc event.Encoder
		run("Encoder", func(e *event.Event) { buf = enc.Append(buf[:0], e) })
	}
}

// BenchmarkPack compares compression levels: bytes per record, and speed. The block has the
// size used in a segment.
func BenchmarkPack(b *testing.B) {
	for _, size := range []int{256 << 10, blockSize, 1 << 20} {
		text, records := typicalText(size)
		for _, level := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault, zstd.SpeedBetterCompression, zstd.SpeedBestCompression} {
			b.Run(fmt.Sprintf("%dK/%s", size>>10, level), func(b *testing.B) {
				w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(level), zstd.WithWindowSize(1<<20))
				if err != nil {
					b.Fatal(err)
				}
				var out []byte
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					out = w.EncodeAll(text, out[:0])
				}
				b.ReportMetric(float64(len(out))/float64(records), "bytes/record")
				b.ReportMetric(float64(len(text))/float64(records), "text/record")
			})
		}
	}
}

func typicalText(size int) (text []byte, records int) {
	var e event.Event
	for len(text) < size {
		syscallRecord(records, &e)
		records++
		e.Seq, e.Jail = uint64(1_000_000+records), jid
		text = append(e.AppendJSON(text), '\n')
	}
	return text, records
}
