package wire

import (
	"time"

	"glasshouse/id"
)

// Past is how a jail was at an instant.
type Past struct {
	At        *time.Time   `json:"at,omitempty" description:"The instant, if it was given as a time."`
	Processes Processes    `json:"processes" required:"true"`
	Files     ChangedFiles `json:"files" required:"true"`
	Snapshot  *Snapshot    `json:"snapshot,omitempty" description:"The nearest at or before the instant that no rewind has undone: what a branch from here begins with."`
	Base      id.Snapshot  `json:"base,omitempty" description:"That the jail was made from. It may be gone."`
}

// ChangedFiles are the files that a jail had changed.
type ChangedFiles struct {
	Recorded bool          `json:"recorded" description:"False where operations on files are not recorded of this jail."`
	Items    []ChangedFile `json:"items" required:"true" description:"The last change first."`
	Count    int           `json:"count"`
	AtLeast  bool          `json:"at_least,omitempty" description:"There were more, changed earlier."`
	Lost     Lost          `json:"lost" description:"Records of files that are missing."`
}

// ChangedFile is a file that is not what it was, as records tell: what a rename has
// replaced they do not know.
type ChangedFile struct {
	Path    string    `json:"path" required:"true"`
	Kind    string    `json:"kind" required:"true" enum:"added,modified,deleted,metadata,renamed"`
	Type    string    `json:"type,omitempty" enum:"file,dir,symlink,node" description:"If it is known."`
	From    string    `json:"from,omitempty" description:"Of a renamed file: where it was."`
	Written int64     `json:"bytes_written,omitempty"`
	Changes int64     `json:"changes"`
	Time    time.Time `json:"time" description:"Of the last change, as are seq, pid and comm."`
	Seq     uint64    `json:"seq"`
	PID     int32     `json:"pid,omitempty"`
	Comm    string    `json:"comm,omitempty"`
	Since   bool      `json:"since_snapshot,omitempty" description:"Changed after the snapshot: a branch of that has not this change."`
}

// Profile is which system calls were made, how long they took and how they failed.
type Profile struct {
	Count      int64         `json:"count" required:"true"`
	Total      int64         `json:"total_ns"`
	Unfinished int64         `json:"unfinished" description:"Never returned."`
	Failed     int64         `json:"failed" description:"Returned an error."`
	Denied     int64         `json:"denied" description:"By seccomp, before they were entered."`
	Refused    int64         `json:"refused" description:"For want of permission."`
	Kinds      Estimate      `json:"kinds"`
	Latency    Latency       `json:"latency" required:"true"`
	Calls      []CallProfile `json:"calls" required:"true" description:"The most frequent first."`
	More       int64         `json:"more" description:"Calls that are in none of them."`
	Errors     []ErrorCount  `json:"errors" required:"true" description:"By error, the most frequent first."`
	Failures   []CallFailure `json:"failures" required:"true" description:"By call and error: denied first, then refused, then the others."`
	FailsMore  int64         `json:"failures_more"`
	Processes  []CallsOfOne  `json:"processes" required:"true" description:"With the most calls first, as many as were asked for."`
	Lost       Lost          `json:"lost" description:"Records of calls that are missing."`
}

// Estimate is how many different things there were.
type Estimate struct {
	Count int64 `json:"count"`
	About bool  `json:"about,omitempty" description:"It is good to a few hundredths."`
}

// CallProfile is one system call, all times it was made.
type CallProfile struct {
	Name    string    `json:"name" required:"true"`
	Count   int64     `json:"count" required:"true"`
	AtLeast bool      `json:"at_least,omitempty"`
	Failed  int64     `json:"failed"`
	Denied  int64     `json:"denied"`
	Timed   int64     `json:"timed" description:"Of which it is known how long they took."`
	Latency Latency   `json:"latency" required:"true"`
	Events  EventLink `json:"events"`
}

// Latency is how long calls took.
type Latency struct {
	Total   int64           `json:"total_ns"`
	Min     int64           `json:"min_ns"`
	P50     int64           `json:"p50_ns" description:"Estimated from the buckets, as are the next two."`
	P90     int64           `json:"p90_ns"`
	P99     int64           `json:"p99_ns"`
	Max     int64           `json:"max_ns"`
	Buckets []LatencyBucket `json:"buckets" required:"true" description:"Each reaches to twice where it begins; from the first that is not empty to the last."`
}

// LatencyBucket is how many calls took from so long up to twice that.
type LatencyBucket struct {
	From  int64 `json:"from_ns"`
	Count int64 `json:"count"`
}

// ErrorCount is how often calls returned an error.
type ErrorCount struct {
	Errno string `json:"errno" required:"true"`
	Count int64  `json:"count" required:"true"`
}

// CallFailure is one call and one error.
type CallFailure struct {
	Name    string    `json:"name" required:"true"`
	Errno   string    `json:"errno" required:"true"`
	Class   string    `json:"class" enum:"denied,refused,failed"`
	Count   int64     `json:"count" required:"true"`
	AtLeast bool      `json:"at_least,omitempty"`
	PID     int32     `json:"pid" description:"Of the first, as are comm and path."`
	Comm    string    `json:"comm"`
	Path    string    `json:"path,omitempty"`
	Events  EventLink `json:"events"`
}

// CallsOfOne is the calls of one process, by its number inside the jail.
type CallsOfOne struct {
	PID     int32   `json:"pid" required:"true"`
	Comm    string  `json:"comm" required:"true"`
	Count   int64   `json:"count" required:"true"`
	AtLeast bool    `json:"at_least,omitempty"`
	Failed  int64   `json:"failed"`
	Denied  int64   `json:"denied"`
	Latency Latency `json:"latency" required:"true"`
}

// Connections is whom a jail talked to, by host.
type Connections struct {
	Items    []ConnectedHost `json:"items" required:"true" description:"Of the most bytes first; then those that were only decided about."`
	Count    Estimate        `json:"count"`
	Total    Traffic         `json:"total"`
	More     Traffic         `json:"more" description:"Of hosts that are not in the list."`
	Lost     Lost            `json:"lost" description:"Records of packets that are missing."`
	Verdicts int64           `json:"verdicts_more,omitempty" description:"Of requests, that are not in the list."`
}

// Traffic counts packets and bytes, as the jail sees them.
type Traffic struct {
	PacketsOut int64 `json:"packets_out"`
	BytesOut   int64 `json:"bytes_out"`
	PacketsIn  int64 `json:"packets_in"`
	BytesIn    int64 `json:"bytes_in"`
}

// ConnectedHost is all that passed between a jail and one host, and what was decided
// about it.
type ConnectedHost struct {
	Host        string `json:"host" required:"true" description:"Its name if the jail asked for it, else its address."`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused"`
	Unanswered  int64  `json:"unanswered"`
	Traffic
	First     *time.Time `json:"first,omitempty"`
	Last      *time.Time `json:"last,omitempty"`
	Processes []Who      `json:"processes" required:"true" description:"The first few."`
	ProcsMore bool       `json:"processes_more,omitempty" description:"There were others."`
	Services  []Service  `json:"services" required:"true" description:"Of the most bytes first."`
	Verdicts  []Verdicts `json:"verdicts" required:"true" description:"Of what governs the way out, the newest first. Of a jail without a proxy there are none."`
}

// Who is a process.
type Who struct {
	PID  int32  `json:"pid" required:"true"`
	Comm string `json:"comm" required:"true"`
}

// Service is one port of a host, or of the jail if the host came to it.
type Service struct {
	Proto       string `json:"proto" required:"true"`
	Dir         string `json:"dir" required:"true" enum:"egress,ingress,loopback" description:"Who began it."`
	Port        int    `json:"port,omitempty"`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused"`
	Unanswered  int64  `json:"unanswered"`
	Traffic
	Events EventLink `json:"events" description:"Where its records are."`
}

// Verdicts is what was said to requests that are alike.
type Verdicts struct {
	Allowed  bool      `json:"allowed" required:"true"`
	Kind     string    `json:"kind" required:"true" enum:"name,connect,request,packet" description:"Of what: the address of a name, a connection, a request of HTTP, a packet that no proxy carries."`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason,omitempty" description:"Why it was refused or broke off, in a word: host, port, method, path, denied, rate, bytes, address, …"`
	Rule     string    `json:"rule,omitempty" description:"That decided."`
	Detail   string    `json:"detail,omitempty" description:"Of the newest, for people."`
	Count    int64     `json:"count" required:"true"`
	Sent     int64     `json:"sent"`
	Received int64     `json:"received"`
	First    time.Time `json:"first" required:"true"`
	Last     time.Time `json:"last" required:"true"`
	Entry    int64     `json:"entry" required:"true" description:"Of the chain, that records the newest."`
}
