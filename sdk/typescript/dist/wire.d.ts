/** What the API takes and gives, as JSON has it. */
export interface AddPublisher {
    /** A public key of minisign's format. */
    key: string;
    /** What is taken from them at the most. */
    tier: "informational" | "read-only" | "standard" | "elevated";
}
export interface AddSkill {
    /** What it is called where something is wrong in it. */
    file?: string;
    text: string;
}
export interface AnswerApproval {
    answer: "allow" | "deny" | "modify";
    /** The agent reads it. */
    reason?: string;
    /** With modify: what is allowed in the place of what was asked. */
    resource?: string;
    /** How long it holds: for this request (the default), until the jail or the daemon ends, or with
     * the policy of the jail. */
    scope?: "once" | "session" | "always";
    /** The phrase, if it takes one. */
    typed?: string;
}
export interface Approval {
    answer?: ApprovalAnswer;
    /** With last=N: the last records of the jail before, as docs/events.md has them, oldest first. */
    before?: unknown[];
    context?: string;
    created_at: string;
    details?: string[];
    /** What would change, as diff -u writes it: of a file as it was when it was asked. */
    diff?: string;
    /** Of the chain, in which its end is recorded. */
    entry?: number;
    expires_at: string;
    /** Who has allowed it, if it takes two. */
    first?: string;
    id: string;
    jail?: string;
    /** Why there is no diff. */
    no_diff?: string;
    /** Why it is no longer pending. */
    outcome?: string;
    /** To type, to allow it alone. */
    phrase?: string;
    /** As it was asked. */
    question: Question;
    /** That says to ask. */
    rule: string;
    settled_at?: string | null;
    state: "pending" | "answered" | "expired" | "withdrawn";
    /** Who it takes to allow it: nobody, a person, or one who types the phrase, or two. */
    tier: "preapproved" | "standard" | "elevated";
    /** Short; never all there is to see. */
    title: string;
    /** How many wait for it now. */
    waiting?: number;
    /** All of what would be done. */
    what: string;
    who: string;
    why: string;
    /** The rule that allowing it for longer than once would write, by scope. */
    writes?: Record<string, string>;
}
export interface ApprovalAnswer {
    answer: "allow" | "deny" | "modify";
    at: string;
    by: string;
    channel: string;
    reason?: string;
    resource?: string;
    scope: "once" | "session" | "always";
}
export interface ApprovalEvent {
    approval: Approval;
    at: string;
    kind: "asked" | "seconded" | "answered" | "expired" | "withdrawn" | "refused";
}
export interface ApprovalPage {
    items: Approval[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Backend {
    /** What it cannot hold or do on this host, each with the reason. */
    lacks?: Record<string, string>;
    name: string;
    /** Why it is not usable. */
    reason?: string;
    remedy?: string;
    runtime?: string;
    usable: boolean;
}
export interface BackendPage {
    items: Backend[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Bounds {
    /** Processors: a weight of 1024 is one. */
    cpu?: number;
    /** MiB. */
    disk_mb?: number;
    /** MiB. */
    memory_mb?: number;
    pids?: number;
}
export interface Branch {
    /** Default 1. */
    count?: number;
    /** Default: the jail's id. */
    hostname?: string;
    /** Refused: of a jail and its branches only one could speak on a connection. Rewind the jail
     * instead. */
    keep_connections?: boolean;
    labels?: Record<string, string>;
    limits?: Limits;
    /** A name for people. Of several jails, each has its number at the end. */
    name?: string;
    network?: "isolated" | "proxy" | "bridged" | "full";
}
export interface BranchError {
    /** Of the jail, from 1. */
    number: number;
    problem: Problem;
}
export interface Branches {
    errors?: BranchError[];
    jails: Jail[];
    /** That was taken for them, if a jail was branched. */
    snapshot?: Snapshot;
}
export interface BrowserKeys {
    auth: string;
    p256dh: string;
}
export interface Bundle {
    /** Why nothing of it is called now: nobody vouches for it any more. */
    barred?: string;
    /** id@version */
    capabilities: string[];
    digest?: string;
    installed?: string | null;
    name: string;
    /** An installation that waits, or that was refused. */
    next?: BundleInstall;
    publisher?: string;
    /** What can be done about that. */
    remedy?: string;
    skill?: string;
    tier?: string;
    /** From then on nothing of it is called. */
    until?: string | null;
    /** Of what is installed; empty if nothing is. */
    version?: string;
}
export interface BundleInstall {
    approval?: string;
    digest: string;
    state: "pending" | "refused";
    version: string;
    why?: string;
}
export interface BundlePage {
    items: Bundle[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Call {
    /** What the run may spend, by dimension: steps, wall-clock-ms, sandbox-cpu-ms, network-bytes,
     * storage-bytes. It counts from the run's first call on. */
    budget?: Record<string, number>;
    /** As the input schema wants it. Without it, null. */
    input?: unknown;
    /** Call as this jail: its rules decide. */
    jail?: string;
    /** Of what is in the input: public, redacted, pii, secret, and with dots what of it. */
    labels?: string[];
    /** Whose budget it draws from. */
    run?: string;
    /** Whose files a capability of mode session sees. */
    session?: string;
    /** At most the capability's own. */
    timeout_ms?: number;
}
export interface CallBudget {
    "run-budget-consumed": Record<string, number>;
    "run-budget-remaining": Record<string, number>;
}
export interface CallError {
    kind: string;
    /** The same, for agents. */
    message?: string;
    reason: string;
    remedy?: string;
}
export interface CallFailure {
    at_least?: boolean;
    class?: "denied" | "refused" | "failed";
    comm?: string;
    count: number;
    errno: string;
    events?: EventLink;
    name: string;
    path?: string;
    /** Of the first, as are comm and path. */
    pid?: number;
}
export interface CallLimits {
    cpu_shares?: number;
    max_pids?: number;
    /** MiB. */
    memory_mb?: number;
    /** Both ways together. */
    network_bytes?: number;
    timeout_ms?: number;
}
export interface CallProfile {
    at_least?: boolean;
    count: number;
    denied?: number;
    events?: EventLink;
    failed?: number;
    latency: Latency;
    name: string;
    /** Of which it is known how long they took. */
    timed?: number;
}
export interface CallUsage {
    memory_peak_bytes?: number;
    network_egress_bytes: number;
    network_ingress_bytes?: number;
    sandbox_cpu_ms: number;
    steps?: number;
    /** Where the time went, in microseconds. */
    steps_us: Record<string, number>;
    storage_write_bytes: number;
    wall_ms: number;
}
export interface Called {
    began: string;
    budget?: CallBudget;
    capability: string;
    digest?: string;
    /** Of the chain, in which it is recorded. */
    entry?: number;
    error?: CallError;
    id: string;
    /** Of the output. */
    label?: string;
    /** The end of what it wrote to its standard error. */
    log?: string;
    output?: unknown;
    /** The jail that served it. The chain has under its name what left it, and which secrets it used. */
    sandbox?: string;
    state: "done" | "failed" | "refused";
    usage: CallUsage;
    version?: string;
    warm?: boolean;
    /** Why the version that was called is not the newest one: a newer one is revoked. */
    warning?: string;
}
export interface CallsOfOne {
    at_least?: boolean;
    comm: string;
    count: number;
    denied?: number;
    failed?: number;
    latency: Latency;
    pid: number;
}
export interface Capability {
    /** That it waits for, or had. */
    approval?: string;
    bundle?: string;
    by?: string;
    created: string;
    description?: string;
    /** Of the manifest and the files that belong to it. */
    digest: string;
    effects: string[];
    hosts?: string[];
    id: string;
    /** JSON Schema 2020-12. */
    input_schema?: unknown;
    /** Of one call, as the manifest has them; of one capability only. */
    limits?: CallLimits;
    /** As it was given; of one capability only. */
    manifest?: string;
    /** What a person has to allow, or has. */
    new?: string[];
    /** JSON Schema 2020-12. */
    output_schema?: unknown;
    /** A person is asked each time. */
    per_use?: boolean;
    runtime: string;
    secrets?: string[];
    settled?: string | null;
    state: "pending" | "approved" | "refused" | "revoked";
    tier: string;
    /** An operator trusts this digest to run on the host itself. */
    trust?: boolean;
    version: string;
    why?: string;
}
export interface CapabilityPage {
    items: Capability[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ChainBad {
    /** Of an export. */
    line?: number;
    reason: string;
    /** Of the entry; none if all entries are right. */
    seq?: number;
}
export interface ChainConsistency {
    from: string;
    path: string[];
    to: string;
}
export interface ChainEntry {
    agent: string;
    body: unknown;
    capability: string;
    hash: string;
    jail: string;
    kind: string;
    /** The entry that caused this one; 0 if none did. */
    parent: number;
    prev: string;
    run: string;
    seq: number;
    session: string;
    time: string;
}
export interface ChainEntryPage {
    items: ChainEntry[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ChainFrom {
    checkpoint: string;
}
export interface ChainHead {
    /** The newest, signed, in the format of C2SP tlog-checkpoint. */
    checkpoint?: string;
    entries: number;
    /** The public key that checkpoints are verified with. */
    key: string;
}
export interface ChainProof {
    checkpoint: string;
    entry: ChainEntry;
    /** Hashes, base64, from the entry to the root, as in RFC 6962. */
    path: string[];
}
export interface ChainReport {
    /** The first thing that is wrong, if anything is. */
    bad?: ChainBad;
    /** That were checked. */
    checkpoints: number;
    /** That are right, from the first. */
    entries: number;
    key?: string;
    /** Rather than found beside what it vouches for. */
    key_given: boolean;
    /** Entries that the last of them vouches for. */
    signed: number;
}
export interface Change {
    /** With content=unified: the difference, as diff -u writes it. */
    diff?: string;
    /** Of a renamed file: where it was. */
    from?: string;
    kind: "added" | "modified" | "deleted" | "metadata" | "renamed";
    /** Permission bits, octal. */
    mode?: string;
    /** With content=unified: why a file has no difference here: binary, too large, moving. */
    no_diff?: string;
    path: string;
    size?: number;
    /** file, dir, symlink, fifo, socket, char or block. */
    type?: string;
    /** What differs, where both sides are there: content, mode, owner, times, xattrs. */
    what?: string[];
}
export interface ChangePage {
    items: Change[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ChangedFile {
    bytes_written?: number;
    changes?: number;
    comm?: string;
    /** Of a renamed file: where it was. */
    from?: string;
    kind: "added" | "modified" | "deleted" | "metadata" | "renamed";
    path: string;
    pid?: number;
    seq?: number;
    /** Changed after the snapshot: a branch of that has not this change. */
    since_snapshot?: boolean;
    /** Of the last change, as are seq, pid and comm. */
    time?: string;
    /** If it is known. */
    type?: "file" | "dir" | "symlink" | "node";
}
export interface ChangedFiles {
    /** There were more, changed earlier. */
    at_least?: boolean;
    count?: number;
    /** The last change first. */
    items: ChangedFile[];
    /** Records of files that are missing. */
    lost?: Lost;
    /** False where operations on files are not recorded of this jail. */
    recorded?: boolean;
}
export interface ChangedProcess {
    argv?: string[];
    began?: string;
    comm?: string;
    /** There is more than is told. */
    cut?: boolean;
    cwd?: string;
    env?: EnvChange[];
    exe?: string;
    /** Inside the jail. */
    pid: number;
    ppid?: number;
    /** If what it runs, or where, differs. */
    was?: ComparedProcess;
}
export interface Checkpoint {
    at: string;
    /** Nobody asked for it: it is forgotten when there are enough newer ones. */
    auto?: boolean;
    digest: string;
    /** Of the chain. */
    entry?: number;
    id: string;
    n: number;
    reason?: string;
    run: string;
    /** Of its jail. */
    snapshot?: string;
    /** What the agent keeps of itself; of one checkpoint only. */
    state?: unknown;
    /** How far the run had come. */
    steps: number;
}
export interface CheckpointPage {
    items: Checkpoint[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ClaimedDecision {
    agent?: string;
    args?: unknown;
    timestamp?: string;
    tool: string;
    wait_ms?: number;
}
export interface ComparedEnd {
    jail: string;
    name?: string;
    /** Of the last record in the jail's log then. */
    seq?: number;
    /** If it is one; else it is the jail as it is now. */
    snapshot?: string;
    state?: string;
    time?: string;
}
export interface ComparedProcess {
    argv?: string[];
    began?: string;
    comm?: string;
    /** There is more than is told. */
    cut?: boolean;
    cwd?: string;
    exe?: string;
    /** Inside the jail. */
    pid: number;
    ppid?: number;
}
export interface ComparedUsage {
    cpu_ns?: number;
    disk_bytes?: number;
    memory_bytes?: number;
    not_measured?: string[];
    /** And threads. */
    processes?: number;
    rx_bytes?: number;
    tx_bytes?: number;
}
export interface Comparison {
    events?: EventChanges;
    /** In the root filesystem. */
    files?: FileChanges;
    from: ComparedEnd;
    processes?: ProcessChanges;
    to: ComparedEnd;
    usage?: UsageChanges;
    /** If a side has one. */
    workspace?: FileChanges;
}
export interface Condition {
    detail: string;
    remedy?: string;
    /** disk_read_only: its filesystem had an error, and refuses writes until the jail was stopped and
     * started. events_not_written: it is held because its events cannot be written, and continues when
     * they can be. */
    type: "disk_read_only" | "events_not_written";
}
export interface ConnectedHost {
    bytes_in?: number;
    bytes_out?: number;
    connections?: number;
    first?: string | null;
    /** Its name if the jail asked for it, else its address. */
    host: string;
    last?: string | null;
    packets_in?: number;
    packets_out?: number;
    /** The first few. */
    processes: Who[];
    /** There were others. */
    processes_more?: boolean;
    refused?: number;
    /** Of the most bytes first. */
    services: Service[];
    unanswered?: number;
    /** Of what governs the way out, the newest first. Of a jail without a proxy there are none. */
    verdicts: Verdicts[];
}
export interface Connection {
    comm?: string;
    local?: string;
    pid?: number;
    proto?: "tcp" | "udp";
    remote?: string;
    /** listening, established and so on; of udp: open. */
    state?: string;
}
export interface Connections {
    count?: Estimate;
    /** Of the most bytes first; then those that were only decided about. */
    items: ConnectedHost[];
    /** Records of packets that are missing. */
    lost?: Lost;
    /** Of hosts that are not in the list. */
    more?: Traffic;
    total?: Traffic;
    /** Of requests, that are not in the list. */
    verdicts_more?: number;
}
export interface Connector {
    /** Of a hook: where others find it. Of a post: the host it goes to. */
    address?: string;
    /** Deliveries that failed too often. */
    dead: number;
    /** Of the run that it begins, as it is configured. */
    goal?: string;
    /** A hook takes what others post, a post has what is said in sessions posted to others, a relay
     * tells one session what is said in others. */
    kind: "hook" | "post" | "relay";
    name: string;
    /** Deliveries that wait. */
    pending: number;
    /** Whom it tells, as it is configured. */
    session?: string;
    /** Whose words it carries: names, or patterns with *. */
    sessions?: string[];
}
export interface ConnectorPage {
    items: Connector[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ConsideredRule {
    decides?: boolean;
    matches?: boolean;
    part: string;
    rule: PolicyRule;
    set: string;
}
export interface CreateE2BKey {
    /** Whose it is. Default: the caller's. */
    name?: string;
}
export interface CreateJail {
    /** What isolates: oci or bwrap. */
    backend?: string;
    /** Run at start. Its end does not end the jail. */
    command?: string[];
    /** Working directory of every command. */
    cwd?: string;
    /** Of a jail in network mode proxy: what leaves it. */
    egress?: Egress;
    /** The policy decides what the jail's processes do as the kernel of the machine sees it: programs,
     * files, connections. */
    enforce?: boolean;
    /** Environment of every command. */
    env?: Record<string, string>;
    /** Default: the jail's id. */
    hostname?: string;
    /** Words to find the jail by. */
    labels?: Record<string, string>;
    limits?: Limits;
    mounts?: Mount[];
    /** A name for people. Need not be unique. */
    name?: string;
    /** isolated (the default) has only its own loopback; proxy reaches what the egress rules let
     * through; bridged reaches jails of its group; full reaches outward. */
    network?: "isolated" | "proxy" | "bridged" | "full" | "Isolated" | "FullAccess";
    /** Of a bridged jail: which jails it sees. The default is the group default. */
    network_group?: string;
    /** What of it is recorded. */
    observe?: Observe;
    /** What it may do, and about what a person is asked. */
    policy?: Policy;
    rootfs?: Rootfs;
    /** The OCI runtime: runc, crun or runsc. */
    runtime?: string;
    /** The session that it belongs to: its programs find the gateway at http://localhost:4097. */
    session_id?: string;
    /** When snapshots of it are taken unasked. */
    snapshots?: Snapshots;
    /** Start it as well. A jail that cannot be started is not kept. */
    start?: boolean;
    /** User of every command: a name, a uid, name:group or uid:gid. */
    user?: string;
    workspace?: Workspace;
}
export interface CreateLoginLink {
    /** Whose login it is; default: of who asks. */
    label?: string;
    /** What the login may do; default: what who asks may. */
    role?: "admin" | "operator" | "viewer";
}
export interface CreateToken {
    /** Default: never. */
    expires_at?: string | null;
    /** Whose it is. */
    name: string;
    role: "admin" | "operator" | "viewer" | "agent";
}
export interface DeadNotice {
    approval: string;
    attempts: number;
    body?: unknown;
    channel: string;
    created_at: string;
    error?: string;
    id: string;
    kind: string;
}
export interface DeadNoticePage {
    items: DeadNotice[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Decide {
    /** A tool's name: bash, edit, read, webfetch, connect, … */
    action: string;
    agent?: string;
    attributes?: Record<string, string>;
    /** What it is done to: a command line, a path, a URL, host:port. */
    resource?: string;
    /** How long to wait for a person, if one is to be asked. The default is a minute. */
    wait_ms?: number;
}
export interface Decision {
    /** What the rules say. */
    effect: "allow" | "ask" | "deny";
    /** No remembered answer changes it. */
    final?: boolean;
    /** The list of pre-approved actions allows it. */
    listed?: boolean;
    reason: string;
    remedy?: string;
    /** That decided. */
    rule: PolicyRule;
}
export interface Delivery {
    attempts: number;
    connector: string;
    /** Of the last attempt. */
    error?: string;
    /** The same at each attempt. */
    id: string;
    message_id: string;
    /** When it is tried next, or may be. */
    next?: string | null;
    session_id: string;
    state: "pending" | "delivered" | "dead";
}
export interface DeliveryPage {
    items: Delivery[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface E2BKey {
    /** The certificate, PEM, of the authority that clients have to trust, if the daemon has made one. */
    ca?: string;
    /** For E2B_DOMAIN: the ports of sandboxes are hosts below it. */
    domain: string;
    /** The token's, by which it is revoked. */
    id: string;
    /** For E2B_API_KEY. It is shown once. */
    key: string;
    /** For E2B_API_URL and E2B_SANDBOX_URL. */
    url: string;
}
export interface EditSchedule {
    jitter_ms?: number | null;
    missed?: "skip" | "once" | "all" | null;
    overlap?: "skip" | "queue" | "allow" | null;
    /** As of a run that is started. */
    schedule?: string | null;
    time_zone?: string | null;
}
export interface Egress {
    /** The first rule that matches counts. */
    allow?: EgressRule[];
    /** What no rule allows a person is asked about, rather than refused. */
    ask?: boolean;
    /** For everything together. */
    limit?: EgressLimit;
    /** Paths are recorded with their query, which may hold what is private. */
    query?: boolean;
}
export interface EgressInject {
    as: "bearer" | "header" | "query" | "basic";
    /** Of the header, parameter or user. */
    name?: string;
    secret: string;
}
export interface EgressLimit {
    /** Both ways together. */
    bytes?: number;
    per_ms?: number;
    /** In a minute, or in per_ms. */
    requests?: number;
}
export interface EgressRule {
    capability?: string;
    /** Refuse the address or prefix, by whatever name it is reached, unless a rule before this one
     * allows it. Without ports, every port. */
    deny?: boolean;
    /** A name, *.example.com, * for every name, or an address or prefix. Only what is listed as an
     * address may be one of a private network. */
    host: string;
    /** Secrets put into requests. The jail never has them. */
    inject?: EgressInject[];
    /** Look into TLS, with a certificate authority that this jail alone trusts. Implied by inject,
     * methods and paths. */
    intercept?: boolean;
    /** Of an address or prefix: only what of it is on the Internet. Without ports, every port. */
    internet?: boolean;
    limit?: EgressLimit;
    methods?: string[];
    /** As people know it, for messages. */
    name?: string;
    /** Patterns, in which * is any run of characters. */
    paths?: string[];
    /** The default is 80 and 443. */
    ports?: number[];
}
export interface EgressState {
    egress: Egress;
    /** Of this life of the jail. */
    stats?: EgressStats;
}
export interface EgressStats {
    connections: number;
    /** Connections at this moment. */
    open: number;
    /** Of DNS. */
    queries: number;
    received: number;
    /** By reason. */
    refused?: Record<string, number>;
    requests: number;
    /** Bytes from the jail. */
    sent: number;
}
export interface EnvChange {
    from?: string | null;
    /** Its name is that of a secret: the values are left out. */
    hidden?: boolean;
    name: string;
    to?: string | null;
}
export interface ErrorCount {
    count: number;
    errno: string;
}
export interface Estimate {
    /** It is good to a few hundredths. */
    about?: boolean;
    count?: number;
}
export interface Event {
    /** If it is not the machine's own. */
    abi?: string;
    addr?: string;
    args?: number[];
    argv?: string[];
    /** ns of a flow's first packet, or at which the process began. */
    begin?: number;
    bytes?: number | null;
    /** Of reads or writes in quick succession, how many this record sums up. */
    calls?: number;
    /** The return of fork or clone in the new task. */
    child?: boolean;
    comm?: string;
    cpu_ns?: number;
    /** A string or list is longer than what is kept. */
    cut?: boolean;
    cwd?: string;
    /** seccomp refused the call before it was entered. */
    denied?: boolean;
    dir?: "egress" | "ingress" | "loopback";
    disk_bytes?: number;
    dst?: string;
    dur_ns?: number;
    exe?: string;
    /** Was there when observation began. */
    existing?: boolean;
    exit_code?: number | null;
    fd?: number | null;
    from?: number;
    gid?: number | null;
    /** The name the jail asked for to get the other side's address. */
    host?: string;
    host_pid?: number;
    iface?: string;
    /** Made by Glasshouse in the jail's processes. */
    injected?: boolean;
    jail: string;
    /** How many; -1 is unknown. */
    lost?: number;
    memory_bytes?: number;
    /** Of the system call. */
    name?: string;
    nr?: number;
    /** Monotonic nanoseconds of the host. */
    ns?: number;
    /** What was done to a file, happened to a process, or was done with a snapshot. */
    op?: string;
    /** Of a flow. */
    packets?: number;
    /** The jail that the snapshot was taken of. */
    parent?: string;
    /** Of the last record in the parent's log that the snapshot knows of. */
    parent_seq?: number | null;
    /** The caller was inside the call when observation began. */
    partial?: boolean;
    /** Inside the jail. */
    path?: string;
    /** Inside the jail. */
    pid?: number;
    pids?: number;
    ppid?: number;
    proto?: string;
    /** Memory said another path than the kernel used. */
    raced?: boolean;
    /** The jail's disk refuses writes after an error. */
    read_only?: boolean;
    /** What the kernel opened, where that differs from path. */
    real?: string;
    reason?: string;
    /** Negative is -errno. */
    ret?: number | null;
    rss?: number;
    rx_bytes?: number;
    /** Gapless in one jail, from 1; in one made from a snapshot, from where its parent was. */
    seq: number;
    /** That ended the process. */
    signal?: string;
    snapshot?: string;
    /** Type of the records that are missing here. */
    source?: string;
    src?: string;
    system_ns?: number;
    /** Flags of the packet, or all of a flow. */
    tcp?: string;
    /** Of a thread, not of a whole process. */
    thread?: boolean;
    through?: number;
    tid?: number;
    to?: string;
    /** Milliseconds since 1970. */
    ts: number;
    tx_bytes?: number;
    type: "syscall" | "file" | "net" | "proc" | "gap" | "usage" | "lineage";
    uid?: number | null;
    /** The caller died inside the call. */
    unfinished?: boolean;
    /** The path of a descriptor is not known. */
    unresolved?: boolean;
    user_ns?: number;
}
export interface EventChanges {
    /** From there to one side. */
    from?: EventCount;
    /** Where both come from; none if they are not related. */
    since?: ComparedEnd;
    /** From there to the other. */
    to?: EventCount;
}
export interface EventCount {
    /** by_type is less than the total: some are not kept, or there are too many. */
    at_least?: boolean;
    by_type?: Record<string, number>;
    total?: number;
    unknown?: string;
}
export interface EventLink {
    first?: number;
    last?: number;
    /** A filter, for GET …/events. */
    q?: string;
}
export interface EventLog {
    /** What they take on disk. */
    bytes?: number;
    /** Why nothing can be written now. */
    err?: string;
    /** Records that are kept. */
    events?: number;
    /** Sequence number of the oldest record kept. */
    first?: number;
    /** Sequence number given last. */
    last?: number;
    /** By type: records that found no room. Each is counted in a gap. */
    lost?: Record<string, number>;
    /** Files. */
    segments?: number;
}
export interface EventWindow {
    /** Records, as docs/events.md has them. */
    items: unknown[];
    /** Of the first of the items; 0 is the oldest record. */
    offset: number;
    /** How many records the filter means. */
    total: number;
}
export interface Exec {
    argv?: string[];
    duration_ms?: number;
    /** base64 if stdout or stderr is not UTF-8; then both are encoded so. */
    encoding?: "base64";
    ended_at?: string | null;
    /** 128 plus the signal's number if one ended it. Absent while it runs. */
    exit_code?: number | null;
    id: string;
    /** Offset that the next output byte will have. */
    next?: number;
    /** Offset of the first output byte still kept. */
    oldest?: number;
    /** Inside the jail. */
    pid?: number;
    pty?: boolean;
    running?: boolean;
    /** The signal that ended it, such as KILL. */
    signal?: string;
    started_at?: string;
    stderr?: string;
    stderr_bytes?: number;
    /** Where the answer carries output. */
    stdout?: string;
    /** Written so far, kept or not. */
    stdout_bytes?: number;
    timed_out?: boolean;
    /** stdout and stderr do not hold all that was written. */
    truncated?: boolean;
}
export interface ExecPage {
    items: Exec[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ExecRequest {
    /** The command and its arguments. */
    argv?: string[];
    /** A line for /bin/sh. */
    cmd?: string;
    cwd?: string;
    /** Answer as soon as the command runs. */
    detach?: boolean;
    /** Added to the jail's environment. */
    env?: Record<string, string>;
    /** Output kept in the jail for readers that come later. Default 1 MiB. */
    keep_bytes?: number;
    /** With stream: let a slow reader slow the command down, rather than lose output. A stream that
     * ends without the event exit or error was cut off, as one is whose reader takes nothing for 5
     * minutes; GET /jails/{id}/execs/{exec} with Last-Event-ID continues it. */
    lossless?: boolean;
    /** Run on a terminal of this size. */
    pty?: Size;
    /** What the command reads. */
    stdin?: string;
    /** stdin is base64. */
    stdin_base64?: boolean;
    /** Keep standard input open after stdin, for POST …/stdin. */
    stdin_open?: boolean;
    /** Answer with server-sent events: start, output, exit. */
    stream?: boolean;
    /** Then the whole process group is killed. */
    timeout_ms?: number;
    user?: string;
}
export interface Explain {
    jail?: string;
    /** The default is the jail's. */
    policy?: Policy;
    question: Question;
}
export interface Explained {
    considered?: ConsideredRule[];
    decision: Decision;
    /** Of a connection from a jail behind the proxy, whose rules come first: what they allow leaves
     * without a question. */
    egress?: ExplainedEgress;
}
export interface ExplainedEgress {
    allow: boolean;
    /** They leave it to the policy. */
    asks?: boolean;
    detail?: string;
    reason?: string;
    remedy?: string;
    /** That allows it, or comes nearest. */
    rule?: string;
}
export interface FeedEvent {
    /** Who did it. */
    agent?: string;
    /** Of the topic approval: the request, as it is now. */
    approval?: Approval;
    at: string;
    body?: unknown;
    jail?: string;
    /** Of the entry: jail.created, approval.asked, run.moved and so on. */
    kind: string;
    run?: string;
    /** Of its entry in the chain. */
    seq: number;
    session?: string;
}
export interface FeedHelloEvent {
    at: string;
    /** The Last-Event-ID was none of this daemon's: what happened before now has to be asked for anew. */
    reset?: boolean;
}
export interface FeedJailsEvent {
    all?: boolean;
    jails: JailRow[];
}
export interface File {
    gid?: number;
    /** Permission bits with setuid, setgid and sticky, octal. */
    mode: string;
    mtime?: string;
    name: string;
    path: string;
    size: number;
    /** Of a symlink. */
    target?: string;
    type: "file" | "dir" | "symlink" | "fifo" | "socket" | "char" | "block";
    uid?: number;
}
export interface FileChanges {
    /** By kind. */
    counts?: Record<string, number>;
    /** By path. */
    list?: Change[];
    /** That are not listed. GET /jails/{id}/fs/diff lists all of a jail's, in pages. */
    more?: number;
    /** Why nothing can be told. */
    unknown?: string;
}
export interface FileEvent {
    dir?: boolean;
    /** overflow: some were missed. */
    op: "create" | "write" | "delete" | "rename" | "attrib" | "overflow";
    path: string;
}
export interface FilePage {
    items: File[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Flow {
    /** There was more before it found room in the list. */
    at_least?: boolean;
    begin?: string;
    bytes_in?: number;
    bytes_out?: number;
    comm?: string;
    /** Who began it. */
    dir: "egress" | "ingress" | "loopback";
    /** Of its last packet so far. */
    end?: string;
    /** Where its records are. */
    events?: EventLink;
    /** The name the jail asked for to get the address. */
    host?: string;
    local: string;
    packets_in?: number;
    packets_out?: number;
    pid?: number;
    proto: string;
    refused?: number;
    remote: string;
    /** open: a protocol without connections. */
    state?: "unanswered" | "refused" | "established" | "closed" | "reset" | "open";
    /** It was begun; more than 1 if its ports were used again. */
    times?: number;
}
export interface Flows {
    /** All there were. If they are too many to be kept, those of the most bytes are listed. */
    count?: number;
    items: Flow[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Grant {
    branches?: boolean;
    by?: string;
    capability?: string;
    created_at: string;
    delivery: "file" | "inject";
    expires_at?: string | null;
    /** That a branch has got this one by. */
    from?: string;
    hosts?: string[];
    id: string;
    jail?: string;
    run?: string;
    secret: string;
    session?: string;
}
export interface GrantSecret {
    /** A branch of the jail gets a grant of its own. */
    branches?: boolean;
    capability?: string;
    /** As /run/secrets/NAME in the jail (the default), or in requests on their way out, so that the
     * jail never has it. */
    delivery?: "file" | "inject";
    expires_at?: string | null;
    /** Of inject: where it may be sent, such as api.example.com. */
    hosts?: string[];
    jail?: string;
    run?: string;
    session?: string;
}
export interface Health {
    status: "ok";
}
export interface Host {
    arch?: string;
    cpu?: string;
    kernel?: string;
}
export interface Image {
    created_at: string;
    digest: string;
    files: number;
    /** Bytes of its files. */
    size: number;
    /** What the archive held and the image does not, with the reason. */
    skipped?: string[];
    /** What was asked for and led to it. */
    sources: string[];
}
export interface ImagePage {
    items: Image[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface ImportServer {
    /** A directory of the host that the manifest's paths are relative to. */
    dir?: string;
    file?: string;
    /** A capability that says how the server runs: its id is the beginning of those of its tools. */
    manifest: string;
}
export interface ImportedServer {
    /** What the server says of its tools and no manifest can. */
    lost?: string[];
    /** Of the tools: what to register. */
    manifests: string[];
    /** Tools that are none, and why. */
    refused?: string[];
    /** What it calls itself. */
    server: string;
}
export interface Jail {
    backend: string;
    command?: string[];
    /** Lasting problems that the state does not show. */
    conditions?: Condition[];
    created_at: string;
    cwd?: string;
    /** Of the root filesystem. */
    digest?: string;
    /** Not shown to viewers. */
    env?: Record<string, string>;
    hostname?: string;
    id: string;
    labels?: Record<string, string>;
    limits?: Limits;
    links?: Record<string, string>;
    mounts?: Mount[];
    name?: string;
    /** The snapshot it is nearest to: taken of it, made from or rewound to last. */
    nearest?: string;
    network: "isolated" | "proxy" | "bridged" | "full";
    network_group?: string;
    /** How it is being recorded. Only when one jail is asked for. */
    observation?: Observation;
    observe?: Observe;
    /** The snapshot it was made from, if it was. */
    origin?: Origin;
    /** Why it failed, or stopped unasked. */
    reason?: string;
    rootfs?: Rootfs;
    runtime?: string;
    snapshots?: Snapshots;
    started_at?: string | null;
    state: "created" | "starting" | "running" | "paused" | "stopped" | "failed";
    stopped_at?: string | null;
    /** What it uses now. Only when one jail is asked for, and it has processes. */
    usage?: Usage;
    user?: string;
    workspace?: Workspace;
}
export interface JailLimits {
    /** What became of requests and changes, oldest first. */
    history?: LimitChange[];
    /** In force now. */
    limits?: Limits;
    /** The 'after' of the next page. */
    next?: number;
    /** Its own, while it is lent others. */
    own?: Limits;
    /** When what it is lent is taken back. */
    until?: string | null;
}
export interface JailPage {
    items: Jail[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface JailRow {
    backend: string;
    /** Processors it keeps busy. */
    cpu: number;
    /** Recorded in a second. */
    events_s: number;
    /** Records that are known to be missing, since the daemon started. */
    gaps: number;
    id: string;
    memory_bytes: number;
    memory_limit?: number;
    name?: string;
    pids: number;
    runtime?: string;
    /** Received in a second. */
    rx_bytes_s: number;
    state: string;
    /** Sent in a second. */
    tx_bytes_s: number;
}
export interface Keep {
    /** The last of each of so many days in which there is one. */
    daily?: number;
    /** The last of each of so many hours in which there is one. */
    hourly?: number;
    /** The last so many. */
    last?: number;
}
export interface Latency {
    /** Each reaches to twice where it begins; from the first that is not empty to the last. */
    buckets: LatencyBucket[];
    max_ns?: number;
    min_ns?: number;
    /** Estimated from the buckets, as are the next two. */
    p50_ns?: number;
    p90_ns?: number;
    p99_ns?: number;
    total_ns?: number;
}
export interface LatencyBucket {
    count?: number;
    from_ns?: number;
}
export interface LimitChange {
    at?: string;
    /** The person who set, allowed or refused it. */
    by?: string;
    /** Of the causal chain. */
    entry?: number;
    from?: Bounds;
    n?: number;
    state?: "applied" | "refused" | "failed";
    to?: Bounds;
    until?: string | null;
    /** What was asked for. */
    want?: Bounds;
    why?: string;
}
export interface Limits {
    /** Default 256, at most 1024. */
    cpu_shares?: number;
    /** MiB. Default 1024, at most 16384. */
    disk_mb?: number;
    /** Processes and threads, without those of the jail's init. Default 128, at most 4096. */
    max_pids?: number;
    /** MiB. Default 512, at most 8192. */
    memory_mb?: number;
}
export interface LineageJail {
    created_at: string;
    id: string;
    /** Made from snapshots of it that are gone. */
    jails?: LineageJail[];
    name?: string;
    /** The snapshot it is nearest to. */
    nearest?: string;
    origin?: Origin;
    /** Taken of it, oldest first. */
    snapshots?: LineageSnapshot[];
    /** A jail's state, or gone: it was deleted, and its snapshots are there. */
    state: string;
}
export interface LineageJailPage {
    items: LineageJail[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface LineageSnapshot {
    created_at: string;
    id: string;
    /** Made from it, oldest first. */
    jails?: LineageJail[];
    memory?: boolean;
    name?: string;
    /** The snapshot that the jail had been taken to, made from or rewound to last. */
    parent?: string;
    reason: string;
    trigger?: string;
}
export interface LogIn {
    code: string;
}
export interface Login {
    created_at: string;
    /** Unless it is used before. */
    expires_at: string;
    id: string;
    name: string;
    role: "admin" | "operator" | "viewer";
    /** To the hour. */
    used_at: string;
}
export interface LoginLink {
    /** What is to be sent to POST /login. */
    code: string;
    expires_at: string;
    /** Where to go with it; the first is on this machine, others by which it is reached from elsewhere. */
    urls: string[];
}
export interface LoginPage {
    items: Login[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Lost {
    /** At least. */
    records?: number;
    /** Some gap could not say how many. */
    unknown?: boolean;
}
export interface MarketInstall {
    name: string;
    /** Without it the newest. */
    version?: string;
}
export interface Me {
    /** Of a browser that is logged in. */
    login?: string;
    name: string;
    role: "admin" | "operator" | "viewer";
}
export interface Message {
    at: string;
    /** in: to the agent. out: from it. */
    direction: "in" | "out";
    from?: string;
    id: string;
    labels?: string[];
    run?: string;
    seq: number;
    session_id: string;
    /** What is personal or secret is a handle in its place. */
    text: string;
}
export interface MessagePage {
    items: Message[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Meta {
}
export interface Mount {
    /** A path of the host, which the configuration must allow. */
    source: string;
    /** A path in the jail. */
    target: string;
    /** Otherwise read-only. */
    write?: boolean;
}
export interface MoveFile {
    from: string;
    /** Otherwise a file at 'to' is a conflict. */
    replace?: boolean;
    to: string;
}
export interface MoveRun {
    reason?: string;
    result?: string;
    state: "active" | "paused" | "done" | "failed" | "cancelled";
}
export interface Observation {
    log?: EventLog;
    /** By name: kernel, network, gvisor, ptrace. None when the jail does not run. */
    sources?: Record<string, Source>;
}
export interface Observe {
    /** Names of system calls recorded as well, whatever syscalls says. */
    allow?: string[];
    /** Operations on files. */
    files?: "all" | "off";
    /** Names of system calls not recorded, whatever else is said. */
    ignore?: string[];
    /** Each packet, or sums of them for each connection. */
    network?: "packets" | "flows" | "off";
    /** throttle: the jail is slowed so that nothing is lost. count: it runs on, and what is lost is
     * counted in a gap. */
    on_overload?: "throttle" | "count";
    /** Of each packet so many bytes are kept for GET …/network/pcap. */
    packet_bytes?: number;
    /** Of the calls left, one in so many is recorded. */
    sample?: number;
    /** Which system calls. security: those that change privileges, namespaces, mounts, programs or
     * other processes. */
    syscalls?: "all" | "security" | "off";
}
export interface Offer {
    description?: string;
    digest: string;
    /** The version that is installed, from the same publisher. */
    installed?: string;
    market: string;
    name: string;
    publisher: string;
    tier: string;
    version: string;
}
export interface OfferPage {
    items: Offer[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface OpenSession {
    /** Of runs that name none. */
    agent?: RunAgent;
    /** Data classes that its agents may see as they are; of all else they get a handle. */
    allow?: string[];
    /** What all its runs together may spend. */
    budget?: Record<string, number>;
    /** Whose members are its siblings. Default: nobody's. */
    group?: string;
    /** 1 to 128 letters, digits and ._:-; without it one is made. */
    id?: string;
    /** In which all its runs work. Default: each run gets a jail of its own. */
    jail?: string;
    labels?: Record<string, string>;
    /** What siblings call it, and people. */
    name?: string;
}
export interface Origin {
    /** Of which the snapshot is. */
    jail: string;
    /** Among those made with it, from 1. */
    number: number;
    snapshot: string;
}
export interface Output {
    /** Base64. */
    data: string;
    /** Bytes just before offset that were no longer kept. */
    lost?: number;
    offset: number;
    stream: "stdout" | "stderr";
}
export interface Overrides {
    /** Default: the jail's id. */
    hostname?: string;
    /** Refused: of a jail and its branches only one could speak on a connection. Rewind the jail
     * instead. */
    keep_connections?: boolean;
    labels?: Record<string, string>;
    limits?: Limits;
    /** A name for people. Of several jails, each has its number at the end. */
    name?: string;
    network?: "isolated" | "proxy" | "bridged" | "full";
}
export interface Past {
    /** The instant, if it was given as a time. */
    at?: string | null;
    /** That the jail was made from. It may be gone. */
    base?: string;
    files: ChangedFiles;
    processes: Processes;
    /** The nearest at or before the instant that no rewind has undone: what a branch from here begins
     * with. */
    snapshot?: Snapshot;
}
export interface Policy {
    /** Whose rules count where nobody says who asks. */
    agent?: string;
    /** What people wanted remembered. */
    answers?: PolicyRule[];
    /** To which the level may be raised. The default is the level. */
    ceiling?: number;
    /** Permission files (opencode.json, .jsonc; later ones count over earlier ones) and decision
     * frameworks (AGENTS.md). */
    files?: PolicyFile[];
    /** The home directory in the jail, for ~ in patterns; the default is /root. */
    home?: string;
    /** Of autonomy: 1 guided (the default), 2 intelligent, 3 full. */
    level?: number;
    /** Which of several matching patterns counts. The default is what the files were written for. */
    match?: "longest" | "last";
    /** What it takes to allow what is asked. The first that matches counts; without one it is standard. */
    tiers?: PolicyTier[];
    /** The project's directory in the jail, which patterns of files are relative to. */
    workspace?: string;
}
export interface PolicyAdvice {
    file: string;
    line: number;
    text: string;
}
export interface PolicyFile {
    name: string;
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
    level: number;
}
export interface PolicyRule {
    action: string;
    effect: "allow" | "ask" | "deny";
    file?: string;
    line?: number;
    pattern: string;
}
export interface PolicyState {
    /** What decision frameworks say that is no rule, for the agent to read. */
    advice?: PolicyAdvice[];
    ceiling?: number;
    /** What in the files does not do what it seems to. */
    findings?: PolicyFinding[];
    level?: number;
    /** How the files are read. */
    match?: string;
    policy?: Policy;
    /** Why they are read so. */
    why?: string;
}
export interface PolicyTier {
    action: string;
    pattern: string;
    tier: "preapproved" | "standard" | "elevated";
}
export interface Prepared {
    digest: string;
    /** What was asked for, with what it was resolved to. */
    source: string;
}
export interface Probe {
    /** What was found. */
    detail?: string;
    name: string;
    /** Why it is not ok. */
    reason?: string;
    remedy?: string;
    /** unknown: the probe could not tell. */
    status: "ok" | "unsupported" | "unknown";
}
export interface ProbePage {
    items: Probe[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Problem {
    /** What went wrong, in this case. */
    detail?: string;
    /** Where the daemon's log has more, for an internal error. */
    error_id?: string;
    /** The field of the request, or its query parameter, that is at fault. */
    field?: string;
    /** What the caller can do about it. */
    remedy?: string;
    /** The HTTP status. */
    status: number;
    /** The kind in words. */
    title: string;
    /** What kind of problem this is, such as /problems/not-found. */
    type: string;
}
export interface Process {
    argv?: string[];
    began?: string;
    /** With pid, which process it is: pids come back. */
    begin_ns?: number;
    children?: number[];
    comm?: string;
    /** exe, argv and cwd are longer than shown. */
    cut?: boolean;
    cwd?: string;
    /** In the tree. */
    depth?: number;
    duration_ns?: number;
    ended?: string | null;
    /** Where its records are. */
    events?: EventLink;
    exe?: string;
    /** The last few programs it ran, the present one last. */
    execs?: Program[];
    execs_count?: number;
    /** Was there when observation began. */
    existing?: boolean;
    exit_code?: number | null;
    gid?: number;
    host_pid?: number;
    /** Inside the jail. */
    pid: number;
    ppid?: number;
    /** Most memory it held, in bytes. */
    rss?: number;
    /** That ended it. */
    signal?: string;
    /** lost: it ended, and nobody saw how. */
    state: "running" | "exited" | "killed" | "lost";
    system_ns?: number;
    threads?: number;
    uid?: number;
    /** Processor time, as of its end. */
    user_ns?: number;
}
export interface ProcessChanges {
    /** On both sides, and not alike. */
    changed?: ChangedProcess[];
    closed?: Connection[];
    ended?: ComparedProcess[];
    /** Connections in no list. */
    more?: number;
    opened?: Connection[];
    /** On both sides and alike. */
    same?: number;
    started?: ComparedProcess[];
    /** Why nothing can be told. */
    unknown?: string;
}
export interface Processes {
    /** All there ever were. */
    count?: number;
    /** That have ended and are not kept. */
    forgotten?: number;
    /** Each after its parent, siblings as they began. */
    items: Process[];
    /** Records of processes that are missing. */
    lost?: Lost;
    /** That are not told of: there were too many at once. */
    untold?: number;
}
export interface Profile {
    /** The most frequent first. */
    calls: CallProfile[];
    count: number;
    /** By seccomp, before they were entered. */
    denied?: number;
    /** By error, the most frequent first. */
    errors: ErrorCount[];
    /** Returned an error. */
    failed?: number;
    /** By call and error: denied first, then refused, then the others. */
    failures: CallFailure[];
    failures_more?: number;
    kinds?: Estimate;
    latency: Latency;
    /** Records of calls that are missing. */
    lost?: Lost;
    /** Calls that are in none of them. */
    more?: number;
    /** With the most calls first, as many as were asked for. */
    processes: CallsOfOne[];
    /** For want of permission. */
    refused?: number;
    total_ns?: number;
    /** Never returned. */
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
    tier: "informational" | "read-only" | "standard" | "elevated";
}
export interface PublisherKey {
    added: string;
    id: string;
    key: string;
    reason?: string;
    retired?: string | null;
    revoked?: string | null;
}
export interface PublisherPage {
    items: Publisher[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface PushBrowser {
    created_at: string;
    id: string;
    login: string;
    /** Whose login it is. */
    name: string;
    /** The host of its push service. */
    service: string;
}
export interface PushBrowserPage {
    items: PushBrowser[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface PushKey {
    /** applicationServerKey, as base64url. */
    key: string;
}
export interface PutSecret {
    /** The value, if it is not text. */
    base64?: string | null;
    /** Where others keep it: env:NAME, file:PATH, vault:MOUNT/data/PATH#KEY. */
    reference?: string;
    /** Kept sealed. */
    value?: string | null;
}
export interface Question {
    /** A tool's name: bash, edit, read, webfetch, connect, … */
    action: string;
    agent?: string;
    attributes?: Record<string, string>;
    /** What it is done to: a command line, a path, a URL, host:port. */
    resource?: string;
}
export interface Received {
    message_id: string;
    /** That was begun. */
    run?: string;
    session_id: string;
}
export interface Register {
    /** Ask again about a version that was refused or revoked. */
    again?: boolean;
    /** A directory of the host that the manifest's paths are relative to. What it names there is
     * copied. */
    dir?: string;
    /** What the manifest is called where something is wrong in it. */
    file?: string;
    /** (capability …) forms, or their JSON twin. */
    manifest: string;
}
export interface Replayed {
    /** This time. */
    output: unknown;
    same: boolean;
}
export interface ResumeRun {
    /** Make so many new runs that go on from there, and leave this one as it is. */
    branch?: number;
    /** New limits. */
    budget?: Record<string, number>;
    /** Default: of a paused run the moment it was paused at, else its last. */
    checkpoint?: string;
}
export interface Resumed {
    runs: Run[];
}
export interface RevokeCapability {
    reason?: string;
    /** Without it the one that calls are for. */
    version?: string;
}
export interface RevokeTrust {
    digest?: string;
    key?: string;
    reason?: string;
}
export interface Rewind {
    /** What a program has connected outside of the jail goes on if the program has neither read nor
     * written there since the snapshot; all else is closed, as everything is without this. Default: as
     * snapshots.keep_connections of the jail says. */
    keep_connections?: boolean | null;
    /** Of this jail, or of one that it comes from. */
    snapshot: string;
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
    /** A user whom the tree is to have beside its own, with uid 1000 and a home; not of a directory of
     * the host. */
    user?: string;
}
export interface RotateKey {
    /** The public key in its place. */
    key: string;
    /** The public key that is replaced. What it signed until now stays good. */
    old: string;
}
export interface Run {
    agent: RunAgent;
    branch?: number;
    budget: RunBudget;
    /** The last. */
    checkpoint?: string;
    created: string;
    ended?: string | null;
    error?: string;
    goal: string;
    id: string;
    jail?: string;
    next_run_at?: string | null;
    /** Of which it is a branch. */
    of?: string;
    parent?: string;
    reason?: string;
    restarts?: number;
    result?: string;
    schedule?: string;
    session_id: string;
    started?: string | null;
    state: "scheduled" | "active" | "paused" | "done" | "failed" | "cancelled";
    steps: number;
    until?: unknown;
    /** Of a run that is paused. */
    why?: "approval" | "checkpoint" | "schedule" | "event" | "budget" | "watchdog" | "operator";
}
export interface RunAction {
    began: string;
    ended?: string | null;
    /** Of the chain. */
    entry?: number;
    input?: unknown;
    key: string;
    kind: string;
    label?: string;
    n: number;
    name: string;
    output?: unknown;
    state: "begun" | "done" | "failed" | "refused";
}
export interface RunActionPage {
    items: RunAction[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface RunAgent {
    /** Of the preset shell: what is run. Of others: added. */
    argv?: string[];
    env?: Record<string, string>;
    /** The jail that is made for it. */
    jail?: CreateJail;
    /** Its jail stays when the run has ended. */
    keep?: boolean;
    /** Of autonomy: 1 guided, 2 intelligent, 3 full. */
    level?: number;
    /** Default: the daemon's. */
    model?: string;
    /** The agent of the permission files whose rules apply to the run. Default: policy.agent of the
     * jail, or else the default agent of the files. */
    policy_agent?: string;
    /** builtin, claude, codex, opencode, gemini or shell. Default: the daemon's. */
    preset?: string;
    /** How the agent is spoken to: run, by its command line, or acp, by the Agent Client Protocol.
     * Default: run. */
    protocol?: "run" | "acp";
    /** When it is kept as it is without being asked. Default: the daemon's. */
    saves?: RunSaves;
    /** That it is taught, and whose capabilities are its tools. */
    skills?: string[];
    /** What the agent runs in. Default: the daemon's. */
    spawner?: "jail" | "bwrap" | "process";
    /** How long it may take for things. Default: as its level has it. */
    timers?: RunTimers;
}
export interface RunBudget {
    limits: Record<string, number>;
    "run-budget-consumed": Record<string, number>;
    "run-budget-remaining": Record<string, number>;
}
export interface RunEvent {
    at: string;
    body?: unknown;
    kind: string;
    run?: string;
    seq: number;
    session_id: string;
}
export interface RunPage {
    items: Run[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface RunSaves {
    /** After so long; a second at least. */
    every_ms?: number;
    /** After so many steps. */
    steps?: number;
}
export interface RunTimers {
    /** For nothing at all. */
    idle_ms?: number;
    /** For one step. */
    step_ms?: number;
    /** Altogether, without the time in which it waits for people. */
    wall_ms?: number;
}
export interface Schedule {
    created: string;
    /** Why the last due time could not fire. Gone when one has. */
    error?: string;
    /** Due times that were tried and given up. */
    failed: number;
    /** Due times that made a run. */
    fired: number;
    goal: string;
    id: string;
    jitter_ms?: number;
    /** The due time that fired last. */
    last?: string | null;
    /** Due times that passed while nobody looked, and were left out. */
    left_out: number;
    missed: string;
    /** The next ten times; of one schedule only. */
    next?: string[];
    next_run_at?: string | null;
    overlap: string;
    paused?: boolean;
    schedule?: string;
    session_id: string;
    /** Due times that were passed over because the run before was still at work. */
    skipped: number;
    time_zone?: string;
    /** A due time that waits for the run before it to end. */
    waiting?: string | null;
}
export interface SchedulePage {
    items: Schedule[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Secret {
    created_at: string;
    grants: Grant[];
    name: string;
    /** The key of a client of E2B whose secret it is alone, which is part of its name. No grant is of
     * it. */
    owner?: string;
    /** At the provider. */
    path?: string;
    /** Who keeps it; local is this daemon. */
    provider: string;
    updated_at: string;
    used_at?: string | null;
}
export interface SecretPage {
    items: Secret[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface SendMessage {
    /** Data classes of what is in the text. */
    labels?: string[];
    /** Its session_id counts where there is no other. */
    meta?: Meta;
    session_id?: string;
    text: string;
}
export interface Service {
    bytes_in?: number;
    bytes_out?: number;
    connections?: number;
    /** Who began it. */
    dir: "egress" | "ingress" | "loopback";
    /** Where its records are. */
    events?: EventLink;
    packets_in?: number;
    packets_out?: number;
    port?: number;
    proto: string;
    refused?: number;
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
    items: Session[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface Signal {
    /** Such as INT, TERM, KILL or a number. */
    signal: string;
}
export interface Size {
    cols: number;
    rows: number;
}
export interface Skill {
    bundle?: string;
    capabilities: string[];
    category?: string;
    created: string;
    description?: string;
    effects?: string[];
    emoji?: string;
    name: string;
    per_use?: boolean;
    /** Why agents are not given it now. */
    refused?: string;
    secrets?: string[];
    /** As an agent reads it; of one skill only. */
    text?: string;
    tier?: string;
    /** Its capabilities, as models are told of tools; of one skill only. */
    tools?: SkillTool[];
    version?: string;
}
export interface SkillPage {
    items: Skill[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface SkillTool {
    capability: string;
    description: string;
    input_schema: unknown;
    name: string;
}
export interface Snapshot {
    backend: string;
    /** Frozen copies of it that wait to become branches. */
    copies?: number;
    created_at: string;
    /** Of the images of its processes. */
    digest?: string;
    /** That the jail had written. */
    disk_bytes?: number;
    /** Where it was taken. */
    host?: Host;
    id: string;
    /** Of which it was taken. It may be gone. */
    jail: string;
    jail_name?: string;
    labels?: Record<string, string>;
    /** How the writable layer of a live jail was taken. */
    layering?: "copied" | "stacked";
    limits?: Limits;
    links?: Record<string, string>;
    /** Its processes are part of it, not its files alone. */
    memory?: boolean;
    /** That the jail used. */
    memory_bytes?: number;
    name?: string;
    network: "isolated" | "proxy" | "bridged" | "full";
    /** The snapshot that the jail had been taken to, made from or rewound to last. It may be gone. */
    parent?: string;
    /** How long the jail waited, in microseconds. */
    paused_us?: number;
    /** Processes and threads that the jail had. */
    pids?: number;
    /** Why it was taken: a client asked; it was time; before or after something; the jail was branched;
     * it comes from another host; for an automatic checkpoint of a run. */
    reason: "asked" | "every" | "before" | "after" | "branched" | "imported" | "checkpoint";
    runtime?: string;
    /** Of the last record in the jail's log. */
    seq?: number;
    /** Of an automatic one: what it came before or after. */
    trigger?: string;
    /** What it takes on the disk. When one snapshot is asked for, or a list with usage=true. */
    usage?: SnapshotUsage;
}
export interface SnapshotPage {
    items: Snapshot[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface SnapshotUsage {
    /** Would be free without it. */
    own_bytes?: number;
    /** Is there for jails and other snapshots as well. */
    shared_bytes?: number;
}
export interface Snapshots {
    /** exec: after each command that was asked for, if anything may have changed. */
    after?: "exec";
    /** Before a command: exec: and its words, such as exec:git push. The first is a program's name, the
     * others are among its arguments, in this order; * stands for anything. */
    before?: string[];
    /** Every so often, if anything may have changed since the last: a time such as 10m, at least 10s. */
    every?: string;
    /** Which of these snapshots stay. Default: last 5, hourly 24, daily 7. */
    keep?: Keep;
    /** A rewind that does not say keeps what the jail has connected outside, as far as it can. */
    keep_connections?: boolean;
}
export interface Source {
    /** Why it does not see all that it should. */
    err?: string;
    /** Records that were not kept. Each is counted in a gap. */
    lost?: number;
    /** Records made since it began to watch. */
    seen?: number;
    /** Times the jail was held so that nothing is lost. */
    throttled?: number;
}
export interface Spares {
    backend: string;
    /** Of the root filesystem. */
    digest?: string;
    making: number;
    network: string;
    ready: number;
    runtime?: string;
    /** When one was last asked for. */
    used_at: string;
}
export interface StartRun {
    agent?: RunAgent;
    /** By dimension: steps, wall-clock-ms, llm-tokens, cost-micros, network-bytes, sandbox-cpu-ms,
     * storage-bytes. */
    budget?: Record<string, number>;
    goal: string;
    jitter_ms?: number;
    /** Its session_id counts where there is no other. */
    meta?: Meta;
    /** What becomes of times that passed while nobody looked. Default: once. */
    missed?: "skip" | "once" | "all";
    /** Without a schedule: once, then. With one: not before. */
    next_run_at?: string | null;
    /** What happens when a limit is reached. Default: pause, for more to be given. */
    on_exceed?: "pause" | "stop";
    /** What becomes of a time when the run before is still at work. Default: skip. */
    overlap?: "skip" | "queue" | "allow";
    /** Of which it is a part: from whose budget it draws, and with which it is cancelled. */
    parent?: string;
    /** Cron, with five or six fields, the first of six being seconds; @hourly and its like; @every 10m. */
    schedule?: string;
    /** Opened if it is not there. Without it, a new one. */
    session_id?: string;
    /** Of the schedule. Default: UTC. */
    time_zone?: string;
    /** When it is done: "manual", {"capability": id}, {"and": […]}, {"or": […]}, {"not": …} or
     * {"rtfs": expression over the run}. Default: when the agent says so. */
    until?: unknown;
}
export interface StopJail {
    /** How long its processes have after SIGTERM. A zero is the default. */
    grace_ms?: number;
}
export interface Storage {
    /** When it was counted: it is not counted anew each time that somebody asks. */
    at: string;
    /** Of it, for the daemon. */
    free_bytes: number;
    /** Of the data directory, the largest first. */
    parts: StoragePart[];
    /** Jails that are made ahead of need. */
    pool: Spares[];
    /** How many of a shape are to be ready; 0 means that none are made. */
    pool_size: number;
    /** Of the file system that the data directory is on. */
    total_bytes: number;
}
export interface StoragePart {
    /** That it takes on the disk. */
    bytes: number;
    files: number;
    name: "events" | "jails" | "snapshots" | "images" | "database" | "capabilities" | "agents" | "other";
}
export interface SubscribeBrowser {
    /** An https address of the browser's push service. */
    endpoint: string;
    /** Is not looked at: the service says when it is over. */
    expirationTime?: number | null;
    keys: BrowserKeys;
}
export interface TakeCheckpoint {
    /** The run waits to be resumed. */
    pause?: boolean;
    reason?: string;
}
export interface TakeSnapshot {
    labels?: Record<string, string>;
    /** How the writable layer is taken. copied: the jail keeps its own. stacked: it goes on over a new
     * one, and what it had connected outside is closed. Default: copied where that is quick. */
    layering?: "copied" | "stacked";
    /** A name for people. Need not be unique. */
    name?: string;
    /** Leave the jail stopped, instead of having it go on. */
    stop?: boolean;
}
export interface TerminalControl {
    resize?: Size;
    signal?: string;
}
export interface TerminalEvent {
    error?: Problem;
    /** First: the command on this terminal; pass its id as exec= to come back to it. */
    exec?: Exec;
    /** Last: how the command ended. */
    exit?: Exec;
    /** Bytes of output before the next frame that were no longer kept. */
    lost?: number;
}
export interface Timeline {
    /** How long each is, in milliseconds: a power of two. */
    bucket_ms: number;
    counts: TimelineCounts;
    /** When the first of those was; missing if there is none. */
    first?: string | null;
    /** Where the first bucket begins. */
    from: string;
    /** Of the processes with the most records, the most first. */
    lanes: TimelineLane[];
    last?: string | null;
    /** Records that the filter means, at any time. */
    total: number;
}
export interface TimelineCounts {
    file: number[];
    net: number[];
    /** Gaps, usage, lineage. */
    other: number[];
    proc: number[];
    syscall: number[];
}
export interface TimelineLane {
    comm: string;
    counts: TimelineCounts;
    /** Inside the jail; 0: of no process that is known. */
    pid: number;
    total: number;
}
export interface Times {
    times: string[];
}
export interface Token {
    created_at: string;
    expires_at?: string | null;
    id: string;
    name: string;
    role: "admin" | "operator" | "viewer" | "agent";
    /** The secret itself; only in the answer to its creation. */
    token?: string;
}
export interface TokenPage {
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
    /** As the trail is printed. */
    line: string;
    /** The machine's kernel saw it; nobody said it. */
    observed?: boolean;
    reason?: string;
    resource: string;
    rule: PolicyRule;
    /** Of the entry in the chain. */
    seq: number;
    tag: string;
}
export interface TrailEntryPage {
    items: TrailEntry[];
    /** Pass as 'after' to get the items that follow. Absent on the last page. */
    next?: string;
}
export interface TrustCapability {
    /** Of what is trusted: as it is shown. */
    digest: string;
    trust?: boolean;
    version?: string;
}
export interface Usage {
    /** Processor time since the start. */
    cpu_ms?: number;
    /** Written by the jail. */
    disk_bytes?: number;
    disk_limit_bytes?: number;
    max_pids?: number;
    memory_bytes?: number;
    memory_peak_bytes?: number;
    /** Fields that this backend cannot tell. */
    not_measured?: string[];
    oom_kills?: number;
    /** Processes and threads, without those of the jail's init. */
    pids?: number;
    rx_bytes?: number;
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
    /** Of the chain. */
    entry: number;
    /** What is allowed in the place of what was asked. */
    instead?: string;
    tag: "AUTONOMOUS" | "WHITELISTED" | "APPROVED" | "DENIED";
}
export interface Verdicts {
    allowed: boolean;
    count: number;
    /** Of the newest, for people. */
    detail?: string;
    /** Of the chain, that records the newest. */
    entry: number;
    first: string;
    /** Of what: the address of a name, a connection, a request of HTTP, a packet that no proxy carries. */
    kind: "name" | "connect" | "request" | "packet";
    last: string;
    port?: number;
    /** Why it was refused or broke off, in a word: host, port, method, path, denied, rate, bytes,
     * address, … */
    reason?: string;
    received?: number;
    /** That decided. */
    rule?: string;
    sent?: number;
}
export interface Version {
    commit?: string;
    go: string;
    started_at: string;
    version: string;
}
export interface Warm {
    /** How many are to wait. */
    count: number;
}
export interface Warmed {
    copies: number;
}
export interface Who {
    comm: string;
    pid: number;
}
export interface Workspace {
    source: string;
    /** Default: the same path as source. */
    target?: string;
}
