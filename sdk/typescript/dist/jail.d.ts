import { Command } from "./command.js";
import { Files } from "./files.js";
import type { Operations } from "./operations.js";
import { Stream } from "./stream.js";
import { type CommandLine, type Result, type RunOptions } from "./values.js";
import type * as wire from "./wire.js";
export interface EventQuery {
    /** Not before: a time (RFC 3339) or how long ago, such as 5m. */
    since?: string;
    /** Not after. */
    until?: string;
    /** Only records with a later seq. */
    after?: number;
    /** Of the records there are, only the last so many. */
    tail?: number;
    /** At most so many. */
    limit?: number;
    /** Go on with what happens from now on, which is the default. */
    follow?: boolean;
}
/** What is told of a comparison. */
export interface DiffOptions {
    /** All if not given. */
    only?: ("files" | "workspace" | "processes" | "events" | "usage")[];
    /** With the differences of text files, as diff -u writes them. */
    unified?: boolean;
}
/** A jail. With `await using` it is removed at the end. */
export declare class Jail {
    readonly api: Operations;
    /** What was last heard of it; refresh asks anew. */
    info: wire.Jail;
    readonly files: Files;
    constructor(api: Operations, 
    /** What was last heard of it; refresh asks anew. */
    info: wire.Jail);
    get id(): string;
    get name(): string;
    /** As it was when last heard of. */
    get state(): wire.Jail["state"];
    [Symbol.asyncDispose](): Promise<void>;
    /** Asks how it is now, and what it uses. */
    refresh(): Promise<wire.Jail>;
    start(): Promise<void>;
    /** Ends every process. With grace, in milliseconds, they are asked first. Files stay. */
    stop({ grace }?: {
        grace?: number;
    }): Promise<void>;
    /** Freezes it, as it is. */
    pause(): Promise<void>;
    resume(): Promise<void>;
    /** Removes it and its files, and with snapshots also those that were taken of it. */
    delete({ snapshots }?: {
        snapshots?: boolean;
    }): Promise<void>;
    /** Changes what it may use, while it runs. What is not named stays as it is. */
    setLimits(limits: wire.Limits): Promise<void>;
    /** Runs a command and waits for it. With check a code other than 0 throws CommandFailed. */
    run(command: CommandLine, { check, ...how }?: RunOptions & {
        check?: boolean;
    }): Promise<Result>;
    /**
     * Runs a command, to go through what it writes as it comes. stdinOpen lets one write to
     * it; with lossless a slow reader slows it down, rather than lose output.
     */
    stream(command: CommandLine, { stdinOpen, lossless, ...how }?: RunOptions & {
        stdinOpen?: boolean;
        lossless?: boolean;
    }): Promise<Command>;
    /** Starts a command and leaves it to itself. What it writes is kept in the jail. */
    spawn(command: CommandLine, { stdinOpen, ...how }?: RunOptions & {
        stdinOpen?: boolean;
    }): Promise<Command>;
    /** A command that was started before. */
    command(id: string): Promise<Command>;
    /** The commands that are still known, oldest first. */
    commands(): AsyncGenerator<wire.Exec, void, undefined>;
    /**
     * What it does, oldest first: what there is, and unless told otherwise what comes. The
     * filter is of terms joined by spaces, such as "type:file path:/etc ret:<0". The stream
     * ends with the jail, and goes on where it was when the daemon has been away.
     */
    events(filter?: string, q?: EventQuery): Stream<wire.Event>;
    /** Its processes, each after its parent: now, or at a time, so long ago, or at a seq. */
    processes({ at, all }?: {
        at?: string;
        all?: boolean;
    }): Promise<wire.Process[]>;
    /** Whom it talked to, in the order it began. */
    connections(): AsyncGenerator<wire.Flow, void, undefined>;
    /**
     * What it changed in its root filesystem or its workspace, or how it differs from a
     * snapshot or another jail, by path.
     */
    changes({ unified, ...q }?: {
        workspace?: boolean;
        against?: string;
        path?: string;
        unified?: boolean;
    }): AsyncGenerator<wire.Change, void, undefined>;
    /** What would have to change to come from this jail to that jail or snapshot. */
    diff(against: string | Jail | Snapshot, o?: DiffOptions): Promise<wire.Comparison>;
    /** Keeps it as it is, memory and files. It goes on. */
    snapshot(how?: wire.TakeSnapshot): Promise<Snapshot>;
    /** Its snapshots, oldest first. */
    snapshots(): AsyncGenerator<Snapshot, void, undefined>;
    /**
     * Makes so many jails that each go on from where this one is; it goes on too. With
     * `await using` they and their snapshot are removed at the end. If not all can be made,
     * BranchFailed has those that were.
     */
    branch(count?: number, how?: Omit<wire.Branch, "count">): Promise<Branches>;
    /** Takes it back to a snapshot. What it did since stays in its log. */
    rewind(snapshot: string | Snapshot): Promise<void>;
    /** Its policy, how it is read, and what in it does not do what it seems to. */
    policy(): Promise<wire.PolicyState>;
    /** Gives it another policy, at once. */
    setPolicy(policy: wire.Policy): Promise<wire.PolicyState>;
    /** Changes its level of autonomy, at once: down, or up to its ceiling. */
    setLevel(level: number): Promise<wire.PolicyState>;
    /**
     * Asks whether something may be done, and waits so many milliseconds for a person, if
     * one is to be asked.
     */
    decide(action: string, resource?: string, { wait, ...more }?: {
        wait?: number;
        agent?: string;
        attributes?: Record<string, string>;
    }): Promise<wire.Verdict>;
    /** What was decided about it, oldest first. */
    trail(): AsyncGenerator<wire.TrailEntry, void, undefined>;
    /** What may leave it, and what did, in numbers. */
    egress(): Promise<wire.EgressState>;
    /** Changes what may leave it, at once. */
    setEgress(rules: wire.Egress): Promise<wire.EgressState>;
}
/** A jail as it was at one moment. */
export declare class Snapshot {
    readonly api: Operations;
    info: wire.Snapshot;
    constructor(api: Operations, info: wire.Snapshot);
    get id(): string;
    refresh(): Promise<wire.Snapshot>;
    /** Makes a jail from it, as it was. */
    restore(how?: wire.Overrides): Promise<Jail>;
    /** Makes so many jails from it. If not all can be made, BranchFailed has those that were. */
    branch(count?: number, how?: Omit<wire.Branch, "count">): Promise<Branches>;
    /** Makes so many frozen copies of it ahead of need. */
    warm(count: number): Promise<wire.Warmed>;
    /** What differs between it and the jail it was taken of, or another jail or snapshot. */
    diff(against?: string | Jail | Snapshot, o?: DiffOptions): Promise<wire.Comparison>;
    /** Removes it. What jails and other snapshots stand on stays. */
    delete(): Promise<void>;
}
/** Jails that go on from one snapshot. */
export declare class Branches extends Array<Jail> {
    /** The one that was taken for them, if it was. */
    snapshot: Snapshot | undefined;
    static get [Symbol.species](): ArrayConstructor;
    [Symbol.asyncDispose](): Promise<void>;
}
/** The items of a list, page by page. */
export declare function pages<T>(page: (after: string | undefined) => Promise<{
    items: T[];
    next?: string;
}>): AsyncGenerator<T, void, undefined>;
export declare const number: (after: string | undefined) => number | undefined;
