// Call other capabilities from a program in a Glasshouse sandbox.
//
//   import { call } from "/usr/share/glasshouse/glasshouse-call.mjs";
//
//   const found = await call("places.resolve", { location_text: "Soho, London" });
//
// What may be called, with what and how often, the kernel decides anew for each
// call; it sees the caller as the capability that runs here.

import { request } from "node:http";

const socketPath = process.env.GLASSHOUSE_CALL_SOCKET ?? "/run/glasshouse/call.sock";

/** A call that failed. kind says how, in one word or two: "denied", "timeout". */
export class CallError extends Error {
  constructor(kind, message) {
    super(`${kind}: ${message}`);
    this.name = "CallError";
    this.kind = kind;
  }
}

/**
 * Calls a capability with an input that JSON can write, and resolves to its output.
 * Without a timeout, in milliseconds, it may take as long as the call that is being
 * served here.
 */
export function call(capability, input = {}, { timeout } = {}) {
  const { promise, resolve, reject } = withResolvers();
  const signal = timeout === undefined ? undefined : AbortSignal.timeout(timeout);
  const body = JSON.stringify(input);
  const req = request(
    {
      socketPath,
      signal,
      method: "POST",
      path: "/call/" + encodeURIComponent(capability),
      headers: { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) },
    },
    (res) => {
      const chunks = [];
      res.on("data", (chunk) => chunks.push(chunk));
      res.on("error", failed);
      res.on("end", () => {
        let answer;
        try {
          answer = JSON.parse(Buffer.concat(chunks).toString("utf8"));
        } catch {
          return reject(new CallError("garbled", `status ${res.statusCode} and no JSON`));
        }
        if (res.statusCode !== 200) {
          return reject(new CallError(answer?.kind ?? "failed", answer?.message ?? `status ${res.statusCode}`));
        }
        resolve(answer);
      });
    },
  );
  function failed(err) {
    if (signal?.aborted) return reject(new CallError("timeout", `${capability} did not answer in ${timeout} ms`));
    reject(new CallError("unavailable", `${socketPath}: ${err.message}`));
  }
  req.on("error", failed);
  req.end(body);
  return promise;
}

// Promise.withResolvers came with Node 22.
function withResolvers() {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
}
