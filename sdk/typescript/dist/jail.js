import { Command } from "./command.js";
import { Disconnected, GlasshouseError, NotFound, ofProblem } from "./errors.js";
import { Files } from "./files.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
import { execRequest, resultOf } from "./values.js";
/** A jail. `await using` removes it at the end of the block. */
export class Jail {
    api;
    info;
    files;
    constructor(api, 
    /** The last known state; refresh updates it. */
    info) {
        this.api = api;
        this.info = info;
        this.files = new Files(api, info.id);
    }
    get id() {
        return this.info.id;
    }
    get name() {
        return this.info.name ?? "";
    }
    /** The last known state. */
    get state() {
        return this.info.state;
    }
    async [Symbol.asyncDispose]() {
        await gone(this.delete());
    }
    /** Updates info, including resource usage. */
    async refresh() {
        return (this.info = await this.api.getJail(this.id));
    }
    async start() {
        this.info = await this.api.startJail(this.id);
    }
    /** Ends all processes. grace is the time in milliseconds between SIGTERM and SIGKILL. Files are kept. */
    async stop({ grace } = {}) {
        this.info = await this.api.stopJail(this.id, grace === undefined ? undefined : { grace_ms: grace });
    }
    /** Freezes all processes. */
    async pause() {
        this.info = await this.api.pauseJail(this.id);
    }
    async resume() {
        this.info = await this.api.resumeJail(this.id);
    }
    /** Removes the jail and its files, and with snapshots also its snapshots. */
    delete({ snapshots } = {}) {
        return this.api.deleteJail(this.id, { snapshots });
    }
    /** Changes resource limits while the jail runs. Limits that are not given do not change. */
    async setLimits(limits) {
        this.info = await this.api.updateJailLimits(this.id, limits);
    }
    // Commands.
    /** Runs a command and waits for its end. With check, an exit code other than 0 throws CommandFailed. */
    async run(command, { check = false, ...how } = {}) {
        const result = resultOf(await this.api.execCommand(this.id, execRequest(command, how)));
        return check ? result.check() : result;
    }
    /**
     * Runs a command and streams its output. With stdinOpen, write() writes to its standard
     * input. With lossless, a slow reader blocks the command instead of losing output.
     */
    async stream(command, { stdinOpen, lossless, ...how } = {}) {
        const request = { ...execRequest(command, how), stream: true };
        if (stdinOpen)
            request.stdin_open = true;
        if (lossless)
            request.lossless = true;
        const abort = new AbortController();
        const events = (await this.api.execCommandStream(this.id, request, { signal: abort.signal }))[Symbol.asyncIterator]();
        const { value: start, done } = await events.next();
        if (done)
            throw new Disconnected("the connection was closed before the command's id was received");
        if (start.name === "error")
            throw ofProblem(start.data);
        return new Command(this.api, this.id, start.data, { events: { [Symbol.asyncIterator]: () => events }, abort });
    }
    /** Starts a command in the background. Its output is stored in the jail. */
    async spawn(command, { stdinOpen, ...how } = {}) {
        const request = { ...execRequest(command, how), detach: true };
        if (stdinOpen)
            request.stdin_open = true;
        return new Command(this.api, this.id, await this.api.execCommand(this.id, request, { idempotencyKey: newKey() }));
    }
    /** Returns a command that was started before. */
    async command(id) {
        return new Command(this.api, this.id, await this.api.getExec(this.id, id));
    }
    /** Lists the commands that are still known, oldest first. */
    commands() {
        return pages((after) => this.api.listExecs(this.id, { after }));
    }
    // Events.
    /**
     * Streams events, oldest first: past events and, by default, new ones. The filter consists
     * of terms separated by spaces, such as "type:file path:/etc ret:<0". The stream ends with
     * the jail and resumes after a restart of the daemon.
     */
    events(filter, q = {}) {
        return new Stream({
            connect: ({ lastEventId, told, signal }) => {
                const back = lastEventId !== undefined;
                const query = {
                    q: filter,
                    since: q.since,
                    until: q.until,
                    after: back ? undefined : q.after,
                    tail: back ? undefined : q.tail,
                    limit: q.limit === undefined ? undefined : q.limit - told,
                    follow: q.follow ?? true,
                };
                return this.api.streamEventsStream(this.id, query, back ? { signal, lastEventId } : { signal });
            },
            take: (event) => ({ item: event.data }),
        });
    }
    /** Lists processes, each after its parent: now, at a time, at a duration before now, or at a sequence number. */
    async processes({ at, all } = {}) {
        return (await this.api.listProcesses(this.id, { at, all })).items;
    }
    /** Lists network connections in the order of their start. */
    connections() {
        return pages((after) => this.api.listNetworkFlows(this.id, { after }));
    }
    /**
     * Returns the changes of its root filesystem or workspace, or the differences from a
     * snapshot or another jail, by path.
     */
    changes({ unified, ...q } = {}) {
        return pages((after) => this.api.diffFiles(this.id, { ...q, after, content: unified ? "unified" : undefined }));
    }
    /** Returns the changes that lead from this jail to another jail or a snapshot. */
    diff(against, o = {}) {
        return this.api.compareJail(this.id, diffQuery(against, o));
    }
    // Snapshots and branches.
    /** Takes a snapshot of memory and files. The jail continues to run. */
    async snapshot(how = {}) {
        return new Snapshot(this.api, await this.api.takeSnapshot(this.id, how, { idempotencyKey: newKey() }));
    }
    /** Lists its snapshots, oldest first. */
    async *snapshots() {
        for await (const s of pages((after) => this.api.listJailSnapshots(this.id, { after })))
            yield new Snapshot(this.api, s);
    }
    /**
     * Branches (forks) count jails from the current state. This jail continues to run.
     * `await using` removes the branches and their snapshot at the end of the block. If some
     * cannot be created, it throws BranchFailed with those that were created.
     */
    async branch(count = 1, how = {}) {
        return branchesOf(this.api, await this.api.branchJail(this.id, { count, ...how }, { idempotencyKey: newKey() }));
    }
    /** Rewinds to a snapshot. Later events stay in the event log. */
    async rewind(snapshot) {
        this.info = await this.api.rewindJail(this.id, { snapshot: idOf(snapshot) }, { idempotencyKey: newKey() });
    }
    // Policy.
    /** Returns the policy, its interpretation, and lint findings. */
    policy() {
        return this.api.getPolicy(this.id);
    }
    /** Replaces the policy. It takes effect immediately. */
    setPolicy(policy) {
        return this.api.putPolicy(this.id, policy);
    }
    /** Changes the autonomy level: lowers it, or raises it up to its ceiling. It takes effect immediately. */
    setLevel(level) {
        return this.api.setPolicyLevel(this.id, { level });
    }
    /**
     * Evaluates the policy for an action, and waits up to wait milliseconds if it requires
     * approval.
     */
    decide(action, resource, { wait, ...more } = {}) {
        const body = { action, ...more };
        if (resource !== undefined)
            body.resource = resource;
        if (wait)
            body.wait_ms = wait;
        return this.api.requestDecision(this.id, body);
    }
    /** Lists its policy decisions, oldest first. */
    trail() {
        return pages((after) => this.api.listDecisions(this.id, { after: number(after) }));
    }
    /** Returns the egress rules and counters. */
    egress() {
        return this.api.getEgress(this.id);
    }
    /** Changes the egress rules. They take effect immediately. */
    setEgress(rules) {
        return this.api.putEgress(this.id, rules);
    }
}
/** A snapshot of a jail. */
export class Snapshot {
    api;
    info;
    constructor(api, info) {
        this.api = api;
        this.info = info;
    }
    get id() {
        return this.info.id;
    }
    async refresh() {
        return (this.info = await this.api.getSnapshot(this.id));
    }
    /** Restores a jail from the snapshot. */
    async restore(how = {}) {
        return new Jail(this.api, await this.api.restoreSnapshot(this.id, how, { idempotencyKey: newKey() }));
    }
    /** Branches (forks) count jails. If some cannot be created, it throws BranchFailed with those that were created. */
    async branch(count = 1, how = {}) {
        return branchesOf(this.api, await this.api.branchSnapshot(this.id, { count, ...how }, { idempotencyKey: newKey() }));
    }
    /** Prepares count frozen copies, so that later branches start faster. */
    warm(count) {
        return this.api.warmSnapshot(this.id, { count });
    }
    /** Returns the differences from its jail, or from another jail or snapshot. */
    diff(against, o = {}) {
        return this.api.compareSnapshot(this.id, diffQuery(against, o));
    }
    /** Deletes the snapshot. Data that jails and other snapshots need is kept. */
    delete() {
        return this.api.deleteSnapshot(this.id);
    }
}
/** Branches of one snapshot. */
export class Branches extends Array {
    /** The snapshot, if it was taken for these branches. */
    snapshot;
    static get [Symbol.species]() {
        return Array; // map and similar methods return plain arrays
    }
    async [Symbol.asyncDispose]() {
        for (const jail of this)
            await gone(jail.delete());
        if (this.snapshot)
            await gone(this.snapshot.delete());
    }
}
function branchesOf(api, made) {
    const jails = new Branches();
    for (const j of made.jails)
        jails.push(new Jail(api, j));
    if (made.snapshot)
        jails.snapshot = new Snapshot(api, made.snapshot);
    const failed = made.errors?.[0];
    if (failed) {
        const cause = ofProblem(failed.problem);
        const all = made.errors.length + jails.length;
        throw new BranchFailed(`${made.errors.length} of ${all} branches could not be created: ${cause.detail}`, jails, { remedy: cause.remedy, cause });
    }
    return jails;
}
/** Returns the items of a paged list. */
export async function* pages(page) {
    let after;
    do {
        const { items, next } = await page(after);
        yield* items;
        after = next;
    } while (after);
}
export const number = (after) => (after === undefined ? undefined : Number(after));
const idOf = (thing) => (typeof thing === "string" ? thing : thing.id);
function diffQuery(against, { only, unified }) {
    const content = unified ? "unified" : undefined;
    return { against: against === undefined ? undefined : idOf(against), only: only?.join(","), content };
}
/** Waits for a removal. An object that no longer exists is not an error. */
async function gone(removal) {
    try {
        await removal;
    }
    catch (err) {
        if (!(err instanceof NotFound))
            throw err;
    }
}
/** Some branches could not be created. */
export class BranchFailed extends GlasshouseError {
    jails;
    constructor(detail, 
    /** The branches that were created. */
    jails, more) {
        super(detail, more);
        this.jails = jails;
    }
}
