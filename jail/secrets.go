package jail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"glasshouse/fault"
	"glasshouse/id"
	jailfs "glasshouse/jail/fs"
)

// SecretsDir is the directory in a jail with its secrets, one file each.
const SecretsDir = "/run/secrets"

// Secrets provides the secrets of jails. The Manager calls Granted before a jail runs: at its
// start, and in each new instance.
type Secrets interface {
	// Granted returns the secrets that are granted to a jail, with distinct names. The Manager
	// zeroes them. A secret that cannot be read has no bytes, and the error says why.
	Granted(ctx context.Context, jid id.Jail) ([]Secret, error)

	// CopyGrantsToBranch is called for a branch before it runs. JailDeleted is called for a jail that has been
	// removed.
	CopyGrantsToBranch(ctx context.Context, from, branch id.Jail) error
	JailDeleted(ctx context.Context, jid id.Jail) error
}

// A Secret is a value that must not be printed.
type Secret interface {
	Name() string
	Bytes() []byte
	Zero()
}

// A SecretFile is a secret and its owner in the jail.
type SecretFile struct {
	Secret
	UID, GID uint32 // in the jail
}

// A SecretHolder is an Instance that supports secrets, in a tmpfs at SecretsDir. The tmpfs is
// not part of the jail's files: a Checkpointer does not dump it, and a Differ does not report
// it.
type SecretHolder interface {
	// ShowSecrets makes exactly these files visible in the jail, frozen or not, each readable
	// only by its owner. A file without bytes keeps its previous content. Processes of the
	// jail cannot change the files. The content of a removed file is erased, also for
	// processes that have it open. It returns fault.Unsupported if the jail cannot have
	// secrets.
	ShowSecrets(ctx context.Context, files []SecretFile) error

	// HideSecrets removes all files until the next ShowSecrets. If a process has one of them
	// open, it returns fault.Conflict and changes nothing.
	HideSecrets(ctx context.Context) error
}

// An AccountHolder is an Instance whose process does not have the jail's root.
type AccountHolder interface {
	// Account returns the ids of a user in the jail, frozen or not, as the function Account does.
	Account(ctx context.Context, user string) (uid, gid uint32, err error)
}

// secretFiles mounts the secrets of jails.
type secretFiles struct {
	*core
	registry *registry
}

// RefreshSecrets updates the secrets of a live jail to those that are granted now. A jail that
// does not run gets them at its start. If some secrets cannot be read, the jail keeps their
// previous values, the others are updated, and RefreshSecrets returns an error.
func (sf *secretFiles) RefreshSecrets(ctx context.Context, jid id.Jail) error {
	_, err := sf.registry.withLock(ctx, jid, "jail.RefreshSecrets", func(ctx context.Context, _ Backend, e *entry) error {
		j, l := *e.jail.Load(), e.live.Load()
		if l == nil || !j.State.live() || j.State == Created {
			return nil
		}
		return sf.refreshSecrets(ctx, j, l.inst)
	})
	return err
}

// refreshSecrets removes revoked secrets, even if some granted secrets cannot be read.
func (sf *secretFiles) refreshSecrets(ctx context.Context, j Jail, inst Instance) error {
	values, err := sf.secretsOf(ctx, j)
	defer zero(values)
	return errors.Join(err, sf.showSecrets(ctx, j, inst, values))
}

// mountSecrets makes all granted secrets visible in a jail that is about to run. It fails if
// one cannot be read.
func (sf *secretFiles) mountSecrets(ctx context.Context, j Jail, inst Instance) error {
	values, err := sf.secretsOf(ctx, j)
	defer zero(values)
	if err != nil {
		return err
	}
	return sf.showSecrets(ctx, j, inst, values)
}

// secretsOf returns the granted secrets of a jail, as Secrets.Granted does. The caller zeroes
// them.
func (sf *secretFiles) secretsOf(ctx context.Context, j Jail) ([]Secret, error) {
	if sf.cfg.Secrets == nil {
		return nil, nil
	}
	values, err := sf.cfg.Secrets.Granted(ctx, j.ID)
	if err != nil {
		err = fmt.Errorf("get the secrets of %s: %w", j.ID, err)
	}
	return values, err
}

func zero(values []Secret) {
	for _, v := range values {
		v.Zero()
	}
}

func (sf *secretFiles) showSecrets(ctx context.Context, j Jail, inst Instance, values []Secret) error {
	if sf.cfg.Secrets == nil {
		return nil
	}
	holder, ok := inst.(SecretHolder)
	if !ok {
		if len(values) == 0 {
			return nil
		}
		return fault.Cannot("jail.showSecrets", "jails of the backend "+j.Spec.Backend+" cannot have secrets", "create the jail with --backend oci")
	}
	var uid, gid uint32
	if len(values) > 0 {
		var err error
		if a, ok := inst.(AccountHolder); ok && !isRoot(j.Spec.User) {
			uid, gid, err = a.Account(ctx, j.Spec.User)
		} else if !ok {
			uid, gid, err = Account(ctx, inst.PID(), j.Spec.User)
		}
		if err != nil {
			return fmt.Errorf("mount the secrets of %s: %w", j.ID, err)
		}
	}
	files := make([]SecretFile, len(values))
	for i, v := range values {
		files[i] = SecretFile{v, uid, gid}
	}
	if err := holder.ShowSecrets(ctx, files); err != nil {
		return fmt.Errorf("mount the secrets of %s: %w", j.ID, err)
	}
	return nil
}

// hideSecrets removes the secrets of a frozen jail. The caller shows them again before the
// jail is thawed.
func (sf *secretFiles) hideSecrets(ctx context.Context, inst Instance) error {
	if holder, ok := inst.(SecretHolder); ok && sf.cfg.Secrets != nil {
		return holder.HideSecrets(ctx)
	}
	return nil
}

// inheritSecrets grants a branch the inheritable secrets of its parent.
func (sf *secretFiles) inheritSecrets(ctx context.Context, from, branch id.Jail) error {
	if sf.cfg.Secrets == nil {
		return nil
	}
	if err := sf.cfg.Secrets.CopyGrantsToBranch(ctx, from, branch); err != nil {
		return fmt.Errorf("copy the secret grants of jail %s to %s: %w", from, branch, err)
	}
	return nil
}

// forgetSecrets ends the secret grants of a removed jail.
func (sf *secretFiles) forgetSecrets(ctx context.Context, jid id.Jail) {
	if sf.cfg.Secrets == nil {
		return
	}
	if err := sf.cfg.Secrets.JailDeleted(ctx, jid); err != nil {
		sf.cfg.Log.Warn("cannot end the secret grants of a jail", "jail", jid, "err", err)
	}
}

// maxAccounts bounds the bytes that are read of a jail's /etc/passwd and /etc/group.
const maxAccounts = 4 << 20

// Account resolves "name", "uid", "name:group" or "uid:gid" by the files of the jail of a process, as
// the jail's init does. Init cannot do it because the jail may be frozen. Empty is root.
func Account(ctx context.Context, pid int, user string) (uid, gid uint32, err error) {
	if isRoot(user) {
		return 0, 0, nil
	}
	root, err := jailfs.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	name, group, hasGroup := strings.Cut(user, ":")
	uid, numeric := idNumber(name)
	passwd := findLine(ctx, root, "/etc/passwd", 4, func(f []string) bool { return f[0] == name || numeric && f[2] == name })
	switch {
	case passwd != nil:
		uid, _ = idNumber(passwd[2])
		gid, _ = idNumber(passwd[3])
	case !numeric:
		return 0, 0, fault.Fieldf("jail.Account", "user", "%q is not in the jail's /etc/passwd", name)
	}
	if !hasGroup {
		return uid, gid, nil
	}
	gid, numeric = idNumber(group)
	entry := findLine(ctx, root, "/etc/group", 3, func(f []string) bool { return f[0] == group })
	switch {
	case entry != nil:
		gid, _ = idNumber(entry[2])
	case !numeric:
		return 0, 0, fault.Fieldf("jail.Account", "user", "group %q is not in the jail's /etc/group", group)
	}
	return uid, gid, nil
}

func isRoot(user string) bool { return user == "" || user == "0" || user == "root" || user == "0:0" }

// findLine returns the fields of the first line for which match returns true. The line has at
// least the given number of fields. The jail controls the file; findLine returns nil if it
// cannot be read.
func findLine(ctx context.Context, root *jailfs.Root, name string, fields int, match func([]string) bool) []string {
	f, _, err := root.Read(ctx, name, 0, maxAccounts)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, maxAccounts)); lines.Scan(); {
		split := strings.Split(lines.Text(), ":")
		if len(split) < fields || split[0] == "" {
			continue
		}
		if _, ok := idNumber(split[2]); ok && match(split) {
			return slices.Clone(split)
		}
	}
	return nil
}

func idNumber(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// Host returns the host ids of the owner of a secret.
func (f SecretFile) Host(ids IDRange) (uid, gid uint32, err error) {
	if f.UID >= ids.Count || f.GID >= ids.Count {
		return 0, 0, errors.New("the owner's id is out of the jail's id range")
	}
	return ids.First + f.UID, ids.First + f.GID, nil
}
