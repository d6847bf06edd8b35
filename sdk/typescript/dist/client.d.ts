import { Jail, Snapshot } from "./jail.js";
import { Operations } from "./operations.js";
import { Run, Schedule, Session } from "./runs.js";
import type { ServerEvent } from "./sse.js";
import { Stream } from "./stream.js";
import { type Options } from "./transport.js";
import type * as wire from "./wire.js";
/**
 * A Glasshouse daemon.
 *
 *     await using gh = new Glasshouse();
 *     await using jail = await gh.jail({ name: "box" });
 *     console.log((await jail.run("uname -a")).stdout);
 */
export declare class Glasshouse {
    /** Has a method for each operation of the daemon, including those without a method of this class. */
    readonly api: Operations;
    constructor(o?: Options);
    /** Closes idle connections. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
    version(): Promise<wire.Version>;
    /** Returns the identity and role of the caller. */
    me(): Promise<wire.Me>;
    /** Returns the features of the host, with remedies for missing ones. */
    doctor(): Promise<wire.Probe[]>;
    /** Creates a jail and starts it, unless start is false. `await using` removes it at the end of the block. */
    jail(spec?: wire.CreateJail): Promise<Jail>;
    /** Returns an existing jail by its id. */
    findJail(id: string): Promise<Jail>;
    /** Lists jails, oldest first. */
    jails({ labels, ...q }?: {
        name?: string;
        state?: wire.Jail["state"];
        labels?: Record<string, string>;
    }): AsyncGenerator<Jail, void, undefined>;
    findSnapshot(id: string): Promise<Snapshot>;
    /** Lists snapshots, oldest first. */
    snapshots(): AsyncGenerator<Snapshot, void, undefined>;
    /** Returns the lineage of jails and snapshots as trees. */
    lineage(jail?: string): Promise<wire.LineageJail[]>;
    /** Lists pending approval requests, oldest first, or those in another state. */
    approvals(q?: {
        jail?: string;
        state?: "pending" | "answered" | "expired" | "withdrawn" | "all";
    }): Promise<wire.Approval[]>;
    /** Returns an approval request, after waiting up to wait milliseconds for a decision. */
    approval(id: string, { wait }?: {
        wait?: number;
    }): Promise<wire.Approval>;
    /** Approves a request: once, or for the given scope. The first decision is final. */
    approve(id: string, how?: Omit<wire.AnswerApproval, "answer">): Promise<wire.Approval>;
    deny(id: string, reason?: string): Promise<wire.Approval>;
    /**
     * Streams changes of approval requests, starting with the pending ones. After a reconnect
     * the pending requests are sent again.
     */
    approvalEvents(): Stream<wire.ApprovalEvent>;
    /** Lists all versions of capabilities, by id, newest first. */
    capabilities(): Promise<wire.Capability[]>;
    /** Returns a version of a capability with its manifest and schemas; by default the newest. */
    capability(id: string, version?: string): Promise<wire.Capability>;
    /**
     * Registers the capabilities of a manifest. New permissions require approval by a person.
     */
    register(manifest: string, how?: Omit<wire.Register, "manifest">): Promise<wire.Capability[]>;
    /**
     * Calls a capability and resolves to its output. If the capability fails, it throws
     * CallFailed; if the call is denied, it throws one of the other errors.
     */
    call(capability: string, input?: unknown, how?: Omit<wire.Call, "input">): Promise<unknown>;
    /** Calls a capability and resolves to the complete result: output, usage, label, entry. */
    called(capability: string, input?: unknown, how?: Omit<wire.Call, "input">): Promise<wire.Called>;
    /** Opens a session, or returns the existing one with this name. */
    session(how?: wire.OpenSession): Promise<Session>;
    findSession(id: string): Promise<Session>;
    /** Lists sessions, newest first. */
    sessions(q?: {
        state?: "open" | "closed";
    }): AsyncGenerator<Session, void, undefined>;
    /** Starts an agent run for a goal: now, at a time, or by a schedule. */
    run(goal: string, how?: Omit<wire.StartRun, "goal">): Promise<Run>;
    findRun(id: string): Promise<Run>;
    /** Lists runs, newest first. */
    runs({ session, state }?: {
        session?: string;
        state?: NonNullable<wire.Run["state"]>;
    }): AsyncGenerator<Run, void, undefined>;
    findSchedule(id: string): Promise<Schedule>;
    /** Lists schedules, oldest first. */
    schedules(): AsyncGenerator<Schedule, void, undefined>;
    /** Lists entries of the audit log, oldest first. */
    chain({ after: from, ...q }?: {
        jail?: string;
        session?: string;
        run?: string;
        kind?: string;
        after?: number;
    }): AsyncGenerator<wire.ChainEntry, void, undefined>;
    chainHead(): Promise<wire.ChainHead>;
    /** Verifies the audit log: the entries since the last verification, or all. */
    verifyChain({ all }?: {
        all?: boolean;
    }): Promise<wire.ChainReport>;
    /** Exports the audit log with its checkpoints and public key, line by line. */
    exportChain(): Promise<AsyncIterable<wire.ChainEntry>>;
    /**
     * Streams events and resource usage of jails for comma-separated topics. The name of an
     * event is its topic.
     */
    feed(topics?: string): Stream<ServerEvent>;
}
