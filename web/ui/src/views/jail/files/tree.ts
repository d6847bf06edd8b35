import type { Schema } from "../../../api/client";

export type Change = Schema["Change"];

// signs are symbols for the kinds of changes.
export const signs: Record<Change["kind"], string> = { added: "+", modified: "~", deleted: "−", metadata: "·", renamed: "→" };

// A Branch is a node of the tree of changed files. A chain of directories with nothing else
// in them is one node.
export interface Branch {
  name: string;
  path: string;
  change?: Change;
  children: Branch[];
}

export interface Row {
  branch: Branch;
  depth: number;
}

// treeOf makes a tree of changes in any order. In byte order, /foo-bar/y is between
// /foo and /foo/x, so a directory is found by its path and not by its position.
export function treeOf(changes: Change[]): Branch {
  const root: Branch = { name: "/", path: "/", children: [] };
  const known = new Map<string, Branch>();
  for (const change of changes) {
    let at = root;
    for (const name of change.path.split("/").filter(Boolean)) {
      const path = at.path === "/" ? `/${name}` : `${at.path}/${name}`;
      let branch = known.get(path);
      if (!branch) {
        branch = { name, path, children: [] };
        known.set(path, branch);
        at.children.push(branch);
      }
      at = branch;
    }
    at.change = change;
  }
  return root;
}

// rowsOf lists the visible rows of a tree, without collapsed parts.
export function rowsOf(root: Branch, folded: Set<string>): Row[] {
  const rows: Row[] = [];
  const add = (branch: Branch, depth: number, prefix: string) => {
    const only = branch.children[0];
    if (!branch.change && branch.children.length === 1 && only && only.children.length > 0) {
      add(only, depth, `${prefix}${branch.name}/`);
      return;
    }
    rows.push({ branch: { ...branch, name: prefix + branch.name }, depth });
    if (folded.has(branch.path)) return;
    for (const child of branch.children) add(child, depth + 1, "");
  };
  for (const child of root.children) add(child, 0, "/");
  return rows;
}
