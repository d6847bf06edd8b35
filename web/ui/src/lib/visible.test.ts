import { describe, expect, it } from "vitest";

import { commandLine, pieces, visible } from "./visible";

describe("untrusted text", () => {
  it.each([
    ["plain.txt", "plain.txt"],
    ["<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"], // text is text
    ["\u001b[31mred\u0007", "\\e[31mred\\x07"],
    ["two\nlines\r", "two\\nlines\\r"],
    ["invoice\u202efdp.exe", "invoice\\u202efdp.exe"],
    ["a\u200bb\ufeff", "a\\u200bb\\ufeff"],
    ["\u{e0041}", "\\u{e0041}"], // a tag character, which is invisible
    ["caf\udce9", "caf\\xe9"], // an invalid UTF-8 byte
    ["\ud83d\ude00 ok", "😀 ok"], // a surrogate pair is a character
    ["\ud83d", "\\ud83d"],
  ])("shows %j", (text, shown) => expect(visible(text)).toBe(shown));

  it("distinguishes escaped characters from literal escape sequences", () => {
    expect(pieces("\\n\n")).toEqual([
      { text: "\\n", escaped: false },
      { text: "\\n", escaped: true },
    ]);
  });

  it("keeps line breaks on request", () => {
    expect(pieces("a\n\tb\u001b", true)).toEqual([
      { text: "a\n\tb", escaped: false },
      { text: "\\e", escaped: true },
    ]);
  });

  it("is quoted for a shell", () => expect(commandLine(["git", "commit", "-m", "it's"])).toBe(`git commit -m 'it'\\''s'`));
});
