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
    /** Has a method for each operation of the daemon, also for those that nothing more comfortable is for. */
    readonly api: Operations;
    constructor(o?: Options);
    /** Closes the connections that are kept. */
    close(): void;
    [Symbol.asyncDispose](): Promise<void>;
    version(): Promise<wire.Version>;
    /** Who the daemon takes the caller for. */
    me(): Promise<wire.Me>;
    /** What this host can do, and what to do about what it cannot. */
    doctor(): Promise<wire.Probe[]>;
    /** Makes a jail and starts it, unless start is false. With `await using` it is removed at the end. */
    jail(spec?: wire.CreateJail): Promise<Jail>;
    /** A jail that is there, by its id. */
    findJail(id: string): Promise<Jail>;
    /** Jails, oldest first. */
    jails({ labels, ...q }?: {
        name?: string;
        state?: wire.Jail["state"];
        labels?: Record<string, string>;
    }): AsyncGenerator<Jail, void, undefined>;
    findSnapshot(id: string): Promise<Snapshot>;
    /** Snapshots, oldest first. */
    snapshots(): AsyncGenerator<Snapshot, void, undefined>;
    /** Which jails and snapshots come from which, as trees. */
    lineage(jail?: string): Promise<wire.LineageJail[]>;
    /** What waits for a person, oldest first, or what is in another state. */
    approvals(q?: {
        jail?: string;
        state?: "pending" | "answered" | "expired" | "withdrawn" | "all";
    }): Promise<wire.Approval[]>;
    /** A request, after at most so many milliseconds if it is not settled before. */
    approval(id: string, { wait }?: {
        wait?: number;
    }): Promise<wire.Approval>;
    /** Allows what is asked: once, or as scope says. The first answer counts. */
    approve(id: string, how?: Omit<wire.AnswerApproval, "answer">): Promise<wire.Approval>;
    deny(id: string, reason?: string): Promise<wire.Approval>;
    /**
     * What happens to requests, those that wait first. When the connection has broken, those
     * that wait are told once more.
     */
    approvalEvents(): Stream<wire.ApprovalEvent>;
    /** The versions of all capabilities, by id, the newest first. */
    capabilities(): Promise<wire.Capability[]>;
    /** A version, with its manifest and its schemas; without one the newest. */
    capability(id: string, version?: string): Promise<wire.Capability>;
    /**
     * Registers the capabilities of a manifest's text. A person is asked about what they may
     * do that is new.
     */
    register(manifest: string, how?: Omit<wire.Register, "manifest">): Promise<wire.Capability[]>;
    /**
     * Calls a capability and resolves to its output. CallFailed says that it failed; that it
     * was refused is one of the other errors.
     */
    call(capability: string, input?: unknown, how?: Omit<wire.Call, "input">): Promise<unknown>;
    /** Calls a capability and resolves to all that became of it: output, usage, label, entry. */
    called(capability: string, input?: unknown, how?: Omit<wire.Call, "input">): Promise<wire.Called>;
    /** Opens a session, or finds the one of that name. */
    session(how?: wire.OpenSession): Promise<Session>;
    findSession(id: string): Promise<Session>;
    /** Sessions, newest first. */
    sessions(q?: {
        state?: "open" | "closed";
    }): AsyncGenerator<Session, void, undefined>;
    /** Has an agent pursue a goal: now, at a time, or by a schedule. */
    run(goal: string, how?: Omit<wire.StartRun, "goal">): Promise<Run>;
    findRun(id: string): Promise<Run>;
    /** Runs, newest first. */
    runs({ session, state }?: {
        session?: string;
        state?: NonNullable<wire.Run["state"]>;
    }): AsyncGenerator<Run, void, undefined>;
    findSchedule(id: string): Promise<Schedule>;
    /** Schedules, oldest first. */
    schedules(): AsyncGenerator<Schedule, void, undefined>;
    /** Entries of the causal chain, oldest first. */
    chain({ after: from, ...q }?: {
        jail?: string;
        session?: string;
        run?: string;
        kind?: string;
        after?: number;
    }): AsyncGenerator<wire.ChainEntry, void, undefined>;
    chainHead(): Promise<wire.ChainHead>;
    /** Verifies the chain: since it was last verified, or all of it. */
    verifyChain({ all }?: {
        all?: boolean;
    }): Promise<wire.ChainReport>;
    /** The chain with its checkpoints and its key, line by line. */
    exportChain(): Promise<AsyncIterable<wire.ChainEntry>>;
    /**
     * What happens, and how jails fare, on the topics that are named, joined by commas. An
     * event's name is its topic.
     */
    feed(topics?: string): Stream<ServerEvent>;
}
