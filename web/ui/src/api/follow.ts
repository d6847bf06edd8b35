import { givenUp, Problem } from "./problem";
import { messages, type Message } from "./sse";

export type Following = "connecting" | "live" | "reconnecting" | "ended";

interface Options {
  last?: string; // go on after this message
  onMessage: (message: Message) => void;
  onState?: (state: Following, problem?: Problem) => void;
  ends?: string; // the name of the message that ends the stream for good
}

const silence = 40_000; // the daemon beats every 15 s; after this it is taken for gone
const shortest = 400;
const longest = 15_000;

// follow reads a stream, and begins again after its last message whenever it
// breaks, so that none is missed or comes twice. It gives up only on answers
// that trying again cannot change. The function it returns ends it.
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

// pause waits, but not when the browser has just found the network again.
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
