// Serves listens on the addresses it is given. When a line comes on its standard
// input it listens there too; if the line is a directory it goes there, and if it
// is "connect" it is connected with itself.
package main

import (
	"bufio"
	"net"
	"os"
	"strings"
)

func main() {
	var kept []any
	listen := func(at string) {
		l, err := net.Listen("tcp", at)
		if err != nil {
			panic(err)
		}
		kept = append(kept, l)
	}
	for _, at := range os.Args[1:] {
		listen(at)
	}
	connect := func() {
		l := kept[0].(net.Listener)
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		d, err := l.Accept()
		if err != nil {
			panic(err)
		}
		kept = append(kept, c, d)
	}
	done := func(what string) {
		if err := os.WriteFile("/tmp/served", []byte(what), 0o644); err != nil {
			panic(err)
		}
	}
	done("start")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "" {
			continue
		}
		switch line := in.Text(); {
		case line == "connect":
			connect()
		case strings.HasPrefix(line, "/"):
			if err := os.Chdir(line); err != nil {
				panic(err)
			}
		default:
			listen(line)
		}
		done(in.Text())
	}
	select {}
}
