// The documentation site: the daemon serves it at /docs. prepare.mjs writes the pages.
import starlight from "@astrojs/starlight";
import { defineConfig } from "astro/config";
import sidebar from "./src/sidebar.json" with { type: "json" };

export default defineConfig({
  base: "/docs",
  trailingSlash: "always",
  devToolbar: { enabled: false },
  integrations: [
    starlight({
      title: "Glasshouse",
      favicon: "/favicon.svg",
      customCss: ["./src/site.css"],
      credits: false,
      lastUpdated: false,
      pagination: false,
      disable404Route: true,
      expressiveCode: { themes: ["github-dark", "github-light"], useStarlightDarkModeSwitch: true },
      sidebar,
    }),
  ],
});
