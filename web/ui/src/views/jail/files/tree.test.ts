import { expect, test } from "vitest";
import { rowsOf, treeOf, type Change } from "./tree";

const added = (path: string, type = "file") => ({ path, kind: "added", type }) as Change;

test("a directory is one row if other paths sort between its entries", () => {
  // The order of the API, which is that of bytes: "-" sorts before "/".
  const root = treeOf([added("/foo", "dir"), added("/foo-bar", "dir"), added("/foo-bar/y"), added("/foo/x")]);
  const paths = rowsOf(root, new Set()).map((row) => row.branch.path);
  expect(paths).toEqual(["/foo", "/foo/x", "/foo-bar", "/foo-bar/y"]);
});

test("a page of the list that begins inside a directory finds the directory", () => {
  const root = treeOf([added("/a/b/1"), added("/a-b/2"), added("/a/b/3"), added("/a/c/4")]);
  const paths = rowsOf(root, new Set()).map((row) => row.branch.path);
  expect(new Set(paths).size).toBe(paths.length);
  expect(paths).toEqual(["/a", "/a/b", "/a/b/1", "/a/b/3", "/a/c", "/a/c/4", "/a-b", "/a-b/2"]);
});
