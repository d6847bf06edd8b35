package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"glasshouse/policy/egress/egresstest"
)

// away repeats allowed and denied requests until /root/stop exists. For each round it writes a
// line to /root/rounds: the time, whether the allowed request succeeded, and whether anything
// escaped.
func away() {
	rounds, err := os.Create("/root/rounds")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer rounds.Close()
	tries := []struct {
		network, addr, what string
	}{
		{"tcp", egresstest.API + ":80", get("api.example.com")},
		{"tcp", evil + ":80", get("evil.example")},
		{"tcp", egresstest.Proxy, connect("evil.example:443")},
		{"udp", egresstest.Gateway + ":53", question("evil.example.")},
		{"udp", evil + ":443", "leak"},
		{"tcp", egresstest.Host + ":" + apiPort, get(egresstest.Host)},
	}
	for {
		if _, err := os.Stat("/root/stop"); err == nil {
			return
		}
		at := time.Now()
		var answers []string
		for _, t := range tries {
			answer, err := talk(t.network, t.addr, time.Second, t.what)
			if t.network == "udp" && err != nil {
				answer += " " + err.Error()
			}
			answers = append(answers, answer)
		}
		line := "refused"
		if strings.Contains(answers[0], "welcome: api.example.com") {
			line = "carried"
		}
		for i, a := range answers {
			if strings.Contains(a, egresstest.Reached) || strings.Contains(a, "leak") {
				line += fmt.Sprintf(" %s%s", egresstest.Reached, tries[i].addr)
			}
		}
		fmt.Fprintf(rounds, "%d %s\n", at.UnixNano(), line)
		time.Sleep(20 * time.Millisecond)
	}
}
