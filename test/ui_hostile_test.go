package test_test

import (
	"fmt"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// hostile is a name that contains HTML, terminal escape sequences and characters that mislead a
// reader.
const hostile = "<img src=x onerror=\"window.__xss='name'\">'`${__xss=1}{{7*7}}&lt;b\x1b[31m\x1b]0;taken\x07\u202etxt\u200bend"

// shown is how the UI displays it.
const shown = `<img src=x onerror="window.__xss='name'">'` + "`${__xss=1}{{7*7}}&lt;b" + `\e[31m\e]0;taken\x07\u202etxt\u200bend`

// script is a text that a page must not execute.
const script = `<script>window.__xss="text"</script><svg onload="window.__xss='svg'"><a href="javascript:window.__xss='link'">click</a><iframe srcdoc="<script>parent.__xss=1</script>">`

// unmoved fails the test if output of a jail was interpreted as more than text.
func (u *ui) unmoved(p *tab, where string) {
	u.Helper()
	told := evaluate[struct {
		Ran, Title, Unseen string
		Made               []string
	}](p, `({
		Ran: String(window.__xss ?? ""), Title: document.title,
		Made: [...document.querySelectorAll("script:not([src]), iframe, object, embed, base, form[action], [onload], [onerror], a[href^='javascript'], img[src='x'], main marquee")].map(e => e.outerHTML.slice(0, 200)),
		Unseen: document.body.innerText.match(/.{0,20}[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069].{0,20}/)?.[0] ?? "",
	})`)
	if told.Ran != "" || strings.Contains(told.Title, "taken") || len(told.Made) > 0 {
		u.Errorf("%s: output of a jail was interpreted: script %q ran, the title is %q, elements %q", where, told.Ran, told.Title, told.Made)
	}
	if told.Unseen != "" {
		u.Errorf("%s: the page contains invisible characters: %q", where, told.Unseen)
	}
	p.clean() // violations of the content security policy appear there
}

func (u *ui) showsNames() {
	j := u.running(wire.CreateJail{Name: "wild", Hostname: "wild", Env: map[string]string{"NAME": hostile, "SCRIPT": script}, Labels: map[string]string{"of": script}}).ID
	u.watchedByKernel(j)
	// Names of files and directories, file contents, argv, the process's own name, working
	// directories, links.
	u.sh(j, `cd /root && mkdir "dir $NAME" && cd "dir $NAME" && printf '%s\n' "$SCRIPT" > "$NAME" && ln -s "$SCRIPT" link && ls -d "$NAME" "$SCRIPT"; ls --"$NAME" 2>/dev/null; cp /bin/ls "/root/<b>ls" && "/root/<b>ls" "$SCRIPT"; exit 3`)

	p := u.page
	for _, view := range []string{"files", "processes&ended=yes", "events&q=type:file+op:create", "events&q=type:proc+op:exec", "syscalls", "commands", "processes&lanes=yes&ended=yes"} {
		p.open(at(j, view))
		switch view {
		case "syscalls":
			p.waitText("Failures")
		case "commands":
			p.waitText("$NAME")
		case "files", "events&q=type:file+op:create":
			p.waitText(shown)
		default:
			p.waitText(shown[strings.Index(shown, "`"):]) // a command is shell-quoted
		}
		u.unmoved(p, view)
	}
	p.open(at(j, "files") + "&file=" + escaped("/root/dir "+hostile+"/"+hostile))
	p.waitText(script[:40])
	u.unmoved(p, "a file")

	for _, place := range []string{"/jails?q=wild", "/lineage"} {
		p.open(place)
		p.waitText("wild")
		u.unmoved(p, place)
	}
	for q, says := range map[string]string{script: "of=<script>", hostile: "No jail has"} {
		p.open("/jails?q=" + escaped(q))
		p.waitText(says)
		u.unmoved(p, "what is searched for")
		p.open(at(j, "events") + "&q=" + escaped(q))
		p.until("say something of the filter", `document.querySelector("[role=alert]") || document.body.innerText.includes("No events match")`)
		u.unmoved(p, "a filter")
	}
	for _, place := range []string{"/jails/" + escaped(script), "/approvals/" + escaped(script), "/" + escaped(script)} {
		p.open(place)
		p.until("say that it is not there", `document.querySelector("[role=alert], .lost")`)
		u.unmoved(p, place)
	}

	// The daemon generates the report, a page without scripts.
	p.open("/jails/" + string(j) + "/report?format=html")
	p.until("show the report", `document.querySelector("h1")`)
	u.unmoved(p, "the report")
}

// evilHost is resolved by name and used in a request. It is not a valid host name: the request
// is refused, and the record has no host.
const evilHost = "<img src=x onerror=__xss=1>"

func (u *ui) showsHosts() {
	j := u.running(wire.CreateJail{Name: "asks-around", Network: "proxy"}).ID
	u.watchedByKernel(j)
	u.copyIn(j, "/root/ask", fmt.Sprintf(`printf '\022\064\001\000\000\001\000\000\000\000\000\000\%03o%s\007example\000\000\001\000\001' > /dev/udp/10.0.0.1/53
exec 3<>/dev/tcp/198.51.100.7/80
printf 'GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n' >&3
read -t 30 line <&3
echo "$line"
`, len(evilHost), evilHost, "<b>path", evilHost))
	if got := u.sh(j, "bash /root/ask"); !strings.Contains(got, "400 Bad Request") {
		u.Errorf("request to an invalid host: got %q", got)
	}
	p := u.page
	p.open(at(j, "events") + "&q=" + escaped("type:net"))
	p.waitText("198.51.100.7")
	u.unmoved(p, "names in the record")
	p.open(at(j, "network"))
	p.waitText("198.51.100.7")
	u.unmoved(p, "whom a jail talked to")
	p.open("/governance?view=egress")
	p.waitText("Egress")
	u.unmoved(p, "what was refused")
	p.open("/jails/" + string(j) + "/report?format=html")
	p.until("show the report", `document.querySelector("h1")`)
	u.unmoved(p, "a report of hosts")
}

func (u *ui) showsOutput() {
	p, j := u.page, u.garden.ID
	p.open(at(j, "commands"))
	p.fill("Command for", `printf '%s\n' '`+strings.ReplaceAll(script, "'", "")+`'; printf 'a\000b\033[2Jc\033]0;taken\007\n'; printf '<b>wrong</b>\n' >&2`)
	p.press("button", "Run")
	p.waitText("<b>wrong</b>")
	p.waitText(`<script>window.__xss="text"</script>`)
	u.unmoved(p, "the output of a command")

	u.terminal()
	// Titles, links, the clipboard, queries whose responses appear as input, colours, sizes,
	// images, resets.
	sequences := "\x1b]0;taken\a\x1b]2;taken\x1b\\\x1b]8;;javascript:window.__xss=1\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;dGFrZW4=\a\x1bP$qm\x1b\\\x1b[6n\x1b[c\x1b[>c\x1b]10;?\a\x1b[38;2;200;0;0m\x1b[8;500;500t\x1b[3t\x1b]1337;File=inline=1:AAAA\a\x1bc"
	u.copyIn(j, "/root/screen", sequences+"<img src=x onerror=window.__xss=1>\n")
	p.keys("cat /root/screen; read -rs -t 1 -n 100000 -d '' told; echo; echo end-of-''it\r")
	p.until("show it", `document.querySelector(".xterm").innerText.includes("\nend-of-it")`)
	p.until("show it as text", `document.querySelector(".xterm").innerText.includes("<img src=x onerror=window.__xss=1>")`)
	u.unmoved(p, "a terminal")
	p.keys("exit\r")
	p.waitText("The shell")
}

func (u *ui) showsQuestions() {
	j := u.careful("asker")
	for _, question := range []wire.Question{
		{Action: "bash", Resource: "echo " + hostile, Agent: script[:100], Attributes: map[string]string{"<b>why</b>": script}},
		{Action: "bash", Resource: script},
	} {
		pending := u.asks(j, question)
		p := u.page
		p.open("/approvals/" + string(pending.ID))
		p.waitText("Why approval is required")
		p.waitText(question.Resource[:30]) // the rest is shown in the form that the daemon produces
		u.unmoved(p, "a question")
		if _, err := u.Answer(u.Context(), pending.ID, wire.AnswerApproval{Answer: "deny", Reason: script}); err != nil {
			u.Fatal(err)
		}
		p.open("/approvals/" + string(pending.ID) + "?state=settled")
		p.waitText(`<script>window.__xss="text"`)
		u.unmoved(p, "an answer")
	}
}

// asks sends a question and waits for its answer without a time limit.
func (u *ui) asks(j id.Jail, q wire.Question) wire.Approval {
	u.Helper()
	c, ctx := u.Client, u.Context()
	go c.Decide(ctx, j, wire.Decide{Question: q, WaitMS: 600_000})
	return u.pendingApproval(j, q.Resource)
}

// escaped returns a text escaped for a URL.
func escaped(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, "%%%02x", c)
	}
	return b.String()
}
