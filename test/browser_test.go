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
	"github.com/chromedp/cdproto/network"
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

// A console collects errors that a page logs.
type console struct {
	mu sync.Mutex
	// +checklocks:mu
	faults []string
}

// browse starts a browser, or skips the test if none is installed. The browser and its profile
// are removed at the end of the test.
func browse(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: run scripts/setup.sh DATA tests")
	}
	profile := t.TempDir()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(time.Minute), chromedp.WindowSize(1280, 800), chromedp.Flag("js-flags", "--expose-gc"))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("stop the browser: %v", err)
		}
		end()
		if !within(20*time.Second, func() bool { return len(startedWith(profile)) == 0 }) {
			t.Errorf("browser processes left: %q", startedWith(profile))
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// startedWith returns the processes that have a word in their arguments.
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

// blank opens a tab without a login.
func blank(t *testing.T, browser context.Context, base string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	b := &tab{T: t, ctx: ctx, base: base, console: &console{}}
	if err := chromedp.Listen(ctx, b.hear); err != nil { // it also opens the tab
		t.Fatal(err)
	}
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	t.Cleanup(b.clean)
	return b
}

// login opens a tab and logs in by link.
func (h *daemonHarness) login(t *testing.T, browser context.Context, role string) *tab {
	t.Helper()
	b := blank(t, browser, "http://"+h.tcpAddr())
	b.enter(h, role)
	return b
}

// enter logs in with a new link.
func (b *tab) enter(h *daemonHarness, role string) {
	b.Helper()
	link, err := h.CreateLoginLink(b.Context(), wire.CreateLoginLink{Role: role, Label: role})
	if err != nil {
		b.Fatal(err)
	}
	b.open("/login#" + link.Code)
	b.waitText("Jails")
}

// as returns the tab for a subtest, which fails if the console reports errors.
func (b *tab) as(t *testing.T) *tab {
	part := &tab{T: t, ctx: b.ctx, base: b.base, console: b.console}
	t.Cleanup(part.clean)
	return part
}

// hear records errors and violations of the content security policy.
func (c *console) hear(ev any) {
	var text string
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		text = fmt.Sprintf("%s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception)
	case *log.EventEntryAdded:
		// The page itself reports refused requests and broken connections.
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

// clean fails the test for console errors since the last call.
func (b *tab) clean() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.faults {
		b.Errorf("console error: %s", text)
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

// open navigates to a page.
func (b *tab) open(path string) { b.Helper(); b.run(chromedp.Navigate(b.base + path)) }

// phone emulates a phone with a touch screen and no mouse.
func (b *tab) phone() {
	b.Helper()
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulatePortrait))
}

func (b *tab) window(width, height int64) { b.Helper(); b.run(chromedp.EmulateViewport(width, height)) }

// prefers sets the preferred colour scheme: light or dark.
func (b *tab) prefers(scheme string) {
	b.Helper()
	b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return chromedp.Void{}, err
	})
}

// withoutCode calls f while the files of the UI whose names begin with one of names cannot be
// loaded.
func (b *tab) withoutCode(f func(), names ...string) {
	b.Helper()
	block := func(names []string) {
		b.run(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
			patterns := []*network.BlockPattern{}
			for _, name := range names {
				patterns = append(patterns, &network.BlockPattern{URLPattern: b.base + "/assets/" + name + "-*", Block: true})
			}
			if _, err := cdp.Call(ctx, t, network.Enable, network.EnableParams{}); err != nil {
				return chromedp.Void{}, err
			}
			_, err := cdp.Call(ctx, t, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: patterns})
			return chromedp.Void{}, err
		})
	}
	block(names)
	f()
	block(nil)
}

// do runs a script in the page.
func (b *tab) do(script string) { b.Helper(); evaluate[chromedp.Void](b, script) }

// evaluate runs a script in the page and decodes its result, or that of its promise.
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
		b.Fatalf("timed out waiting for the page to %s:\n%s", what, b.text())
	}
}

// comes reports whether a condition of the page becomes true in time. A page that is loading
// fails to evaluate the condition, so it is evaluated again.
func (b *tab) comes(in time.Duration, condition string) bool {
	return within(in, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Promise.resolve("+condition+").then(Boolean)", chromedp.EvalAwaitPromise))
		return err == nil && yes
	})
}

// waitText waits until a text is shown.
func (b *tab) waitText(text string) {
	b.Helper()
	b.until(fmt.Sprintf("say %q", text), fmt.Sprintf("document.body.innerText.includes(%s)", quoted(text)))
}

// found returns a script that finds the enabled element with this selector and text.
func found(selector, text string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%s)].find(e => (e.innerText + ' ' + e.ariaLabel).includes(%s) && !e.disabled && e.checkVisibility())", quoted(selector), quoted(text))
}

// press clicks the element as soon as it exists. It does so in one script, because the page may
// redraw the element between two.
func (b *tab) press(selector, text string) {
	b.Helper()
	b.until(fmt.Sprintf("have %s %q", selector, text), fmt.Sprintf("(e => e && (e.click(), true))(%s)", found(selector, text)))
}

// tap touches the element at its position on the screen, once it no longer moves and nothing
// covers it.
func (b *tab) tap(selector, text string) {
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
		b.Fatalf("%s %q is moving or covered:\n%s", selector, text, b.text())
	}
}

// fill writes into the field with this label.
func (b *tab) fill(label, text string) {
	b.Helper()
	field := fmt.Sprintf("[...document.querySelectorAll('input, textarea')].find(e => (e.ariaLabel ?? '').startsWith(%[1]s) || [...(e.labels ?? [])].some(l => l.textContent.trim().startsWith(%[1]s)))", quoted(label))
	b.until("have a field "+label, fmt.Sprintf("(e => e && (e.focus(), e.value = %s, e.dispatchEvent(new Event('input', { bubbles: true })), true))(%s)", quoted(text), field))
}

// keys types text as a keyboard does: a keydown inserts its character unless the page prevents
// it.
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

// ctrl presses a key with Ctrl held.
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

// text returns the visible text of the page.
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

// quoted returns a text as a JavaScript literal.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be marshalled
	}
	return string(b)
}
