// How the jail was at the moment that is looked at: read once for all that shows
// it, and again when the moment moves.
import type { Schema } from "../../api/client";
import { Problem } from "../../api/problem";
import { past as read } from "../../api/record";

class Past {
  told = $state.raw<Schema["Past"]>();
  at = $state(0); // the moment that it tells of
  problem = $state.raw<Problem>();

  // look reads it. What was read stays until then, so that nothing flickers
  // while somebody scrubs. What it returns gives it up.
  look(jail: string, at: number, ended: boolean): () => void {
    const over = new AbortController();
    read(jail, at, ended, over.signal).then(
      (told) => {
        this.told = told;
        this.at = at;
        this.problem = undefined;
      },
      (thrown) => {
        if (!over.signal.aborted) this.problem = Problem.from(thrown);
      },
    );
    return () => over.abort();
  }

  forget(): void {
    this.told = this.problem = undefined;
  }
}

export const past = new Past();
