import { expect, test } from "vitest";
import { Problem } from "../../api/problem";
import { place } from "./draft.svelte";

const files = [{ name: "opencode.json", text: "{" }, { name: "AGENTS.md", text: "" }];

test("an error that names a line is marked at that line", () => {
  const found = place(new Problem(400, "Bad Request", "policy: opencode.json:12: unterminated string: it does not end on its line", "close it"), files);
  expect(found).toEqual({ file: "opencode.json", mark: { line: 12, bad: true, kind: "parse error", message: "unterminated string: it does not end on its line", remedy: "close it" } });
});

test("an error that names only a file is marked at the file", () => {
  expect(place(new Problem(400, "Bad Request", "AGENTS.md: it is no text"), files)?.mark.line).toBe(0);
});

test("an error that names no file is not marked", () => {
  expect(place(new Problem(400, "Bad Request", "there are too many files"), files)).toBeUndefined();
});
