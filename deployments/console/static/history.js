// Queries of a replica's past reports: [{ timeS, report }, …], oldest first.

// The count of the last `seconds`, as the difference of a total.
export function since(kept, seconds, get) {
  const last = kept.at(-1);
  const first = kept.find(({ timeS }) => timeS >= last.timeS - seconds) ?? last;
  return { value: get(last.report) - get(first.report), seconds: last.timeS - first.timeS };
}

// Rates over five seconds, from a total.
export function rates(kept, get) {
  return kept.map(({ timeS, report }, index) => {
    const before = kept[Math.max(0, index - 5)];
    const seconds = timeS - before.timeS;
    return [timeS, seconds > 0 ? (get(report) - get(before.report)) / seconds : null];
  });
}

// The available percentile closest to the requested one.
export const closest = (percentiles, wanted) =>
  Object.keys(percentiles).reduce((best, key) => (best === null || Math.abs(key - wanted) < Math.abs(best - wanted) ? key : best), null);
