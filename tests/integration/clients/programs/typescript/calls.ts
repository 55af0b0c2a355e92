// Make each call of the client once, and print what came of it as JSON.
import { Client, FilaError } from "fila-cluster";

const fila = new Client(process.env["FILA_HTTP"] ?? "");
const queue = process.argv[2] ?? "";

const one = await fila.enqueue(queue, { payload_json: { order: 17 }, fairness_key: "acme", headers: { kind: "json" } });
const several = await fila.enqueueMany(queue, [{ payload: "" }, { payload: "grüße", priority: 1 }]);
const scale = await fila.scale(queue, 30);
const taken = await fila.receive(queue, { maxMessages: 3, wait: 5 });
const tokens = taken.map((each) => each.token ?? "");
await fila.settle(queue, [
  { token: tokens[0] ?? "", action: "ack" },
  { token: tokens[1] ?? "", action: "retry", after: 3600, error: "later" },
  { token: tokens[2] ?? "", action: "give_back" },
]);
const again = await fila.settle(queue, [{ token: tokens[0] ?? "", action: "ack" }]);

const errors: FilaError[] = [];
async function failing(call: Promise<unknown>): Promise<void> {
  await call.catch((error: unknown) => error instanceof FilaError && errors.push(error));
}
await failing(fila.enqueue("no-such-queue", { payload: "" }));
await failing(fila.settle(queue, [{ token: tokens[0] ?? "", action: "ack" }, { token: "none", action: "ack" }]));
await failing(new Client("http://127.0.0.1:1").enqueue(queue, { payload: "" }));
await failing(fila.consume("no-such-queue", () => {}));

console.log(
  JSON.stringify({
    ids: [one, ...several],
    taken: taken.map((each) => [each.id, each.payload, each.fairness_key, each.headers]),
    pending: scale.pending,
    again: again ?? null,
    errors: errors.map((each) => [each.code, each.retryable]),
    results: errors[1]?.results.map((each) => (each instanceof FilaError ? each.code : each)),
  }),
);
