export default {
  compilerOptions: {
    runes: true,
    // The plugin's own name for a component's styles has the directory in it,
    // and a build must not depend on where it is made.
    cssHash: ({ hash, css }) => `s-${hash(css)}`,
  },
};
