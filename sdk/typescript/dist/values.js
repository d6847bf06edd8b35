import { GlasshouseError, Invalid } from "./errors.js";
/** The exit code and the output of a command. */
export class Result {
    exitCode;
    stdoutBytes;
    stderrBytes;
    info;
    constructor(
    /** 128 plus the number of the signal that terminated it; -1 while it runs. */
    exitCode, stdoutBytes, stderrBytes, info) {
        this.exitCode = exitCode;
        this.stdoutBytes = stdoutBytes;
        this.stderrBytes = stderrBytes;
        this.info = info;
    }
    get stdout() {
        return Buffer.from(this.stdoutBytes).toString("utf8");
    }
    get stderr() {
        return Buffer.from(this.stderrBytes).toString("utf8");
    }
    get ok() {
        return this.exitCode === 0;
    }
    get timedOut() {
        return this.info.timed_out ?? false;
    }
    /** Whether output was dropped because of the storage limit. */
    get truncated() {
        return this.info.truncated ?? false;
    }
    /** Throws CommandFailed unless the exit code is 0. */
    check() {
        if (this.ok)
            return this;
        const why = this.timedOut ? "timed out" : `exit code ${this.exitCode}`;
        const said = this.stderr.trim().split("\n").at(-1);
        throw new CommandFailed([this.info.argv?.join(" "), why, said].filter(Boolean).join(": "), this);
    }
}
export function resultOf(x) {
    const encoding = x.encoding === "base64" ? "base64" : "utf8";
    return new Result(x.exit_code ?? -1, Buffer.from(x.stdout ?? "", encoding), Buffer.from(x.stderr ?? "", encoding), x);
}
export function outputOf(o) {
    return { stream: o.stream, data: Buffer.from(o.data, "base64"), offset: o.offset, lost: o.lost ?? 0 };
}
export function execRequest(command, o) {
    if (command.length === 0)
        throw new Invalid("the command is empty", { field: "command" });
    const r = typeof command === "string" ? { cmd: command } : { argv: [...command] };
    if (typeof o.stdin === "string")
        r.stdin = o.stdin;
    else if (o.stdin)
        [r.stdin, r.stdin_base64] = [Buffer.from(o.stdin).toString("base64"), true];
    if (o.env)
        r.env = o.env;
    if (o.cwd !== undefined)
        r.cwd = o.cwd;
    if (o.user !== undefined)
        r.user = o.user;
    if (o.timeout !== undefined)
        r.timeout_ms = Math.round(o.timeout);
    if (o.pty)
        r.pty = o.pty;
    if (o.keepBytes !== undefined)
        r.keep_bytes = o.keepBytes;
    return r;
}
/** A command ended with an exit code other than 0. */
export class CommandFailed extends GlasshouseError {
    result;
    constructor(detail, result) {
        super(detail);
        this.result = result;
    }
}
