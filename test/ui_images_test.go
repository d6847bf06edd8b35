package test_test

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestScreenshots creates the images of the documentation for `make screenshots`: the scenario of
// the agent that repairs a repository, at two pixels per CSS pixel, in the light and dark theme.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("GLASSHOUSE_SCREENSHOTS")
	if dir == "" {
		t.Skip("runs with make screenshots")
	}
	if !ownWorld(t) {
		return
	}
	servesRegistry(t)
	browser := browse(t)
	h := open(t, tools()+models(t, modelThatRepairs), "--listen", "127.0.0.1:0")
	u := &ui{daemonHarness: h, browser: browser}
	p := h.login(t, browser, "admin")
	u.page = p
	s := u.repairs()

	sum := 0
	for _, shot := range []struct {
		name, path, says string
		phone            bool
	}{
		{"overview", "/", "telemetry.example.net", false},
		{"jail", at(s.jail, "events") + "&q=type:proc,file,net", "denial", false},
		{"lineage", "/lineage?at=" + string(s.snapshot.ID) + "&with=" + string(s.branches[1].ID), "Only in tests pass", false},
		{"run", "/chat/run/" + string(s.run.ID), "subtracted before", false},
		{"approval-phone", "/approvals/" + string(s.waiting.ID), "Impact", true},
	} {
		p.run(chromedp.EmulateViewport(1280, 720, chromedp.EmulateScale(2)))
		if shot.phone {
			p.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulatePortrait, chromedp.EmulateScale(2)))
		}
		for _, scheme := range []string{"light", "dark"} {
			p.prefers(scheme)
			p.open(shot.path)
			p.waitText(shot.says)
			p.until("be still", `document.readyState === "complete" && document.fonts.status === "loaded"`)
			p.do(`new Promise(done => setTimeout(done, 2500))`) // the event stream has delivered the usage
			name := shot.name
			if scheme == "dark" {
				name += "-dark"
			}
			sum += u.takes(filepath.Join(dir, name+".png"))
		}
	}
	if sum > 2_500_000 {
		t.Errorf("the images have %d bytes, want at most 2500000", sum)
	}
	u.ends(s.publish)
}

// takes saves a screenshot of the page and returns its size.
func (u *ui) takes(file string) int {
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
	if err := os.WriteFile(file, small.Bytes(), 0o644); err != nil {
		u.Fatal(err)
	}
	return small.Len()
}
