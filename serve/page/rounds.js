// Retrieval on demand as it happened: drafts, verdicts, what was discarded, queries and passages.

import { tokens, UNANSWERED, units } from "./recording.js";
import { element, number, TokenText } from "./tokens.js";

/** Shows the rounds of a recording in an ordered list; only the last is drawn anew where `from` says so. */
export function drawRounds(list, rounds, inspector, from = 0) {
  const open = [...list.querySelectorAll("details")].filter((each) => each.open).map((each) => each.dataset.place);
  while (list.children.length > from) list.lastElementChild.remove();
  rounds.slice(from).forEach((round, i) => list.append(drawRound(round, from + i, inspector)));
  for (const each of list.querySelectorAll("details")) each.open = open.includes(each.dataset.place);
}

function drawRound(round, n, inspector) {
  const item = element("li", "round");
  const { draft, judged } = round;
  item.append(element("h3", "", `Round ${n + 1}: ${draft ? "draft" : "no text yet"}`));
  if (draft) item.append(drawDraft(draft, judged, round, n, inspector));
  if (judged) item.append(element("p", judged.fire ? "verdict fires" : "verdict", said(judged, round)));
  if (round.discarded !== null) {
    item.append(element("p", "discard", [element("b", "", "Discarded: "), element("del", "made", round.discarded)]));
  }
  if (round.query !== null) {
    item.append(element("p", "query", [element("b", "", "Query: "), element("q", "made", round.query)]));
  }
  if (round.passages) item.append(...drawPassages(round, n));
  return item;
}

function said({ trigger, score, threshold, fire, position }, { query, written }) {
  const where = position == null ? "on the whole draft" : `at character ${position}`;
  const last = written && query === null ? ", and no search was left: it stays" : "";
  const given = score === UNANSWERED ? "nothing was written" : `score ${number(score)}`;
  return `${trigger}: ${given}, threshold ${number(threshold)}; ${fire ? `fires ${where}${last}` : "does not fire"}`;
}

function drawDraft(draft, judged, round, n, inspector) {
  const box = element("div", "made");
  const cut = judged?.fire && round.discarded !== null ? units(draft.text)(judged.position ?? 0) : Infinity;
  if (!draft.offsets?.length) {
    box.classList.add("draft");
    box.append(draft.text);
    return box;
  }
  const text = new TokenText(box, inspector, `Tokens of the draft of round ${n + 1}`);
  text.append(draft.text, tokens(draft), { cut });
  text.finish(draft.text, cut);
  return box;
}

function drawPassages({ passages, left_out: leftOut }, n) {
  const list = element("ol", "passages", passages.map((passage, i) => {
    const summary = element("summary", "", [
      element("span", "made", passage.title || passage.id), element("small", "", ` score ${number(passage.score)}`),
    ]);
    const body = element("p", "made", passage.text);
    return element("li", "", element("details", "", [summary, body], { "data-place": `${n}-${i}` }));
  }));
  const count = passages.length === 1 ? "1 passage" : `${passages.length} passages`;
  const more = leftOut ? `, ${leftOut} more had no room in the prompt` : "";
  const told = passages.length ? `${count} read${more}:` : `No passage was read${more}.`;
  return [element("p", "", element("b", "", told)), list];
}
