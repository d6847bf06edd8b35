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
	"glasshouse/jailfs"
)

// SecretsDir is where a jail finds the secrets that it was given, one file each.
const SecretsDir = "/run/secrets"

// Secrets says which secrets jails are to have. The Manager asks whenever a jail
// begins to run, and before it does anything: at its start, and in each of its
// bodies.
type Secrets interface {
	// For returns what a jail is to have now, by different names. The Manager
	// zeroes it. What cannot be had is without bytes, and an error says why.
	For(ctx context.Context, jid id.Jail) ([]Secret, error)

	// Branched is told of a jail that is being made of a snapshot of another,
	// before it runs. Gone is told of one that is no more.
	Branched(ctx context.Context, from, branch id.Jail) error
	Gone(ctx context.Context, jid id.Jail) error
}

// A Secret is a value that must not be printed.
type Secret interface {
	Name() string
	Bytes() []byte
	Zero()
}

// A SecretFile is a secret and who in the jail may read it.
type SecretFile struct {
	Secret
	UID, GID uint32 // in the jail
}

// A SecretHolder is an Instance that can be given secrets, in a filesystem in
// memory at SecretsDir. It is no part of the jail's files: nothing of it is in
// what a Checkpointer writes down, nor in what a Differ finds.
type SecretHolder interface {
	// ShowSecrets has the jail see exactly these, frozen or not, each for its
	// owner alone to read; of one without bytes, what it saw under that name. Nobody
	// in the jail can change them. Of one that goes nothing is left, also for who
	// has it open. It returns fault.Unsupported if the jail cannot be given any.
	ShowSecrets(ctx context.Context, files []SecretFile) error

	// HideSecrets takes them all away until they are shown again. It returns
	// fault.Conflict, and has changed nothing, if a process holds one open.
	HideSecrets(ctx context.Context) error
}

// RefreshSecrets has a jail see the secrets that it is to have now. One that does
// not run will when it starts. If some cannot be had, those it sees of them stay,
// the others are as they are to be, and it returns an error.
func (m *Manager) RefreshSecrets(ctx context.Context, jid id.Jail) error {
	_, err := m.change(ctx, jid, "jail.RefreshSecrets", func(ctx context.Context, _ Backend, c *cell) error {
		j, l := *c.jail.Load(), c.live.Load()
		if l == nil || !j.State.live() || j.State == Created {
			return nil
		}
		return m.refreshSecrets(ctx, j, l.inst)
	})
	return err
}

// refreshSecrets takes away what a jail is not to have any more, also when what it
// is to have cannot be had.
func (m *Manager) refreshSecrets(ctx context.Context, j Jail, inst Instance) error {
	values, err := m.secretsOf(ctx, j)
	defer zero(values)
	return errors.Join(err, m.showSecrets(ctx, j, inst, values))
}

// giveSecrets shows a jail that is to begin all that it is to have.
func (m *Manager) giveSecrets(ctx context.Context, j Jail, inst Instance) error {
	values, err := m.secretsOf(ctx, j)
	defer zero(values)
	if err != nil {
		return err
	}
	return m.showSecrets(ctx, j, inst, values)
}

// secretsOf returns what a jail is to have now, as For does. The caller zeroes it.
func (m *Manager) secretsOf(ctx context.Context, j Jail) ([]Secret, error) {
	if m.cfg.Secrets == nil {
		return nil, nil
	}
	values, err := m.cfg.Secrets.For(ctx, j.ID)
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

func (m *Manager) showSecrets(ctx context.Context, j Jail, inst Instance, values []Secret) error {
	if m.cfg.Secrets == nil {
		return nil
	}
	holder, ok := inst.(SecretHolder)
	if !ok {
		if len(values) == 0 {
			return nil
		}
		return fault.Cannot("jail.Secrets", "jails of the backend "+j.Spec.Backend+" cannot be given secrets", "make jails with --backend oci")
	}
	var owner account
	if len(values) > 0 {
		var err error
		if owner, err = accountOf(ctx, inst.PID(), j.Spec.User); err != nil {
			return fmt.Errorf("give %s its secrets: %w", j.ID, err)
		}
	}
	files := make([]SecretFile, len(values))
	for i, v := range values {
		files[i] = SecretFile{v, owner.uid, owner.gid}
	}
	if err := holder.ShowSecrets(ctx, files); err != nil {
		return fmt.Errorf("give %s its secrets: %w", j.ID, err)
	}
	return nil
}

// hideSecrets takes the secrets of a frozen jail away, to be shown again before it
// goes on.
func (m *Manager) hideSecrets(ctx context.Context, inst Instance) error {
	if holder, ok := inst.(SecretHolder); ok && m.cfg.Secrets != nil {
		return holder.HideSecrets(ctx)
	}
	return nil
}

// branched has a new jail get what it is to have of the one it was made from.
func (m *Manager) branched(ctx context.Context, from, branch id.Jail) error {
	if m.cfg.Secrets == nil {
		return nil
	}
	return m.cfg.Secrets.Branched(ctx, from, branch)
}

// forgetSecrets ends what a jail that is no more was to have.
func (m *Manager) forgetSecrets(ctx context.Context, jid id.Jail) {
	if m.cfg.Secrets == nil {
		return
	}
	if err := m.cfg.Secrets.Gone(ctx, jid); err != nil {
		m.cfg.Log.Warn("the grants of a jail's secrets did not end", "jail", jid, "err", err)
	}
}

// An account is whom a jail's commands run as.
type account struct{ uid, gid uint32 }

// maxAccounts bounds what is read of a jail's /etc/passwd and /etc/group.
const maxAccounts = 4 << 20

// accountOf finds whom "name", "uid", "name:group" or "uid:gid" is in a jail, by
// its own files, as its init does; a jail that is frozen has no init to ask. Empty
// is root.
func accountOf(ctx context.Context, pid int, spec string) (account, error) {
	if spec == "" || spec == "0" || spec == "root" || spec == "0:0" {
		return account{}, nil
	}
	root, err := jailfs.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return account{}, err
	}
	defer root.Close()
	name, group, hasGroup := strings.Cut(spec, ":")
	var who account
	uid, numeric := idNumber(name)
	who.uid = uid
	passwd := line(ctx, root, "/etc/passwd", 4, func(f []string) bool { return f[0] == name || numeric && f[2] == name })
	switch {
	case passwd != nil:
		who.uid, _ = idNumber(passwd[2])
		who.gid, _ = idNumber(passwd[3])
	case !numeric:
		return account{}, fault.Fieldf("jail.Secrets", "user", "%q is not in the jail's /etc/passwd", name)
	}
	if !hasGroup {
		return who, nil
	}
	gid, numeric := idNumber(group)
	who.gid = gid
	entry := line(ctx, root, "/etc/group", 3, func(f []string) bool { return f[0] == group })
	switch {
	case entry != nil:
		who.gid, _ = idNumber(entry[2])
	case !numeric:
		return account{}, fault.Fieldf("jail.Secrets", "user", "group %q is not in the jail's /etc/group", group)
	}
	return who, nil
}

// line returns the fields of the first line that match likes, at least as many as
// given, of a file that is the jail's to write. One that cannot be read has none.
func line(ctx context.Context, root *jailfs.Root, name string, fields int, match func([]string) bool) []string {
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

// Host returns the ids that the owner of a secret has on the host.
func (f SecretFile) Host(ids IDRange) (uid, gid uint32, err error) {
	if f.UID >= ids.Count || f.GID >= ids.Count {
		return 0, 0, errors.New("its user has an id that no user of a jail has")
	}
	return ids.First + f.UID, ids.First + f.GID, nil
}
