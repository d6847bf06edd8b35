package autonomy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
	"glasshouse/id"
)

// workspace implements Files with a directory for each jail.
type workspace struct {
	dir  string
	mu   sync.Mutex
	full bool
}

func (w *workspace) Write(_ context.Context, j id.Jail, path string, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full {
		return errors.New("no space left on device")
	}
	root, err := w.root(j)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return root.WriteFile(path, data, 0o644)
}

func (w *workspace) Read(_ context.Context, j id.Jail, path string, most int64) ([]byte, error) {
	root, err := w.root(j)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	data, err := root.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "read", path, err)
	}
	if int64(len(data)) > most {
		return nil, fault.Newf(fault.TooLarge, "read", path, "too large")
	}
	return data, err
}

func (w *workspace) root(j id.Jail) (*os.Root, error) {
	dir := filepath.Join(w.dir, string(j))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

func (w *workspace) text(t testing.TB, task autonomy.Task) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, string(task.Jail), task.Path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func newTasks(t testing.TB) (*autonomy.Tasks, *workspace) {
	w := &workspace{dir: t.TempDir()}
	return autonomy.NewTasks(openAutonomyStore(t, ""), w), w
}

func create(t testing.TB, ts *autonomy.Tasks, title, description string) autonomy.Task {
	t.Helper()
	task, err := ts.Create(t.Context(), member("worker"), autonomy.NewTask{Title: title, Description: description})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func TestCreateTask(t *testing.T) {
	ts, w := newTasks(t)
	task, err := ts.Create(t.Context(), member("worker"), autonomy.NewTask{Title: "Add login", Description: "With a form.\n\n- name\n- password", Priority: autonomy.High})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("---\nid: %s\ntitle: \"Add login\"\npriority: high\nstatus: open\ncreated: %s\nby: \"worker\"\n---\n\n# Add login\n\nWith a form.\n\n- name\n- password\n",
		task.ID, task.Created.Format(time.RFC3339))
	if got := w.text(t, task); got != want {
		t.Errorf("file =\n%s\nwant\n%s", got, want)
	}
	if task.Path != ".tasks/"+task.ID+".md" || !strings.HasPrefix(task.ID, "task-") || !task.Written {
		t.Errorf("Create = %+v", task)
	}
	if list, err := ts.List(t.Context(), autonomy.TaskFilter{Jail: "j-worker", Status: autonomy.ToDo, Priority: autonomy.High}); err != nil || len(list) != 1 || list[0].Description != task.Description {
		t.Errorf("List = %+v, %v", list, err)
	}
	file, err := ts.File(t.Context(), task)
	if err != nil || file.Edited || file.Missing || file.Text != want {
		t.Errorf("File = %+v, %v", file, err)
	}
}

// A run that another daemon continues repeats the step in which it was interrupted, in another jail.
func TestRepeatedTaskMovesToTheNewJail(t *testing.T) {
	ts, w := newTasks(t)
	n := autonomy.NewTask{Title: "Add login", At: time.Now()}
	by := member("worker")
	first, err := ts.Create(t.Context(), by, n)
	if err != nil {
		t.Fatal(err)
	}
	by.Jail = "j-other"
	again, err := ts.Create(t.Context(), by, n)
	if err != nil || again.ID != first.ID || again.Jail != "j-other" || !again.Written {
		t.Errorf("repeated Create = %+v, %v, want the task %s in the new jail", again, err, first.ID)
	}
	if text := w.text(t, again); !strings.Contains(text, "# Add login") {
		t.Errorf("file in the new jail = %q", text)
	}
	if list, err := ts.List(t.Context(), autonomy.TaskFilter{Jail: "j-other"}); err != nil || len(list) != 1 {
		t.Errorf("tasks of the new jail = %+v, %v, want one", list, err)
	}
	stranger := member("stranger")
	stranger.Session = "other"
	if other, err := ts.Create(t.Context(), stranger, n); err != nil || other.ID == first.ID {
		t.Errorf("Create of another session at the same time = %+v, %v, want a task of its own", other, err)
	}
}

func TestTaskTextIsContained(t *testing.T) {
	ts, w := newTasks(t)
	for _, evil := range []string{
		"x\n---\nstatus: done\n---\n", "---\npriority: urgent\n---", "# Another task", "a\n  ## b", "Title\n=====", "Title\n-", "```\nopen", "~~~", "<!-- ", "<script>alert(1)</script>",
		"+++\nstatus = 1\n+++", "...", "* * *", "a\r# b", "a\u2028# b", "a\v# b", "\x00\x1b# x", "___",
	} {
		task := create(t, ts, evil+" t", evil)
		text := w.text(t, task)
		head, rest, ok := strings.Cut(strings.TrimPrefix(text, "---\n"), "\n---\n")
		if !ok || strings.Count(head, "\n") != 5 || !strings.Contains(head, "\nstatus: open\n") || !strings.Contains(head, "\npriority: medium\n") {
			t.Errorf("%q: front matter = %q", evil, head)
		}
		lines := strings.Split(strings.TrimSuffix(rest, "\n"), "\n")
		if len(lines) < 4 || !strings.HasPrefix(lines[1], "# ") || lines[2] != "" {
			t.Errorf("%q: content = %q", evil, rest)
			continue
		}
		for _, line := range lines[3:] {
			if !strings.HasPrefix(line, ">") {
				t.Errorf("%q: line %q is not quoted", evil, line)
			}
		}
		if strings.ContainsAny(text, "\x00\x1b\r\v\u2028") {
			t.Errorf("%q: the file contains control characters: %q", evil, text)
		}
	}
}

func TestInvalidTasks(t *testing.T) {
	ts, _ := newTasks(t)
	for field, n := range map[string]autonomy.NewTask{
		"title": {Title: " \n\t\u202e "}, "priority": {Title: "x", Priority: "asap\n---"}, "description": {Title: "x", Description: strings.Repeat("x", 70_000)},
	} {
		if _, err := ts.Create(t.Context(), member("worker"), n); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != field {
			t.Errorf("Create with an invalid %s = %v, want %v", field, err, fault.Invalid)
		}
	}
	if task := create(t, ts, strings.Repeat("é", 300), ""); len(task.Title) > 210 || !strings.HasSuffix(task.Title, "…") {
		t.Errorf("long title has %d bytes: %q", len(task.Title), task.Title)
	}
}

func TestConcurrentTasks(t *testing.T) {
	ts, w := newTasks(t)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			task := create(t, ts, fmt.Sprint("task ", i), "")
			if !strings.Contains(w.text(t, task), fmt.Sprintf("# task %d\n", i)) {
				t.Errorf("%s has the file of another task", task.ID)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[task.ID] = true
		})
	}
	wg.Wait()
	if len(seen) != 50 {
		t.Errorf("%d distinct ids, want 50", len(seen))
	}
	var paged []string
	for f := (autonomy.TaskFilter{Limit: 7}); ; {
		page, err := ts.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range page {
			paged = append(paged, task.ID)
		}
		if len(page) < f.Limit {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(paged)))); n != 50 || len(paged) != 50 {
		t.Errorf("pages have %d tasks, %d of them distinct; want 50", len(paged), n)
	}
}

func TestFileFollowsTheTask(t *testing.T) {
	ts, w := newTasks(t)
	task := create(t, ts, "Add login", "A form")
	steps := []struct {
		to autonomy.Status
		ok bool
	}{{autonomy.Doing, true}, {autonomy.Done, true}, {autonomy.Doing, false}, {autonomy.ToDo, true}, {autonomy.Dropped, true}, {"gone", false}, {autonomy.Dropped, true}}
	for _, s := range steps {
		got, err := ts.Set(t.Context(), task.ID, s.to)
		if (err == nil) != s.ok {
			t.Fatalf("Set(%s) = %v, want success %v", s.to, err, s.ok)
		}
		if s.ok && (!strings.Contains(w.text(t, task), "\nstatus: "+string(s.to)+"\n") || got.Status != s.to || !got.Written) {
			t.Errorf("Set(%s) = %+v with the file\n%s", s.to, got, w.text(t, task))
		}
	}
	if _, err := ts.Set(t.Context(), "task-0", autonomy.Done); !errors.Is(err, fault.NotFound) {
		t.Errorf("Set of a missing task = %v, want %v", err, fault.NotFound)
	}
}

func TestEditedFileDoesNotChangeTheTask(t *testing.T) {
	ts, w := newTasks(t)
	task := create(t, ts, "Add login", "A form")
	edits := strings.NewReplacer("status: open", "status: done\nby: root", "A form", "A form\n\nI have begun.")
	if err := w.Write(t.Context(), task.Jail, task.Path, []byte(edits.Replace(w.text(t, task)))); err != nil {
		t.Fatal(err)
	}
	got, err := ts.Get(t.Context(), task.ID)
	if err != nil || got.Status != autonomy.ToDo {
		t.Errorf("status after the edit = %s, %v; want open", got.Status, err)
	}
	if file, err := ts.File(t.Context(), got); err != nil || !file.Edited || !strings.Contains(file.Text, "status: done") {
		t.Errorf("File = %+v, %v", file, err)
	}
	got, err = ts.Set(t.Context(), task.ID, autonomy.Doing)
	if err != nil {
		t.Fatal(err)
	}
	text := w.text(t, task)
	if !strings.Contains(text, "\nstatus: doing\n") || strings.Contains(text, "root") || !strings.HasSuffix(text, "A form\n\nI have begun.\n") || strings.Count(text, "# Add login") != 1 {
		t.Errorf("file after Set =\n%s", text)
	}
	for _, instead := range []string{"replaced text", "---\nno end", "---\n---\nempty", ""} {
		if err := w.Write(t.Context(), task.Jail, task.Path, []byte(instead)); err != nil {
			t.Fatal(err)
		}
		for _, to := range []autonomy.Status{autonomy.ToDo, autonomy.Doing} {
			if _, err := ts.Set(t.Context(), task.ID, to); err != nil {
				t.Fatal(err)
			}
		}
		if text := w.text(t, task); !strings.HasPrefix(text, "---\nid: "+task.ID) || strings.Count(text, "status:") != 1 {
			t.Errorf("file with %q after Set =\n%s", instead, text)
		}
	}
	if err := os.Remove(filepath.Join(w.dir, string(task.Jail), task.Path)); err != nil {
		t.Fatal(err)
	}
	if file, err := ts.File(t.Context(), got); err != nil || !file.Missing {
		t.Errorf("File = %+v, %v", file, err)
	}
	if _, err := ts.Set(t.Context(), task.ID, autonomy.Done); err != nil || !strings.Contains(w.text(t, task), "A form") {
		t.Errorf("Set after the file was removed = %v, want it written again", err)
	}
}

func TestSyncWritesMissingFiles(t *testing.T) {
	ts, w := newTasks(t)
	w.full = true
	task, err := ts.Create(t.Context(), member("worker"), autonomy.NewTask{Title: "Add login"})
	if err == nil || task.ID == "" {
		t.Fatalf("Create = %+v, %v; want the task and the error", task, err)
	}
	if file, err := ts.File(t.Context(), task); err != nil || !file.Missing {
		t.Errorf("File = %+v, %v", file, err)
	}
	if err := ts.Sync(t.Context(), "j-worker"); err == nil {
		t.Error("Sync with a full disk: got no error")
	}
	w.full = false
	for range 2 {
		if err := ts.Sync(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(w.text(t, task), "# Add login\n") {
		t.Error("Sync did not write the file")
	}
	if got, err := ts.Get(t.Context(), task.ID); err != nil || !got.Written {
		t.Errorf("Get after Sync = %+v, %v; want it written", got, err)
	}
}

func FuzzTaskFile(f *testing.F) {
	f.Add("Add login", "With a form.\n- name", "---\nid: x\n---\n\n# y\n")
	f.Add("# x\n---", "---\n```\n<!--", "---\n")
	f.Add("\u202ex", "\xff\r\n===", "")
	ts, w := newTasks(f)
	f.Fuzz(func(t *testing.T, title, description, edited string) {
		task, err := ts.Create(t.Context(), member("worker"), autonomy.NewTask{Title: title, Description: description})
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		check := func(status string) {
			t.Helper()
			head, _, ok := strings.Cut(strings.TrimPrefix(w.text(t, task), "---\n"), "\n---\n")
			lines := strings.Split(head, "\n")
			if !ok || len(lines) != 6 || lines[0] != "id: "+task.ID || lines[3] != "status: "+status {
				t.Errorf("front matter = %q", head)
			}
		}
		check("open")
		if len(edited) > 200<<10 {
			return
		}
		if err := w.Write(t.Context(), task.Jail, task.Path, []byte(edited)); err != nil {
			t.Fatal(err)
		}
		if _, err := ts.Set(t.Context(), task.ID, autonomy.Done); err != nil {
			t.Fatal(err)
		}
		check("done")
	})
}
