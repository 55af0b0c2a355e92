import type { components } from "./door.js";

type ErrorBody = components["schemas"]["ErrorBody"];

/** The code of an error without an answer: whether the request was carried out is not known. */
export const CONNECTION_LOST = "CONNECTION_LOST";

/** An error of the broker with its code, or {@link CONNECTION_LOST} if no answer came. */
export class FilaError extends Error {
  override readonly name = "FilaError";
  readonly code: string;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;
  /** Seconds to wait before that, if the broker has said so. */
  readonly retryAfter: number | null;
  readonly details: Record<string, unknown>;
  /** Of a request for several: its result for each one, in order, or an error. */
  readonly results: unknown[];

  constructor(body: ErrorBody, options?: ErrorOptions) {
    super(body.message, options);
    this.code = body.code;
    this.retryable = body.retryable;
    this.retryAfter = body.retry_after;
    this.details = body.details;
    this.results = (body.results ?? []).map((each) => (isFailure(each) ? new FilaError(each.error) : each));
  }

  static lost(cause: unknown): FilaError {
    const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause; // fetch tells the cause there
    const message = `no answer: ${inner instanceof Error ? inner.message : String(inner)}`;
    return new FilaError({ code: CONNECTION_LOST, message, retryable: true, retry_after: null, details: {} }, { cause });
  }

  /** Return the error of an answer, also of one that a proxy has made. */
  static of(status: number, text: string): FilaError {
    const body = parsed(text);
    if (isErrorBody(body)) return new FilaError(body);
    const message = `status ${status}: ${text.slice(0, 200)}`;
    return new FilaError({ code: "UNEXPECTED_ANSWER", message, retryable: status >= 500, retry_after: null, details: {} });
  }
}

export function isErrorBody(value: unknown): value is ErrorBody {
  return typeof value === "object" && value !== null && "code" in value && "retryable" in value;
}

function isFailure(value: unknown): value is { error: ErrorBody } {
  return typeof value === "object" && value !== null && "error" in value && isErrorBody(value.error);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
