// Made by `make sdk` from the OpenAPI document. Do not edit.

/** The request and response types of the API, as JSON values. */

export interface AddPublisher {
  /** Public key, in minisign format. */
  key: string;
  /** The highest tier that the publisher's bundles may have. */
  tier: "informational" | "read-only" | "standard" | "elevated";
}

export interface AddSkill {
  /** File name, for error messages. */
  file?: string;
  /** Text of the skill document. */
  text: string;
}

export interface AnswerApproval {
  answer: "allow" | "deny" | "modify";
  /** The reason, which is shown to the agent. */
  reason?: string;
  /** With answer modify: the resource to allow instead of the requested one. */
  resource?: string;
  /** How long the answer applies. once (the default): this request. session: until the jail or the
   * daemon stops. always: it is added to the jail's policy. */
  scope?: "once" | "session" | "always";
  /** The confirmation phrase, if one is required. */
  typed?: string;
}

export interface Approval {
  /** The answer, if the request was answered. */
  answer?: ApprovalAnswer;
  /** With last=N: the last N events of the jail before the request, oldest first.
   * docs/reference/events.md describes them. */
  before?: unknown[];
  /** Additional information for the decision, such as preceding actions. */
  context?: string;
  created_at: string;
  /** Further facts about the action. */
  details?: string[];
  /** Unified diff (diff -u) of the proposed change, against the file at the time of the request. */
  diff?: string;
  /** Number of the audit log entry that records the outcome. */
  entry?: number;
  /** When the request expires if it is not answered. */
  expires_at: string;
  /** The first approver, if two are required and one has approved. */
  first?: string;
  id: string;
  /** The jail that the request concerns. */
  jail?: string;
  /** Why there is no diff. */
  no_diff?: string;
  /** Name of the node with the jail, in lists of all nodes. */
  node?: string;
  /** Why the request is no longer pending. */
  outcome?: string;
  /** The confirmation phrase. An approver who types it needs no second approver. */
  phrase?: string;
  /** The policy question, as submitted. */
  question: Question;
  /** The rule that requires approval. */
  rule: string;
  /** When the request was answered, withdrawn or expired. */
  settled_at?: string | null;
  /** pending: not answered yet. withdrawn: the caller or an operator withdrew the request. */
  state: "pending" | "answered" | "expired" | "withdrawn";
  /** Who must approve: preapproved needs no person, standard needs one person, elevated needs one
   * person who types the confirmation phrase, or two persons. */
  tier: "preapproved" | "standard" | "elevated";
  /** Short summary. It may omit details; see what. */
  title: string;
  /** Number of callers that wait for the answer now. */
  waiting?: number;
  /** Complete text of the action. */
  what: string;
  /** The agent or caller that requests the action. */
  who: string;
  /** Why approval is required. */
  why: string;
  /** The policy rule that an approval for longer than once adds, by scope. */
  writes?: Record<string, string>;
}

export interface ApprovalAnswer {
  answer: "allow" | "deny" | "modify";
  at: string;
  /** Name of the person. */
  by: string;
  /** How the answer was given: api, cli or link. */
  channel: string;
  reason?: string;
  /** With answer modify: the resource that is allowed instead. */
  resource?: string;
  /** How long the answer applies: once, for the session, or always. */
  scope: "once" | "session" | "always";
}

export interface ApprovalEvent {
  approval: Approval;
  at: string;
  /** seconded: the first of two approvers approved. refused: the jail has too many pending requests,
   * so the request was not queued. */
  kind: "asked" | "seconded" | "answered" | "expired" | "withdrawn" | "refused";
}

export interface ApprovalPage {
  /** Items of the page. */
  items: Approval[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Backend {
  /** Limits and features that are unavailable on this host, each with the reason. */
  lacks?: Record<string, string>;
  name: string;
  /** Why it is not usable. */
  reason?: string;
  /** How to make the backend usable. */
  remedy?: string;
  runtime?: string;
  usable: boolean;
}

export interface BackendPage {
  /** Items of the page. */
  items: Backend[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Bounds {
  /** Number of CPUs. One CPU corresponds to a CPU weight of 1024. */
  cpu?: number;
  /** Disk space in MiB. */
  disk_mb?: number;
  /** Memory in MiB. */
  memory_mb?: number;
  /** Number of processes and threads. */
  pids?: number;
}

export interface Branch {
  /** Number of jails to create. Default 1. */
  count?: number;
  /** Number of the first jail. If it is set, the name of a single jail has its number, too. */
  first?: number;
  /** Default: the jail's id. */
  hostname?: string;
  /** Rejected if true: a connection cannot be shared between a jail and its branches. Rewind the jail
   * instead. */
  keep_connections?: boolean;
  labels?: Record<string, string>;
  limits?: Limits;
  /** Display name. If several jails are created, a number is appended. */
  name?: string;
  network?: "isolated" | "proxy" | "bridged" | "full";
  /** Divide the jails evenly among the nodes of the fleet. */
  spread?: boolean;
}

export interface BranchError {
  /** Number of the jail, from 1. */
  number: number;
  problem: Problem;
}

export interface Branches {
  /** Errors of jails that were not created. */
  errors?: BranchError[];
  jails: Jail[];
  /** The snapshot that was taken, if a jail was branched. */
  snapshot?: Snapshot;
}

export interface BrowserKeys {
  /** The authentication secret, in base64url. */
  auth: string;
  /** The browser's P-256 public key, in base64url. */
  p256dh: string;
}

export interface Bundle {
  /** Why the bundle's capabilities cannot be called now: the bundle is no longer trusted. */
  barred?: string;
  /** Capabilities of the bundle, each as id@version. */
  capabilities: string[];
  /** Digest of the installed version. */
  digest?: string;
  installed?: string | null;
  name: string;
  /** An installation that is pending or was refused. */
  next?: BundleInstall;
  publisher?: string;
  /** How to make the bundle usable again. */
  remedy?: string;
  /** Name of the skill in the bundle. */
  skill?: string;
  tier?: string;
  /** Time from which the bundle's capabilities cannot be called. */
  until?: string | null;
  /** The installed version. Empty if no version is installed. */
  version?: string;
}

export interface BundleInstall {
  /** The approval request of a pending installation. */
  approval?: string;
  digest: string;
  state: "pending" | "refused";
  version: string;
  /** Why the installation is pending or was refused. */
  why?: string;
}

export interface BundlePage {
  /** Items of the page. */
  items: Bundle[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Call {
  /** Budget of the run, by dimension: steps, wall-clock-ms, sandbox-cpu-ms, network-bytes,
   * storage-bytes. It applies from the run's first call. */
  budget?: Record<string, number>;
  /** Input that conforms to the input schema. Default: null. */
  input?: unknown;
  /** Call on behalf of this jail. The jail's policy applies. */
  jail?: string;
  /** Data classes of the input: public, redacted, pii or secret, optionally with a subclass after a
   * dot. */
  labels?: string[];
  /** Run whose budget the call consumes. */
  run?: string;
  /** Session whose files a capability with session scope can access. */
  session?: string;
  /** Timeout in milliseconds, up to the capability's own timeout. */
  timeout_ms?: number;
}

export interface CallBudget {
  /** Consumption by dimension. */
  "run-budget-consumed": Record<string, number>;
  /** Remaining budget by dimension. */
  "run-budget-remaining": Record<string, number>;
}

export interface CallError {
  kind: string;
  /** The reason, phrased for agents. */
  message?: string;
  /** Why the call failed. */
  reason: string;
  remedy?: string;
}

export interface CallFailure {
  /** The count is a lower bound. */
  at_least?: boolean;
  /** denied: by seccomp. refused: for lack of permission. failed: other errors. */
  class?: "denied" | "refused" | "failed";
  comm?: string;
  count: number;
  errno: string;
  events?: EventLink;
  name: string;
  path?: string;
  /** PID of the first failure. comm and path also describe the first failure. */
  pid?: number;
}

export interface CallLimits {
  /** CPU weight. */
  cpu_shares?: number;
  /** Number of processes and threads. */
  max_pids?: number;
  /** Memory, in MiB. */
  memory_mb?: number;
  /** Network bytes, sent and received together. */
  network_bytes?: number;
  /** Run time, in milliseconds. */
  timeout_ms?: number;
}

export interface CallProfile {
  /** The counts are lower bounds. */
  at_least?: boolean;
  count: number;
  denied?: number;
  events?: EventLink;
  failed?: number;
  latency: Latency;
  name: string;
  /** Number of calls with a known duration. */
  timed?: number;
}

export interface CallUsage {
  /** Peak memory usage in bytes. */
  memory_peak_bytes?: number;
  /** Bytes sent. */
  network_egress_bytes: number;
  /** Bytes received. */
  network_ingress_bytes?: number;
  /** CPU time in milliseconds. */
  sandbox_cpu_ms: number;
  steps?: number;
  /** Duration of each phase of the call, in microseconds. */
  steps_us: Record<string, number>;
  /** Bytes written to storage. */
  storage_write_bytes: number;
  /** Elapsed time in milliseconds. */
  wall_ms: number;
}

export interface Called {
  began: string;
  budget?: CallBudget;
  capability: string;
  digest?: string;
  /** Number of the audit log entry that records the call. */
  entry?: number;
  error?: CallError;
  id: string;
  /** What isolated that sandbox: runc, crun, runsc (gVisor) or bwrap. */
  isolation?: string;
  /** Data class of the output. */
  label?: string;
  /** The end of the capability's standard error output. */
  log?: string;
  output?: unknown;
  /** The sandbox that served the call. The audit log contains its egress and its use of secrets under
   * this name. */
  sandbox?: string;
  /** failed: the capability was called and returned an error. refused: it was not called. */
  state: "done" | "failed" | "refused";
  usage: CallUsage;
  version?: string;
  /** A sandbox from the warm pool served the call. */
  warm?: boolean;
  /** Why an older version was called: a newer one is revoked. */
  warning?: string;
}

export interface CallsOfOne {
  /** The counts are lower bounds. */
  at_least?: boolean;
  comm: string;
  count: number;
  denied?: number;
  failed?: number;
  latency: Latency;
  pid: number;
}

export interface Capability {
  /** The approval request of this version, pending or answered. */
  approval?: string;
  /** The bundle that contains the capability. */
  bundle?: string;
  /** Who registered the version. */
  by?: string;
  created: string;
  description?: string;
  /** Digest of the manifest and its files. */
  digest: string;
  /** Declared side effects. */
  effects: string[];
  /** Hosts that the capability may connect to. */
  hosts?: string[];
  id: string;
  /** JSON Schema 2020-12. */
  input_schema?: unknown;
  /** Resource limits of one call, from the manifest. Only in the response for a single capability. */
  limits?: CallLimits;
  /** The manifest as submitted. Only in the response for a single capability. */
  manifest?: string;
  /** Permissions that require approval, or that were approved. */
  new?: string[];
  /** JSON Schema 2020-12. */
  output_schema?: unknown;
  /** Each call requires approval. */
  per_use?: boolean;
  runtime: string;
  /** Names of the secrets that the capability uses. */
  secrets?: string[];
  /** When the registration was approved, refused or revoked. */
  settled?: string | null;
  state: "pending" | "approved" | "refused" | "revoked";
  /** The approval tier. */
  tier: string;
  /** An operator allowed this digest to run directly on the host. */
  trust?: boolean;
  version: string;
  /** Why the version has its state. */
  why?: string;
}

export interface CapabilityPage {
  /** Items of the page. */
  items: Capability[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ChainBad {
  /** Line of an export. */
  line?: number;
  reason: string;
  /** Number of the invalid entry. Omitted if all entries are valid. */
  seq?: number;
}

export interface ChainConflict {
  /** When this was noticed first. */
  at: string;
  /** Newest checkpoint of the log when this was noticed. */
  checkpoint?: string;
  /** How many entries fewer the log had, at most. */
  missing?: number;
  reason: string;
}

export interface ChainConsistency {
  /** The earlier checkpoint. */
  from: string;
  /** Hashes in base64, as in RFC 6962. */
  path: string[];
  /** The later checkpoint. */
  to: string;
}

export interface ChainEntry {
  agent: string;
  body: unknown;
  capability: string;
  /** Hash of this entry. */
  hash: string;
  jail: string;
  kind: string;
  /** The entry that caused this one, or 0. */
  parent: number;
  /** Hash of the previous entry. */
  prev: string;
  run: string;
  seq: number;
  session: string;
  time: string;
}

export interface ChainEntryPage {
  /** Items of the page. */
  items: ChainEntry[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ChainFrom {
  /** Signed checkpoint, as returned by GET /chain/head. */
  checkpoint: string;
}

export interface ChainHead {
  /** The newest signed checkpoint, in C2SP tlog-checkpoint format. */
  checkpoint?: string;
  /** Number of entries. */
  entries: number;
  /** The public key that verifies checkpoints. */
  key: string;
}

export interface ChainProof {
  /** Signed checkpoint that covers the entry. */
  checkpoint: string;
  entry: ChainEntry;
  /** Hashes in base64 from the entry to the root, as in RFC 6962. */
  path: string[];
}

export interface ChainReport {
  /** The first error; absent if the log is valid. */
  bad?: ChainBad;
  /** Number of verified checkpoints. */
  checkpoints: number;
  /** Number of valid entries, from the first. */
  entries: number;
  /** The public key that was used. */
  key?: string;
  /** true if the key was supplied for the verification, false if it was stored with the log. */
  key_given: boolean;
  /** Number of entries that the last verified checkpoint covers. */
  signed: number;
}

export interface Change {
  /** With content=unified: the unified diff (diff -u). */
  diff?: string;
  /** For a renamed file: its former path. */
  from?: string;
  /** metadata: only attributes of the file changed, not its content. */
  kind: "added" | "modified" | "deleted" | "metadata" | "renamed";
  /** Permission bits, in octal. */
  mode?: string;
  /** With content=unified: why there is no diff: binary, too large, or modified during the
   * comparison. */
  no_diff?: string;
  path: string;
  /** Size in bytes. */
  size?: number;
  /** file, dir, symlink, fifo, socket, char or block. */
  type?: string;
  /** What differs, if the file is on both sides: content, mode, owner, times, xattrs. */
  what?: string[];
}

export interface ChangePage {
  /** Items of the page. */
  items: Change[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ChangedFile {
  /** Number of bytes written. */
  bytes_written?: number;
  /** Number of changes. */
  changes?: number;
  comm?: string;
  /** For a renamed file: its former path. */
  from?: string;
  kind: "added" | "modified" | "deleted" | "metadata" | "renamed";
  path: string;
  pid?: number;
  seq?: number;
  /** Changed after the snapshot. A branch of the snapshot does not contain the change. */
  since_snapshot?: boolean;
  /** Time of the last change. seq, pid and comm also describe the last change. */
  time?: string;
  /** The file type, if it is known. */
  type?: "file" | "dir" | "symlink" | "node";
}

export interface ChangedFiles {
  /** More files were changed earlier and are not listed. */
  at_least?: boolean;
  count?: number;
  /** Changed files, most recently changed first. */
  items: ChangedFile[];
  /** File events that were lost. */
  lost?: Lost;
  /** false if file operations of this jail are not recorded. */
  recorded?: boolean;
}

export interface ChangedProcess {
  argv?: string[];
  began?: string;
  comm?: string;
  /** Values are truncated. */
  cut?: boolean;
  cwd?: string;
  /** Changed environment variables. */
  env?: EnvChange[];
  exe?: string;
  /** PID inside the jail. */
  pid: number;
  ppid?: number;
  /** The process on the first side, if its program or working directory differs. */
  was?: ComparedProcess;
}

export interface Checkpoint {
  at: string;
  /** The checkpoint was taken automatically. It is deleted when there are enough newer ones. */
  auto?: boolean;
  digest: string;
  /** Number of the audit log entry that records the checkpoint. */
  entry?: number;
  id: string;
  /** Number of the checkpoint in the run. */
  n: number;
  reason?: string;
  run: string;
  /** Snapshot of the run's jail. */
  snapshot?: string;
  /** State that the agent saved. Only in the response for a single checkpoint. */
  state?: unknown;
  /** Number of steps that the run had made. */
  steps: number;
}

export interface CheckpointPage {
  /** Items of the page. */
  items: Checkpoint[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ClaimedDecision {
  agent?: string;
  /** Arguments of the tool call. */
  args?: unknown;
  timestamp?: string;
  /** Name of the tool. */
  tool: string;
  /** How long to wait for a person's answer, in milliseconds, if approval is required. */
  wait_ms?: number;
}

export interface ComparedEnd {
  jail: string;
  name?: string;
  /** Sequence number of the last event in the jail's log at that time. */
  seq?: number;
  /** The compared snapshot. If omitted, the jail is compared as it is now. */
  snapshot?: string;
  state?: string;
  /** Time of the compared state. */
  time?: string;
}

export interface ComparedProcess {
  argv?: string[];
  began?: string;
  comm?: string;
  /** Values are truncated. */
  cut?: boolean;
  cwd?: string;
  exe?: string;
  /** PID inside the jail. */
  pid: number;
  ppid?: number;
}

export interface ComparedUsage {
  cpu_ns?: number;
  disk_bytes?: number;
  memory_bytes?: number;
  /** Fields that could not be measured. */
  not_measured?: string[];
  /** Number of processes and threads. */
  processes?: number;
  rx_bytes?: number;
  tx_bytes?: number;
}

export interface Comparison {
  events?: EventChanges;
  /** Changes in the root filesystem. */
  files?: FileChanges;
  from: ComparedEnd;
  processes?: ProcessChanges;
  to: ComparedEnd;
  usage?: UsageChanges;
  /** Changes in the workspace, if a side has one. */
  workspace?: FileChanges;
}

export interface Condition {
  /** Description of the problem. */
  detail: string;
  /** How to resolve the problem. */
  remedy?: string;
  /** disk_read_only: the filesystem had an error and is read-only until the jail is stopped and
   * started. events_not_written: the jail is frozen because its events cannot be written, and
   * continues when they can. */
  type: "disk_read_only" | "events_not_written";
}

export interface ConnectedHost {
  bytes_in?: number;
  bytes_out?: number;
  connections?: number;
  first?: string | null;
  /** The name that the jail resolved, or the address. */
  host: string;
  last?: string | null;
  packets_in?: number;
  packets_out?: number;
  /** The first few processes that communicated with the host. */
  processes: Who[];
  /** There were more processes. */
  processes_more?: boolean;
  /** Number of refused connections. */
  refused?: number;
  /** Services with the most bytes first. */
  services: Service[];
  /** Number of connections without a response. */
  unanswered?: number;
  /** Egress decisions, newest first. Empty for a jail without the egress proxy. */
  verdicts: Verdicts[];
}

export interface Connection {
  comm?: string;
  local?: string;
  /** PID inside the jail. */
  pid?: number;
  proto?: "tcp" | "udp";
  remote?: string;
  /** listening, established, and so on; open for UDP. */
  state?: string;
}

export interface Connections {
  /** Number of hosts. */
  count?: Estimate;
  /** Hosts with the most bytes first, followed by hosts with decisions only. */
  items: ConnectedHost[];
  /** Network events that were lost. */
  lost?: Lost;
  /** Traffic of hosts that are not listed. */
  more?: Traffic;
  total?: Traffic;
  /** Number of egress decisions that are not listed. */
  verdicts_more?: number;
}

export interface Connector {
  /** For a hook: the URL to post to. For a post: the destination host. */
  address?: string;
  /** Number of deliveries that failed permanently. */
  dead: number;
  /** Goal of the run that a message starts, as configured. */
  goal?: string;
  /** hook: inbound webhook, which adds received messages to a session. post: outbound webhook, which
   * sends a session's messages to a URL. relay: forwards messages of sessions to another session. */
  kind: "hook" | "post" | "relay";
  name: string;
  /** Number of pending deliveries. */
  pending: number;
  /** The receiving session, as configured. */
  session?: string;
  /** Sessions whose messages are forwarded: names, or patterns with *. */
  sessions?: string[];
}

export interface ConnectorPage {
  /** Items of the page. */
  items: Connector[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ConsideredRule {
  /** The rule determines the result for this part. */
  decides?: boolean;
  /** The rule matches. */
  matches?: boolean;
  /** The part of the action, such as one command of a command line. */
  part: string;
  rule: PolicyRule;
  /** The rule set to which the rule belongs. */
  set: string;
}

export interface CreateE2BKey {
  /** Name of the key's user. Default: the caller's name. */
  name?: string;
  /** What the sandboxes and template builds of the key may demand together. Default: no limits. */
  quota?: Quota;
}

export interface CreateJail {
  /** Isolation backend: oci, microvm (a virtual machine) or bwrap. */
  backend?: string;
  /** Command to run when the jail starts. The jail continues to run when it exits. */
  command?: string[];
  /** Working directory of every command. */
  cwd?: string;
  /** Egress rules of a jail in network mode proxy. */
  egress?: Egress;
  /** Enforce the policy in the Linux kernel for the execution of programs, file access and
   * connections of the jail's processes. */
  enforce?: boolean;
  /** Environment variables of every command. */
  env?: Record<string, string>;
  /** Default: the jail's id. */
  hostname?: string;
  /** Labels by which the jail can be found. */
  labels?: Record<string, string>;
  limits?: Limits;
  /** Host paths to make available in the jail. */
  mounts?: Mount[];
  /** Name of the jail, which no other jail has. */
  name?: string;
  /** isolated (the default): only a loopback interface. proxy: network access through the egress
   * proxy, as the egress rules allow. bridged: access to the jails of the network group. full:
   * unrestricted network access. */
  network?: "isolated" | "proxy" | "bridged" | "full" | "Isolated" | "FullAccess";
  /** For a bridged jail: the group of jails that it can reach. Default: the group named default. */
  network_group?: string;
  /** What is recorded of the jail. */
  observe?: Observe;
  /** Which actions are allowed, denied or require approval. */
  policy?: Policy;
  rootfs?: Rootfs;
  /** The OCI runtime: runc, crun or runsc. */
  runtime?: string;
  /** The session of the jail. Its programs reach the gateway at http://localhost:4097. */
  session_id?: string;
  /** When automatic snapshots are taken. */
  snapshots?: Snapshots;
  /** Start the jail after creating it. If it cannot be started, it is deleted. */
  start?: boolean;
  /** User of every command: a name, a uid, name:group or uid:gid. */
  user?: string;
  /** A host directory to make available copy-on-write. */
  workspace?: Workspace;
}

export interface CreateLoginLink {
  /** Name of the login. Default: the caller's name. */
  label?: string;
  /** Role of the login. Default: the caller's role. */
  role?: "admin" | "operator" | "viewer";
}

export interface CreateToken {
  /** Default: never. */
  expires_at?: string | null;
  /** Name of the token's user. */
  name: string;
  /** What the jails that are created with the token may demand together. Default: no limits. */
  quota?: Quota;
  role: "admin" | "operator" | "viewer" | "agent";
}

export interface DeadNotice {
  approval: string;
  attempts: number;
  /** The content of the notification. */
  body?: unknown;
  /** The notification channel. */
  channel: string;
  created_at: string;
  /** Error of the last attempt. */
  error?: string;
  id: string;
  kind: string;
}

export interface DeadNoticePage {
  /** Items of the page. */
  items: DeadNotice[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Decide {
  /** A tool name: bash, edit, read, webfetch, connect, … */
  action: string;
  /** The agent that performs the action. */
  agent?: string;
  /** Additional attributes of the action. */
  attributes?: Record<string, string>;
  /** The object of the action: a command line, path, URL or host:port. */
  resource?: string;
  /** How long to wait for a person's answer, in milliseconds, if approval is required. Default: one
   * minute. */
  wait_ms?: number;
}

export interface Decision {
  /** Result of the rules. */
  effect: "allow" | "ask" | "deny";
  /** Remembered answers cannot override this decision. */
  final?: boolean;
  /** The list of pre-approved actions allows it. */
  listed?: boolean;
  reason: string;
  remedy?: string;
  /** The rule that decided. */
  rule: PolicyRule;
}

export interface Delivery {
  attempts: number;
  connector: string;
  /** Error of the last attempt. */
  error?: string;
  /** Delivery id. It is the same for all attempts. */
  id: string;
  message_id: string;
  /** Time of the next attempt. */
  next?: string | null;
  session_id: string;
  /** dead: the delivery failed permanently. */
  state: "pending" | "delivered" | "dead";
}

export interface DeliveryPage {
  /** Items of the page. */
  items: Delivery[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Demand {
  disk_bytes: number;
  jails: number;
  /** Stopped jails have no memory. */
  memory_bytes: number;
}

export interface E2BKey {
  /** PEM certificate of the certificate authority that clients must trust, if the daemon created one. */
  ca?: string;
  /** Value for E2B_DOMAIN. Sandbox ports are served on subdomains of it. */
  domain: string;
  /** Id of the token. Use it to revoke the key. */
  id: string;
  /** Value for E2B_API_KEY. It is returned only once. */
  key: string;
  /** Hosts that sandboxes can reach, as set by e2b.reach. * is every host on the Internet. */
  reach: string[];
  /** Value for E2B_API_URL and E2B_SANDBOX_URL. */
  url: string;
}

export interface EditQuota {
  /** Disk space in bytes. 0 removes the limit. */
  disk_bytes?: number | null;
  /** Number of jails. 0 removes the limit. */
  jails?: number | null;
  /** Memory in bytes. 0 removes the limit. */
  memory_bytes?: number | null;
}

export interface EditSchedule {
  jitter_ms?: number | null;
  missed?: "skip" | "once" | "all" | null;
  overlap?: "skip" | "queue" | "allow" | null;
  /** Cron expression, as in POST /runs. */
  schedule?: string | null;
  time_zone?: string | null;
}

export interface EditToken {
  quota: EditQuota;
}

export interface Egress {
  /** Rules in order of precedence. The first matching rule applies. */
  allow?: EgressRule[];
  /** Request approval for access that no rule allows, instead of denying it. */
  ask?: boolean;
  /** Limit for all access together. */
  limit?: EgressLimit;
  /** Record the query strings of URLs, which may contain private data. */
  query?: boolean;
}

export interface EgressInject {
  /** How the secret is added: as a bearer token, a header, a query parameter, or the password of HTTP
   * Basic authentication. */
  as: "bearer" | "header" | "query" | "basic";
  /** Name of the header, query parameter or user. */
  name?: string;
  secret: string;
}

export interface EgressLimit {
  /** Bytes, sent and received together. */
  bytes?: number;
  /** Period of the request limit, in milliseconds. */
  per_ms?: number;
  /** Requests per per_ms, or per minute if per_ms is omitted. */
  requests?: number;
}

export interface EgressRule {
  /** The capability to which the rule belongs. */
  capability?: string;
  /** Deny the address or prefix, whatever name resolves to it, unless an earlier rule allows it.
   * Without ports, all ports match. */
  deny?: boolean;
  /** A host name, *.example.com, * for every name, or an IP address or prefix. A private address is
   * allowed only by an address or prefix rule. */
  host: string;
  /** Secrets to add to requests. They are never visible in the jail. */
  inject?: EgressInject[];
  /** Intercept TLS with a certificate authority that only this jail trusts. Implied by inject,
   * methods and paths. */
  intercept?: boolean;
  /** For an address or prefix: match only its public Internet addresses. Without ports, all ports
   * match. */
  internet?: boolean;
  limit?: EgressLimit;
  /** Allowed HTTP methods. Default: all except TRACE. */
  methods?: string[];
  /** Display name, used in messages. */
  name?: string;
  /** URL path patterns, in which * matches any sequence of characters. */
  paths?: string[];
  /** Destination ports. Default: 80 and 443. */
  ports?: number[];
}

export interface EgressState {
  egress: Egress;
  /** Statistics since the jail was started. */
  stats?: EgressStats;
  /** Version of the rules. It differs if the rules differ. */
  version?: string;
}

export interface EgressStats {
  connections: number;
  /** Connections that are open now. */
  open: number;
  /** DNS queries. */
  queries: number;
  /** Bytes received by the jail. */
  received: number;
  /** Number of denied requests, by reason. */
  refused?: Record<string, number>;
  requests: number;
  /** Bytes sent by the jail. */
  sent: number;
}

export interface EnvChange {
  from?: string | null;
  /** The name looks like that of a secret, so the values are omitted. */
  hidden?: boolean;
  name: string;
  to?: string | null;
}

export interface ErrorCount {
  count: number;
  errno: string;
}

export interface Estimate {
  /** The count is an estimate with an error of a few percent. */
  about?: boolean;
  count?: number;
}

export interface Event {
  /** ABI of the system call if it is not the native one: i386, x32 or arm. */
  abi?: string;
  /** Socket address that the system call received as an argument. */
  addr?: string;
  /** Arguments of the system call. */
  args?: number[];
  /** Arguments of the program. */
  argv?: string[];
  /** Value of ns at the first packet of a flow, or at the start of a process. */
  begin?: number;
  /** Number of bytes read, written or transferred. */
  bytes?: number | null;
  /** Number of consecutive reads or writes that this event aggregates. */
  calls?: number;
  /** The return of fork or clone in the new task. */
  child?: boolean;
  /** Name of the thread; by default the name of the program. */
  comm?: string;
  /** CPU time since the start of the jail in nanoseconds. */
  cpu_ns?: number;
  /** A string or list is truncated. */
  cut?: boolean;
  /** Working directory inside the jail. */
  cwd?: string;
  /** seccomp denied the system call before it was executed. */
  denied?: boolean;
  /** Direction, from the jail's perspective. */
  dir?: "egress" | "ingress" | "loopback";
  /** Disk space in use. */
  disk_bytes?: number;
  /** Destination address. */
  dst?: string;
  /** Duration of the system call in nanoseconds. */
  dur_ns?: number;
  /** Path of the program inside the jail. */
  exe?: string;
  /** The process existed when observation began. */
  existing?: boolean;
  /** Exit status of the process. */
  exit_code?: number | null;
  /** File descriptor. */
  fd?: number | null;
  /** For a gap: first sequence number of the range with the lost events, if they had numbers. */
  from?: number;
  /** Group ID inside the jail. */
  gid?: number | null;
  /** Reported by the kernel of the jail's virtual machine, and only as trustworthy as that kernel. */
  guest?: boolean;
  /** The DNS name that the jail resolved to the remote address. */
  host?: string;
  /** Thread ID on the host. */
  host_pid?: number;
  /** Network interface in the jail. */
  iface?: string;
  /** Glasshouse made the call in a process of the jail. */
  injected?: boolean;
  jail: string;
  /** For a gap: number of lost events; -1 if unknown. */
  lost?: number;
  /** Memory in use. */
  memory_bytes?: number;
  /** Name of the system call. */
  name?: string;
  /** Number of the system call. */
  nr?: number;
  /** Monotonic clock of the host at completion, in nanoseconds. */
  ns?: number;
  /** The file operation, process event or snapshot operation. */
  op?: string;
  /** Number of packets of a flow, or of segments of a packet if more than one. */
  packets?: number;
  /** The source jail of the snapshot. */
  parent?: string;
  /** Sequence number of the last event in the parent's log that the snapshot includes. */
  parent_seq?: number | null;
  /** The caller was in the system call when observation began. There is no duration. */
  partial?: boolean;
  /** Path inside the jail. */
  path?: string;
  /** PID inside the jail. */
  pid?: number;
  /** Number of processes and threads, without those of init. */
  pids?: number;
  /** PID of the parent inside the jail. */
  ppid?: number;
  /** Protocol: tcp, udp, icmp, icmp6, arp, or by number as in ip-41 and eth-88cc. */
  proto?: string;
  /** The path in memory differed from the path that the kernel used (a TOCTOU race). */
  raced?: boolean;
  /** The jail's disk is read-only after an error. In usage events. */
  read_only?: boolean;
  /** The path that the kernel opened, if it differs from path. */
  real?: string;
  /** For a gap: why events were lost. */
  reason?: string;
  /** Return value of the system call, or the error of a file operation. A negative value is -errno. */
  ret?: number | null;
  /** Peak resident set size in bytes. */
  rss?: number;
  /** Bytes received since the start of the jail. */
  rx_bytes?: number;
  /** Sequence number in the jail, without gaps, from 1. A jail made from a snapshot continues the
   * numbering of its parent. */
  seq: number;
  /** The signal that ended the process, such as SIGKILL. */
  signal?: string;
  /** The snapshot that was taken or restored. */
  snapshot?: string;
  /** For a gap: type of the lost events. */
  source?: string;
  /** Source address. */
  src?: string;
  /** System CPU time of the process in nanoseconds. */
  system_ns?: number;
  /** TCP flags of the packet, or of all packets of a flow, as in SYN,ACK. */
  tcp?: string;
  /** The event concerns a thread that is not the first of its process. */
  thread?: boolean;
  /** For a gap: last sequence number of that range. */
  through?: number;
  /** Thread ID inside the jail. */
  tid?: number;
  /** New path of a renamed or linked file. */
  to?: string;
  /** Time, in milliseconds since 1970. */
  ts: number;
  /** Bytes sent since the start of the jail. */
  tx_bytes?: number;
  /** Subject of the event. It determines which of the other fields are present. */
  type: "syscall" | "file" | "net" | "proc" | "gap" | "usage" | "lineage";
  /** User ID inside the jail. */
  uid?: number | null;
  /** The caller died during the system call, or the call never returns. There is no return value. */
  unfinished?: boolean;
  /** The path of the file descriptor is unknown. */
  unresolved?: boolean;
  /** User CPU time of the process in nanoseconds. */
  user_ns?: number;
}

export interface EventChanges {
  /** Events between the common ancestor and the first side. */
  from?: EventCount;
  /** The common ancestor. Omitted if the sides are not related. */
  since?: ComparedEnd;
  /** Events between the common ancestor and the second side. */
  to?: EventCount;
}

export interface EventCount {
  /** by_type counts fewer events than total: some events were deleted, or there are too many to
   * count. */
  at_least?: boolean;
  by_type?: Record<string, number>;
  total?: number;
  /** Why the events cannot be counted. */
  unknown?: string;
}

export interface EventLink {
  /** First sequence number. */
  first?: number;
  /** Last sequence number. */
  last?: number;
  /** A filter for GET …/events. */
  q?: string;
}

export interface EventLog {
  /** Disk usage in bytes. */
  bytes?: number;
  /** Why events cannot be written now. */
  err?: string;
  /** Number of stored events. */
  events?: number;
  /** Sequence number of the oldest stored event. */
  first?: number;
  /** Sequence number that was assigned last. */
  last?: number;
  /** Events that were dropped because of the size limit, by type. Gap events count them. */
  lost?: Record<string, number>;
  /** Number of files. */
  segments?: number;
}

export interface EventWindow {
  /** Events. docs/reference/events.md describes them. */
  items: unknown[];
  /** Position of the first item; 0 is the oldest event. */
  offset: number;
  /** Number of events that match the filter. */
  total: number;
}

export interface Exec {
  argv?: string[];
  /** Run time in milliseconds. */
  duration_ms?: number;
  /** base64 if stdout or stderr is not valid UTF-8; then both are base64-encoded. */
  encoding?: "base64";
  ended_at?: string | null;
  /** Exit status, or 128 plus the number of the signal that ended the command. Absent while it runs. */
  exit_code?: number | null;
  id: string;
  /** Offset of the next output byte. */
  next?: number;
  /** Offset of the first buffered output byte. */
  oldest?: number;
  /** PID inside the jail. */
  pid?: number;
  /** The command runs on a terminal. */
  pty?: boolean;
  running?: boolean;
  /** The signal that ended the command, such as KILL. */
  signal?: string;
  started_at?: string;
  /** Standard error, if the response includes output. */
  stderr?: string;
  /** Bytes written so far, including discarded ones. */
  stderr_bytes?: number;
  /** Standard output, if the response includes output. */
  stdout?: string;
  /** Bytes written so far, including discarded ones. */
  stdout_bytes?: number;
  /** The command was killed because of its timeout. */
  timed_out?: boolean;
  /** stdout or stderr is incomplete because buffered output was discarded. */
  truncated?: boolean;
}

export interface ExecPage {
  /** Items of the page. */
  items: Exec[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ExecRequest {
  /** The command and its arguments. */
  argv?: string[];
  /** A command line for /bin/sh. */
  cmd?: string;
  /** Working directory. Default: the jail's working directory. */
  cwd?: string;
  /** Respond as soon as the command has started. */
  detach?: boolean;
  /** Environment variables, added to the jail's. */
  env?: Record<string, string>;
  /** Number of output bytes buffered for later readers. Default 1 MiB. */
  keep_bytes?: number;
  /** With stream: block the command when the client reads slowly, instead of dropping output. A
   * stream that ends without the event exit or error was interrupted, for example because the client
   * read nothing for 5 minutes. Continue it with GET /jails/{id}/execs/{exec} and Last-Event-ID. */
  lossless?: boolean;
  /** Run the command on a terminal of this size. */
  pty?: Size;
  /** Standard input of the command. */
  stdin?: string;
  /** stdin is base64. */
  stdin_base64?: boolean;
  /** Keep standard input open after stdin, for POST …/stdin. */
  stdin_open?: boolean;
  /** Respond with server-sent events: start, output, exit. */
  stream?: boolean;
  /** Timeout in milliseconds, after which the whole process group is killed. */
  timeout_ms?: number;
  /** User of the command: a name, a uid, name:group or uid:gid. Default: the jail's user. */
  user?: string;
}

export interface Explain {
  jail?: string;
  /** The policy to evaluate. Default: the jail's policy. */
  policy?: Policy;
  question: Question;
}

export interface Explained {
  considered?: ConsideredRule[];
  decision: Decision;
  /** For a connection from a jail in network mode proxy: the result of the egress rules. They are
   * evaluated before the policy, and a connection that they allow is not evaluated by the policy. */
  egress?: ExplainedEgress;
}

export interface ExplainedEgress {
  allow: boolean;
  /** The egress rules defer to the policy. */
  asks?: boolean;
  detail?: string;
  reason?: string;
  remedy?: string;
  /** The rule that allows the connection, or the closest one. */
  rule?: string;
}

export interface FeedEvent {
  /** The agent or user that caused the entry. */
  agent?: string;
  /** For topic approval: the current state of the request. */
  approval?: Approval;
  at: string;
  body?: unknown;
  jail?: string;
  /** Kind of the entry: jail.created, approval.asked, run.moved and so on. */
  kind: string;
  run?: string;
  /** Number of the audit log entry. */
  seq: number;
  session?: string;
}

export interface FeedHelloEvent {
  at: string;
  /** The Last-Event-ID was not issued by this daemon. Reload earlier events with the other endpoints. */
  reset?: boolean;
}

export interface FeedJailsEvent {
  /** The list is complete. Jails that it does not contain were deleted. */
  all?: boolean;
  jails: JailRow[];
}

export interface File {
  gid?: number;
  /** Permission bits with setuid, setgid and sticky, in octal. */
  mode: string;
  mtime?: string;
  name: string;
  path: string;
  size: number;
  /** Target of a symlink. */
  target?: string;
  type: "file" | "dir" | "symlink" | "fifo" | "socket" | "char" | "block";
  uid?: number;
}

export interface FileChanges {
  /** Number of changes by kind. */
  counts?: Record<string, number>;
  /** Changes, sorted by path. */
  list?: Change[];
  /** Number of changes that are not listed. GET /jails/{id}/fs/diff lists all changes of a jail, in
   * pages. */
  more?: number;
  /** Why the trees cannot be compared. */
  unknown?: string;
}

export interface FileEvent {
  dir?: boolean;
  /** overflow: some changes were lost. */
  op: "create" | "write" | "delete" | "rename" | "attrib" | "overflow";
  path: string;
}

export interface FilePage {
  /** Items of the page. */
  items: File[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Flow {
  /** The counts are lower bounds: earlier packets were not counted because the list was full. */
  at_least?: boolean;
  begin?: string;
  bytes_in?: number;
  bytes_out?: number;
  comm?: string;
  /** Direction of the first packet. */
  dir: "egress" | "ingress" | "loopback";
  /** Time of the last packet so far. */
  end?: string;
  /** Events of the flow. */
  events?: EventLink;
  /** The DNS name that the jail resolved to the remote address. */
  host?: string;
  local: string;
  packets_in?: number;
  packets_out?: number;
  pid?: number;
  proto: string;
  /** Number of refused connections. */
  refused?: number;
  remote: string;
  /** State of the connection. open: the protocol has no connections. */
  state?: "unanswered" | "refused" | "established" | "closed" | "reset" | "open";
  /** Number of connections; more than 1 if the ports were reused. */
  times?: number;
}

export interface Flows {
  /** Total number of flows. If there are too many to store, the list contains those with the most
   * bytes. */
  count?: number;
  /** Items of the page. */
  items: Flow[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Grant {
  /** Branches of the jail receive their own grant. */
  branches?: boolean;
  /** Who created the grant. */
  by?: string;
  capability?: string;
  created_at: string;
  /** file: as /run/secrets/NAME in the jail. inject: added to requests by the egress proxy. */
  delivery: "file" | "inject";
  expires_at?: string | null;
  /** For a jail that is a branch: the parent's grant that this one was derived from. */
  from?: string;
  /** With delivery inject: hosts to which the secret may be sent. */
  hosts?: string[];
  id: string;
  /** The jail that may use the secret. */
  jail?: string;
  run?: string;
  secret: string;
  session?: string;
}

export interface GrantSecret {
  /** Branches of the jail receive their own grant. */
  branches?: boolean;
  capability?: string;
  /** file (the default): as /run/secrets/NAME in the jail. inject: the egress proxy adds the secret
   * to requests, and it is never visible in the jail. */
  delivery?: "file" | "inject";
  /** When the grant expires. Default: never. */
  expires_at?: string | null;
  /** With delivery inject: hosts to which the secret may be sent, such as api.example.com. */
  hosts?: string[];
  /** The jail that may use the secret. */
  jail?: string;
  run?: string;
  session?: string;
}

export interface Health {
  status: "ok";
}

export interface Host {
  arch?: string;
  /** Model of the CPU. */
  cpu?: string;
  kernel?: string;
}

export interface Image {
  created_at: string;
  digest: string;
  files: number;
  /** Total size of its files, in bytes. */
  size: number;
  /** Archive entries that were not unpacked, with the reason. */
  skipped?: string[];
  /** References that resolved to this image. */
  sources: string[];
}

export interface ImagePage {
  /** Items of the page. */
  items: Image[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface ImportServer {
  /** A host directory against which the manifest's relative paths are resolved. */
  dir?: string;
  /** File name of the manifest, for error messages. */
  file?: string;
  /** Manifest of a capability that starts the server. Its id is the prefix of the ids of the imported
   * tools. */
  manifest: string;
}

export interface ImportedServer {
  /** Properties of the tools that a manifest cannot express. */
  lost?: string[];
  /** Manifests of the tools. Register them with POST /capabilities. */
  manifests: string[];
  /** Tools that cannot be imported, with the reason. */
  refused?: string[];
  /** Name that the server reports. */
  server: string;
}

export interface Jail {
  backend: string;
  command?: string[];
  /** Persistent problems that the state does not show. */
  conditions?: Condition[];
  created_at: string;
  /** The token or E2B key with which the jail was created, and whose quota it counts towards. */
  creator?: string;
  cwd?: string;
  /** Digest of the root filesystem. */
  digest?: string;
  /** Environment variables. Hidden from viewers. */
  env?: Record<string, string>;
  hostname?: string;
  id: string;
  labels?: Record<string, string>;
  limits?: Limits;
  links?: Record<string, string>;
  mounts?: Mount[];
  name?: string;
  /** The snapshot that was last taken of the jail, that it was made from, or that it was last rewound
   * to. */
  nearest?: string;
  network: "isolated" | "proxy" | "bridged" | "full";
  network_group?: string;
  /** Name of its node, in lists of all nodes. */
  node?: string;
  /** State of the recording. Only in the response for a single jail. */
  observation?: Observation;
  observe?: Observe;
  /** The snapshot that the jail was made from. */
  origin?: Origin;
  /** Why the jail failed, or stopped without a request. */
  reason?: string;
  rootfs?: Rootfs;
  runtime?: string;
  snapshots?: Snapshots;
  started_at?: string | null;
  state: "created" | "starting" | "running" | "paused" | "stopped" | "failed";
  stopped_at?: string | null;
  /** Current resource usage. Only in the response for a single jail that has processes. */
  usage?: Usage;
  user?: string;
  workspace?: Workspace;
}

export interface JailLimits {
  /** Requests and changes with their outcome, oldest first. */
  history?: LimitChange[];
  /** Limits in effect now. */
  limits?: Limits;
  /** Pass as 'after' to get the next page. */
  next?: number;
  /** The permanent limits, while temporary ones are in effect. */
  own?: Limits;
  /** When the temporary limits end. */
  until?: string | null;
}

export interface JailPage {
  /** Items of the page. */
  items: Jail[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface JailRow {
  backend: string;
  /** CPU usage, in number of CPUs. */
  cpu: number;
  /** Events recorded per second. */
  events_s: number;
  /** Number of events known to be lost since the daemon started. */
  gaps: number;
  id: string;
  memory_bytes: number;
  memory_limit?: number;
  name?: string;
  pids: number;
  runtime?: string;
  /** Bytes received per second. */
  rx_bytes_s: number;
  state: string;
  /** Bytes sent per second. */
  tx_bytes_s: number;
}

export interface Keep {
  /** Retain the last snapshot of each day, for this many days that have one. */
  daily?: number;
  /** Retain the last snapshot of each hour, for this many hours that have one. */
  hourly?: number;
  /** Number of most recent snapshots to retain. */
  last?: number;
}

export interface Latency {
  /** Histogram. Each bucket ends at twice its start. Empty buckets at both ends are omitted. */
  buckets: LatencyBucket[];
  max_ns?: number;
  min_ns?: number;
  /** Median, estimated from the buckets. */
  p50_ns?: number;
  /** 90th percentile, estimated from the buckets. */
  p90_ns?: number;
  /** 99th percentile, estimated from the buckets. */
  p99_ns?: number;
  total_ns?: number;
}

export interface LatencyBucket {
  count?: number;
  from_ns?: number;
}

export interface LimitChange {
  at?: string;
  /** The person who made, approved or refused the change. */
  by?: string;
  /** Number of the audit log entry. */
  entry?: number;
  from?: Bounds;
  n?: number;
  state?: "applied" | "refused" | "failed";
  to?: Bounds;
  /** When a temporary change ends. */
  until?: string | null;
  /** The requested limits. */
  want?: Bounds;
  why?: string;
}

export interface Limits {
  /** CPU weight. Default 256, at most 1024. */
  cpu_shares?: number;
  /** Disk space in MiB. Default 1024, at most 16384. */
  disk_mb?: number;
  /** Number of processes and threads, excluding those of the jail's init. Default 128, at most 4096. */
  max_pids?: number;
  /** Memory in MiB. Default 512, at most 8192. */
  memory_mb?: number;
}

export interface LineageJail {
  created_at: string;
  id: string;
  /** Jails made from deleted snapshots of the jail. */
  jails?: LineageJail[];
  name?: string;
  /** The snapshot that was last taken of the jail, that it was made from, or that it was last rewound
   * to. */
  nearest?: string;
  origin?: Origin;
  /** Snapshots of the jail, oldest first. */
  snapshots?: LineageSnapshot[];
  /** State of the jail, or gone if it was deleted and has snapshots. */
  state: string;
}

export interface LineageJailPage {
  /** Items of the page. */
  items: LineageJail[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface LineageSnapshot {
  created_at: string;
  id: string;
  /** Jails made from the snapshot, oldest first. */
  jails?: LineageJail[];
  /** The snapshot includes processes, not only files. */
  memory?: boolean;
  name?: string;
  /** The previous snapshot of the jail: the one last taken, made from or rewound to. */
  parent?: string;
  reason: string;
  trigger?: string;
}

export interface LogIn {
  code: string;
}

export interface Login {
  created_at: string;
  /** When the login expires. Each use extends it. */
  expires_at: string;
  id: string;
  name: string;
  role: "admin" | "operator" | "viewer";
  /** Time of the last use, rounded to an hour. */
  used_at: string;
}

export interface LoginLink {
  /** The code to send to POST /login. */
  code: string;
  expires_at: string;
  /** Login URLs. The first one works on this host, the others from elsewhere. */
  urls: string[];
}

export interface LoginPage {
  /** Items of the page. */
  items: Login[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Lost {
  /** Number of lost events, at least. */
  records?: number;
  /** The number is incomplete: the size of a gap is not known. */
  unknown?: boolean;
}

export interface MarketInstall {
  name: string;
  /** Version to install. Default: the newest. */
  version?: string;
}

export interface Me {
  /** The login, if the caller is a logged-in browser. */
  login?: string;
  name: string;
  role: "admin" | "operator" | "viewer";
}

export interface Message {
  at: string;
  /** in: to the agent. out: from the agent. */
  direction: "in" | "out";
  /** The sender. */
  from?: string;
  id: string;
  /** Data classes of the text. */
  labels?: string[];
  run?: string;
  /** Position in the session. */
  seq: number;
  session_id: string;
  /** The text. Personal and secret data is replaced by handles. */
  text: string;
}

export interface MessagePage {
  /** Items of the page. */
  items: Message[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Meta {
}

export interface Mount {
  /** A host path that the configuration allows to be mounted. */
  source: string;
  /** A path in the jail. */
  target: string;
  /** Mount writable. Default: read-only. */
  write?: boolean;
}

export interface MoveFile {
  from: string;
  /** Replace an existing file at 'to'. Otherwise an existing file is a conflict. */
  replace?: boolean;
  to: string;
}

export interface MoveJail {
  /** Name or ID of the node. Default: the node with the fewest jails. */
  node?: string;
}

export interface MoveRun {
  reason?: string;
  result?: string;
  state: "active" | "paused" | "done" | "failed" | "cancelled";
}

export interface MovedJail {
  id: string;
  /** Name of the node. */
  name: string;
  /** ID of the node that has the jail now. */
  node: string;
}

export interface Node {
  /** Where the daemons of the fleet reach it, as host:port. Empty: they do not. */
  address?: string;
  /** Architecture of its host, as in Go: amd64, arm64. */
  arch?: string;
  /** Model of the processor. Snapshots with processes can be used on hosts with the same one. */
  cpu?: string;
  cpus?: number;
  /** Size of the file system with its data directory. */
  disk_bytes?: number;
  /** It gets no new jails and sessions. */
  draining?: boolean;
  /** Rises when another process may have its sessions. Writes with an earlier epoch are rejected. */
  epoch: number;
  /** Free space there, some seconds ago. */
  free_disk_bytes?: number;
  /** Memory that can be used without swapping, some seconds ago. */
  free_memory_bytes?: number;
  /** It has no jails of its own, and passes requests to the other daemons. */
  front?: boolean;
  /** Instance ID of the daemon's data directory. */
  id: string;
  /** Number of its jails, up to a second ago. */
  jails?: number;
  /** Release of the kernel. */
  kernel?: string;
  /** Rest of its lease in milliseconds, by the clock of the database. Negative: the lease has
   * expired. */
  lease_ms: number;
  memory_bytes?: number;
  /** Name of its host. */
  name?: string;
  /** Number of active runs in these sessions. */
  runs: number;
  /** Whether it is the daemon that answers. */
  self: boolean;
  /** Number of sessions whose runs it executes. */
  sessions: number;
  /** lost: its lease expired, and its sessions were distributed among the other daemons. */
  state: "up" | "lost";
  /** Size of the newest snapshots of its runs that are not in the object store yet. If the node is
   * lost, these runs continue with earlier files. */
  unshipped_bytes?: number;
  version?: string;
}

export interface NodePage {
  /** Items of the page. */
  items: Node[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface NodeToken {
  /** Address of the daemon that issues the certificate. */
  address: string;
  /** SHA-256 of the certificate of the fleet's authority, by which the daemon that joins recognizes
   * the fleet. */
  authority: string;
  /** Valid once, for ten minutes. */
  token: string;
}

export interface Observation {
  log?: EventLog;
  /** Observers by name: kernel, network, gvisor, ptrace. Empty when the jail does not run. */
  sources?: Record<string, Source>;
}

export interface Observe {
  /** Names of system calls to record in addition to those that syscalls selects. */
  allow?: string[];
  /** Whether to record file operations. */
  files?: "all" | "off";
  /** Names of system calls not to record. It takes precedence over syscalls and allow. */
  ignore?: string[];
  /** Record each packet, totals for each connection (flows), or neither. */
  network?: "packets" | "flows" | "off";
  /** throttle: slow down the jail so that no event is lost. count: do not slow down the jail; lost
   * events are counted in a gap. */
  on_overload?: "throttle" | "count";
  /** Number of bytes of each packet to keep for GET …/network/pcap. */
  packet_bytes?: number;
  /** Sampling of the remaining system calls: record one of this many. */
  sample?: number;
  /** Which system calls to record. security: calls that change privileges, namespaces or mounts, run
   * programs, or act on other processes. */
  syscalls?: "all" | "security" | "off";
}

export interface Offer {
  description?: string;
  digest: string;
  /** The installed version of the bundle from the same publisher. */
  installed?: string;
  market: string;
  name: string;
  publisher: string;
  tier: string;
  version: string;
}

export interface OfferPage {
  /** Items of the page. */
  items: Offer[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface OpenSession {
  /** Default agent of the session's runs. */
  agent?: RunAgent;
  /** Data classes that the session's agents may read in plain text. Other classified data is replaced
   * by handles. */
  allow?: string[];
  /** Budget shared by all runs of the session, by dimension. */
  budget?: Record<string, number>;
  /** Name of a group. Sessions in the same group are siblings. Default: no group. */
  group?: string;
  /** 1 to 128 letters, digits and ._:-; generated if omitted. */
  id?: string;
  /** The jail for all runs of the session. Default: each run gets its own jail. */
  jail?: string;
  labels?: Record<string, string>;
  /** Display name, also used by siblings to address the session. */
  name?: string;
}

export interface Origin {
  /** The source jail of the snapshot. */
  jail: string;
  /** Number of the jail among those created by the same request, from 1. */
  number: number;
  snapshot: string;
}

export interface Output {
  /** Output bytes, in base64. */
  data: string;
  /** Number of bytes before offset that were discarded. */
  lost?: number;
  /** Offset of the first byte of data. Offsets count stdout and stderr together. */
  offset: number;
  stream: "stdout" | "stderr";
}

export interface Overrides {
  /** Default: the jail's id. */
  hostname?: string;
  /** Rejected if true: a connection cannot be shared between a jail and its branches. Rewind the jail
   * instead. */
  keep_connections?: boolean;
  labels?: Record<string, string>;
  limits?: Limits;
  /** Display name. If several jails are created, a number is appended. */
  name?: string;
  network?: "isolated" | "proxy" | "bridged" | "full";
}

export interface Past {
  /** The instant, if it was given as a time. */
  at?: string | null;
  /** The snapshot that the jail was made from. It may have been deleted. */
  base?: string;
  files: ChangedFiles;
  processes: Processes;
  /** The nearest snapshot at or before the instant that no rewind has undone. A branch from this
   * instant starts with it. */
  snapshot?: Snapshot;
}

export interface Policy {
  /** The agent whose rules apply when a request names no agent. */
  agent?: string;
  /** Remembered answers to approval requests. */
  answers?: PolicyRule[];
  /** The highest level that the jail can be raised to. Default: the level. */
  ceiling?: number;
  /** Permission files (opencode.json, .jsonc; later files take precedence over earlier ones) and
   * decision frameworks (AGENTS.md). */
  files?: PolicyFile[];
  /** The home directory in the jail, which replaces ~ in patterns. Default: /root. */
  home?: string;
  /** Autonomy level: 1 guided (the default), 2 intelligent, 3 full. */
  level?: number;
  /** Which of several matching patterns takes precedence. Default: the convention that the files were
   * written for. */
  match?: "longest" | "last";
  /** Who must approve an action. The first match applies; without a match the tier is standard. */
  tiers?: PolicyTier[];
  /** The project directory in the jail, to which file patterns are relative. */
  workspace?: string;
}

export interface PolicyAdvice {
  file: string;
  line: number;
  text: string;
}

export interface PolicyFile {
  name: string;
  /** Content of the file. */
  text: string;
}

export interface PolicyFinding {
  file: string;
  kind: string;
  line?: number;
  message: string;
  remedy?: string;
}

export interface PolicyLevel {
  /** Autonomy level: 1 guided, 2 intelligent, 3 full. */
  level: number;
}

export interface PolicyRule {
  /** A tool name or pattern. */
  action: string;
  effect: "allow" | "ask" | "deny";
  /** The policy file of the rule. */
  file?: string;
  /** The line in the file. */
  line?: number;
  /** Pattern for the resource. */
  pattern: string;
}

export interface PolicyState {
  /** Guidelines of decision frameworks that are not rules. The agent can read them. */
  advice?: PolicyAdvice[];
  ceiling?: number;
  /** Lint findings: parts of the files that have another effect than they seem to have. */
  findings?: PolicyFinding[];
  level?: number;
  /** Which of several matching patterns takes precedence. */
  match?: string;
  policy?: Policy;
  /** Why this precedence was chosen. */
  why?: string;
}

export interface PolicyTier {
  /** A tool name or pattern. */
  action: string;
  /** Pattern for the resource. */
  pattern: string;
  tier: "preapproved" | "standard" | "elevated";
}

export interface Prepared {
  digest: string;
  /** The requested reference and the reference to which it was resolved. */
  source: string;
}

export interface Probe {
  /** What the probe found. */
  detail?: string;
  name: string;
  /** required: no jail runs on this host without it. recommended: jails run without it, but
   * Glasshouse lacks a function or is weaker. optional: for special uses, or an alternative. */
  need?: "required" | "recommended" | "optional";
  /** What Glasshouse uses the mechanism for. */
  purpose?: string;
  /** Why it is not ok. */
  reason?: string;
  /** How to enable the mechanism. */
  remedy?: string;
  /** unknown: the probe was inconclusive. warning: the operator should act. */
  status: "ok" | "unsupported" | "unknown" | "warning";
}

export interface ProbePage {
  /** Items of the page. */
  items: Probe[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Problem {
  /** What failed and why. */
  detail?: string;
  /** For an internal error: the id under which the daemon's log has details. */
  error_id?: string;
  /** The request field or query parameter that is invalid. */
  field?: string;
  /** How the caller can resolve the problem. */
  remedy?: string;
  /** The HTTP status. */
  status: number;
  /** Short description of the problem type. */
  title: string;
  /** URI of the problem type, such as /problems/not-found. */
  type: string;
}

export interface Process {
  argv?: string[];
  began?: string;
  /** Start time. PIDs are reused, so pid and begin_ns together identify a process. */
  begin_ns?: number;
  children?: number[];
  /** Command name. */
  comm?: string;
  /** exe, argv or cwd is truncated. */
  cut?: boolean;
  cwd?: string;
  /** Depth in the process tree. */
  depth?: number;
  /** Run time in nanoseconds. */
  duration_ns?: number;
  ended?: string | null;
  /** Events of the process. */
  events?: EventLink;
  exe?: string;
  /** The last programs that the process executed, the current one last. */
  execs?: Program[];
  /** Total number of programs that the process executed. */
  execs_count?: number;
  /** The process existed when observation began. */
  existing?: boolean;
  exit_code?: number | null;
  gid?: number;
  /** PID on the host. */
  host_pid?: number;
  /** PID inside the jail. */
  pid: number;
  ppid?: number;
  /** Peak resident set size, in bytes. */
  rss?: number;
  /** The signal that ended the process. */
  signal?: string;
  /** lost: the process ended, and its exit was not observed. */
  state: "running" | "exited" | "killed" | "lost";
  /** System CPU time in nanoseconds, when the process ended. */
  system_ns?: number;
  threads?: number;
  uid?: number;
  /** User CPU time in nanoseconds, when the process ended. */
  user_ns?: number;
}

export interface ProcessChanges {
  /** Processes that are on both sides and differ. */
  changed?: ChangedProcess[];
  /** Connections that are only on the first side. */
  closed?: Connection[];
  /** Processes that are only on the first side. */
  ended?: ComparedProcess[];
  /** Number of connections that are not listed. */
  more?: number;
  /** Connections that are only on the second side. */
  opened?: Connection[];
  /** Number of processes that are on both sides and equal. */
  same?: number;
  /** Processes that are only on the second side. */
  started?: ComparedProcess[];
  /** Why the processes cannot be compared. */
  unknown?: string;
}

export interface Processes {
  /** Total number of processes, including those that ended. */
  count?: number;
  /** Number of ended processes that are no longer stored. */
  forgotten?: number;
  /** Processes, each after its parent, siblings in order of creation. */
  items: Process[];
  /** Process events that were lost. */
  lost?: Lost;
  /** Number of processes that are not listed because too many existed at the same time. */
  untold?: number;
}

export interface Profile {
  /** System calls, most frequent first. */
  calls: CallProfile[];
  /** Number of system calls. */
  count: number;
  /** Number of calls that seccomp denied before they were executed. */
  denied?: number;
  /** Errors, most frequent first. */
  errors: ErrorCount[];
  /** Number of calls that returned an error. */
  failed?: number;
  /** Failures by system call and error: denied first, then refused, then others. */
  failures: CallFailure[];
  /** Number of failures that the list does not include. */
  failures_more?: number;
  /** Number of distinct system calls. */
  kinds?: Estimate;
  latency: Latency;
  /** System call events that were lost. */
  lost?: Lost;
  /** Number of calls that the list does not include. */
  more?: number;
  /** Processes with the most calls first, as many as requested. */
  processes: CallsOfOne[];
  /** Number of calls that failed for lack of permission. */
  refused?: number;
  /** Total duration, in nanoseconds. */
  total_ns?: number;
  /** Number of calls that did not return. */
  unfinished?: number;
}

export interface Program {
  argv?: string[];
  exe?: string;
  seq?: number;
  time?: string;
}

export interface Publisher {
  keys?: PublisherKey[];
  name: string;
  /** The highest tier that the publisher's bundles may have. */
  tier: "informational" | "read-only" | "standard" | "elevated";
}

export interface PublisherKey {
  added: string;
  id: string;
  /** The public key, in minisign format. */
  key: string;
  /** Why trust in the key was revoked. */
  reason?: string;
  /** When the key was replaced by another one. */
  retired?: string | null;
  /** When trust in the key was revoked. */
  revoked?: string | null;
}

export interface PublisherPage {
  /** Items of the page. */
  items: Publisher[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface PushBrowser {
  created_at: string;
  id: string;
  /** The login of the browser. */
  login: string;
  /** Name of the logged-in user. */
  name: string;
  /** Host name of the push service. */
  service: string;
}

export interface PushBrowserPage {
  /** Items of the page. */
  items: PushBrowser[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface PushKey {
  /** The applicationServerKey, in base64url. */
  key: string;
}

export interface PutSecret {
  /** The value in base64, if it is not text. */
  base64?: string | null;
  /** Reference to a value stored elsewhere: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY. */
  reference?: string;
  /** The value. The daemon stores it encrypted. */
  value?: string | null;
}

export interface Question {
  /** A tool name: bash, edit, read, webfetch, connect, … */
  action: string;
  /** The agent that performs the action. */
  agent?: string;
  /** Additional attributes of the action. */
  attributes?: Record<string, string>;
  /** The object of the action: a command line, path, URL or host:port. */
  resource?: string;
}

export interface Quota {
  /** Sum of the disk limits of the jails, in bytes. 0 is no limit. Snapshots do not count. */
  disk_bytes?: number;
  /** Number of jails. 0 is no limit. */
  jails?: number;
  /** Sum of the memory limits of the jails that are not stopped, in bytes. 0 is no limit. */
  memory_bytes?: number;
}

export interface Received {
  message_id: string;
  /** The run that was started. */
  run?: string;
  session_id: string;
}

export interface Register {
  /** Request approval again for a version that was refused or revoked. */
  again?: boolean;
  /** A host directory against which the manifest's relative paths are resolved. The named files are
   * copied. */
  dir?: string;
  /** File name of the manifest, for error messages. */
  file?: string;
  /** The manifest: (capability …) forms, or the equivalent JSON. */
  manifest: string;
}

export interface Replayed {
  /** Output of the repeated call. */
  output: unknown;
  /** The output equals the recorded output. */
  same: boolean;
}

export interface ResumeRun {
  /** Create this many new runs from the checkpoint and leave this run unchanged. */
  branch?: number;
  /** New limits, by dimension. */
  budget?: Record<string, number>;
  /** Checkpoint to restore. Default: a paused run continues where it was paused; other runs use their
   * last checkpoint. */
  checkpoint?: string;
}

export interface Resumed {
  runs: Run[];
}

export interface RevokeCapability {
  reason?: string;
  /** Version to revoke. Default: the version that calls use. */
  version?: string;
}

export interface RevokeTrust {
  /** Digest of a bundle that is no longer trusted. */
  digest?: string;
  /** A public key. Bundles that it signed are no longer trusted. */
  key?: string;
  reason?: string;
}

export interface Rewind {
  /** Go back this number of snapshots in the history of the jail. The newest one counts if the jail
   * may have changed since. Changes are saved first, in a snapshot with the reason before and the
   * trigger undo. */
  back?: number;
  /** With back: do not save the changes. */
  discard?: boolean;
  /** Keep the external connections on which the program has neither read nor written since the
   * snapshot. All other external connections are closed. Default: snapshots.keep_connections of the
   * jail. */
  keep_connections?: boolean | null;
  /** A snapshot of this jail or of an ancestor. */
  snapshot?: string;
}

export interface Rootfs {
  /** A Debian suite: bookworm or trixie. */
  debian?: string;
  /** A directory of the host. */
  dir?: string;
  /** The host's own system directories, read-only. Backend bwrap only. */
  host?: boolean;
  /** A profile of the flake: base, python, node or build. */
  nix?: string;
  /** An image reference, an OCI layout directory or an image tar. */
  oci?: string;
  /** A user to add to the tree, with uid 1000 and a home directory. Not available with dir. */
  user?: string;
}

export interface RotateKey {
  /** The new public key. */
  key: string;
  /** The public key to replace. Its existing signatures remain valid. */
  old: string;
}

export interface Run {
  agent: RunAgent;
  branch?: number;
  budget: RunBudget;
  /** The last checkpoint. */
  checkpoint?: string;
  created: string;
  ended?: string | null;
  error?: string;
  goal: string;
  id: string;
  jail?: string;
  /** When a scheduled run starts. */
  next_run_at?: string | null;
  /** The run that this run was branched from. */
  of?: string;
  parent?: string;
  /** Explanation of the state. */
  reason?: string;
  /** The newest checkpoint whose snapshot is in the object store. If the host is lost, another daemon
   * continues the run from it. */
  remote_checkpoint?: string;
  /** How often the agent was restarted. */
  restarts?: number;
  /** The result that the agent reported. */
  result?: string;
  schedule?: string;
  session_id: string;
  started?: string | null;
  /** scheduled: waits for its start time. paused: see why. */
  state: "scheduled" | "active" | "paused" | "done" | "failed" | "cancelled";
  /** Number of steps so far. */
  steps: number;
  /** The completion condition. */
  until?: unknown;
  /** Why the run is paused. */
  why?: "approval" | "checkpoint" | "schedule" | "event" | "budget" | "watchdog" | "operator";
}

export interface RunAction {
  began: string;
  ended?: string | null;
  /** Number of the audit log entry that records the step. */
  entry?: number;
  input?: unknown;
  /** Idempotency key of the step. */
  key: string;
  kind: string;
  /** Data class of the output. */
  label?: string;
  /** Step number. */
  n: number;
  name: string;
  output?: unknown;
  state: "begun" | "done" | "failed" | "refused";
}

export interface RunActionPage {
  /** Items of the page. */
  items: RunAction[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface RunAgent {
  /** For preset shell: the command to run. For other presets: additional arguments. */
  argv?: string[];
  /** Additional environment variables. */
  env?: Record<string, string>;
  /** The jail to create for the run. */
  jail?: CreateJail;
  /** Keep the created jail when the run ends. */
  keep?: boolean;
  /** Autonomy level: 1 guided, 2 intelligent, 3 full. */
  level?: number;
  /** The model. Default: the daemon's default model. */
  model?: string;
  /** The agent name for which the permission files are evaluated. Default: policy.agent of the jail,
   * or the default agent of the files. */
  policy_agent?: string;
  /** builtin, claude, codex, opencode, gemini or shell. Default: the daemon's default preset. */
  preset?: string;
  /** How the daemon communicates with the agent. run (the default): command line. acp: Agent Client
   * Protocol. */
  protocol?: "run" | "acp";
  /** Automatic checkpoints. Default: the daemon's configuration. */
  saves?: RunSaves;
  /** Skills of the agent. The capabilities of the skills become its tools. */
  skills?: string[];
  /** What the agent process runs in. Default: the daemon's default spawner. */
  spawner?: "jail" | "bwrap" | "process";
  /** Time limits. Default: those of the autonomy level. */
  timers?: RunTimers;
}

export interface RunBudget {
  /** Limits by dimension. */
  limits: Record<string, number>;
  /** Consumption by dimension. */
  "run-budget-consumed": Record<string, number>;
  /** Remaining budget by dimension. */
  "run-budget-remaining": Record<string, number>;
}

export interface RunEvent {
  at: string;
  /** Details, which depend on the kind. */
  body?: unknown;
  kind: string;
  run?: string;
  /** Number of the event. */
  seq: number;
  session_id: string;
}

export interface RunPage {
  /** Items of the page. */
  items: Run[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface RunSaves {
  /** Take a checkpoint after this many milliseconds, at least 1000. */
  every_ms?: number;
  /** Take a checkpoint after this many steps. */
  steps?: number;
}

export interface RunTimers {
  /** Time without activity, in milliseconds. */
  idle_ms?: number;
  /** Time for one step, in milliseconds. */
  step_ms?: number;
  /** Total time in milliseconds, excluding the time in which the run waits for people. */
  wall_ms?: number;
}

export interface Schedule {
  created: string;
  /** Why the last due time failed to start a run. Cleared by the next success. */
  error?: string;
  /** Number of due times that failed after all retries. */
  failed: number;
  /** Number of due times that started a run. */
  fired: number;
  goal: string;
  id: string;
  /** Maximum delay of each due time, in milliseconds. */
  jitter_ms?: number;
  /** The due time that last started a run. */
  last?: string | null;
  /** Number of due times that were missed and not made up for. */
  left_out: number;
  /** Policy for missed due times: skip, once or all. */
  missed: string;
  /** The next ten due times. Only in the response for a single schedule. */
  next?: string[];
  /** The next due time. */
  next_run_at?: string | null;
  /** Policy for overlapping runs: skip, queue or allow. */
  overlap: string;
  paused?: boolean;
  /** The cron expression. */
  schedule?: string;
  session_id: string;
  /** Number of due times that were skipped because the previous run was still active. */
  skipped: number;
  time_zone?: string;
  /** A due time that is queued until the previous run ends. */
  waiting?: string | null;
}

export interface SchedulePage {
  /** Items of the page. */
  items: Schedule[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Secret {
  created_at: string;
  grants: Grant[];
  name: string;
  /** The E2B key that owns the secret. It is part of the secret's name. Such a secret cannot be
   * granted. */
  owner?: string;
  /** Path of the secret at the provider. */
  path?: string;
  /** Where the value is stored; local is this daemon. */
  provider: string;
  updated_at: string;
  /** When the secret was last used. */
  used_at?: string | null;
}

export interface SecretPage {
  /** Items of the page. */
  items: Secret[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface SendMessage {
  /** Data classes of the text. */
  labels?: string[];
  /** Its session_id is used if session_id is omitted. */
  meta?: Meta;
  session_id?: string;
  text: string;
}

export interface Service {
  bytes_in?: number;
  bytes_out?: number;
  connections?: number;
  /** Direction of the connections. */
  dir: "egress" | "ingress" | "loopback";
  /** Events of the service. */
  events?: EventLink;
  packets_in?: number;
  packets_out?: number;
  port?: number;
  proto: string;
  /** Number of refused connections. */
  refused?: number;
  /** Number of connections without a response. */
  unanswered?: number;
}

export interface Session {
  agent?: RunAgent;
  budget?: RunBudget;
  closed?: string | null;
  created: string;
  group?: string;
  id: string;
  jail?: string;
  labels?: Record<string, string>;
  name?: string;
  state: "open" | "closed";
}

export interface SessionPage {
  /** Items of the page. */
  items: Session[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Signal {
  /** Signal name, such as INT, TERM or KILL, or a number. */
  signal: string;
}

export interface Size {
  cols: number;
  rows: number;
}

export interface Skill {
  /** The bundle that contains the skill. */
  bundle?: string;
  capabilities: string[];
  category?: string;
  created: string;
  description?: string;
  effects?: string[];
  emoji?: string;
  name: string;
  /** Each use requires approval. */
  per_use?: boolean;
  /** Why the skill is not given to agents now. */
  refused?: string;
  secrets?: string[];
  /** The text that an agent reads. Only in the response for a single skill. */
  text?: string;
  tier?: string;
  /** Tool definitions of the skill's capabilities. Only in the response for a single skill. */
  tools?: SkillTool[];
  version?: string;
}

export interface SkillPage {
  /** Items of the page. */
  items: Skill[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface SkillTool {
  /** The capability, as id or id@version. */
  capability: string;
  description: string;
  input_schema: unknown;
  name: string;
}

export interface Snapshot {
  backend: string;
  /** Number of frozen copies that are ready to become branches. */
  copies?: number;
  created_at: string;
  /** Digest of the process images. */
  digest?: string;
  /** Bytes that the jail had written to disk. */
  disk_bytes?: number;
  /** The host on which the snapshot was taken. */
  host?: Host;
  id: string;
  /** The source jail of the snapshot. It may have been deleted. */
  jail: string;
  jail_name?: string;
  labels?: Record<string, string>;
  /** How the writable layer of a running jail was saved. */
  layering?: "copied" | "stacked";
  limits?: Limits;
  links?: Record<string, string>;
  /** The snapshot includes processes, not only files. */
  memory?: boolean;
  /** Memory usage of the jail. */
  memory_bytes?: number;
  name?: string;
  network: "isolated" | "proxy" | "bridged" | "full";
  /** The previous snapshot of the jail: the one last taken, made from or rewound to. It may have been
   * deleted. */
  parent?: string;
  /** How long the jail was paused, in microseconds. */
  paused_us?: number;
  /** Number of processes and threads. */
  pids?: number;
  /** Why the snapshot was taken. asked: on request. every: by interval. before, after: by a command.
   * branched: the jail was branched. imported: from another host. copied: a copy of a snapshot of
   * another node of the fleet, which is not listed. moved: for a move of the jail to another node.
   * checkpoint: for an automatic checkpoint of a run. */
  reason: "asked" | "every" | "before" | "after" | "branched" | "imported" | "copied" | "moved" | "checkpoint";
  runtime?: string;
  /** Sequence number of the last event in the jail's log. */
  seq?: number;
  /** For an automatic snapshot: the command that triggered it. */
  trigger?: string;
  /** Disk usage. Only in the response for a single snapshot, or with usage=true. */
  usage?: SnapshotUsage;
}

export interface SnapshotPage {
  /** Items of the page. */
  items: Snapshot[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface SnapshotUsage {
  /** Bytes that deleting the snapshot would free. */
  own_bytes?: number;
  /** Bytes shared with jails and other snapshots. */
  shared_bytes?: number;
}

export interface Snapshots {
  /** exec: take a snapshot after each command that a client requested, unless the jail cannot have
   * changed. */
  after?: "exec";
  /** Take a snapshot before matching commands: exec: and words, such as exec:git push. The first word
   * is the program name; the others must occur among its arguments in this order. * matches
   * anything. */
  before?: string[];
  /** Interval such as 10m, at least 10s. A snapshot is skipped if the jail cannot have changed since
   * the last one. */
  every?: string;
  /** Retention of automatic snapshots. Default: last 5, hourly 24, daily 7. */
  keep?: Keep;
  /** Default of keep_connections when the jail is rewound: keep external connections where possible. */
  keep_connections?: boolean;
}

export interface Source {
  /** Why the observation is incomplete. */
  err?: string;
  /** Events that were lost. A gap event counts them. */
  lost?: number;
  /** Events recorded since the observer started. */
  seen?: number;
  /** How often the jail was throttled so that no event is lost. */
  throttled?: number;
}

export interface Spares {
  backend: string;
  /** Digest of the root filesystem. */
  digest?: string;
  /** Number of jails being created. */
  making: number;
  network: string;
  /** Number of jails ready for use. */
  ready: number;
  runtime?: string;
  /** When a jail of this configuration was last requested. */
  used_at: string;
}

export interface StartRun {
  /** The agent. Default: the session's agent, or the daemon's default. */
  agent?: RunAgent;
  /** Limits by dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes,
   * sandbox-cpu-ms, storage-bytes. */
  budget?: Record<string, number>;
  /** The goal, in natural language. */
  goal: string;
  /** Maximum delay of each due time, in milliseconds. It spreads schedules that are due at the same
   * time. */
  jitter_ms?: number;
  /** Its session_id is used if session_id is omitted. */
  meta?: Meta;
  /** Policy for due times that passed while the scheduler was not running: skip them, run once, or
   * run all. Default: once. */
  missed?: "skip" | "once" | "all";
  /** Without a schedule: the time of the run. With a schedule: the earliest time of the first run. */
  next_run_at?: string | null;
  /** Action when a limit is reached. pause (the default): the run can be resumed with a larger
   * budget. */
  on_exceed?: "pause" | "stop";
  /** Policy for a due time at which the previous run is still active: skip it, queue it, or allow
   * both runs. Default: skip. */
  overlap?: "skip" | "queue" | "allow";
  /** Parent run. This run consumes the parent's budget and is cancelled with it. */
  parent?: string;
  /** Cron expression with five fields, or six with leading seconds; or @hourly and similar; or @every
   * 10m. */
  schedule?: string;
  /** The session, which is created if it does not exist. Default: a new session. */
  session_id?: string;
  /** Time zone of the schedule. Default: UTC. */
  time_zone?: string;
  /** Completion condition: "manual", {"capability": id}, {"and": […]}, {"or": […]}, {"not": …}
   * or {"rtfs": expression over the run}. Default: the agent reports completion. */
  until?: unknown;
}

export interface StopJail {
  /** Milliseconds between SIGTERM and SIGKILL. Default: 10000. 0: SIGKILL at once. */
  grace_ms?: number | null;
}

export interface Storage {
  /** When the usage was measured. The result is cached. */
  at: string;
  /** Free space of that file system available to the daemon. */
  free_bytes: number;
  /** Parts of the data directory, largest first. */
  parts: StoragePart[];
  /** The warm pool: jails created in advance. */
  pool: Spares[];
  /** Target number of spare jails for each configuration. 0 disables the pool. */
  pool_size: number;
  /** Size of the file system that contains the data directory. */
  total_bytes: number;
  /** Limits that are exceeded, and low free space, each with a remedy. */
  warnings?: string[];
}

export interface StoragePart {
  /** Disk usage in bytes. */
  bytes: number;
  files: number;
  name: "events" | "jails" | "snapshots" | "images" | "database" | "capabilities" | "agents" | "other";
}

export interface StoredLog {
  /** Time of the newest part of the copy. */
  at: string;
  /** Size of the copy, compressed. */
  bytes: number;
  /** Number of the newest entry of the copy. */
  entries: number;
  /** ID of the node. */
  node: string;
}

export interface StoredLogPage {
  /** Items of the page. */
  items: StoredLog[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface SubscribeBrowser {
  /** The https URL of the subscription at the browser's push service. */
  endpoint: string;
  /** Ignored. The push service reports an expired subscription. */
  expirationTime?: number | null;
  keys: BrowserKeys;
}

export interface TakeCheckpoint {
  /** Pause the run until it is resumed. */
  pause?: boolean;
  reason?: string;
}

export interface TakeSnapshot {
  labels?: Record<string, string>;
  /** How the writable layer is saved. copied: it is copied, and the jail keeps its own. stacked: the
   * jail continues on a new layer above it, and its external connections are closed. Default: copied
   * where that is fast. */
  layering?: "copied" | "stacked";
  /** Name of the snapshot, which no other snapshot has. */
  name?: string;
  /** Stop the jail after the snapshot. */
  stop?: boolean;
}

export interface TerminalControl {
  /** New size of the terminal. */
  resize?: Size;
  /** Signal to send to the command's process group. */
  signal?: string;
}

export interface TerminalEvent {
  /** Error of a control frame or of the terminal. */
  error?: Problem;
  /** First frame: the command on this terminal. Pass its id as exec= to reconnect. */
  exec?: Exec;
  /** Last frame: how the command ended. */
  exit?: Exec;
  /** Number of output bytes before the next frame that were discarded. */
  lost?: number;
}

export interface Timeline {
  /** Length of a bucket in milliseconds, a power of two. */
  bucket_ms: number;
  counts: TimelineCounts;
  /** Time of the first matching event. Omitted if no event matches. */
  first?: string | null;
  /** Start of the first bucket. */
  from: string;
  /** The processes with the most events, in descending order. */
  lanes: TimelineLane[];
  /** Time of the last matching event. */
  last?: string | null;
  /** Number of events that match the filter, at any time. */
  total: number;
}

export interface TimelineCounts {
  file: number[];
  net: number[];
  /** Gap, usage and lineage events. */
  other: number[];
  proc: number[];
  syscall: number[];
}

export interface TimelineLane {
  comm: string;
  counts: TimelineCounts;
  /** PID inside the jail, or 0 if the process is unknown. */
  pid: number;
  total: number;
}

export interface Times {
  /** The due times. */
  times: string[];
}

export interface Token {
  created_at: string;
  expires_at?: string | null;
  id: string;
  name: string;
  quota?: Quota;
  role: "admin" | "operator" | "viewer" | "agent";
  /** The secret. Only in the response to the token's creation. */
  token?: string;
  /** What the jails that were created with the token demand now, on all nodes of the fleet. Only in
   * lists. */
  used?: Demand;
}

export interface TokenPage {
  /** Items of the page. */
  items: Token[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Traffic {
  bytes_in?: number;
  bytes_out?: number;
  packets_in?: number;
  packets_out?: number;
}

export interface TrailEntry {
  action: string;
  agent?: string;
  allowed: boolean;
  at: string;
  by?: string;
  /** The entry as a line of text. */
  line: string;
  /** The Linux kernel reported the action; the agent did not. */
  observed?: boolean;
  reason?: string;
  resource: string;
  rule: PolicyRule;
  /** Number of the audit log entry. */
  seq: number;
  tag: string;
}

export interface TrailEntryPage {
  /** Items of the page. */
  items: TrailEntry[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface TrustCapability {
  /** Digest of the version to trust, as GET /capabilities/{id} returns it. */
  digest: string;
  /** true to trust the version, false to revoke the trust. */
  trust?: boolean;
  version?: string;
}

export interface UpdateNode {
  /** Whether it gets no new jails and sessions. Those that it has stay. */
  draining?: boolean | null;
}

export interface Usage {
  /** CPU time since the start, in milliseconds. */
  cpu_ms?: number;
  /** Bytes written by the jail. */
  disk_bytes?: number;
  disk_limit_bytes?: number;
  max_pids?: number;
  /** Memory usage in bytes. */
  memory_bytes?: number;
  /** Peak memory usage in bytes. */
  memory_peak_bytes?: number;
  /** Fields that this backend cannot measure. */
  not_measured?: string[];
  /** Number of processes that the kernel's OOM killer ended. */
  oom_kills?: number;
  /** Number of processes and threads, excluding those of the jail's init. */
  pids?: number;
  /** Bytes received. */
  rx_bytes?: number;
  /** Bytes sent. */
  tx_bytes?: number;
}

export interface UsageChanges {
  from?: ComparedUsage;
  to?: ComparedUsage;
}

export interface Verdict {
  allow: boolean;
  /** The person who answered. */
  by?: string;
  decision: Decision;
  /** Number of the audit log entry. */
  entry: number;
  /** The resource that is allowed instead of the requested one. */
  instead?: string;
  /** AUTONOMOUS: the rules allowed it. WHITELISTED: the list of pre-approved actions allowed it.
   * APPROVED: a person approved it. DENIED: it was denied. */
  tag: "AUTONOMOUS" | "WHITELISTED" | "APPROVED" | "DENIED";
}

export interface Verdicts {
  allowed: boolean;
  /** Number of requests. */
  count: number;
  /** Explanation of the newest decision. */
  detail?: string;
  /** Number of the audit log entry of the newest decision. */
  entry: number;
  first: string;
  /** The kind of request: name, DNS resolution; connect, a connection; request, an HTTP request;
   * packet, a packet that the proxy does not carry. */
  kind: "name" | "connect" | "request" | "packet";
  last: string;
  port?: number;
  /** Reason of a denial or abort, as a keyword: host, port, method, path, denied, rate, bytes,
   * address, … */
  reason?: string;
  /** Bytes received by the jail. */
  received?: number;
  /** The rule that decided. */
  rule?: string;
  /** Bytes sent by the jail. */
  sent?: number;
}

export interface Version {
  commit?: string;
  go: string;
  /** Release of the host's kernel. */
  kernel?: string;
  started_at: string;
  version: string;
}

export interface Warm {
  /** Number of frozen copies to keep ready. */
  count: number;
}

export interface Warmed {
  /** Number of frozen copies that are ready. */
  copies: number;
}

export interface Who {
  comm: string;
  pid: number;
}

export interface WitnessedLog {
  /** When the checkpoint was received. */
  at: string;
  /** Newest signed checkpoint that contains all earlier ones. */
  checkpoint: string;
  /** How the log contradicts the checkpoint; absent if it does not. */
  conflict?: ChainConflict;
  /** Number of entries that the checkpoint covers. */
  entries: number;
  /** Public key of the log. */
  key: string;
  /** ID of the node. */
  node: string;
}

export interface WitnessedLogPage {
  /** Items of the page. */
  items: WitnessedLog[];
  /** Pass as 'after' to get the items that follow. Absent on the last page. */
  next?: string;
}

export interface Workspace {
  /** A host directory. */
  source: string;
  /** Default: the same path as source. */
  target?: string;
}
