import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// `npm run dev` serves the UI from its sources, with the API of the daemon at GLASSHOUSE_ADDR.
// GLASSHOUSE_TOKEN is a token of that daemon.
const daemon = process.env.GLASSHOUSE_ADDR ?? "http://127.0.0.1:8082";
const token = process.env.GLASSHOUSE_TOKEN;

export default defineConfig({
  plugins: [svelte()],
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
