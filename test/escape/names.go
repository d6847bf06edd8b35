package main

import (
	"net/http"
	"os"
	"strings"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// names returns attempts that rewrite the files of the resolver. The proxy must still decide by
// name.
func names() []Attempt {
	return []Attempt{
		{Name: "another name server in resolv.conf", Reasons: reasons(egress.ReasonHost), Host: "evil.example",
			try: rewritten("/etc/resolv.conf", "nameserver "+evil+"\n", say("udp", evil+":53", question("evil.example.")))},
		{Name: "an allowed name at another address in hosts", Forwarded: egresstest.Front + ":80",
			try: rewritten("/etc/hosts", evil+" front.example.com\n", fetch("http://front.example.com/"))},
		{Name: "an allowed name at the metadata service in hosts", Forwarded: egresstest.Front + ":80",
			try: rewritten("/etc/hosts", egresstest.Metadata+" front.example.com\n", fetch("http://front.example.com/"))},
		{Name: "another name at an allowed address in hosts", Reasons: reasons(egress.ReasonHost), Host: "hidden.example.com",
			try: rewritten("/etc/hosts", egresstest.Front+" hidden.example.com\n", fetch("http://hidden.example.com/"))},
		{Name: "rebinding: private and public at once", Forwarded: servers + ":80", try: say("tcp", evil+":80", get("both.rebind.example"))},
		{Name: "rebinding: private after public", Reasons: reasons(egress.ReasonAddress), Host: "flip.rebind.example", try: fetch("http://flip.rebind.example/")},
	}
}

// rewritten makes an attempt while a file has another content.
func rewritten(path, text string, f func() (string, error)) func() (string, error) {
	return func() (string, error) {
		was, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		defer os.WriteFile(path, was, 0o644)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
		return f()
	}
}

// fetch requests a page without proxy settings.
func fetch(url string) func() (string, error) {
	return func() (string, error) {
		r, err := http.NewRequest("GET", url, nil)
		if err != nil {
			return "", err
		}
		return do(&http.Transport{}, r)
	}
}

// do returns the whole response to a request as text.
func do(t *http.Transport, r *http.Request) (string, error) {
	t.DisableKeepAlives = !t.ForceAttemptHTTP2
	defer t.CloseIdleConnections()
	c := http.Client{Transport: t, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b strings.Builder
	b.WriteString(resp.Status + "\n")
	resp.Header.Write(&b)
	_, err = copyLimited(&b, resp.Body)
	resp.Trailer.Write(&b)
	return b.String(), err
}
