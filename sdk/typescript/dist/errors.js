/** An error that the daemon returned, or that prevented a response. */
export class GlasshouseError extends Error {
    /** The HTTP status, if there was a response. */
    status;
    /** The invalid field of the request, if any. */
    field;
    /** How to fix the problem, if known. */
    remedy;
    /** The id of an internal error in the daemon's log. */
    errorId;
    /** The description of the error. The message contains it together with field and remedy. */
    detail;
    constructor(detail, more = {}) {
        let message = more.field ? `${more.field}: ${detail}` : detail;
        if (more.remedy)
            message += ` (${more.remedy})`;
        super(message, more.cause === undefined ? undefined : { cause: more.cause });
        this.name = new.target.name;
        this.detail = detail;
        this.status = more.status;
        this.field = more.field;
        this.remedy = more.remedy;
        this.errorId = more.errorId;
    }
}
/** The request is invalid. */
export class Invalid extends GlasshouseError {
}
/** The token is missing, invalid or revoked. */
export class Unauthenticated extends GlasshouseError {
}
/** The caller lacks permission, or a policy or a person denied the request. */
export class Denied extends GlasshouseError {
}
/** The object does not exist. */
export class NotFound extends GlasshouseError {
}
/** The state of the object does not allow the request. */
export class Conflict extends GlasshouseError {
}
/** The request is too large. */
export class TooLarge extends GlasshouseError {
}
/** The idempotency key belongs to another request. */
export class Mismatch extends GlasshouseError {
}
/** A limit is reached: retry later, or release resources. */
export class Exhausted extends GlasshouseError {
}
/** This host does not support the operation. remedy lists the requirements. */
export class Unsupported extends GlasshouseError {
}
/** The daemon is unavailable: it cannot be reached, or it is shutting down. */
export class Unavailable extends GlasshouseError {
}
/** The connection broke before the response. The request may have been executed. */
export class Disconnected extends Unavailable {
}
/** The operation exceeded its time limit and was cancelled. */
export class TimedOut extends GlasshouseError {
}
/** An internal error of the daemon. Its log has details under errorId. */
export class Internal extends GlasshouseError {
}
/** A capability call failed. */
export class CallFailed extends GlasshouseError {
    called;
    constructor(detail, 
    /** The daemon's complete response. */
    called, remedy) {
        super(detail, { remedy });
        this.called = called;
    }
}
/** A run ended without success. */
export class RunFailed extends GlasshouseError {
    run;
    constructor(detail, 
    /** The last state of the run. */
    run) {
        super(detail);
        this.run = run;
    }
}
const kinds = {
    invalid: Invalid,
    unauthenticated: Unauthenticated,
    denied: Denied,
    "not-found": NotFound,
    conflict: Conflict,
    "too-large": TooLarge,
    mismatch: Mismatch,
    exhausted: Exhausted,
    unsupported: Unsupported,
    unavailable: Unavailable,
    timeout: TimedOut,
    internal: Internal,
};
/** Converts problem details (RFC 9457) to an error. */
export function ofProblem(p) {
    const kind = String(p.type ?? "").split("/").at(-1) ?? "";
    const Kind = Object.hasOwn(kinds, kind) ? kinds[kind] : GlasshouseError;
    return new Kind(p.detail || p.title || kind, { status: p.status, field: p.field, remedy: p.remedy, errorId: p.error_id });
}
