import { Schemas } from "../lib/schema";
import { Problem } from "./problem";

// The schemas of the daemon that runs, read when a form is first opened: the form
// that it gets is the form of what it takes.
let read: Promise<Schemas> | undefined;

export function schemas(): Promise<Schemas> {
  read ??= load().catch((thrown) => {
    read = undefined; // the next form asks again
    throw thrown;
  });
  return read;
}

async function load(): Promise<Schemas> {
  const answer = await fetch("/openapi.json", { headers: { Accept: "application/json" } });
  if (!answer.ok) throw await Problem.of(answer);
  return new Schemas((await answer.json()).components.schemas);
}
