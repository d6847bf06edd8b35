package skill

import (
	"regexp"
	"slices"
	"strings"

	safetext "glasshouse/internal/text"
)

// A Danger is a text that would do harm if it were executed or followed outside a sandbox.
type Danger struct {
	File string
	Line int
	Text string // the line, truncated
	Why  string
}

// A sign is the pattern of a dangerous line.
type sign struct {
	words []string // the line contains one of them in lower case; a fast filter
	form  *regexp.Regexp
	why   string
}

func newSign(why, words, form string) sign {
	return sign{words: strings.Fields(words), form: regexp.MustCompile(form), why: why}
}

// dangers are the patterns for every line. They inform the reader of the report; the isolation
// of the sandbox does not depend on them.
var dangers = []sign{
	newSign("runs code from a server without verification",
		"curl wget fetch",
		`(?i)\b(?:curl|wget|fetch)\b[^|;]*\|\s*(?:sudo\s+)?(?:/\S*/)?(?:env\s+)?(?:ba|z|da|k)?sh\b`),
	newSign("runs code from a server without verification",
		"curl wget fetch",
		`(?i)\b(?:curl|wget)\b[^|;]*\|\s*(?:sudo\s+)?(?:/\S*/)?(?:python3?|node|perl|ruby)\b`),
	newSign("runs code from a server without verification",
		"curl wget fetch",
		`(?i)(?:\b(?:ba|z)?sh\b|\bsource\b|\beval\b|\.)\s*(?:-c\s*)?["']?(?:<\(|\$\(|`+"`"+`)\s*(?:curl|wget)\b`),
	newSign("obfuscates the code that it runs",
		"base64 exec eval",
		`(?i)base64\s+(?:-d|-D|--decode)\b.*\|\s*(?:ba|z)?sh\b|\bexec\s*\(\s*(?:base64|zlib|codecs|__import__)|\beval\s*\(\s*(?:atob|Buffer)`),
	newSign("opens a remote shell",
		"/dev/tcp nc socat",
		`/dev/tcp/|\bnc\b[^\n]*\s-[a-z]*e\b|\bncat\b[^\n]*--exec|\bsocat\b[^\n]*\bexec:`),
	newSign("reads keys or private data of the user",
		"/.",
		`(?i)(?:~|\$HOME|\$\{HOME\}|/home/[^/\s]+|/root)/\.(?:ssh|aws|gnupg|kube|docker|netrc|npmrc|pypirc|git-credentials|config/(?:gcloud|gh|op)|mozilla|bash_history|zsh_history)\b`),
	newSign("reads keys or accounts of the host",
		"id_ .ssh /etc/ login security",
		`(?i)\bid_(?:rsa|ed25519|ecdsa|dsa)\b|\.ssh/|/etc/(?:shadow|passwd|sudoers)\b|Login Data|Library/Keychains|\bsecurity\s+find-(?:generic|internet)-password`),
	newSign("requests the host's cloud credentials",
		"169.254 metadata",
		`169\.254\.169\.254|metadata\.google\.internal`),
	newSign("requests administrator privileges",
		"sudo doas su",
		`(?:^|[\s;&|(`+"`"+`])(?:sudo|doas|su\s+-)\s`),
	newSign("makes files accessible to all users, or gives privileges to a program",
		"chmod setcap",
		`\bchmod\s+(?:-R\s+)?(?:0?777|[ugoa]*\+[rwx]*s)\b|\bsetcap\b`),
	newSign("deletes files of others",
		"rm mkfs dd",
		`\brm\s+(?:-[a-zA-Z]+\s+)*(?:--no-preserve-root\s+)?["']?(?:/|~|\$HOME|\$\{HOME\}|\*)["']?(?:\s|$|/\*|\*)|\bmkfs\b|\bdd\b[^\n]*\bof=/dev/`),
	newSign("installs itself persistently",
		"crontab systemctl launch /. /etc/cron authorized_keys",
		`\bcrontab\b|\bsystemctl\s+(?:enable|start)|\blaunchctl\b|>>?\s*(?:~|\$HOME)/\.(?:bashrc|zshrc|profile|bash_profile)|/etc/cron|LaunchAgents|authorized_keys`),
	newSign("tries to escape from its sandbox",
		"docker nsenter",
		`\bdocker\b[^\n]*(?:--privileged|-v\s+/:|/var/run/docker\.sock)|\bnsenter\b`),
	newSign("contains a secret in plain text",
		"akia sk- gh xox aiza private",
		`AKIA[0-9A-Z]{16}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bxox[abprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY-----`),
	newSign("instructs the agent to conceal actions or to ignore other instructions",
		"ignore disregard forget not n't never without skip",
		`(?i)\b(?:ignore|disregard|forget)\b.{0,30}\b(?:previous|prior|above|all|other|system)\b.{0,20}\b(?:instruction|prompt|rule|message)s?\b|\b(?:do not|don't|never|without)\b.{0,20}\b(?:tell|telling|mention|inform|informing|show|asking|ask)\b.{0,20}\b(?:the |your )?user\b|\bskip\b.{0,20}\b(?:approval|confirmation|permission)s?\b`),
}

// commands are the patterns for code. In prose the same words are harmless.
var commands = []sign{
	newSign("downloads code at run time: add it to the image instead",
		"install add get run tool sync dlx npx uvx pipx npm pnpm yarn",
		`(?i)(?:^|[\s;&|(`+"`"+`])(?:pip3?|pipx|uv|uvx|npm|npx|pnpm|yarn|gem|cargo|go|brew|apt|apt-get|apk|dnf|yum)\s+(?:-\S+\s+)*(?:install|add|i|get|run|tool|sync|dlx)\b|(?:^|[\s;&|(`+"`"+`])(?:npx|uvx|pipx)\s+\S`),
	newSign("starts a server next to the agent: use a capability with a port, which runs in a sandbox",
		"uvicorn gunicorn flask http.server nohup &",
		`\b(?:uvicorn|gunicorn|flask\s+run|http\.server|nohup)\b|(?:^|\s)&\s*$`),
	newSign("sends a request outside the policy: use a capability that declares its hosts",
		"curl wget",
		`(?i)(?:^|[\s;&|(`+"`"+`])(?:curl|wget)\s`),
}

// maxDangers is the maximum number per file.
const maxDangers = 50

// look returns the dangers of a script.
func look(file, text string) []Danger {
	var all []Danger
	low := strings.ToLower(text)
	signs := slices.DeleteFunc(slices.Concat(dangers, commands), func(s sign) bool { return !s.near(low) })
	line := 0
	for l := range strings.SplitSeq(text, "\n") {
		line++
		if why := danger(l, signs); why != "" {
			all = append(all, Danger{File: file, Line: line, Text: shown(l), Why: why})
		}
		if len(all) == maxDangers {
			break
		}
	}
	return all
}

// longest is the maximum length of a line that people read to its end.
const longest = 4096

// danger returns why a line is dangerous, or "".
func danger(line string, signs []sign) string {
	if len(line) > longest {
		return "the line is too long to be reviewed"
	}
	if strings.ContainsFunc(line, safetext.Covert) {
		return "contains invisible characters"
	}
	low := strings.ToLower(line)
	for _, s := range signs {
		if s.near(low) && s.form.MatchString(line) {
			return s.why
		}
	}
	return ""
}

func (s sign) near(low string) bool {
	return slices.ContainsFunc(s.words, func(w string) bool { return strings.Contains(low, w) })
}

// A scan tracks which lines of a Markdown text are code.
type scan struct {
	fence string // end of the open code block; empty: none
}

var fence = regexp.MustCompile("^\\s{0,3}(?:[-*>]\\s+|\\d+[.)]\\s+)*(`{3,}|~{3,})")

// starts matches a line that looks like a command.
var starts = regexp.MustCompile(`^\s*(?:[$>%]\s+)?(?:cd|curl|wget|pip3?|pipx|uvx?|npm|npx|pnpm|yarn|brew|apt|apt-get|python3?|node|nohup|uvicorn|gunicorn|docker|export|source|bash|sh|go|cargo|gem)\s+\S`)

// isCode reports whether the next line is code or contains code.
func (s *scan) isCode(line string) bool {
	m := fence.FindStringSubmatch(line)
	switch {
	case m == nil && s.fence != "":
		return true
	case m == nil:
		return starts.MatchString(line) || strings.Contains(line, "`") || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t") || strings.HasPrefix(strings.TrimSpace(line), "$ ")
	case s.fence == "":
		s.fence = m[1]
	case strings.HasPrefix(m[1], s.fence):
		s.fence = ""
	}
	return false
}

// shown returns a line in printable form for a report.
func shown(line string) string { return cut(safetext.Visible(strings.TrimSpace(line)), 120) }

// cut returns the beginning of a text.
func cut(s string, n int) string {
	return safetext.Columns(s, n)
}
