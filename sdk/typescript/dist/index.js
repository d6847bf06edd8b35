/** A client for Glasshouse, which runs agents in jails, watches and governs them. */
export { Glasshouse } from "./client.js";
export { Command } from "./command.js";
export * from "./errors.js";
export { Files } from "./files.js";
export { Branches, BranchFailed, Jail, Snapshot } from "./jail.js";
export { Operations } from "./operations.js";
export { Run, Schedule, Session } from "./runs.js";
export { Stream } from "./stream.js";
export { Answer } from "./transport.js";
export { CommandFailed, Result } from "./values.js";
