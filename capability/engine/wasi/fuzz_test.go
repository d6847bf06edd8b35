package wasi_test

import (
	"encoding/binary"
	"testing"
)

// FuzzCalls checks that calls with arbitrary arguments return and change nothing outside of the
// directories of the module. The first bytes of the input are the module's memory with paths and
// buffers. Each call is one byte for the function and two bytes for each argument.
func FuzzCalls(f *testing.F) {
	memory := func(text string) []byte { b := make([]byte, 64); copy(b, text); return b }
	f.Add(append(memory("../secret"), 31, 0, 3, 0, 1, 0, 0, 0, 9, 0, 1, 0, 66, 0, 0, 0, 0, 0, 40))
	f.Add(append(memory("dir/sub\x00file"), 27, 0, 3, 0, 0, 0, 3, 31, 0, 3, 0, 0, 0, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 40))
	f.Add(append(memory("a../b"), 35, 0, 1, 0, 4, 0, 3, 0, 0, 0, 1, 32, 0, 3, 0, 0, 0, 1, 0, 20, 0, 20, 0, 60))
	f.Add(append(memory(""), 21, 0, 3, 255, 255, 255, 255, 0, 0, 0, 0, 26, 0, 1, 255, 255, 255, 255, 0, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 64 || len(data) > 1024 {
			return
		}
		p := imprison(t)
		p.module.Memory().Write(0, data[:64])
		for data = data[64:]; len(data) > 0; {
			c := calls[int(data[0])%len(calls)]
			data = data[1:]
			args := make([]uint64, len(c.params))
			for i := range args {
				if len(data) < 2 {
					return
				}
				args[i] = uint64(binary.BigEndian.Uint16(data))
				if args[i] > 0xff00 {
					args[i] |= 0xffffffffffff0000 // also test the largest numbers
				}
				if c.params[i] == 'i' {
					args[i] &= 0xffffffff
				}
				data = data[2:]
			}
			if c.name == "poll_oneoff" {
				continue // poll_oneoff may block for an hour
			}
			p.call(c.name, args...)
		}
	})
}
