// A policy that is no jail's yet: what somebody writes, what of it does not do what
// it seems to, and what is wrong with it. It stays in this tab of the browser.
import { post, type Schema } from "../../api/client";
import { givenUp, Problem } from "../../api/problem";

type File = Schema["PolicyFile"];

export interface Mark {
  line: number; // 0: of the whole file
  bad: boolean; // it cannot be read; else it does not do what it seems to
  kind: string;
  message: string;
  remedy: string;
}

const kept = "glasshouse.draft";
const calm = 350; // milliseconds after the last key
const blank: File[] = [{ name: "opencode.json", text: "" }, { name: "AGENTS.md", text: "" }];

class Draft {
  files = $state.raw<File[]>(restored());
  at = $state(0); // the file that is written in
  state = $state.raw<Schema["PolicyState"]>();
  problem = $state.raw<Problem>();
  busy = $state(false);
  policy = $state.raw<Schema["Policy"]>(); // as it was last found readable
  #timer = 0;
  #over = new AbortController();

  file = $derived(this.files[this.at] ?? this.files[0]!);
  // The daemon names the file and the line of what it cannot read.
  wrong = $derived.by(() => (this.problem && this.problem.status === 400 ? place(this.problem, this.files) : undefined));

  write(text: string): void {
    this.files = this.files.map((f) => (f === this.file ? { ...f, text } : f));
    this.look(calm);
  }

  // begin has it be of these files, such as those of a jail.
  begin(files: File[]): void {
    const more = blank.filter((b) => !files.some((f) => f.name === b.name));
    this.files = [...files.map((f) => ({ ...f })), ...more];
    this.at = 0;
    this.look();
  }

  // look has it looked at, once nobody types.
  look(after = 0): void {
    clearTimeout(this.#timer);
    this.#over.abort();
    try {
      sessionStorage.setItem(kept, JSON.stringify(this.files));
    } catch {
      // There is no room, or it is forbidden: then it is kept for as long as the page is.
    }
    const files = this.files.filter((f) => f.text.trim() !== "");
    if (files.length === 0) {
      this.state = this.problem = this.policy = undefined;
      this.busy = false;
      return;
    }
    this.busy = true;
    const over = (this.#over = new AbortController());
    this.#timer = window.setTimeout(() => void this.#lint({ files }, over.signal), after);
  }

  async #lint(policy: Schema["Policy"], signal: AbortSignal): Promise<void> {
    try {
      const told = await post("/policy/lint", { body: policy, signal });
      if (signal.aborted) return;
      this.state = told;
      this.problem = undefined;
      this.policy = policy;
    } catch (thrown) {
      if (givenUp(thrown)) return;
      this.problem = Problem.from(thrown);
    }
    this.busy = false;
  }

  // marks are what is to be said of a file, by line.
  marks(name: string): Mark[] {
    if (this.wrong) return this.wrong.file === name ? [this.wrong.mark] : [];
    return (this.state?.findings ?? [])
      .filter((f) => f.file === name)
      .map((f) => ({ line: f.line ?? 0, bad: false, kind: f.kind, message: f.message, remedy: f.remedy ?? "" }));
  }
}

function restored(): File[] {
  try {
    const files = JSON.parse(sessionStorage.getItem(kept) ?? "") as File[];
    if (files.length > 0 && files.every((f) => typeof f.name === "string" && typeof f.text === "string")) return files;
  } catch {
    // Nothing was kept.
  }
  return blank;
}

// place finds the file and the line that an error names, such as opencode.json:3.
export function place(problem: Problem, files: File[]): { file: string; mark: Mark } | undefined {
  const said = problem.detail || problem.title;
  for (const { name } of files) {
    const from = said.indexOf(`${name}:`);
    const found = from < 0 ? null : /^(\d+)(?::\s*)?/.exec(said.slice(from + name.length + 1));
    if (found) return { file: name, mark: { line: Number(found[1]), bad: true, kind: "cannot be read", message: said.slice(from + name.length + 1 + found[0].length), remedy: problem.remedy } };
    if (from >= 0) return { file: name, mark: { line: 0, bad: true, kind: "cannot be read", message: said.slice(from + name.length + 1).trim(), remedy: problem.remedy } };
  }
  return undefined;
}

export const draft = new Draft();
