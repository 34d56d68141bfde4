// A trigger beside another: what each would have done with a recorded text, at once as its threshold moves.

import { replay } from "./api.js";
import { spans, tokens, UNANSWERED, units } from "./recording.js";
import { element, number, percent, TokenText } from "./tokens.js";

/** The triggers by name: their options with choices (the first is the default), and their threshold's. */
const TRIGGERS = {
  probing: { says: "the prober's score of the worst span, or of the whole text", options: {}, unit: "score" },
  entropy: {
    says: "the entropy of the model's distributions, nats",
    options: { scope: ["answer", "sentence"], reduction: ["mean", "max"] }, threshold: 0.2, unit: "nats",
  },
  flare: {
    says: "1 − the probability of the tokens, by sentence",
    options: { variant: ["paper", "dragin"] }, threshold: 0.2, unit: "1 − p",
  },
  dtr: { says: "the mean of −ln p over the draft, nats", options: {}, threshold: 0.2, unit: "nats" },
  fixed_sentence: { says: "retrieves with the question, and after every sentence", options: {} },
  never: { says: "never retrieves", options: {} },
};

/** What a panel stands at before anyone touched it. */
export function defaults(trigger) {
  const options = Object.entries(TRIGGERS[trigger].options).map(([name, choices]) => [name, choices[0]]);
  return { trigger, threshold: TRIGGERS[trigger].threshold ?? null, ...Object.fromEntries(options) };
}

/** One trigger with its options, threshold and verdict. */
export class Panel {
  #text;

  constructor(root, name, trigger, inspector, changed, failed) {
    this.settings = defaults(trigger);
    Object.assign(this, { root, changed, failed });
    this.parts = {}; // by name, with ids of their own for the labels
    for (const part of root.querySelectorAll("[data-is]")) {
      this.parts[part.dataset.is] = part;
      part.id = `${part.dataset.is}-${name}`;
    }
    for (const label of root.querySelectorAll("[data-for]")) label.htmlFor = `${label.dataset.for}-${name}`;
    root.querySelector("legend").textContent = `Trigger ${name}`;
    this.parts.trigger.append(...Object.keys(TRIGGERS).map((key) => element("option", "", key, { value: key })));
    this.parts.trigger.addEventListener("change", () => this.#set(defaults(this.parts.trigger.value)));
    for (const field of [this.parts.range, this.parts.number]) {
      field.addEventListener("input", () => field.value !== "" && this.#move({ threshold: Number(field.value) }, field));
    }
    this.#text = new TokenText(this.parts.text, inspector, `Text as trigger ${name} would leave it`);
  }

  /** Replays on a text; `own` is the prober's threshold. */
  show(written, own, settings = this.settings) {
    Object.assign(this, { written, own });
    this.#set(settings, false);
  }

  /** In force: the one that was chosen, else the prober's. */
  get threshold() {
    return this.settings.threshold ?? this.own;
  }

  #set(settings, told = true) {
    this.settings = settings;
    const { trigger, options } = this.parts;
    const { says, unit, options: choices } = TRIGGERS[this.settings.trigger];
    trigger.value = this.settings.trigger;
    this.parts.says.textContent = says;
    this.parts.unit.textContent = unit ? `Threshold (${unit})` : "";
    this.parts.threshold.hidden = !unit;
    options.replaceChildren(...Object.entries(choices).map(([name, values]) => this.#choice(name, values)));
    this.#move({}, null, told);
  }

  #choice(name, values) {
    const select = element("select", "", values.map((value) => element("option", "", value, { value })));
    select.value = this.settings[name];
    select.addEventListener("change", () => this.#move({ [name]: select.value }));
    return element("label", "", [name, select]);
  }

  #move(change, by = null, told = true) {
    Object.assign(this.settings, change);
    if (by !== this.parts.number) this.parts.number.value = Number(Number(this.threshold).toPrecision(6));
    this.draw(by);
    if (told) this.changed();
  }

  /** Asks the server for the decision and shows it; an older answer than the latest question is dropped. */
  async draw(by = null) {
    if (!this.written) return;
    const { written, settings: { trigger, ...options } } = this;
    const question = { trigger, options: { ...options, threshold: this.threshold }, ...written };
    if (!TRIGGERS[trigger].unit) delete question.options.threshold;
    this.question = question;
    this.root.setAttribute("aria-busy", "true");
    let decision;
    try {
      decision = await replay(question);
    } catch (error) {
      decision = { missing: error.message };
      if (error.status !== 400 && this.question === question) this.failed(error);
    }
    if (this.question !== question) return;
    this.#show(decision, by);
    this.root.removeAttribute("aria-busy");
  }

  #show(decision, by) {
    const { range, verdict, judged } = this.parts;
    const { trigger } = this.settings;
    const { text } = this.written;
    const unit = units(text);
    const known = tokens(this.written);
    this.#text.clear();
    if (TRIGGERS[trigger].unit && by !== range) this.#scale(decision, range);
    verdict.classList.toggle("fires", Boolean(decision.fire));
    verdict.textContent = this.#says(decision, known);
    judged.replaceChildren(...spans(text, decision.judged).map((part) => this.#part(part)));
    const cut = decision.fire ? unit(decision.kept) : Infinity;
    const top = Math.max(1, ...(decision.values ?? []));
    const shares = new Map((decision.values ?? []).map((value, i) => [known[i], value === null ? null : value / top]));
    const fired = new Set((decision.tokens ?? []).map((i) => known[i]));
    this.#text.append(text, known, {
      cut, fired, value: (token) => shares.get(token),
      spans: trigger === "probing" ? spans(text, this.written.spans) : [],
    });
    this.#text.finish(text, cut);
  }

  /** The slider reaches a little over all scores that a threshold can lie between. */
  #scale(decision, range) {
    const scores = (decision.judged ?? []).map((part) => part.score);
    const known = [...scores, decision.score ?? 0, this.threshold].filter((score) => score !== UNANSWERED);
    const low = Math.min(0, ...known);
    const high = Math.max(1, ...known);
    const more = 0.05 * (high - low);
    const ends = { min: low && low - more, max: high === 1 ? 1 : high + more };
    Object.assign(range, { ...ends, step: "any", value: this.threshold });
  }

  #says({ missing, fire, score, whole, kept, judged }, known) {
    const { settings: { trigger }, threshold, written } = this;
    const cut = fire ? units(written.text)(kept) : Infinity;
    const discarded = count(known.filter((token) => token.end > cut).length, "token");
    if (missing) return `Cannot be replayed: ${missing}.`;
    if (trigger === "never") return "Never retrieves: the answer stays as it is.";
    if (trigger === "fixed_sentence") {
      const first = "Retrieves with the question first";
      return fire ? `${first}, and again after sentence 1: it stays, and ${discarded} are written anew.`
        : `${first}; the text has one sentence, so it does not fire again.`;
    }
    if (score === null) return "Does not fire: the text has nothing that the prober judges.";
    const compared = `${number(score)}, threshold ${number(threshold)}`;
    if (!fire) return `Does not fire: the highest score is ${compared}.`;
    if (whole) return `Fires on the whole text: score ${compared}. All of it is discarded, ${discarded}.`;
    const place = judged.findIndex((part) => part.fires);
    const skipped = written.fresh ? 1 : 0; // sentences that are not judged
    return `Fires at sentence ${place + 1 + skipped} of ${judged.length + skipped}: score ${number(judged[place].score)}, ` +
      `threshold ${number(threshold)}. Kept: ${count(kept, "character")}; discarded: ${discarded}.`;
  }

  #part(part) {
    const { text } = this.written;
    const chance = part.p_wrong === undefined ? "" : `, P(wrong) ${percent(part.p_wrong)}`;
    const value = `${number(part.score)}${chance}${part.fires ? " ▲ above" : ""}`;
    const words = element("span", "made", text.slice(part.start, part.end));
    return element("li", part.fires ? "fires" : "", [words, element("b", "", value)]);
  }
}

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
