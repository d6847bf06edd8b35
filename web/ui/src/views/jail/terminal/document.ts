// xterm.js writes its styles into <style> elements and style attributes, which the
// Content-Security-Policy of the page forbids. It creates its elements with a given document.
// strictDocument returns one whose elements set styles through the CSS object model, which the
// policy allows. The output of a jail cannot contain such styles.

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

// opened runs open, which creates a terminal, with a replaced document.createElement. The
// viewport of xterm.js 6 uses the document of the window instead of the given one, because of an
// operator precedence error (CoreBrowserTerminal.ts, at the creation of CoreBrowserService).
export function opened(open: () => void): void {
  document.createElement = create as typeof document.createElement;
  try {
    open();
  } finally {
    delete (document as Partial<Document>).createElement; // restores the method of the prototype
  }
}

const createElement = Document.prototype.createElement;

function create(tag: string, options?: ElementCreationOptions): HTMLElement {
  if (tag === "style") return styleElement();
  const element = createElement.call(document, tag, options);
  element.setAttribute = (name, value) => {
    if (name === "style") element.style.cssText = value;
    else Element.prototype.setAttribute.call(element, name, value);
  };
  return element;
}

// styleElement returns a placeholder for a <style> element. Its style sheet is removed together
// with it.
function styleElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const placeholder = createElement.call(document, "span");
  placeholder.hidden = true;
  let text = "";
  Object.defineProperty(placeholder, "textContent", {
    get: () => text,
    set: (styles: string) => {
      text = styles;
      sheet.replaceSync(styles);
    },
  });
  placeholder.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(placeholder);
  };
  return placeholder;
}
