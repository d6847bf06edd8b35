// Server is what tests reach in a jail: it answers with what it sees of a request, with
// events, and says back what it is told over a WebSocket. Told tls, it speaks that, with a
// certificate of nobody.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s host=%s token=%q traffic=%q key=%q body=%s", r.Method, r.URL.Path, r.Host,
			r.Header.Get("X-Access-Token"), r.Header.Get("E2b-Traffic-Access-Token"), r.Header.Get("X-Api-Key"), body)
	})
	http.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	http.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		c.EnableFullDuplex()
		fmt.Fprint(w, "early ")
		c.Flush()
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	http.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		for lines := bufio.NewScanner(rw); lines.Scan(); {
			fmt.Fprintf(conn, "you said %s\n", lines.Text())
		}
	})
	at := "127.0.0.1:" + os.Args[1]
	if len(os.Args) > 2 && os.Args[2] == "tls" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			fmt.Println(err)
			return
		}
		(&httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute}}).StartTLS()
		select {}
	}
	server := &http.Server{Addr: at, ReadHeaderTimeout: time.Minute}
	fmt.Println(server.ListenAndServe())
}
