# Made by `make sdk` from the OpenAPI document. Do not edit.
"""What the API takes and gives, as the dictionaries that JSON makes of it.

A field that an answer lacks is not in the dictionary: ask with get(). What a later
daemon says beyond this is kept as it came.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict


class AddPublisher(TypedDict):
    # A public key of minisign's format.
    key: str
    # What is taken from them at the most.
    tier: Literal["informational", "read-only", "standard", "elevated"]


class AddSkillOptions(TypedDict, total=False):
    # What it is called where something is wrong in it.
    file: str


class AddSkill(AddSkillOptions):
    text: str


class AnswerApprovalOptions(TypedDict, total=False):
    # The agent reads it.
    reason: str
    # With modify: what is allowed in the place of what was asked.
    resource: str
    # How long it holds: for this request (the default), until the jail or the daemon ends, or
    # with the policy of the jail.
    scope: Literal["once", "session", "always"]
    # The phrase, if it takes one.
    typed: str


class AnswerApproval(AnswerApprovalOptions):
    answer: Literal["allow", "deny", "modify"]


class ApprovalOptions(TypedDict, total=False):
    answer: ApprovalAnswer
    # With last=N: the last records of the jail before, as docs/events.md has them, oldest
    # first.
    before: list[Any]
    context: str
    details: list[str]
    # What would change, as diff -u writes it: of a file as it was when it was asked.
    diff: str
    # Of the chain, in which its end is recorded.
    entry: int
    # Who has allowed it, if it takes two.
    first: str
    jail: str
    # Why there is no diff.
    no_diff: str
    # Why it is no longer pending.
    outcome: str
    # To type, to allow it alone.
    phrase: str
    settled_at: Optional[str]
    # How many wait for it now.
    waiting: int
    # The rule that allowing it for longer than once would write, by scope.
    writes: dict[str, str]


class Approval(ApprovalOptions):
    created_at: str
    expires_at: str
    id: str
    # As it was asked.
    question: Question
    # That says to ask.
    rule: str
    state: Literal["pending", "answered", "expired", "withdrawn"]
    # Who it takes to allow it: nobody, a person, or one who types the phrase, or two.
    tier: Literal["preapproved", "standard", "elevated"]
    # Short; never all there is to see.
    title: str
    # All of what would be done.
    what: str
    who: str
    why: str


class ApprovalAnswerOptions(TypedDict, total=False):
    reason: str
    resource: str


class ApprovalAnswer(ApprovalAnswerOptions):
    answer: Literal["allow", "deny", "modify"]
    at: str
    by: str
    channel: str
    scope: Literal["once", "session", "always"]


class ApprovalEvent(TypedDict):
    approval: Approval
    at: str
    kind: Literal["asked", "seconded", "answered", "expired", "withdrawn", "refused"]


class ApprovalPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ApprovalPage(ApprovalPageOptions):
    items: list[Approval]


class BackendOptions(TypedDict, total=False):
    # What it cannot hold or do on this host, each with the reason.
    lacks: dict[str, str]
    # Why it is not usable.
    reason: str
    remedy: str
    runtime: str


class Backend(BackendOptions):
    name: str
    usable: bool


class BackendPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class BackendPage(BackendPageOptions):
    items: list[Backend]


class Bounds(TypedDict, total=False):
    # Processors: a weight of 1024 is one.
    cpu: float
    # MiB.
    disk_mb: int
    # MiB.
    memory_mb: int
    pids: int


class Branch(TypedDict, total=False):
    # Default 1.
    count: int
    # Default: the jail's id.
    hostname: str
    # Refused: of a jail and its branches only one could speak on a connection. Rewind the
    # jail instead.
    keep_connections: bool
    labels: dict[str, str]
    limits: Limits
    # A name for people. Of several jails, each has its number at the end.
    name: str
    network: Literal["isolated", "proxy", "bridged", "full"]


class BranchError(TypedDict):
    # Of the jail, from 1.
    number: int
    problem: Problem


class BranchesOptions(TypedDict, total=False):
    errors: list[BranchError]
    # That was taken for them, if a jail was branched.
    snapshot: Snapshot


class Branches(BranchesOptions):
    jails: list[Jail]


class BrowserKeys(TypedDict):
    auth: str
    p256dh: str


class BundleOptions(TypedDict, total=False):
    # Why nothing of it is called now: nobody vouches for it any more.
    barred: str
    digest: str
    installed: Optional[str]
    # An installation that waits, or that was refused.
    next: BundleInstall
    publisher: str
    # What can be done about that.
    remedy: str
    skill: str
    tier: str
    # From then on nothing of it is called.
    until: Optional[str]
    # Of what is installed; empty if nothing is.
    version: str


class Bundle(BundleOptions):
    # id@version
    capabilities: list[str]
    name: str


class BundleInstallOptions(TypedDict, total=False):
    approval: str
    why: str


class BundleInstall(BundleInstallOptions):
    digest: str
    state: Literal["pending", "refused"]
    version: str


class BundlePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class BundlePage(BundlePageOptions):
    items: list[Bundle]


class Call(TypedDict, total=False):
    # What the run may spend, by dimension: steps, wall-clock-ms, sandbox-cpu-ms,
    # network-bytes, storage-bytes. It counts from the run's first call on.
    budget: dict[str, int]
    # As the input schema wants it. Without it, null.
    input: Any
    # Call as this jail: its rules decide.
    jail: str
    # Of what is in the input: public, redacted, pii, secret, and with dots what of it.
    labels: list[str]
    # Whose budget it draws from.
    run: str
    # Whose files a capability of mode session sees.
    session: str
    # At most the capability's own.
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
    # The same, for agents.
    message: str
    remedy: str


class CallError(CallErrorOptions):
    kind: str
    reason: str


_CallFailureOdd = TypedDict(
    "_CallFailureOdd",
    {
        "class": "Literal['denied', 'refused', 'failed']",
    },
    total=False,
)


class CallFailureOptions(_CallFailureOdd, total=False):
    at_least: bool
    comm: str
    events: EventLink
    path: str
    # Of the first, as are comm and path.
    pid: int


class CallFailure(CallFailureOptions):
    count: int
    errno: str
    name: str


class CallLimits(TypedDict, total=False):
    cpu_shares: int
    max_pids: int
    # MiB.
    memory_mb: int
    # Both ways together.
    network_bytes: int
    timeout_ms: int


class CallProfileOptions(TypedDict, total=False):
    at_least: bool
    denied: int
    events: EventLink
    failed: int
    # Of which it is known how long they took.
    timed: int


class CallProfile(CallProfileOptions):
    count: int
    latency: Latency
    name: str


class CallUsageOptions(TypedDict, total=False):
    memory_peak_bytes: int
    network_ingress_bytes: int
    steps: int


class CallUsage(CallUsageOptions):
    network_egress_bytes: int
    sandbox_cpu_ms: float
    # Where the time went, in microseconds.
    steps_us: dict[str, int]
    storage_write_bytes: int
    wall_ms: float


class CalledOptions(TypedDict, total=False):
    budget: CallBudget
    digest: str
    # Of the chain, in which it is recorded.
    entry: int
    error: CallError
    # Of the output.
    label: str
    # The end of what it wrote to its standard error.
    log: str
    output: Any
    # The jail that served it. The chain has under its name what left it, and which secrets it
    # used.
    sandbox: str
    version: str
    warm: bool
    # Why the version that was called is not the newest one: a newer one is revoked.
    warning: str


class Called(CalledOptions):
    began: str
    capability: str
    id: str
    state: Literal["done", "failed", "refused"]
    usage: CallUsage


class CallsOfOneOptions(TypedDict, total=False):
    at_least: bool
    denied: int
    failed: int


class CallsOfOne(CallsOfOneOptions):
    comm: str
    count: int
    latency: Latency
    pid: int


class CapabilityOptions(TypedDict, total=False):
    # That it waits for, or had.
    approval: str
    bundle: str
    by: str
    description: str
    hosts: list[str]
    # JSON Schema 2020-12.
    input_schema: Any
    # Of one call, as the manifest has them; of one capability only.
    limits: CallLimits
    # As it was given; of one capability only.
    manifest: str
    # What a person has to allow, or has.
    new: list[str]
    # JSON Schema 2020-12.
    output_schema: Any
    # A person is asked each time.
    per_use: bool
    secrets: list[str]
    settled: Optional[str]
    # An operator trusts this digest to run on the host itself.
    trust: bool
    why: str


class Capability(CapabilityOptions):
    created: str
    # Of the manifest and the files that belong to it.
    digest: str
    effects: list[str]
    id: str
    runtime: str
    state: Literal["pending", "approved", "refused", "revoked"]
    tier: str
    version: str


class CapabilityPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class CapabilityPage(CapabilityPageOptions):
    items: list[Capability]


class ChainBadOptions(TypedDict, total=False):
    # Of an export.
    line: int
    # Of the entry; none if all entries are right.
    seq: int


class ChainBad(ChainBadOptions):
    reason: str


_ChainConsistencyOdd = TypedDict(
    "_ChainConsistencyOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChainConsistency(_ChainConsistencyOdd):
    path: list[str]
    to: str


class ChainEntry(TypedDict):
    agent: str
    body: Any
    capability: str
    hash: str
    jail: str
    kind: str
    # The entry that caused this one; 0 if none did.
    parent: int
    prev: str
    run: str
    seq: int
    session: str
    time: str


class ChainEntryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ChainEntryPage(ChainEntryPageOptions):
    items: list[ChainEntry]


class ChainFrom(TypedDict):
    checkpoint: str


class ChainHeadOptions(TypedDict, total=False):
    # The newest, signed, in the format of C2SP tlog-checkpoint.
    checkpoint: str


class ChainHead(ChainHeadOptions):
    entries: int
    # The public key that checkpoints are verified with.
    key: str


class ChainProof(TypedDict):
    checkpoint: str
    entry: ChainEntry
    # Hashes, base64, from the entry to the root, as in RFC 6962.
    path: list[str]


class ChainReportOptions(TypedDict, total=False):
    # The first thing that is wrong, if anything is.
    bad: ChainBad
    key: str


class ChainReport(ChainReportOptions):
    # That were checked.
    checkpoints: int
    # That are right, from the first.
    entries: int
    # Rather than found beside what it vouches for.
    key_given: bool
    # Entries that the last of them vouches for.
    signed: int


_ChangeOdd = TypedDict(
    "_ChangeOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChangeOptions(_ChangeOdd, total=False):
    # With content=unified: the difference, as diff -u writes it.
    diff: str
    # Permission bits, octal.
    mode: str
    # With content=unified: why a file has no difference here: binary, too large, moving.
    no_diff: str
    size: int
    # file, dir, symlink, fifo, socket, char or block.
    type: str
    # What differs, where both sides are there: content, mode, owner, times, xattrs.
    what: list[str]


class Change(ChangeOptions):
    kind: Literal["added", "modified", "deleted", "metadata", "renamed"]
    path: str


class ChangePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ChangePage(ChangePageOptions):
    items: list[Change]


_ChangedFileOdd = TypedDict(
    "_ChangedFileOdd",
    {
        "from": "str",
    },
    total=False,
)


class ChangedFileOptions(_ChangedFileOdd, total=False):
    bytes_written: int
    changes: int
    comm: str
    pid: int
    seq: int
    # Changed after the snapshot: a branch of that has not this change.
    since_snapshot: bool
    # Of the last change, as are seq, pid and comm.
    time: str
    # If it is known.
    type: Literal["file", "dir", "symlink", "node"]


class ChangedFile(ChangedFileOptions):
    kind: Literal["added", "modified", "deleted", "metadata", "renamed"]
    path: str


class ChangedFilesOptions(TypedDict, total=False):
    # There were more, changed earlier.
    at_least: bool
    count: int
    # Records of files that are missing.
    lost: Lost
    # False where operations on files are not recorded of this jail.
    recorded: bool


class ChangedFiles(ChangedFilesOptions):
    # The last change first.
    items: list[ChangedFile]


class ChangedProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    comm: str
    # There is more than is told.
    cut: bool
    cwd: str
    env: list[EnvChange]
    exe: str
    ppid: int
    # If what it runs, or where, differs.
    was: ComparedProcess


class ChangedProcess(ChangedProcessOptions):
    # Inside the jail.
    pid: int


class CheckpointOptions(TypedDict, total=False):
    # Nobody asked for it: it is forgotten when there are enough newer ones.
    auto: bool
    # Of the chain.
    entry: int
    reason: str
    # Of its jail.
    snapshot: str
    # What the agent keeps of itself; of one checkpoint only.
    state: Any


class Checkpoint(CheckpointOptions):
    at: str
    digest: str
    id: str
    n: int
    run: str
    # How far the run had come.
    steps: int


class CheckpointPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class CheckpointPage(CheckpointPageOptions):
    items: list[Checkpoint]


class ClaimedDecisionOptions(TypedDict, total=False):
    agent: str
    args: Any
    timestamp: str
    wait_ms: int


class ClaimedDecision(ClaimedDecisionOptions):
    tool: str


class ComparedEndOptions(TypedDict, total=False):
    name: str
    # Of the last record in the jail's log then.
    seq: int
    # If it is one; else it is the jail as it is now.
    snapshot: str
    state: str
    time: str


class ComparedEnd(ComparedEndOptions):
    jail: str


class ComparedProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    comm: str
    # There is more than is told.
    cut: bool
    cwd: str
    exe: str
    ppid: int


class ComparedProcess(ComparedProcessOptions):
    # Inside the jail.
    pid: int


class ComparedUsage(TypedDict, total=False):
    cpu_ns: int
    disk_bytes: int
    memory_bytes: int
    not_measured: list[str]
    # And threads.
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
    # In the root filesystem.
    files: FileChanges
    processes: ProcessChanges
    usage: UsageChanges
    # If a side has one.
    workspace: FileChanges


class Comparison(ComparisonOptions):
    to: ComparedEnd


class ConditionOptions(TypedDict, total=False):
    remedy: str


class Condition(ConditionOptions):
    detail: str
    # disk_read_only: its filesystem had an error, and refuses writes until the jail was
    # stopped and started. events_not_written: it is held because its events cannot be
    # written, and continues when they can be.
    type: Literal["disk_read_only", "events_not_written"]


class ConnectedHostOptions(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    connections: int
    first: Optional[str]
    last: Optional[str]
    packets_in: int
    packets_out: int
    # There were others.
    processes_more: bool
    refused: int
    unanswered: int


class ConnectedHost(ConnectedHostOptions):
    # Its name if the jail asked for it, else its address.
    host: str
    # The first few.
    processes: list[Who]
    # Of the most bytes first.
    services: list[Service]
    # Of what governs the way out, the newest first. Of a jail without a proxy there are none.
    verdicts: list[Verdicts]


class Connection(TypedDict, total=False):
    comm: str
    local: str
    pid: int
    proto: Literal["tcp", "udp"]
    remote: str
    # listening, established and so on; of udp: open.
    state: str


class ConnectionsOptions(TypedDict, total=False):
    count: Estimate
    # Records of packets that are missing.
    lost: Lost
    # Of hosts that are not in the list.
    more: Traffic
    total: Traffic
    # Of requests, that are not in the list.
    verdicts_more: int


class Connections(ConnectionsOptions):
    # Of the most bytes first; then those that were only decided about.
    items: list[ConnectedHost]


class ConnectorOptions(TypedDict, total=False):
    # Of a hook: where others find it. Of a post: the host it goes to.
    address: str
    # Of the run that it begins, as it is configured.
    goal: str
    # Whom it tells, as it is configured.
    session: str
    # Whose words it carries: names, or patterns with *.
    sessions: list[str]


class Connector(ConnectorOptions):
    # Deliveries that failed too often.
    dead: int
    # A hook takes what others post, a post has what is said in sessions posted to others, a
    # relay tells one session what is said in others.
    kind: Literal["hook", "post", "relay"]
    name: str
    # Deliveries that wait.
    pending: int


class ConnectorPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ConnectorPage(ConnectorPageOptions):
    items: list[Connector]


class ConsideredRuleOptions(TypedDict, total=False):
    decides: bool
    matches: bool


class ConsideredRule(ConsideredRuleOptions):
    part: str
    rule: PolicyRule
    set: str


class CreateE2BKey(TypedDict, total=False):
    # Whose it is. Default: the caller's.
    name: str


class CreateJail(TypedDict, total=False):
    # What isolates: oci or bwrap.
    backend: str
    # Run at start. Its end does not end the jail.
    command: list[str]
    # Working directory of every command.
    cwd: str
    # Of a jail in network mode proxy: what leaves it.
    egress: Egress
    # The policy decides what the jail's processes do as the kernel of the machine sees it:
    # programs, files, connections.
    enforce: bool
    # Environment of every command.
    env: dict[str, str]
    # Default: the jail's id.
    hostname: str
    # Words to find the jail by.
    labels: dict[str, str]
    limits: Limits
    mounts: list[Mount]
    # A name for people. Need not be unique.
    name: str
    # isolated (the default) has only its own loopback; proxy reaches what the egress rules
    # let through; bridged reaches jails of its group; full reaches outward.
    network: Literal["isolated", "proxy", "bridged", "full", "Isolated", "FullAccess"]
    # Of a bridged jail: which jails it sees. The default is the group default.
    network_group: str
    # What of it is recorded.
    observe: Observe
    # What it may do, and about what a person is asked.
    policy: Policy
    rootfs: Rootfs
    # The OCI runtime: runc, crun or runsc.
    runtime: str
    # The session that it belongs to: its programs find the gateway at http://localhost:4097.
    session_id: str
    # When snapshots of it are taken unasked.
    snapshots: Snapshots
    # Start it as well. A jail that cannot be started is not kept.
    start: bool
    # User of every command: a name, a uid, name:group or uid:gid.
    user: str
    workspace: Workspace


class CreateLoginLink(TypedDict, total=False):
    # Whose login it is; default: of who asks.
    label: str
    # What the login may do; default: what who asks may.
    role: Literal["admin", "operator", "viewer"]


class CreateTokenOptions(TypedDict, total=False):
    # Default: never.
    expires_at: Optional[str]


class CreateToken(CreateTokenOptions):
    # Whose it is.
    name: str
    role: Literal["admin", "operator", "viewer", "agent"]


class DeadNoticeOptions(TypedDict, total=False):
    body: Any
    error: str


class DeadNotice(DeadNoticeOptions):
    approval: str
    attempts: int
    channel: str
    created_at: str
    id: str
    kind: str


class DeadNoticePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class DeadNoticePage(DeadNoticePageOptions):
    items: list[DeadNotice]


class DecideOptions(TypedDict, total=False):
    agent: str
    attributes: dict[str, str]
    # What it is done to: a command line, a path, a URL, host:port.
    resource: str
    # How long to wait for a person, if one is to be asked. The default is a minute.
    wait_ms: int


class Decide(DecideOptions):
    # A tool's name: bash, edit, read, webfetch, connect, …
    action: str


class DecisionOptions(TypedDict, total=False):
    # No remembered answer changes it.
    final: bool
    # The list of pre-approved actions allows it.
    listed: bool
    remedy: str


class Decision(DecisionOptions):
    # What the rules say.
    effect: Literal["allow", "ask", "deny"]
    reason: str
    # That decided.
    rule: PolicyRule


class DeliveryOptions(TypedDict, total=False):
    # Of the last attempt.
    error: str
    # When it is tried next, or may be.
    next: Optional[str]


class Delivery(DeliveryOptions):
    attempts: int
    connector: str
    # The same at each attempt.
    id: str
    message_id: str
    session_id: str
    state: Literal["pending", "delivered", "dead"]


class DeliveryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class DeliveryPage(DeliveryPageOptions):
    items: list[Delivery]


class E2BKeyOptions(TypedDict, total=False):
    # The certificate, PEM, of the authority that clients have to trust, if the daemon has
    # made one.
    ca: str


class E2BKey(E2BKeyOptions):
    # For E2B_DOMAIN: the ports of sandboxes are hosts below it.
    domain: str
    # The token's, by which it is revoked.
    id: str
    # For E2B_API_KEY. It is shown once.
    key: str
    # For E2B_API_URL and E2B_SANDBOX_URL.
    url: str


class EditSchedule(TypedDict, total=False):
    jitter_ms: Optional[int]
    missed: Optional[Literal["skip", "once", "all"]]
    overlap: Optional[Literal["skip", "queue", "allow"]]
    # As of a run that is started.
    schedule: Optional[str]
    time_zone: Optional[str]


class Egress(TypedDict, total=False):
    # The first rule that matches counts.
    allow: list[EgressRule]
    # What no rule allows a person is asked about, rather than refused.
    ask: bool
    # For everything together.
    limit: EgressLimit
    # Paths are recorded with their query, which may hold what is private.
    query: bool


_EgressInjectOdd = TypedDict(
    "_EgressInjectOdd",
    {
        "as": "Literal['bearer', 'header', 'query', 'basic']",
    },
    total=False,
)


class EgressInjectOptions(_EgressInjectOdd, total=False):
    # Of the header, parameter or user.
    name: str


class EgressInject(EgressInjectOptions):
    secret: str


class EgressLimit(TypedDict, total=False):
    # Both ways together.
    bytes: int
    per_ms: int
    # In a minute, or in per_ms.
    requests: int


class EgressRuleOptions(TypedDict, total=False):
    capability: str
    # Refuse the address or prefix, by whatever name it is reached, unless a rule before this
    # one allows it. Without ports, every port.
    deny: bool
    # Secrets put into requests. The jail never has them.
    inject: list[EgressInject]
    # Look into TLS, with a certificate authority that this jail alone trusts. Implied by
    # inject, methods and paths.
    intercept: bool
    # Of an address or prefix: only what of it is on the Internet. Without ports, every port.
    internet: bool
    limit: EgressLimit
    methods: list[str]
    # As people know it, for messages.
    name: str
    # Patterns, in which * is any run of characters.
    paths: list[str]
    # The default is 80 and 443.
    ports: list[int]


class EgressRule(EgressRuleOptions):
    # A name, *.example.com, * for every name, or an address or prefix. Only what is listed as
    # an address may be one of a private network.
    host: str


class EgressStateOptions(TypedDict, total=False):
    # Of this life of the jail.
    stats: EgressStats


class EgressState(EgressStateOptions):
    egress: Egress


class EgressStatsOptions(TypedDict, total=False):
    # By reason.
    refused: dict[str, int]


class EgressStats(EgressStatsOptions):
    connections: int
    # Connections at this moment.
    open: int
    # Of DNS.
    queries: int
    received: int
    requests: int
    # Bytes from the jail.
    sent: int


_EnvChangeOdd = TypedDict(
    "_EnvChangeOdd",
    {
        "from": "Optional[str]",
    },
    total=False,
)


class EnvChangeOptions(_EnvChangeOdd, total=False):
    # Its name is that of a secret: the values are left out.
    hidden: bool
    to: Optional[str]


class EnvChange(EnvChangeOptions):
    name: str


class ErrorCount(TypedDict):
    count: int
    errno: str


class Estimate(TypedDict, total=False):
    # It is good to a few hundredths.
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
    # If it is not the machine's own.
    abi: str
    addr: str
    args: list[int]
    argv: list[str]
    # ns of a flow's first packet, or at which the process began.
    begin: int
    bytes: Optional[int]
    # Of reads or writes in quick succession, how many this record sums up.
    calls: int
    # The return of fork or clone in the new task.
    child: bool
    comm: str
    cpu_ns: int
    # A string or list is longer than what is kept.
    cut: bool
    cwd: str
    # seccomp refused the call before it was entered.
    denied: bool
    dir: Literal["egress", "ingress", "loopback"]
    disk_bytes: int
    dst: str
    dur_ns: int
    exe: str
    # Was there when observation began.
    existing: bool
    exit_code: Optional[int]
    fd: Optional[int]
    gid: Optional[int]
    # The name the jail asked for to get the other side's address.
    host: str
    host_pid: int
    iface: str
    # Made by Glasshouse in the jail's processes.
    injected: bool
    # How many; -1 is unknown.
    lost: int
    memory_bytes: int
    # Of the system call.
    name: str
    nr: int
    # Monotonic nanoseconds of the host.
    ns: int
    # What was done to a file, happened to a process, or was done with a snapshot.
    op: str
    # Of a flow.
    packets: int
    # The jail that the snapshot was taken of.
    parent: str
    # Of the last record in the parent's log that the snapshot knows of.
    parent_seq: Optional[int]
    # The caller was inside the call when observation began.
    partial: bool
    # Inside the jail.
    path: str
    # Inside the jail.
    pid: int
    pids: int
    ppid: int
    proto: str
    # Memory said another path than the kernel used.
    raced: bool
    # The jail's disk refuses writes after an error.
    read_only: bool
    # What the kernel opened, where that differs from path.
    real: str
    reason: str
    # Negative is -errno.
    ret: Optional[int]
    rss: int
    rx_bytes: int
    # That ended the process.
    signal: str
    snapshot: str
    # Type of the records that are missing here.
    source: str
    src: str
    system_ns: int
    # Flags of the packet, or all of a flow.
    tcp: str
    # Of a thread, not of a whole process.
    thread: bool
    through: int
    tid: int
    to: str
    tx_bytes: int
    uid: Optional[int]
    # The caller died inside the call.
    unfinished: bool
    # The path of a descriptor is not known.
    unresolved: bool
    user_ns: int


class Event(EventOptions):
    jail: str
    # Gapless in one jail, from 1; in one made from a snapshot, from where its parent was.
    seq: int
    # Milliseconds since 1970.
    ts: int
    type: Literal["syscall", "file", "net", "proc", "gap", "usage", "lineage"]


_EventChangesOdd = TypedDict(
    "_EventChangesOdd",
    {
        "from": "EventCount",
    },
    total=False,
)


class EventChanges(_EventChangesOdd, total=False):
    # Where both come from; none if they are not related.
    since: ComparedEnd
    # From there to the other.
    to: EventCount


class EventCount(TypedDict, total=False):
    # by_type is less than the total: some are not kept, or there are too many.
    at_least: bool
    by_type: dict[str, int]
    total: int
    unknown: str


class EventLink(TypedDict, total=False):
    first: int
    last: int
    # A filter, for GET …/events.
    q: str


class EventLog(TypedDict, total=False):
    # What they take on disk.
    bytes: int
    # Why nothing can be written now.
    err: str
    # Records that are kept.
    events: int
    # Sequence number of the oldest record kept.
    first: int
    # Sequence number given last.
    last: int
    # By type: records that found no room. Each is counted in a gap.
    lost: dict[str, int]
    # Files.
    segments: int


class EventWindow(TypedDict):
    # Records, as docs/events.md has them.
    items: list[Any]
    # Of the first of the items; 0 is the oldest record.
    offset: int
    # How many records the filter means.
    total: int


class ExecOptions(TypedDict, total=False):
    argv: list[str]
    duration_ms: int
    # base64 if stdout or stderr is not UTF-8; then both are encoded so.
    encoding: Literal["base64"]
    ended_at: Optional[str]
    # 128 plus the signal's number if one ended it. Absent while it runs.
    exit_code: Optional[int]
    # Offset that the next output byte will have.
    next: int
    # Offset of the first output byte still kept.
    oldest: int
    # Inside the jail.
    pid: int
    pty: bool
    running: bool
    # The signal that ended it, such as KILL.
    signal: str
    started_at: str
    stderr: str
    stderr_bytes: int
    # Where the answer carries output.
    stdout: str
    # Written so far, kept or not.
    stdout_bytes: int
    timed_out: bool
    # stdout and stderr do not hold all that was written.
    truncated: bool


class Exec(ExecOptions):
    id: str


class ExecPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ExecPage(ExecPageOptions):
    items: list[Exec]


class ExecRequest(TypedDict, total=False):
    # The command and its arguments.
    argv: list[str]
    # A line for /bin/sh.
    cmd: str
    cwd: str
    # Answer as soon as the command runs.
    detach: bool
    # Added to the jail's environment.
    env: dict[str, str]
    # Output kept in the jail for readers that come later. Default 1 MiB.
    keep_bytes: int
    # With stream: let a slow reader slow the command down, rather than lose output. A stream
    # that ends without the event exit or error was cut off, as one is whose reader takes
    # nothing for 5 minutes; GET /jails/{id}/execs/{exec} with Last-Event-ID continues it.
    lossless: bool
    # Run on a terminal of this size.
    pty: Size
    # What the command reads.
    stdin: str
    # stdin is base64.
    stdin_base64: bool
    # Keep standard input open after stdin, for POST …/stdin.
    stdin_open: bool
    # Answer with server-sent events: start, output, exit.
    stream: bool
    # Then the whole process group is killed.
    timeout_ms: int
    user: str


class ExplainOptions(TypedDict, total=False):
    jail: str
    # The default is the jail's.
    policy: Policy


class Explain(ExplainOptions):
    question: Question


class ExplainedOptions(TypedDict, total=False):
    considered: list[ConsideredRule]
    # Of a connection from a jail behind the proxy, whose rules come first: what they allow
    # leaves without a question.
    egress: ExplainedEgress


class Explained(ExplainedOptions):
    decision: Decision


class ExplainedEgressOptions(TypedDict, total=False):
    # They leave it to the policy.
    asks: bool
    detail: str
    reason: str
    remedy: str
    # That allows it, or comes nearest.
    rule: str


class ExplainedEgress(ExplainedEgressOptions):
    allow: bool


class FeedEventOptions(TypedDict, total=False):
    # Who did it.
    agent: str
    # Of the topic approval: the request, as it is now.
    approval: Approval
    body: Any
    jail: str
    run: str
    session: str


class FeedEvent(FeedEventOptions):
    at: str
    # Of the entry: jail.created, approval.asked, run.moved and so on.
    kind: str
    # Of its entry in the chain.
    seq: int


class FeedHelloEventOptions(TypedDict, total=False):
    # The Last-Event-ID was none of this daemon's: what happened before now has to be asked
    # for anew.
    reset: bool


class FeedHelloEvent(FeedHelloEventOptions):
    at: str


class FeedJailsEventOptions(TypedDict, total=False):
    all: bool


class FeedJailsEvent(FeedJailsEventOptions):
    jails: list[JailRow]


class FileOptions(TypedDict, total=False):
    gid: int
    mtime: str
    # Of a symlink.
    target: str
    uid: int


class File(FileOptions):
    # Permission bits with setuid, setgid and sticky, octal.
    mode: str
    name: str
    path: str
    size: int
    type: Literal["file", "dir", "symlink", "fifo", "socket", "char", "block"]


class FileChanges(TypedDict, total=False):
    # By kind.
    counts: dict[str, int]
    # By path.
    list: list[Change]
    # That are not listed. GET /jails/{id}/fs/diff lists all of a jail's, in pages.
    more: int
    # Why nothing can be told.
    unknown: str


class FileEventOptions(TypedDict, total=False):
    dir: bool


class FileEvent(FileEventOptions):
    # overflow: some were missed.
    op: Literal["create", "write", "delete", "rename", "attrib", "overflow"]
    path: str


class FilePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class FilePage(FilePageOptions):
    items: list[File]


class FlowOptions(TypedDict, total=False):
    # There was more before it found room in the list.
    at_least: bool
    begin: str
    bytes_in: int
    bytes_out: int
    comm: str
    # Of its last packet so far.
    end: str
    # Where its records are.
    events: EventLink
    # The name the jail asked for to get the address.
    host: str
    packets_in: int
    packets_out: int
    pid: int
    refused: int
    # open: a protocol without connections.
    state: Literal["unanswered", "refused", "established", "closed", "reset", "open"]
    # It was begun; more than 1 if its ports were used again.
    times: int


class Flow(FlowOptions):
    # Who began it.
    dir: Literal["egress", "ingress", "loopback"]
    local: str
    proto: str
    remote: str


class FlowsOptions(TypedDict, total=False):
    # All there were. If they are too many to be kept, those of the most bytes are listed.
    count: int
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class Flows(FlowsOptions):
    items: list[Flow]


_GrantOdd = TypedDict(
    "_GrantOdd",
    {
        "from": "str",
    },
    total=False,
)


class GrantOptions(_GrantOdd, total=False):
    branches: bool
    by: str
    capability: str
    expires_at: Optional[str]
    hosts: list[str]
    jail: str
    run: str
    session: str


class Grant(GrantOptions):
    created_at: str
    delivery: Literal["file", "inject"]
    id: str
    secret: str


class GrantSecret(TypedDict, total=False):
    # A branch of the jail gets a grant of its own.
    branches: bool
    capability: str
    # As /run/secrets/NAME in the jail (the default), or in requests on their way out, so that
    # the jail never has it.
    delivery: Literal["file", "inject"]
    expires_at: Optional[str]
    # Of inject: where it may be sent, such as api.example.com.
    hosts: list[str]
    jail: str
    run: str
    session: str


class Health(TypedDict):
    status: Literal["ok"]


class Host(TypedDict, total=False):
    arch: str
    cpu: str
    kernel: str


class ImageOptions(TypedDict, total=False):
    # What the archive held and the image does not, with the reason.
    skipped: list[str]


class Image(ImageOptions):
    created_at: str
    digest: str
    files: int
    # Bytes of its files.
    size: int
    # What was asked for and led to it.
    sources: list[str]


class ImagePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ImagePage(ImagePageOptions):
    items: list[Image]


class ImportServerOptions(TypedDict, total=False):
    # A directory of the host that the manifest's paths are relative to.
    dir: str
    file: str


class ImportServer(ImportServerOptions):
    # A capability that says how the server runs: its id is the beginning of those of its
    # tools.
    manifest: str


class ImportedServerOptions(TypedDict, total=False):
    # What the server says of its tools and no manifest can.
    lost: list[str]
    # Tools that are none, and why.
    refused: list[str]


class ImportedServer(ImportedServerOptions):
    # Of the tools: what to register.
    manifests: list[str]
    # What it calls itself.
    server: str


class JailOptions(TypedDict, total=False):
    command: list[str]
    # Lasting problems that the state does not show.
    conditions: list[Condition]
    cwd: str
    # Of the root filesystem.
    digest: str
    # Not shown to viewers.
    env: dict[str, str]
    hostname: str
    labels: dict[str, str]
    limits: Limits
    links: dict[str, str]
    mounts: list[Mount]
    name: str
    # The snapshot it is nearest to: taken of it, made from or rewound to last.
    nearest: str
    network_group: str
    # How it is being recorded. Only when one jail is asked for.
    observation: Observation
    observe: Observe
    # The snapshot it was made from, if it was.
    origin: Origin
    # Why it failed, or stopped unasked.
    reason: str
    rootfs: Rootfs
    runtime: str
    snapshots: Snapshots
    started_at: Optional[str]
    stopped_at: Optional[str]
    # What it uses now. Only when one jail is asked for, and it has processes.
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
    # What became of requests and changes, oldest first.
    history: list[LimitChange]
    # In force now.
    limits: Limits
    # The 'after' of the next page.
    next: int
    # Its own, while it is lent others.
    own: Limits
    # When what it is lent is taken back.
    until: Optional[str]


class JailPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class JailPage(JailPageOptions):
    items: list[Jail]


class JailRowOptions(TypedDict, total=False):
    memory_limit: int
    name: str
    runtime: str


class JailRow(JailRowOptions):
    backend: str
    # Processors it keeps busy.
    cpu: float
    # Recorded in a second.
    events_s: float
    # Records that are known to be missing, since the daemon started.
    gaps: int
    id: str
    memory_bytes: int
    pids: int
    # Received in a second.
    rx_bytes_s: int
    state: str
    # Sent in a second.
    tx_bytes_s: int


class Keep(TypedDict, total=False):
    # The last of each of so many days in which there is one.
    daily: int
    # The last of each of so many hours in which there is one.
    hourly: int
    # The last so many.
    last: int


class LatencyOptions(TypedDict, total=False):
    max_ns: int
    min_ns: int
    # Estimated from the buckets, as are the next two.
    p50_ns: int
    p90_ns: int
    p99_ns: int
    total_ns: int


class Latency(LatencyOptions):
    # Each reaches to twice where it begins; from the first that is not empty to the last.
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
    # The person who set, allowed or refused it.
    by: str
    # Of the causal chain.
    entry: int
    n: int
    state: Literal["applied", "refused", "failed"]
    to: Bounds
    until: Optional[str]
    # What was asked for.
    want: Bounds
    why: str


class Limits(TypedDict, total=False):
    # Default 256, at most 1024.
    cpu_shares: int
    # MiB. Default 1024, at most 16384.
    disk_mb: int
    # Processes and threads, without those of the jail's init. Default 128, at most 4096.
    max_pids: int
    # MiB. Default 512, at most 8192.
    memory_mb: int


class LineageJailOptions(TypedDict, total=False):
    # Made from snapshots of it that are gone.
    jails: list[LineageJail]
    name: str
    # The snapshot it is nearest to.
    nearest: str
    origin: Origin
    # Taken of it, oldest first.
    snapshots: list[LineageSnapshot]


class LineageJail(LineageJailOptions):
    created_at: str
    id: str
    # A jail's state, or gone: it was deleted, and its snapshots are there.
    state: str


class LineageJailPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class LineageJailPage(LineageJailPageOptions):
    items: list[LineageJail]


class LineageSnapshotOptions(TypedDict, total=False):
    # Made from it, oldest first.
    jails: list[LineageJail]
    memory: bool
    name: str
    # The snapshot that the jail had been taken to, made from or rewound to last.
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
    # Unless it is used before.
    expires_at: str
    id: str
    name: str
    role: Literal["admin", "operator", "viewer"]
    # To the hour.
    used_at: str


class LoginLink(TypedDict):
    # What is to be sent to POST /login.
    code: str
    expires_at: str
    # Where to go with it; the first is on this machine, others by which it is reached from
    # elsewhere.
    urls: list[str]


class LoginPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class LoginPage(LoginPageOptions):
    items: list[Login]


class Lost(TypedDict, total=False):
    # At least.
    records: int
    # Some gap could not say how many.
    unknown: bool


class MarketInstallOptions(TypedDict, total=False):
    # Without it the newest.
    version: str


class MarketInstall(MarketInstallOptions):
    name: str


class MeOptions(TypedDict, total=False):
    # Of a browser that is logged in.
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
    labels: list[str]
    run: str


class Message(MessageOptions):
    at: str
    # in: to the agent. out: from it.
    direction: Literal["in", "out"]
    id: str
    seq: int
    session_id: str
    # What is personal or secret is a handle in its place.
    text: str


class MessagePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class MessagePage(MessagePageOptions):
    items: list[Message]


class Meta(TypedDict, total=False):
    pass


class MountOptions(TypedDict, total=False):
    # Otherwise read-only.
    write: bool


class Mount(MountOptions):
    # A path of the host, which the configuration must allow.
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
    # Otherwise a file at 'to' is a conflict.
    replace: bool


class MoveFile(MoveFileOptions):
    to: str


class MoveRunOptions(TypedDict, total=False):
    reason: str
    result: str


class MoveRun(MoveRunOptions):
    state: Literal["active", "paused", "done", "failed", "cancelled"]


class Observation(TypedDict, total=False):
    log: EventLog
    # By name: kernel, network, gvisor, ptrace. None when the jail does not run.
    sources: dict[str, Source]


class Observe(TypedDict, total=False):
    # Names of system calls recorded as well, whatever syscalls says.
    allow: list[str]
    # Operations on files.
    files: Literal["all", "off"]
    # Names of system calls not recorded, whatever else is said.
    ignore: list[str]
    # Each packet, or sums of them for each connection.
    network: Literal["packets", "flows", "off"]
    # throttle: the jail is slowed so that nothing is lost. count: it runs on, and what is
    # lost is counted in a gap.
    on_overload: Literal["throttle", "count"]
    # Of each packet so many bytes are kept for GET …/network/pcap.
    packet_bytes: int
    # Of the calls left, one in so many is recorded.
    sample: int
    # Which system calls. security: those that change privileges, namespaces, mounts, programs
    # or other processes.
    syscalls: Literal["all", "security", "off"]


class OfferOptions(TypedDict, total=False):
    description: str
    # The version that is installed, from the same publisher.
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
    items: list[Offer]


class OpenSession(TypedDict, total=False):
    # Of runs that name none.
    agent: RunAgent
    # Data classes that its agents may see as they are; of all else they get a handle.
    allow: list[str]
    # What all its runs together may spend.
    budget: dict[str, int]
    # Whose members are its siblings. Default: nobody's.
    group: str
    # 1 to 128 letters, digits and ._:-; without it one is made.
    id: str
    # In which all its runs work. Default: each run gets a jail of its own.
    jail: str
    labels: dict[str, str]
    # What siblings call it, and people.
    name: str


class Origin(TypedDict):
    # Of which the snapshot is.
    jail: str
    # Among those made with it, from 1.
    number: int
    snapshot: str


class OutputOptions(TypedDict, total=False):
    # Bytes just before offset that were no longer kept.
    lost: int


class Output(OutputOptions):
    # Base64.
    data: str
    offset: int
    stream: Literal["stdout", "stderr"]


class Overrides(TypedDict, total=False):
    # Default: the jail's id.
    hostname: str
    # Refused: of a jail and its branches only one could speak on a connection. Rewind the
    # jail instead.
    keep_connections: bool
    labels: dict[str, str]
    limits: Limits
    # A name for people. Of several jails, each has its number at the end.
    name: str
    network: Literal["isolated", "proxy", "bridged", "full"]


class PastOptions(TypedDict, total=False):
    # The instant, if it was given as a time.
    at: Optional[str]
    # That the jail was made from. It may be gone.
    base: str
    # The nearest at or before the instant that no rewind has undone: what a branch from here
    # begins with.
    snapshot: Snapshot


class Past(PastOptions):
    files: ChangedFiles
    processes: Processes


class Policy(TypedDict, total=False):
    # Whose rules count where nobody says who asks.
    agent: str
    # What people wanted remembered.
    answers: list[PolicyRule]
    # To which the level may be raised. The default is the level.
    ceiling: int
    # Permission files (opencode.json, .jsonc; later ones count over earlier ones) and
    # decision frameworks (AGENTS.md).
    files: list[PolicyFile]
    # The home directory in the jail, for ~ in patterns; the default is /root.
    home: str
    # Of autonomy: 1 guided (the default), 2 intelligent, 3 full.
    level: int
    # Which of several matching patterns counts. The default is what the files were written
    # for.
    match: Literal["longest", "last"]
    # What it takes to allow what is asked. The first that matches counts; without one it is
    # standard.
    tiers: list[PolicyTier]
    # The project's directory in the jail, which patterns of files are relative to.
    workspace: str


class PolicyAdvice(TypedDict):
    file: str
    line: int
    text: str


class PolicyFile(TypedDict):
    name: str
    text: str


class PolicyFindingOptions(TypedDict, total=False):
    line: int
    remedy: str


class PolicyFinding(PolicyFindingOptions):
    file: str
    kind: str
    message: str


class PolicyLevel(TypedDict):
    level: int


class PolicyRuleOptions(TypedDict, total=False):
    file: str
    line: int


class PolicyRule(PolicyRuleOptions):
    action: str
    effect: Literal["allow", "ask", "deny"]
    pattern: str


class PolicyState(TypedDict, total=False):
    # What decision frameworks say that is no rule, for the agent to read.
    advice: list[PolicyAdvice]
    ceiling: int
    # What in the files does not do what it seems to.
    findings: list[PolicyFinding]
    level: int
    # How the files are read.
    match: str
    policy: Policy
    # Why they are read so.
    why: str


class PolicyTier(TypedDict):
    action: str
    pattern: str
    tier: Literal["preapproved", "standard", "elevated"]


class Prepared(TypedDict):
    digest: str
    # What was asked for, with what it was resolved to.
    source: str


class ProbeOptions(TypedDict, total=False):
    # What was found.
    detail: str
    # Why it is not ok.
    reason: str
    remedy: str


class Probe(ProbeOptions):
    name: str
    # unknown: the probe could not tell.
    status: Literal["ok", "unsupported", "unknown"]


class ProbePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class ProbePage(ProbePageOptions):
    items: list[Probe]


class ProblemOptions(TypedDict, total=False):
    # What went wrong, in this case.
    detail: str
    # Where the daemon's log has more, for an internal error.
    error_id: str
    # The field of the request, or its query parameter, that is at fault.
    field: str
    # What the caller can do about it.
    remedy: str


class Problem(ProblemOptions):
    # The HTTP status.
    status: int
    # The kind in words.
    title: str
    # What kind of problem this is, such as /problems/not-found.
    type: str


class ProcessOptions(TypedDict, total=False):
    argv: list[str]
    began: str
    # With pid, which process it is: pids come back.
    begin_ns: int
    children: list[int]
    comm: str
    # exe, argv and cwd are longer than shown.
    cut: bool
    cwd: str
    # In the tree.
    depth: int
    duration_ns: int
    ended: Optional[str]
    # Where its records are.
    events: EventLink
    exe: str
    # The last few programs it ran, the present one last.
    execs: list[Program]
    execs_count: int
    # Was there when observation began.
    existing: bool
    exit_code: Optional[int]
    gid: int
    host_pid: int
    ppid: int
    # Most memory it held, in bytes.
    rss: int
    # That ended it.
    signal: str
    system_ns: int
    threads: int
    uid: int
    # Processor time, as of its end.
    user_ns: int


class Process(ProcessOptions):
    # Inside the jail.
    pid: int
    # lost: it ended, and nobody saw how.
    state: Literal["running", "exited", "killed", "lost"]


class ProcessChanges(TypedDict, total=False):
    # On both sides, and not alike.
    changed: list[ChangedProcess]
    closed: list[Connection]
    ended: list[ComparedProcess]
    # Connections in no list.
    more: int
    opened: list[Connection]
    # On both sides and alike.
    same: int
    started: list[ComparedProcess]
    # Why nothing can be told.
    unknown: str


class ProcessesOptions(TypedDict, total=False):
    # All there ever were.
    count: int
    # That have ended and are not kept.
    forgotten: int
    # Records of processes that are missing.
    lost: Lost
    # That are not told of: there were too many at once.
    untold: int


class Processes(ProcessesOptions):
    # Each after its parent, siblings as they began.
    items: list[Process]


class ProfileOptions(TypedDict, total=False):
    # By seccomp, before they were entered.
    denied: int
    # Returned an error.
    failed: int
    failures_more: int
    kinds: Estimate
    # Records of calls that are missing.
    lost: Lost
    # Calls that are in none of them.
    more: int
    # For want of permission.
    refused: int
    total_ns: int
    # Never returned.
    unfinished: int


class Profile(ProfileOptions):
    # The most frequent first.
    calls: list[CallProfile]
    count: int
    # By error, the most frequent first.
    errors: list[ErrorCount]
    # By call and error: denied first, then refused, then the others.
    failures: list[CallFailure]
    latency: Latency
    # With the most calls first, as many as were asked for.
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
    tier: Literal["informational", "read-only", "standard", "elevated"]


class PublisherKeyOptions(TypedDict, total=False):
    reason: str
    retired: Optional[str]
    revoked: Optional[str]


class PublisherKey(PublisherKeyOptions):
    added: str
    id: str
    key: str


class PublisherPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class PublisherPage(PublisherPageOptions):
    items: list[Publisher]


class PushBrowser(TypedDict):
    created_at: str
    id: str
    login: str
    # Whose login it is.
    name: str
    # The host of its push service.
    service: str


class PushBrowserPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class PushBrowserPage(PushBrowserPageOptions):
    items: list[PushBrowser]


class PushKey(TypedDict):
    # applicationServerKey, as base64url.
    key: str


class PutSecret(TypedDict, total=False):
    # The value, if it is not text.
    base64: Optional[str]
    # Where others keep it: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY.
    reference: str
    # Kept sealed.
    value: Optional[str]


class QuestionOptions(TypedDict, total=False):
    agent: str
    attributes: dict[str, str]
    # What it is done to: a command line, a path, a URL, host:port.
    resource: str


class Question(QuestionOptions):
    # A tool's name: bash, edit, read, webfetch, connect, …
    action: str


class ReceivedOptions(TypedDict, total=False):
    # That was begun.
    run: str


class Received(ReceivedOptions):
    message_id: str
    session_id: str


class RegisterOptions(TypedDict, total=False):
    # Ask again about a version that was refused or revoked.
    again: bool
    # A directory of the host that the manifest's paths are relative to. What it names there
    # is copied.
    dir: str
    # What the manifest is called where something is wrong in it.
    file: str


class Register(RegisterOptions):
    # (capability …) forms, or their JSON twin.
    manifest: str


class Replayed(TypedDict):
    # This time.
    output: Any
    same: bool


class ResumeRun(TypedDict, total=False):
    # Make so many new runs that go on from there, and leave this one as it is.
    branch: int
    # New limits.
    budget: dict[str, int]
    # Default: of a paused run the moment it was paused at, else its last.
    checkpoint: str


class Resumed(TypedDict):
    runs: list[Run]


class RevokeCapability(TypedDict, total=False):
    reason: str
    # Without it the one that calls are for.
    version: str


class RevokeTrust(TypedDict, total=False):
    digest: str
    key: str
    reason: str


class RewindOptions(TypedDict, total=False):
    # What a program has connected outside of the jail goes on if the program has neither read
    # nor written there since the snapshot; all else is closed, as everything is without this.
    # Default: as snapshots.keep_connections of the jail says.
    keep_connections: Optional[bool]


class Rewind(RewindOptions):
    # Of this jail, or of one that it comes from.
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
    # A user whom the tree is to have beside its own, with uid 1000 and a home; not of a
    # directory of the host.
    user: str


class RotateKey(TypedDict):
    # The public key in its place.
    key: str
    # The public key that is replaced. What it signed until now stays good.
    old: str


class RunOptions(TypedDict, total=False):
    branch: int
    # The last.
    checkpoint: str
    ended: Optional[str]
    error: str
    jail: str
    next_run_at: Optional[str]
    # Of which it is a branch.
    of: str
    parent: str
    reason: str
    restarts: int
    result: str
    schedule: str
    started: Optional[str]
    until: Any
    # Of a run that is paused.
    why: Literal["approval", "checkpoint", "schedule", "event", "budget", "watchdog", "operator"]


class Run(RunOptions):
    agent: RunAgent
    budget: RunBudget
    created: str
    goal: str
    id: str
    session_id: str
    state: Literal["scheduled", "active", "paused", "done", "failed", "cancelled"]
    steps: int


class RunActionOptions(TypedDict, total=False):
    ended: Optional[str]
    # Of the chain.
    entry: int
    input: Any
    label: str
    output: Any


class RunAction(RunActionOptions):
    began: str
    key: str
    kind: str
    n: int
    name: str
    state: Literal["begun", "done", "failed", "refused"]


class RunActionPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class RunActionPage(RunActionPageOptions):
    items: list[RunAction]


class RunAgent(TypedDict, total=False):
    # Of the preset shell: what is run. Of others: added.
    argv: list[str]
    env: dict[str, str]
    # The jail that is made for it.
    jail: CreateJail
    # Its jail stays when the run has ended.
    keep: bool
    # Of autonomy: 1 guided, 2 intelligent, 3 full.
    level: int
    # Default: the daemon's.
    model: str
    # The agent of the permission files whose rules apply to the run. Default: policy.agent of
    # the jail, or else the default agent of the files.
    policy_agent: str
    # builtin, claude, codex, opencode, gemini or shell. Default: the daemon's.
    preset: str
    # How the agent is spoken to: run, by its command line, or acp, by the Agent Client
    # Protocol. Default: run.
    protocol: Literal["run", "acp"]
    # When it is kept as it is without being asked. Default: the daemon's.
    saves: RunSaves
    # That it is taught, and whose capabilities are its tools.
    skills: list[str]
    # What the agent runs in. Default: the daemon's.
    spawner: Literal["jail", "bwrap", "process"]
    # How long it may take for things. Default: as its level has it.
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
    limits: dict[str, int]


class RunEventOptions(TypedDict, total=False):
    body: Any
    run: str


class RunEvent(RunEventOptions):
    at: str
    kind: str
    seq: int
    session_id: str


class RunPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class RunPage(RunPageOptions):
    items: list[Run]


class RunSaves(TypedDict, total=False):
    # After so long; a second at least.
    every_ms: int
    # After so many steps.
    steps: int


class RunTimers(TypedDict, total=False):
    # For nothing at all.
    idle_ms: int
    # For one step.
    step_ms: int
    # Altogether, without the time in which it waits for people.
    wall_ms: int


class ScheduleOptions(TypedDict, total=False):
    # Why the last due time could not fire. Gone when one has.
    error: str
    jitter_ms: int
    # The due time that fired last.
    last: Optional[str]
    # The next ten times; of one schedule only.
    next: list[str]
    next_run_at: Optional[str]
    paused: bool
    schedule: str
    time_zone: str
    # A due time that waits for the run before it to end.
    waiting: Optional[str]


class Schedule(ScheduleOptions):
    created: str
    # Due times that were tried and given up.
    failed: int
    # Due times that made a run.
    fired: int
    goal: str
    id: str
    # Due times that passed while nobody looked, and were left out.
    left_out: int
    missed: str
    overlap: str
    session_id: str
    # Due times that were passed over because the run before was still at work.
    skipped: int


class SchedulePageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SchedulePage(SchedulePageOptions):
    items: list[Schedule]


class SecretOptions(TypedDict, total=False):
    # The key of a client of E2B whose secret it is alone, which is part of its name. No grant
    # is of it.
    owner: str
    # At the provider.
    path: str
    used_at: Optional[str]


class Secret(SecretOptions):
    created_at: str
    grants: list[Grant]
    name: str
    # Who keeps it; local is this daemon.
    provider: str
    updated_at: str


class SecretPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SecretPage(SecretPageOptions):
    items: list[Secret]


class SendMessageOptions(TypedDict, total=False):
    # Data classes of what is in the text.
    labels: list[str]
    # Its session_id counts where there is no other.
    meta: Meta
    session_id: str


class SendMessage(SendMessageOptions):
    text: str


class ServiceOptions(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    connections: int
    # Where its records are.
    events: EventLink
    packets_in: int
    packets_out: int
    port: int
    refused: int
    unanswered: int


class Service(ServiceOptions):
    # Who began it.
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
    items: list[Session]


class Signal(TypedDict):
    # Such as INT, TERM, KILL or a number.
    signal: str


class Size(TypedDict):
    cols: int
    rows: int


class SkillOptions(TypedDict, total=False):
    bundle: str
    category: str
    description: str
    effects: list[str]
    emoji: str
    per_use: bool
    # Why agents are not given it now.
    refused: str
    secrets: list[str]
    # As an agent reads it; of one skill only.
    text: str
    tier: str
    # Its capabilities, as models are told of tools; of one skill only.
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
    items: list[Skill]


class SkillTool(TypedDict):
    capability: str
    description: str
    input_schema: Any
    name: str


class SnapshotOptions(TypedDict, total=False):
    # Frozen copies of it that wait to become branches.
    copies: int
    # Of the images of its processes.
    digest: str
    # That the jail had written.
    disk_bytes: int
    # Where it was taken.
    host: Host
    jail_name: str
    labels: dict[str, str]
    # How the writable layer of a live jail was taken.
    layering: Literal["copied", "stacked"]
    limits: Limits
    links: dict[str, str]
    # Its processes are part of it, not its files alone.
    memory: bool
    # That the jail used.
    memory_bytes: int
    name: str
    # The snapshot that the jail had been taken to, made from or rewound to last. It may be
    # gone.
    parent: str
    # How long the jail waited, in microseconds.
    paused_us: int
    # Processes and threads that the jail had.
    pids: int
    runtime: str
    # Of the last record in the jail's log.
    seq: int
    # Of an automatic one: what it came before or after.
    trigger: str
    # What it takes on the disk. When one snapshot is asked for, or a list with usage=true.
    usage: SnapshotUsage


class Snapshot(SnapshotOptions):
    backend: str
    created_at: str
    id: str
    # Of which it was taken. It may be gone.
    jail: str
    network: Literal["isolated", "proxy", "bridged", "full"]
    # Why it was taken: a client asked; it was time; before or after something; the jail was
    # branched; it comes from another host; for an automatic checkpoint of a run.
    reason: Literal["asked", "every", "before", "after", "branched", "imported", "checkpoint"]


class SnapshotPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class SnapshotPage(SnapshotPageOptions):
    items: list[Snapshot]


class SnapshotUsage(TypedDict, total=False):
    # Would be free without it.
    own_bytes: int
    # Is there for jails and other snapshots as well.
    shared_bytes: int


class Snapshots(TypedDict, total=False):
    # exec: after each command that was asked for, if anything may have changed.
    after: Literal["exec"]
    # Before a command: exec: and its words, such as exec:git push. The first is a program's
    # name, the others are among its arguments, in this order; * stands for anything.
    before: list[str]
    # Every so often, if anything may have changed since the last: a time such as 10m, at
    # least 10s.
    every: str
    # Which of these snapshots stay. Default: last 5, hourly 24, daily 7.
    keep: Keep
    # A rewind that does not say keeps what the jail has connected outside, as far as it can.
    keep_connections: bool


class Source(TypedDict, total=False):
    # Why it does not see all that it should.
    err: str
    # Records that were not kept. Each is counted in a gap.
    lost: int
    # Records made since it began to watch.
    seen: int
    # Times the jail was held so that nothing is lost.
    throttled: int


class SparesOptions(TypedDict, total=False):
    # Of the root filesystem.
    digest: str
    runtime: str


class Spares(SparesOptions):
    backend: str
    making: int
    network: str
    ready: int
    # When one was last asked for.
    used_at: str


class StartRunOptions(TypedDict, total=False):
    agent: RunAgent
    # By dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes,
    # sandbox-cpu-ms, storage-bytes.
    budget: dict[str, int]
    jitter_ms: int
    # Its session_id counts where there is no other.
    meta: Meta
    # What becomes of times that passed while nobody looked. Default: once.
    missed: Literal["skip", "once", "all"]
    # Without a schedule: once, then. With one: not before.
    next_run_at: Optional[str]
    # What happens when a limit is reached. Default: pause, for more to be given.
    on_exceed: Literal["pause", "stop"]
    # What becomes of a time when the run before is still at work. Default: skip.
    overlap: Literal["skip", "queue", "allow"]
    # Of which it is a part: from whose budget it draws, and with which it is cancelled.
    parent: str
    # Cron, with five or six fields, the first of six being seconds; @hourly and its like;
    # @every 10m.
    schedule: str
    # Opened if it is not there. Without it, a new one.
    session_id: str
    # Of the schedule. Default: UTC.
    time_zone: str
    # When it is done: "manual", {"capability": id}, {"and": […]}, {"or": […]}, {"not":
    # …} or {"rtfs": expression over the run}. Default: when the agent says so.
    until: Any


class StartRun(StartRunOptions):
    goal: str


class StopJail(TypedDict, total=False):
    # How long its processes have after SIGTERM. A zero is the default.
    grace_ms: int


class Storage(TypedDict):
    # When it was counted: it is not counted anew each time that somebody asks.
    at: str
    # Of it, for the daemon.
    free_bytes: int
    # Of the data directory, the largest first.
    parts: list[StoragePart]
    # Jails that are made ahead of need.
    pool: list[Spares]
    # How many of a shape are to be ready; 0 means that none are made.
    pool_size: int
    # Of the file system that the data directory is on.
    total_bytes: int


class StoragePart(TypedDict):
    # That it takes on the disk.
    bytes: int
    files: int
    name: Literal["events", "jails", "snapshots", "images", "database", "capabilities", "agents", "other"]


class SubscribeBrowserOptions(TypedDict, total=False):
    # Is not looked at: the service says when it is over.
    expirationTime: Optional[float]


class SubscribeBrowser(SubscribeBrowserOptions):
    # An https address of the browser's push service.
    endpoint: str
    keys: BrowserKeys


class TakeCheckpoint(TypedDict, total=False):
    # The run waits to be resumed.
    pause: bool
    reason: str


class TakeSnapshot(TypedDict, total=False):
    labels: dict[str, str]
    # How the writable layer is taken. copied: the jail keeps its own. stacked: it goes on
    # over a new one, and what it had connected outside is closed. Default: copied where that
    # is quick.
    layering: Literal["copied", "stacked"]
    # A name for people. Need not be unique.
    name: str
    # Leave the jail stopped, instead of having it go on.
    stop: bool


class TerminalControl(TypedDict, total=False):
    resize: Size
    signal: str


class TerminalEvent(TypedDict, total=False):
    error: Problem
    # First: the command on this terminal; pass its id as exec= to come back to it.
    exec: Exec
    # Last: how the command ended.
    exit: Exec
    # Bytes of output before the next frame that were no longer kept.
    lost: int


_TimelineOdd = TypedDict(
    "_TimelineOdd",
    {
        "from": "str",
    },
    total=False,
)


class TimelineOptions(_TimelineOdd, total=False):
    # When the first of those was; missing if there is none.
    first: Optional[str]
    last: Optional[str]


class Timeline(TimelineOptions):
    # How long each is, in milliseconds: a power of two.
    bucket_ms: int
    counts: TimelineCounts
    # Of the processes with the most records, the most first.
    lanes: list[TimelineLane]
    # Records that the filter means, at any time.
    total: int


class TimelineCounts(TypedDict):
    file: list[int]
    net: list[int]
    # Gaps, usage, lineage.
    other: list[int]
    proc: list[int]
    syscall: list[int]


class TimelineLane(TypedDict):
    comm: str
    counts: TimelineCounts
    # Inside the jail; 0: of no process that is known.
    pid: int
    total: int


class Times(TypedDict):
    times: list[str]


class TokenOptions(TypedDict, total=False):
    expires_at: Optional[str]
    # The secret itself; only in the answer to its creation.
    token: str


class Token(TokenOptions):
    created_at: str
    id: str
    name: str
    role: Literal["admin", "operator", "viewer", "agent"]


class TokenPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class TokenPage(TokenPageOptions):
    items: list[Token]


class Traffic(TypedDict, total=False):
    bytes_in: int
    bytes_out: int
    packets_in: int
    packets_out: int


class TrailEntryOptions(TypedDict, total=False):
    agent: str
    by: str
    # The machine's kernel saw it; nobody said it.
    observed: bool
    reason: str


class TrailEntry(TrailEntryOptions):
    action: str
    allowed: bool
    at: str
    # As the trail is printed.
    line: str
    resource: str
    rule: PolicyRule
    # Of the entry in the chain.
    seq: int
    tag: str


class TrailEntryPageOptions(TypedDict, total=False):
    # Pass as 'after' to get the items that follow. Absent on the last page.
    next: str


class TrailEntryPage(TrailEntryPageOptions):
    items: list[TrailEntry]


class TrustCapabilityOptions(TypedDict, total=False):
    trust: bool
    version: str


class TrustCapability(TrustCapabilityOptions):
    # Of what is trusted: as it is shown.
    digest: str


class Usage(TypedDict, total=False):
    # Processor time since the start.
    cpu_ms: int
    # Written by the jail.
    disk_bytes: int
    disk_limit_bytes: int
    max_pids: int
    memory_bytes: int
    memory_peak_bytes: int
    # Fields that this backend cannot tell.
    not_measured: list[str]
    oom_kills: int
    # Processes and threads, without those of the jail's init.
    pids: int
    rx_bytes: int
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
    # What is allowed in the place of what was asked.
    instead: str


class Verdict(VerdictOptions):
    allow: bool
    decision: Decision
    # Of the chain.
    entry: int
    tag: Literal["AUTONOMOUS", "WHITELISTED", "APPROVED", "DENIED"]


class VerdictsOptions(TypedDict, total=False):
    # Of the newest, for people.
    detail: str
    port: int
    # Why it was refused or broke off, in a word: host, port, method, path, denied, rate,
    # bytes, address, …
    reason: str
    received: int
    # That decided.
    rule: str
    sent: int


class Verdicts(VerdictsOptions):
    allowed: bool
    count: int
    # Of the chain, that records the newest.
    entry: int
    first: str
    # Of what: the address of a name, a connection, a request of HTTP, a packet that no proxy
    # carries.
    kind: Literal["name", "connect", "request", "packet"]
    last: str


class VersionOptions(TypedDict, total=False):
    commit: str


class Version(VersionOptions):
    go: str
    started_at: str
    version: str


class Warm(TypedDict):
    # How many are to wait.
    count: int


class Warmed(TypedDict):
    copies: int


class Who(TypedDict):
    comm: str
    pid: int


class WorkspaceOptions(TypedDict, total=False):
    # Default: the same path as source.
    target: str


class Workspace(WorkspaceOptions):
    source: str
