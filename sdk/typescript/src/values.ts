import { GlasshouseError, Invalid } from "./errors.js";
import type * as wire from "./wire.js";

/** A line for /bin/sh, or a program and its arguments. */
export type CommandLine = string | readonly string[];

export interface RunOptions {
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  stdin?: string | Uint8Array;
  /** Milliseconds after which the command is killed. */
  timeout?: number;
  /** Run it on a terminal of this size. */
  pty?: wire.Size;
  /** Maximum bytes of output that are stored in the jail for later readers. */
  keepBytes?: number;
}

/** A piece of a command's output. */
export interface Output {
  stream: "stdout" | "stderr";
  data: Uint8Array;
  /** Counts the bytes of both streams together. */
  offset: number;
  /** Bytes before it that are no longer stored. */
  lost: number;
}

/** The exit code and the output of a command. */
export class Result {
  constructor(
    /** 128 plus the number of the signal that terminated it; -1 while it runs. */
    readonly exitCode: number,
    readonly stdoutBytes: Uint8Array,
    readonly stderrBytes: Uint8Array,
    readonly info: wire.Exec,
  ) {}

  get stdout(): string {
    return Buffer.from(this.stdoutBytes).toString("utf8");
  }

  get stderr(): string {
    return Buffer.from(this.stderrBytes).toString("utf8");
  }

  get ok(): boolean {
    return this.exitCode === 0;
  }

  get timedOut(): boolean {
    return this.info.timed_out ?? false;
  }

  /** Whether output was dropped because of the storage limit. */
  get truncated(): boolean {
    return this.info.truncated ?? false;
  }

  /** Throws CommandFailed unless the exit code is 0. */
  check(): this {
    if (this.ok) return this;
    const why = this.timedOut ? "timed out" : `exit code ${this.exitCode}`;
    const said = this.stderr.trim().split("\n").at(-1);
    throw new CommandFailed([this.info.argv?.join(" "), why, said].filter(Boolean).join(": "), this);
  }
}

export function resultOf(x: wire.Exec): Result {
  const encoding = x.encoding === "base64" ? "base64" : "utf8";
  return new Result(x.exit_code ?? -1, Buffer.from(x.stdout ?? "", encoding), Buffer.from(x.stderr ?? "", encoding), x);
}

export function outputOf(o: wire.Output): Output {
  return { stream: o.stream, data: Buffer.from(o.data, "base64"), offset: o.offset, lost: o.lost ?? 0 };
}

export function execRequest(command: CommandLine, o: RunOptions): wire.ExecRequest {
  if (command.length === 0) throw new Invalid("the command is empty", { field: "command" });
  const r: wire.ExecRequest = typeof command === "string" ? { cmd: command } : { argv: [...command] };
  if (typeof o.stdin === "string") r.stdin = o.stdin;
  else if (o.stdin) [r.stdin, r.stdin_base64] = [Buffer.from(o.stdin).toString("base64"), true];
  if (o.env) r.env = o.env;
  if (o.cwd !== undefined) r.cwd = o.cwd;
  if (o.user !== undefined) r.user = o.user;
  if (o.timeout !== undefined) r.timeout_ms = Math.round(o.timeout);
  if (o.pty) r.pty = o.pty;
  if (o.keepBytes !== undefined) r.keep_bytes = o.keepBytes;
  return r;
}

/** A command ended with an exit code other than 0. */
export class CommandFailed extends GlasshouseError {
  constructor(
    detail: string,
    readonly result: Result,
  ) {
    super(detail);
  }
}
