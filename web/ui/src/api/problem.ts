// A Problem is an error as the daemon tells it (RFC 9457): what went wrong and,
// where there is one, what to do about it.
export class Problem extends Error {
  override name = "Problem";

  constructor(
    readonly status: number, // 0: there was no answer
    readonly title: string,
    readonly detail = "",
    readonly remedy = "",
    readonly field = "",
  ) {
    super(detail || title);
  }

  static async of(answer: Response): Promise<Problem> {
    const kind = answer.headers.get("Content-Type") ?? "";
    if (!kind.includes("json")) return new Problem(answer.status, answer.statusText || `Status ${answer.status}`);
    const told = await answer.json().catch(() => ({}));
    return new Problem(answer.status, told.title ?? answer.statusText, told.detail, told.remedy, told.field);
  }

  // from makes one of whatever was thrown.
  static from(thrown: unknown): Problem {
    if (thrown instanceof Problem) return thrown;
    if (thrown instanceof TypeError) {
      return new Problem(0, "The daemon does not answer", thrown.message, "see whether it runs: glasshouse health");
    }
    return new Problem(0, thrown instanceof Error ? thrown.message : String(thrown));
  }
}

// givenUp reports whether an error only says that nobody wants the answer any more.
export function givenUp(thrown: unknown): boolean {
  return thrown instanceof DOMException && thrown.name === "AbortError";
}
