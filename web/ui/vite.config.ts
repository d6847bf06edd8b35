import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// `npm run dev` shows what is being written, on the data of a daemon that runs:
// GLASSHOUSE_ADDR says which, GLASSHOUSE_TOKEN is a token of it.
const daemon = process.env.GLASSHOUSE_ADDR ?? "http://127.0.0.1:8082";
const token = process.env.GLASSHOUSE_TOKEN;

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    // The policy of the page's content allows no data: scripts and no inline
    // ones; a file for each asset keeps it simple.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  test: { css: true }, // styles are tested too
  server: {
    proxy: {
      // Who opens an address in a browser gets the page; the rest is the API's.
      "^/(?!src/|node_modules/|@|index.html|[?]).+": {
        target: daemon,
        ws: true,
        headers: token ? { authorization: `Bearer ${token}` } : {},
        bypass: (req) => (req.headers["sec-fetch-dest"] === "document" ? "/index.html" : undefined),
      },
    },
  },
});
