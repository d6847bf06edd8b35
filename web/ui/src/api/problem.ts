// A Problem is an error response of the daemon (RFC 9457): the cause and, if known, a
// remedy.
export class Problem extends Error {
  override name = "Problem";

  constructor(
    readonly status: number, // 0: no response
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
    const body = await answer.json().catch(() => ({}));
    return new Problem(answer.status, body.title ?? answer.statusText, body.detail, body.remedy, body.field);
  }

  // from converts a thrown value to a Problem.
  static from(thrown: unknown): Problem {
    if (thrown instanceof Problem) return thrown;
    if (thrown instanceof TypeError) {
      return new Problem(0, "The daemon does not respond", thrown.message, "check whether it is running: glasshouse health");
    }
    return new Problem(0, thrown instanceof Error ? thrown.message : String(thrown));
  }
}

// givenUp reports whether an error only means that the request was aborted.
export function givenUp(thrown: unknown): boolean {
  return thrown instanceof DOMException && thrown.name === "AbortError";
}
