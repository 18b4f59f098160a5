// Numbers for people.

/** "0.42 ms", "120 ms", "1.24 s", "3 min", "3 min 05 s"; "–" for null. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.01) return `${(value * 1000).toFixed(value < 0.001 ? 2 : 1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  const rest = whole % 60 === 0 ? "" : ` ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 60)} min${rest}`;
}

export const count = (value) => Math.round(value).toLocaleString(document.documentElement.lang);

export const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

export const bytes = (value) => (value < 1000 ? `${value} B` : `${(value / 1000).toFixed(1)} kB`);

/** Time of day of Unix seconds, with up to three `digits` of a second. */
export function clock(unix, digits = 0) {
  const parts = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  if (digits > 0) parts.fractionalSecondDigits = digits;
  return new Date(unix * 1000).toLocaleTimeString(document.documentElement.lang, parts);
}

/** About `number` round values from `start` to `end`. */
export function ticks(start, end, number = 5) {
  const rough = Math.max(end - start, 1e-6) / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const first = Math.ceil(start / step);
  const last = Math.floor(end / step);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => (first + place) * step);
}
