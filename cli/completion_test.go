package cli

import (
	"strings"
	"testing"
)

func TestArgumentsAreCompleted(t *testing.T) {
	answers := map[string]string{
		"GET /jails":                      items(`{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}`, `{"id":"j-bbbbbbbbbbbb","name":"two words","state":"stopped"}`, `{"id":"j-cccccccccccc","name":"`+escapedName+`","state":"paused"}`),
		"GET /snapshots":                  items(`{"id":"s-aaaaaaaaaaaa","name":"before","jail":"j-aaaaaaaaaaaa"}`),
		"GET /chat/run":                   items(`{"id":"r-1","state":"paused","goal":"fix\nit"}`),
		"GET /approvals":                  items(`{"id":"a-1","title":"git push"}`),
		"GET /capabilities":               items(`{"id":"a.b","version":"1","description":"old"}`, `{"id":"a.b","version":"2","description":"old"}`),
		"GET /skills":                     items(`{"name":"places","description":"find places"}`),
		"GET /secrets":                    items(`{"name":"KEY","provider":"local","grants":[{"id":"g-1","jail":"j-aaaaaaaaaaaa"}]}`),
		"GET /bundles":                    items(`{"name":"pdf","version":"1.0.0"}`),
		"GET /publishers":                 items(`{"name":"acme","tier":"standard"}`),
		"GET /connectors":                 items(`{"name":"ops","kind":"hook"}`),
		"GET /logins":                     items(`{"id":"l-1","name":"ann","role":"viewer"}`),
		"GET /notices/dead":               items(`{"id":"n-1","channel":"push"}`),
		"GET /chat/session":               items(`{"id":"s1","state":"open"}`),
		"GET /chat/run/r-1/checkpoints":   items(`{"id":"p-1","reason":"before"}`),
		"GET /schedules":                  items(`{"id":"h-1","goal":"check"}`),
		"GET /jails/j-aaaaaaaaaaaa/execs": items(`{"id":"x-1","argv":["sleep","9"]}`),
		"GET /jails?name=web":             items(`{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}`),
		"GET /tokens":                     items(`{"id":"t-1","name":"ann","role":"viewer"}`),
	}
	const directive = "\n:"
	for _, c := range []struct{ line, want string }{
		{"jail stop ~", "web\trunning\nj-aaaaaaaaaaaa\trunning\nj-bbbbbbbbbbbb\tstopped\nj-cccccccccccc\tpaused" + directive + "4"},
		{"jail stop w", "web\trunning" + directive + "4"},
		{"jail stop web w", directive + "4"}, // already given
		{"jail stop web j-b", "j-bbbbbbbbbbbb\tstopped" + directive + "4"},
		{"jail show web ~", directive + "4"},
		{"exec w", "web\trunning" + directive + "4"},
		{"exec web l", directive + "4"},
		{"files ls w", "web:\trunning" + directive + "6"},
		{"files ls web:/e", directive + "4"},
		{"snapshot show b", "before\tof j-aaaaaaaaaaaa" + directive + "4"},
		{"branch w", "web\trunning" + directive + "4"},
		{"rewind web b", "before\tof j-aaaaaaaaaaaa" + directive + "4"},
		{"agent logs ~", "r-1\tpaused: fix\\nit" + directive + "4"},
		{"approve ~", "a-1\tgit push" + directive + "4"},
		{"approval show ~", "a-1\tgit push" + directive + "4"},
		{"token rm ~", "t-1\tann, viewer" + directive + "4"},
		{"jail ls -o ~", "table\njson\nyaml\nname" + directive + "4"},
		{"jail show -o ~", "table\njson\nyaml\nname" + directive + "4"},
		{"jail terminal --attach x", directive + "4"},
		{"logs web ~", "x-1\tsleep 9" + directive + "4"},
		{"cp w", "web:\trunning" + directive + "2"},
		{"cp ./fi", directive + "2"},
		{"call ~", "a.b\told" + directive + "4"},
		{"call a.b --session s", "s1\topen" + directive + "4"},
		{"capability rm a", "a.b\told" + directive + "4"},
		{"skill rm ~", "places\tfind places" + directive + "4"},
		{"secret rm ~", "KEY\tlocal" + directive + "4"},
		{"secret grant KEY w", "web\trunning" + directive + "4"},
		{"secret revoke ~", "g-1\tKEY to jail j-aaaaaaaaaaaa" + directive + "4"},
		{"bundle rm ~", "pdf\t1.0.0" + directive + "4"},
		{"bundle distrust ~", "acme\tstandard" + directive + "4"},
		{"bundle trust acme r", "read-only" + directive + "4"},
		{"connector deliveries ~", "ops\thook" + directive + "4"},
		{"connector redeliver --all ~", "ops\thook" + directive + "4"},
		{"ui rm ~", "l-1\tann, viewer" + directive + "4"},
		{"approval notices --again ~", "n-1\tpush" + directive + "4"},
		{"schedule rm ~", "h-1\tcheck" + directive + "4"},
		{"agent resume r-1 --checkpoint ~", "p-1\tbefore" + directive + "4"},
		{"agent move r-1 d", "done" + directive + "4"},
		{"agent run x --parent ~", "r-1\tpaused: fix\\nit" + directive + "4"},
		{"goal x --skill ~", "places\tfind places" + directive + "4"},
		{"goal x --agent o", "opencode" + directive + "4"},
		{"goal x --budget net", "network-bytes=" + directive + "6"},
		{"audit ls --jail w", "web\trunning" + directive + "4"},
		{"audit ls --run ~", "r-1\tpaused: fix\\nit" + directive + "4"},
		{"audit ls --kind eg", "egress" + directive + "4"},
		{"create --network ~", "isolated\nproxy\nbridged\nfull" + directive + "4"},
		{"create --level ~", "1\n2\n3" + directive + "4"},
		{"create --rootfs o", "oci:" + directive + "6"},
		{"create --file ~", directive + "0"},
		{"create --policy ~", directive + "0"},
		{"create --mount ~", directive + "16"},
		{"create --name ~", directive + "4"},
		{"create --memory ~", directive + "4"},
		{"create --pids ~", directive + "4"},
		{"run --timeout ~", directive + "4"},
		{"run ma", directive + "0"},
		{"policy level web ~", "1\n2\n3" + directive + "4"},
		{"policy lint ~", directive + "0"},
		{"events web --since ~", directive + "4"},
		{"events web --color n", "never" + directive + "4"},
		{"report web -o ~", directive + "0"},
		{"skill import x -o ~", directive + "16"},
		{"health ~", directive + "4"},
		{"--data ~", directive + "16"},
	} {
		t.Run(c.line, func(t *testing.T) {
			d := newScriptedDaemon(t, answers)
			args := strings.Fields(c.line)
			if args[len(args)-1] == "~" {
				args[len(args)-1] = ""
			}
			code, out, _ := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_ADDR": d.addr}, append([]string{"__complete"}, args...)...)
			if got, _, _ := strings.Cut("\n"+out, "\nCompletion ended"); code != 0 || strings.TrimSpace(got) != strings.TrimSpace(c.want) {
				t.Errorf("exit code %d, completions %q, want %q", code, got, c.want)
			}
		})
	}
	// Without a daemon nothing is completed, and none is started.
	code, out, _ := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_DATA": t.TempDir()}, "__complete", "jail", "stop", "")
	if code != 0 || strings.TrimSpace(out) != ":4" {
		t.Errorf("without a daemon: exit code %d, %q", code, out)
	}
}
