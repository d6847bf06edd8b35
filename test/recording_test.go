package test_test

import (
	"encoding/xml"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
)

// TestRecording creates the recording of the README for `make screenshots`: a terminal in which
// OpenCode repairs a repository and the user reviews and applies the change. The commands run
// while they are recorded; the model is the script of the tutorial.
func TestRecording(t *testing.T) {
	dir := os.Getenv("GLASSHOUSE_SCREENSHOTS")
	if dir == "" {
		t.Skip("runs with make screenshots")
	}
	r := agentReader(t, "opencode")
	f := follows(t, r)
	for _, section := range []string{"1. Create a repository with a failing test", "2. Start a scripted model"} {
		for _, l := range lessons(t, "../docs/tutorials/"+agentTutorial, section) {
			f.follow(l)
		}
	}
	// The first jail of a host takes longer. The recording shows the second.
	for _, c := range []string{`glasshouse goal "Fix the failing test" --agent opencode -C .`, "glasshouse jail rm --force opencode"} {
		if out, code := f.run(c); code != "0" {
			t.Fatalf("%s: exit code %s\n%s", c, code, out)
		}
	}

	rec := &recording{}
	for _, c := range []struct{ typed, want string }{
		{"python3 -B -m unittest 2>&1 | tail -1", "FAILED"},
		{`glasshouse goal "Fix the failing test" --agent opencode -C .`, "the test passes"},
		{"glasshouse diff opencode /pages.py --workspace --unified", "-(-items // size)"},
		{"glasshouse apply opencode", "1 change applied"},
		{"python3 -B -m unittest 2>&1 | tail -1", "OK"},
	} {
		if out := rec.run(t, r, "paging", c.typed); !strings.Contains(out, c.want) {
			t.Fatalf("%s printed %q, want %q in it", c.typed, out, c.want)
		}
	}
	f.run("glasshouse jail rm --force opencode")
	if rec.now > 25*time.Second {
		t.Errorf("the recording lasts %s, want at most 25s", rec.now)
	}
	if err := os.WriteFile(filepath.Join(dir, "first-change.svg"), []byte(rec.svg("An agent fixes a failing test in a terminal, and its change is reviewed and applied")), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	recordedColumns = 84
	typingTime      = 25 * time.Millisecond  // of a character of a command
	pause           = 500 * time.Millisecond // after a command is typed, and after its output
	longestCommand  = 5 * time.Second        // a longer one is shown faster
	lastPause       = 4 * time.Second        // before the recording begins again
)

// A recording is what a terminal showed, with times.
type recording struct {
	now   time.Duration
	lines []recordedLine
	open  map[int]int // row to its line that is shown
	row   int
	col   int
}

// A recordedLine is the text that one row of the terminal had for a time.
type recordedLine struct {
	row      int
	text     string
	typed    bool          // a command, which appears character by character
	from, to time.Duration // to 0: until the end
}

// run types a command, runs it in a terminal and returns its output.
func (r *recording) run(t *testing.T, by reader, dir, typed string) string {
	t.Helper()
	r.set("$ "+typed, true)
	r.now += time.Duration(utf8.RuneCountInString(typed))*typingTime + pause
	r.row++
	r.col = 0

	cmd := exec.Command("bash", "-c", typed)
	cmd.Dir = filepath.Join(by.home, dir)
	cmd.Env = append(os.Environ(), append(by.env, "TERM=xterm")...)
	p, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: recordedColumns})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	limit := time.AfterFunc(5*time.Minute, func() { cmd.Process.Kill() })
	defer limit.Stop()
	var all strings.Builder
	type piece struct {
		after time.Duration
		out   string
	}
	var pieces []piece
	began := time.Now()
	for buf := make([]byte, 4096); ; {
		n, err := p.Read(buf)
		if err != nil { // EIO: the command ended
			break
		}
		all.Write(buf[:n])
		pieces = append(pieces, piece{time.Since(began), string(buf[:n])})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", typed, err, all.String())
	}
	shown, speed := r.now, max(1, float64(time.Since(began))/float64(longestCommand))
	for _, p := range pieces {
		r.now = shown + time.Duration(float64(p.after)/speed)
		r.print(p.out)
	}
	r.now += pause
	if r.col > 0 {
		r.row++
		r.col = 0
	}
	return all.String()
}

// print shows output. It knows what commands print: lines, and lines that replace themselves.
func (r *recording) print(out string) {
	for out != "" {
		switch {
		case strings.HasPrefix(out, "\r\n"):
			out = out[2:]
			r.row++
			r.col = 0
		case strings.HasPrefix(out, "\r"):
			out = out[1:]
			r.col = 0
		case strings.HasPrefix(out, "\x1b[K"):
			out = out[3:]
			r.set(string([]rune(r.text())[:r.col]), false)
		case strings.HasPrefix(out, "\x1b["):
			out = out[len(controlSequence.FindString(out)):] // a colour
		default:
			n := strings.IndexAny(out, "\r\x1b")
			if n < 0 {
				n = len(out)
			}
			line := []rune(r.text())
			written := []rune(out[:n])
			line = append(line[:r.col], append(written, line[min(len(line), r.col+len(written)):]...)...)
			r.col += len(written)
			r.set(string(line), false)
			out = out[n:]
		}
	}
}

var controlSequence = regexp.MustCompile("^\x1b\\[[0-9;?]*[@-~]?")

// text returns the text of the row of the cursor.
func (r *recording) text() string {
	if i, ok := r.open[r.row]; ok {
		return r.lines[i].text
	}
	return ""
}

// set changes the text of the row of the cursor.
func (r *recording) set(text string, typed bool) {
	if i, ok := r.open[r.row]; ok {
		if r.lines[i].text == text {
			return
		}
		r.lines[i].to = r.now
		if r.lines[i].from == r.now {
			r.lines = slices.Delete(r.lines, i, i+1) // never shown; only the last line can be it
		}
	}
	if r.open == nil {
		r.open = map[int]int{}
	}
	r.open[r.row] = len(r.lines)
	r.lines = append(r.lines, recordedLine{row: r.row, text: text, typed: typed, from: r.now})
}

// svg returns the recording as an image that plays in browsers without a script. With
// prefers-reduced-motion it shows the end.
func (r *recording) svg(title string) string {
	const char, height, margin = 8.4, 20, 16
	total := r.now + lastPause
	at := func(d time.Duration) string { return fmt.Sprintf("%.2f%%", 100*float64(d)/float64(total)) }
	width, rows := 706+2*margin, r.row // recordedColumns characters
	var style, body strings.Builder
	for i, l := range r.lines {
		if strings.TrimSpace(l.text) == "" {
			continue
		}
		class := "l"
		switch {
		case l.typed:
			class = "l t"
			n := utf8.RuneCountInString(l.text)
			end := l.from + time.Duration(n)*typingTime
			fmt.Fprintf(&style, "@keyframes k%d{0%%,%s{clip-path:inset(0 100%% 0 0);animation-timing-function:steps(%d,end)}%s,to{clip-path:inset(0)}}\n", i, at(l.from), n, at(end))
		case l.to == 0:
			fmt.Fprintf(&style, "@keyframes k%d{0%%{visibility:hidden}%s,to{visibility:visible}}\n", i, at(l.from))
		default:
			class = "l o"
			fmt.Fprintf(&style, "@keyframes k%d{0%%{visibility:hidden}%s{visibility:visible}%s,to{visibility:hidden}}\n", i, at(l.from), at(l.to))
		}
		switch {
		case strings.HasPrefix(l.text, "+"):
			class += " a"
		case strings.HasPrefix(l.text, "-"):
			class += " d"
		}
		// textLength makes the columns independent of the font that the reader has.
		fmt.Fprintf(&body, `<text class=%q style="animation-name:k%d" x="%d" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>`+"\n",
			class, i, margin, margin+height*l.row+15, char*float64(utf8.RuneCountInString(l.text)), html.EscapeString(l.text))
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">
<style>
.l{font:14px ui-monospace,"JetBrains Mono",Menlo,Consolas,monospace;white-space:pre;fill:#c9d1d9;animation:%.2fs step-end infinite}
.t{fill:#fff;font-weight:bold;animation-timing-function:linear}
.a{fill:#7ee787}.d{fill:#ffa198}.o{visibility:hidden}
%s@media (prefers-reduced-motion:reduce){.l{animation:none}}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#161b22"/>
%s</svg>
`, width, rows*height+2*margin, html.EscapeString(title), total.Seconds(), style.String(), body.String())
}

func TestRecordingShowsWhatATerminalShows(t *testing.T) {
	r := &recording{}
	r.set("$ make", true)
	r.now, r.row = time.Second, 1
	r.print("12 %")
	r.now += time.Second
	r.print("\r\x1b[K\x1b[1m99 % <done>\x1b[0m")
	r.now += time.Second
	r.print("\r100\r\n+new\r\n")

	var got []string
	for _, l := range r.lines {
		got = append(got, fmt.Sprintf("%d %q %s-%s", l.row, l.text, l.from, l.to))
	}
	want := []string{`0 "$ make" 0s-0s`, `1 "12 %" 1s-2s`, `1 "99 % <done>" 2s-3s`, `1 "100% <done>" 3s-0s`, `2 "+new" 3s-0s`}
	if !slices.Equal(got, want) {
		t.Errorf("the lines are\n%q, want\n%q", got, want)
	}

	svg := r.svg(`A "test"`)
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err != nil {
			if err.Error() != "EOF" {
				t.Errorf("the image is no XML: %v\n%s", err, svg)
			}
			break
		}
	}
	for _, want := range []string{"99 % &lt;done&gt;", "prefers-reduced-motion", `class="l a"`, `class="l o"`, `class="l t"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("the image lacks %q:\n%s", want, svg)
		}
	}
}
