// Numbers with their units, as the terminal and the reports write them. Unknown is a dash, never a zero.

const NONE = "–";
const known = value => value !== null && value !== undefined && Number.isFinite(value);

/** Three significant digits, thousands apart: 1,234 / 12.3 / 0.00123; `keep` zeros at the end, as in a column. */
export function number(value, digits = 3, keep = false) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size !== 0 && size < 1e-4) return value.toExponential(1);
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { minimumSignificantDigits: keep ? digits : 1, maximumSignificantDigits: digits });
}

/** A part of a total, with as many decimals as the total's three digits have: parts can be added by eye. */
export function fixed(value, total) {
  if (!known(value)) return NONE;
  const decimals = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(Math.abs(total) || 1))));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export function whole(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : NONE;
}

export function share(value) {
  return known(value) ? `${(100 * value).toFixed(1)} %` : NONE;
}

/** The MFU by the PaLM convention, and the peak that it is a share of; null where neither is known. */
export function palmNote(palm, precision) {
  return [known(palm) ? `${share(palm)} by PaLM's count` : null, precision ? `${precision} peak` : null].filter(Boolean).join(", ") || null;
}

const TIMES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
/** Seconds in the unit that reads best; `keep` as for numbers. */
export function seconds(value, keep = false) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  const [size, unit] = TIMES.find(([least]) => Math.abs(value) >= least * (least > 1 ? 2 : 1)) ?? TIMES.at(-1);
  return `${number(value / size, 3, keep)} ${unit}`;
}

/** Seconds in a column: all with three digits. */
export const secondsCell = value => seconds(value, true);

/** What reads as a cent at least, $. */
export const CENT = 0.005;

export function usd(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `$${number(value / 1e6)}M`;
  if (size >= 1e4) return `$${number(value / 1e3)}k`;
  if (value > 0 && value < CENT) return "< $0.01";  // little is not nothing
  return `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

const SI = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
export function si(value, unit) {
  if (!known(value)) return NONE;
  const [size, letter] = SI.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${number(value / size)} ${letter}${unit}`;
}

/** GPU-seconds as GPU-hours or, of short windows, GPU-seconds: the unit, and how large it is. */
export function gpuUnit(gpuSeconds, onHost = false) {
  const what = onHost ? "rank" : "GPU";
  return gpuSeconds >= 3600 ? [`${what}-h`, 3600] : [`${what}-s`, 1];
}

export function when(unix) {
  return known(unix) && unix > 0 ? new Date(1000 * unix).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : NONE;
}

/** The reader's time zone, as it is now: "UTC", "GMT+2". */
export function zone() {
  return new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts().find(part => part.type === "timeZoneName").value;
}

/** A moment of the reader's clock, to the second; its date where it is not today's. */
export function clock(unix) {
  if (!known(unix) || unix <= 0) return NONE;
  const moment = new Date(1000 * unix), today = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString("en-GB", today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "medium" });
}

export function plural(count, one, many = `${one}s`) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}
