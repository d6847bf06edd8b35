package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/term"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/internal/text"
)

// progressDelay is how long an operation runs before its progress is shown.
const progressDelay = time.Second

// eraseLine moves the cursor to the first column and erases the line.
const eraseLine = "\r\x1b[K"

// A progress shows one line about an operation on standard error, and updates it in place. A nil
// progress shows nothing.
type progress struct {
	out    *os.File
	begun  time.Time
	what   func(context.Context) string
	moved  atomic.Int64 // bytes of an upload or a download
	total  atomic.Int64 // 0: unknown
	cancel context.CancelFunc
	done   chan struct{} // closed when the line is removed
}

// progress displays a line that describes what the command waits for, until end is called. It calls
// what to get the text of each update. If standard error is not a terminal, nothing is shown:
// scripts and logs keep their output. The same applies to --json, and while another progress is
// shown.
func (c *command) progress(what func(context.Context) string) *progress {
	out, ok := c.env.Stderr.(*os.File)
	if !ok || !isTerminal(out) || c.json || c.noProgress || c.env.Getenv("TERM") == "dumb" || !c.showing.CompareAndSwap(false, true) {
		return nil
	}
	p := &progress{out: out, begun: time.Now(), what: what, done: make(chan struct{})}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	go func() {
		defer close(p.done)
		defer c.showing.Store(false)
		select {
		case <-time.After(progressDelay):
		case <-ctx.Done():
			return
		}
		if c.caught == nil {
			notifyInterrupts(signals)
		}
		defer signal.Stop(signals)
		p.show(ctx, signals, c.caught)
	}()
	return p
}

// end removes the line.
func (p *progress) end() {
	if p != nil {
		p.cancel()
		<-p.done
	}
}

// interrupts are the signals that end a command.
var interrupts = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// notifyInterrupts relays the signals that end this process, but none that it ignores, such as
// SIGHUP after nohup(1).
func notifyInterrupts(ch chan<- os.Signal) {
	if end := slices.DeleteFunc(slices.Clone(interrupts), signal.Ignored); len(end) > 0 {
		signal.Notify(ch, end...)
	}
}

// show updates the line until ctx is cancelled or a signal ends the process, and removes it. If
// the command handles an interrupt itself, show handles only those after it.
func (p *progress) show(ctx context.Context, signals chan os.Signal, caught <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer io.WriteString(p.out, eraseLine)
	for {
		line := p.line(ctx)
		if ctx.Err() != nil {
			return
		}
		cols, _, err := term.GetSize(int(p.out.Fd()))
		if err != nil || cols < 2 {
			cols = 80
		}
		// The last column stays free: a character there would wrap the line on some terminals.
		io.WriteString(p.out, eraseLine+text.Columns(text.Visible(line), cols-1))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-caught:
			caught = nil
			notifyInterrupts(signals)
		case sig := <-signals:
			io.WriteString(p.out, eraseLine)
			signal.Stop(signals) // restores the default action, which ends the process
			syscall.Kill(os.Getpid(), sig.(syscall.Signal))
			return
		}
	}
}

// line returns the operation, the transferred bytes and the elapsed time.
func (p *progress) line(ctx context.Context) string {
	line := p.what(ctx)
	if moved, total := p.moved.Load(), p.total.Load(); total > 0 {
		line += fmt.Sprintf(", %s of %s", size(moved), size(total))
	} else if moved > 0 {
		line += ", " + size(moved)
	}
	return line + fmt.Sprintf(" (%s)", time.Since(p.begun).Truncate(time.Second))
}

// slowRequests lists the requests whose progress is shown, with a description of what the daemon
// does.
var slowRequests = []struct{ method, path, what string }{
	{"POST", "/jails", "creating the jail"},
	{"POST", "/jails/*/start", "starting the jail"},
	{"POST", "/jails/*/stop", "stopping the jail"},
	{"DELETE", "/jails/*", "removing the jail"},
	{"PUT", "/jails/*/files", "writing files of the jail"},
	{"GET", "/jails/*/files", "reading files of the jail"},
	{"POST", "/jails/*/snapshot", "taking the snapshot"},
	{"POST", "/jails/*/branch", "branching the jail"},
	{"POST", "/jails/*/rewind", "rewinding the jail"},
	{"POST", "/snapshots/*/branch", "branching the snapshot"},
	{"POST", "/snapshots/*/restore", "restoring the snapshot"},
	{"POST", "/snapshots/*/warm", "creating copies of the snapshot"},
	{"GET", "/snapshots/*/export", "exporting the snapshot"},
	{"POST", "/snapshots/import", "importing the snapshot"},
	{"DELETE", "/snapshots/*", "removing the snapshot"},
	{"POST", "/images", "preparing the root filesystem"},
	{"POST", "/images/prune", "removing unused root filesystems"},
	{"POST", "/bundles", "installing the bundle"},
	{"POST", "/market/install", "installing the bundle"},
	{"POST", "/chat/run", "starting the run"},
	{"POST", "/chat/run/*/checkpoint", "taking the checkpoint"},
	{"POST", "/chat/run/*/resume", "resuming the run"},
}

// A progressTransport shows the progress of slow requests, from their start until their response
// is closed.
type progressTransport struct {
	c    *command
	next http.RoundTripper
}

func (t progressTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	what := ""
	for _, s := range slowRequests {
		if ok, _ := path.Match(s.path, req.URL.Path); ok && s.method == req.Method {
			what = s.what
		}
	}
	file, isFile := req.Body.(*os.File)
	if what == "" || isFile && isTerminal(file) { // the line would disturb who types there
		return t.next.RoundTrip(req)
	}
	p := t.c.progress(func(ctx context.Context) string {
		if r, ok := rootfsOf(req); ok {
			return what + t.c.missingRootfs(ctx, r)
		}
		return what
	})
	if p == nil {
		return t.next.RoundTrip(req)
	}
	sent := *req
	if req.Body != nil && req.Header.Get("Content-Type") != "application/json" {
		sent.Body = &countedBody{ReadCloser: req.Body, p: p}
		p.total.Store(bytesLeft(file))
	}
	resp, err := t.next.RoundTrip(&sent)
	if err != nil {
		p.end()
		return nil, err
	}
	body := &countedBody{ReadCloser: resp.Body, end: p.end}
	if req.Method == http.MethodGet {
		body.p = p
		p.total.Store(max(resp.ContentLength, 0))
	}
	resp.Body = body
	return resp, nil
}

// bytesLeft returns how many bytes of a regular file are not read yet, or 0.
func bytesLeft(f *os.File) int64 {
	st, err := f.Stat() // an error if f is nil
	if err != nil || !st.Mode().IsRegular() {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return max(st.Size()-at, 0)
}

// A countedBody counts the bytes that are read, and calls end when it is closed.
type countedBody struct {
	io.ReadCloser
	p   *progress // nil: does not count
	end func()    // nil: none
}

func (b *countedBody) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	if b.p != nil {
		b.p.moved.Add(int64(n))
	}
	return n, err
}

func (b *countedBody) Close() error {
	err := b.ReadCloser.Close()
	if b.end != nil {
		b.end()
	}
	return err
}

// rootfsOf returns the root filesystem that a request names, and whether it can name one.
func rootfsOf(req *http.Request) (r wire.Rootfs, ok bool) {
	if req.Method != http.MethodPost || req.GetBody == nil || req.URL.Path != "/jails" && req.URL.Path != "/images" {
		return r, false
	}
	body, err := req.GetBody()
	if err != nil {
		return r, false
	}
	if req.URL.Path == "/images" {
		return r, json.NewDecoder(body).Decode(&r) == nil
	}
	var create wire.CreateJail
	err = json.NewDecoder(body).Decode(&create)
	return create.Rootfs, err == nil
}

// missingRootfs returns a message if the daemon has to download or build a root filesystem first,
// otherwise "". The daemon stores root filesystems, so this takes long only once.
func (c *command) missingRootfs(ctx context.Context, r wire.Rootfs) string {
	cl, err := c.dial()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second/2) // an interrupt waits for the line
	defer cancel()
	images, err := client.Collect(cl.Images(ctx))
	if err != nil {
		return ""
	}
	return missingFrom(images, r)
}

func missingFrom(images []wire.Image, r wire.Rootfs) string {
	source, action := "", "downloaded"
	switch {
	case r.Debian != "":
		source = "debian:" + r.Debian
	case r.Nix != "":
		source, action = "nix:"+r.Nix, "built"
	case r.OCI != "" && !strings.HasPrefix(r.OCI, "/"):
		ref, err := name.ParseReference(r.OCI)
		if err != nil {
			return ""
		}
		source = "oci:" + ref.Name()
	case r == wire.Rootfs{}:
		if len(images) == 0 {
			return ": no root filesystem is stored yet, and preparing the first one can take minutes"
		}
		return ""
	default:
		return ""
	}
	// The source of a tag also has a digest, and that of an added user its name.
	same := func(s string) bool {
		return s == source || strings.HasPrefix(s, source+"@") || strings.HasPrefix(s, source+", ")
	}
	for _, i := range images {
		if slices.ContainsFunc(i.Sources, same) {
			return ""
		}
	}
	return fmt.Sprintf(": the root filesystem %s is not stored yet and is %s", rootfsName(r), action)
}
