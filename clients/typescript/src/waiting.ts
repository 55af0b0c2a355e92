const FIRST_MS = 100;

/** Return how long to wait after so many failures: twice as long each time, less a random part, so that clients spread. */
export function backoff(failures: number, maxMs: number): number {
  return Math.min(maxMs, FIRST_MS * 2 ** Math.min(failures, 16)) * (0.5 + Math.random() / 2);
}

/** The time in milliseconds, of a clock that nobody sets. */
export function monotonic(): number {
  return performance.now();
}

/** Wait, but not longer than until `signal` is aborted. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", wake);
      resolve();
    };
    const timer = setTimeout(wake, ms);
    signal.addEventListener("abort", wake, { once: true });
    if (signal.aborted) wake();
  });
}
