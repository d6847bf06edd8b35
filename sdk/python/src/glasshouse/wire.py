# Made by `make sdk` from the OpenAPI document. Do not edit.
"""The request and response types of the API, as dictionaries of JSON values.

A field that a response lacks is not in the dictionary: use get(). Unknown fields of later
versions of the daemon are kept.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict


class AddPublisher(TypedDict):
    # Public key, in minisign format.
    key: str
    # The highest tier that the publisher's bundles may have.
    tier: Literal["informational", "read-only", "standard", "elevated"]


class AddSkillOptions(TypedDict, total=False):
    # File name, for error messages.
    file: str


class AddSkill(AddSkillOptions):
    # Text of the skill document.
    text: str


class AnswerApprovalOptions(TypedDict, total=False):
    # The reason, which is shown to the agent.
    reason: str
    # With answer modify: the resource to allow instead of the requested one.
    resource: str
    # How long the answer applies. once (the default): this request. session: until the jail
    # or the daemon stops. always: it is added to the jail's policy.
    scope: Literal["once", "session", "always"]
    # The confirmation phrase, if one is required.
    typed: str


class AnswerApproval(AnswerApprovalOptions):
    answer: Literal["allow", "deny", "modify"]


class ApprovalOptions(TypedDict, total=False):
    # The answer, if the request was answered.
    answer: ApprovalAnswer
    # With last=N: the last N events of the jail before the request, oldest first.
    # docs/reference/events.md describes them.
    before: list[Any]
    # Additional information for the decision, such as preceding actions.
    context: str
    # Further facts about the action.
    details: list[str]
    # Unified diff (diff -u) of the proposed change, against the file at the time of the
    # request.
    diff: str
    # Number of the audit log entry that records the outcome.
    entry: int
    # The first approver, if two are required and one has approved.
    first: str
    # The jail that the request concerns.
    jail: str
    # Why there is no diff.
    no_diff: str
    # Name of the node with the jail, in lists of all nodes.
    node: str
    # Why the request is no longer pending.
    outcome: str
    # The confirmation phrase. An approver who types it needs no second approver.
    phrase: str
    # When the request was answered, withdrawn or expired.
    settled_at: Optional[str]
    # Number of callers that wait for the answer now.
    waiting: int
    # The policy rule that an approval for longer than once adds, by scope.
    writes: dict[str, str]


class Approval(ApprovalOptions):
    created_at: str
    # When the request expires if it is not answered.
    expires_at: str
    id: str
    # The policy question, as submitted.
    question: Question
    # The rule that requires approval.
    rule: str
    # pending: not answered yet. withdrawn: the caller or an operator withdrew the request.
    state: Literal["pending", "answered", "expired", "withdrawn"]
    # Who must approve: preapproved needs no person, standard needs one person, elevated needs
    # one person who types the confirmation phrase, or two persons.
    tier: Literal["preapproved", "standard", "elevated"]
    # Short summary. It may omit details; see what.
    title: str
    # Complete text of the action.
    what: str
    # The agent or caller that requests the action.
    who: str
    # Why approval is required.
    why: str


class ApprovalAnswerOptions(TypedDict, total=False):
    reason: str
    # With answer modify: the resource that is allowed instead.
    resource: str


class ApprovalAnswer(ApprovalAnswerOptions):
    answer: Literal["allow", "deny", "modify"]
    at: str
    # Name of the person.
    by: str
    # How the answer was given: api, cli or link.
    channel: str
    # How long the answer applies: once, for the session, or always.
    scope: Literal["once", "session", "always"]


class ApprovalEvent(TypedDict):
    approval: Approval
    at: str
    # seconded: the first of two approvers approved. refused: the jail has too many pending
    # requests, so the request was not queued.
    kind: Literal["asked", "seconded", "answered", "expired", "withdrawn", "refused"]


class ApprovalPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ApprovalPage(ApprovalPageOptions):
    # Items of the page.
    items: list[Approval]


class BackendOptions(TypedDict, total=False):
    # Limits and features that are unavailable on this host, each with the reason.
    lacks: dict[str, str]
    # Why it is not usable.
    reason: str
    # How to make the backend usable.
    remedy: str
    runtime: str


class Backend(BackendOptions):
    name: str
    usable: bool


class BackendPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class BackendPage(BackendPageOptions):
    # Items of the page.
    items: list[Backend]


class Bounds(TypedDict, total=False):
    # Number of CPUs. One CPU corresponds to a CPU weight of 1024.
    cpu: float
    # Disk space in MiB.
    disk_mb: int
    # Memory in MiB.
    memory_mb: int
    # Number of processes and threads.
    pids: int


class Branch(TypedDict, total=False):
    # Number of jails to create. Default 1.
    count: int
    # Number of the first jail. If it is set, the name of a single jail has its number, too.
    first: int
    # Default: the jail's id.
    hostname: str
    # Rejected if true: a connection cannot be shared between a jail and its branches. Rewind
    # the jail instead.
    keep_connections: bool
    labels: dict[str, str]
    limits: Limits
    # Display name. If several jails are created, a number is appended.
    name: str
    network: Literal["isolated", "proxy", "bridged", "full"]
    # Divide the jails evenly among the nodes of the fleet.
    spread: bool


class BranchError(TypedDict):
    # Number of the jail, from 1.
    number: int
    problem: Problem


class BranchesOptions(TypedDict, total=False):
    # Errors of jails that were not created.
    errors: list[BranchError]
    # The snapshot that was taken, if a jail was branched.
    snapshot: Snapshot


class Branches(BranchesOptions):
    jails: list[Jail]


class BrowserKeys(TypedDict):
    # The authentication secret, in base64url.
    auth: str
    # The browser's P-256 public key, in base64url.
    p256dh: str


class BundleOptions(TypedDict, total=False):
    # Why the bundle's capabilities cannot be called now: the bundle is no longer trusted.
    barred: str
    # Digest of the installed version.
    digest: str
    installed: Optional[str]
    # An installation that is pending or was refused.
    next: BundleInstall
    publisher: str
    # How to make the bundle usable again.
    remedy: str
    # Name of the skill in the bundle.
    skill: str
    tier: str
    # Time from which the bundle's capabilities cannot be called.
    until: Optional[str]
    # The installed version. Empty if no version is installed.
    version: str


class Bundle(BundleOptions):
    # Capabilities of the bundle, each as id@version.
    capabilities: list[str]
    name: str


class BundleInstallOptions(TypedDict, total=False):
    # The approval request of a pending installation.
    approval: str
    # Why the installation is pending or was refused.
    why: str


class BundleInstall(BundleInstallOptions):
    digest: str
    state: Literal["pending", "refused"]
    version: str


class BundlePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class BundlePage(BundlePageOptions):
    # Items of the page.
    items: list[Bundle]


class Call(TypedDict, total=False):
    # Budget of the run, by dimension: steps, wall-clock-ms, sandbox-cpu-ms, network-bytes,
    # storage-bytes. It applies from the run's first call.
    budget: dict[str, int]
    # Input that conforms to the input schema. Default: null.
    input: Any
    # Call on behalf of this jail. The jail's policy applies.
    jail: str
    # Data classes of the input: public, redacted, pii or secret, optionally with a subclass
    # after a dot.
    labels: list[str]
    # Run whose budget the call consumes.
    run: str
    # Session whose files a capability with session scope can access.
    session: str
    # Timeout in milliseconds, up to the capability's own timeout.
    timeout_ms: int


_CallBudgetOdd = TypedDict(
    "_CallBudgetOdd",
    {
        "run-budget-consumed": "dict[str, int]",
        "run-budget-remaining": "dict[str, int]",
    },
    total=False,
)


class CallBudget(_CallBudgetOdd, total=False):
    pass


class CallErrorOptions(TypedDict, total=False):
    # The reason, phrased for agents.
    message: str
    remedy: str


class CallError(CallErrorOptions):
    kind: str
    # Why the call failed.
    reason: str


_CallFailureOdd = TypedDict(
    "_CallFailureOdd",
    {
        "class": "Literal['denied', 'refused', 'failed']",
    },
    total=False,
)


class CallFailureOptions(_CallFailureOdd, total=False):
    # The count is a lower bound.
    at_least: bool
    comm: str
    events: EventLink
    path: str
    # PID of the first failure. comm and path also describe the first failure.
    pid: int


class CallFailure(CallFailureOptions):
    count: int
    errno: str
    name: str


class CallLimits(TypedDict, total=False):
    # CPU weight.
    cpu_shares: int
    # Number of processes and threads.
    max_pids: int
    # Memory, in MiB.
    memory_mb: int
    # Network bytes, sent and received together.
    network_bytes: int
    # Run time, in milliseconds.
    timeout_ms: int


class CallProfileOptions(TypedDict, total=False):
    # The counts are lower bounds.
    at_least: bool
    denied: int
    events: EventLink
    failed: int
    # Number of calls with a known duration.
    timed: int


class CallProfile(CallProfileOptions):
    count: int
    latency: Latency
    name: str


class CallUsageOptions(TypedDict, total=False):
    # Peak memory usage in bytes.
    memory_peak_bytes: int
    # Bytes received.
    network_ingress_bytes: int
    steps: int


class CallUsage(CallUsageOptions):
    # Bytes sent.
    network_egress_bytes: int
    # CPU time in milliseconds.
    sandbox_cpu_ms: float
    # Duration of each phase of the call, in microseconds.
    steps_us: dict[str, int]
    # Bytes written to storage.
    storage_write_bytes: int
    # Elapsed time in milliseconds.
    wall_ms: float


class CalledOptions(TypedDict, total=False):
    budget: CallBudget
    digest: str
    # Number of the audit log entry that records the call.
    entry: int
    error: CallError
    # What isolated that sandbox: runc, crun, runsc (gVisor) or bwrap.
    isolation: str
    # Data class of the output.
    label: str
    # The end of the capability's standard error output.
    log: str
    output: Any
    # The sandbox that served the call. The audit log contains its egress and its use of
    # secrets under this name.
    sandbox: str
    version: str
    # A sandbox from the warm pool served the call.
    warm: bool
    # Why an older version was called: a newer one is revoked.
    warning: str


class Called(CalledOptions):
    began: str
    capability: str
    id: str
    # failed: the capability was called and returned an error. refused: it was not called.
    state: Literal["done", "failed", "refused"]
    usage: CallUsage


class CallsOfOneOptions(TypedDict, total=False):
    # The counts are lower bounds.
    at_least: bool
    denied: int
    failed: int


class CallsOfOne(CallsOfOneOptions):
    comm: str
    count: int
    latency: Latency
    pid: int


class CapabilityOptions(TypedDict, total=False):
    # The approval request of this version, pending or answered.
    approval: str
    # The bundle that contains the capability.
    bundle: str
    # Who registered the version.
    by: str
    description: str
    # Hosts that the capability may connect to.
    hosts: list[str]
    # JSON Schema 2020-12.
    input_schema: Any
    # Resource limits of one call, from the manifest. Only in the response for a single
    # capability.
    limits: CallLimits
    # The manifest as submitted. Only in the response for a single capability.
    manifest: str
    # Permissions that require approval, or that were approved.
    new: list[str]
    # JSON Schema 2020-12.
    output_schema: Any
    # Each call requires approval.
    per_use: bool
    # Names of the secrets that the capability uses.
    secrets: list[str]
    # When the registration was approved, refused or revoked.
    settled: Optional[str]
    # An operator allowed this digest to run directly on the host.
    trust: bool
    # Why the version has its state.
    why: str


class Capability(CapabilityOptions):
    created: str
    # Digest of the manifest and its files.
    digest: str
    # Declared side effects.
    effects: list[str]
    id: str
    runtime: str
    state: Literal["pending", "approved", "refused", "revoked"]
    # The approval tier.
    tier: str
    version: str


class CapabilityPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class CapabilityPage(CapabilityPageOptions):
    # Items of the page.
    items: list[Capability]


class ChainBadOptions(TypedDict, total=False):
    # Line of an export.
    line: int
    # Number of the invalid entry. Omitted if all entries are valid.
    seq: int


class ChainBad(ChainBadOptions):
    reason: str


class ChainConflictOptions(TypedDict, total=False):
    # Newest checkpoint of the log when this was noticed.
    checkpoint: str
    # How many entries fewer the log had, at most.
    missing: int


class ChainConflict(ChainConflictOptions):
    # When this was noticed first.
    at: str
    reason: str


_ChainConsistencyOdd = TypedDict(
    "_ChainConsistencyOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChainConsistency(_ChainConsistencyOdd):
    # Hashes in base64, as in RFC 6962.
    path: list[str]
    # The later checkpoint.
    to: str


class ChainEntry(TypedDict):
    agent: str
    body: Any
    capability: str
    # Hash of this entry.
    hash: str
    jail: str
    kind: str
    # The entry that caused this one, or 0.
    parent: int
    # Hash of the previous entry.
    prev: str
    run: str
    seq: int
    session: str
    time: str


class ChainEntryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ChainEntryPage(ChainEntryPageOptions):
    # Items of the page.
    items: list[ChainEntry]


class ChainFrom(TypedDict):
    # Signed checkpoint, as returned by GET /chain/head.
    checkpoint: str


class ChainHeadOptions(TypedDict, total=False):
    # The newest signed checkpoint, in C2SP tlog-checkpoint format.
    checkpoint: str


class ChainHead(ChainHeadOptions):
    # Number of entries.
    entries: int
    # The public key that verifies checkpoints.
    key: str


class ChainProof(TypedDict):
    # Signed checkpoint that covers the entry.
    checkpoint: str
    entry: ChainEntry
    # Hashes in base64 from the entry to the root, as in RFC 6962.
    path: list[str]


class ChainReportOptions(TypedDict, total=False):
    # The first error; absent if the log is valid.
    bad: ChainBad
    # The public key that was used.
    key: str


class ChainReport(ChainReportOptions):
    # Number of verified checkpoints.
    checkpoints: int
    # Number of valid entries, from the first.
    entries: int
    # true if the key was supplied for the verification, false if it was stored with the log.
    key_given: bool
    # Number of entries that the last verified checkpoint covers.
    signed: int


_ChangeOdd = TypedDict(
    "_ChangeOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChangeOptions(_ChangeOdd, total=False):
    # With content=unified: the unified diff (diff -u).
    diff: str
    # Permission bits, in octal.
    mode: str
    # With content=unified: why there is no diff: binary, too large, or modified during the
    # comparison.
    no_diff: str
    # Size in bytes.
    size: int
    # file, dir, symlink, fifo, socket, char or block.
    type: str
    # What differs, if the file is on both sides: content, mode, owner, times, xattrs.
    what: list[str]


class Change(ChangeOptions):
    # metadata: only attributes of the file changed, not its content.
    kind: Literal["added", "modified", "deleted", "metadata", "renamed"]
    path: str


class ChangePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ChangePage(ChangePageOptions):
    # Items of the page.
    items: list[Change]


_ChangedFileOdd = TypedDict(
    "_ChangedFileOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChangedFileOptions(_ChangedFileOdd, total=False):
    # Number of bytes written.
    bytes_written: int
    # Number of changes.
    changes: int
    comm: str
    pid: int
    seq: int
    # Changed after the snapshot. A branch of the snapshot does not contain the change.
    since_snapshot: bool
    # Time of the last change. seq, pid and comm also describe the last change.
    time: str
    # The file type, if it is known.
    type: Literal["file", "dir", "symlink", "node"]


class ChangedFile(ChangedFileOptions):
    kind: Literal["added", "modified", "deleted", "metadata", "renamed"]
    path: str


class ChangedFilesOptions(TypedDict, total=False):
    # More files were changed earlier and are not listed.
    at_least: bool
    count: int
    # File events that were lost.
    lost: Lost
    # false if file operations of this jail are not recorded.
    recorded: bool


class ChangedFiles(ChangedFilesOptions):
    # Changed files, most recently changed first.
    items: list[ChangedFile]


class ChangedProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    comm: str
    # Values are truncated.
    cut: bool
    cwd: str
    # Changed environment variables.
    env: list[EnvChange]
    exe: str
    ppid: int
    # The process on the first side, if its program or working directory differs.
    was: ComparedProcess


class ChangedProcess(ChangedProcessOptions):
    # PID inside the jail.
    pid: int


class CheckpointOptions(TypedDict, total=False):
    # The checkpoint was taken automatically. It is deleted when there are enough newer ones.
    auto: bool
    # Number of the audit log entry that records the checkpoint.
    entry: int
    reason: str
    # Snapshot of the run's jail.
    snapshot: str
    # State that the agent saved. Only in the response for a single checkpoint.
    state: Any


class Checkpoint(CheckpointOptions):
    at: str
    digest: str
    id: str
    # Number of the checkpoint in the run.
    n: int
    run: str
    # Number of steps that the run had made.
    steps: int


class CheckpointPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class CheckpointPage(CheckpointPageOptions):
    # Items of the page.
    items: list[Checkpoint]


class ClaimedDecisionOptions(TypedDict, total=False):
    agent: str
    # Arguments of the tool call.
    args: Any
    timestamp: str
    # How long to wait for a person's answer, in milliseconds, if approval is required.
    wait_ms: int


class ClaimedDecision(ClaimedDecisionOptions):
    # Name of the tool.
    tool: str


class ComparedEndOptions(TypedDict, total=False):
    name: str
    # Sequence number of the last event in the jail's log at that time.
    seq: int
    # The compared snapshot. If omitted, the jail is compared as it is now.
    snapshot: str
    state: str
    # Time of the compared state.
    time: str


class ComparedEnd(ComparedEndOptions):
    jail: str


class ComparedProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    comm: str
    # Values are truncated.
    cut: bool
    cwd: str
    exe: str
    ppid: int


class ComparedProcess(ComparedProcessOptions):
    # PID inside the jail.
    pid: int


class ComparedUsage(TypedDict, total=False):
    cpu_ns: int
    disk_bytes: int
    memory_bytes: int
    # Fields that could not be measured.
    not_measured: list[str]
    # Number of processes and threads.
    processes: int
    rx_bytes: int
    tx_bytes: int


_ComparisonOdd = TypedDict(
    "_ComparisonOdd",
    {
        "from": "ComparedEnd",
    },
    total=False,
)


class ComparisonOptions(_ComparisonOdd, total=False):
    events: EventChanges
    # Changes in the root filesystem.
    files: FileChanges
    processes: ProcessChanges
    usage: UsageChanges
    # Changes in the workspace, if a side has one.
    workspace: FileChanges


class Comparison(ComparisonOptions):
    to: ComparedEnd


class ConditionOptions(TypedDict, total=False):
    # How to resolve the problem.
    remedy: str


class Condition(ConditionOptions):
    # Description of the problem.
    detail: str
    # disk_read_only: the filesystem had an error and is read-only until the jail is stopped
    # and started. events_not_written: the jail is frozen because its events cannot be
    # written, and continues when they can.
    type: Literal["disk_read_only", "events_not_written"]


class ConnectedHostOptions(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    connections: int
    first: Optional[str]
    last: Optional[str]
    packets_in: int
    packets_out: int
    # There were more processes.
    processes_more: bool
    # Number of refused connections.
    refused: int
    # Number of connections without a response.
    unanswered: int


class ConnectedHost(ConnectedHostOptions):
    # The name that the jail resolved, or the address.
    host: str
    # The first few processes that communicated with the host.
    processes: list[Who]
    # Services with the most bytes first.
    services: list[Service]
    # Egress decisions, newest first. Empty for a jail without the egress proxy.
    verdicts: list[Verdicts]


class Connection(TypedDict, total=False):
    comm: str
    local: str
    # PID inside the jail.
    pid: int
    proto: Literal["tcp", "udp"]
    remote: str
    # listening, established, and so on; open for UDP.
    state: str


class ConnectionsOptions(TypedDict, total=False):
    # Number of hosts.
    count: Estimate
    # Network events that were lost.
    lost: Lost
    # Traffic of hosts that are not listed.
    more: Traffic
    total: Traffic
    # Number of egress decisions that are not listed.
    verdicts_more: int


class Connections(ConnectionsOptions):
    # Hosts with the most bytes first, followed by hosts with decisions only.
    items: list[ConnectedHost]


class ConnectorOptions(TypedDict, total=False):
    # For a hook: the URL to post to. For a post: the destination host.
    address: str
    # Goal of the run that a message starts, as configured.
    goal: str
    # The receiving session, as configured.
    session: str
    # Sessions whose messages are forwarded: names, or patterns with *.
    sessions: list[str]


class Connector(ConnectorOptions):
    # Number of deliveries that failed permanently.
    dead: int
    # hook: inbound webhook, which adds received messages to a session. post: outbound
    # webhook, which sends a session's messages to a URL. relay: forwards messages of sessions
    # to another session.
    kind: Literal["hook", "post", "relay"]
    name: str
    # Number of pending deliveries.
    pending: int


class ConnectorPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ConnectorPage(ConnectorPageOptions):
    # Items of the page.
    items: list[Connector]


class ConsideredRuleOptions(TypedDict, total=False):
    # The rule determines the result for this part.
    decides: bool
    # The rule matches.
    matches: bool


class ConsideredRule(ConsideredRuleOptions):
    # The part of the action, such as one command of a command line.
    part: str
    rule: PolicyRule
    # The rule set to which the rule belongs.
    set: str


class CreateE2BKey(TypedDict, total=False):
    # Name of the key's user. Default: the caller's name.
    name: str
    # What the sandboxes and template builds of the key may demand together. Default: no
    # limits.
    quota: Quota


class CreateJail(TypedDict, total=False):
    # Isolation backend: oci, microvm (a virtual machine) or bwrap.
    backend: str
    # Command to run when the jail starts. The jail continues to run when it exits.
    command: list[str]
    # Working directory of every command.
    cwd: str
    # Egress rules of a jail in network mode proxy.
    egress: Egress
    # Enforce the policy in the Linux kernel for the execution of programs, file access and
    # connections of the jail's processes.
    enforce: bool
    # Environment variables of every command.
    env: dict[str, str]
    # Default: the jail's id.
    hostname: str
    # Labels by which the jail can be found.
    labels: dict[str, str]
    limits: Limits
    # Host paths to make available in the jail.
    mounts: list[Mount]
    # Name of the jail, which no other jail has.
    name: str
    # isolated (the default): only a loopback interface. proxy: network access through the
    # egress proxy, as the egress rules allow. bridged: access to the jails of the network
    # group. full: unrestricted network access.
    network: Literal["isolated", "proxy", "bridged", "full", "Isolated", "FullAccess"]
    # For a bridged jail: the group of jails that it can reach. Default: the group named
    # default.
    network_group: str
    # What is recorded of the jail.
    observe: Observe
    # Which actions are allowed, denied or require approval.
    policy: Policy
    rootfs: Rootfs
    # The OCI runtime: runc, crun or runsc.
    runtime: str
    # The session of the jail. Its programs reach the gateway at http://localhost:4097.
    session_id: str
    # When automatic snapshots are taken.
    snapshots: Snapshots
    # Start the jail after creating it. If it cannot be started, it is deleted.
    start: bool
    # User of every command: a name, a uid, name:group or uid:gid.
    user: str
    # A host directory to make available copy-on-write.
    workspace: Workspace


class CreateLoginLink(TypedDict, total=False):
    # Name of the login. Default: the caller's name.
    label: str
    # Role of the login. Default: the caller's role.
    role: Literal["admin", "operator", "viewer"]


class CreateTokenOptions(TypedDict, total=False):
    # Default: never.
    expires_at: Optional[str]
    # What the jails that are created with the token may demand together. Default: no limits.
    quota: Quota


class CreateToken(CreateTokenOptions):
    # Name of the token's user.
    name: str
    role: Literal["admin", "operator", "viewer", "agent"]


class DeadNoticeOptions(TypedDict, total=False):
    # The content of the notification.
    body: Any
    # Error of the last attempt.
    error: str


class DeadNotice(DeadNoticeOptions):
    approval: str
    attempts: int
    # The notification channel.
    channel: str
    created_at: str
    id: str
    kind: str


class DeadNoticePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class DeadNoticePage(DeadNoticePageOptions):
    # Items of the page.
    items: list[DeadNotice]


class DecideOptions(TypedDict, total=False):
    # The agent that performs the action.
    agent: str
    # Additional attributes of the action.
    attributes: dict[str, str]
    # The object of the action: a command line, path, URL or host:port.
    resource: str
    # How long to wait for a person's answer, in milliseconds, if approval is required.
    # Default: one minute.
    wait_ms: int


class Decide(DecideOptions):
    # A tool name: bash, edit, read, webfetch, connect, …
    action: str


class DecisionOptions(TypedDict, total=False):
    # Remembered answers cannot override this decision.
    final: bool
    # The list of pre-approved actions allows it.
    listed: bool
    remedy: str


class Decision(DecisionOptions):
    # Result of the rules.
    effect: Literal["allow", "ask", "deny"]
    reason: str
    # The rule that decided.
    rule: PolicyRule


class DeliveryOptions(TypedDict, total=False):
    # Error of the last attempt.
    error: str
    # Time of the next attempt.
    next: Optional[str]


class Delivery(DeliveryOptions):
    attempts: int
    connector: str
    # Delivery id. It is the same for all attempts.
    id: str
    message_id: str
    session_id: str
    # dead: the delivery failed permanently.
    state: Literal["pending", "delivered", "dead"]


class DeliveryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class DeliveryPage(DeliveryPageOptions):
    # Items of the page.
    items: list[Delivery]


class Demand(TypedDict):
    disk_bytes: int
    jails: int
    # Stopped jails have no memory.
    memory_bytes: int


class E2BKeyOptions(TypedDict, total=False):
    # PEM certificate of the certificate authority that clients must trust, if the daemon
    # created one.
    ca: str


class E2BKey(E2BKeyOptions):
    # Value for E2B_DOMAIN. Sandbox ports are served on subdomains of it.
    domain: str
    # Id of the token. Use it to revoke the key.
    id: str
    # Value for E2B_API_KEY. It is returned only once.
    key: str
    # Hosts that sandboxes can reach, as set by e2b.reach. * is every host on the Internet.
    reach: list[str]
    # Value for E2B_API_URL and E2B_SANDBOX_URL.
    url: str


class EditQuota(TypedDict, total=False):
    # Disk space in bytes. 0 removes the limit.
    disk_bytes: Optional[int]
    # Number of jails. 0 removes the limit.
    jails: Optional[int]
    # Memory in bytes. 0 removes the limit.
    memory_bytes: Optional[int]


class EditSchedule(TypedDict, total=False):
    jitter_ms: Optional[int]
    missed: Optional[Literal["skip", "once", "all"]]
    overlap: Optional[Literal["skip", "queue", "allow"]]
    # Cron expression, as in POST /runs.
    schedule: Optional[str]
    time_zone: Optional[str]


class EditToken(TypedDict):
    quota: EditQuota


class Egress(TypedDict, total=False):
    # Rules in order of precedence. The first matching rule applies.
    allow: list[EgressRule]
    # Request approval for access that no rule allows, instead of denying it.
    ask: bool
    # Limit for all access together.
    limit: EgressLimit
    # Record the query strings of URLs, which may contain private data.
    query: bool


_EgressInjectOdd = TypedDict(
    "_EgressInjectOdd",
    {
        "as": "Literal['bearer', 'header', 'query', 'basic']",
    },
    total=False,
)


class EgressInjectOptions(_EgressInjectOdd, total=False):
    # Name of the header, query parameter or user.
    name: str


class EgressInject(EgressInjectOptions):
    secret: str


class EgressLimit(TypedDict, total=False):
    # Bytes, sent and received together.
    bytes: int
    # Period of the request limit, in milliseconds.
    per_ms: int
    # Requests per per_ms, or per minute if per_ms is omitted.
    requests: int


class EgressRuleOptions(TypedDict, total=False):
    # The capability to which the rule belongs.
    capability: str
    # Deny the address or prefix, whatever name resolves to it, unless an earlier rule allows
    # it. Without ports, all ports match.
    deny: bool
    # Secrets to add to requests. They are never visible in the jail.
    inject: list[EgressInject]
    # Intercept TLS with a certificate authority that only this jail trusts. Implied by
    # inject, methods and paths.
    intercept: bool
    # For an address or prefix: match only its public Internet addresses. Without ports, all
    # ports match.
    internet: bool
    limit: EgressLimit
    # Allowed HTTP methods. Default: all except TRACE.
    methods: list[str]
    # Display name, used in messages.
    name: str
    # URL path patterns, in which * matches any sequence of characters.
    paths: list[str]
    # Destination ports. Default: 80 and 443.
    ports: list[int]


class EgressRule(EgressRuleOptions):
    # A host name, *.example.com, * for every name, or an IP address or prefix. A private
    # address is allowed only by an address or prefix rule.
    host: str


class EgressStateOptions(TypedDict, total=False):
    # Statistics since the jail was started.
    stats: EgressStats
    # Version of the rules. It differs if the rules differ.
    version: str


class EgressState(EgressStateOptions):
    egress: Egress


class EgressStatsOptions(TypedDict, total=False):
    # Number of denied requests, by reason.
    refused: dict[str, int]


class EgressStats(EgressStatsOptions):
    connections: int
    # Connections that are open now.
    open: int
    # DNS queries.
    queries: int
    # Bytes received by the jail.
    received: int
    requests: int
    # Bytes sent by the jail.
    sent: int


_EnvChangeOdd = TypedDict(
    "_EnvChangeOdd",
    {
        "from": "Optional[str]",
    },
    total=False,
)


class EnvChangeOptions(_EnvChangeOdd, total=False):
    # The name looks like that of a secret, so the values are omitted.
    hidden: bool
    to: Optional[str]


class EnvChange(EnvChangeOptions):
    name: str


class ErrorCount(TypedDict):
    count: int
    errno: str


class Estimate(TypedDict, total=False):
    # The count is an estimate with an error of a few percent.
    about: bool
    count: int


_EventOdd = TypedDict(
    "_EventOdd",
    {
        "from": "int",
    },
    total=False,
)


class EventOptions(_EventOdd, total=False):
    # ABI of the system call if it is not the native one: i386, x32 or arm.
    abi: str
    # Socket address that the system call received as an argument.
    addr: str
    # Arguments of the system call.
    args: list[int]
    # Arguments of the program.
    argv: list[str]
    # Value of ns at the first packet of a flow, or at the start of a process.
    begin: int
    # Number of bytes read, written or transferred.
    bytes: Optional[int]
    # Number of consecutive reads or writes that this event aggregates.
    calls: int
    # The return of fork or clone in the new task.
    child: bool
    # Name of the thread; by default the name of the program.
    comm: str
    # CPU time since the start of the jail in nanoseconds.
    cpu_ns: int
    # A string or list is truncated.
    cut: bool
    # Working directory inside the jail.
    cwd: str
    # seccomp denied the system call before it was executed.
    denied: bool
    # Direction, from the jail's perspective.
    dir: Literal["egress", "ingress", "loopback"]
    # Disk space in use.
    disk_bytes: int
    # Destination address.
    dst: str
    # Duration of the system call in nanoseconds.
    dur_ns: int
    # Path of the program inside the jail.
    exe: str
    # The process existed when observation began.
    existing: bool
    # Exit status of the process.
    exit_code: Optional[int]
    # File descriptor.
    fd: Optional[int]
    # Group ID inside the jail.
    gid: Optional[int]
    # Reported by the kernel of the jail's virtual machine, and only as trustworthy as that
    # kernel.
    guest: bool
    # The DNS name that the jail resolved to the remote address.
    host: str
    # Thread ID on the host.
    host_pid: int
    # Network interface in the jail.
    iface: str
    # Glasshouse made the call in a process of the jail.
    injected: bool
    # For a gap: number of lost events; -1 if unknown.
    lost: int
    # Memory in use.
    memory_bytes: int
    # Name of the system call.
    name: str
    # Number of the system call.
    nr: int
    # Monotonic clock of the host at completion, in nanoseconds.
    ns: int
    # The file operation, process event or snapshot operation.
    op: str
    # Number of packets of a flow, or of segments of a packet if more than one.
    packets: int
    # The source jail of the snapshot.
    parent: str
    # Sequence number of the last event in the parent's log that the snapshot includes.
    parent_seq: Optional[int]
    # The caller was in the system call when observation began. There is no duration.
    partial: bool
    # Path inside the jail.
    path: str
    # PID inside the jail.
    pid: int
    # Number of processes and threads, without those of init.
    pids: int
    # PID of the parent inside the jail.
    ppid: int
    # Protocol: tcp, udp, icmp, icmp6, arp, or by number as in ip-41 and eth-88cc.
    proto: str
    # The path in memory differed from the path that the kernel used (a TOCTOU race).
    raced: bool
    # The jail's disk is read-only after an error. In usage events.
    read_only: bool
    # The path that the kernel opened, if it differs from path.
    real: str
    # For a gap: why events were lost.
    reason: str
    # Return value of the system call, or the error of a file operation. A negative value is
    # -errno.
    ret: Optional[int]
    # Peak resident set size in bytes.
    rss: int
    # Bytes received since the start of the jail.
    rx_bytes: int
    # The signal that ended the process, such as SIGKILL.
    signal: str
    # The snapshot that was taken or restored.
    snapshot: str
    # For a gap: type of the lost events.
    source: str
    # Source address.
    src: str
    # System CPU time of the process in nanoseconds.
    system_ns: int
    # TCP flags of the packet, or of all packets of a flow, as in SYN,ACK.
    tcp: str
    # The event concerns a thread that is not the first of its process.
    thread: bool
    # For a gap: last sequence number of that range.
    through: int
    # Thread ID inside the jail.
    tid: int
    # New path of a renamed or linked file.
    to: str
    # Bytes sent since the start of the jail.
    tx_bytes: int
    # User ID inside the jail.
    uid: Optional[int]
    # The caller died during the system call, or the call never returns. There is no return
    # value.
    unfinished: bool
    # The path of the file descriptor is unknown.
    unresolved: bool
    # User CPU time of the process in nanoseconds.
    user_ns: int


class Event(EventOptions):
    jail: str
    # Sequence number in the jail, without gaps, from 1. A jail made from a snapshot continues
    # the numbering of its parent.
    seq: int
    # Time, in milliseconds since 1970.
    ts: int
    # Subject of the event. It determines which of the other fields are present.
    type: Literal["syscall", "file", "net", "proc", "gap", "usage", "lineage"]


_EventChangesOdd = TypedDict(
    "_EventChangesOdd",
    {
        "from": "EventCount",
    },
    total=False,
)


class EventChanges(_EventChangesOdd, total=False):
    # The common ancestor. Omitted if the sides are not related.
    since: ComparedEnd
    # Events between the common ancestor and the second side.
    to: EventCount


class EventCount(TypedDict, total=False):
    # by_type counts fewer events than total: some events were deleted, or there are too many
    # to count.
    at_least: bool
    by_type: dict[str, int]
    total: int
    # Why the events cannot be counted.
    unknown: str


class EventLink(TypedDict, total=False):
    # First sequence number.
    first: int
    # Last sequence number.
    last: int
    # A filter for GET …/events.
    q: str


class EventLog(TypedDict, total=False):
    # Disk usage in bytes.
    bytes: int
    # Why events cannot be written now.
    err: str
    # Number of stored events.
    events: int
    # Sequence number of the oldest stored event.
    first: int
    # Sequence number that was assigned last.
    last: int
    # Events that were dropped because of the size limit, by type. Gap events count them.
    lost: dict[str, int]
    # Number of files.
    segments: int


class EventWindow(TypedDict):
    # Events. docs/reference/events.md describes them.
    items: list[Any]
    # Position of the first item; 0 is the oldest event.
    offset: int
    # Number of events that match the filter.
    total: int


class ExecOptions(TypedDict, total=False):
    argv: list[str]
    # Run time in milliseconds.
    duration_ms: int
    # base64 if stdout or stderr is not valid UTF-8; then both are base64-encoded.
    encoding: Literal["base64"]
    ended_at: Optional[str]
    # Exit status, or 128 plus the number of the signal that ended the command. Absent while
    # it runs.
    exit_code: Optional[int]
    # Offset of the next output byte.
    next: int
    # Offset of the first buffered output byte.
    oldest: int
    # PID inside the jail.
    pid: int
    # The command runs on a terminal.
    pty: bool
    running: bool
    # The signal that ended the command, such as KILL.
    signal: str
    started_at: str
    # Standard error, if the response includes output.
    stderr: str
    # Bytes written so far, including discarded ones.
    stderr_bytes: int
    # Standard output, if the response includes output.
    stdout: str
    # Bytes written so far, including discarded ones.
    stdout_bytes: int
    # The command was killed because of its timeout.
    timed_out: bool
    # stdout or stderr is incomplete because buffered output was discarded.
    truncated: bool


class Exec(ExecOptions):
    id: str


class ExecPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ExecPage(ExecPageOptions):
    # Items of the page.
    items: list[Exec]


class ExecRequest(TypedDict, total=False):
    # The command and its arguments.
    argv: list[str]
    # A command line for /bin/sh.
    cmd: str
    # Working directory. Default: the jail's working directory.
    cwd: str
    # Respond as soon as the command has started.
    detach: bool
    # Environment variables, added to the jail's.
    env: dict[str, str]
    # Number of output bytes buffered for later readers. Default 1 MiB.
    keep_bytes: int
    # With stream: block the command when the client reads slowly, instead of dropping output.
    # A stream that ends without the event exit or error was interrupted, for example because
    # the client read nothing for 5 minutes. Continue it with GET /jails/{id}/execs/{exec} and
    # Last-Event-ID.
    lossless: bool
    # Run the command on a terminal of this size.
    pty: Size
    # Standard input of the command.
    stdin: str
    # stdin is base64.
    stdin_base64: bool
    # Keep standard input open after stdin, for POST …/stdin.
    stdin_open: bool
    # Respond with server-sent events: start, output, exit.
    stream: bool
    # Timeout in milliseconds, after which the whole process group is killed.
    timeout_ms: int
    # User of the command: a name, a uid, name:group or uid:gid. Default: the jail's user.
    user: str


class ExplainOptions(TypedDict, total=False):
    jail: str
    # The policy to evaluate. Default: the jail's policy.
    policy: Policy


class Explain(ExplainOptions):
    question: Question


class ExplainedOptions(TypedDict, total=False):
    considered: list[ConsideredRule]
    # For a connection from a jail in network mode proxy: the result of the egress rules. They
    # are evaluated before the policy, and a connection that they allow is not evaluated by
    # the policy.
    egress: ExplainedEgress


class Explained(ExplainedOptions):
    decision: Decision


class ExplainedEgressOptions(TypedDict, total=False):
    # The egress rules defer to the policy.
    asks: bool
    detail: str
    reason: str
    remedy: str
    # The rule that allows the connection, or the closest one.
    rule: str


class ExplainedEgress(ExplainedEgressOptions):
    allow: bool


class FeedEventOptions(TypedDict, total=False):
    # The agent or user that caused the entry.
    agent: str
    # For topic approval: the current state of the request.
    approval: Approval
    body: Any
    jail: str
    run: str
    session: str


class FeedEvent(FeedEventOptions):
    at: str
    # Kind of the entry: jail.created, approval.asked, run.moved and so on.
    kind: str
    # Number of the audit log entry.
    seq: int


class FeedHelloEventOptions(TypedDict, total=False):
    # The Last-Event-ID was not issued by this daemon. Reload earlier events with the other
    # endpoints.
    reset: bool


class FeedHelloEvent(FeedHelloEventOptions):
    at: str


class FeedJailsEventOptions(TypedDict, total=False):
    # The list is complete. Jails that it does not contain were deleted.
    all: bool


class FeedJailsEvent(FeedJailsEventOptions):
    jails: list[JailRow]


class FileOptions(TypedDict, total=False):
    gid: int
    mtime: str
    # Target of a symlink.
    target: str
    uid: int


class File(FileOptions):
    # Permission bits with setuid, setgid and sticky, in octal.
    mode: str
    name: str
    path: str
    size: int
    type: Literal["file", "dir", "symlink", "fifo", "socket", "char", "block"]


class FileChanges(TypedDict, total=False):
    # Number of changes by kind.
    counts: dict[str, int]
    # Changes, sorted by path.
    list: list[Change]
    # Number of changes that are not listed. GET /jails/{id}/fs/diff lists all changes of a
    # jail, in pages.
    more: int
    # Why the trees cannot be compared.
    unknown: str


class FileEventOptions(TypedDict, total=False):
    dir: bool


class FileEvent(FileEventOptions):
    # overflow: some changes were lost.
    op: Literal["create", "write", "delete", "rename", "attrib", "overflow"]
    path: str


class FilePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class FilePage(FilePageOptions):
    # Items of the page.
    items: list[File]


class FlowOptions(TypedDict, total=False):
    # The counts are lower bounds: earlier packets were not counted because the list was full.
    at_least: bool
    begin: str
    bytes_in: int
    bytes_out: int
    comm: str
    # Time of the last packet so far.
    end: str
    # Events of the flow.
    events: EventLink
    # The DNS name that the jail resolved to the remote address.
    host: str
    packets_in: int
    packets_out: int
    pid: int
    # Number of refused connections.
    refused: int
    # State of the connection. open: the protocol has no connections.
    state: Literal["unanswered", "refused", "established", "closed", "reset", "open"]
    # Number of connections; more than 1 if the ports were reused.
    times: int


class Flow(FlowOptions):
    # Direction of the first packet.
    dir: Literal["egress", "ingress", "loopback"]
    local: str
    proto: str
    remote: str


class FlowsOptions(TypedDict, total=False):
    # Total number of flows. If there are too many to store, the list contains those with the
    # most bytes.
    count: int
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class Flows(FlowsOptions):
    # Items of the page.
    items: list[Flow]


_GrantOdd = TypedDict(
    "_GrantOdd",
    {
        "from": "str",
    },
    total=False,
)


class GrantOptions(_GrantOdd, total=False):
    # Branches of the jail receive their own grant.
    branches: bool
    # Who created the grant.
    by: str
    capability: str
    expires_at: Optional[str]
    # With delivery inject: hosts to which the secret may be sent.
    hosts: list[str]
    # The jail that may use the secret.
    jail: str
    run: str
    session: str


class Grant(GrantOptions):
    created_at: str
    # file: as /run/secrets/NAME in the jail. inject: added to requests by the egress proxy.
    delivery: Literal["file", "inject"]
    id: str
    secret: str


class GrantSecret(TypedDict, total=False):
    # Branches of the jail receive their own grant.
    branches: bool
    capability: str
    # file (the default): as /run/secrets/NAME in the jail. inject: the egress proxy adds the
    # secret to requests, and it is never visible in the jail.
    delivery: Literal["file", "inject"]
    # When the grant expires. Default: never.
    expires_at: Optional[str]
    # With delivery inject: hosts to which the secret may be sent, such as api.example.com.
    hosts: list[str]
    # The jail that may use the secret.
    jail: str
    run: str
    session: str


class Health(TypedDict):
    status: Literal["ok"]


class Host(TypedDict, total=False):
    arch: str
    # Model of the CPU.
    cpu: str
    kernel: str


class ImageOptions(TypedDict, total=False):
    # Archive entries that were not unpacked, with the reason.
    skipped: list[str]


class Image(ImageOptions):
    created_at: str
    digest: str
    files: int
    # Total size of its files, in bytes.
    size: int
    # References that resolved to this image.
    sources: list[str]


class ImagePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ImagePage(ImagePageOptions):
    # Items of the page.
    items: list[Image]


class ImportServerOptions(TypedDict, total=False):
    # A host directory against which the manifest's relative paths are resolved.
    dir: str
    # File name of the manifest, for error messages.
    file: str


class ImportServer(ImportServerOptions):
    # Manifest of a capability that starts the server. Its id is the prefix of the ids of the
    # imported tools.
    manifest: str


class ImportedServerOptions(TypedDict, total=False):
    # Properties of the tools that a manifest cannot express.
    lost: list[str]
    # Tools that cannot be imported, with the reason.
    refused: list[str]


class ImportedServer(ImportedServerOptions):
    # Manifests of the tools. Register them with POST /capabilities.
    manifests: list[str]
    # Name that the server reports.
    server: str


class JailOptions(TypedDict, total=False):
    command: list[str]
    # Persistent problems that the state does not show.
    conditions: list[Condition]
    # The token or E2B key with which the jail was created, and whose quota it counts towards.
    creator: str
    cwd: str
    # Digest of the root filesystem.
    digest: str
    # Environment variables. Hidden from viewers.
    env: dict[str, str]
    hostname: str
    labels: dict[str, str]
    limits: Limits
    links: dict[str, str]
    mounts: list[Mount]
    name: str
    # The snapshot that was last taken of the jail, that it was made from, or that it was last
    # rewound to.
    nearest: str
    network_group: str
    # Name of its node, in lists of all nodes.
    node: str
    # State of the recording. Only in the response for a single jail.
    observation: Observation
    observe: Observe
    # The snapshot that the jail was made from.
    origin: Origin
    # Why the jail failed, or stopped without a request.
    reason: str
    rootfs: Rootfs
    runtime: str
    snapshots: Snapshots
    started_at: Optional[str]
    stopped_at: Optional[str]
    # Current resource usage. Only in the response for a single jail that has processes.
    usage: Usage
    user: str
    workspace: Workspace


class Jail(JailOptions):
    backend: str
    created_at: str
    id: str
    network: Literal["isolated", "proxy", "bridged", "full"]
    state: Literal["created", "starting", "running", "paused", "stopped", "failed"]


class JailLimits(TypedDict, total=False):
    # Requests and changes with their outcome, oldest first.
    history: list[LimitChange]
    # Limits in effect now.
    limits: Limits
    # Pass as 'after' to get the next page.
    next: int
    # The permanent limits, while temporary ones are in effect.
    own: Limits
    # When the temporary limits end.
    until: Optional[str]


class JailPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class JailPage(JailPageOptions):
    # Items of the page.
    items: list[Jail]


class JailRowOptions(TypedDict, total=False):
    memory_limit: int
    name: str
    runtime: str


class JailRow(JailRowOptions):
    backend: str
    # CPU usage, in number of CPUs.
    cpu: float
    # Events recorded per second.
    events_s: float
    # Number of events known to be lost since the daemon started.
    gaps: int
    id: str
    memory_bytes: int
    pids: int
    # Bytes received per second.
    rx_bytes_s: int
    state: str
    # Bytes sent per second.
    tx_bytes_s: int


class Keep(TypedDict, total=False):
    # Retain the last snapshot of each day, for this many days that have one.
    daily: int
    # Retain the last snapshot of each hour, for this many hours that have one.
    hourly: int
    # Number of most recent snapshots to retain.
    last: int


class LatencyOptions(TypedDict, total=False):
    max_ns: int
    min_ns: int
    # Median, estimated from the buckets.
    p50_ns: int
    # 90th percentile, estimated from the buckets.
    p90_ns: int
    # 99th percentile, estimated from the buckets.
    p99_ns: int
    total_ns: int


class Latency(LatencyOptions):
    # Histogram. Each bucket ends at twice its start. Empty buckets at both ends are omitted.
    buckets: list[LatencyBucket]


class LatencyBucket(TypedDict, total=False):
    count: int
    from_ns: int


_LimitChangeOdd = TypedDict(
    "_LimitChangeOdd",
    {
        "from": "Bounds",
    },
    total=False,
)


class LimitChange(_LimitChangeOdd, total=False):
    at: str
    # The person who made, approved or refused the change.
    by: str
    # Number of the audit log entry.
    entry: int
    n: int
    state: Literal["applied", "refused", "failed"]
    to: Bounds
    # When a temporary change ends.
    until: Optional[str]
    # The requested limits.
    want: Bounds
    why: str


class Limits(TypedDict, total=False):
    # CPU weight. Default 256, at most 1024.
    cpu_shares: int
    # Disk space in MiB. Default 1024, at most 16384.
    disk_mb: int
    # Number of processes and threads, excluding those of the jail's init. Default 128, at
    # most 4096.
    max_pids: int
    # Memory in MiB. Default 512, at most 8192.
    memory_mb: int


class LineageJailOptions(TypedDict, total=False):
    # Jails made from deleted snapshots of the jail.
    jails: list[LineageJail]
    name: str
    # The snapshot that was last taken of the jail, that it was made from, or that it was last
    # rewound to.
    nearest: str
    origin: Origin
    # Snapshots of the jail, oldest first.
    snapshots: list[LineageSnapshot]


class LineageJail(LineageJailOptions):
    created_at: str
    id: str
    # State of the jail, or gone if it was deleted and has snapshots.
    state: str


class LineageJailPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class LineageJailPage(LineageJailPageOptions):
    # Items of the page.
    items: list[LineageJail]


class LineageSnapshotOptions(TypedDict, total=False):
    # Jails made from the snapshot, oldest first.
    jails: list[LineageJail]
    # The snapshot includes processes, not only files.
    memory: bool
    name: str
    # The previous snapshot of the jail: the one last taken, made from or rewound to.
    parent: str
    trigger: str


class LineageSnapshot(LineageSnapshotOptions):
    created_at: str
    id: str
    reason: str


class LogIn(TypedDict):
    code: str


class Login(TypedDict):
    created_at: str
    # When the login expires. Each use extends it.
    expires_at: str
    id: str
    name: str
    role: Literal["admin", "operator", "viewer"]
    # Time of the last use, rounded to an hour.
    used_at: str


class LoginLink(TypedDict):
    # The code to send to POST /login.
    code: str
    expires_at: str
    # Login URLs. The first one works on this host, the others from elsewhere.
    urls: list[str]


class LoginPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class LoginPage(LoginPageOptions):
    # Items of the page.
    items: list[Login]


class Lost(TypedDict, total=False):
    # Number of lost events, at least.
    records: int
    # The number is incomplete: the size of a gap is not known.
    unknown: bool


class MarketInstallOptions(TypedDict, total=False):
    # Version to install. Default: the newest.
    version: str


class MarketInstall(MarketInstallOptions):
    name: str


class MeOptions(TypedDict, total=False):
    # The login, if the caller is a logged-in browser.
    login: str


class Me(MeOptions):
    name: str
    role: Literal["admin", "operator", "viewer"]


_MessageOdd = TypedDict(
    "_MessageOdd",
    {
        "from": "str",
    },
    total=False,
)


class MessageOptions(_MessageOdd, total=False):
    # Data classes of the text.
    labels: list[str]
    run: str


class Message(MessageOptions):
    at: str
    # in: to the agent. out: from the agent.
    direction: Literal["in", "out"]
    id: str
    # Position in the session.
    seq: int
    session_id: str
    # The text. Personal and secret data is replaced by handles.
    text: str


class MessagePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class MessagePage(MessagePageOptions):
    # Items of the page.
    items: list[Message]


class Meta(TypedDict, total=False):
    pass


class MountOptions(TypedDict, total=False):
    # Mount writable. Default: read-only.
    write: bool


class Mount(MountOptions):
    # A host path that the configuration allows to be mounted.
    source: str
    # A path in the jail.
    target: str


_MoveFileOdd = TypedDict(
    "_MoveFileOdd",
    {
        "from": "str",
    },
    total=False,
)


class MoveFileOptions(_MoveFileOdd, total=False):
    # Replace an existing file at 'to'. Otherwise an existing file is a conflict.
    replace: bool


class MoveFile(MoveFileOptions):
    to: str


class MoveJail(TypedDict, total=False):
    # Name or ID of the node. Default: the node with the fewest jails.
    node: str


class MoveRunOptions(TypedDict, total=False):
    reason: str
    result: str


class MoveRun(MoveRunOptions):
    state: Literal["active", "paused", "done", "failed", "cancelled"]


class MovedJail(TypedDict):
    id: str
    # Name of the node.
    name: str
    # ID of the node that has the jail now.
    node: str


class NodeOptions(TypedDict, total=False):
    # Where the daemons of the fleet reach it, as host:port. Empty: they do not.
    address: str
    # Architecture of its host, as in Go: amd64, arm64.
    arch: str
    # Model of the processor. Snapshots with processes can be used on hosts with the same one.
    cpu: str
    cpus: int
    # Size of the file system with its data directory.
    disk_bytes: int
    # It gets no new jails and sessions.
    draining: bool
    # Free space there, some seconds ago.
    free_disk_bytes: int
    # Memory that can be used without swapping, some seconds ago.
    free_memory_bytes: int
    # It has no jails of its own, and passes requests to the other daemons.
    front: bool
    # Number of its jails, up to a second ago.
    jails: int
    # Release of the kernel.
    kernel: str
    memory_bytes: int
    # Name of its host.
    name: str
    # Size of the newest snapshots of its runs that are not in the object store yet. If the
    # node is lost, these runs continue with earlier files.
    unshipped_bytes: int
    version: str


class Node(NodeOptions):
    # Rises when another process may have its sessions. Writes with an earlier epoch are
    # rejected.
    epoch: int
    # Instance ID of the daemon's data directory.
    id: str
    # Rest of its lease in milliseconds, by the clock of the database. Negative: the lease has
    # expired.
    lease_ms: int
    # Number of active runs in these sessions.
    runs: int
    # Whether it is the daemon that answers.
    self: bool
    # Number of sessions whose runs it executes.
    sessions: int
    # lost: its lease expired, and its sessions were distributed among the other daemons.
    state: Literal["up", "lost"]


class NodePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class NodePage(NodePageOptions):
    # Items of the page.
    items: list[Node]


class NodeToken(TypedDict):
    # Address of the daemon that issues the certificate.
    address: str
    # SHA-256 of the certificate of the fleet's authority, by which the daemon that joins
    # recognizes the fleet.
    authority: str
    # Valid once, for ten minutes.
    token: str


class Observation(TypedDict, total=False):
    log: EventLog
    # Observers by name: kernel, network, gvisor, ptrace. Empty when the jail does not run.
    sources: dict[str, Source]


class Observe(TypedDict, total=False):
    # Names of system calls to record in addition to those that syscalls selects.
    allow: list[str]
    # Whether to record file operations.
    files: Literal["all", "off"]
    # Names of system calls not to record. It takes precedence over syscalls and allow.
    ignore: list[str]
    # Record each packet, totals for each connection (flows), or neither.
    network: Literal["packets", "flows", "off"]
    # throttle: slow down the jail so that no event is lost. count: do not slow down the jail;
    # lost events are counted in a gap.
    on_overload: Literal["throttle", "count"]
    # Number of bytes of each packet to keep for GET …/network/pcap.
    packet_bytes: int
    # Sampling of the remaining system calls: record one of this many.
    sample: int
    # Which system calls to record. security: calls that change privileges, namespaces or
    # mounts, run programs, or act on other processes.
    syscalls: Literal["all", "security", "off"]


class OfferOptions(TypedDict, total=False):
    description: str
    # The installed version of the bundle from the same publisher.
    installed: str


class Offer(OfferOptions):
    digest: str
    market: str
    name: str
    publisher: str
    tier: str
    version: str


class OfferPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class OfferPage(OfferPageOptions):
    # Items of the page.
    items: list[Offer]


class OpenSession(TypedDict, total=False):
    # Default agent of the session's runs.
    agent: RunAgent
    # Data classes that the session's agents may read in plain text. Other classified data is
    # replaced by handles.
    allow: list[str]
    # Budget shared by all runs of the session, by dimension.
    budget: dict[str, int]
    # Name of a group. Sessions in the same group are siblings. Default: no group.
    group: str
    # 1 to 128 letters, digits and ._:-; generated if omitted.
    id: str
    # The jail for all runs of the session. Default: each run gets its own jail.
    jail: str
    labels: dict[str, str]
    # Display name, also used by siblings to address the session.
    name: str


class Origin(TypedDict):
    # The source jail of the snapshot.
    jail: str
    # Number of the jail among those created by the same request, from 1.
    number: int
    snapshot: str


class OutputOptions(TypedDict, total=False):
    # Number of bytes before offset that were discarded.
    lost: int


class Output(OutputOptions):
    # Output bytes, in base64.
    data: str
    # Offset of the first byte of data. Offsets count stdout and stderr together.
    offset: int
    stream: Literal["stdout", "stderr"]


class Overrides(TypedDict, total=False):
    # Default: the jail's id.
    hostname: str
    # Rejected if true: a connection cannot be shared between a jail and its branches. Rewind
    # the jail instead.
    keep_connections: bool
    labels: dict[str, str]
    limits: Limits
    # Display name. If several jails are created, a number is appended.
    name: str
    network: Literal["isolated", "proxy", "bridged", "full"]


class PastOptions(TypedDict, total=False):
    # The instant, if it was given as a time.
    at: Optional[str]
    # The snapshot that the jail was made from. It may have been deleted.
    base: str
    # The nearest snapshot at or before the instant that no rewind has undone. A branch from
    # this instant starts with it.
    snapshot: Snapshot


class Past(PastOptions):
    files: ChangedFiles
    processes: Processes


class Policy(TypedDict, total=False):
    # The agent whose rules apply when a request names no agent.
    agent: str
    # Remembered answers to approval requests.
    answers: list[PolicyRule]
    # The highest level that the jail can be raised to. Default: the level.
    ceiling: int
    # Permission files (opencode.json, .jsonc; later files take precedence over earlier ones)
    # and decision frameworks (AGENTS.md).
    files: list[PolicyFile]
    # The home directory in the jail, which replaces ~ in patterns. Default: /root.
    home: str
    # Autonomy level: 1 guided (the default), 2 intelligent, 3 full.
    level: int
    # Which of several matching patterns takes precedence. Default: the convention that the
    # files were written for.
    match: Literal["longest", "last"]
    # Who must approve an action. The first match applies; without a match the tier is
    # standard.
    tiers: list[PolicyTier]
    # The project directory in the jail, to which file patterns are relative.
    workspace: str


class PolicyAdvice(TypedDict):
    file: str
    line: int
    text: str


class PolicyFile(TypedDict):
    name: str
    # Content of the file.
    text: str


class PolicyFindingOptions(TypedDict, total=False):
    line: int
    remedy: str


class PolicyFinding(PolicyFindingOptions):
    file: str
    kind: str
    message: str


class PolicyLevel(TypedDict):
    # Autonomy level: 1 guided, 2 intelligent, 3 full.
    level: int


class PolicyRuleOptions(TypedDict, total=False):
    # The policy file of the rule.
    file: str
    # The line in the file.
    line: int


class PolicyRule(PolicyRuleOptions):
    # A tool name or pattern.
    action: str
    effect: Literal["allow", "ask", "deny"]
    # Pattern for the resource.
    pattern: str


class PolicyState(TypedDict, total=False):
    # Guidelines of decision frameworks that are not rules. The agent can read them.
    advice: list[PolicyAdvice]
    ceiling: int
    # Lint findings: parts of the files that have another effect than they seem to have.
    findings: list[PolicyFinding]
    level: int
    # Which of several matching patterns takes precedence.
    match: str
    policy: Policy
    # Why this precedence was chosen.
    why: str


class PolicyTier(TypedDict):
    # A tool name or pattern.
    action: str
    # Pattern for the resource.
    pattern: str
    tier: Literal["preapproved", "standard", "elevated"]


class Prepared(TypedDict):
    digest: str
    # The requested reference and the reference to which it was resolved.
    source: str


class ProbeOptions(TypedDict, total=False):
    # What the probe found.
    detail: str
    # required: no jail runs on this host without it. recommended: jails run without it, but
    # Glasshouse lacks a function or is weaker. optional: for special uses, or an alternative.
    need: Literal["required", "recommended", "optional"]
    # What Glasshouse uses the mechanism for.
    purpose: str
    # Why it is not ok.
    reason: str
    # How to enable the mechanism.
    remedy: str


class Probe(ProbeOptions):
    name: str
    # unknown: the probe was inconclusive. warning: the operator should act.
    status: Literal["ok", "unsupported", "unknown", "warning"]


class ProbePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ProbePage(ProbePageOptions):
    # Items of the page.
    items: list[Probe]


class ProblemOptions(TypedDict, total=False):
    # What failed and why.
    detail: str
    # For an internal error: the id under which the daemon's log has details.
    error_id: str
    # The request field or query parameter that is invalid.
    field: str
    # How the caller can resolve the problem.
    remedy: str


class Problem(ProblemOptions):
    # The HTTP status.
    status: int
    # Short description of the problem type.
    title: str
    # URI of the problem type, such as /problems/not-found.
    type: str


class ProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    # Start time. PIDs are reused, so pid and begin_ns together identify a process.
    begin_ns: int
    children: list[int]
    # Command name.
    comm: str
    # exe, argv or cwd is truncated.
    cut: bool
    cwd: str
    # Depth in the process tree.
    depth: int
    # Run time in nanoseconds.
    duration_ns: int
    ended: Optional[str]
    # Events of the process.
    events: EventLink
    exe: str
    # The last programs that the process executed, the current one last.
    execs: list[Program]
    # Total number of programs that the process executed.
    execs_count: int
    # The process existed when observation began.
    existing: bool
    exit_code: Optional[int]
    gid: int
    # PID on the host.
    host_pid: int
    ppid: int
    # Peak resident set size, in bytes.
    rss: int
    # The signal that ended the process.
    signal: str
    # System CPU time in nanoseconds, when the process ended.
    system_ns: int
    threads: int
    uid: int
    # User CPU time in nanoseconds, when the process ended.
    user_ns: int


class Process(ProcessOptions):
    # PID inside the jail.
    pid: int
    # lost: the process ended, and its exit was not observed.
    state: Literal["running", "exited", "killed", "lost"]


class ProcessChanges(TypedDict, total=False):
    # Processes that are on both sides and differ.
    changed: list[ChangedProcess]
    # Connections that are only on the first side.
    closed: list[Connection]
    # Processes that are only on the first side.
    ended: list[ComparedProcess]
    # Number of connections that are not listed.
    more: int
    # Connections that are only on the second side.
    opened: list[Connection]
    # Number of processes that are on both sides and equal.
    same: int
    # Processes that are only on the second side.
    started: list[ComparedProcess]
    # Why the processes cannot be compared.
    unknown: str


class ProcessesOptions(TypedDict, total=False):
    # Total number of processes, including those that ended.
    count: int
    # Number of ended processes that are no longer stored.
    forgotten: int
    # Process events that were lost.
    lost: Lost
    # Number of processes that are not listed because too many existed at the same time.
    untold: int


class Processes(ProcessesOptions):
    # Processes, each after its parent, siblings in order of creation.
    items: list[Process]


class ProfileOptions(TypedDict, total=False):
    # Number of calls that seccomp denied before they were executed.
    denied: int
    # Number of calls that returned an error.
    failed: int
    # Number of failures that the list does not include.
    failures_more: int
    # Number of distinct system calls.
    kinds: Estimate
    # System call events that were lost.
    lost: Lost
    # Number of calls that the list does not include.
    more: int
    # Number of calls that failed for lack of permission.
    refused: int
    # Total duration, in nanoseconds.
    total_ns: int
    # Number of calls that did not return.
    unfinished: int


class Profile(ProfileOptions):
    # System calls, most frequent first.
    calls: list[CallProfile]
    # Number of system calls.
    count: int
    # Errors, most frequent first.
    errors: list[ErrorCount]
    # Failures by system call and error: denied first, then refused, then others.
    failures: list[CallFailure]
    latency: Latency
    # Processes with the most calls first, as many as requested.
    processes: list[CallsOfOne]


class Program(TypedDict, total=False):
    argv: list[str]
    exe: str
    seq: int
    time: str


class PublisherOptions(TypedDict, total=False):
    keys: list[PublisherKey]


class Publisher(PublisherOptions):
    name: str
    # The highest tier that the publisher's bundles may have.
    tier: Literal["informational", "read-only", "standard", "elevated"]


class PublisherKeyOptions(TypedDict, total=False):
    # Why trust in the key was revoked.
    reason: str
    # When the key was replaced by another one.
    retired: Optional[str]
    # When trust in the key was revoked.
    revoked: Optional[str]


class PublisherKey(PublisherKeyOptions):
    added: str
    id: str
    # The public key, in minisign format.
    key: str


class PublisherPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class PublisherPage(PublisherPageOptions):
    # Items of the page.
    items: list[Publisher]


class PushBrowser(TypedDict):
    created_at: str
    id: str
    # The login of the browser.
    login: str
    # Name of the logged-in user.
    name: str
    # Host name of the push service.
    service: str


class PushBrowserPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class PushBrowserPage(PushBrowserPageOptions):
    # Items of the page.
    items: list[PushBrowser]


class PushKey(TypedDict):
    # The applicationServerKey, in base64url.
    key: str


class PutSecret(TypedDict, total=False):
    # The value in base64, if it is not text.
    base64: Optional[str]
    # Reference to a value stored elsewhere: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY.
    reference: str
    # The value. The daemon stores it encrypted.
    value: Optional[str]


class QuestionOptions(TypedDict, total=False):
    # The agent that performs the action.
    agent: str
    # Additional attributes of the action.
    attributes: dict[str, str]
    # The object of the action: a command line, path, URL or host:port.
    resource: str


class Question(QuestionOptions):
    # A tool name: bash, edit, read, webfetch, connect, …
    action: str


class Quota(TypedDict, total=False):
    # Sum of the disk limits of the jails, in bytes. 0 is no limit. Snapshots do not count.
    disk_bytes: int
    # Number of jails. 0 is no limit.
    jails: int
    # Sum of the memory limits of the jails that are not stopped, in bytes. 0 is no limit.
    memory_bytes: int


class ReceivedOptions(TypedDict, total=False):
    # The run that was started.
    run: str


class Received(ReceivedOptions):
    message_id: str
    session_id: str


class RegisterOptions(TypedDict, total=False):
    # Request approval again for a version that was refused or revoked.
    again: bool
    # A host directory against which the manifest's relative paths are resolved. The named
    # files are copied.
    dir: str
    # File name of the manifest, for error messages.
    file: str


class Register(RegisterOptions):
    # The manifest: (capability …) forms, or the equivalent JSON.
    manifest: str


class Replayed(TypedDict):
    # Output of the repeated call.
    output: Any
    # The output equals the recorded output.
    same: bool


class ResumeRun(TypedDict, total=False):
    # Create this many new runs from the checkpoint and leave this run unchanged.
    branch: int
    # New limits, by dimension.
    budget: dict[str, int]
    # Checkpoint to restore. Default: a paused run continues where it was paused; other runs
    # use their last checkpoint.
    checkpoint: str


class Resumed(TypedDict):
    runs: list[Run]


class RevokeCapability(TypedDict, total=False):
    reason: str
    # Version to revoke. Default: the version that calls use.
    version: str


class RevokeTrust(TypedDict, total=False):
    # Digest of a bundle that is no longer trusted.
    digest: str
    # A public key. Bundles that it signed are no longer trusted.
    key: str
    reason: str


class Rewind(TypedDict, total=False):
    # Go back this number of snapshots in the history of the jail. The newest one counts if
    # the jail may have changed since. Changes are saved first, in a snapshot with the reason
    # before and the trigger undo.
    back: int
    # With back: do not save the changes.
    discard: bool
    # Keep the external connections on which the program has neither read nor written since
    # the snapshot. All other external connections are closed. Default:
    # snapshots.keep_connections of the jail.
    keep_connections: Optional[bool]
    # A snapshot of this jail or of an ancestor.
    snapshot: str


class Rootfs(TypedDict, total=False):
    # A Debian suite: bookworm or trixie.
    debian: str
    # A directory of the host.
    dir: str
    # The host's own system directories, read-only. Backend bwrap only.
    host: bool
    # A profile of the flake: base, python, node or build.
    nix: str
    # An image reference, an OCI layout directory or an image tar.
    oci: str
    # A user to add to the tree, with uid 1000 and a home directory. Not available with dir.
    user: str


class RotateKey(TypedDict):
    # The new public key.
    key: str
    # The public key to replace. Its existing signatures remain valid.
    old: str


class RunOptions(TypedDict, total=False):
    branch: int
    # The last checkpoint.
    checkpoint: str
    ended: Optional[str]
    error: str
    jail: str
    # When a scheduled run starts.
    next_run_at: Optional[str]
    # The run that this run was branched from.
    of: str
    parent: str
    # Explanation of the state.
    reason: str
    # The newest checkpoint whose snapshot is in the object store. If the host is lost,
    # another daemon continues the run from it.
    remote_checkpoint: str
    # How often the agent was restarted.
    restarts: int
    # The result that the agent reported.
    result: str
    schedule: str
    started: Optional[str]
    # The completion condition.
    until: Any
    # Why the run is paused.
    why: Literal["approval", "checkpoint", "schedule", "event", "budget", "watchdog", "operator"]


class Run(RunOptions):
    agent: RunAgent
    budget: RunBudget
    created: str
    goal: str
    id: str
    session_id: str
    # scheduled: waits for its start time. paused: see why.
    state: Literal["scheduled", "active", "paused", "done", "failed", "cancelled"]
    # Number of steps so far.
    steps: int


class RunActionOptions(TypedDict, total=False):
    ended: Optional[str]
    # Number of the audit log entry that records the step.
    entry: int
    input: Any
    # Data class of the output.
    label: str
    output: Any


class RunAction(RunActionOptions):
    began: str
    # Idempotency key of the step.
    key: str
    kind: str
    # Step number.
    n: int
    name: str
    state: Literal["begun", "done", "failed", "refused"]


class RunActionPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class RunActionPage(RunActionPageOptions):
    # Items of the page.
    items: list[RunAction]


class RunAgent(TypedDict, total=False):
    # For preset shell: the command to run. For other presets: additional arguments.
    argv: list[str]
    # Additional environment variables.
    env: dict[str, str]
    # The jail to create for the run.
    jail: CreateJail
    # Keep the created jail when the run ends.
    keep: bool
    # Autonomy level: 1 guided, 2 intelligent, 3 full.
    level: int
    # The model. Default: the daemon's default model.
    model: str
    # The agent name for which the permission files are evaluated. Default: policy.agent of
    # the jail, or the default agent of the files.
    policy_agent: str
    # builtin, claude, codex, opencode, gemini or shell. Default: the daemon's default preset.
    preset: str
    # How the daemon communicates with the agent. run (the default): command line. acp: Agent
    # Client Protocol.
    protocol: Literal["run", "acp"]
    # Automatic checkpoints. Default: the daemon's configuration.
    saves: RunSaves
    # Skills of the agent. The capabilities of the skills become its tools.
    skills: list[str]
    # What the agent process runs in. Default: the daemon's default spawner.
    spawner: Literal["jail", "bwrap", "process"]
    # Time limits. Default: those of the autonomy level.
    timers: RunTimers


_RunBudgetOdd = TypedDict(
    "_RunBudgetOdd",
    {
        "run-budget-consumed": "dict[str, int]",
        "run-budget-remaining": "dict[str, int]",
    },
    total=False,
)


class RunBudget(_RunBudgetOdd):
    # Limits by dimension.
    limits: dict[str, int]


class RunEventOptions(TypedDict, total=False):
    # Details, which depend on the kind.
    body: Any
    run: str


class RunEvent(RunEventOptions):
    at: str
    kind: str
    # Number of the event.
    seq: int
    session_id: str


class RunPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class RunPage(RunPageOptions):
    # Items of the page.
    items: list[Run]


class RunSaves(TypedDict, total=False):
    # Take a checkpoint after this many milliseconds, at least 1000.
    every_ms: int
    # Take a checkpoint after this many steps.
    steps: int


class RunTimers(TypedDict, total=False):
    # Time without activity, in milliseconds.
    idle_ms: int
    # Time for one step, in milliseconds.
    step_ms: int
    # Total time in milliseconds, excluding the time in which the run waits for people.
    wall_ms: int


class ScheduleOptions(TypedDict, total=False):
    # Why the last due time failed to start a run. Cleared by the next success.
    error: str
    # Maximum delay of each due time, in milliseconds.
    jitter_ms: int
    # The due time that last started a run.
    last: Optional[str]
    # The next ten due times. Only in the response for a single schedule.
    next: list[str]
    # The next due time.
    next_run_at: Optional[str]
    paused: bool
    # The cron expression.
    schedule: str
    time_zone: str
    # A due time that is queued until the previous run ends.
    waiting: Optional[str]


class Schedule(ScheduleOptions):
    created: str
    # Number of due times that failed after all retries.
    failed: int
    # Number of due times that started a run.
    fired: int
    goal: str
    id: str
    # Number of due times that were missed and not made up for.
    left_out: int
    # Policy for missed due times: skip, once or all.
    missed: str
    # Policy for overlapping runs: skip, queue or allow.
    overlap: str
    session_id: str
    # Number of due times that were skipped because the previous run was still active.
    skipped: int


class SchedulePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SchedulePage(SchedulePageOptions):
    # Items of the page.
    items: list[Schedule]


class SecretOptions(TypedDict, total=False):
    # The E2B key that owns the secret. It is part of the secret's name. Such a secret cannot
    # be granted.
    owner: str
    # Path of the secret at the provider.
    path: str
    # When the secret was last used.
    used_at: Optional[str]


class Secret(SecretOptions):
    created_at: str
    grants: list[Grant]
    name: str
    # Where the value is stored; local is this daemon.
    provider: str
    updated_at: str


class SecretPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SecretPage(SecretPageOptions):
    # Items of the page.
    items: list[Secret]


class SendMessageOptions(TypedDict, total=False):
    # Data classes of the text.
    labels: list[str]
    # Its session_id is used if session_id is omitted.
    meta: Meta
    session_id: str


class SendMessage(SendMessageOptions):
    text: str


class ServiceOptions(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    connections: int
    # Events of the service.
    events: EventLink
    packets_in: int
    packets_out: int
    port: int
    # Number of refused connections.
    refused: int
    # Number of connections without a response.
    unanswered: int


class Service(ServiceOptions):
    # Direction of the connections.
    dir: Literal["egress", "ingress", "loopback"]
    proto: str


class SessionOptions(TypedDict, total=False):
    agent: RunAgent
    budget: RunBudget
    closed: Optional[str]
    group: str
    jail: str
    labels: dict[str, str]
    name: str


class Session(SessionOptions):
    created: str
    id: str
    state: Literal["open", "closed"]


class SessionPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SessionPage(SessionPageOptions):
    # Items of the page.
    items: list[Session]


class Signal(TypedDict):
    # Signal name, such as INT, TERM or KILL, or a number.
    signal: str


class Size(TypedDict):
    cols: int
    rows: int


class SkillOptions(TypedDict, total=False):
    # The bundle that contains the skill.
    bundle: str
    category: str
    description: str
    effects: list[str]
    emoji: str
    # Each use requires approval.
    per_use: bool
    # Why the skill is not given to agents now.
    refused: str
    secrets: list[str]
    # The text that an agent reads. Only in the response for a single skill.
    text: str
    tier: str
    # Tool definitions of the skill's capabilities. Only in the response for a single skill.
    tools: list[SkillTool]
    version: str


class Skill(SkillOptions):
    capabilities: list[str]
    created: str
    name: str


class SkillPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SkillPage(SkillPageOptions):
    # Items of the page.
    items: list[Skill]


class SkillTool(TypedDict):
    # The capability, as id or id@version.
    capability: str
    description: str
    input_schema: Any
    name: str


class SnapshotOptions(TypedDict, total=False):
    # Number of frozen copies that are ready to become branches.
    copies: int
    # Digest of the process images.
    digest: str
    # Bytes that the jail had written to disk.
    disk_bytes: int
    # The host on which the snapshot was taken.
    host: Host
    jail_name: str
    labels: dict[str, str]
    # How the writable layer of a running jail was saved.
    layering: Literal["copied", "stacked"]
    limits: Limits
    links: dict[str, str]
    # The snapshot includes processes, not only files.
    memory: bool
    # Memory usage of the jail.
    memory_bytes: int
    name: str
    # The previous snapshot of the jail: the one last taken, made from or rewound to. It may
    # have been deleted.
    parent: str
    # How long the jail was paused, in microseconds.
    paused_us: int
    # Number of processes and threads.
    pids: int
    runtime: str
    # Sequence number of the last event in the jail's log.
    seq: int
    # For an automatic snapshot: the command that triggered it.
    trigger: str
    # Disk usage. Only in the response for a single snapshot, or with usage=true.
    usage: SnapshotUsage


class Snapshot(SnapshotOptions):
    backend: str
    created_at: str
    id: str
    # The source jail of the snapshot. It may have been deleted.
    jail: str
    network: Literal["isolated", "proxy", "bridged", "full"]
    # Why the snapshot was taken. asked: on request. every: by interval. before, after: by a
    # command. branched: the jail was branched. imported: from another host. copied: a copy of
    # a snapshot of another node of the fleet, which is not listed. moved: for a move of the
    # jail to another node. checkpoint: for an automatic checkpoint of a run.
    reason: Literal["asked", "every", "before", "after", "branched", "imported", "copied", "moved", "checkpoint"]


class SnapshotPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SnapshotPage(SnapshotPageOptions):
    # Items of the page.
    items: list[Snapshot]


class SnapshotUsage(TypedDict, total=False):
    # Bytes that deleting the snapshot would free.
    own_bytes: int
    # Bytes shared with jails and other snapshots.
    shared_bytes: int


class Snapshots(TypedDict, total=False):
    # exec: take a snapshot after each command that a client requested, unless the jail cannot
    # have changed.
    after: Literal["exec"]
    # Take a snapshot before matching commands: exec: and words, such as exec:git push. The
    # first word is the program name; the others must occur among its arguments in this order.
    # * matches anything.
    before: list[str]
    # Interval such as 10m, at least 10s. A snapshot is skipped if the jail cannot have
    # changed since the last one.
    every: str
    # Retention of automatic snapshots. Default: last 5, hourly 24, daily 7.
    keep: Keep
    # Default of keep_connections when the jail is rewound: keep external connections where
    # possible.
    keep_connections: bool


class Source(TypedDict, total=False):
    # Why the observation is incomplete.
    err: str
    # Events that were lost. A gap event counts them.
    lost: int
    # Events recorded since the observer started.
    seen: int
    # How often the jail was throttled so that no event is lost.
    throttled: int


class SparesOptions(TypedDict, total=False):
    # Digest of the root filesystem.
    digest: str
    runtime: str


class Spares(SparesOptions):
    backend: str
    # Number of jails being created.
    making: int
    network: str
    # Number of jails ready for use.
    ready: int
    # When a jail of this configuration was last requested.
    used_at: str


class StartRunOptions(TypedDict, total=False):
    # The agent. Default: the session's agent, or the daemon's default.
    agent: RunAgent
    # Limits by dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes,
    # sandbox-cpu-ms, storage-bytes.
    budget: dict[str, int]
    # Maximum delay of each due time, in milliseconds. It spreads schedules that are due at
    # the same time.
    jitter_ms: int
    # Its session_id is used if session_id is omitted.
    meta: Meta
    # Policy for due times that passed while the scheduler was not running: skip them, run
    # once, or run all. Default: once.
    missed: Literal["skip", "once", "all"]
    # Without a schedule: the time of the run. With a schedule: the earliest time of the first
    # run.
    next_run_at: Optional[str]
    # Action when a limit is reached. pause (the default): the run can be resumed with a
    # larger budget.
    on_exceed: Literal["pause", "stop"]
    # Policy for a due time at which the previous run is still active: skip it, queue it, or
    # allow both runs. Default: skip.
    overlap: Literal["skip", "queue", "allow"]
    # Parent run. This run consumes the parent's budget and is cancelled with it.
    parent: str
    # Cron expression with five fields, or six with leading seconds; or @hourly and similar;
    # or @every 10m.
    schedule: str
    # The session, which is created if it does not exist. Default: a new session.
    session_id: str
    # Time zone of the schedule. Default: UTC.
    time_zone: str
    # Completion condition: "manual", {"capability": id}, {"and": […]}, {"or": […]},
    # {"not": …} or {"rtfs": expression over the run}. Default: the agent reports
    # completion.
    until: Any


class StartRun(StartRunOptions):
    # The goal, in natural language.
    goal: str


class StopJail(TypedDict, total=False):
    # Milliseconds between SIGTERM and SIGKILL. Default: 10000. 0: SIGKILL at once.
    grace_ms: Optional[int]


class StorageOptions(TypedDict, total=False):
    # Limits that are exceeded, and low free space, each with a remedy.
    warnings: list[str]


class Storage(StorageOptions):
    # When the usage was measured. The result is cached.
    at: str
    # Free space of that file system available to the daemon.
    free_bytes: int
    # Parts of the data directory, largest first.
    parts: list[StoragePart]
    # The warm pool: jails created in advance.
    pool: list[Spares]
    # Target number of spare jails for each configuration. 0 disables the pool.
    pool_size: int
    # Size of the file system that contains the data directory.
    total_bytes: int


class StoragePart(TypedDict):
    # Disk usage in bytes.
    bytes: int
    files: int
    name: Literal["events", "jails", "snapshots", "images", "database", "capabilities", "agents", "other"]


class StoredLog(TypedDict):
    # Time of the newest part of the copy.
    at: str
    # Size of the copy, compressed.
    bytes: int
    # Number of the newest entry of the copy.
    entries: int
    # ID of the node.
    node: str


class StoredLogPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class StoredLogPage(StoredLogPageOptions):
    # Items of the page.
    items: list[StoredLog]


class SubscribeBrowserOptions(TypedDict, total=False):
    # Ignored. The push service reports an expired subscription.
    expirationTime: Optional[float]


class SubscribeBrowser(SubscribeBrowserOptions):
    # The https URL of the subscription at the browser's push service.
    endpoint: str
    keys: BrowserKeys


class TakeCheckpoint(TypedDict, total=False):
    # Pause the run until it is resumed.
    pause: bool
    reason: str


class TakeSnapshot(TypedDict, total=False):
    labels: dict[str, str]
    # How the writable layer is saved. copied: it is copied, and the jail keeps its own.
    # stacked: the jail continues on a new layer above it, and its external connections are
    # closed. Default: copied where that is fast.
    layering: Literal["copied", "stacked"]
    # Name of the snapshot, which no other snapshot has.
    name: str
    # Stop the jail after the snapshot.
    stop: bool


class TerminalControl(TypedDict, total=False):
    # New size of the terminal.
    resize: Size
    # Signal to send to the command's process group.
    signal: str


class TerminalEvent(TypedDict, total=False):
    # Error of a control frame or of the terminal.
    error: Problem
    # First frame: the command on this terminal. Pass its id as exec= to reconnect.
    exec: Exec
    # Last frame: how the command ended.
    exit: Exec
    # Number of output bytes before the next frame that were discarded.
    lost: int


_TimelineOdd = TypedDict(
    "_TimelineOdd",
    {
        "from": "str",
    },
    total=False,
)


class TimelineOptions(_TimelineOdd, total=False):
    # Time of the first matching event. Omitted if no event matches.
    first: Optional[str]
    # Time of the last matching event.
    last: Optional[str]


class Timeline(TimelineOptions):
    # Length of a bucket in milliseconds, a power of two.
    bucket_ms: int
    counts: TimelineCounts
    # The processes with the most events, in descending order.
    lanes: list[TimelineLane]
    # Number of events that match the filter, at any time.
    total: int


class TimelineCounts(TypedDict):
    file: list[int]
    net: list[int]
    # Gap, usage and lineage events.
    other: list[int]
    proc: list[int]
    syscall: list[int]


class TimelineLane(TypedDict):
    comm: str
    counts: TimelineCounts
    # PID inside the jail, or 0 if the process is unknown.
    pid: int
    total: int


class Times(TypedDict):
    # The due times.
    times: list[str]


class TokenOptions(TypedDict, total=False):
    expires_at: Optional[str]
    quota: Quota
    # The secret. Only in the response to the token's creation.
    token: str
    # What the jails that were created with the token demand now, on all nodes of the fleet.
    # Only in lists.
    used: Demand


class Token(TokenOptions):
    created_at: str
    id: str
    name: str
    role: Literal["admin", "operator", "viewer", "agent"]


class TokenPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class TokenPage(TokenPageOptions):
    # Items of the page.
    items: list[Token]


class Traffic(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    packets_in: int
    packets_out: int


class TrailEntryOptions(TypedDict, total=False):
    agent: str
    by: str
    # The Linux kernel reported the action; the agent did not.
    observed: bool
    reason: str


class TrailEntry(TrailEntryOptions):
    action: str
    allowed: bool
    at: str
    # The entry as a line of text.
    line: str
    resource: str
    rule: PolicyRule
    # Number of the audit log entry.
    seq: int
    tag: str


class TrailEntryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class TrailEntryPage(TrailEntryPageOptions):
    # Items of the page.
    items: list[TrailEntry]


class TrustCapabilityOptions(TypedDict, total=False):
    # true to trust the version, false to revoke the trust.
    trust: bool
    version: str


class TrustCapability(TrustCapabilityOptions):
    # Digest of the version to trust, as GET /capabilities/{id} returns it.
    digest: str


class UpdateNode(TypedDict, total=False):
    # Whether it gets no new jails and sessions. Those that it has stay.
    draining: Optional[bool]


class Usage(TypedDict, total=False):
    # CPU time since the start, in milliseconds.
    cpu_ms: int
    # Bytes written by the jail.
    disk_bytes: int
    disk_limit_bytes: int
    max_pids: int
    # Memory usage in bytes.
    memory_bytes: int
    # Peak memory usage in bytes.
    memory_peak_bytes: int
    # Fields that this backend cannot measure.
    not_measured: list[str]
    # Number of processes that the kernel's OOM killer ended.
    oom_kills: int
    # Number of processes and threads, excluding those of the jail's init.
    pids: int
    # Bytes received.
    rx_bytes: int
    # Bytes sent.
    tx_bytes: int


_UsageChangesOdd = TypedDict(
    "_UsageChangesOdd",
    {
        "from": "ComparedUsage",
    },
    total=False,
)


class UsageChanges(_UsageChangesOdd, total=False):
    to: ComparedUsage


class VerdictOptions(TypedDict, total=False):
    # The person who answered.
    by: str
    # The resource that is allowed instead of the requested one.
    instead: str


class Verdict(VerdictOptions):
    allow: bool
    decision: Decision
    # Number of the audit log entry.
    entry: int
    # AUTONOMOUS: the rules allowed it. WHITELISTED: the list of pre-approved actions allowed
    # it. APPROVED: a person approved it. DENIED: it was denied.
    tag: Literal["AUTONOMOUS", "WHITELISTED", "APPROVED", "DENIED"]


class VerdictsOptions(TypedDict, total=False):
    # Explanation of the newest decision.
    detail: str
    port: int
    # Reason of a denial or abort, as a keyword: host, port, method, path, denied, rate,
    # bytes, address, …
    reason: str
    # Bytes received by the jail.
    received: int
    # The rule that decided.
    rule: str
    # Bytes sent by the jail.
    sent: int


class Verdicts(VerdictsOptions):
    allowed: bool
    # Number of requests.
    count: int
    # Number of the audit log entry of the newest decision.
    entry: int
    first: str
    # The kind of request: name, DNS resolution; connect, a connection; request, an HTTP
    # request; packet, a packet that the proxy does not carry.
    kind: Literal["name", "connect", "request", "packet"]
    last: str


class VersionOptions(TypedDict, total=False):
    commit: str
    # Release of the host's kernel.
    kernel: str


class Version(VersionOptions):
    go: str
    started_at: str
    version: str


class Warm(TypedDict):
    # Number of frozen copies to keep ready.
    count: int


class Warmed(TypedDict):
    # Number of frozen copies that are ready.
    copies: int


class Who(TypedDict):
    comm: str
    pid: int


class WitnessedLogOptions(TypedDict, total=False):
    # How the log contradicts the checkpoint; absent if it does not.
    conflict: ChainConflict


class WitnessedLog(WitnessedLogOptions):
    # When the checkpoint was received.
    at: str
    # Newest signed checkpoint that contains all earlier ones.
    checkpoint: str
    # Number of entries that the checkpoint covers.
    entries: int
    # Public key of the log.
    key: str
    # ID of the node.
    node: str


class WitnessedLogPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class WitnessedLogPage(WitnessedLogPageOptions):
    # Items of the page.
    items: list[WitnessedLog]


class WorkspaceOptions(TypedDict, total=False):
    # Default: the same path as source.
    target: str


class Workspace(WorkspaceOptions):
    # A host directory.
    source: str
