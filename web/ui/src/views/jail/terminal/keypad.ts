// control returns what a terminal sends for Ctrl and a key: the lower five bits of its
// character (ECMA-48, the C0 set). Other input stays as it is.
export function control(text: string): string {
  const code = text.toUpperCase().charCodeAt(0);
  if (text === " ") return "\0";
  if (text === "?") return "\x7f";
  return text.length === 1 && code >= 0x40 && code <= 0x5f ? String.fromCharCode(code & 0x1f) : text;
}
