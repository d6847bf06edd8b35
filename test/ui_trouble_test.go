package test_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the database driver of the daemon

	"glasshouse/api/wire"
	"glasshouse/id"
)

// nowhere is an address without a listener.
const nowhere = "http://127.0.0.1:9/"

// unlucky is the configuration of a daemon that can reach no server.
const unlucky = `
  connectors:
    posts:
      - {name: ops, sessions: ["*"], url: "` + nowhere + `", networks: [127.0.0.0/8]}
approvals:
  webhooks:
    - {name: pager, url: "` + nowhere + `"}
observe: {ring_kb: 64}
`

// showsFailures shows failures, on a separate daemon whose database is modified while it is
// stopped.
func (u *ui) showsFailures() {
	h := open(u.T, tools()+models(u.T, modelThatCounts)+unlucky, "--listen", "127.0.0.1:0")
	own := &ui{daemonHarness: h, browser: u.browser}
	p := h.login(u.T, u.browser, "admin")
	own.page = p

	// A jail that produces events faster than they are recorded, and continues.
	fast := h.running(wire.CreateJail{Name: "fast", Observe: wire.Observe{OnOverload: "count"}})
	h.watchedByKernel(fast.ID)
	h.losesRecords(fast.ID)
	p.open(at(fast.ID, "events") + "&q=type:gap")
	p.until("say what is missing", found("main header dd a", "missing"))
	p.until("list the gaps", `[...document.querySelectorAll("[role=option] .line")].some(e => e.innerText.includes("gap") && e.innerText.includes("are missing"))`)
	p.until("mark them in the timeline", `document.querySelector("[aria-label=Timeline] [role=img]").ariaLabel.includes("missing")`)
	p.open("/doctor?view=records")
	p.waitText("show gaps")

	// A notification and a message that cannot be delivered.
	h.allows(own.asks(own.careful("careful"), wire.Question{Action: "bash", Resource: "git push"}))
	const says = `bash -c 'exec 3<>/dev/tcp/127.0.0.1/4097; printf "POST /run/messages HTTP/1.1\r\nHost: localhost:4097\r\nContent-Type: application/json\r\nContent-Length: 28\r\nConnection: close\r\n\r\n{\"text\":\"is anybody there?\"}" >&3; cat <&3'`
	r, err := h.StartRun(h.Context(), wire.StartRun{Goal: "say something", Session: "sess-loud", Agent: shellRun(says, func(*wire.RunAgent) {})})
	if err != nil {
		u.Fatal(err)
	}
	if now := h.settled(r.ID, "done", "failed"); now.State != "done" {
		u.Fatalf("run of the agent that sends a message: %+v", now)
	}
	own.asksFromItsRun()
	h.modifyDatabase(func(db *sql.DB) {
		given := func(table, set, where string) {
			u.Helper()
			if !within(20*time.Second, func() bool {
				done, err := db.Exec("UPDATE " + table + " SET " + set + " WHERE " + where)
				if err != nil {
					u.Fatal(err)
				}
				n, err := done.RowsAffected()
				return err == nil && n > 0
			}) {
				u.Fatalf("table %s is empty", table)
			}
		}
		given("approval_notices", `document = json_set(document, '$.dead', json('true'), '$.attempts', 12, '$.error', 'nobody answers the pager')`, "true")
		given("deliveries", `state = 'dead', document = json_set(document, '$.state', 'dead', '$.attempts', 12, '$.error', 'nobody takes it')`, "receiver = 'ops'")
		given("chain_entries", `line = replace(line, 'git push', 'git pull')`, "kind = 'approval.asked'")
	})
	p.base = "http://" + h.tcpAddr()
	p.enter(h, "admin")

	p.open("/doctor?view=deliveries")
	p.waitText("nobody answers the pager")
	p.waitText("nobody takes it")
	const dead = `document.querySelectorAll("[aria-label='Dead notices'] tbody tr").length`
	before := evaluate[int](p, dead)
	p.press("[aria-label='Dead notices'] button", "Retry the notification")
	p.waitText("Retry scheduled")
	p.until("have a dead notice less", fmt.Sprintf("%s === %d", dead, before-1))
	p.open("/connectors?name=ops&state=dead")
	p.waitText("nobody takes it")
	p.press("button", "Retry all dead")
	p.until("have no dead delivery", `!document.body.innerText.includes("nobody takes it")`)

	// An audit log entry that was modified is reported above everything else.
	p.open("/chain")
	p.press("button", "Verify all")
	p.waitText("The chain is broken at entry ")
	told := evaluate[struct{ Role, Link string }](p, `(e => ({ Role: e.getAttribute("role"), Link: e.querySelector("a").pathname }))(document.querySelector("[aria-label=Verification] .says"))`)
	if told.Role != "alert" || told.Link == "" {
		u.Errorf("the broken audit log is reported with role %q and a link to %q", told.Role, told.Link)
	}
	p.press("[aria-label=Verification] a", "Show the entry")
	p.waitText("approval.asked")
	p.waitText("git pull")
}

// modifyDatabase stops the daemon and modifies its database.
func (h *daemonHarness) modifyDatabase(change func(db *sql.DB)) {
	h.Helper()
	h.cmd.Process.Signal(syscall.SIGTERM)
	if err := h.cmd.Wait(); err != nil {
		h.Errorf("the daemon exited: %v:\n%s", err, h.log.tail(2000))
	}
	db, err := sql.Open("sqlite", filepath.Join(h.data, "glasshouse.db"))
	if err != nil {
		h.Fatal(err)
	}
	change(db)
	if err := db.Close(); err != nil {
		h.Fatal(err)
	}
	h.start()
}

// losesRecords makes a jail produce more events than fit into the buffer while the daemon reads
// none.
func (h *daemonHarness) losesRecords(j id.Jail) {
	h.Helper()
	if !within(time.Minute, func() bool {
		const mark = "345678"
		if _, err := h.Exec(h.Context(), j, wire.ExecRequest{Cmd: "sleep 0.5; probe storm " + mark + " 1", Detach: true}); err != nil {
			h.Fatal(err)
		}
		h.cmd.Process.Signal(syscall.SIGSTOP)
		over := within(time.Minute, func() bool { return len(startedWith(mark)) == 0 })
		h.cmd.Process.Signal(syscall.SIGCONT)
		now, err := h.Jail(h.Context(), j)
		if err != nil || !over {
			h.Fatalf("the load ended too early: %v, %v", over, err)
		}
		return now.Observation.Sources["kernel"].Lost > 0
	}) {
		h.Fatal("no events are lost although the daemon is stopped")
	}
}

// asksFromItsRun makes a run wait for an approval, and answers it on the page of the run.
func (u *ui) asksFromItsRun() {
	asks := wire.Policy{Level: 1, Files: []wire.PolicyFile{{Name: "opencode.json", Text: `{"permission":{"bash":{"*":"ask"}}}`}}}
	r, err := u.StartRun(u.Context(), wire.StartRun{Goal: "count to three", Session: "sess-asks", Agent: &wire.RunAgent{Jail: &wire.CreateJail{Policy: &asks}}, Budget: map[string]int64{"steps": 40}})
	if err != nil {
		u.Fatal(err)
	}
	p := u.page
	p.open("/chat/run/" + string(r.ID))
	for _, command := range []string{"echo one", "echo two", "echo three"} {
		p.press(".asked a", "")
		p.waitText("Why approval is required")
		p.waitText(command)
		p.press("form button", "Approve")
		p.waitText("Approved by")
		p.open("/chat/run/" + string(r.ID))
	}
	p.waitText("Result")
	amounts := evaluate[[]string](p, `[...document.querySelectorAll("[aria-label=Budget] .amount")].map(e => e.innerText)`)
	for _, amount := range amounts {
		if !strings.Contains(amount, " no limit") && !strings.Contains(amount, " of ") {
			u.Errorf("budget shows %q", amount)
		}
	}
	if len(amounts) == 0 || !strings.HasSuffix(amounts[0], " of 40") {
		u.Errorf("budget of 40 steps shows %q", amounts)
	}
	p.until("show the result with its formatting", `document.querySelector("[aria-label=Outcome] .markdown")`)

	// Parts of the UI whose code cannot be loaded, as when the daemon stops meanwhile.
	p.withoutCode(func() {
		p.open("/chat/run/" + string(r.ID))
		p.until("show the result as text", `document.querySelector("[aria-label=Outcome] > p")?.innerText`)
		p.ctrl('k')
		p.waitText("The command palette could not be loaded")
		p.open("/doctor?view=storage")
		p.until("report the failure", `document.querySelector("[role=tabpanel] [role=alert]")?.innerText.includes("Retry")`)
	}, "Markdown", "Palette", "Storage")
	p.press("[role=tabpanel] [role=alert] button", "Retry")
	p.until("show the storage", `document.querySelector("[role=tabpanel] [role=alert]") === null && document.body.innerText.includes("free")`)
}

func (u *ui) draftsAPolicy() {
	const policy = "{\n  \"permission\": {\n    \"bash\": {\n      \"*\": \"ask\",\n      \"git status\": %q\n    }\n  }\n}\n"
	p := u.page
	p.open("/governance?view=policy")
	p.waitText("This is a draft")
	marked := func(class string) string {
		return fmt.Sprintf(`document.querySelector(".gutter .%s")?.innerText === "5" && document.querySelector("[aria-label=Findings] .tag.%s")`, class, class)
	}
	p.fill("Text of opencode.json", fmt.Sprintf(policy, "perhaps"))
	p.until("mark what cannot be read", marked("bad"))
	p.fill("Text of opencode.json", fmt.Sprintf(policy, "allow"))
	p.until("take it", `!document.querySelector(".gutter .bad")`)
	p.fill("Resource", "git status")
	p.press("button", "Evaluate")
	p.waitText("The action would be allowed")
	p.fill("Text of opencode.json", fmt.Sprintf(policy, "deny"))
	p.waitText("The action would be denied") // without being asked again
	p.fill("Text of opencode.json", "{\"permission\": {\"bash\": {\"*\": \"ask\",\n\n\n\n\"rm -rf *\": \"deny\", \"git push\": \"allow\"}}}")
	p.until("mark what does not do what it seems to", marked("wait"))
	p.fill("Text of opencode.json", "")
	p.waitText("No rules to check yet")
}

// staysCalm checks the page of the doctor on a host that lacks optional features. These need no
// action, so nothing on the page is red.
func (u *ui) staysCalm() {
	p := u.page
	p.open("/doctor")
	p.waitText("Findings")
	// The test host may have all features.
	p.do(`(() => {
		const real = window.fetch, answer = (body) => new Response(JSON.stringify(body), { headers: { "Content-Type": "application/json" } });
		window.fetch = async (to, how) => {
			const path = new URL(to.url ?? to, location.href).pathname;
			if (path.endsWith("/doctor")) return answer({ items: [
				{ name: "seccomp", status: "ok", detail: "yes" },
				{ name: "kvm", status: "unsupported", reason: "no /dev/kvm", remedy: "load the module kvm" },
				{ name: "criu", status: "unknown", reason: "the check took too long" },
			] });
			if (path.endsWith("/backends")) return answer({ items: [{ name: "oci", runtime: "runsc", usable: false, reason: "runsc is not installed", remedy: "make setup" }] });
			return real(to, how);
		};
	})()`)
	p.press("button", "Check again")
	p.waitText("2 of 3 features not available")
	p.waitText("runsc is not installed")
	red := evaluate[[]string](p, `(() => {
		const probe = document.body.appendChild(document.createElement("i"));
		const reds = ["--red", "--red-soft"].map((name) => (probe.style.color = "var(" + name + ")", getComputedStyle(probe).color));
		probe.remove();
		return [...document.querySelectorAll("main *")].filter((e) => {
			const s = getComputedStyle(e);
			return reds.includes(s.color) || reds.includes(s.backgroundColor);
		}).map((e) => e.outerHTML.slice(0, 200));
	})()`)
	if len(red) > 0 {
		u.Errorf("missing optional features shown in red: %q", red)
	}
}
