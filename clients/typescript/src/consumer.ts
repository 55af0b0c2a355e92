import type { Client, Delivery, Settlement } from "./client.js";
import { FilaError, isErrorBody } from "./errors.js";
import { Settler } from "./settler.js";
import { backoff, monotonic, sleep } from "./waiting.js";

type WithoutToken<Kind> = Kind extends unknown ? Omit<Kind, "token"> : never;
/** How a handler wants its message to end, such as `{ action: "retry", after: 5, error: "busy" }`. */
export type Outcome = WithoutToken<Exclude<Settlement, { action: "extend" }>>;

export interface HandlerContext {
  /** Aborted when the lease has ended, or when the handler is out of time while the consumer stops. */
  signal: AbortSignal;
}

/** Work on a message. Return to ack it, throw to nack it, or return an {@link Outcome}. */
export type Handler = (delivery: Delivery, context: HandlerContext) => Promise<Outcome | void> | Outcome | void;

export interface ConsumeOptions {
  /** How many handlers run at a time; by default 1. */
  concurrency?: number;
  /** How many messages may be leased and unsettled, 1 to 500; by default `concurrency`. After a lost connection, those before it besides. */
  prefetch?: number;
  /** Abort it to stop: nothing new is taken, handlers that run may end, what was not begun goes back. */
  signal?: AbortSignal;
  /** How long running handlers may take then, in seconds; by default 30. */
  stopTimeout?: number;
  /** The longest wait before the stream is opened again, in seconds; by default 5. */
  backoffMax?: number;
  /** Called when the broker has confirmed how a delivery ended. */
  onSettled?: (delivery: Delivery, outcome: Outcome) => void;
  /** Called with what went wrong and is tried again, and with settlements that failed: those messages are delivered again. */
  onError?: (error: FilaError) => void;
}

/** The longest silence of a stream, in milliseconds: the broker sends something each ten seconds. */
const SILENCE_MS = 30_000;
/** The longest time that a timer takes. */
const TIMER_MS_MAX = 2 ** 31 - 1;
/** What the broker keeps of the error of a failed attempt. */
const ERROR_LENGTH = 4096;
/** How long the last messages may take to go back, in seconds, when handlers are out of time. */
const LAST_S = 5;

/** A delivery that was neither settled nor given back. */
class Held {
  readonly ending = new AbortController();
  /** When its lease ends, if it is not renewed. */
  until: number;
  readonly leaseMs: number;
  renewing: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly delivery: Delivery,
    readonly token: string | null,
  ) {
    this.leaseMs = Date.parse(delivery.lease_expires_at) - Date.parse(delivery.leased_at);
    this.until = monotonic() + this.leaseMs;
  }
}

export class Consumer {
  readonly #client: Client;
  readonly #queue: string;
  readonly #handler: Handler;
  readonly #options: ConsumeOptions;
  readonly #concurrency: number;
  readonly #prefetch: number;
  readonly #settler: Settler;
  readonly #stopping = new AbortController();
  readonly #held = new Set<Held>();
  readonly #ready: Held[] = [];
  #running = 0;
  /** Called when a delivery has begun or ended. */
  #changed: () => void = () => {};

  constructor(client: Client, queue: string, handler: Handler, options: ConsumeOptions) {
    this.#client = client;
    this.#queue = queue;
    this.#handler = handler;
    this.#options = options;
    this.#concurrency = options.concurrency ?? 1;
    this.#prefetch = options.prefetch ?? this.#concurrency;
    this.#settler = new Settler(client, queue);
  }

  async run(): Promise<void> {
    const stop = () => {
      this.#stopping.abort();
      this.#changed();
    };
    this.#options.signal?.addEventListener("abort", stop, { once: true });
    if (this.#options.signal?.aborted) stop();
    try {
      await this.#readAll();
    } finally {
      this.#options.signal?.removeEventListener("abort", stop);
      stop();
      await this.#finish();
    }
  }

  async #readAll(): Promise<void> {
    let failures = 0;
    while (!this.#stopping.signal.aborted) {
      let pause = 0;
      try {
        await this.#read(() => (failures = 0));
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        const failure = error instanceof FilaError ? error : FilaError.lost(error);
        if (!failure.retryable) throw failure;
        this.#options.onError?.(failure);
        pause = (failure.retryAfter ?? 0) * 1000;
      }
      const wait = Math.max(pause, backoff(failures, (this.#options.backoffMax ?? 5) * 1000));
      failures += 1;
      await sleep(wait, this.#stopping.signal);
    }
  }

  /** Open a stream and take its deliveries until it ends. */
  async #read(arrived: () => void): Promise<void> {
    const ending = new AbortController();
    const end = () => ending.abort(new Error(`the stream was silent for ${SILENCE_MS / 1000} s`));
    this.#stopping.signal.addEventListener("abort", end, { once: true });
    let silence = setTimeout(end, SILENCE_MS);
    try {
      const reader = (await this.#client.open(this.#queue, this.#prefetch, ending.signal)).getReader();
      const text = new TextDecoder();
      let line = "";
      for (;;) {
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (done) return;
        const pieces = text.decode(value, { stream: true }).split("\n");
        for (const piece of pieces.slice(0, -1)) {
          await this.#take(line + piece);
          line = "";
          arrived();
        }
        line += pieces.at(-1) ?? "";
        silence = setTimeout(end, SILENCE_MS);
      }
    } finally {
      clearTimeout(silence);
      this.#stopping.signal.removeEventListener("abort", end);
      ending.abort();
    }
  }

  /** Take a line, and return when there is room for another one. */
  async #take(line: string): Promise<void> {
    if (line === "") return;
    const found = JSON.parse(line) as Delivery;
    if (isErrorBody(found)) throw new FilaError(found);
    const held = new Held(found, found.token);
    this.#held.add(held);
    this.#ready.push(held);
    this.#renewLater(held);
    this.#begin();
    while (this.#ready.length >= this.#prefetch && !this.#stopping.signal.aborted) await this.#change();
  }

  #begin(): void {
    while (this.#running < this.#concurrency) {
      const [held] = this.#ready;
      if (held === undefined || (this.#stopping.signal.aborted && held.token !== null)) break;
      this.#ready.shift();
      this.#running += 1;
      void this.#work(held);
    }
    this.#changed();
  }

  async #work(held: Held): Promise<void> {
    let outcome: Outcome;
    try {
      outcome = (await this.#handler(held.delivery, { signal: held.ending.signal })) ?? { action: "ack" };
    } catch (error) {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
      outcome = { action: "nack", error: text.slice(0, ERROR_LENGTH) };
    }
    this.#running -= 1;
    this.#begin();
    if (!held.ending.signal.aborted) await this.#settle(held, outcome);
  }

  /** Settle a delivery, which is not held any more then. */
  async #settle(held: Held, outcome: Outcome): Promise<void> {
    try {
      if (held.token !== null) await this.#settler.settle({ ...outcome, token: held.token }, () => held.until);
      this.#options.onSettled?.(held.delivery, outcome);
    } catch (error) {
      this.#options.onError?.(error as FilaError);
    } finally {
      this.#drop(held);
    }
  }

  #drop(held: Held): void {
    clearTimeout(held.renewing);
    this.#held.delete(held);
    this.#changed();
  }

  /** Renew a lease when half of it is over, for as long as the delivery is held. */
  #renewLater(held: Held): void {
    const { token } = held;
    if (token !== null) held.renewing = setTimeout(() => void this.#renew(held, token), Math.min(held.leaseMs / 2, TIMER_MS_MAX));
  }

  async #renew(held: Held, token: string): Promise<void> {
    const sent = monotonic();
    try {
      await this.#settler.settle({ action: "extend", token, seconds: held.leaseMs / 1000 }, () => held.until);
      held.until = sent + held.leaseMs;
      if (this.#held.has(held)) this.#renewLater(held);
    } catch (error) {
      if (!this.#held.has(held) || (error as FilaError).code === "ALREADY_SETTLED") return; // it was settled meanwhile
      this.#options.onError?.(error as FilaError);
      held.ending.abort(error);
      const place = this.#ready.indexOf(held);
      if (place >= 0) this.#ready.splice(place, 1);
      this.#drop(held);
    }
  }

  /** Give back what was not begun, wait for the rest, and give back what is left after that. */
  async #finish(): Promise<void> {
    for (const held of this.#ready.splice(0)) {
      if (held.token === null) this.#ready.push(held); // delivered at most once: it can't go back
      else void this.#settle(held, { action: "give_back" });
    }
    this.#begin();
    let late = false;
    const end = () => {
      late = true;
      this.#changed();
    };
    const timer = setTimeout(end, (this.#options.stopTimeout ?? 30) * 1000);
    while (this.#held.size > 0 && !late) await this.#change();
    clearTimeout(timer);
    const left = [...this.#held];
    for (const held of left) {
      held.ending.abort(new Error("the consumer stops"));
      this.#drop(held);
    }
    this.#settler.close();
    const settlements = left.flatMap(({ token }) => (token === null ? [] : [{ action: "give_back" as const, token }]));
    if (settlements.length === 0) return;
    try {
      await this.#client.settle(this.#queue, settlements, AbortSignal.timeout(LAST_S * 1000));
    } catch (error) {
      this.#options.onError?.(error as FilaError); // their leases end
    }
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#changed = resolve;
    });
  }
}
