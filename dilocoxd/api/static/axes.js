// What stands at an axis: round numbers of the unit, and one form of the clock.

import { bytes, count, day, loss, seconds, small, timeOfDay } from "./words.js";

const powers = (base, factors, from, to) => {
  const found = [];
  for (let power = from; power <= to; power += 1) factors.forEach((factor) => found.push(factor * base ** power));
  return found;
};
const DECIMAL = powers(10, [1, 2, 5], -6, 15);
const WHOLE = powers(10, [1, 2, 5], 0, 15);
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** unit -> how a value is written (at the axis: `label`), which steps its axis may take, and whether it begins at zero. */
export const UNITS = {
  bytes: { text: bytes, steps: WHOLE, fromZero: true },
  seconds: {
    text: seconds, fromZero: true,
    steps: [...powers(10, [1, 2, 5], -3, 0), 10, 20, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY],
  },
  count: { text: count, steps: WHOLE, fromZero: true },
  loss: { text: loss, label: small, steps: DECIMAL },
};

const TIME_STEPS = [1, 2, 5, 10, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];

/** Splits that fall on round local times. */
function timeSplits(plot, axisIndex, low, high, step) {
  const offset = new Date(low * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((low - offset) / step) * step + offset; at <= high; at += step) found.push(at);
  return found;
}

function timeTexts(plot, splits, axisIndex, space, step) {
  let shown = "";
  return splits.map((at) => {
    const date = day(at);
    const text = step >= DAY ? date : timeOfDay(at, step < MINUTE);
    const isNew = step < DAY && date !== shown;
    shown = date;
    return isNew ? `${text}\n${date}` : text;
  });
}

export const timeAxis = { incrs: TIME_STEPS, splits: timeSplits, values: timeTexts, space: 76, size: 46 };
export const roundAxis = { incrs: WHOLE, values: (plot, splits) => splits.map((raw) => (raw === null ? "" : raw.toLocaleString("en"))), space: 44, size: 34 };

export function valueAxis(unit) {
  const { text, label = text, steps } = UNITS[unit];
  return { incrs: steps, size: 74, values: (plot, splits) => splits.map((raw) => (raw === null ? "" : label(raw))) };
}

/** Range of a linear axis: figures that are amounts begin at zero, or their changes look larger than they are. */
export function valueRange(unit) {
  const { fromZero } = UNITS[unit];
  return (plot, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (fromZero) return [0, high > 0 ? 1.06 * high : 1];
    const room = 0.06 * (high - low || Math.abs(high) || 1);
    return [low - room, high + room];
  };
}
