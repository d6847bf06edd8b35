// Threads counts on eight threads at once, each locked to its goroutine, and
// writes their sum.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

func main() {
	var sum atomic.Int64
	for range 8 {
		go func() {
			runtime.LockOSThread()
			for {
				sum.Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	for {
		time.Sleep(10 * time.Millisecond)
		if os.WriteFile("/tmp/count.new", []byte(fmt.Sprintln(sum.Load())), 0o644) == nil {
			os.Rename("/tmp/count.new", "/tmp/count")
		}
	}
}
