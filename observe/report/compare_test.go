package report_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"glasshouse/api/wire"
	"glasshouse/observe/report"
)

// compared returns a comparison in which every name that a jail can choose is s.
func compared(s string) *report.Comparison {
	t := report.Text(s)
	r := report.RunningProcess{PID: 5, PPID: 1, Began: time.Unix(1e9, 0), Comm: t, Exe: t, Argv: []report.Text{t, t}, Cwd: t}
	was := r
	was.Argv, was.Cwd = nil, t+"x"
	files := &report.FileChanges{Counts: map[string]int64{"modified": 1, "renamed": 1}, More: 3, List: []report.FileChange{
		{Path: "/" + t, Kind: "modified", Type: "file", Diff: "--- a/" + t + "\n+++ b/" + t + "\n@@ -1 +1 @@\n-" + t + "\n+" + t + "\n"},
		{Path: t, From: t, Kind: "renamed", Type: "file", What: []string{"mode"}, NoDiff: "binary"},
	}}
	return &report.Comparison{
		From:  report.End{Jail: "j-aaaaaaaaaaaa", Snapshot: "s-aaaaaaaaaaaa", Name: t, State: "running", Time: time.Unix(1e9, 0), Seq: 7},
		To:    report.End{Jail: "j-bbbbbbbbbbbb", Name: t, State: "paused", Time: time.Unix(1e9, 0), Seq: 9},
		Files: files, Workspace: &report.FileChanges{Unknown: s},
		Processes: &report.ProcessChanges{
			Started: []report.RunningProcess{r, {PID: 6, Comm: t}}, Ended: []report.RunningProcess{was}, Same: 4,
			Changed: []report.ProcessChange{{RunningProcess: r, Was: &was, Env: []report.EnvChange{{Name: t, From: &t}, {Name: t, To: &t, Hidden: true}}}},
			Opened:  []report.Connection{{PID: 5, Comm: t, Proto: "tcp", Local: "127.0.0.1:80", State: "listening"}},
			Closed:  []report.Connection{{PID: 5, Comm: t, Proto: "tcp", Local: "10.0.0.2:1", Remote: "1.1.1.1:80", State: "established"}}, More: 2,
		},
		Events: &report.EventChanges{
			Since: &report.End{Jail: "j-aaaaaaaaaaaa", Seq: 7}, From: report.EventCount{Unknown: s},
			To: report.EventCount{Total: 30, ByType: map[string]int64{"syscall": 20, "net": 2, "file": 8}},
		},
		Usage: &report.UsageChanges{From: &report.Used{Memory: 2 << 20, CPU: 5e6}, To: &report.Used{Memory: 1 << 20, CPU: 9e6, NotMeasured: []string{"rx_bytes"}}},
	}
}

func TestComparisonPageEscapesHostileNames(t *testing.T) {
	elements := strings.Fields("html head meta title style body main nav div h1 h2 h3 p span ul li a b br code details summary table thead tbody tr th td")
	attributes := strings.Fields("lang charset name content class id href aria-label")
	for _, attack := range attacks {
		c := compared(attack)
		var page, text bytes.Buffer
		if err := c.HTML(&page); err != nil {
			t.Fatal(err)
		}
		style := ""
		for z := html.NewTokenizer(&page); ; {
			kind := z.Next()
			if kind == html.ErrorToken {
				break
			}
			tok := z.Token()
			switch kind {
			case html.StartTagToken, html.SelfClosingTagToken:
				if !slices.Contains(elements, tok.Data) {
					t.Errorf("%.40q makes an element %s", attack, tok.Data)
				}
				for _, a := range tok.Attr {
					if !slices.Contains(attributes, a.Key) || a.Key == "href" && !strings.HasPrefix(a.Val, "#") || strings.Contains(a.Val, "EVIL") {
						t.Errorf("%.40q makes an attribute %s=%q", attack, a.Key, a.Val)
					}
				}
				if tok.Data == "style" {
					z.Next()
					style = string(z.Raw())
				}
			case html.TextToken:
				if i := strings.IndexFunc(strings.ReplaceAll(tok.Data, "\n", ""), func(r rune) bool { return r != '\t' && unseen(r) }); i >= 0 {
					t.Errorf("%.40q is written as it is in %.100q", attack, tok.Data)
				}
			}
		}
		sum := sha256.Sum256([]byte(style))
		if !strings.Contains(report.ComparisonPolicy, base64.StdEncoding.EncodeToString(sum[:])) {
			t.Error("the page's style is not the one that its policy allows")
		}
		if err := c.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(strings.ReplaceAll(text.String(), "\n", ""), func(r rune) bool { return r != '\t' && unseen(r) }) {
			t.Errorf("%.40q drives the terminal", attack)
		}
		var w wire.Comparison
		b, err := json.Marshal(c)
		if err == nil {
			dec := json.NewDecoder(bytes.NewReader(b))
			dec.DisallowUnknownFields()
			err = dec.Decode(&w)
		}
		if err != nil || len(w.Files.List) != 2 || len(w.Processes.Changed) != 1 || w.Events.To.Total != 30 || w.Usage.To.CPU != 9e6 {
			t.Errorf("%.40q: as JSON %v, %+v", attack, err, w)
		}
	}
}

func TestComparisonText(t *testing.T) {
	var b strings.Builder
	if err := compared("it").WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"From snapshot s-aaaaaaaaaaaa of j-aaaaaaaaaaaa, running, 2001-09-09 01:46:40 UTC\n", "To   jail j-bbbbbbbbbbbb, paused",
		"\nFiles: 1 modified, 1 renamed\n  modified  file     /it\n    --- a/it\n", "    +it\n  renamed   file     it → it  (mode)  (binary)\n  … and 3 more\n",
		"\nWorkspace: unknown: it\n", "\nProcesses: 2 started, 1 ended, 1 changed, 4 the same\n  started         5 it it\n  started         6 [it]\n  ended           5 [it]\n",
		"            ran [it]\n            was in itx, is in it\n            it: it → unset\n            it: unset → (hidden)\n",
		"  opened    tcp 127.0.0.1:80, listening, by 5 it\n  closed    tcp 10.0.0.2:1 to 1.1.1.1:80, established, by 5 it\n  … and 2 connections more\n",
		"Events since record 7 of jail j-aaaaaaaaaaaa\n  from  unknown: it\n  to    30 records: 20 syscall, 8 file, 2 net\n",
		"Memory", "-1 MiB", "+4 ms",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}
