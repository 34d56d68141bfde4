// What one response said, as plain data: shown, replayed, and carried by a link.
//
// Lists are as the server sent them, offsets in characters of Python (code points). A round of retrieval on demand is
// {draft: {text, offsets, scores, ..}, judged, discarded, query, passages, left_out}, each null until it is known.

export const UNANSWERED = 1e4; // the score of an answer without a token
const LISTS = { offsets: "token_offsets", scores: "token_scores", p_wrong: "token_p_wrong",
  logprobs: "token_logprobs", entropies: "token_entropies" };

/** A recording of nothing yet; `asked` is the request. */
export function begin(asked) {
  const lists = Object.fromEntries(Object.keys(LISTS).map((name) => [name, []]));
  return { asked, text: "", ...lists, whole: null, rounds: [], finish: null };
}

/** Adds a streamed chunk; returns whether rounds changed, and whether it was the last one. */
export function add(recording, chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return { rounds: false, final: false };
  const content = choice.text ?? choice.delta?.content ?? "";
  recording.text += content;
  const said = choice.hallucination;
  const final = choice.finish_reason != null;
  if (said) {
    for (const [name, field] of Object.entries(LISTS)) recording[name] = recording[name].concat(said[field] ?? []);
    for (const { token, score, p_wrong } of said.revised ?? []) {
      recording.scores[token] = score;
      recording.p_wrong[token] = p_wrong;
    }
  }
  if (final) recording.finish = choice.finish_reason;
  if (final && said) recording.whole = whole(said);
  if (content && recording.rounds.length) recording.rounds.at(-1).written = true;
  const event = choice.retrieval?.type; // the last chunk's is a summary
  if (event) addEvent(recording.rounds, choice.retrieval);
  return { rounds: Boolean(event), final };
}

/** Fills in a text that was scored and not written. */
export function scored(recording, { text, hallucination }) {
  const said = hallucination ?? {};
  recording.text = text;
  for (const [name, field] of Object.entries(LISTS)) recording[name] = said[field] ?? [];
  if (hallucination) recording.whole = whole(said);
  recording.finish = "scored";
}

function whole({ score, p_wrong, threshold, fires, spans, domain }) {
  return { score, p_wrong, threshold, fires, spans: spans ?? [], domain: domain ?? null };
}

function addEvent(rounds, { type, ...event }) {
  const round = rounds.at(-1);
  // A round ends with its passages, or where its draft was judged or accepted and another begins.
  const grows = round?.draft && event.text?.startsWith(round.draft.text);
  const scored = event.scores && round?.draft?.text === event.text;
  const on = round && !round.passages && (type !== "draft" || scored || (grows && !round.judged && !round.written));
  if (!on) {
    rounds.push({ draft: null, judged: null, discarded: null, query: null, passages: null, left_out: 0, written: false });
  }
  const now = rounds.at(-1);
  if (type === "draft") now.draft = event;
  else if (type === "judged") now.judged = event;
  else if (type === "discarded") now.discarded = event.text;
  else if (type === "query") now.query = event.query;
  else if (type === "passages") Object.assign(now, { passages: event.passages, left_out: event.left_out ?? 0 });
}

/** A function from code points of a text to its UTF-16 units. */
export function units(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (point) => point;
  const starts = [];
  let unit = 0;
  for (const character of text) {
    starts.push(unit);
    unit += character.length;
  }
  starts.push(unit);
  return (point) => starts[Math.min(point, starts.length - 1)];
}

/** The tokens of a recording or draft, offsets in UTF-16 units; null where a list has no value. */
export function tokens(written, from = 0) {
  const unit = units(written.text);
  const at = (name, i) => written[name]?.[i] ?? null;
  return (written.offsets ?? []).slice(from).map(([start, end], n) => ({
    start: unit(start), end: unit(end), score: at("scores", from + n), pWrong: at("p_wrong", from + n),
    logprob: at("logprobs", from + n), entropy: at("entropies", from + n),
  }));
}

/** The spans of an answer or draft with this text, offsets in UTF-16 units. */
export function spans(text, found) {
  const unit = units(text);
  return (found ?? []).map((span) => ({ ...span, start: unit(span.start), end: unit(span.end) }));
}

/** The texts of a recording that a trigger can be replayed on, as {name, written}: what /v1/replay takes. */
export function texts(recording) {
  const { whole, rounds } = recording;
  const answer = { name: "Answer", written: taken(recording, whole?.score, whole?.spans, false) };
  const drafts = rounds.flatMap(({ draft, judged }, i) => {
    if (!draft?.offsets?.length) return [];
    const before = rounds[i - 1];
    const score = draft.score ?? (judged?.trigger === "probing" ? judged.score : undefined);
    const fresh = Boolean(before?.query != null && before.judged?.position != null);
    return [{ name: `Draft of round ${i + 1}`, written: taken(draft, score, draft.spans, fresh) }];
  });
  return [...drafts, answer];
}

function taken({ text, offsets, scores, p_wrong, logprobs, entropies }, score, spans, fresh) {
  return { text, offsets, scores, p_wrong, logprobs, entropies, score, spans: spans ?? [], fresh };
}
