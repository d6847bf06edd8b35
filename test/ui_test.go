package test_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/id"
)

// TestSizeOfFirstPage measures how much a browser loads before it shows the overview: compressed
// scripts and styles, and the fonts, which are already compressed.
func TestSizeOfFirstPage(t *testing.T) {
	const most, mostFonts = 150_000, 100_000
	dist := "../web/dist"
	index, err := os.ReadFile(filepath.Join(dist, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	// The overview and all its static imports.
	wanted := regexp.MustCompile(`/assets/[\w.-]+`).FindAllString(string(index), -1)
	lists, err := filepath.Glob(filepath.Join(dist, "assets/Overview-*"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("no chunk of the overview in %s: %v", dist, err)
	}
	for _, l := range lists {
		wanted = append(wanted, "/assets/"+filepath.Base(l))
	}
	sum, seen := 0, map[string]bool{}
	for imports := regexp.MustCompile(`from\s*"\./([\w.-]+\.js)"`); len(wanted) > 0; wanted = wanted[1:] {
		if seen[wanted[0]] {
			continue
		}
		seen[wanted[0]] = true
		text, err := os.ReadFile(filepath.Join(dist, wanted[0]))
		if err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write(text)
		w.Close()
		sum += packed.Len()
		for _, m := range imports.FindAllSubmatch(text, -1) {
			wanted = append(wanted, "/assets/"+string(m[1]))
		}
	}
	if sum > most {
		t.Errorf("the first page has %d bytes compressed, want at most %d", sum, most)
	}
	fonts, err := filepath.Glob(filepath.Join(dist, "assets/*.woff2"))
	if err != nil || len(fonts) != 2 {
		t.Fatalf("fonts in %s: %q, %v, want 2", dist, fonts, err)
	}
	size := int64(0)
	for _, file := range fonts {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > mostFonts {
		t.Errorf("the fonts have %d bytes, want at most %d", size, mostFonts)
	}
	t.Logf("%d bytes of scripts and styles, %d bytes of fonts", sum, size)
	if bytes.Contains(index, []byte("<style")) || regexp.MustCompile(`<script[^>]*>[^<]`).Match(index) {
		t.Error("the page has inline scripts or styles, which its content security policy forbids")
	}
}

// A ui is the UI of a daemon in a browser. All subtests share it, because the start takes longer
// than most of them.
type ui struct {
	*daemonHarness
	browser context.Context
	page    *tab      // logged in as an administrator
	garden  wire.Jail // a running jail
	stall   stall     // the market that offers bundles
}

// of returns the UI for a subtest.
func (u *ui) of(t *testing.T) *ui {
	h := *u.daemonHarness
	h.T = t
	return &ui{daemonHarness: &h, browser: u.browser, page: u.page.as(t), garden: u.garden, stall: u.stall}
}

// at returns the address of a view of a jail.
func at(j id.Jail, view string) string { return "/jails/" + string(j) + "?view=" + view }

func TestUI(t *testing.T) {
	browser := browse(t)
	market, config := sells(t)
	h := open(t, tools()+models(t, modelThatIsHostile())+config, "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser, stall: market, garden: h.running(wire.CreateJail{Name: "garden"})}
	h.sh(u.garden.ID, "cd /root && echo one > notes.txt && cat notes.txt /etc/nosuch; exit 3")
	u.page = h.login(t, browser, "admin")

	for _, part := range []struct {
		name string
		try  func(*ui)
	}{
		{"login without a link", (*ui).asksForALink},
		{"login links work once", (*ui).linksWorkOnce},
		{"many tabs share the daemon", (*ui).sharesTheDaemon},
		{"jails are listed and found", (*ui).listsJails},
		{"create a jail", (*ui).makesAJail},
		{"pause and resume a jail", (*ui).pausesAJail},
		{"events are filtered, opened and walked by keys", (*ui).walksEvents},
		{"views of a jail", (*ui).looksAtAJail},
		{"file diffs and images", (*ui).looksAtFiles},
		{"directories that sort between others are shown once", (*ui).findsFilesThatSortBetween},
		{"run a command", (*ui).runsACommand},
		{"terminal input, resize and interrupt", (*ui).typesIntoATerminal},
		{"view the past and branch", (*ui).goesBackInTime},
		{"compare a branch", (*ui).comparesABranch},
		{"answer approvals on a phone", (*ui).answersOnAPhone},
		{"push notification without an open page", (*ui).notifiesWithoutPage},
		{"keyboard navigation", (*ui).goesByKeys},
		{"viewers cannot change anything", (*ui).onlyLooks},
		{"missing optional features are not red", (*ui).staysCalm},
		{"nodes of a fleet", (*ui).showsTheFleet},
		{"hostile names", (*ui).showsNames},
		{"hostile hosts", (*ui).showsHosts},
		{"hostile output", (*ui).showsOutput},
		{"hostile questions", (*ui).showsQuestions},
		{"hostile runs", (*ui).showsRuns},
		{"scheduled runs", (*ui).plansRuns},
		{"update a bundle", (*ui).updatesABundle},
		{"trust a host program", (*ui).trustsAProgram},
		{"pages fit on a phone", (*ui).fitsOnAPhone},
		{"draft a policy", (*ui).draftsAPolicy},
		{"failures are shown", (*ui).showsFailures},
		{"documentation", (*ui).readsDocumentation},
		{"accessibility", (*ui).isAccessible},
		{"bad network", (*ui).survivesBadNetwork},
		{"page memory is bounded", (*ui).doesNotGrow},
	} {
		t.Run(part.name, func(t *testing.T) { part.try(u.of(t)) })
	}
}
