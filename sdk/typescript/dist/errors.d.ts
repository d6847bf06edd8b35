import type { Called, Problem, Run } from "./wire.js";
import type { Jail } from "./jail.js";
import type { Result } from "./values.js";
interface More {
    status?: number | undefined;
    field?: string | undefined;
    remedy?: string | undefined;
    errorId?: string | undefined;
    cause?: unknown;
}
/** An error that the daemon told of, or that kept it from telling anything. */
export declare class GlasshouseError extends Error {
    /** The HTTP status, if there was an answer. */
    readonly status: number | undefined;
    /** The field of the request that is at fault, if one is. */
    readonly field: string | undefined;
    /** What can be done about it, if that is known. */
    readonly remedy: string | undefined;
    /** Where the daemon's log has more, for an internal error. */
    readonly errorId: string | undefined;
    /** What went wrong, without field and remedy, which the message has too. */
    readonly detail: string;
    constructor(detail: string, more?: More);
}
/** The request must be changed. */
export declare class Invalid extends GlasshouseError {
}
/** The daemon does not know who is calling: a token is missing, or not good. */
export declare class Unauthenticated extends GlasshouseError {
}
/** Whoever is calling may not do this, or a policy or a person said no. */
export declare class Denied extends GlasshouseError {
}
/** There is no such thing. */
export declare class NotFound extends GlasshouseError {
}
/** The thing is not in a state for this. */
export declare class Conflict extends GlasshouseError {
}
/** Less must be sent. */
export declare class TooLarge extends GlasshouseError {
}
/** The idempotency key belongs to another request. */
export declare class Mismatch extends GlasshouseError {
}
/** A limit is reached: wait, or free something. */
export declare class Exhausted extends GlasshouseError {
}
/** This host cannot do it; remedy says what it would take. */
export declare class Unsupported extends GlasshouseError {
}
/** Not now: no daemon answers, or it is about to end. */
export declare class Unavailable extends GlasshouseError {
}
/** The connection broke before the answer was there. What was asked for may be done. */
export declare class Disconnected extends Unavailable {
}
/** It took too long, and was ended. */
export declare class TimedOut extends GlasshouseError {
}
/** Something went wrong in the daemon, whose log has more under errorId. */
export declare class Internal extends GlasshouseError {
}
/** A command ended with another code than 0. */
export declare class CommandFailed extends GlasshouseError {
    readonly result: Result;
    constructor(detail: string, result: Result);
}
/** A capability was called and failed. */
export declare class CallFailed extends GlasshouseError {
    /** The daemon's whole answer. */
    readonly called: Called;
    constructor(detail: string, 
    /** The daemon's whole answer. */
    called: Called, remedy?: string);
}
/** A run ended without being done. */
export declare class RunFailed extends GlasshouseError {
    /** What became of it. */
    readonly run: Run;
    constructor(detail: string, 
    /** What became of it. */
    run: Run);
}
/** Not all branches that were asked for were made. */
export declare class BranchFailed extends GlasshouseError {
    /** Those that were. */
    readonly jails: Jail[];
    constructor(detail: string, 
    /** Those that were. */
    jails: Jail[], more: More);
}
/** The error that problem details (RFC 9457) tell of. */
export declare function ofProblem(p: Problem): GlasshouseError;
export {};
