export default {
  compilerOptions: {
    runes: true,
    // The plugin's default class names of styles contain the directory,
    // but a build must not depend on its location.
    cssHash: ({ hash, css }) => `s-${hash(css)}`,
  },
};
