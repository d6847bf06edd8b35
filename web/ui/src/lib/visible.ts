// Escapes for untrusted text. They cover characters that move the cursor, change the
// direction of the surrounding text, or are invisible.

export interface Piece {
  text: string;
  escaped: boolean; // an escape sequence for an invisible character
}

// Controls of C0 and C1, soft hyphen, directional marks, zero widths, line and
// paragraph separators, invisible operators, variation selectors of the second
// plane, tags, lone surrogates.
const unseen =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}\ud800-\udfff]/gu;

const short: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\u001b": "\\e", "\0": "\\0" };

function escaped(char: string): string {
  const known = short[char];
  if (known) return known;
  const code = char.codePointAt(0) ?? 0;
  // An invalid UTF-8 byte is encoded as a lone surrogate: docs/reference/events.md, Text.
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\u{${code.toString(16)}}`;
}

// pieces splits text into literal parts and escape sequences. With lines, line breaks and
// tabs are literal.
export function pieces(text: string, lines = false): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(unseen)) {
    if (lines && (match[0] === "\n" || match[0] === "\t")) continue;
    if (match.index > from) found.push({ text: text.slice(from, match.index), escaped: false });
    found.push({ text: escaped(match[0]), escaped: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), escaped: false });
  return found;
}

// visible escapes all invisible characters, for titles and labels.
export function visible(text: string): string {
  return text.replace(unseen, escaped);
}

// commandLine joins arguments and quotes them for a shell.
export function commandLine(argv: string[]): string {
  return argv.map((arg) => (/^[\w@%+=:,./-]+$/.test(arg) ? arg : `'${arg.replaceAll("'", `'\\''`)}'`)).join(" ");
}
