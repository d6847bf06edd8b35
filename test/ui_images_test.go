package test_test

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"glasshouse/api/wire"
)

// TestScreenshots creates the images of the documentation for `make screenshots`.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("GLASSHOUSE_SCREENSHOTS")
	if dir == "" {
		t.Skip("runs with make screenshots")
	}
	browser := browse(t)
	h := open(t, tools()+models(t, modelThatCounts), "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser, garden: h.running(wire.CreateJail{Name: "garden", Labels: map[string]string{"team": "growers"}})}
	j := u.garden.ID
	h.sh(j, "mkdir -p /root/beds && cd /root/beds && for n in 1 2 3 4 5 6; do echo seed $n > bed$n; sleep 0.3; done; ls -l; cat /etc/nosuch")
	sown := u.snapshot(j, "sown")
	h.sh(j, "cd /root/beds && for n in 2 4; do echo water >> bed$n; sleep 0.4; done; rm bed6; grep -r water .")
	branch, err := h.BranchSnapshot(t.Context(), sown.ID, wire.Branch{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	h.sh(branch.Jails[0].ID, "echo mulch >> /root/beds/bed1; echo note > /root/notes")
	run := u.pursued("count to three", "sess-count")
	waiting := u.asks(u.careful("release"), wire.Question{Action: "bash", Resource: "git push origin main --tags", Agent: "builder"})

	p := h.login(t, browser, "admin")
	u.page = p
	for _, shot := range []struct {
		name, path, says, scheme string
		phone                    bool
	}{
		{"jails", "/jails", "garden", "light", false},
		{"jail", at(j, "events") + "&lanes=yes&q=type:proc,file", "events", "light", false},
		{"jail-dark", at(j, "processes") + "&ended=yes&lanes=yes", "exit 1", "dark", false},
		{"lineage", "/lineage?at=" + string(sown.ID) + "&with=" + string(branch.Jails[0].ID), "/root/notes", "light", false},
		{"run", "/chat/run/" + string(run.ID), "Result", "light", false},
		{"approval-phone", "/approvals/" + string(waiting.ID), "Why approval is required", "light", true},
	} {
		p.window(1280, 800)
		if shot.phone {
			p.phone()
		}
		p.prefers(shot.scheme)
		p.open(shot.path)
		p.waitText(shot.says)
		p.until("be still", `document.readyState === "complete" && document.fonts.status === "loaded"`)
		p.do(`new Promise(done => setTimeout(done, 2500))`) // the event stream has delivered the usage
		u.takes(filepath.Join(dir, shot.name+".png"))
	}
	u.allows(waiting)
}

// takes saves a screenshot of the page.
func (u *ui) takes(file string) {
	u.Helper()
	shot, err := chromedp.Run(u.page.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		u.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		u.Fatal(err)
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, img); err != nil {
		u.Fatal(err)
	}
	if small.Len() > len(shot) {
		small.Reset()
		small.Write(shot)
	}
	if small.Len() > 150_000 {
		u.Errorf("%s has %d bytes, want at most 150000", file, small.Len())
	}
	if err := os.WriteFile(file, small.Bytes(), 0o644); err != nil {
		u.Fatal(err)
	}
}
