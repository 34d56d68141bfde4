// A text as its tokens: coloured and underlined by a value, looked at one by one with mouse, keyboard or finger.
//
// Whatever a model wrote becomes a text node, never markup.

const STEPS = 5;
let ids = 0;

/** An element with a class, children and attributes. */
export function element(name, className = "", children = [], attributes = {}) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...[children].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A probability as text, never rounded to certainty. */
export function percent(p) {
  return p < 0.005 ? "<1%" : p > 0.995 ? ">99%" : `${Math.round(100 * p)}%`;
}

/** A number as text, three digits. */
export function number(x) {
  return x === null || x === undefined ? "–" : String(Number(x.toPrecision(3))).replace("-", "−");
}

/** The step 0 to 4 of a share from 0 to 1. */
export function step(share) {
  return Math.max(0, Math.min(STEPS - 1, Math.floor(share * STEPS)));
}

/** Text with its control and format characters written out. */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => (c === "\n" ? "↵" : `\\u{${c.codePointAt(0).toString(16)}}`));
}

/** Joins tokens that share a character, which have no text of their own. */
function pieces(tokens, text) {
  const made = [];
  for (const token of tokens) {
    const last = made.at(-1);
    if (last && token.start < last.end) {
      last.tokens.push(token);
      last.end = Math.max(last.end, token.end);
    } else if (token.end > token.start && token.end <= text.length) {
      made.push({ start: token.start, end: token.end, tokens: [token] });
    }
  }
  return made;
}

/** Which token is looked at, of all texts of the page. */
export class Inspector {
  constructor(panel) {
    this.panel = panel;
    this.active = null;
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    addEventListener("resize", () => this.hide());
  }

  show(option, rows) {
    this.hide();
    this.active = option;
    option.setAttribute("aria-selected", "true");
    this.panel.replaceChildren(...rows.map(([name, value]) => element("div", "", [element("dt", "", name), element("dd", "", value)])));
    this.panel.hidden = false;
    const box = option.getClientRects()[0] ?? option.getBoundingClientRect();
    const below = box.bottom + 8 + this.panel.offsetHeight < innerHeight;
    const top = below ? box.bottom + 8 : box.top - 8 - this.panel.offsetHeight;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - this.panel.offsetWidth - 8));
    this.panel.style.setProperty("--left", `${left + scrollX}px`);
    this.panel.style.setProperty("--top", `${top + scrollY}px`);
  }

  hide() {
    this.active?.removeAttribute("aria-selected");
    this.active = null;
    this.panel.hidden = true;
  }
}

/** A text in a list box: one stop of the Tab key, arrow keys go from token to token. */
export class TokenText {
  constructor(box, inspector, label) {
    this.box = box;
    this.inspector = inspector;
    box.classList.add("tokens");
    for (const [key, value] of Object.entries({ role: "listbox", tabindex: "0", "aria-label": label, "aria-orientation": "horizontal" })) {
      box.setAttribute(key, value);
    }
    box.addEventListener("keydown", (event) => this.#key(event));
    box.addEventListener("focus", () => box.matches(":focus-visible") && this.#look(this.#current() ?? this.options[0]));
    box.addEventListener("blur", () => inspector.hide());
    box.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.#look(event.target.closest("[role=option]")));
    box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !box.matches(":focus") && inspector.hide());
    box.addEventListener("click", (event) => this.#look(event.target.closest("[role=option]"), true));
    this.clear();
  }

  clear() {
    this.box.replaceChildren();
    this.box.removeAttribute("aria-activedescendant");
    this.options = [];
    this.count = 0; // tokens so far
    this.end = 0; // of the text so far
    this.inspector.hide();
  }

  /**
   * Adds tokens of a text, and what lies between them.
   *
   * @param {string} text all of it so far.
   * @param tokens {start, end, pWrong, ..}, ascending; from where the last call ended.
   * @param look {spans: {start, end, score, p_wrong} to bracket; value(token): a share from 0 to 1, null where it is not known, undefined for no colours;
   *   fired: set of tokens; cut: where discarded text begins}
   */
  append(text, tokens, { spans = [], value = (token) => token.pWrong, fired = new Set(), cut = Infinity } = {}) {
    // A span over all of the text is no place in it.
    const places = spans.filter((span) => span.start > 0 || span.end < text.trimEnd().length);
    this.count += tokens.length;
    for (const piece of pieces(tokens, text)) {
      if (piece.end <= this.end) continue;
      this.#plain(text.slice(this.end, piece.start), this.end >= cut);
      this.#token(text, { ...piece, start: Math.max(piece.start, this.end) }, places, value, fired, cut);
      this.end = piece.end;
    }
  }

  /** Adds the rest of the text, that no token is known of. */
  finish(text, cut = Infinity) {
    this.#plain(text.slice(this.end), this.end >= cut);
    this.end = text.length;
  }

  #plain(text, discarded) {
    if (text) this.box.append(element("span", discarded ? "discarded" : "", text));
  }

  #token(text, piece, spans, value, fired, cut) {
    const worst = piece.tokens.reduce((a, b) => ((value(b) ?? -1) > (value(a) ?? -1) ? b : a));
    const share = value(worst);
    const part = text.slice(piece.start, piece.end);
    const classes = ["tok"];
    if (share !== undefined) classes.push(share === null ? "unread" : `s${step(share)}`);
    if (piece.tokens.some((token) => fired.has(token))) classes.push("fired");
    if (piece.start >= cut || piece.end > cut) classes.push("discarded");
    if (/^\n+$/.test(part)) classes.push("newline");
    const option = element("span", classes.join(" "), [], { role: "option", id: `token-${ids++}` });
    const own = spans.filter((span) => span.start < piece.end && span.end > piece.start);
    // White space before a word is left bare.
    const inked = part.trim() ? piece.end - part.trimStart().length : piece.start;
    const borders = [piece.start, inked, ...own.flatMap((span) => [span.start, span.end]), piece.end]
      .filter((at) => at >= piece.start && at <= piece.end).sort((a, b) => a - b);
    borders.forEach((from, i) => {
      const to = borders[i + 1];
      if (to > from) option.append(segment(text, from, to, own, from >= inked));
    });
    const rows = [["Token", visible(part)], ...describe(worst)];
    for (const span of own) rows.push(["Span", `${text.slice(span.start, span.end)}: P(wrong) ${percent(span.p_wrong)}, score ${number(span.score)}`]);
    if (piece.tokens.length > 1) rows.push(["Tokens", `${piece.tokens.length} wrote this; the worst is shown`]);
    option.setAttribute("aria-description", rows.slice(1).map((row) => row.join(" ")).join(", "));
    option.rows = rows;
    this.options.push(option);
    this.box.append(option);
  }

  #current() {
    return this.options.find((each) => each.id === this.box.getAttribute("aria-activedescendant"));
  }

  #look(option, scroll = false) {
    if (!option) return;
    if (scroll) option.scrollIntoView({ block: "nearest" });
    this.box.setAttribute("aria-activedescendant", option.id);
    this.inspector.show(option, option.rows);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.options.length) return;
    const at = this.options.indexOf(this.#current());
    const last = this.options.length - 1;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const option = this.options[Math.max(0, Math.min(last, to))];
    this.#look(option, true);
  }
}

/** A part of a token that lies in one span, or in none. */
function segment(text, from, to, spans, inked) {
  const span = spans.find((each) => each.start <= from && each.end >= to);
  const made = element("span", inked ? "ink" : "", text.slice(from, to));
  if (!span) return made;
  made.classList.add("span");
  if (from === span.start) made.classList.add("begins");
  if (to === span.end) {
    made.classList.add("ends");
    made.dataset.chance = percent(span.p_wrong);
  }
  return made;
}

function describe(token) {
  const rows = [];
  if (token.pWrong === null) rows.push(["P(wrong)", "not read"]);
  else rows.push(["P(wrong)", percent(token.pWrong)], ["Score", number(token.score)]);
  if (token.logprob !== null) rows.push(["Probability", percent(Math.exp(token.logprob))]);
  if (token.entropy !== null) rows.push(["Entropy", `${number(token.entropy)} nats`]);
  return rows;
}
