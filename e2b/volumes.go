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
	jailfs "glasshouse/jail/fs"
)

// A Volume is a directory that outlives sandboxes and can be mounted in several of them.
type Volume struct {
	ID      string    `json:"id"`
	Team    id.Token  `json:"team"`
	Name    string    `json:"name"`
	Token   string    `json:"token"` // authenticates access to its files
	SizeMB  int64     `json:"size_mb"`
	Created time.Time `json:"created"`
}

// A VolumeStore stores the records of volumes. Add returns fault.Conflict if the team has a
// volume with that name. If it succeeds, the record is durable (it survives a power failure).
type VolumeStore interface {
	Add(ctx context.Context, v Volume) error
	All(ctx context.Context) ([]Volume, error)
	Delete(ctx context.Context, volume string) error
}

// VolumesConfig configures Volumes.
type VolumesConfig struct {
	Store     VolumeStore
	Dir       string // directory of the volumes' files
	Templates string // directory of disk templates: see disk.Make
	SizeMB    int64  // size of each volume
	Log       *slog.Logger
}

// maxVolumes is the maximum number of volumes of a team.
const maxVolumes = 100

// Volumes manages all volumes. Each volume is a filesystem of a fixed size with the same user
// ids as in sandboxes. It is mounted on the host while it is used. Volumes is safe for
// concurrent use.
type Volumes struct {
	cfg VolumesConfig

	mu sync.Mutex
	// +checklocks:mu
	all map[string]*volume // by id
	// +checklocks:mu
	creating map[id.Token]int // volumes of each team that are being created
}

type volume struct {
	Volume
	holders int // sandboxes that mount it, and requests for its files; guarded by Volumes.mu

	mount sync.Mutex // held during mount and unmount
	// +checklocks:mount
	on bool // it is mounted
}

// NewVolumes returns Volumes. It does no I/O.
func NewVolumes(cfg VolumesConfig) *Volumes {
	return &Volumes{cfg: cfg, all: map[string]*volume{}, creating: map[id.Token]int{}}
}

// Start loads the volumes. It removes files of other volumes, whose removal an earlier daemon
// has not completed.
//
// Start must return before the first request is served.
//
// +checklocksignore
func (s *Volumes) Start(ctx context.Context) error {
	list, err := s.cfg.Store.All(ctx)
	if err != nil {
		return fmt.Errorf("read the records of volumes: %w", err)
	}
	for _, v := range list {
		s.all[v.ID] = &volume{Volume: v}
	}
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the directories of volumes: %w", err)
	}
	for _, e := range entries {
		if s.all[e.Name()] == nil && validVolume(e.Name()) {
			if err := s.wipe(e.Name()); err != nil {
				s.cfg.Log.Warn("cannot remove the remains of a volume", "volume", e.Name(), "err", err)
			}
		}
	}
	return nil
}

// Close unmounts the volumes that no sandbox uses.
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
		errs = append(errs, disk.Unmount(s.mountpoint(v.ID))) // including mounts of an earlier daemon
		v.on = false
		v.mount.Unlock()
	}
	return errors.Join(errs...)
}

var volumeName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// newVolumeID returns an unguessable id.
func newVolumeID() string { return "vol" + newID() }

func validVolume(s string) bool {
	rest, ok := strings.CutPrefix(s, "vol")
	return ok && validID(rest)
}

func noVolume(ref string) error {
	return fault.Newf(fault.NotFound, "e2b.noVolume", ref, "Volume %q not found", short(ref))
}

// Create creates a volume. The disk space is allocated when files are written.
func (s *Volumes) Create(ctx context.Context, team id.Token, name string) (Volume, error) {
	if !volumeName.MatchString(name) {
		return Volume{}, invalid("invalid volume name %q: want 1 to 64 letters, digits, - and _", short(name))
	}
	if !s.reserve(team) {
		return Volume{}, fault.Newf(fault.Exhausted, "e2b.Create", name, "the limit of %d volumes is reached: destroy some", maxVolumes)
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

// reserve reserves a slot for a team's new volume. It returns false if the team has too many. A
// successful caller calls unreserve after the volume is in s.all or its creation has failed.
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

// List returns a team's volumes, newest first.
func (s *Volumes) List(team id.Token) []Volume {
	return s.list(func(v Volume) bool { return v.Team == team })
}

// list returns the volumes that match, newest first. nil matches all.
func (s *Volumes) list(match func(Volume) bool) (own []Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.all {
		if match == nil || match(v.Volume) {
			own = append(own, v.Volume)
		}
	}
	slices.SortFunc(own, func(a, b Volume) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID)) })
	return own
}

// has reports whether a volume of any team exists.
func (s *Volumes) has(volume string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[volume] != nil
}

// Get returns a team's volume by its id.
func (s *Volumes) Get(team id.Token, ref string) (Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.all[ref]; v != nil && v.Team == team {
		return v.Volume, nil
	}
	return Volume{}, noVolume(ref)
}

// Destroy removes a volume and its files. It returns fault.Conflict if a sandbox, running or
// paused, mounts the volume.
func (s *Volumes) Destroy(ctx context.Context, team id.Token, ref string) error {
	s.mu.Lock()
	v := s.all[ref]
	if v == nil || v.Team != team {
		s.mu.Unlock()
		return noVolume(ref)
	}
	if v.holders > 0 {
		s.mu.Unlock()
		return fault.Newf(fault.Conflict, "e2b.Destroy", ref, "Volume %q is in use: kill the sandboxes that mount it", v.Name)
	}
	delete(s.all, ref) // no new user can find it from here on
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

// wipe removes the files of a volume without a record.
func (s *Volumes) wipe(volume string) error {
	if err := disk.Unmount(s.mountpoint(volume)); err != nil {
		return fmt.Errorf("unmount volume %s: %w", volume, err)
	}
	return os.RemoveAll(filepath.Join(s.cfg.Dir, volume))
}

func (s *Volumes) mountpoint(volume string) string { return filepath.Join(s.cfg.Dir, volume, "disk") }

// files returns the directory that sandboxes mount. The root of the filesystem contains entries
// of its own, such as lost+found.
func (s *Volumes) files(volume string) string { return filepath.Join(s.mountpoint(volume), "files") }

// acquire mounts volumes of a team and prevents their removal until release is called.
func (s *Volumes) acquire(ctx context.Context, team id.Token, mounts []VolumeMount) (release func(), err error) {
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
			err = s.ensureMounted(ctx, v)
		}
	}
	if err != nil {
		release()
	}
	return release, err
}

// ensureMounted mounts a volume if it is not mounted.
func (s *Volumes) ensureMounted(ctx context.Context, v *volume) error {
	v.mount.Lock()
	defer v.mount.Unlock()
	if v.on {
		return nil
	}
	at := s.mountpoint(v.ID)
	if err := os.MkdirAll(s.cfg.Dir, 0o711); err != nil {
		return fmt.Errorf("create the directory of volumes: %w", err)
	}
	if err := os.MkdirAll(at, 0o711); err != nil {
		return fmt.Errorf("create the mount point of volume %s: %w", v.ID, err)
	}
	if err := disk.Make(ctx, filepath.Join(s.cfg.Dir, v.ID, "image"), at, v.SizeMB, s.cfg.Templates); err != nil {
		return fmt.Errorf("mount the filesystem of volume %s: %w", v.ID, err)
	}
	if err := s.initFiles(v.ID); err != nil {
		return errors.Join(err, disk.Unmount(at))
	}
	v.on = true
	return nil
}

// owner is the default owner of volumes and their files: the uid of the default user of
// sandboxes.
const owner = 1000

// initFiles creates the directory that sandboxes mount. It is complete or missing, even if the
// daemon is killed.
func (s *Volumes) initFiles(volume string) error {
	dir := s.files(volume)
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	half := dir + ".new"
	if err := os.Mkdir(half, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the directory for files of volume %s: %w", volume, err)
	}
	if err := os.Chown(half, owner, owner); err != nil {
		return fmt.Errorf("set the owner of the files of volume %s: %w", volume, err)
	}
	if err := os.Rename(half, dir); err != nil {
		return fmt.Errorf("complete the initialization of volume %s: %w", volume, err)
	}
	return dirs.Sync(s.mountpoint(volume))
}

// find returns mounts with the ids of the team's volumes filled in.
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

// jailMounts converts volume mounts to mounts of a jail.
func (s *Volumes) jailMounts(mounts []VolumeMount) (list []jail.Mount, sources []string) {
	for _, m := range mounts {
		list = append(list, jail.Mount{Source: s.files(m.ID), Target: m.Path, Write: true, Owners: true})
		sources = append(sources, s.files(m.ID))
	}
	return list, sources
}

// mountsOf returns the volumes that a jail's spec mounts. A volume that no longer exists has no
// name.
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

// open opens the files of the volume that a token grants access to. The caller calls done when
// it is finished.
func (s *Volumes) open(ctx context.Context, ref, token string) (root *jailfs.Root, done func(), err error) {
	s.mu.Lock()
	v := s.all[ref]
	s.mu.Unlock()
	if v == nil || !same(v.Token, token) {
		return nil, nil, fault.Newf(fault.Unauthenticated, "e2b.open", "", "the token is not valid for this volume")
	}
	release, err := s.acquire(ctx, v.Team, []VolumeMount{{ID: v.ID, Name: v.Name}})
	if err != nil {
		return nil, nil, err
	}
	root, err = jailfs.Open(s.files(v.ID))
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("open the files of volume %s: %w", v.ID, err)
	}
	return root, func() { root.Close(); release() }, nil
}
