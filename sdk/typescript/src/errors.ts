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
export class GlasshouseError extends Error {
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

  constructor(detail: string, more: More = {}) {
    let message = more.field ? `${more.field}: ${detail}` : detail;
    if (more.remedy) message += ` (${more.remedy})`;
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = new.target.name;
    this.detail = detail;
    this.status = more.status;
    this.field = more.field;
    this.remedy = more.remedy;
    this.errorId = more.errorId;
  }
}

/** The request must be changed. */
export class Invalid extends GlasshouseError {}
/** The daemon does not know who is calling: a token is missing, or not good. */
export class Unauthenticated extends GlasshouseError {}
/** Whoever is calling may not do this, or a policy or a person said no. */
export class Denied extends GlasshouseError {}
/** There is no such thing. */
export class NotFound extends GlasshouseError {}
/** The thing is not in a state for this. */
export class Conflict extends GlasshouseError {}
/** Less must be sent. */
export class TooLarge extends GlasshouseError {}
/** The idempotency key belongs to another request. */
export class Mismatch extends GlasshouseError {}
/** A limit is reached: wait, or free something. */
export class Exhausted extends GlasshouseError {}
/** This host cannot do it; remedy says what it would take. */
export class Unsupported extends GlasshouseError {}
/** Not now: no daemon answers, or it is about to end. */
export class Unavailable extends GlasshouseError {}
/** The connection broke before the answer was there. What was asked for may be done. */
export class Disconnected extends Unavailable {}
/** It took too long, and was ended. */
export class TimedOut extends GlasshouseError {}
/** Something went wrong in the daemon, whose log has more under errorId. */
export class Internal extends GlasshouseError {}

/** A command ended with another code than 0. */
export class CommandFailed extends GlasshouseError {
  constructor(
    detail: string,
    readonly result: Result,
  ) {
    super(detail);
  }
}

/** A capability was called and failed. */
export class CallFailed extends GlasshouseError {
  constructor(
    detail: string,
    /** The daemon's whole answer. */
    readonly called: Called,
    remedy?: string,
  ) {
    super(detail, { remedy });
  }
}

/** A run ended without being done. */
export class RunFailed extends GlasshouseError {
  constructor(
    detail: string,
    /** What became of it. */
    readonly run: Run,
  ) {
    super(detail);
  }
}

/** Not all branches that were asked for were made. */
export class BranchFailed extends GlasshouseError {
  constructor(
    detail: string,
    /** Those that were. */
    readonly jails: Jail[],
    more: More,
  ) {
    super(detail, more);
  }
}

const kinds: Record<string, new (detail: string, more?: More) => GlasshouseError> = {
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

/** The error that problem details (RFC 9457) tell of. */
export function ofProblem(p: Problem): GlasshouseError {
  const kind = String(p.type ?? "").split("/").at(-1) ?? "";
  const Kind = Object.hasOwn(kinds, kind) ? kinds[kind]! : GlasshouseError;
  return new Kind(p.detail || p.title || kind, { status: p.status, field: p.field, remedy: p.remedy, errorId: p.error_id });
}
