import { Schemas } from "../lib/schema";
import { Problem } from "./problem";

// The schemas of the running daemon, loaded when the first form opens. Forms thus match the
// version of the daemon.
let read: Promise<Schemas> | undefined;

export function schemas(): Promise<Schemas> {
  read ??= load().catch((thrown) => {
    read = undefined; // the next form retries
    throw thrown;
  });
  return read;
}

async function load(): Promise<Schemas> {
  const answer = await fetch("/openapi.json", { headers: { Accept: "application/json" } });
  if (!answer.ok) throw await Problem.of(answer);
  return new Schemas((await answer.json()).components.schemas);
}
