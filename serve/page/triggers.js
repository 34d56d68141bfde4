// What a trigger would have done with a recorded text: the rules of rag/triggers, replayed from scores.
//
// A text is {text, tokens: [{start, end, score, pWrong, logprob, entropy}], score, spans}, offsets in UTF-16 units.
// `fresh`: its first sentence was written from passages that a trigger fetched right there, and is not judged.

import { sentences, tokensOf } from "./sentences.js";

const UNANSWERED = 1e4; // the score of an answer without a token
const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
const max = (values) => values.reduce((top, x) => Math.max(top, x), -Infinity);

/** The triggers by name: their options with choices (the first is the default), and their threshold's. */
export const TRIGGERS = {
  probing: {
    says: "the prober's score of the worst span, or of the whole text",
    options: {}, threshold: null, unit: "score", judge: probing,
  },
  entropy: {
    says: "the entropy of the model's distributions, nats",
    options: { scope: ["answer", "sentence"], reduction: ["mean", "max"] },
    threshold: 0.2, unit: "nats", judge: entropy,
  },
  flare: {
    says: "1 − the probability of the tokens, by sentence",
    options: { variant: ["paper", "dragin"] }, threshold: 0.2, unit: "1 − p", judge: flare,
  },
  fixed_sentence: {
    says: "retrieves with the question, and after every sentence",
    options: {}, judge: fixedSentence,
  },
  never: { says: "never retrieves", options: {}, judge: () => ({ fire: false, score: 0, values: [] }) },
};

/**
 * The decision of a trigger on a text.
 *
 * @returns {fire, score, position, tokens, judged, values} as probers.types.Decision: position in UTF-16 units, null
 *   for the whole text; judged: the parts that have a score, as {start, end, score, fires}; values: one per token, for
 *   display. Or {missing}: what the response does not carry and the trigger needs.
 */
export function replay(name, settings, written, fresh = false) {
  const decision = TRIGGERS[name].judge(written, settings, fresh);
  return decision.missing ? decision : { position: null, tokens: [], judged: [], ...decision };
}

function probing({ tokens, score, spans }, { threshold }) {
  if (score === undefined) return { missing: "the prober's score of this text" };
  const values = tokens.map((token) => token.pWrong);
  const judged = (spans ?? []).map((span) => ({ ...span, fires: span.score > threshold }));
  const hits = judged.filter((span) => span.fires).flatMap((span) => tokensOf(tokens, span.start, span.end));
  const top = tokens.length ? score : UNANSWERED;
  const fire = top !== null && top > threshold; // null: nothing that the prober judges
  return { fire, score: top, judged, values, tokens: hits };
}

function entropy({ text, tokens }, { threshold, scope, reduction }, fresh) {
  const values = tokens.map((token) => token.entropy);
  if (values.some((value) => value == null)) return { missing: "the entropies of the tokens" };
  const reduce = reduction === "mean" ? mean : max;
  if (scope === "sentence") return firstAbove(text, tokens, fresh, values, reduce, threshold);
  const score = values.length ? reduce(values) : UNANSWERED;
  return { fire: score > threshold, score, values };
}

function flare({ text, tokens }, { threshold, variant }, fresh) {
  if (tokens.some((token) => token.logprob == null)) return { missing: "the probabilities of the tokens" };
  const values = tokens.map((token) => -Math.expm1(token.logprob));
  return firstAbove(text, tokens, fresh, values, variant === "paper" ? max : mean, threshold);
}

function fixedSentence({ text, tokens }) {
  const [first, ...others] = sentences(text, tokens);
  if (!others.length) return { fire: false, score: 1, values: [] };
  return { fire: true, score: 1, position: first.end, tokens: first.tokens.slice(-1), values: [] };
}

/** Fires before the first sentence whose score is above the threshold. */
function firstAbove(text, tokens, fresh, values, reduce, threshold) {
  const judged = sentences(text, tokens).slice(fresh ? 1 : 0).map((each) => {
    const score = reduce(each.tokens.map((i) => values[i]));
    return { ...each, score, fires: score > threshold };
  });
  const score = judged.length ? max(judged.map((each) => each.score)) : 0;
  const hit = judged.find((each) => each.fires);
  if (!hit) return { fire: false, score, judged, values };
  const above = hit.tokens.filter((i) => values[i] > threshold);
  return { fire: true, score, position: hit.start, tokens: above, judged, values };
}
