package wire

import (
	"time"

	"glasshouse/id"
)

// Past is the state of a jail at an earlier instant.
type Past struct {
	At        *time.Time   `json:"at,omitempty" description:"The instant, if it was given as a time."`
	Processes Processes    `json:"processes" required:"true"`
	Files     ChangedFiles `json:"files" required:"true"`
	Snapshot  *Snapshot    `json:"snapshot,omitempty" description:"The nearest snapshot at or before the instant that no rewind has undone. A branch from this instant starts with it."`
	Base      id.Snapshot  `json:"base,omitempty" description:"The snapshot that the jail was made from. It may have been deleted."`
}

// ChangedFiles are the files that a jail had changed.
type ChangedFiles struct {
	Recorded bool          `json:"recorded" description:"false if file operations of this jail are not recorded."`
	Items    []ChangedFile `json:"items" required:"true" description:"Changed files, most recently changed first."`
	Count    int           `json:"count"`
	AtLeast  bool          `json:"at_least,omitempty" description:"More files were changed earlier and are not listed."`
	Lost     Lost          `json:"lost" description:"File events that were lost."`
}

// ChangedFile is a file that differs from the original, according to the event log. The
// log does not contain the files that a rename replaced.
type ChangedFile struct {
	Path    string    `json:"path" required:"true"`
	Kind    string    `json:"kind" required:"true" enum:"added,modified,deleted,metadata,renamed"`
	Type    string    `json:"type,omitempty" enum:"file,dir,symlink,node" description:"The file type, if it is known."`
	From    string    `json:"from,omitempty" description:"For a renamed file: its former path."`
	Written int64     `json:"bytes_written,omitempty" description:"Number of bytes written."`
	Changes int64     `json:"changes" description:"Number of changes."`
	Time    time.Time `json:"time" description:"Time of the last change. seq, pid and comm also describe the last change."`
	Seq     uint64    `json:"seq"`
	PID     int32     `json:"pid,omitempty"`
	Comm    string    `json:"comm,omitempty"`
	Since   bool      `json:"since_snapshot,omitempty" description:"Changed after the snapshot. A branch of the snapshot does not contain the change."`
}

// Profile summarizes the system calls of a jail: their frequency, duration and errors.
type Profile struct {
	Count      int64         `json:"count" required:"true" description:"Number of system calls."`
	Total      int64         `json:"total_ns" description:"Total duration, in nanoseconds."`
	Unfinished int64         `json:"unfinished" description:"Number of calls that did not return."`
	Failed     int64         `json:"failed" description:"Number of calls that returned an error."`
	Denied     int64         `json:"denied" description:"Number of calls that seccomp denied before they were executed."`
	Refused    int64         `json:"refused" description:"Number of calls that failed for lack of permission."`
	Kinds      Estimate      `json:"kinds" description:"Number of distinct system calls."`
	Latency    Latency       `json:"latency" required:"true"`
	Calls      []CallProfile `json:"calls" required:"true" description:"System calls, most frequent first."`
	More       int64         `json:"more" description:"Number of calls that the list does not include."`
	Errors     []ErrorCount  `json:"errors" required:"true" description:"Errors, most frequent first."`
	Failures   []CallFailure `json:"failures" required:"true" description:"Failures by system call and error: denied first, then refused, then others."`
	FailsMore  int64         `json:"failures_more" description:"Number of failures that the list does not include."`
	Processes  []CallsOfOne  `json:"processes" required:"true" description:"Processes with the most calls first, as many as requested."`
	Lost       Lost          `json:"lost" description:"System call events that were lost."`
}

// Estimate is a number of distinct items.
type Estimate struct {
	Count int64 `json:"count"`
	About bool  `json:"about,omitempty" description:"The count is an estimate with an error of a few percent."`
}

// CallProfile summarizes one system call.
type CallProfile struct {
	Name    string    `json:"name" required:"true"`
	Count   int64     `json:"count" required:"true"`
	AtLeast bool      `json:"at_least,omitempty" description:"The counts are lower bounds."`
	Failed  int64     `json:"failed"`
	Denied  int64     `json:"denied"`
	Timed   int64     `json:"timed" description:"Number of calls with a known duration."`
	Latency Latency   `json:"latency" required:"true"`
	Events  EventLink `json:"events"`
}

// Latency summarizes the duration of calls.
type Latency struct {
	Total   int64           `json:"total_ns"`
	Min     int64           `json:"min_ns"`
	P50     int64           `json:"p50_ns" description:"Median, estimated from the buckets."`
	P90     int64           `json:"p90_ns" description:"90th percentile, estimated from the buckets."`
	P99     int64           `json:"p99_ns" description:"99th percentile, estimated from the buckets."`
	Max     int64           `json:"max_ns"`
	Buckets []LatencyBucket `json:"buckets" required:"true" description:"Histogram. Each bucket ends at twice its start. Empty buckets at both ends are omitted."`
}

// LatencyBucket counts the calls whose duration is at least From and less than twice
// From.
type LatencyBucket struct {
	From  int64 `json:"from_ns"`
	Count int64 `json:"count"`
}

// ErrorCount counts the calls that returned an error.
type ErrorCount struct {
	Errno string `json:"errno" required:"true"`
	Count int64  `json:"count" required:"true"`
}

// CallFailure summarizes the failures of one system call with one error.
type CallFailure struct {
	Name    string    `json:"name" required:"true"`
	Errno   string    `json:"errno" required:"true"`
	Class   string    `json:"class" enum:"denied,refused,failed" description:"denied: by seccomp. refused: for lack of permission. failed: other errors."`
	Count   int64     `json:"count" required:"true"`
	AtLeast bool      `json:"at_least,omitempty" description:"The count is a lower bound."`
	PID     int32     `json:"pid" description:"PID of the first failure. comm and path also describe the first failure."`
	Comm    string    `json:"comm"`
	Path    string    `json:"path,omitempty"`
	Events  EventLink `json:"events"`
}

// CallsOfOne summarizes the system calls of one process, identified by its PID inside
// the jail.
type CallsOfOne struct {
	PID     int32   `json:"pid" required:"true"`
	Comm    string  `json:"comm" required:"true"`
	Count   int64   `json:"count" required:"true"`
	AtLeast bool    `json:"at_least,omitempty" description:"The counts are lower bounds."`
	Failed  int64   `json:"failed"`
	Denied  int64   `json:"denied"`
	Latency Latency `json:"latency" required:"true"`
}

// Connections summarizes the network connections of a jail by host.
type Connections struct {
	Items    []ConnectedHost `json:"items" required:"true" description:"Hosts with the most bytes first, followed by hosts with decisions only."`
	Count    Estimate        `json:"count" description:"Number of hosts."`
	Total    Traffic         `json:"total"`
	More     Traffic         `json:"more" description:"Traffic of hosts that are not listed."`
	Lost     Lost            `json:"lost" description:"Network events that were lost."`
	Verdicts int64           `json:"verdicts_more,omitempty" description:"Number of egress decisions that are not listed."`
}

// Traffic counts packets and bytes from the perspective of the jail.
type Traffic struct {
	PacketsOut int64 `json:"packets_out"`
	BytesOut   int64 `json:"bytes_out"`
	PacketsIn  int64 `json:"packets_in"`
	BytesIn    int64 `json:"bytes_in"`
}

// ConnectedHost summarizes the traffic between a jail and one host, and the egress
// decisions about the host.
type ConnectedHost struct {
	Host        string `json:"host" required:"true" description:"The name that the jail resolved, or the address."`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused" description:"Number of refused connections."`
	Unanswered  int64  `json:"unanswered" description:"Number of connections without a response."`
	Traffic
	First     *time.Time `json:"first,omitempty"`
	Last      *time.Time `json:"last,omitempty"`
	Processes []Who      `json:"processes" required:"true" description:"The first few processes that communicated with the host."`
	ProcsMore bool       `json:"processes_more,omitempty" description:"There were more processes."`
	Services  []Service  `json:"services" required:"true" description:"Services with the most bytes first."`
	Verdicts  []Verdicts `json:"verdicts" required:"true" description:"Egress decisions, newest first. Empty for a jail without the egress proxy."`
}

// Who identifies a process.
type Who struct {
	PID  int32  `json:"pid" required:"true"`
	Comm string `json:"comm" required:"true"`
}

// Service is a port of the host, or of the jail if the host initiated the connection.
type Service struct {
	Proto       string `json:"proto" required:"true"`
	Dir         string `json:"dir" required:"true" enum:"egress,ingress,loopback" description:"Direction of the connections."`
	Port        int    `json:"port,omitempty"`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused" description:"Number of refused connections."`
	Unanswered  int64  `json:"unanswered" description:"Number of connections without a response."`
	Traffic
	Events EventLink `json:"events" description:"Events of the service."`
}

// Verdicts summarizes the egress decisions about similar requests.
type Verdicts struct {
	Allowed  bool      `json:"allowed" required:"true"`
	Kind     string    `json:"kind" required:"true" enum:"name,connect,request,packet" description:"The kind of request: name, DNS resolution; connect, a connection; request, an HTTP request; packet, a packet that the proxy does not carry."`
	Port     int       `json:"port,omitempty"`
	Reason   string    `json:"reason,omitempty" description:"Reason of a denial or abort, as a keyword: host, port, method, path, denied, rate, bytes, address, …"`
	Rule     string    `json:"rule,omitempty" description:"The rule that decided."`
	Detail   string    `json:"detail,omitempty" description:"Explanation of the newest decision."`
	Count    int64     `json:"count" required:"true" description:"Number of requests."`
	Sent     int64     `json:"sent" description:"Bytes sent by the jail."`
	Received int64     `json:"received" description:"Bytes received by the jail."`
	First    time.Time `json:"first" required:"true"`
	Last     time.Time `json:"last" required:"true"`
	Entry    int64     `json:"entry" required:"true" description:"Number of the audit log entry of the newest decision."`
}
