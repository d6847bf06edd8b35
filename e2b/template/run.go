package template

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	"glasshouse/e2b"
	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/control"
	"glasshouse/jail/init/protocol"
)

// do runs a step and takes a snapshot of the files that it changed.
func (r *builder) do(ctx context.Context, at string, s Step, what any) error {
	switch what := what.(type) {
	case assigning:
		return r.setEnv(what)
	case running:
		if err := r.ensureJail(ctx); err != nil {
			return err
		}
		if err := r.command(ctx, at, what.command, cmp.Or(what.user, r.set.User)); err != nil {
			return err
		}
		return r.freeze(ctx)
	}
	if err := r.ensureJail(ctx); err != nil {
		return err
	}
	f, err := r.t.cfg.Jails.Files(ctx, r.jail)
	if err != nil {
		return fmt.Errorf("open the files of the build: %w", err)
	}
	defer f.Close()
	changed := true
	switch what := what.(type) {
	case copying:
		err = r.copy(ctx, f, s, what)
	case settingDir:
		changed, err = r.setDir(ctx, f, what)
	case settingUser:
		changed, err = r.setUser(ctx, f, what)
	}
	if err != nil || !changed {
		return err
	}
	return r.freeze(ctx)
}

// setEnv sets variables. Their values may refer to other variables.
func (r *builder) setEnv(e assigning) error {
	for _, pair := range e.pairs {
		value, err := expand(pair[1], r.value)
		if err != nil {
			return err
		}
		r.set = r.set.with(pair[0], value)
	}
	return nil
}

// value returns the value of a variable during a step.
func (r *builder) value(name string) string {
	if v, ok := r.set.Env[name]; ok {
		return v
	}
	for _, s := range r.set.Base {
		if k, v, _ := strings.Cut(s, "="); k == name {
			return v
		}
	}
	switch name {
	case "PATH":
		return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	case "USER", "LOGNAME":
		return r.set.User
	case "HOME":
		if r.set.User == "root" {
			return "/root"
		}
		return "/home/" + r.set.User
	}
	return ""
}

// setDir changes the working directory, and creates it if it is missing.
func (r *builder) setDir(ctx context.Context, f jail.Files, m settingDir) (changed bool, err error) {
	dir, err := expand(m.dir, r.value)
	if err != nil {
		return false, err
	}
	if !path.IsAbs(dir) {
		dir = path.Join(cmp.Or(r.set.Dir, "/"), dir)
	}
	dir = path.Clean(dir)
	there, err := isDir(ctx, f, dir)
	if err != nil {
		return false, err
	}
	r.set.Dir = dir
	if there {
		return false, nil
	}
	who, err := accountOf(ctx, f, r.set.User)
	if err != nil {
		return false, err
	}
	return true, f.MkdirFor(ctx, dir, who.owner)
}

// isDir reports whether a path is a directory, or a link to one.
func isDir(ctx context.Context, f jail.Files, name string) (bool, error) {
	if name == "/" {
		return true, nil
	}
	_, _, err := f.List(ctx, name, "", 1)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fault.NotFound), errors.Is(err, fault.Invalid), errors.Is(err, fault.Conflict):
		return false, nil
	}
	return false, err
}

// setUser changes the user, and creates the user if it does not exist.
func (r *builder) setUser(ctx context.Context, f jail.Files, b settingUser) (changed bool, err error) {
	_, err = accountOf(ctx, f, b.user)
	changed = errors.Is(err, fault.NotFound)
	if changed {
		err = addAccount(ctx, f, b.user)
	}
	if err != nil {
		return false, err
	}
	r.set.User = b.user
	return changed, nil
}

// copy writes files that the client sent to the tree.
func (r *builder) copy(ctx context.Context, f jail.Files, s Step, c copying) error {
	archive, _, err := r.t.files.open(r.b.Team, s.Files)
	if err != nil {
		return fmt.Errorf("open the uploaded files: %w", err)
	}
	defer archive.Close()
	me, err := accountOf(ctx, f, r.set.User)
	if err != nil {
		return err
	}
	owner, err := ownerOf(ctx, f, c.owner, me.owner)
	if err != nil {
		return err
	}
	to, err := expand(c.to, r.value)
	if err != nil {
		return err
	}
	l := destination{from: c.from, to: to, uid: int(owner.UID), gid: int(owner.GID), mode: c.mode}
	if !path.IsAbs(to) {
		l.to = path.Join("/", cmp.Or(r.set.Dir, me.home), to)
	}
	kind, err := kindOf(archive, c)
	if err != nil {
		return err
	}
	there, err := isDir(ctx, f, path.Clean(l.to))
	if err != nil {
		return err
	}
	switch {
	case kind == 0:
		return missing("COPY: the uploaded files do not contain %q", short(s.Args[0]))
	case kind != 'd':
		l.into = there || strings.HasSuffix(to, "/") || path.Base(to) == "." || path.Base(to) == ".."
	case !there:
		if err := f.MkdirFor(ctx, path.Clean(l.to), owner); err != nil {
			return fmt.Errorf("create the destination %s: %w", path.Clean(l.to), err)
		}
	}
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the uploaded files again: %w", err)
	}
	out, in := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := rewrite(ctx, archive, in, l)
		in.CloseWithError(err)
		packed <- err
	}()
	err = f.Untar(ctx, "/", out)
	out.CloseWithError(errors.New("the jail stopped reading")) // if it has not read everything
	if unread := <-packed; err == nil {
		err = unread
	}
	return err
}

// kindOf returns what a path in an archive is: 'd' for a directory, 'f' for another file, or 0
// if it does not exist.
func kindOf(archive io.Reader, c copying) (kind byte, err error) {
	err = eachEntry(archive, func(name string, dir bool) {
		switch {
		case name == c.from && !dir:
			kind = 'f'
		case kind == 0 && (c.from == "." || name == c.from || strings.HasPrefix(name, c.from+"/")):
			kind = 'd'
		}
	})
	if err != nil {
		return kind, fmt.Errorf("list the uploaded files: %w", err)
	}
	return kind, nil
}

// command runs a command with a shell. It returns fault.Invalid if the command fails.
func (r *builder) command(ctx context.Context, at, command, user string) (err error) {
	if user != "root" {
		done, sudoErr := r.sudo(ctx)
		if sudoErr != nil {
			return fmt.Errorf("prepare sudo for the step: %w", sudoErr)
		}
		defer func() {
			if end := done(); err == nil && end != nil {
				err = fmt.Errorf("remove the sudo helper of the step: %w", end)
			}
		}()
	}
	stream, err := r.exec(ctx, command, user)
	if fault.FieldOf(err) == "user" {
		return invalid("failed to run command '%s': command failed: unauthenticated: invalid username: '%s'", short(command), short(user))
	}
	if err != nil {
		return fmt.Errorf("start the command of the step: %w", err)
	}
	defer stream.Close()
	st, err := r.follow(stream, at, "info")
	if err != nil {
		return fmt.Errorf("follow the command of the step: %w", err)
	}
	if st.Code != 0 {
		return invalid("failed to run command '%s': %s", short(command), ended(st))
	}
	return nil
}

func ended(st protocol.ExecStatus) string {
	if st.Signal != "" {
		return "signal: " + st.Signal
	}
	return fmt.Sprintf("exit status %d", st.Code)
}

// exec starts a command with a shell, with the user, directory and environment of the steps so
// far.
func (r *builder) exec(ctx context.Context, command, user string) (*control.Stream, error) {
	env := map[string]string{"LOGNAME": user}
	maps.Copy(env, r.set.Env)
	stream, _, err := r.t.cfg.Jails.Exec(ctx, r.jail, jail.ExecRequest{
		Argv: r.shell(ctx, command), Env: env, Cwd: cmp.Or(r.set.Dir, "~"), User: user,
	}, &control.AttachOptions{Lossless: true})
	return stream, err
}

// shell returns the shell of a sandbox's commands, or sh if it is missing.
func (r *builder) shell(ctx context.Context, command string) []string {
	f, err := r.t.cfg.Jails.Files(ctx, r.jail)
	if err == nil {
		_, err = f.Stat(ctx, "/bin/bash")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return []string{"/bin/sh", "-c", command}
	}
	return []string{"/bin/bash", "-l", "-c", command}
}

// follow writes the output of a command to the log, line by line, until the command has ended.
func (r *builder) follow(stream *control.Stream, at, level string) (protocol.ExecStatus, error) {
	var parts [2][]byte
	say := func(line []byte) {
		line = bytes.TrimRight(line, "\r")
		if len(line) > 0 {
			r.log.printf(level, at, "%s", line)
		}
	}
	status, err := stream.Each(func(c protocol.Chunk) error {
		part := &parts[0]
		if c.Stream == protocol.Stderr {
			part = &parts[1]
		}
		for *part = append(*part, c.Data...); ; {
			line, rest, complete := bytes.Cut(*part, []byte("\n"))
			if !complete && len(line) < maxLine {
				return nil
			}
			say(line)
			*part = bytes.Clone(rest)
		}
	})
	for _, rest := range parts {
		say(rest)
	}
	return status, err
}

// Limits of the wait for the start command: by the ready command, which is retried, or without
// one.
const (
	readyTime  = 10 * time.Minute
	readyAgain = 500 * time.Millisecond
	readyWait  = 20 * time.Second
)

// start runs the start command and waits until it is ready. The command keeps running.
func (r *builder) start(ctx context.Context) error {
	over := make(chan error, 1) // receives nil if the command succeeded
	following, stop := context.WithCancel(ctx)
	defer stop()
	if r.b.Start != "" {
		if err := r.makeNotifyDir(ctx); err != nil {
			r.log.printf("warn", "finalize", "Processes of the start command cannot request a signal in sandboxes: %s", e2b.ErrorOf(err).Message)
		}
		r.log.printf("info", "finalize", "Running start command: %s", r.b.Start)
		stream, err := r.exec(following, r.b.Start, r.set.User)
		if err != nil {
			return fmt.Errorf("start the start command: %w", err)
		}
		defer func() { // its output is no longer read before the checkpoint
			stream.Close()
			stop()
			<-over
		}()
		go func() {
			defer close(over)
			st, err := r.follow(stream, "finalize", "info")
			if err == nil && st.Code != 0 {
				err = invalid("start command failed: %s", ended(st))
			}
			if following.Err() == nil {
				over <- err
			}
		}()
	}
	return r.awaitReady(ctx, over)
}

// makeNotifyDir creates the directory in which processes request a signal after a branch. All
// sandboxes of the template are branches of the start command's processes, whose user cannot
// create the directory.
func (r *builder) makeNotifyDir(ctx context.Context) error {
	f, err := r.t.cfg.Jails.Files(ctx, r.jail)
	if err != nil {
		return fmt.Errorf("open the files of the build: %w", err)
	}
	return errors.Join(f.Mkdir(ctx, protocol.NotifyDir, 0o777|fs.ModeSticky, true), f.Close())
}

func (r *builder) awaitReady(ctx context.Context, over <-chan error) error {
	if r.b.Ready == "" {
		select {
		case err := <-over:
			return err
		case <-time.After(readyWait):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.log.printf("info", "finalize", "Waiting for template to be ready: %s", r.b.Ready)
	for end := time.Now().Add(readyTime); ; {
		stream, err := r.exec(ctx, r.b.Ready, r.set.User)
		if err != nil {
			return fmt.Errorf("start the ready command: %w", err)
		}
		st, err := r.follow(stream, "finalize", "debug")
		stream.Close()
		if err != nil {
			return fmt.Errorf("follow the ready command: %w", err)
		}
		if st.Code == 0 {
			r.log.printf("info", "finalize", "Template is ready")
			return nil
		}
		if time.Now().After(end) {
			return fault.Newf(fault.Timeout, "template.awaitReady", "", "ready command timed out after %v: %s", readyTime, ended(st))
		}
		select {
		case err, running := <-over:
			if err != nil {
				return err
			}
			if running { // it has succeeded: the ready command decides
				over = nil
			}
		case <-time.After(readyAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// An account is a user of the tree.
type account struct {
	home  string
	owner protocol.Owner
}

// maxAccounts limits the bytes read of the user database, which belongs to the tree and is not
// trusted.
const maxAccounts = 4 << 20

// accountOf looks up a user in the tree. It returns fault.NotFound if the user does not exist.
func accountOf(ctx context.Context, f jail.Files, user string) (a account, err error) {
	found := false
	err = fields(ctx, f, "/etc/passwd", func(line []string) {
		if found || len(line) < 7 || line[0] != user {
			return
		}
		uid, err := strconv.ParseUint(line[2], 10, 32)
		gid, err2 := strconv.ParseUint(line[3], 10, 32)
		if err == nil && err2 == nil {
			found, a = true, account{path.Join("/", line[5]), protocol.Owner{UID: uint32(uid), GID: uint32(gid)}}
		}
	})
	if err == nil && !found {
		if user == "root" {
			return account{home: "/root"}, nil
		}
		err = missing("user %s does not exist", short(user))
	}
	return a, err
}

// fields returns the fields of the first line that take accepts. A missing file has no lines.
func fields(ctx context.Context, f jail.Files, name string, take func([]string)) error {
	text, err := readText(ctx, f, name)
	for line := range strings.Lines(text) {
		take(strings.Split(strings.TrimRight(line, "\n"), ":"))
	}
	return err
}

func readText(ctx context.Context, f jail.Files, name string) (string, error) {
	body, _, err := f.Read(ctx, name, 0, maxAccounts)
	if errors.Is(err, fault.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open %s of the tree: %w", name, err)
	}
	defer body.Close()
	text, err := io.ReadAll(bufio.NewReader(io.LimitReader(body, maxAccounts)))
	return string(text), err
}

// ownerOf parses user or user:group, by names or numbers.
func ownerOf(ctx context.Context, f jail.Files, text string, otherwise protocol.Owner) (protocol.Owner, error) {
	if text == "" {
		return otherwise, nil
	}
	user, group, grouped := strings.Cut(text, ":")
	var o protocol.Owner
	if n, err := strconv.ParseUint(user, 10, 31); err == nil {
		o = protocol.Owner{UID: uint32(n), GID: uint32(n)}
	} else {
		a, err := accountOf(ctx, f, user)
		if err != nil {
			return o, err
		}
		o = a.owner
	}
	if !grouped {
		return o, nil
	}
	if n, err := strconv.ParseUint(group, 10, 31); err == nil {
		o.GID = uint32(n)
		return o, nil
	}
	found := group == "root"
	if found {
		o.GID = 0
	}
	err := fields(ctx, f, "/etc/group", func(line []string) {
		if len(line) < 3 || line[0] != group || found {
			return
		}
		if n, err := strconv.ParseUint(line[2], 10, 32); err == nil {
			found, o.GID = true, uint32(n)
		}
	})
	if err == nil && !found {
		err = missing("group %s does not exist", short(group))
	}
	return o, err
}

// addAccount creates a user with the next free uid, a group with the same name, and a home
// directory.
func addAccount(ctx context.Context, f jail.Files, user string) error {
	taken := map[string]bool{}
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		err := fields(ctx, f, file, func(line []string) {
			if len(line) > 2 {
				taken[line[2]] = true
			}
		})
		if err != nil {
			return err
		}
	}
	n := 1000
	for taken[strconv.Itoa(n)] {
		n++
	}
	home := "/home/" + user
	shell := "/bin/sh"
	if _, err := f.Stat(ctx, "/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	for file, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("%s:x:%d:%d::%s:%s\n", user, n, n, home, shell),
		"/etc/group":  fmt.Sprintf("%s:x:%d:\n", user, n),
		"/etc/shadow": user + ":!:19000:0:99999:7:::\n",
	} {
		text, err := readText(ctx, f, file)
		if err != nil {
			return err
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		o := protocol.WriteOptions{Mode: 0o644, Parents: true}
		if file == "/etc/shadow" {
			o.Mode = 0o640
		}
		if _, err := f.Write(ctx, file, strings.NewReader(text+line), o); err != nil {
			return fmt.Errorf("add %s to %s: %w", user, file, err)
		}
	}
	return f.MkdirFor(ctx, home, protocol.Owner{UID: uint32(n), GID: uint32(n)})
}
