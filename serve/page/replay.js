// A trigger beside another: what each would have done with a recorded text, at once as its threshold moves.

import { keptBefore } from "./sentences.js";
import { element, number, percent, TokenText } from "./tokens.js";
import { replay, TRIGGERS, UNANSWERED } from "./triggers.js";

/** What a panel stands at before anyone touched it. */
export function defaults(trigger) {
  const options = Object.entries(TRIGGERS[trigger].options).map(([name, choices]) => [name, choices[0]]);
  return { trigger, threshold: TRIGGERS[trigger].threshold ?? null, ...Object.fromEntries(options) };
}

/** One trigger with its options, threshold and verdict. */
export class Panel {
  #text;

  constructor(root, name, trigger, inspector, changed) {
    this.root = root;
    this.settings = defaults(trigger);
    this.changed = changed;
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
  show({ written, fresh }, own, settings = this.settings) {
    Object.assign(this, { written, fresh, own });
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
    if (this.written) this.#draw(by);
    if (told) this.changed();
  }

  #draw(by) {
    const { range, number: field, verdict, judged } = this.parts;
    const { trigger } = this.settings;
    const decision = replay(trigger, { ...this.settings, threshold: this.threshold }, this.written, this.fresh);
    this.#text.clear();
    if (TRIGGERS[trigger].unit) this.#scale(decision, range, field, by);
    verdict.classList.toggle("fires", Boolean(decision.fire));
    verdict.textContent = this.#says(decision);
    judged.replaceChildren(...(decision.judged ?? []).map((part) => this.#part(part)));
    const { text, tokens } = this.written;
    const cut = !decision.fire ? Infinity : decision.position === null ? 0 : keptBefore(text, decision.position);
    const top = Math.max(1, ...(decision.values ?? []));
    const shares = new Map((decision.values ?? []).map((value, i) => [tokens[i], value === null ? null : value / top]));
    const fired = new Set((decision.tokens ?? []).map((i) => tokens[i]));
    this.#text.append(text, tokens, {
      cut, fired, value: (token) => shares.get(token),
      spans: trigger === "probing" ? this.written.spans : [],
    });
    this.#text.finish(text, cut);
  }

  /** The slider reaches a little over all scores that a threshold can lie between. */
  #scale(decision, range, field, by) {
    if (by !== range) {
      const scores = (decision.judged ?? []).map((part) => part.score);
      const known = [...scores, decision.score ?? 0, this.threshold].filter((score) => score !== UNANSWERED);
      const low = Math.min(0, ...known);
      const high = Math.max(1, ...known);
      const more = 0.05 * (high - low);
      const ends = { min: low && low - more, max: high === 1 ? 1 : high + more };
      Object.assign(range, { ...ends, step: "any", value: this.threshold });
    }
    if (by !== field) field.value = Number(Number(this.threshold).toPrecision(6));
  }

  #says({ missing, fire, score, position, judged }) {
    const { text, tokens } = this.written;
    const { settings: { trigger }, threshold } = this;
    if (missing) return `Cannot be replayed: the response does not carry ${missing}.`;
    if (trigger === "never") return "Never retrieves: the answer stays as it is.";
    if (trigger === "fixed_sentence") {
      const first = "Retrieves with the question first";
      return fire ? `${first}, and again after sentence 1: it stays, and ${tokensAfter(tokens, position)} are written anew.`
        : `${first}; the text has one sentence, so it does not fire again.`;
    }
    if (score === null) return "Does not fire: the text has nothing that the prober judges.";
    const compared = `${number(score)}, threshold ${number(threshold)}`;
    if (!fire) return `Does not fire: the highest score is ${compared}.`;
    if (position === null) {
      return `Fires on the whole text: score ${compared}. All of it is discarded, ${count(tokens.length, "token")}.`;
    }
    const place = judged.findIndex((part) => part.fires);
    const skipped = this.fresh ? 1 : 0; // sentences that are not judged
    const kept = keptBefore(text, position);
    const stays = count([...text.slice(0, kept)].length, "character");
    return `Fires at sentence ${place + 1 + skipped} of ${judged.length + skipped}: score ${number(judged[place].score)}, ` +
      `threshold ${number(threshold)}. Kept: ${stays}; discarded: ${tokensAfter(tokens, kept)}.`;
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
const tokensAfter = (tokens, cut) => count(tokens.filter((token) => token.end > cut).length, "token");
