package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/host/disk"
	"glasshouse/id"
	"glasshouse/internal/dirs"
	"glasshouse/jail"
	"glasshouse/jailfs"
)

// A Volume is a directory that outlives sandboxes and that several can see at once.
type Volume struct {
	ID      string    `json:"id"`
	Team    id.Token  `json:"team"`
	Name    string    `json:"name"`
	Token   string    `json:"token"` // what its files ask for
	SizeMB  int64     `json:"size_mb"`
	Created time.Time `json:"created"`
}

// A VolumeStore keeps the records of volumes. Add returns fault.Conflict if the team has
// a volume of that name, and when it does not, the record would survive a power cut.
type VolumeStore interface {
	Add(ctx context.Context, v Volume) error
	All(ctx context.Context) ([]Volume, error)
	Delete(ctx context.Context, volume string) error
}

// VolumesConfig is what Volumes needs.
type VolumesConfig struct {
	Store     VolumeStore
	Dir       string // where their files are
	Templates string // of disks: disk.Make
	SizeMB    int64  // of each
	Log       *slog.Logger
}

// maxVolumes is how many a team may have.
const maxVolumes = 100

// Volumes are all that there are. Each is a filesystem of a fixed size, in which the ids
// of users are those in sandboxes. It is mounted on the host when somebody uses it. It is
// safe for concurrent use.
type Volumes struct {
	cfg VolumesConfig

	mu sync.Mutex
	// +checklocks:mu
	all map[string]*volume // by id
	// +checklocks:mu
	creating map[id.Token]int // volumes of each team that are not in all yet
}

type volume struct {
	Volume
	holders int // sandboxes that see it, and requests for its files. guarded by Volumes.mu

	mount sync.Mutex // held while it is mounted or unmounted
	// +checklocks:mount
	on bool // it is mounted
}

// NewVolumes returns Volumes that has touched nothing yet.
func NewVolumes(cfg VolumesConfig) *Volumes {
	return &Volumes{cfg: cfg, all: map[string]*volume{}, creating: map[id.Token]int{}}
}

// Start finds the volumes that there are. What lies about of others is removed: they
// were being removed when a daemon was killed.
//
// It runs before any request is served.
//
// +checklocksignore
func (s *Volumes) Start(ctx context.Context) error {
	list, err := s.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the record of volumes: %w", err)
	}
	for _, v := range list {
		s.all[v.ID] = &volume{Volume: v}
	}
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if s.all[e.Name()] == nil && validVolume(e.Name()) {
			if err := s.wipe(e.Name()); err != nil {
				s.cfg.Log.Warn("what is left of a volume is not removed", "volume", e.Name(), "err", err)
			}
		}
	}
	return nil
}

// Close unmounts the volumes that no sandbox sees.
func (s *Volumes) Close() error {
	s.mu.Lock()
	var idle []*volume
	for _, v := range s.all {
		if v.holders == 0 {
			idle = append(idle, v)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, v := range idle {
		v.mount.Lock()
		errs = append(errs, disk.Unmount(s.mountpoint(v.ID))) // also what an earlier daemon mounted
		v.on = false
		v.mount.Unlock()
	}
	return errors.Join(errs...)
}

var volumeName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// newVolumeID returns a name that nobody guesses.
func newVolumeID() string { return "vol" + newID() }

func validVolume(s string) bool {
	rest, ok := strings.CutPrefix(s, "vol")
	return ok && validID(rest)
}

func noVolume(ref string) error {
	return fault.Newf(fault.NotFound, "e2b", ref, "Volume %q not found", short(ref))
}

// Create makes a volume. Its files take room when there are some.
func (s *Volumes) Create(ctx context.Context, team id.Token, name string) (Volume, error) {
	if !volumeName.MatchString(name) {
		return Volume{}, invalid("invalid volume name %q: want 1 to 64 letters, digits, - and _", short(name))
	}
	if !s.reserve(team) {
		return Volume{}, fault.Newf(fault.Exhausted, "e2b", name, "there are %d volumes already: destroy some", maxVolumes)
	}
	defer s.unreserve(team)
	v := Volume{ID: newVolumeID(), Team: team, Name: name, Token: newToken(), SizeMB: s.cfg.SizeMB, Created: time.Now().UTC()}
	if err := s.cfg.Store.Add(ctx, v); errors.Is(err, fault.Conflict) {
		return Volume{}, invalid("Volume with name %q already exists", name) // the status that the protocol has for it
	} else if err != nil {
		return Volume{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[v.ID] = &volume{Volume: v}
	return v, nil
}

// reserve reports whether a team may have one more volume. If so, that one counts until
// unreserve is called, by when it is in s.all or was not created.
func (s *Volumes) reserve(team id.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.creating[team]
	for _, v := range s.all {
		if v.Team == team {
			n++
		}
	}
	if n >= maxVolumes {
		return false
	}
	s.creating[team]++
	return true
}

func (s *Volumes) unreserve(team id.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.creating[team]--; s.creating[team] == 0 {
		delete(s.creating, team)
	}
}

// List returns a team's volumes, the newest first.
func (s *Volumes) List(team id.Token) (own []Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.all {
		if v.Team == team {
			own = append(own, v.Volume)
		}
	}
	slices.SortFunc(own, func(a, b Volume) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) })
	return own
}

// Get returns a volume of a team's by its id.
func (s *Volumes) Get(team id.Token, ref string) (Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.all[ref]; v != nil && v.Team == team {
		return v.Volume, nil
	}
	return Volume{}, noVolume(ref)
}

// Destroy removes a volume with its files. One that a sandbox sees, also one that rests,
// is a fault.Conflict.
func (s *Volumes) Destroy(ctx context.Context, team id.Token, ref string) error {
	s.mu.Lock()
	v := s.all[ref]
	if v == nil || v.Team != team {
		s.mu.Unlock()
		return noVolume(ref)
	}
	if v.holders > 0 {
		s.mu.Unlock()
		return fault.Newf(fault.Conflict, "e2b", ref, "Volume %q is in use: kill the sandboxes that mount it", v.Name)
	}
	delete(s.all, ref) // nobody begins to use it from here on
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := s.cfg.Store.Delete(ctx, v.ID); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all[ref] = v
		return err
	}
	return s.wipe(v.ID)
}

// wipe removes the files of a volume of which there is no record.
func (s *Volumes) wipe(volume string) error {
	if err := disk.Unmount(s.mountpoint(volume)); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(s.cfg.Dir, volume))
}

func (s *Volumes) mountpoint(volume string) string { return filepath.Join(s.cfg.Dir, volume, "disk") }

// files is the directory that sandboxes see: not the whole disk, on which its filesystem
// has things of its own.
func (s *Volumes) files(volume string) string { return filepath.Join(s.mountpoint(volume), "files") }

// hold has a team's volumes stay until release, and mounted.
func (s *Volumes) hold(ctx context.Context, team id.Token, mounts []VolumeMount) (release func(), err error) {
	var held []*volume
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, v := range held {
			v.holders--
		}
		held = nil
	}
	s.mu.Lock()
	for _, m := range mounts {
		if v := s.all[m.ID]; v != nil && v.Team == team {
			v.holders++
			held = append(held, v)
			continue
		}
		err = noVolume(m.Name)
	}
	s.mu.Unlock()
	for _, v := range held {
		if err == nil {
			err = s.mounted(ctx, v)
		}
	}
	if err != nil {
		release()
	}
	return release, err
}

// mounted mounts a volume, if it is not.
func (s *Volumes) mounted(ctx context.Context, v *volume) error {
	v.mount.Lock()
	defer v.mount.Unlock()
	if v.on {
		return nil
	}
	at := s.mountpoint(v.ID)
	if err := os.MkdirAll(s.cfg.Dir, 0o711); err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o711); err != nil {
		return err
	}
	if err := disk.Make(ctx, filepath.Join(s.cfg.Dir, v.ID, "image"), at, v.SizeMB, s.cfg.Templates); err != nil {
		return err
	}
	if err := s.furnish(v.ID); err != nil {
		return errors.Join(err, disk.Unmount(at))
	}
	v.on = true
	return nil
}

// owner is whose a new volume and new files in it are, unless it is said: the user that
// sandboxes have.
const owner = 1000

// furnish makes the directory that sandboxes see. It is whole or not there, whenever the
// daemon is killed.
func (s *Volumes) furnish(volume string) error {
	dir := s.files(volume)
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	half := dir + ".new"
	if err := os.Mkdir(half, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chown(half, owner, owner); err != nil {
		return err
	}
	if err := os.Rename(half, dir); err != nil {
		return err
	}
	return dirs.Sync(s.mountpoint(volume))
}

// find returns the mounts of a wish with the ids of the team's volumes.
func (s *Volumes) find(team id.Token, mounts []VolumeMount) ([]VolumeMount, error) {
	if len(mounts) == 0 {
		return nil, nil
	}
	own := s.List(team)
	found := slices.Clone(mounts)
	for i, m := range mounts {
		at := slices.IndexFunc(own, func(v Volume) bool { return v.Name == m.Name })
		if at < 0 {
			return nil, invalid("a volume cannot be mounted: volume %q not found", short(m.Name))
		}
		if err := jail.CheckTarget(m.Path); err != nil {
			return nil, invalid("a volume cannot be mounted: %v", err)
		}
		found[i].ID = own[at].ID
	}
	return found, nil
}

// jailed are the mounts of a jail by which it sees volumes.
func (s *Volumes) jailed(mounts []VolumeMount) (list []jail.Mount, sources []string) {
	for _, m := range mounts {
		list = append(list, jail.Mount{Source: s.files(m.ID), Target: m.Path, Write: true, Owners: true})
		sources = append(sources, s.files(m.ID))
	}
	return list, sources
}

// mountsOf returns the volumes that a jail sees, as its record says. Of one that is gone
// there is no name.
func (s *Volumes) mountsOf(spec jail.Spec) (list []VolumeMount) {
	for _, m := range spec.Mounts {
		rel, err := filepath.Rel(s.cfg.Dir, m.Source)
		ref, _, below := strings.Cut(rel, "/")
		if err != nil || !below || !validVolume(ref) {
			continue
		}
		mount := VolumeMount{ID: ref, Path: m.Target}
		s.mu.Lock()
		if v := s.all[ref]; v != nil {
			mount.Name = v.Name
		}
		s.mu.Unlock()
		list = append(list, mount)
	}
	return list
}

// open opens the files of the volume that a token is for, until done is called.
func (s *Volumes) open(ctx context.Context, ref, token string) (root *jailfs.Root, done func(), err error) {
	s.mu.Lock()
	v := s.all[ref]
	s.mu.Unlock()
	if v == nil || !same(v.Token, token) {
		return nil, nil, fault.Newf(fault.Unauthenticated, "e2b", "", "the token is not one of this volume")
	}
	release, err := s.hold(ctx, v.Team, []VolumeMount{{ID: v.ID, Name: v.Name}})
	if err != nil {
		return nil, nil, err
	}
	if root, err = jailfs.Open(s.files(v.ID)); err != nil {
		release()
		return nil, nil, err
	}
	return root, func() { root.Close(); release() }, nil
}
