import { CallFailed } from "./errors.js";
import { Jail, number, pages, Snapshot } from "./jail.js";
import { Operations } from "./operations.js";
import { Run, Schedule, Session, startRun } from "./runs.js";
import { Stream } from "./stream.js";
import { newKey } from "./transport.js";
/**
 * A Glasshouse daemon.
 *
 *     await using gh = new Glasshouse();
 *     await using jail = await gh.jail({ name: "box" });
 *     console.log((await jail.run("uname -a")).stdout);
 */
export class Glasshouse {
    /** Has a method for each operation of the daemon, also for those that nothing more comfortable is for. */
    api;
    constructor(o = {}) {
        this.api = new Operations(o);
    }
    /** Closes the connections that are kept. */
    close() {
        this.api.close();
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
    version() {
        return this.api.getVersion();
    }
    /** Who the daemon takes the caller for. */
    me() {
        return this.api.getMe();
    }
    /** What this host can do, and what to do about what it cannot. */
    async doctor() {
        return (await this.api.getDoctor()).items;
    }
    // Jails.
    /** Makes a jail and starts it, unless start is false. With `await using` it is removed at the end. */
    async jail(spec = {}) {
        return new Jail(this.api, await this.api.postJails({ start: true, ...spec }, { idempotencyKey: newKey() }));
    }
    /** A jail that is there, by its id. */
    async findJail(id) {
        return new Jail(this.api, await this.api.getJailsById(id));
    }
    /** Jails, oldest first. */
    async *jails({ labels, ...q } = {}) {
        const label = labels && Object.entries(labels).map(([k, v]) => `${k}=${v}`);
        for await (const j of pages((after) => this.api.getJails({ ...q, label, after })))
            yield new Jail(this.api, j);
    }
    async findSnapshot(id) {
        return new Snapshot(this.api, await this.api.getSnapshotsBySid(id));
    }
    /** Snapshots, oldest first. */
    async *snapshots() {
        for await (const s of pages((after) => this.api.getSnapshots({ after })))
            yield new Snapshot(this.api, s);
    }
    /** Which jails and snapshots come from which, as trees. */
    async lineage(jail) {
        return (await this.api.getLineage({ jail })).items;
    }
    // What people are asked.
    /** What waits for a person, oldest first, or what is in another state. */
    async approvals(q = {}) {
        return (await this.api.getApprovals(q)).items;
    }
    /** A request, after at most so many milliseconds if it is not settled before. */
    approval(id, { wait } = {}) {
        return this.api.getApprovalsByApproval(id, { wait_ms: wait });
    }
    /** Allows what is asked: once, or as scope says. The first answer counts. */
    approve(id, how = {}) {
        return this.api.postApprovalsByApproval(id, { answer: "allow", ...how });
    }
    deny(id, reason = "") {
        return this.api.postApprovalsByApproval(id, { answer: "deny", reason });
    }
    /**
     * What happens to requests, those that wait first. When the connection has broken, those
     * that wait are told once more.
     */
    approvalEvents() {
        return new Stream({
            connect: ({ signal }) => this.api.getApprovalsEvents({ signal }),
            take: (event) => ({ item: event.data }),
        });
    }
    // Capabilities.
    /** The versions of all capabilities, by id, the newest first. */
    async capabilities() {
        return (await this.api.getCapabilities()).items;
    }
    /** A version, with its manifest and its schemas; without one the newest. */
    capability(id, version) {
        return this.api.getCapabilitiesByCapability(id, { version });
    }
    /**
     * Registers the capabilities of a manifest's text. A person is asked about what they may
     * do that is new.
     */
    async register(manifest, how = {}) {
        return (await this.api.postCapabilities({ manifest, ...how })).items;
    }
    /**
     * Calls a capability and resolves to its output. CallFailed says that it failed; that it
     * was refused is one of the other errors.
     */
    async call(capability, input = {}, how = {}) {
        const called = await this.called(capability, input, how);
        if (called.state === "done")
            return called.output;
        throw new CallFailed(`${capability}: ${called.error?.message ?? called.state}`, called, called.error?.remedy);
    }
    /** Calls a capability and resolves to all that became of it: output, usage, label, entry. */
    called(capability, input = {}, how = {}) {
        return this.api.postCapabilitiesByCapabilityCall(capability, { input, ...how }, { idempotencyKey: newKey() });
    }
    // Agents at work.
    /** Opens a session, or finds the one of that name. */
    async session(how = {}) {
        return new Session(this.api, await this.api.postChatSession(how, { idempotencyKey: newKey() }));
    }
    async findSession(id) {
        return new Session(this.api, await this.api.getChatSessionBySession(id));
    }
    /** Sessions, newest first. */
    async *sessions(q = {}) {
        for await (const s of pages((after) => this.api.getChatSession({ ...q, after })))
            yield new Session(this.api, s);
    }
    /** Has an agent pursue a goal: now, at a time, or by a schedule. */
    run(goal, how = {}) {
        return startRun(this.api, { ...how, goal });
    }
    async findRun(id) {
        return new Run(this.api, await this.api.getChatRunByRun(id));
    }
    /** Runs, newest first. */
    async *runs({ session, state } = {}) {
        for await (const r of pages((after) => this.api.getChatRun({ session_id: session, state, after })))
            yield new Run(this.api, r);
    }
    async findSchedule(id) {
        return new Schedule(this.api, await this.api.getSchedulesBySchedule(id));
    }
    /** Schedules, oldest first. */
    async *schedules() {
        for await (const s of pages((after) => this.api.getSchedules({ after })))
            yield new Schedule(this.api, s);
    }
    // What can be proved.
    /** Entries of the causal chain, oldest first. */
    chain({ after: from, ...q } = {}) {
        return pages((after) => this.api.getChain({ ...q, after: number(after) ?? from }));
    }
    chainHead() {
        return this.api.getChainHead();
    }
    /** Verifies the chain: since it was last verified, or all of it. */
    verifyChain({ all } = {}) {
        return this.api.getChainVerify({ all });
    }
    /** The chain with its checkpoints and its key, line by line. */
    exportChain() {
        return this.api.getChainExport();
    }
    /**
     * What happens, and how jails fare, on the topics that are named, joined by commas. An
     * event's name is its topic.
     */
    feed(topics) {
        return new Stream({
            connect: ({ lastEventId, signal }) => this.api.getFeed({ topics }, lastEventId === undefined ? { signal } : { signal, lastEventId }),
            take: (event) => ({ item: event }),
        });
    }
}
