// A draft policy that belongs to no jail, with its lint findings and parse errors. It is
// stored in this tab of the browser.
import { post, type Schema } from "../../api/client";
import { givenUp, Problem } from "../../api/problem";

type File = Schema["PolicyFile"];

export interface Mark {
  line: number; // 0: the whole file
  bad: boolean; // a parse error; else a lint finding
  kind: string;
  message: string;
  remedy: string;
}

const storageKey = "glasshouse.draft";
const delay = 350; // milliseconds after the last key
const blank: File[] = [{ name: "opencode.json", text: "" }, { name: "AGENTS.md", text: "" }];

class Draft {
  files = $state.raw<File[]>(restored());
  at = $state(0); // the index of the edited file
  state = $state.raw<Schema["PolicyState"]>();
  problem = $state.raw<Problem>();
  busy = $state(false);
  policy = $state.raw<Schema["Policy"]>(); // the last valid version
  #timer = 0;
  #over = new AbortController();

  file = $derived(this.files[this.at] ?? this.files[0]!);
  // The daemon's parse errors name the file and the line.
  wrong = $derived.by(() => (this.problem && this.problem.status === 400 ? place(this.problem, this.files) : undefined));

  write(text: string): void {
    this.files = this.files.map((f) => (f === this.file ? { ...f, text } : f));
    this.look(delay);
  }

  // begin replaces the draft with files, such as those of a jail.
  begin(files: File[]): void {
    const more = blank.filter((b) => !files.some((f) => f.name === b.name));
    this.files = [...files.map((f) => ({ ...f })), ...more];
    this.at = 0;
    this.look();
  }

  // look checks the draft after a delay, which restarts with each key.
  look(after = 0): void {
    clearTimeout(this.#timer);
    this.#over.abort();
    try {
      sessionStorage.setItem(storageKey, JSON.stringify(this.files));
    } catch {
      // The quota is exceeded or storage is blocked: the draft lasts until the page is closed.
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
      const found = await post("/policy/lint", { body: policy, signal });
      if (signal.aborted) return;
      this.state = found;
      this.problem = undefined;
      this.policy = policy;
    } catch (thrown) {
      if (givenUp(thrown)) return;
      this.problem = Problem.from(thrown);
    }
    this.busy = false;
  }

  // marks returns the findings in a file.
  marks(name: string): Mark[] {
    if (this.wrong) return this.wrong.file === name ? [this.wrong.mark] : [];
    return (this.state?.findings ?? [])
      .filter((f) => f.file === name)
      .map((f) => ({ line: f.line ?? 0, bad: false, kind: f.kind, message: f.message, remedy: f.remedy ?? "" }));
  }
}

function restored(): File[] {
  try {
    const files = JSON.parse(sessionStorage.getItem(storageKey) ?? "") as File[];
    if (files.length > 0 && files.every((f) => typeof f.name === "string" && typeof f.text === "string")) return files;
  } catch {
    // No stored draft.
  }
  return blank;
}

// place extracts the file and the line from an error such as opencode.json:3.
export function place(problem: Problem, files: File[]): { file: string; mark: Mark } | undefined {
  const text = problem.detail || problem.title;
  for (const { name } of files) {
    const from = text.indexOf(`${name}:`);
    const found = from < 0 ? null : /^(\d+)(?::\s*)?/.exec(text.slice(from + name.length + 1));
    if (found) return { file: name, mark: { line: Number(found[1]), bad: true, kind: "parse error", message: text.slice(from + name.length + 1 + found[0].length), remedy: problem.remedy } };
    if (from >= 0) return { file: name, mark: { line: 0, bad: true, kind: "parse error", message: text.slice(from + name.length + 1).trim(), remedy: problem.remedy } };
  }
  return undefined;
}

export const draft = new Draft();
