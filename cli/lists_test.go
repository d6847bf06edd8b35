package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// Scripts parse an empty list like any other list.
func TestEmptyListIsJSONArray(t *testing.T) {
	exits := map[string]int{"doctor": 1} // no probe reports that a jail can run
	for _, c := range []struct{ line, path string }{
		{"jail ls", "/jails"}, {"jail execs " + aJail, "/jails/" + aJail + "/execs"}, {"files ls " + aJail + ":/", "/jails/" + aJail + "/files"},
		{"snapshot ls", "/snapshots"}, {"lineage", "/lineage"}, {"rootfs ls", "/images"}, {"backends", "/backends"}, {"token ls", "/tokens"}, {"node ls", "/nodes"}, {"doctor", "/doctor"},
		{"secret ls", "/secrets"}, {"approval ls", "/approvals"}, {"approval notices", "/notices/dead"}, {"trail " + aJail, "/sandbox/" + aJail + "/decisions"},
		{"audit ls", "/chain"}, {"capability ls", "/capabilities"}, {"skill ls", "/skills"}, {"bundle ls", "/bundles"}, {"bundle publishers", "/publishers"},
		{"session ls", "/chat/session"}, {"session messages s", "/chat/inbox"}, {"runs", "/chat/run"}, {"runs steps r-1", "/chat/run/r-1/actions"},
		{"runs checkpoints r-1", "/chat/run/r-1/checkpoints"}, {"schedule ls", "/schedules"}, {"connector ls", "/connectors"},
		{"connector deliveries c", "/connectors/c/deliveries"}, {"market search x", "/market"}, {"market outdated", "/market/outdated"}, {"ui ls", "/logins"},
	} {
		t.Run(strings.ReplaceAll(c.line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, map[string]string{"GET " + c.path: `{"items":[]}`})
			code, out, errs := d.run("", append([]string{"--json"}, argsOf(c.line)...)...)
			if want := exits[c.line]; code != want || out != "[]\n" {
				t.Errorf("exit code %d, output %q, %q, want %d and []", code, out, errs, want)
			}
		})
	}
}

// With --json, the complete response is printed, and its text cannot control the terminal.
func TestJSONOutputIsDaemonResponse(t *testing.T) {
	for line, answers := range map[string]map[string]string{
		"jail show " + aJail:            {"GET /jails/" + aJail: strings.Replace(jailJSON, "web", escapedName, 1)},
		"jail start " + aJail:           {"POST /jails/" + aJail + "/start": jailJSON},
		"snapshot show " + aSnapshot:    {"GET /snapshots/" + aSnapshot: snapJSON},
		"policy show " + aJail:          {"GET /jails/" + aJail + "/policy": policyOut},
		"runs show r-1":                 {"GET /chat/run/r-1": runJSON},
		"capability show a.b":           {"GET /capabilities/a.b": `{"id":"a.b","manifest":"` + escapedName + `"}`},
		"skill show k":                  {"GET /skills/k": `{"name":"k","refused":"` + escapedName + `"}`},
		"secret grant KEY " + aJail:     {"POST /secrets/KEY/grants": `{"id":"g-1"}`},
		"jail rm " + aJail:              {"DELETE /jails/" + aJail: `204 `},
		"token create x":                {"POST /tokens": `{"id":"t-1","token":"secret"}`},
		"call a.b":                      {"POST /capabilities/a.b/call": `{"capability":"a.b","state":"done","output":"` + escapedName + `"}`},
		"audit verify":                  {"GET /chain/verify": `{"entries":1}`},
		"branch " + aSnapshot + " -n 1": {"POST /snapshots/" + aSnapshot + "/branch": `{"jails":[` + jailJSON + `]}`},
	} {
		t.Run(strings.ReplaceAll(line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, answers)
			code, out, errs := d.run("", append([]string{"--json"}, argsOf(line)...)...)
			var v map[string]any
			if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || len(v) == 0 {
				t.Errorf("exit code %d, output %q, %q, want an object: %v", code, out, errs, err)
			}
			if strings.ContainsAny(out, "\x1b\u202e") {
				t.Errorf("output = %q, want no terminal control characters", out)
			}
		})
	}
}

// Every command prints the daemon's error and its remedy on standard error only.
func TestEveryCommandPrintsDaemonErrors(t *testing.T) {
	for _, line := range []string{
		"jail ls", "jail show " + aJail, "jail create", "jail start " + aJail, "jail stop " + aJail, "jail pause " + aJail, "jail resume " + aJail, "jail rm " + aJail,
		"jail limits " + aJail, "jail execs " + aJail, "files ls " + aJail + ":/", "files stat " + aJail + ":/x", "files rm " + aJail + ":/x", "files mkdir " + aJail + ":/x", "files mv " + aJail + ":/x /y",
		"files watch " + aJail + ":/", "cp " + aJail + ":/x -", "cp - " + aJail + ":/x", "snapshot create " + aJail, "snapshot ls", "snapshot show " + aSnapshot, "snapshot rm " + aSnapshot, "snapshot warm " + aSnapshot,
		"branch " + aSnapshot, "restore " + aSnapshot, "rewind " + aJail + " " + aSnapshot, "lineage", "rootfs ls", "rootfs prune", "rootfs prepare", "policy show " + aJail, "policy rm " + aJail,
		"policy level " + aJail + " 1", "policy explain " + aJail + " bash", "decide " + aJail + " bash", "egress show " + aJail, "egress set " + aJail + " --ask", "egress allow " + aJail + " a.example", "logs " + aJail, "logs " + aJail + " x", "egress log " + aJail, "trail " + aJail, "secret ls", "secret set K", "secret rm K",
		"secret rotate", "secret revoke g", "secret grant K " + aJail, "session ls", "session open", "session show s", "session send s x", "session messages s", "session events s", "session close s",
		"runs", "runs show r", "runs pause r", "runs cancel r", "runs steps r", "runs checkpoint r", "runs checkpoints r", "runs resume r", "runs move r done", "runs follow r", "goal x", "schedule ls",
		"schedule show h", "schedule times x", "schedule edit h --when x", "schedule pause h", "schedule rm h", "connector ls", "connector deliveries c", "connector redeliver d", "approval ls", "approval show a",
		"approval cancel a", "approval notices", "approval ls --follow", "approve a", "deny a", "capability ls", "capability show a", "capability rm a", "capability revoke a", "capability trust a d", "call a", "replay 1",
		"skill ls", "skill show s", "skill rm s", "audit ls", "audit show 1", "audit verify", "audit head", "backends", "health", "node ls", "token ls", "token create x", "token quota t", "token quota t --max-jails 1", "token rm t", "bundle ls", "bundle rm b",
		"bundle publishers", "market search x", "market outdated", "market install x", "ps " + aJail, "at " + aJail + " 1", "events " + aJail, "e2b",
	} {
		t.Run(strings.ReplaceAll(line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d := newScriptedDaemon(t, nil)
			d.problem = `503 {"type":"/problems/unavailable","title":"unavailable","status":503,"detail":"the ` + escapedName + ` database is away","remedy":"wait a while"}`
			code, out, errs := d.run("", argsOf(line)...)
			if code != 1 || out != "" || len(d.requests) == 0 {
				t.Errorf("exit code %d, stdout %q and %d requests, want 1, nothing and some", code, out, len(d.requests))
			}
			if !strings.Contains(errs, "database is away") || !strings.Contains(errs, "wait a while") || strings.ContainsAny(errs, "\x1b\u202e") {
				t.Errorf("stderr = %q, want the error with its remedy, and no terminal control characters", errs)
			}
		})
	}
}

// An invalid response of the daemon is an error; no command panics.
func TestInvalidDaemonResponseIsAnError(t *testing.T) {
	for _, line := range []string{"jail ls", "jail show " + aJail, "snapshot ls", "agent show r", "approval show a", "audit show 1", "audit ls", "policy show " + aJail, "egress show " + aJail, "call a", "health", "lineage"} {
		for _, garbage := range []string{"", "null", `"text"`, `{"items":5}`, "<html>", `{"items":[{"id":5}]}`, "500 <html>", `404 not json`, `{"items":[`} {
			d := newScriptedDaemon(t, nil)
			d.problem = garbage
			code, _, errs := d.run("", argsOf(line)...)
			if code != 0 && (code != 1 || errs == "") {
				t.Errorf("%s with the response %q: exit code %d and stderr %q, want 1 and a reason", line, garbage, code, errs)
			}
			if strings.Contains(errs, "panic") {
				t.Errorf("%s with the response %q panics: %s", line, garbage, errs)
			}
		}
	}
}
