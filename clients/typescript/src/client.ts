import { type ConsumeOptions, Consumer, type Handler } from "./consumer.js";
import type { components } from "./door.js";
import { FilaError } from "./errors.js";

type Schemas = components["schemas"];

/** A message to enqueue: one of `payload`, `payload_base64` and `payload_json`, and its options. */
export type Message = Schemas["Message"];
/** A message that is leased to the API key of this client. */
export type Delivery = Schemas["DeliveryBody"];
/** How a delivery ends, or `extend`. */
export type Settlement = Schemas["SettleBody"]["deliveries"][number];
/** How many consumers a queue needs. */
export type Scale = Schemas["Scale"];

export interface ClientOptions {
  /** Needed where the cluster has authentication. */
  apiKey?: string;
  /** How long a request may take, in seconds; by default 30. */
  timeout?: number;
  /** In place of the global `fetch`. */
  fetch?: typeof fetch;
}

export interface ReceiveOptions {
  /** 1 to 500, by default 1. */
  maxMessages?: number;
  /** How long to wait for the first message, in seconds; at most 60, by default 0. */
  wait?: number;
  signal?: AbortSignal;
}

/** A client of a broker's HTTP API. It keeps no connection of its own, so there is nothing to close. */
export class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeout: number;
  readonly #fetch: typeof fetch;

  /** @param url The address of the dashboard, such as `http://127.0.0.1:8555`. */
  constructor(url: string, options: ClientOptions = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = options.apiKey === undefined ? {} : { Authorization: `Bearer ${options.apiKey}` };
    this.#timeout = options.timeout ?? 30;
    this.#fetch = options.fetch ?? ((...request) => fetch(...request));
  }

  /** Put a message into a queue, and return its id once it is durable. Give a `dedup_id` if you repeat a lost request. */
  async enqueue(queue: string, message: Message): Promise<string> {
    return (await this.#post<Schemas["EnqueuedOne"]>(queue, "messages", message)).id;
  }

  /** Put up to 1,000 messages into a queue, and return their ids once all are durable. */
  async enqueueMany(queue: string, messages: Message[]): Promise<string[]> {
    return (await this.#post<Schemas["EnqueuedMany"]>(queue, "messages", { messages })).ids;
  }

  /** Lease messages that are ready, or the next ones within `wait` seconds; none if there are none. */
  async receive(queue: string, options: ReceiveOptions = {}): Promise<Delivery[]> {
    const { maxMessages = 1, wait = 0, signal } = options;
    const body: Schemas["ReceiveBody"] = { max_messages: maxMessages, wait };
    return (await this.#post<Schemas["ReceivedBody"]>(queue, "receive", body, this.#timeout + wait, signal)).deliveries;
  }

  /** Settle up to 1,000 deliveries of a queue by their tokens. The same settlement may be sent again. */
  async settle(queue: string, deliveries: Settlement[], signal?: AbortSignal): Promise<void> {
    await this.#post<Schemas["SettledBody"]>(queue, "settle", { deliveries }, this.#timeout, signal);
  }

  /** Say how many consumers drain a queue in `drain` seconds, by default 60. */
  async scale(queue: string, drain = 60): Promise<Scale> {
    return JSON.parse(await this.#text(this.#path(queue, `scale?drain=${drain}`), {}, this.#timeout));
  }

  /**
   * Run `handler` for each message of a queue until `options.signal` is aborted, then stop in good order.
   *
   * A message is acked when its handler returns, and nacked when it throws; leases are renewed meanwhile. The stream is
   * opened again after failures. Rejected with an error that does not pass, such as `QUEUE_NOT_FOUND`.
   */
  consume(queue: string, handler: Handler, options: ConsumeOptions = {}): Promise<void> {
    return new Consumer(this, queue, handler, options).run();
  }

  /** Open the stream of a queue's deliveries; its lines are those of the HTTP API. {@link consume} reads it. */
  async open(queue: string, prefetch: number, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
    const answer = await this.#answer(this.#path(queue, `consume?prefetch=${prefetch}`), { signal });
    if (answer.body === null) throw FilaError.lost("an empty answer");
    return answer.body;
  }

  #path(queue: string, rest: string): string {
    return `${this.#url}/queues/${encodeURIComponent(queue)}/${rest}`;
  }

  async #post<Answer>(
    queue: string,
    operation: string,
    body: unknown,
    timeout = this.#timeout,
    signal?: AbortSignal,
  ): Promise<Answer> {
    const request = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    return JSON.parse(await this.#text(this.#path(queue, operation), request, timeout, signal)) as Answer;
  }

  async #text(url: string, request: RequestInit, timeout: number, signal?: AbortSignal): Promise<string> {
    const ending = new AbortController();
    const end = () => ending.abort(signal?.reason);
    const late = setTimeout(() => ending.abort(new Error(`nothing came within ${timeout} s`)), timeout * 1000);
    signal?.addEventListener("abort", end, { once: true });
    if (signal?.aborted) end();
    try {
      const answer = await this.#answer(url, { ...request, signal: ending.signal });
      return await answer.text();
    } catch (error) {
      throw error instanceof FilaError ? error : FilaError.lost(ending.signal.aborted ? ending.signal.reason : error);
    } finally {
      clearTimeout(late);
      signal?.removeEventListener("abort", end);
    }
  }

  async #answer(url: string, request: RequestInit): Promise<Response> {
    const headers = { ...this.#headers, ...(request.headers as Record<string, string> | undefined) };
    let answer: Response;
    try {
      answer = await this.#fetch(url, { ...request, headers });
      if (answer.ok) return answer;
      throw FilaError.of(answer.status, await answer.text());
    } catch (error) {
      throw error instanceof FilaError ? error : FilaError.lost(error);
    }
  }
}
