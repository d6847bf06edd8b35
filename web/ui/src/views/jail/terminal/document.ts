// xterm.js writes its styles into <style> elements and style attributes, which
// the page's content policy forbids. It asks a document for its elements, so it
// is given one whose elements do the same through the style sheet's own objects,
// which the policy allows: nothing of it can come from a jail's output.

export function strictDocument(): Document {
  return new Proxy(document, {
    get(target, name) {
      if (name === "createElement") return create;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value, target),
  });
}

// opened runs what makes a terminal. Of xterm.js 6 the viewport asks the window's
// document all the same, for an operator in it binds otherwise than was meant
// (CoreBrowserTerminal.ts, where it makes its CoreBrowserService).
export function opened(open: () => void): void {
  document.createElement = create as typeof document.createElement;
  try {
    open();
  } finally {
    delete (document as Partial<Document>).createElement; // the prototype's is back
  }
}

const createElement = Document.prototype.createElement;

function create(tag: string, options?: ElementCreationOptions): HTMLElement {
  if (tag === "style") return styleElement();
  const made = createElement.call(document, tag, options);
  made.setAttribute = (name, value) => {
    if (name === "style") made.style.cssText = value;
    else Element.prototype.setAttribute.call(made, name, value);
  };
  return made;
}

// styleElement stands where a <style> would stand, and keeps a sheet that goes
// when it goes.
function styleElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const stand = createElement.call(document, "span");
  stand.hidden = true;
  let text = "";
  Object.defineProperty(stand, "textContent", {
    get: () => text,
    set: (styles: string) => {
      text = styles;
      sheet.replaceSync(styles);
    },
  });
  stand.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(stand);
  };
  return stand;
}
