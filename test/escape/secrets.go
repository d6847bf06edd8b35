package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// servers are the addresses of the test's own servers, in addition to those in the table of names.
const servers = "198.51.100.20"

// secrets returns attempts to read a secret that the proxy adds to requests.
func secrets() []Attempt {
	const name = "echo.secret.example.com"
	echo := func(path string, h2 bool, edit func(*http.Request)) func() (string, error) {
		return func() (string, error) {
			r, err := http.NewRequest("GET", "https://"+name+path, nil)
			if err != nil {
				return "", err
			}
			if edit != nil {
				edit(r)
			}
			answer, err := do(toServers(h2), r)
			return seen(answer), err
		}
	}
	var all []Attempt
	for _, where := range []string{"field", "body", "gzip", "base64", "hex", "pieces", "trailer", "redirect", "cookie", "error", "query"} {
		all = append(all, Attempt{Name: "a secret that comes back: " + where, Forwarded: servers + ":443", try: echo("/"+where, false, nil)})
	}
	plain := "GET / HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n"
	return append(all,
		Attempt{Name: "a secret that comes back by HTTP/2", Forwarded: servers + ":443", try: echo("/body", true, nil)},
		Attempt{Name: "a secret that comes back by TRACE", Reasons: reasons(egress.ReasonMethod), Host: name, try: echo("/body", false, func(r *http.Request) { r.Method = "TRACE" })},
		Attempt{Name: "a secret echoed with an unsolicited encoding", Reasons: reasons(egress.ReasonSecret), try: echo("/deflate", false, func(r *http.Request) { r.Header.Set("Accept-Encoding", "deflate") })},
		Attempt{Name: "a secret asked for in the clear", Reasons: reasons(egress.ReasonPort), Host: name, try: say("tcp", servers+":80", plain)},
		Attempt{Name: "a secret sent to another host inside", Reasons: reasons(egress.ReasonMismatch), try: echo("/body", false, func(r *http.Request) { r.Host = "fields.example.com" })},
		Attempt{Name: "something taken out by a path", Reasons: reasons(egress.ReasonPath), try: say("tcp", egresstest.Proxy, "GET http://strict.example.com/leak?q=leak HTTP/1.1\r\nHost: strict.example.com\r\nX-Leak: leak\r\nConnection: close\r\n\r\n")},
		Attempt{Name: "something taken out by a method", Reasons: reasons(egress.ReasonMethod), try: say("tcp", egresstest.Proxy, "PUT http://strict.example.com/open/leak HTTP/1.1\r\nHost: strict.example.com\r\nContent-Length: 4\r\nConnection: close\r\n\r\nleak")},
	)
}

// toServers connects to the test's servers without verifying their certificates.
func toServers(h2 bool) *http.Transport {
	return &http.Transport{
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return dial(network, servers+":"+port)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: h2, DisableCompression: true,
	}
}

// seen reports whether a response reveals a secret.
func seen(answer string) string {
	texts := [][]byte{[]byte(answer)}
	for word := range strings.FieldsSeq(answer) {
		if b, err := base64.StdEncoding.DecodeString(word); err == nil {
			texts = append(texts, b)
		}
		if b, err := hex.DecodeString(word); err == nil {
			texts = append(texts, b)
		}
	}
	for _, b := range texts {
		if bytes.Contains(b, canary()) {
			return egresstest.Reached + "the secret\n" + answer
		}
	}
	return answer
}

// limits returns attempts to exceed request limits.
func limits() []Attempt {
	return []Attempt{
		{Name: "more bytes than the budget", Reasons: reasons(egress.ReasonBytes), Host: "small.example.com",
			try: say("tcp", servers+":80", "POST / HTTP/1.1\r\nHost: small.example.com\r\nContent-Length: 1048576\r\nConnection: close\r\n\r\n"+strings.Repeat("leak", 1<<18))},
		{Name: "more bytes once the budget is spent", Reasons: reasons(egress.ReasonBytes), Host: "small.example.com", try: say("tcp", servers+":80", get("small.example.com"))},
		{Name: "more requests than the rate", Reasons: reasons(egress.ReasonRate), Host: "few.example.com", try: func() (string, error) {
			var last string
			for n := range 6 {
				answer, err := talk("tcp", servers+":80", patience, get("few.example.com"))
				if err != nil {
					return answer, fmt.Errorf("request %d: %w", n+1, err)
				}
				last = answer
			}
			return last, nil
		}},
	}
}
