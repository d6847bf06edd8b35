// Package template builds templates for clients of the E2B protocol from an image or another
// template and a list of steps. Each step runs in a jail. A snapshot of its files is a layer,
// which later builds with the same steps reuse.
//
// A template belongs to the key that created it. Layers and files are not shared between keys. A
// build is recorded before it starts. A build that was interrupted by a daemon stop has failed.
package template

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"glasshouse/e2b"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// A Template is a name with tags that refer to builds.
type Template struct {
	ID      string         `json:"id"`
	Team    id.Token       `json:"team"`
	Name    string         `json:"name"`
	Tags    map[string]Tag `json:"tags"`
	Builds  int            `json:"builds"`  // number of requested builds
	Spawned int64          `json:"spawned"` // number of sandboxes created from all builds
	Last    *time.Time     `json:"last,omitempty"`
	Created time.Time      `json:"created"`
	Updated time.Time      `json:"updated"`
}

// A Tag is a name of a build.
type Tag struct {
	Build string    `json:"build"`
	At    time.Time `json:"at"` // when the build was requested, or the tag assigned
}

// DefaultTag is the tag of a reference without a tag.
const DefaultTag = "default"

// State is the state of a build.
type State string

const (
	Waiting  State = "waiting" // for its files and steps, or for a free slot
	Building State = "building"
	Ready    State = "ready"
	Failed   State = "error"
)

// next lists the legal state changes.
var next = map[State][]State{
	Waiting:  {Building, Failed},
	Building: {Ready, Failed},
}

// A Build is one build of a template.
type Build struct {
	ID       string     `json:"id"`
	Template string     `json:"template"`
	Team     id.Token   `json:"team"`
	State    State      `json:"state"`
	Started  bool       `json:"begun,omitempty"` // its steps have been received
	Tags     []string   `json:"tags"`            // assigned when the build is ready
	CPU      int        `json:"cpu"`
	MemoryMB int64      `json:"memory_mb"`
	DiskMB   int64      `json:"disk_mb"`
	Created  time.Time  `json:"created"`
	Updated  time.Time  `json:"updated"`
	Finished *time.Time `json:"finished,omitempty"`
	Reason   *Reason    `json:"reason,omitempty"`

	Setting Setting     `json:"setting,omitzero"`
	Start   string      `json:"start,omitempty"`
	Ready   string      `json:"ready,omitempty"`
	Key     string      `json:"key,omitempty"`     // cache key of its last layer
	Layer   id.Snapshot `json:"layer,omitempty"`   // snapshot of its files
	Running id.Snapshot `json:"running,omitempty"` // snapshot of its files and processes; "" means none
}

// A Reason describes why a build failed.
type Reason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"` // base, finalize, or a number from 1
}

// move changes the state. It returns fault.Conflict if the change is not legal.
func (b *Build) move(to State) error {
	if !slices.Contains(next[b.State], to) {
		return fault.Newf(fault.Conflict, "template.move", b.ID, "the build is %s", b.State)
	}
	b.State, b.Updated = to, time.Now().UTC()
	if next[to] == nil {
		b.Finished = &b.Updated
	}
	return nil
}

// A Setting is the initial state of a sandbox's commands.
type Setting struct {
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
	Dir  string            `json:"dir,omitempty"`  // "" is the user's home
	Base []string          `json:"base,omitempty"` // variables that the image sets
}

func (s Setting) with(name, value string) Setting {
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[name] = value
	return s
}

// A Layer is the cached result of some steps.
type Layer struct {
	Key      string      `json:"key"`
	Team     id.Token    `json:"team"`
	Snapshot id.Snapshot `json:"snapshot,omitempty"` // its files; "" means those of the base
	Setting  Setting     `json:"setting"`
	Used     time.Time   `json:"used"`
}

// A Store stores the records of templates. Put methods return after the record is durable (it
// survives a power failure). Delete methods succeed if the record does not exist.
type Store interface {
	Templates(ctx context.Context) ([]Template, error)
	PutTemplate(ctx context.Context, t Template) error
	DeleteTemplate(ctx context.Context, template string) error

	Builds(ctx context.Context) ([]Build, error)
	PutBuild(ctx context.Context, b Build) error
	DeleteBuild(ctx context.Context, build string) error

	Layers(ctx context.Context) ([]Layer, error)
	PutLayer(ctx context.Context, l Layer) error
	DeleteLayer(ctx context.Context, key string) error
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,128}$`)
	tagPattern  = regexp.MustCompile(`^[a-z0-9_.-]{1,128}$`)
	uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$`)
)

// parseName parses name or name:tag. The tag is "" if none is given.
func parseName(s string) (name, tag string, err error) {
	name, tag, tagged := strings.Cut(strings.ToLower(strings.TrimSpace(s)), ":")
	if !namePattern.MatchString(name) {
		return "", "", invalid("invalid template name %q: want lower case letters, digits, - and _", short(s))
	}
	if tagged {
		tag, err = parseTag(tag)
	}
	return name, tag, err
}

func parseTag(s string) (string, error) {
	tag := strings.ToLower(strings.TrimSpace(s))
	switch {
	case !tagPattern.MatchString(tag):
		return "", invalid("invalid tag %q: want lower case letters, digits, -, _ and .", short(s))
	case uuidPattern.MatchString(tag):
		return "", invalid("invalid tag %q: a tag cannot be a UUID", short(s))
	}
	return tag, nil
}

// maxTags bounds one request and one template.
const maxTags = 100

// parseTags parses tags and removes duplicates.
func parseTags(list []string) ([]string, error) {
	if len(list) > maxTags {
		return nil, invalid("more than %d tags", maxTags)
	}
	var tags []string
	for _, s := range list {
		tag, err := parseTag(s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	return tags, nil
}

func invalid(format string, args ...any) error {
	return fault.Newf(fault.Invalid, "template.invalid", "", format, args...)
}

func missing(format string, args ...any) error {
	return fault.Newf(fault.NotFound, "template.missing", "", format, args...)
}

// short truncates a client's text for use in a message.
func short(s string) string { return text.Clip(s, 100) }

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newTemplateID returns 100 random bits as 20 letters and digits.
func newTemplateID() string {
	var b [13]byte
	rand.Read(b[:]) // never fails
	return letters.EncodeToString(b[:])[:20]
}

// newBuildID returns a random UUID.
func newBuildID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return e2b.UUID(b)
}
