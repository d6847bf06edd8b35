package test_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"glasshouse/api/wire"
)

// A tab is a page in a real browser.
type tab struct {
	*testing.T
	ctx  context.Context
	base string
	*console
}

// A console is what a page said that it should not have to say.
type console struct {
	mu sync.Mutex
	// +checklocks:mu
	faults []string
}

// browse starts a browser, or skips the test where there is none. It ends with the
// test, and nothing of it is left.
func browse(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("the UI is tried in chromium, which is not there: scripts/setup.sh DATA tests installs it")
	}
	profile := t.TempDir()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(time.Minute), chromedp.WindowSize(1280, 800), chromedp.Flag("js-flags", "--expose-gc"))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("the browser ends with %v", err)
		}
		end()
		if !within(20*time.Second, func() bool { return len(startedWith(profile)) == 0 }) {
			t.Errorf("of the browser there are still %q", startedWith(profile))
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// startedWith finds processes with a word in their arguments.
func startedWith(word string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), word) {
			found = append(found, fmt.Sprintf("%.200q", line))
		}
	}
	return found
}

// blank opens a tab in which nobody is logged in.
func blank(t *testing.T, browser context.Context, base string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	b := &tab{T: t, ctx: ctx, base: base, console: &console{}}
	if err := chromedp.Listen(ctx, b.hear); err != nil { // it opens the tab, too
		t.Fatal(err)
	}
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	t.Cleanup(b.clean)
	return b
}

// login opens a tab and logs in there by a link, as people do.
func (h *house) login(t *testing.T, browser context.Context, role string) *tab {
	t.Helper()
	b := blank(t, browser, "http://"+h.tcpAddr())
	b.enter(h, role)
	return b
}

// enter uses a link of its own.
func (b *tab) enter(h *house, role string) {
	b.Helper()
	link, err := h.CreateLoginLink(b.Context(), wire.CreateLoginLink{Role: role, Label: role})
	if err != nil {
		b.Fatal(err)
	}
	b.open("/login#" + link.Code)
	b.sees("Jails")
}

// as is the tab in a part of the test, which fails for what the page says meanwhile.
func (b *tab) as(t *testing.T) *tab {
	part := &tab{T: t, ctx: b.ctx, base: b.base, console: b.console}
	t.Cleanup(part.clean)
	return part
}

// hear notes what a page should not say: errors, and what its policy forbade.
func (c *console) hear(ev any) {
	var text string
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		text = fmt.Sprintf("%s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception)
	case *log.EventEntryAdded:
		// What was refused, and connections that broke, are told by the page itself.
		if ev.Entry.Level == log.EntryLevelError && ev.Entry.Source != log.EntrySourceNetwork {
			text = ev.Entry.Text
		}
	}
	if text != "" {
		c.mu.Lock()
		c.faults = append(c.faults, text)
		c.mu.Unlock()
	}
}

// clean fails the test for what the console said since it was last asked.
func (b *tab) clean() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.faults {
		b.Errorf("the console says: %s", text)
	}
	b.faults = nil
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatalf("%v\nthe page is:\n%s", err, b.text())
	}
}

// open goes to a page.
func (b *tab) open(path string) { b.Helper(); b.run(chromedp.Navigate(b.base + path)) }

// phone makes the tab one of a phone, with a finger and no mouse.
func (b *tab) phone() {
	b.Helper()
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulatePortrait))
}

func (b *tab) window(width, height int64) { b.Helper(); b.run(chromedp.EmulateViewport(width, height)) }

// prefers says what the system is like: light or dark.
func (b *tab) prefers(scheme string) {
	b.Helper()
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return chromedp.Void{}, err
	})
}

// do runs a script in the page.
func (b *tab) do(script string) { b.Helper(); evaluate[chromedp.Void](b, script) }

// evaluate runs a script in the page and decodes what it answers, or what its
// promise comes to.
func evaluate[T any](b *tab, script string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	answer, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%.200s: %v", script, err)
	}
	return answer
}

// until waits for a condition of the page.
func (b *tab) until(what, condition string) {
	b.Helper()
	if !b.comes(30*time.Second, condition) {
		b.Fatalf("the page does not come to %s:\n%s", what, b.text())
	}
}

// comes reports whether the page comes to a condition in time. A page that is being
// loaded says nothing, and is asked again.
func (b *tab) comes(in time.Duration, condition string) bool {
	return within(in, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Promise.resolve("+condition+").then(Boolean)", chromedp.EvalAwaitPromise))
		return err == nil && yes
	})
}

// sees waits until a text is shown.
func (b *tab) sees(text string) {
	b.Helper()
	b.until(fmt.Sprintf("say %q", text), fmt.Sprintf("document.body.innerText.includes(%s)", quoted(text)))
}

// found is a script for the element that a selector means, can be used and says a
// text.
func found(selector, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%s)].find(e => (e.innerText + ' ' + e.ariaLabel).includes(%s) && !e.disabled && e.checkVisibility())", quoted(selector), quoted(text))
}

// press clicks on it, as soon as it is there: between two looks from outside the page
// may have drawn it anew.
func (b *tab) press(selector, text string) {
	b.Helper()
	b.until(fmt.Sprintf("have %s %q", selector, text), fmt.Sprintf("(e => e && (e.click(), true))(%s)", found(selector, text)))
}

// taps puts a finger on it, where it is on the screen, once it is still there and
// nothing lies over it.
func (b *tab) taps(selector, text string) {
	b.Helper()
	still := fmt.Sprintf(`(async e => {
		if (!e) return false;
		e.scrollIntoView({ block: "center", behavior: "instant" });
		const where = () => (r => ({ X: r.x + r.width / 2, Y: r.y + r.height / 2 }))(e.getBoundingClientRect());
		const first = where();
		await new Promise(done => setTimeout(done, 30));
		const now = where();
		if (now.X !== first.X || now.Y !== first.Y || !e.contains(document.elementFromPoint(now.X, now.Y))) return false;
		window.__tap = { at: now, felt: false };
		e.addEventListener("click", () => window.__tap.felt = true, { once: true, capture: true });
		return true;
	})(%s)`, found(selector, text))
	if !within(30*time.Second, func() bool {
		b.until(fmt.Sprintf("have %s %q where a finger gets to it", selector, text), still)
		at := evaluate[struct{ X, Y float64 }](b, "window.__tap.at")
		b.run(chromedp.TapXY(at.X, at.Y))
		return b.comes(5*time.Second, "window.__tap?.felt !== false")
	}) {
		b.Fatalf("%s %q does not feel a finger:\n%s", selector, text, b.text())
	}
}

// fill writes into a field, known by its label.
func (b *tab) fill(label, text string) {
	b.Helper()
	field := fmt.Sprintf("[...document.querySelectorAll('input, textarea')].find(e => (e.ariaLabel ?? '').startsWith(%[1]s) || [...(e.labels ?? [])].some(l => l.textContent.trim().startsWith(%[1]s)))", quoted(label))
	b.until("have a field "+label, fmt.Sprintf("(e => e && (e.focus(), e.value = %s, e.dispatchEvent(new Event('input', { bubbles: true })), true))(%s)", quoted(text), field))
}

// keys types, as a keyboard does: a character comes with the key that goes down,
// unless the page took the key for something else.
func (b *tab) keys(text string) {
	b.Helper()
	var strokes []*input.DispatchKeyEventParams
	for _, r := range text {
		var down *input.DispatchKeyEventParams
		for _, k := range kb.Encode(r) {
			switch k.Type {
			case kb.KeyDown:
				down = k
				strokes = append(strokes, k)
			case kb.KeyChar:
				down.Text, down.UnmodifiedText = k.Text, k.UnmodifiedText
			default:
				strokes = append(strokes, k)
			}
		}
	}
	b.strike(strokes...)
}

// ctrl is a key with Ctrl held.
func (b *tab) ctrl(key rune) {
	b.Helper()
	var strokes []*input.DispatchKeyEventParams
	for _, k := range kb.Encode(key) {
		if k.Type != kb.KeyChar {
			k.Modifiers = int64(chromedp.ModifierCtrl)
			strokes = append(strokes, k)
		}
	}
	b.strike(strokes...)
}

func (b *tab) strike(strokes ...*input.DispatchKeyEventParams) {
	b.Helper()
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		for _, k := range strokes {
			if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, *k); err != nil {
				return chromedp.Void{}, err
			}
		}
		return chromedp.Void{}, nil
	})
}

// text is what is to be read on the page.
func (b *tab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("location.pathname + location.search + '\\n' + document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text[:min(len(text), 3000)]
}

// says reports whether a text is shown now.
func (b *tab) says(text string) bool {
	b.Helper()
	return evaluate[bool](b, fmt.Sprintf("document.body.innerText.includes(%s)", quoted(text)))
}

// quoted is a text in a script.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // texts can be written
	}
	return string(b)
}
