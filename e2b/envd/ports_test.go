package envd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

func ports(w *world) {
	c, err := w.start(sh("exec /srv/server 8123"), "json")
	if err != nil {
		w.Fatal(err)
	}
	defer kill(w, c.pid)
	at := []string{"E2b-Sandbox-Port", "8123"}
	var status int
	var text string
	for deadline := time.Now().Add(20 * time.Second); status != 200 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		status, text, _ = w.do("POST", "/some/path?x=1", strings.NewReader("said"), append(at, "X-Api-Key", "k", "X-Access-Token", "t")...)
	}
	host := strings.TrimPrefix(w.url, "http://")
	if want := "POST /some/path host=" + host + ` token="" traffic="" key="" body=said`; status != 200 || text != want {
		w.Fatalf("%d %s, want %s", status, text, want)
	}

	safe := append(at, "E2b-Sandbox-Id", "safe")
	for token, want := range map[string]int{"": 403, "away": 403, "secret": 403, "pass": 200} {
		if status, text, _ := w.do("GET", "/", nil, append(safe, "E2b-Traffic-Access-Token", token)...); status != want || status == 200 && !strings.Contains(text, `traffic=""`) {
			w.Errorf("with the traffic token %q: %d %s, want %d", token, status, text, want)
		}
	}
	status, text, _ = w.do("GET", "/", nil, "E2b-Sandbox-Port", "8124")
	if want := `{"sandboxId":"open","message":"The sandbox is running but port is not open","port":8124,"code":502}`; status != 502 || strings.TrimSpace(text) != want {
		w.Errorf("a closed port: %d %s, want %s", status, text, want)
	}
	browser := []string{"E2b-Sandbox-Port", "8124", "User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}
	status, text, h := w.do("GET", "/", nil, browser...)
	if want := "there is no service running on port 8124"; status != 502 || h.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(text, want) || !strings.HasSuffix(text, "</html>") {
		w.Errorf("a closed port in a browser: %d %s %s", status, h, text)
	}
	status, text, h = w.do("GET", "/", nil, append(browser, "E2b-Sandbox-Id", "<script>")...)
	if status != 502 || strings.Contains(text, "<script>") || h.Get("Content-Security-Policy") != "default-src 'none'" {
		w.Errorf("a sandbox id with HTML in a browser: %d %s %s", status, h, text)
	}
	serverSentEvents(w, at)
	body, in := io.Pipe()
	go func() { // the second write follows the response header and must arrive too
		in.Write(make([]byte, 1000))
		time.Sleep(50 * time.Millisecond)
		in.Write(make([]byte, 1<<20))
		in.Close()
	}()
	if status, text, _ = w.do("POST", "/early", body, at...); text != fmt.Sprint("early ", 1000+1<<20, nil) {
		w.Errorf("a server that responds before it has read the body: %d %s", status, text)
	}
	webSocket(w)
	overTLS(w)
}

// overTLS tests that the proxy uses TLS for the ports in Box.HTTPS and for no other port.
func overTLS(w *world) {
	c, err := w.start(sh("/srv/server 8443 tls & exec /srv/server 8444 tls"), "json")
	if err != nil {
		w.Fatal(err)
	}
	defer kill(w, c.pid)
	reach := func(port string) (status int, text string) {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			status, text, _ = w.do("GET", "/x", nil, "E2b-Sandbox-Id", "tls", "E2b-Sandbox-Port", port)
			if !strings.Contains(text, "not open") {
				break
			}
		}
		return status, text
	}
	if status, text := reach("8443"); status != 200 || !strings.HasPrefix(text, "GET /x host=") {
		w.Errorf("a TLS server at a port in Box.HTTPS: %d %s", status, text)
	}
	if status, text := reach("8444"); status != 400 { // net/http's response to plain HTTP at a TLS port
		w.Errorf("a TLS server at another port: %d %s", status, text)
	}
}

func serverSentEvents(w *world, at []string) {
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", w.url+"/events", nil)
	if err != nil {
		w.Fatal(err)
	}
	header(at).set(r.Header)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer a.Body.Close()
	if line, err := bufio.NewReader(a.Body).ReadString('\n'); err != nil || line != "data: one\n" {
		w.Errorf("the first event: %q, %v", line, err)
	}
}

func webSocket(w *world) {
	u, err := url.Parse(w.url)
	if err != nil {
		w.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", u.Host, time.Minute)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, "GET /echo HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Port: 8123\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	from := bufio.NewReader(conn)
	a, err := http.ReadResponse(from, nil)
	if err != nil || a.StatusCode != http.StatusSwitchingProtocols {
		w.Fatalf("upgrade: %v, %v", a, err)
	}
	for _, said := range []string{"one", "two"} {
		fmt.Fprintln(conn, said)
		if line, err := from.ReadString('\n'); err != nil || line != "you said "+said+"\n" {
			w.Errorf("%q, %v", line, err)
		}
	}
}

// interpreters tests the errors in a jail without python3, or with one that is not Python.
func interpreters(w *world) {
	at := []string{"E2b-Sandbox-Port", "49999"}
	execute := func(h ...string) (int, string) {
		status, text, _ := w.do("POST", "/execute", strings.NewReader(`{"code":"1"}`), append(h, at...)...)
		return status, strings.TrimSpace(text)
	}
	if status, text := execute(); status != 404 || !strings.Contains(text, "no python3") {
		w.Errorf("without python3: %d %s", status, text)
	}
	for token, want := range map[string]int{"": 401, "another": 401, "secret": 404} {
		if status, text := execute("E2b-Sandbox-Id", "safe", "E2b-Traffic-Access-Token", "pass", "X-Access-Token", token); status != want {
			w.Errorf("with the token %q: %d %s, want %d", token, status, text, want)
		}
	}
	root := []string{"Authorization", "Basic cm9vdDo="}
	for name, script := range map[string]string{
		"endless stdout":   `echo $$ > /tmp/pid; while :; do echo nonsense; done`,
		"endless stderr":   `echo $$ > /tmp/pid; while :; do echo nonsense >&2; done`,
		"no listener":      `echo $$ > /tmp/pid; echo ready 49999; exec sleep 1000`,
		"exits at startup": `echo no such luck >&2; exit 3`,
	} {
		w.run("mkdir -p /usr/local/bin; printf '#!/bin/bash\n%s\n' '"+script+"' > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3; rm -f /tmp/pid", root...)
		began := time.Now()
		if status, text := execute(); status != 502 || strings.Contains(text, "port is not open") {
			w.Errorf("%s: %d %s, want 502", name, status, text)
		}
		// The startup timeout of the interpreter is one minute.
		if took := time.Since(began); took >= time.Minute {
			w.Errorf("%s: the failure was reported after %v, want before the time limit", name, took)
		}
		// A killed process may take a moment to exit.
		if got := w.run("[ -e /tmp/pid ] || exit 0; n=0; while kill -0 $(cat /tmp/pid) && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.05; done; [ $n -lt 600 ]", root...); got.end.ExitCode != 0 {
			w.Errorf("%s: the process still runs", name)
		}
	}
	w.run("rm /usr/local/bin/python3", root...)
}

func absent(w *world) {
	for sandbox, want := range map[string]string{
		"none":   `{"sandboxId":"none","message":"The sandbox was not found","code":502}`,
		"paused": `{"sandboxId":"paused","message":"The sandbox is not running","code":502}`,
	} {
		for _, port := range []string{"49983", "3000"} {
			status, text, _ := w.do("GET", "/health", nil, "E2b-Sandbox-Id", sandbox, "E2b-Sandbox-Port", port)
			if status != 502 || strings.TrimSpace(text) != want {
				w.Errorf("%s: %d %s, want %s", sandbox, status, text, want)
			}
		}
	}
}
