// The state of the jail at the selected moment, common to all tabs.
import type { Schema } from "../../api/client";
import { Problem } from "../../api/problem";
import { past as read } from "../../api/record";

class Past {
  state = $state.raw<Schema["Past"]>();
  at = $state(0); // the moment of that state
  problem = $state.raw<Problem>();

  // look loads the state at a moment. The old state stays until then, to avoid flicker. The
  // returned function aborts the request.
  look(jail: string, at: number, ended: boolean): () => void {
    const over = new AbortController();
    read(jail, at, ended, over.signal).then(
      (found) => {
        this.state = found;
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
    this.state = this.problem = undefined;
  }
}

export const past = new Past();
