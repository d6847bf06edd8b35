package egress_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// lanes returns the two dial functions to compare: a direct one from the host, and one from
// the jail through the proxy.
func lanes(b *testing.B, rule egress.Rule) (j *jail, all map[string]func(addr string) (net.Conn, error)) {
	w := needsWorld(b)
	w.SetAddrs("shop.example", egresstest.Internet)
	rule.Host, rule.Ports = "shop.example", []uint16{8080, 9000}
	j = newJail(b, w, allow(rule))
	return j, map[string]func(string) (net.Conn, error){
		"direct": func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) },
		"jail":   func(addr string) (net.Conn, error) { return j.dial("tcp", addr) },
	}
}

func BenchmarkThroughput(b *testing.B) {
	const size = 256 << 20
	j, all := lanes(b, egress.Rule{})
	flood(j.world, egresstest.Internet+":9000", size)
	j.world.HTTP(egresstest.Internet+":8080", nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "268435456")
		io.Copy(rw, &io.LimitedReader{R: zero{}, N: size})
	}))
	j.lookup("shop.example", dnsmessage.TypeA)
	for _, kind := range []struct{ name, addr, say string }{
		{"raw", egresstest.Internet + ":9000", "\x00"},
		{"http", egresstest.Internet + ":8080", "GET / HTTP/1.1\r\nHost: shop.example:8080\r\nConnection: close\r\n\r\n"},
	} {
		for _, name := range []string{"direct", "jail"} {
			b.Run(kind.name+"/"+name, func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					c, err := all[name](kind.addr)
					if err != nil {
						b.Fatal(err)
					}
					io.WriteString(c, kind.say)
					if n := drain(c); n < size {
						b.Fatalf("%d bytes", n)
					}
					c.Close()
				}
			})
		}
	}
}

func drain(c net.Conn) (total int) {
	buf := make([]byte, 256<<10)
	for {
		n, err := c.Read(buf)
		total += n
		if err != nil {
			return total
		}
	}
}

// BenchmarkRequest measures one HTTP request on a kept-alive connection.
func BenchmarkRequest(b *testing.B) {
	j, all := lanes(b, egress.Rule{})
	j.world.HTTP(egresstest.Internet+":8080", nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "ok") }))
	for _, name := range []string{"direct", "jail"} {
		b.Run(name, func(b *testing.B) {
			c, err := all[name](egresstest.Internet + ":8080")
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r := bufio.NewReader(c)
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				io.WriteString(c, "GET / HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n")
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs/p50")
		})
	}
}

// BenchmarkConnection measures opening and closing a connection that transfers a few bytes.
func BenchmarkConnection(b *testing.B) {
	j, all := lanes(b, egress.Rule{})
	j.world.TCP(egresstest.Internet+":9000", func(c net.Conn) { io.CopyN(c, c, 2) })
	j.lookup("shop.example", dnsmessage.TypeA)
	for _, name := range []string{"direct", "jail"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c, err := all[name](egresstest.Internet + ":9000")
				if err != nil {
					b.Fatal(err)
				}
				io.WriteString(c, "\x00\x01")
				if n := drain(c); n != 2 {
					b.Fatalf("%d bytes", n)
				}
				c.Close()
			}
		})
	}
}
