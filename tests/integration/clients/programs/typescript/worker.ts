// Consume a queue until SIGTERM. The payload says what the handler does: {"sleep": ms, "fail": times}. Prints what happens.
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "fila-cluster";

const [queue = "", concurrency = "1", prefetch = "1", stopTimeout = "30"] = process.argv.slice(2);
const stopping = new AbortController();
process.once("SIGTERM", () => stopping.abort());

function tell(event: string, more: object): void {
  console.log(JSON.stringify({ event, at: Date.now(), ...more }));
}

await new Client(process.env["FILA_HTTP"] ?? "").consume(
  queue,
  async ({ id, payload, attempts, error }) => {
    tell("begun", { id, attempts, error });
    const work = JSON.parse(payload ?? "{}") as { sleep?: number; fail?: number };
    await sleep(work.sleep ?? 0);
    if (attempts < (work.fail ?? 0)) throw new Error("it failed on purpose");
  },
  {
    concurrency: Number(concurrency),
    prefetch: Number(prefetch),
    stopTimeout: Number(stopTimeout),
    signal: stopping.signal,
    onSettled: ({ id }, { action }) => tell("settled", { id, action }),
    onError: ({ code, message }) => tell("error", { code, message }),
  },
);
tell("stopped", {});
