package autonomy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// A Priority is how soon a task should be done.
type Priority string

const (
	Low    Priority = "low"
	Medium Priority = "medium"
	High   Priority = "high"
	Urgent Priority = "urgent"
)

// A Status is where a task is in its life.
type Status string

const (
	ToDo    Status = "open"
	Doing   Status = "doing"
	Done    Status = "done"
	Dropped Status = "dropped"
)

// moves lists the legal moves of a task.
var moves = map[Status][]Status{
	ToDo:    {Doing, Done, Dropped},
	Doing:   {ToDo, Done, Dropped},
	Done:    {ToDo},
	Dropped: {ToDo},
}

// A Task is something to be done, in the backlog and as a file in the workspace
// of the jail in which it was thought of. The backlog is what counts: what
// agents make of the file is shown and never believed.
type Task struct {
	ID          string    `json:"id"` // "task-…", also the name of its file
	Jail        id.Jail   `json:"jail"`
	Session     string    `json:"session,omitempty"`
	Title       string    `json:"title"`
	Description string    `json:"description,omitempty"`
	Priority    Priority  `json:"priority"`
	Status      Status    `json:"status"`
	By          string    `json:"by"`
	Created     time.Time `json:"created"`
	Changed     time.Time `json:"changed"`

	Path    string `json:"path"`              // of the file, in the workspace
	Digest  string `json:"digest,omitempty"`  // of the file as it was written last
	Written bool   `json:"written,omitempty"` // the file is as the task is
}

// A TaskFile is the file of a task as it is in the workspace.
type TaskFile struct {
	Text    string
	Missing bool
	Edited  bool // it is not as it was written
}

// A TaskStore keeps tasks.
type TaskStore interface {
	AddTask(ctx context.Context, t Task) error          // fault.Conflict if there is one with that id
	Task(ctx context.Context, tid string) (Task, error) // fault.NotFound
	Tasks(ctx context.Context, f TaskFilter) ([]Task, error)

	// ChangeTask runs f alone with a task and keeps what f made of it.
	ChangeTask(ctx context.Context, tid string, f func(t *Task) error) error
}

// A TaskFilter says which tasks are listed, newest first.
type TaskFilter struct {
	Jail      id.Jail // "": of all
	Session   string
	Status    Status
	Priority  Priority
	Unwritten bool   // only those whose file is not as they are
	Before    string // the id of the last one that was read
	Limit     int    // 0: 100, at most 1000
}

// Files are the workspaces of jails. Paths are relative to a workspace, and
// nothing outside of it is ever touched, whatever links lie in it.
//
// An error of kind NotFound is that there is no such file, or no such jail any
// more.
type Files interface {
	Write(ctx context.Context, j id.Jail, path string, data []byte) error // with the directories that are missing
	Read(ctx context.Context, j id.Jail, path string, most int64) ([]byte, error)
}

// A NewTask is what is to be a task.
type NewTask struct {
	Title       string
	Description string
	Priority    Priority // "": medium

	// At is when it was asked for, if that was written down before: what was put into
	// the backlog for it once is not put there again. Zero: now.
	At time.Time
}

// Most there may be of a task, in bytes, and of open tasks of a jail.
const (
	maxTitle       = 200
	maxDescription = 64 << 10
	maxFile        = 256 << 10
	maxTasks       = 500
)

// Tasks is the backlog. It is safe for concurrent use.
type Tasks struct {
	store TaskStore
	files Files
}

// NewTasks returns the backlog that a store keeps.
func NewTasks(s TaskStore, f Files) *Tasks { return &Tasks{s, f} }

// Create puts a task into the backlog and its file into the workspace. If the
// file cannot be written the task is there all the same, and Sync writes it:
// Create then returns both it and the error.
func (ts *Tasks) Create(ctx context.Context, by Member, n NewTask) (Task, error) {
	if n.At.IsZero() {
		n.At = time.Now()
	}
	t, err := n.task(by, n.At.UTC())
	if err != nil {
		return Task{}, err
	}
	open, err := ts.store.Tasks(ctx, TaskFilter{Jail: by.Jail, Status: ToDo, Limit: maxTasks})
	if err != nil {
		return Task{}, err
	}
	if len(open) >= maxTasks {
		return Task{}, &fault.Error{Op: "autonomy.Create", On: string(by.Jail), Kind: fault.Exhausted, Err: fmt.Errorf("%d tasks are open", len(open)), Remedy: "finish or drop some"}
	}
	// Two of the same millisecond differ by one.
	for ms := t.Created.UnixMilli(); ; ms++ {
		t.ID = "task-" + strconv.FormatInt(ms, 10)
		t.Path = ".tasks/" + t.ID + ".md"
		err := ts.store.AddTask(ctx, t)
		if err == nil {
			break
		}
		if !errors.Is(err, fault.Conflict) {
			return Task{}, err
		}
		was, err := ts.store.Task(ctx, t.ID)
		if err != nil {
			return Task{}, err
		}
		if was.Jail == t.Jail && was.Title == t.Title && was.Created.Equal(t.Created) {
			break
		}
	}
	return ts.write(ctx, t.ID)
}

func (n NewTask) task(by Member, now time.Time) (Task, error) {
	const op = "autonomy.Create"
	title := text.OneLine(n.Title)
	switch {
	case title == "":
		return Task{}, fault.Fieldf(op, "title", "is missing")
	case len(n.Description) > maxDescription:
		return Task{}, fault.Fieldf(op, "description", "is longer than %d bytes", maxDescription)
	}
	switch n.Priority {
	case "":
		n.Priority = Medium
	case Low, Medium, High, Urgent:
	default:
		return Task{}, fault.Fieldf(op, "priority", "%s is not one of low, medium, high, urgent", text.Visible(text.Clip(string(n.Priority), 40)))
	}
	return Task{
		Jail: by.Jail, Session: by.Session, Title: text.Clip(title, maxTitle), Description: lines(n.Description), Priority: n.Priority,
		Status: ToDo, By: by.label(), Created: now.Truncate(time.Millisecond), Changed: now.Truncate(time.Millisecond),
	}, nil
}

// Set moves a task to another status, here and in its file.
func (ts *Tasks) Set(ctx context.Context, tid string, to Status) (Task, error) {
	err := ts.store.ChangeTask(ctx, tid, func(t *Task) error {
		if _, known := moves[to]; !known {
			return fault.Fieldf("autonomy.Set", "status", "%s is not one of open, doing, done, dropped", text.Visible(text.Clip(string(to), 40)))
		}
		if t.Status == to {
			return nil
		}
		if !slices.Contains(moves[t.Status], to) {
			return fault.Newf(fault.Conflict, "autonomy.Set", tid, "it is %s: it can become %v", t.Status, moves[t.Status])
		}
		t.Status, t.Changed, t.Written = to, time.Now().UTC().Truncate(time.Millisecond), false
		return nil
	})
	if err != nil {
		return Task{}, err
	}
	return ts.write(ctx, tid)
}

// Get returns a task.
func (ts *Tasks) Get(ctx context.Context, tid string) (Task, error) { return ts.store.Task(ctx, tid) }

// List returns tasks, newest first.
func (ts *Tasks) List(ctx context.Context, f TaskFilter) ([]Task, error) {
	f.Limit = min(or(f.Limit, 100), 1000)
	return ts.store.Tasks(ctx, f)
}

// File returns the file of a task, as it is.
func (ts *Tasks) File(ctx context.Context, t Task) (TaskFile, error) {
	data, err := ts.files.Read(ctx, t.Jail, t.Path, maxFile)
	if errors.Is(err, fault.NotFound) {
		return TaskFile{Missing: true}, nil
	}
	if err != nil {
		return TaskFile{}, fmt.Errorf("read the file of %s: %w", t.ID, err)
	}
	return TaskFile{Text: strings.ToValidUTF8(string(data), "\uFFFD"), Edited: digestOf(data) != t.Digest}, nil
}

// Sync writes the files that could not be written, or whose writer was killed,
// of one jail or of all.
func (ts *Tasks) Sync(ctx context.Context, j id.Jail) error {
	list, err := ts.store.Tasks(ctx, TaskFilter{Jail: j, Unwritten: true, Limit: 1000})
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range list {
		if _, err := ts.write(ctx, t.ID); err != nil && !errors.Is(err, fault.NotFound) { // its jail is no more
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// write makes the file of a task as the task is, and keeps that it is. What an
// agent has written into it stays, below the head.
func (ts *Tasks) write(ctx context.Context, tid string) (Task, error) {
	t, err := ts.store.Task(ctx, tid)
	if err != nil || t.Written {
		return t, err
	}
	text := t.render()
	if t.Digest != "" {
		old, err := ts.files.Read(ctx, t.Jail, t.Path, maxFile)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return t, fmt.Errorf("read the file of %s: %w", tid, err)
		}
		if err == nil && digestOf(old) != t.Digest {
			text = append(t.head(), body(old)...)
		}
	}
	if err := ts.files.Write(ctx, t.Jail, t.Path, text); err != nil {
		return t, fmt.Errorf("write the file of %s: %w", tid, err)
	}
	as := t
	err = ts.store.ChangeTask(ctx, tid, func(now *Task) error {
		now.Digest = digestOf(text)
		now.Written = now.Status == as.Status // else somebody has moved it since
		t = *now
		return nil
	})
	if err == nil && !t.Written {
		return ts.write(ctx, tid)
	}
	return t, err
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// render is the file of a task.
func (t Task) render() []byte {
	b := t.head()
	b = append(b, "\n# "...)
	b = append(b, strings.ReplaceAll(t.Title, "<", `\<`)...)
	b = append(b, '\n')
	if t.Description != "" {
		b = append(b, '\n')
		b = append(b, contain(t.Description)...)
	}
	return b
}

// head is the front matter. Its values are JSON strings, which YAML reads as
// what they are.
func (t Task) head() []byte {
	var b bytes.Buffer
	b.WriteString(fence)
	for _, f := range [][2]string{
		{"id", t.ID}, {"title", t.Title}, {"priority", string(t.Priority)}, {"status", string(t.Status)},
		{"created", t.Created.Format(time.RFC3339)}, {"by", t.By},
	} {
		value := f[1]
		if f[0] == "title" || f[0] == "by" {
			value = quote(value)
		}
		b.WriteString(f[0] + ": " + value + "\n")
	}
	b.WriteString(fence)
	return b.Bytes()
}

const fence = "---\n"

func quote(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // a string
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// body is what stands below the head of a file.
func body(file []byte) []byte {
	rest, ok := bytes.CutPrefix(file, []byte(fence))
	if !ok {
		return append([]byte("\n"), file...)
	}
	if rest, ok := bytes.CutPrefix(rest, []byte(fence)); ok {
		return rest
	}
	_, rest, ok = bytes.Cut(rest, []byte("\n"+fence))
	if !ok {
		return append([]byte("\n"), file...)
	}
	return rest
}

// contain is a description as Markdown that stays where it is put. Ordinary text
// is left as it is; one with lines that could begin something else, such as
// another heading, is quoted as a whole, out of which nothing leads.
func contain(text string) string {
	text = strings.TrimRight(text, "\n") + "\n"
	if !slices.ContainsFunc(strings.Split(text, "\n"), structural) {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight("> "+line, " \n") + "\n")
	}
	return b.String()
}

// structural reports whether a line could be more to Markdown, or to what reads
// front matter, than text or a list.
func structural(line string) bool {
	s := strings.TrimSpace(line)
	if s == "" {
		return false
	}
	for _, start := range []string{"#", "<", "```", "~~~", "---", "...", "+++"} {
		if strings.HasPrefix(s, start) {
			return true
		}
	}
	return strings.Trim(s, "-") == "" || strings.Trim(s, "=") == "" || strings.Trim(s, "* \t") == "" || strings.Trim(s, "_ \t") == ""
}

// lines drops what cannot be seen from a text, except for spaces, tabs and the ends of
// lines.
func lines(s string) string {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u2028", "\n", "\u2029", "\n", "\u0085", "\n", "\v", "\n", "\f", "\n").Replace(s)
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if r != utf8.RuneError && !text.Hidden(r) || unicode.Is(unicode.Zs, r) || r == '\n' || r == '\t' {
			return r
		}
		return -1
	}, s), "\n")
}
