import type { Called, Problem, Run } from "./wire.js";
/** The details of an error. */
export interface ErrorDetails {
    status?: number | undefined;
    field?: string | undefined;
    remedy?: string | undefined;
    errorId?: string | undefined;
    cause?: unknown;
}
/** An error that the daemon returned, or that prevented a response. */
export declare class GlasshouseError extends Error {
    /** The HTTP status, if there was a response. */
    readonly status: number | undefined;
    /** The invalid field of the request, if any. */
    readonly field: string | undefined;
    /** How to fix the problem, if known. */
    readonly remedy: string | undefined;
    /** The id of an internal error in the daemon's log. */
    readonly errorId: string | undefined;
    /** The description of the error. The message contains it together with field and remedy. */
    readonly detail: string;
    constructor(detail: string, more?: ErrorDetails);
}
/** The request is invalid. */
export declare class Invalid extends GlasshouseError {
}
/** The token is missing, invalid or revoked. */
export declare class Unauthenticated extends GlasshouseError {
}
/** The caller lacks permission, or a policy or a person denied the request. */
export declare class Denied extends GlasshouseError {
}
/** The object does not exist. */
export declare class NotFound extends GlasshouseError {
}
/** The state of the object does not allow the request. */
export declare class Conflict extends GlasshouseError {
}
/** The request is too large. */
export declare class TooLarge extends GlasshouseError {
}
/** The idempotency key belongs to another request. */
export declare class Mismatch extends GlasshouseError {
}
/** A limit is reached: retry later, or release resources. */
export declare class Exhausted extends GlasshouseError {
}
/** This host does not support the operation. remedy lists the requirements. */
export declare class Unsupported extends GlasshouseError {
}
/** The daemon is unavailable: it cannot be reached, or it is shutting down. */
export declare class Unavailable extends GlasshouseError {
}
/** The connection broke before the response. The request may have been executed. */
export declare class Disconnected extends Unavailable {
}
/** The operation exceeded its time limit and was cancelled. */
export declare class TimedOut extends GlasshouseError {
}
/** An internal error of the daemon. Its log has details under errorId. */
export declare class Internal extends GlasshouseError {
}
/** A capability call failed. */
export declare class CallFailed extends GlasshouseError {
    /** The daemon's complete response. */
    readonly called: Called;
    constructor(detail: string, 
    /** The daemon's complete response. */
    called: Called, remedy?: string);
}
/** A run ended without success. */
export declare class RunFailed extends GlasshouseError {
    /** The last state of the run. */
    readonly run: Run;
    constructor(detail: string, 
    /** The last state of the run. */
    run: Run);
}
/** Converts problem details (RFC 9457) to an error. */
export declare function ofProblem(p: Problem): GlasshouseError;
