// Sentences of a text and the tokens that wrote them, by the rules of probers/words/text.py and probers/uncertainty.py.

// What Python's \s and \w match; JavaScript's own differ.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const WORD = "[\\p{L}\\p{N}_]";

const words = (text) => new Set(text.split(" "));
// Never followed by the end of a sentence.
const TITLES = words(
  "mr mrs ms dr prof st mt gen col lt sgt capt cmdr adm rev hon gov sen rep pres fr vs cf fig eq approx " +
  "e.g i.e jan feb mar apr jun jul aug sep sept oct nov dec",
);
// May end a sentence; they do when the next word is one that begins sentences.
const SHORT = words(
  "inc ltd co corp bros jr sr etc al ph.d a.m p.m u.s u.k e.u u.n b.c a.d d.c no vol pp",
);
const STARTERS = words(
  "The He She It They We This That These Those His Her Its Their There In On At So But And However When " +
  "After Before As For From Therefore Thus Both Who What Where Which",
);
const END = new RegExp(`[.!?…]+["'”’)\\]]*(?=${SPACE}|$)|\\n+`, "gu");
const LAST_WORD = new RegExp(`(?:${WORD}|\\.)*${WORD}(?=\\n?$)`, "u");
const NEXT_WORD = new RegExp(`${SPACE}*["'“‘(\\[]*(${WORD}*)`, "uy");
const LEADING = new RegExp(`^${SPACE}*`, "u");
const TRAILING = new RegExp(`${SPACE}*$`, "u");

/** [start, end) of every sentence, without the white space around it. */
export function splitSentences(text) {
  const spans = [];
  let start = 0;
  for (const match of text.matchAll(END)) {
    const end = match.index + match[0].length;
    if (!isBorder(text, match[0], match.index, end)) continue;
    spans.push([start, end]);
    start = end;
  }
  spans.push([start, text.length]);
  return spans.map(([from, to]) => trim(text, from, to)).filter(([from, to]) => from < to);
}

function isBorder(text, mark, start, end) {
  if (mark.includes("\n")) return true;
  NEXT_WORD.lastIndex = end;
  const following = NEXT_WORD.exec(text);
  const word = following[1];
  if (!word || text.slice(end, NEXT_WORD.lastIndex - word.length).includes("\n")) return true;
  if (/^\p{Lowercase}/u.test(word)) return false;
  if (mark[0] !== ".") return true;
  // Twenty characters as Python counts them.
  const before = [...text.slice(Math.max(0, start - 40), start)].slice(-20).join("");
  const last = LAST_WORD.exec(before)?.[0] ?? "";
  const small = last.toLowerCase();
  if (TITLES.has(small)) return false;
  if (small === "no") return !/^[\p{Nd}¹²³⁰⁴-⁹₀-₉]/u.test(word); // "No. 5" against "He said no. Then .."
  if (/^\p{Uppercase}$/u.test(last) || SHORT.has(small) || /^(?:[A-Z]\.)+[A-Z]$/.test(last)) return STARTERS.has(word);
  return true;
}

function trim(text, start, end) {
  const inner = text.slice(start, end);
  const blank = LEADING.exec(inner)[0].length;
  return blank === inner.length ? [end, end] : [start + blank, end - TRAILING.exec(inner)[0].length];
}

/** The sentences of a text as {start, end, tokens}: indices of the tokens that wrote any of each, none without one. */
export function sentences(text, tokens) {
  return splitSentences(text)
    .map(([start, end]) => ({ start, end, tokens: tokensOf(tokens, start, end) }))
    .filter((each) => each.tokens.length);
}

/** Indices of the tokens that wrote any character of [start, end). */
export function tokensOf(tokens, start, end) {
  return [...tokens.keys()].filter((i) => tokens[i].start < end && tokens[i].end > Math.max(start, tokens[i].start));
}

/** Text before a place, without white space at its end: what is kept where a trigger fires there. */
export function keptBefore(text, position) {
  return position - TRAILING.exec(text.slice(0, position))[0].length;
}
