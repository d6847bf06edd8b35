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

// A Priority is the priority of a task.
type Priority string

const (
	Low    Priority = "low"
	Medium Priority = "medium"
	High   Priority = "high"
	Urgent Priority = "urgent"
)

// A Status is the status of a task.
type Status string

const (
	ToDo    Status = "open"
	Doing   Status = "doing"
	Done    Status = "done"
	Dropped Status = "dropped"
)

// taskTransitions lists the legal status transitions of a task.
var taskTransitions = map[Status][]Status{
	ToDo:    {Doing, Done, Dropped},
	Doing:   {ToDo, Done, Dropped},
	Done:    {ToDo},
	Dropped: {ToDo},
}

// A Task is an entry of the backlog, with a file in the workspace of the jail that created it.
// The backlog is authoritative: edits of the file are shown but do not change the task.
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

	Path    string `json:"path"`              // path of the file, relative to the workspace
	Digest  string `json:"digest,omitempty"`  // digest of the file as last written
	Written bool   `json:"written,omitempty"` // the file is up to date
}

// A TaskFile is the current file of a task.
type TaskFile struct {
	Text    string
	Missing bool
	Edited  bool // changed since it was written
}

// A TaskStore stores tasks.
type TaskStore interface {
	AddTask(ctx context.Context, t Task) error          // fault.Conflict if the id exists
	Task(ctx context.Context, tid string) (Task, error) // fault.NotFound
	Tasks(ctx context.Context, f TaskFilter) ([]Task, error)

	// ChangeTask runs f with exclusive access to a task and stores the result.
	ChangeTask(ctx context.Context, tid string, f func(t *Task) error) error
}

// A TaskFilter selects tasks, newest first.
type TaskFilter struct {
	Jail      id.Jail // "": all
	Session   string
	Status    Status
	Priority  Priority
	Unwritten bool   // only tasks whose file is not up to date
	Before    string // id of the last task that was read
	Limit     int    // 0: 100, at most 1000
}

// Files accesses the workspaces of jails. Paths are relative to a workspace; implementations
// must not follow links out of it.
//
// fault.NotFound means that the file or the jail does not exist.
type Files interface {
	Write(ctx context.Context, j id.Jail, path string, data []byte) error // creates missing directories
	Read(ctx context.Context, j id.Jail, path string, most int64) ([]byte, error)
}

// A NewTask describes a task to create.
type NewTask struct {
	Title       string
	Description string
	Priority    Priority // "": medium

	// At is the time of the request, if the caller recorded it before. A repeated Create with
	// the same time returns the existing task. Zero: now.
	At time.Time
}

// Limits of a task in bytes, and of the open tasks of a jail.
const (
	maxTitle       = 200
	maxDescription = 64 << 10
	maxFile        = 256 << 10
	maxTasks       = 500
)

// Tasks is the backlog of tasks. It is safe for concurrent use.
type Tasks struct {
	store TaskStore
	files Files
}

// NewTasks returns a backlog.
func NewTasks(s TaskStore, f Files) *Tasks { return &Tasks{s, f} }

// Create adds a task to the backlog and writes its file. If writing the file fails, Create
// returns both the task and the error, and Sync writes the file later.
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
		return Task{}, &fault.Error{Op: "autonomy.Create", On: string(by.Jail), Kind: fault.Exhausted, Err: fmt.Errorf("the maximum of %d open tasks is reached", len(open)), Remedy: "finish or drop some tasks"}
	}
	// The id is the creation time in milliseconds, or the next free number.
	for ms := t.Created.UnixMilli(); ; ms++ {
		t.ID = "task-" + strconv.FormatInt(ms, 10)
		t.Path = ".tasks/" + t.ID + ".md"
		err := ts.store.AddTask(ctx, t)
		if err == nil {
			break
		}
		if !errors.Is(err, fault.Conflict) {
			return Task{}, fmt.Errorf("store task %s: %w", t.ID, err)
		}
		old, err := ts.store.Task(ctx, t.ID)
		if err != nil {
			return Task{}, err
		}
		if !old.repeats(t) {
			continue
		}
		if err := ts.moveTask(ctx, old, t.Jail); err != nil {
			return Task{}, err
		}
		break
	}
	return ts.writeFile(ctx, t.ID)
}

// repeats reports whether a task was created by an earlier attempt to create t. A run that another
// daemon continues has another jail.
func (t Task) repeats(next Task) bool {
	same := t.Jail == next.Jail || t.Session != "" && t.Session == next.Session && t.By == next.By
	return same && t.Title == next.Title && t.Created.Equal(next.Created)
}

// moveTask moves a task to the workspace of another jail.
func (ts *Tasks) moveTask(ctx context.Context, t Task, to id.Jail) error {
	if t.Jail == to {
		return nil
	}
	return ts.store.ChangeTask(ctx, t.ID, func(t *Task) error {
		t.Jail, t.Written = to, false
		return nil
	})
}

func (n NewTask) task(by Member, now time.Time) (Task, error) {
	const op = "autonomy.Create"
	title := text.OneLine(n.Title)
	switch {
	case title == "":
		return Task{}, fault.Fieldf(op, "title", "is missing")
	case len(n.Description) > maxDescription:
		return Task{}, fault.Fieldf(op, "description", "exceeds %d bytes", maxDescription)
	}
	switch n.Priority {
	case "":
		n.Priority = Medium
	case Low, Medium, High, Urgent:
	default:
		return Task{}, fault.Fieldf(op, "priority", "%s is not one of low, medium, high, urgent", text.Visible(text.Clip(string(n.Priority), 40)))
	}
	return Task{
		Jail: by.Jail, Session: by.Session, Title: text.Clip(title, maxTitle), Description: printableLines(n.Description), Priority: n.Priority,
		Status: ToDo, By: by.label(), Created: now.Truncate(time.Millisecond), Changed: now.Truncate(time.Millisecond),
	}, nil
}

// Set changes the status of a task and updates its file.
func (ts *Tasks) Set(ctx context.Context, tid string, to Status) (Task, error) {
	err := ts.store.ChangeTask(ctx, tid, func(t *Task) error {
		if _, known := taskTransitions[to]; !known {
			return fault.Fieldf("autonomy.Set", "status", "%s is not one of open, doing, done, dropped", text.Visible(text.Clip(string(to), 40)))
		}
		if t.Status == to {
			return nil
		}
		if !slices.Contains(taskTransitions[t.Status], to) {
			return fault.Newf(fault.Conflict, "autonomy.Set", tid, "the task is %s; valid next states: %v", t.Status, taskTransitions[t.Status])
		}
		t.Status, t.Changed, t.Written = to, time.Now().UTC().Truncate(time.Millisecond), false
		return nil
	})
	if err != nil {
		return Task{}, err
	}
	return ts.writeFile(ctx, tid)
}

// Get returns a task.
func (ts *Tasks) Get(ctx context.Context, tid string) (Task, error) { return ts.store.Task(ctx, tid) }

// List returns tasks, newest first.
func (ts *Tasks) List(ctx context.Context, f TaskFilter) ([]Task, error) {
	f.Limit = min(positiveOr(f.Limit, 100), 1000)
	return ts.store.Tasks(ctx, f)
}

// File returns the current file of a task.
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

// Sync writes the files that are not up to date, of one jail or, if j is "", of all.
func (ts *Tasks) Sync(ctx context.Context, j id.Jail) error {
	list, err := ts.store.Tasks(ctx, TaskFilter{Jail: j, Unwritten: true, Limit: 1000})
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range list {
		if _, err := ts.writeFile(ctx, t.ID); err != nil && !errors.Is(err, fault.NotFound) { // NotFound: the jail was deleted
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeFile writes the file of a task and marks it as up to date. Text that an agent has added
// below the front matter is kept.
func (ts *Tasks) writeFile(ctx context.Context, tid string) (Task, error) {
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
			text = append(t.frontMatter(), content(old)...)
		}
	}
	if err := ts.files.Write(ctx, t.Jail, t.Path, text); err != nil {
		return t, fmt.Errorf("write the file of %s: %w", tid, err)
	}
	written := t
	err = ts.store.ChangeTask(ctx, tid, func(now *Task) error {
		now.Digest = digestOf(text)
		now.Written = now.Status == written.Status // otherwise the status changed in the meantime
		t = *now
		return nil
	})
	if err != nil {
		return t, fmt.Errorf("mark the file of %s as up to date: %w", tid, err)
	}
	if !t.Written {
		return ts.writeFile(ctx, tid)
	}
	return t, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// render returns the content of the file of a new task.
func (t Task) render() []byte {
	b := t.frontMatter()
	b = append(b, "\n# "...)
	b = append(b, strings.ReplaceAll(t.Title, "<", `\<`)...)
	b = append(b, '\n')
	if t.Description != "" {
		b = append(b, '\n')
		b = append(b, quoteMarkdown(t.Description)...)
	}
	return b
}

// frontMatter returns the YAML front matter. Free text is written as JSON strings, which are
// valid YAML.
func (t Task) frontMatter() []byte {
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
		panic(err) // not reached: a string can be encoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// content returns the file without its front matter.
func content(file []byte) []byte {
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

// quoteMarkdown returns a description as Markdown. Text with lines that could be structure,
// such as headings or front matter, becomes a block quote as a whole, so that it cannot end
// the description.
func quoteMarkdown(text string) string {
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

// structural reports whether a line could be Markdown or front matter structure other than
// text or a list.
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

// printableLines normalizes line breaks and removes invisible characters except spaces and
// tabs.
func printableLines(s string) string {
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u2028", "\n", "\u2029", "\n", "\u0085", "\n", "\v", "\n", "\f", "\n").Replace(s)
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if r != utf8.RuneError && !text.Hidden(r) || unicode.Is(unicode.Zs, r) || r == '\n' || r == '\t' {
			return r
		}
		return -1
	}, s), "\n")
}
