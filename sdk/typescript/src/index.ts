/** A client for Glasshouse, which runs agents in jails, watches and governs them. */

export { Glasshouse } from "./client.js";
export { Command } from "./command.js";
export * from "./errors.js";
export { Files, type WriteOptions } from "./files.js";
export { Branches, BranchFailed, type DiffOptions, type EventQuery, Jail, Snapshot } from "./jail.js";
export { type Call, type Keyed, Operations, type Resumed } from "./operations.js";
export { Run, Schedule, Session } from "./runs.js";
export type { ServerEvent } from "./sse.js";
export { Stream } from "./stream.js";
export { Answer, type Content, type Options } from "./transport.js";
export { CommandFailed, type CommandLine, type Output, Result, type RunOptions } from "./values.js";
export type * as wire from "./wire.js";
