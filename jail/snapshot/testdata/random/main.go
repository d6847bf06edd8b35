// Random draws random numbers of the kernel, and others when /tmp/go is there. Those
// are written to /tmp/go-drawn.
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"time"
)

func main() {
	b := make([]byte, 16)
	rand.Read(b)
	if err := os.WriteFile("/tmp/go-ready", nil, 0o644); err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat("/tmp/go"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	rand.Read(b)
	if err := os.WriteFile("/tmp/go-drawn", fmt.Appendf(nil, "%x\n", b), 0o644); err != nil {
		panic(err)
	}
}
