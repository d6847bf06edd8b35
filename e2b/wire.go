package e2b

import (
	"context"
	"maps"
	"slices"
	"time"

	"glasshouse/e2b/envd"
)

// These types are the protocol's JSON. The names are those of the protocol.

type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	Secure          *bool             `json:"secure"`
	Internet        *bool             `json:"allow_internet_access"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Network      *Network      `json:"network"`
	VolumeMounts []VolumeMount `json:"volumeMounts"`
}

type wireSandbox struct {
	TemplateID  string  `json:"templateID"`
	SandboxID   string  `json:"sandboxID"`
	Alias       string  `json:"alias,omitempty"`
	ClientID    string  `json:"clientID"`
	EnvdVersion string  `json:"envdVersion"`
	EnvdToken   string  `json:"envdAccessToken,omitempty"`
	Traffic     *string `json:"trafficAccessToken,omitempty"`
	Domain      string  `json:"domain"`
}

// clientID is a constant for a former member of sandbox ids. Clients still require it.
const clientID = "glasshouse"

func (s *Server) sandboxOf(ctx context.Context, b Sandbox) wireSandbox {
	w := wireSandbox{
		TemplateID: b.Template, SandboxID: b.ID, Alias: b.Alias, ClientID: clientID,
		EnvdVersion: envd.Version, EnvdToken: b.Token, Domain: s.domain(ctx),
	}
	if b.Traffic != "" {
		w.Traffic = &b.Traffic
	}
	return w
}

type wireListed struct {
	TemplateID   string            `json:"templateID"`
	SandboxID    string            `json:"sandboxID"`
	Alias        string            `json:"alias,omitempty"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPU          int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskMB       int64             `json:"diskSizeMB"`
	EnvdVersion  string            `json:"envdVersion"`
	Metadata     map[string]string `json:"metadata"`
	State        State             `json:"state"`
	VolumeMounts []VolumeMount     `json:"volumeMounts"`
}

func listedOf(b Sandbox) wireListed {
	metadata := maps.Clone(b.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	return wireListed{
		TemplateID: b.Template, SandboxID: b.ID, Alias: b.Alias, ClientID: clientID, StartedAt: b.Started, EndAt: b.End,
		CPU: b.CPU, MemoryMB: b.MemoryMB, DiskMB: b.DiskMB, EnvdVersion: envd.Version, Metadata: metadata, State: b.clientState(),
		VolumeMounts: shownMounts(b.Volumes),
	}
}

func shownMounts(mounts []VolumeMount) []VolumeMount {
	shown := make([]VolumeMount, 0, len(mounts))
	for _, m := range mounts {
		shown = append(shown, VolumeMount{Name: m.Name, Path: m.Path})
	}
	return shown
}

// clientState returns the state that clients see. During a change it is the previous stable
// state.
func (b *Sandbox) clientState() State {
	if slices.Contains([]State{Paused, Resuming}, b.State) {
		return Paused
	}
	return Running
}

type wireDetail struct {
	wireListed
	EnvdToken string   `json:"envdAccessToken,omitempty"`
	Domain    string   `json:"domain"`
	Internet  *bool    `json:"allowInternetAccess"`
	Network   *Network `json:"network,omitempty"`
	Lifecycle struct {
		OnTimeout  string `json:"onTimeout"`
		AutoResume bool   `json:"autoResume"`
	} `json:"lifecycle"`
}

func (s *Server) detailOf(ctx context.Context, b Sandbox) wireDetail {
	d := wireDetail{wireListed: listedOf(b), EnvdToken: b.Token, Domain: s.domain(ctx), Internet: b.Internet}
	if n := b.Network; n.set() {
		d.Network = &n
	}
	d.Lifecycle.OnTimeout, d.Lifecycle.AutoResume = "kill", b.AutoResume
	if b.AutoPause {
		d.Lifecycle.OnTimeout = "pause"
	}
	return d
}

func (n Network) set() bool {
	return len(n.AllowOut)+len(n.DenyOut)+len(n.Rules)+len(n.HTTPS) > 0 || n.Public != nil || n.MaskHost != ""
}

type wireFork struct {
	Sandbox *wireSandbox `json:"sandbox,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

type wireSnapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func snapshotOf(s NamedSnapshot) wireSnapshot { return wireSnapshot{s.Ref(), s.Names()} }

// TemplateDetail is a template with its builds. Snapshots are templates to clients, too.
type TemplateDetail struct {
	TemplateID  string          `json:"templateID"`
	Public      bool            `json:"public"`
	Names       []string        `json:"names"`
	Aliases     []string        `json:"aliases"`
	Created     time.Time       `json:"createdAt"`
	Updated     time.Time       `json:"updatedAt"`
	LastSpawned *time.Time      `json:"lastSpawnedAt"`
	SpawnCount  int64           `json:"spawnCount"`
	Builds      []TemplateBuild `json:"builds"`
}

// TemplateBuild is one build of a template.
type TemplateBuild struct {
	BuildID     string     `json:"buildID"`
	Status      string     `json:"status"`
	Created     time.Time  `json:"createdAt"`
	Updated     time.Time  `json:"updatedAt"`
	Finished    *time.Time `json:"finishedAt,omitempty"`
	CPU         int        `json:"cpuCount"`
	MemoryMB    int64      `json:"memoryMB"`
	DiskMB      int64      `json:"diskSizeMB"`
	EnvdVersion string     `json:"envdVersion"`
}

// TemplateTag is a tag of a template.
type TemplateTag struct {
	Tag     string    `json:"tag"`
	BuildID string    `json:"buildID"`
	Created time.Time `json:"createdAt"`
}

type wireSample struct {
	Timestamp time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUCount  int       `json:"cpuCount"`
	CPU       float64   `json:"cpuUsedPct"`
	MemUsed   int64     `json:"memUsed"`
	MemTotal  int64     `json:"memTotal"`
	MemCache  int64     `json:"memCache"`
	DiskUsed  int64     `json:"diskUsed"`
	DiskTotal int64     `json:"diskTotal"`
}

func samplesOf(list []Sample, cpus int) []wireSample {
	all := make([]wireSample, 0, len(list))
	for _, m := range list {
		all = append(all, wireSample{m.At, m.At.Unix(), cpus, m.CPU, m.Memory, m.MemTotal, m.Cache, m.Disk, m.DiskMax})
	}
	return all
}

type wireLog struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

type wireLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}
