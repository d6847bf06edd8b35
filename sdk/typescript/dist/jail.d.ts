import { Command } from "./command.js";
import { GlasshouseError, type ErrorDetails } from "./errors.js";
import { Files } from "./files.js";
import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { type CommandLine, type Result, type RunOptions } from "./values.js";
import type * as wire from "./wire.js";
export interface EventQuery {
    /** Only events from this time (RFC 3339) or duration before now, such as 5m. */
    since?: string;
    /** Only events until this time. */
    until?: string;
    /** Only events with a larger sequence number. */
    after?: number;
    /** Only this many of the last past events. */
    tail?: number;
    /** Maximum number of events. */
    limit?: number;
    /** Continue with new events (default true). */
    follow?: boolean;
}
/** Options of a comparison. */
export interface DiffOptions {
    /** Default: all. */
    only?: ("files" | "workspace" | "processes" | "events" | "usage")[];
    /** Include unified diffs of text files. */
    unified?: boolean;
}
/** A jail. `await using` removes it at the end of the block. */
export declare class Jail {
    readonly api: Operations;
    /** The last known state; refresh updates it. */
    info: wire.Jail;
    readonly files: Files;
    constructor(api: Operations, 
    /** The last known state; refresh updates it. */
    info: wire.Jail);
    get id(): string;
    get name(): string;
    /** The last known state. */
    get state(): wire.Jail["state"];
    [Symbol.asyncDispose](): Promise<void>;
    /** Updates info, including resource usage. */
    refresh(): Promise<wire.Jail>;
    start(): Promise<void>;
    /** Ends all processes. grace is the time in milliseconds between SIGTERM and SIGKILL. Files are kept. */
    stop({ grace }?: {
        grace?: number;
    }): Promise<void>;
    /** Freezes all processes. */
    pause(): Promise<void>;
    resume(): Promise<void>;
    /** Removes the jail and its files, and with snapshots also its snapshots. */
    delete({ snapshots }?: {
        snapshots?: boolean;
    }): Promise<void>;
    /** Changes resource limits while the jail runs. Limits that are not given do not change. */
    setLimits(limits: wire.Limits): Promise<void>;
    /** Runs a command and waits for its end. With check, an exit code other than 0 throws CommandFailed. */
    run(command: CommandLine, { check, ...how }?: RunOptions & {
        check?: boolean;
    }): Promise<Result>;
    /**
     * Runs a command and streams its output. With stdinOpen, write() writes to its standard
     * input. With lossless, a slow reader blocks the command instead of losing output.
     */
    stream(command: CommandLine, { stdinOpen, lossless, ...how }?: RunOptions & {
        stdinOpen?: boolean;
        lossless?: boolean;
    }): Promise<Command>;
    /** Starts a command in the background. Its output is stored in the jail. */
    spawn(command: CommandLine, { stdinOpen, ...how }?: RunOptions & {
        stdinOpen?: boolean;
    }): Promise<Command>;
    /** Returns a command that was started before. */
    command(id: string): Promise<Command>;
    /** Lists the commands that are still known, oldest first. */
    commands(): AsyncGenerator<wire.Exec, void, undefined>;
    /**
     * Streams events, oldest first: past events and, by default, new ones. The filter consists
     * of terms separated by spaces, such as "type:file path:/etc ret:<0". The stream ends with
     * the jail and resumes after a restart of the daemon.
     */
    events(filter?: string, q?: EventQuery): Stream<wire.Event>;
    /** Lists processes, each after its parent: now, at a time, at a duration before now, or at a sequence number. */
    processes({ at, all }?: {
        at?: string;
        all?: boolean;
    }): Promise<wire.Process[]>;
    /** Lists network connections in the order of their start. */
    connections(): AsyncGenerator<wire.Flow, void, undefined>;
    /**
     * Returns the changes of its root filesystem or workspace, or the differences from a
     * snapshot or another jail, by path.
     */
    changes({ unified, ...q }?: {
        workspace?: boolean;
        against?: string;
        path?: string;
        unified?: boolean;
    }): AsyncGenerator<wire.Change, void, undefined>;
    /** Returns the changes that lead from this jail to another jail or a snapshot. */
    diff(against: string | Jail | Snapshot, o?: DiffOptions): Promise<wire.Comparison>;
    /** Takes a snapshot of memory and files. The jail continues to run. */
    snapshot(how?: wire.TakeSnapshot): Promise<Snapshot>;
    /** Lists its snapshots, oldest first. */
    snapshots(): AsyncGenerator<Snapshot, void, undefined>;
    /**
     * Branches (forks) count jails from the current state. This jail continues to run.
     * `await using` removes the branches and their snapshot at the end of the block. If some
     * cannot be created, it throws BranchFailed with those that were created.
     */
    branch(count?: number, how?: Omit<wire.Branch, "count">): Promise<Branches>;
    /** Rewinds to a snapshot. Later events stay in the event log. */
    rewind(snapshot: string | Snapshot): Promise<void>;
    /** Returns the policy, its interpretation, and lint findings. */
    policy(): Promise<wire.PolicyState>;
    /** Replaces the policy. It takes effect immediately. */
    setPolicy(policy: wire.Policy): Promise<wire.PolicyState>;
    /** Changes the autonomy level: lowers it, or raises it up to its ceiling. It takes effect immediately. */
    setLevel(level: number): Promise<wire.PolicyState>;
    /**
     * Evaluates the policy for an action, and waits up to wait milliseconds if it requires
     * approval.
     */
    decide(action: string, resource?: string, { wait, ...more }?: {
        wait?: number;
        agent?: string;
        attributes?: Record<string, string>;
    }): Promise<wire.Verdict>;
    /** Lists its policy decisions, oldest first. */
    trail(): AsyncGenerator<wire.TrailEntry, void, undefined>;
    /** Returns the egress rules and counters. */
    egress(): Promise<wire.EgressState>;
    /** Changes the egress rules. They take effect immediately. */
    setEgress(rules: wire.Egress): Promise<wire.EgressState>;
}
/** A snapshot of a jail. */
export declare class Snapshot {
    readonly api: Operations;
    info: wire.Snapshot;
    constructor(api: Operations, info: wire.Snapshot);
    get id(): string;
    refresh(): Promise<wire.Snapshot>;
    /** Restores a jail from the snapshot. */
    restore(how?: wire.Overrides): Promise<Jail>;
    /** Branches (forks) count jails. If some cannot be created, it throws BranchFailed with those that were created. */
    branch(count?: number, how?: Omit<wire.Branch, "count">): Promise<Branches>;
    /** Prepares count frozen copies, so that later branches start faster. */
    warm(count: number): Promise<wire.Warmed>;
    /** Returns the differences from its jail, or from another jail or snapshot. */
    diff(against?: string | Jail | Snapshot, o?: DiffOptions): Promise<wire.Comparison>;
    /** Deletes the snapshot. Data that jails and other snapshots need is kept. */
    delete(): Promise<void>;
}
/** Branches of one snapshot. */
export declare class Branches extends Array<Jail> {
    /** The snapshot, if it was taken for these branches. */
    snapshot: Snapshot | undefined;
    static get [Symbol.species](): ArrayConstructor;
    [Symbol.asyncDispose](): Promise<void>;
}
/** Returns the items of a paged list. */
export declare function pages<T>(page: (after: string | undefined) => Promise<{
    items: T[];
    next?: string;
}>): AsyncGenerator<T, void, undefined>;
export declare const number: (after: string | undefined) => number | undefined;
/** Some branches could not be created. */
export declare class BranchFailed extends GlasshouseError {
    /** The branches that were created. */
    readonly jails: Jail[];
    constructor(detail: string, 
    /** The branches that were created. */
    jails: Jail[], more: ErrorDetails);
}
