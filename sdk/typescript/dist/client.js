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
    /** Has a method for each operation of the daemon, including those without a method of this class. */
    api;
    constructor(o = {}) {
        this.api = new Operations(o);
    }
    /** Closes idle connections. */
    close() {
        this.api.close();
    }
    async [Symbol.asyncDispose]() {
        this.close();
    }
    version() {
        return this.api.getVersion();
    }
    /** Returns the identity and role of the caller. */
    me() {
        return this.api.getCaller();
    }
    /** Returns the features of the host, with remedies for missing ones. */
    async doctor() {
        return (await this.api.diagnoseHost()).items;
    }
    // Jails.
    /** Creates a jail and starts it, unless start is false. `await using` removes it at the end of the block. */
    async jail(spec = {}) {
        return new Jail(this.api, await this.api.createJail({ start: true, ...spec }, { idempotencyKey: newKey() }));
    }
    /** Returns an existing jail by its id. */
    async findJail(id) {
        return new Jail(this.api, await this.api.getJail(id));
    }
    /** Lists jails, oldest first. */
    async *jails({ labels, ...q } = {}) {
        const label = labels && Object.entries(labels).map(([k, v]) => `${k}=${v}`);
        for await (const j of pages((after) => this.api.listJails({ ...q, label, after })))
            yield new Jail(this.api, j);
    }
    async findSnapshot(id) {
        return new Snapshot(this.api, await this.api.getSnapshot(id));
    }
    /** Lists snapshots, oldest first. */
    async *snapshots() {
        for await (const s of pages((after) => this.api.listSnapshots({ after })))
            yield new Snapshot(this.api, s);
    }
    /** Returns the lineage of jails and snapshots as trees. */
    async lineage(jail) {
        return (await this.api.getLineage({ jail })).items;
    }
    // Approvals.
    /** Lists pending approval requests, oldest first, or those in another state. */
    async approvals(q = {}) {
        return (await this.api.listApprovals(q)).items;
    }
    /** Returns an approval request, after waiting up to wait milliseconds for a decision. */
    approval(id, { wait } = {}) {
        return this.api.getApproval(id, { wait_ms: wait });
    }
    /** Approves a request: once, or for the given scope. The first decision is final. */
    approve(id, how = {}) {
        return this.api.answerApproval(id, { answer: "allow", ...how });
    }
    deny(id, reason = "") {
        return this.api.answerApproval(id, { answer: "deny", reason });
    }
    /**
     * Streams changes of approval requests, starting with the pending ones. After a reconnect
     * the pending requests are sent again.
     */
    approvalEvents() {
        return new Stream({
            connect: ({ signal }) => this.api.streamApprovals({ signal }),
            take: (event) => ({ item: event.data }),
        });
    }
    // Capabilities.
    /** Lists all versions of capabilities, by id, newest first. */
    async capabilities() {
        return (await this.api.listCapabilities()).items;
    }
    /** Returns a version of a capability with its manifest and schemas; by default the newest. */
    capability(id, version) {
        return this.api.getCapability(id, { version });
    }
    /**
     * Registers the capabilities of a manifest. New permissions require approval by a person.
     */
    async register(manifest, how = {}) {
        return (await this.api.registerCapabilities({ manifest, ...how })).items;
    }
    /**
     * Calls a capability and resolves to its output. If the capability fails, it throws
     * CallFailed; if the call is denied, it throws one of the other errors.
     */
    async call(capability, input = {}, how = {}) {
        const called = await this.called(capability, input, how);
        if (called.state === "done")
            return called.output;
        throw new CallFailed(`${capability}: ${called.error?.message ?? called.state}`, called, called.error?.remedy);
    }
    /** Calls a capability and resolves to the complete result: output, usage, label, entry. */
    called(capability, input = {}, how = {}) {
        return this.api.callCapability(capability, { input, ...how }, { idempotencyKey: newKey() });
    }
    // Sessions and runs.
    /** Opens a session, or returns the existing one with this name. */
    async session(how = {}) {
        return new Session(this.api, await this.api.createSession(how, { idempotencyKey: newKey() }));
    }
    async findSession(id) {
        return new Session(this.api, await this.api.getSession(id));
    }
    /** Lists sessions, newest first. */
    async *sessions(q = {}) {
        for await (const s of pages((after) => this.api.listSessions({ ...q, after })))
            yield new Session(this.api, s);
    }
    /** Starts an agent run for a goal: now, at a time, or by a schedule. */
    run(goal, how = {}) {
        return startRun(this.api, { ...how, goal });
    }
    async findRun(id) {
        return new Run(this.api, await this.api.getRun(id));
    }
    /** Lists runs, newest first. */
    async *runs({ session, state } = {}) {
        for await (const r of pages((after) => this.api.listRuns({ session_id: session, state, after })))
            yield new Run(this.api, r);
    }
    async findSchedule(id) {
        return new Schedule(this.api, await this.api.getSchedule(id));
    }
    /** Lists schedules, oldest first. */
    async *schedules() {
        for await (const s of pages((after) => this.api.listSchedules({ after })))
            yield new Schedule(this.api, s);
    }
    // Audit log.
    /** Lists entries of the audit log, oldest first. */
    chain({ after: from, ...q } = {}) {
        return pages((after) => this.api.listChainEntries({ ...q, after: number(after) ?? from }));
    }
    chainHead() {
        return this.api.getChainHead();
    }
    /** Verifies the audit log: the entries since the last verification, or all. */
    verifyChain({ all } = {}) {
        return this.api.verifyChain({ all });
    }
    /** Exports the audit log with its checkpoints and public key, line by line. */
    exportChain() {
        return this.api.exportChain();
    }
    /**
     * Streams events and resource usage of jails for comma-separated topics. The name of an
     * event is its topic.
     */
    feed(topics) {
        return new Stream({
            connect: ({ lastEventId, signal }) => this.api.streamFeed({ topics }, lastEventId === undefined ? { signal } : { signal, lastEventId }),
            take: (event) => ({ item: event }),
        });
    }
}
