// prepare.mjs OPENAPI: write the pages of the site from docs/, the changelog and the other documents of the
// project, the help of the commands and the API's OpenAPI document. The results, in src/content/docs,
// src/sidebar.json and public, are not committed.
//
// The sources are Markdown as forges show it: the first heading is the title, and links are relative.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, posix } from "node:path";
import sharp from "sharp";

const root = new URL("../..", import.meta.url).pathname;
const content = new URL("src/content/docs/", import.meta.url).pathname;
const open = new URL("public/", import.meta.url).pathname;
const base = "/docs/";

// The sections of the sidebar, with their pages in the order for a reader. Pages that are not listed follow by title.
const sections = [
  ["tutorials", "Tutorials", ["first-jail", "coding-agent", "approval-from-a-phone", "branch-and-pick", "secret", "e2b", "capability"]],
  ["how-to", "How-to", ["install", "ui", "agents", "models", "governance", "troubleshooting"]],
  ["concepts", "Concepts", ["isolation", "recording", "snapshots-and-branches", "egress", "approvals", "autonomy", "runs-and-checkpoints", "audit-log", "data-at-rest"]],
  ["security", "Security", ["index", "threat-model", "guarantees", "hardening", "production-checklist"]],
  ["reference", "Reference", ["cli", "api", "configuration", "events"]],
  ["project", "Project", ["comparison", "faq", "glossary", "changelog", "benchmarks"]],
];

// Documents outside of docs/, with the page that each becomes.
const others = { "CHANGELOG.md": "project/changelog", "CONTRIBUTING.md": "project/contributing", "SECURITY.md": "security/reporting" };

const dark = /@media\s*\(\s*prefers-color-scheme:\s*dark\s*\)/;
const pages = new Map(); // slug: { title, description, text }
const sources = new Map(); // path in the project: slug
const images = []; // promises of HTML

function walk(dir) {
  return readdirSync(dir, { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? walk(join(dir, e.name)) : join(dir, e.name)));
}

function slugOf(path) {
  return path.replace(/^docs\//, "").replace(/\.md$/, "").replace(/(^|\/)(README|index)$/, "$1index");
}

function address(slug) {
  return base + (slug === "index" ? "" : slug.replace(/(^|\/)index$/, "$1").replace(/\/?$/, "/"));
}

// outsideCode applies change to the parts of Markdown that are not in code blocks or code spans.
function outsideCode(text, change) {
  return text.split(/(^(`{3,})[^\n]*\n[\s\S]*?^\2`*[ \t]*$|`[^`\n]*`)/m).map((part, i) => (i % 3 === 0 ? change(part ?? "") : i % 3 === 1 ? part : "")).join("");
}

// links rewrites relative links to addresses of the site. A link to a file that the site does not have becomes its text.
// of is the path of the page in the project.
function links(text, of) {
  return outsideCode(text, (part) => part.replace(/(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^)>\s]+)>?(?: "[^"]*")?\)/g, (all, image, label, link) => {
    if (/^[a-z]+:/.test(link)) return all;
    const [path, fragment] = link.split("#");
    const target = path === "" ? of : posix.normalize(posix.join(posix.dirname(of), path)).replace(/\/$/, "");
    if (image) return placeholder(target, label);
    if (target === "docs/reference/cli.md" && fragment?.startsWith("glasshouse-")) return `[${label}](${address("reference/cli/" + fragment.slice("glasshouse-".length))})`;
    const slug = target === "README.md" ? "index" : (sources.get(target) ?? sources.get(target + "/README.md"));
    return slug === undefined ? label : `[${label}](${address(slug)}${fragment ? "#" + fragment : ""})`;
  }).replace(/<img src="([^"]+)"(?: width="(\d+)")? alt="([^"]*)"\s*\/?>/g, (_, path, width, label) => placeholder(posix.normalize(posix.join(posix.dirname(of), path)), label, width)));
}

// placeholder stands for an image until all pages are read, because images are converted asynchronously.
function placeholder(path, label, width) {
  images.push(picture(path, label, width));
  return `\u0000${images.length - 1}\u0000`;
}

// picture returns the HTML of an image. The site has a switch for the theme of its own, so an image with a dark variant
// becomes two: an SVG with a dark style, or a PNG beside a file whose name ends with -dark.
async function picture(path, label, width) {
  const [, name, kind] = /([^/]+?)(?:-dark)?\.(svg|png)$/.exec(path);
  const source = (variant) => join(root, posix.dirname(path), `${name}${variant}.${kind}`);
  const show = async (variant, file, theme) => {
    const to = `images/${name}${file}.${kind === "png" ? "webp" : kind}`;
    mkdirSync(join(open, "images"), { recursive: true });
    if (kind === "png") await sharp(source(variant)).webp({ quality: 80 }).toFile(join(open, to));
    else writeFileSync(join(open, to), readFileSync(source(""), "utf8").replace(dark, file === "" ? "@media not all" : "@media all"));
    return `<img${theme && ` class="${theme}:sl-hidden"`} src="${base}${to}" alt="${label.replaceAll('"', "&quot;")}"${width ? ` width="${width}"` : ""} loading="lazy" />`;
  };
  const two = kind === "svg" ? dark.test(readFileSync(source(""), "utf8")) : existsSync(source("-dark"));
  return two ? (await show("", "", "dark")) + (await show("-dark", "-dark", "light")) : show("", "", "");
}

// page adds a page from Markdown whose first heading is the title.
function page(slug, text, of) {
  const [, title, rest] = /^# (.+)\n([\s\S]*)$/.exec(text) ?? [];
  if (!title) throw new Error(`${of}: the first line is not a title`);
  const first = rest.trim().split("\n\n")[0] ?? "";
  const description = /^[A-Za-z`*[]/.test(first) ? first.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/[`*]/g, "").replace(/\s+/g, " ").slice(0, 300) : "";
  pages.set(slug, { title: title.replaceAll("`", ""), description, text: links(rest.trim() + "\n", of) });
}

// commands splits the manual of the command line: an overview, and a page per command.
function commands(text) {
  const [overview, ...parts] = text.split(/^(?=## glasshouse)/m);
  page("reference/cli/index", overview, "docs/reference/cli.md");
  for (const part of parts) {
    const name = /^## glasshouse ?(.*)/.exec(part)[1];
    page("reference/cli/" + name.replaceAll(" ", "-"), part.replace("## ", "# "), "docs/reference/cli.md");
  }
}

// api writes the reference of the HTTP API: a page per first element of the path, and one with all schemas.
function api(document) {
  const groups = new Map();
  for (const [path, operations] of Object.entries(document.paths))
    for (const [method, o] of Object.entries(operations)) {
      const tag = o.tags[0].replaceAll(".", "-");
      groups.set(tag, [...(groups.get(tag) ?? []), { method: method.toUpperCase(), path, ...o }]);
    }
  const cell = (text) => (text ?? "").replaceAll("|", "\\|").replaceAll("<", "&lt;").replace(/\s*\n\s*/g, " ");
  const type = (s) => {
    if (!s) return "";
    if (s.$ref) return `[${s.$ref.split("/").pop()}](${address("reference/api/schemas")}#${s.$ref.split("/").pop().toLowerCase()})`;
    const types = [s.type ?? "any"].flat().filter((t) => t !== "null");
    if (types.includes("array")) return `array of ${type(s.items)}`;
    if (types.includes("object") && typeof s.additionalProperties === "object") return `map of ${type(s.additionalProperties)}`;
    return types.join(" or ") + (s.enum ? `: ${s.enum.map((v) => `\`${v}\``).join(", ")}` : "");
  };
  const fields = (s) => {
    const rows = Object.entries(s.properties ?? {}).map(([name, p]) => `| \`${name}\`${s.required?.includes(name) ? ", required" : ""} | ${cell(type(p))} | ${cell(p.description)} |`);
    return rows.length > 0 ? ["| field | type | description |", "| --- | --- | --- |", ...rows].join("\n") + "\n" : "";
  };
  const names = [...groups.keys()].sort();
  const lists = names.map((tag) => `## [${tag}](${address("reference/api/" + tag)})\n\n| request | |\n| --- | --- |\n` + groups.get(tag).map((o) => `| [\`${o.method} ${o.path}\`](${address("reference/api/" + tag)}#${o.operationId.toLowerCase()}) | ${cell(o.summary)} |`).join("\n"));
  pages.set("reference/api/index", {
    title: "HTTP API", description: "All requests of the HTTP API.",
    text: `${document.info.description}\n\nThe daemon returns this document in the OpenAPI format at \`/openapi.json\`.\n\n${lists.join("\n\n")}\n`,
  });
  for (const tag of names) {
    const parts = groups.get(tag).map((o) => {
      let text = `## ${o.operationId}\n\n\`${o.method} ${o.path}\`\n\n${o.description ?? o.summary}\n`;
      if (o.parameters?.length) text += "\n| parameter | in | type | description |\n| --- | --- | --- | --- |\n" + o.parameters.map((p) => `| \`${p.name}\`${p.required ? ", required" : ""} | ${p.in} | ${cell(type(p.schema))} | ${cell(p.description)} |`).join("\n") + "\n";
      for (const [kind, c] of Object.entries(o.requestBody?.content ?? {})) text += `\nRequest body: \`${kind}\`${c.schema ? ", " + type(c.schema) : ""}.\n`;
      const answers = Object.entries(o.responses ?? {}).map(([status, r]) => `| ${status} | ${Object.entries(r.content ?? {}).map(([kind, c]) => `\`${kind}\`${c.schema ? " " + cell(type(c.schema)) : ""}`).join(", ") || "no body"} |`);
      if (answers.length > 0) text += `\n| status | response |\n| --- | --- |\n${answers.join("\n")}\n`;
      return text;
    });
    pages.set("reference/api/" + tag, { title: `API: ${tag}`, description: `Requests to ${groups.get(tag)[0].path.split("/").slice(0, 2).join("/")}.`, text: parts.join("\n") });
  }
  const schemas = Object.entries(document.components.schemas).sort(([a], [b]) => (a < b ? -1 : 1));
  pages.set("reference/api/schemas", {
    title: "API: schemas", description: "All objects of the HTTP API.",
    text: schemas.map(([name, s]) => `## ${name}\n\n${cell(s.description)}${s.properties ? "" : " " + cell(type(s))}\n\n${fields(s)}`).join("\n"),
  });
}

for (const dir of [content, open]) rmSync(dir, { recursive: true, force: true });
for (const dir of [content, open]) mkdirSync(dir, { recursive: true });

const found = walk(join(root, "docs")).filter((p) => p.endsWith(".md")).map((p) => p.slice(root.length)).sort();
for (const path of found) sources.set(path, slugOf(path));
sources.set("docs/reference/cli.md", "reference/cli/index");
for (const [path, slug] of Object.entries(others)) if (existsSync(join(root, path))) sources.set(path, slug);
for (const [path, slug] of sources) {
  const text = readFileSync(join(root, path), "utf8");
  if (path === "docs/reference/cli.md") commands(text);
  else page(slug, text, path);
}
api(JSON.parse(readFileSync(process.argv[2], "utf8")));

// The first page is the README, without its list of links, which the sidebar replaces.
const readme = readFileSync(join(root, "README.md"), "utf8").replace(/\n## More\n[\s\S]*$/, "\n");
page("index", readme, "README.md");

const sidebar = sections.map(([dir, label, order]) => {
  const slugs = [...pages.keys()].filter((slug) => slug.startsWith(dir + "/") && (slug.split("/").length === 2 || slug.endsWith("/index")));
  const name = (slug) => slug.slice(dir.length + 1).replace(/\/index$/, "");
  const rank = (slug) => (order.includes(name(slug)) ? order.indexOf(name(slug)) : order.length);
  slugs.sort((a, b) => rank(a) - rank(b) || pages.get(a).title.localeCompare(pages.get(b).title, "en"));
  return { label, items: slugs.map((slug) => ({ label: pages.get(slug).title, link: address(slug).slice(base.length - 1) })) };
}).filter((section) => section.items.length > 0);
writeFileSync(new URL("src/sidebar.json", import.meta.url), JSON.stringify(sidebar));

// Each page is also plain Markdown for programs, and llms.txt lists them (llmstxt.org).
const made = await Promise.all(images);
const list = [];
for (const [slug, { title, description, text: raw }] of [...pages].sort(([a], [b]) => (a < b ? -1 : 1))) {
  const text = raw.replace(/\u0000(\d+)\u0000/g, (_, n) => made[n]);
  const file = join(content, slug + ".md");
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `---\ntitle: ${JSON.stringify(title)}\n${description ? `description: ${JSON.stringify(description)}\n` : ""}---\n\n${text}`);
  const plain = join(open, slug + ".md");
  mkdirSync(dirname(plain), { recursive: true });
  writeFileSync(plain, `# ${title}\n\n${text}`);
  list.push(`- [${title}](${base}${slug}.md)${description ? `: ${description}` : ""}`);
}
writeFileSync(join(open, "llms.txt"), `# Glasshouse\n\n> ${pages.get("index").description}\n\n${list.join("\n")}\n`);
writeFileSync(join(open, "favicon.svg"), `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M2 7 8 2l6 5v7H2z" fill="none" stroke="#2f7d6d" stroke-width="1.5"/><path d="M2 7h12M8 2v12" stroke="#2f7d6d"/></svg>\n`);
console.log(`${pages.size} pages`);
