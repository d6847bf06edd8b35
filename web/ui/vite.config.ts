import { writeFileSync } from "node:fs";

import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// `npm run dev` serves the UI from its sources, with the API of the daemon at GLASSHOUSE_ADDR.
// GLASSHOUSE_TOKEN is a token of that daemon.
const daemon = process.env.GLASSHOUSE_ADDR ?? "http://127.0.0.1:8082";
const token = process.env.GLASSHOUSE_TOKEN;

// bundled writes bundled.txt: the npm packages that have code in the built UI. Packages from which
// only the build takes something, as Svelte's compiler, are not in it. packaging/notices reads it.
function bundled(): Plugin {
  return {
    name: "bundled",
    apply: "build",
    generateBundle(_, bundle) {
      const packages = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        for (const [id, module] of Object.entries(chunk.modules)) {
          const name = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id.replace(/^\0/, ""))?.[1];
          if (name !== undefined && (module.renderedLength > 0 || id.includes(".css"))) packages.add(name);
        }
      }
      writeFileSync("bundled.txt", [...packages].sort().join("\n") + "\n");
    },
  };
}

export default defineConfig({
  plugins: [svelte(), bundled()],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    // The Content-Security-Policy allows neither inline scripts nor data: URLs of scripts, so
    // each asset is a file.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  test: { css: true }, // contrast.test.ts reads the styles
  server: {
    proxy: {
      // Navigations get the page; other requests go to the API.
      "^/(?!src/|node_modules/|@|index.html|[?]).+": {
        target: daemon,
        ws: true,
        headers: token ? { authorization: `Bearer ${token}` } : {},
        bypass: (req) => (req.headers["sec-fetch-dest"] === "document" ? "/index.html" : undefined),
      },
    },
  },
});
