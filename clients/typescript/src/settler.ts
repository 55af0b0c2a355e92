import type { Client, Settlement } from "./client.js";
import { FilaError } from "./errors.js";
import { backoff, monotonic, sleep } from "./waiting.js";

/** Settlements of one request. */
const TOGETHER = 500;
const BACKOFF_MAX_MS = 1000;

interface Pending {
  settlement: Settlement;
  /** When it need not be repeated any more: its lease has ended. */
  until: () => number;
  /** Whether it is sent by itself, because a request for several was refused as a whole. */
  alone: boolean;
  resolve: () => void;
  reject: (error: FilaError) => void;
}

/** Sends the settlements of a queue, those that gather meanwhile together, and repeats those whose answers were lost. */
export class Settler {
  readonly #client: Client;
  readonly #queue: string;
  #pending: Pending[] = [];
  #sending = false;
  readonly #closing = new AbortController();

  constructor(client: Client, queue: string) {
    this.#client = client;
    this.#queue = queue;
  }

  /** Return when a settlement is confirmed. Rejected if it is refused, or not confirmed while the lease lasts. */
  settle(settlement: Settlement, until: () => number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#pending.push({ settlement, until, alone: false, resolve, reject });
      if (!this.#sending) void this.#sendAll();
    });
  }

  /** Repeat nothing any more. */
  close(): void {
    this.#closing.abort();
  }

  async #sendAll(): Promise<void> {
    this.#sending = true;
    await Promise.resolve(); // what settles in this moment goes together
    let failures = 0;
    while (this.#pending.length > 0) {
      const again = await this.#send(this.#pending.splice(0, this.#pending[0]?.alone ? 1 : TOGETHER));
      this.#pending.unshift(...again);
      failures = again.length > 0 ? failures + 1 : 0;
      if (failures > 0) await sleep(backoff(failures, BACKOFF_MAX_MS), this.#closing.signal);
    }
    this.#sending = false;
  }

  /** Send settlements in one request, and return those to send again. */
  async #send(batch: Pending[]): Promise<Pending[]> {
    try {
      await this.#client.settle(this.#queue, batch.map((each) => each.settlement), this.#closing.signal);
      for (const each of batch) each.resolve();
      return [];
    } catch (error) {
      const failure = error as FilaError;
      const several = failure.results.length === batch.length;
      return batch.filter((each, index) => this.#isToRepeat(each, several ? failure.results[index] : failure, batch));
    }
  }

  #isToRepeat(each: Pending, result: unknown, batch: Pending[]): boolean {
    if (!(result instanceof FilaError)) {
      each.resolve();
      return false;
    }
    const refused = !result.retryable && batch.length > 1 && result.code === "INVALID_ARGUMENT";
    if (refused && !this.#closing.signal.aborted) {
      each.alone = true;
      return true;
    }
    if (result.retryable && monotonic() < each.until() && !this.#closing.signal.aborted) return true;
    each.reject(result);
    return false;
  }
}
