import { givenUp, Problem } from "./problem";
import { messages, type Message } from "./sse";

export type Following = "connecting" | "live" | "reconnecting" | "ended";

interface Options {
  last?: string; // continue after the message with this id
  onMessage: (message: Message) => void;
  onState?: (state: Following, problem?: Problem) => void;
  ends?: string; // the event after which the stream is complete
}

const silence = 40_000; // the daemon sends a heartbeat every 15 s; without one for this long, reconnect
const shortest = 400;
const longest = 15_000;

// follow reads an event stream. When the connection breaks, it reconnects after the last
// message, so that no message is lost or repeated. It stops on client errors, for which a
// retry is useless. The returned function closes the stream.
export function follow(address: string, options: Options): () => void {
  const over = new AbortController();
  void run(address, options, over.signal);
  return () => over.abort();
}

async function run(address: string, options: Options, over: AbortSignal): Promise<void> {
  let last = options.last ?? "";
  let wait = shortest;
  let ended = false;
  options.onState?.("connecting");
  while (!over.aborted && !ended) {
    try {
      await once(address, last, over, (state) => options.onState?.(state), (message) => {
        last = message.id || last;
        wait = shortest;
        if (message.event === options.ends) ended = true;
        options.onMessage(message);
        return !ended;
      });
      if (!ended) options.onState?.("reconnecting");
    } catch (thrown) {
      if (over.aborted) return;
      const problem = givenUp(thrown) ? undefined : Problem.from(thrown);
      if (problem && hopeless(problem)) {
        options.onState?.("ended", problem);
        return;
      }
      options.onState?.("reconnecting", problem);
    }
    if (!ended) await pause(wait * (0.5 + Math.random()), over);
    wait = Math.min(wait * 2, longest);
  }
  if (ended) options.onState?.("ended");
}

async function once(
  address: string,
  last: string,
  over: AbortSignal,
  state: (state: Following) => void,
  take: (message: Message) => boolean,
): Promise<void> {
  const dead = new AbortController();
  let watch = setTimeout(() => dead.abort(), silence);
  const heard = () => {
    clearTimeout(watch);
    watch = setTimeout(() => dead.abort(), silence);
  };
  try {
    const answer = await fetch(address, {
      headers: { Accept: "text/event-stream, application/problem+json", ...(last ? { "Last-Event-ID": last } : {}) },
      signal: AbortSignal.any([over, dead.signal]),
    });
    if (!answer.ok || !answer.body) throw await Problem.of(answer);
    heard();
    state("live");
    for await (const message of messages(answer.body, heard)) {
      if (!take(message)) return;
    }
  } finally {
    clearTimeout(watch);
  }
}

function hopeless(problem: Problem): boolean {
  return problem.status >= 400 && problem.status < 500 && problem.status !== 408 && problem.status !== 429;
}

// pause waits for ms, or until the browser is online again.
function pause(ms: number, over: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      over.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    window.addEventListener("online", done);
    over.addEventListener("abort", done);
  });
}
