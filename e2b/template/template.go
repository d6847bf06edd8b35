// Package template builds what clients of the E2B protocol make sandboxes from: out of
// an image or another template and a list of steps, each of which is run in a jail and
// frozen, so that it is not run again for those who want the same.
//
// A template belongs to the key that it was made with, and so do the layers and files
// that it was built of: nobody is given what another's build left. A build is recorded
// before it begins. One that a daemon did not finish is an error to the next.
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

// A Template is a name, and the builds that its tags are of.
type Template struct {
	ID      string         `json:"id"`
	Team    id.Token       `json:"team"`
	Name    string         `json:"name"`
	Tags    map[string]Tag `json:"tags"`
	Builds  int            `json:"builds"`  // that were asked for
	Spawned int64          `json:"spawned"` // sandboxes, of all of them
	Last    *time.Time     `json:"last,omitempty"`
	Created time.Time      `json:"created"`
	Updated time.Time      `json:"updated"`
}

// A Tag is a build by a name.
type Tag struct {
	Build string    `json:"build"`
	At    time.Time `json:"at"` // when the build was asked for, or the tag given to it
}

// DefaultTag is the tag that is meant where none is named.
const DefaultTag = "default"

// State is where a build is.
type State string

const (
	Waiting  State = "waiting" // for its files and steps, or for its turn
	Building State = "building"
	Ready    State = "ready"
	Failed   State = "error"
)

// next is every legal move.
var next = map[State][]State{
	Waiting:  {Building, Failed},
	Building: {Ready, Failed},
}

// A Build is one try at a template.
type Build struct {
	ID       string     `json:"id"`
	Template string     `json:"template"`
	Team     id.Token   `json:"team"`
	State    State      `json:"state"`
	Begun    bool       `json:"begun,omitempty"` // its steps are there
	Tags     []string   `json:"tags"`            // that it has when it is ready
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
	Key     string      `json:"key,omitempty"`     // of its last layer, by which what is built on it is known
	Layer   id.Snapshot `json:"layer,omitempty"`   // its files
	Running id.Snapshot `json:"running,omitempty"` // its files and what runs; "" is none
}

// A Reason says why a build is an error.
type Reason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"` // base, finalize, or a number from 1
}

// move changes the state, or returns a fault.Conflict if that is not a legal move.
func (b *Build) move(to State) error {
	if !slices.Contains(next[b.State], to) {
		return fault.Newf(fault.Conflict, "e2b", b.ID, "the build is %s", b.State)
	}
	b.State, b.Updated = to, time.Now().UTC()
	if next[to] == nil {
		b.Finished = &b.Updated
	}
	return nil
}

// A Setting is what the commands of a sandbox begin with.
type Setting struct {
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
	Dir  string            `json:"dir,omitempty"`  // "" is the user's home
	Base []string          `json:"base,omitempty"` // what the image sets
}

func (s Setting) with(name, value string) Setting {
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[name] = value
	return s
}

// A Layer is what some steps led to.
type Layer struct {
	Key      string      `json:"key"`
	Team     id.Token    `json:"team"`
	Snapshot id.Snapshot `json:"snapshot,omitempty"` // its files; "" is those that were begun with
	Setting  Setting     `json:"setting"`
	Used     time.Time   `json:"used"`
}

// A Store keeps the records of templates. A Put returns when the record would survive a
// power cut; a Delete forgets, also what is not there.
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

// parseName reads name or name:tag. The tag is "" if none is named.
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

// parseTags reads tags and leaves out what is there twice.
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
	return fault.Newf(fault.Invalid, "e2b", "", format, args...)
}

func missing(format string, args ...any) error {
	return fault.Newf(fault.NotFound, "e2b", "", format, args...)
}

// short bounds a client's text in a message.
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
