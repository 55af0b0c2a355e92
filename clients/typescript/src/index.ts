export { Client, type ClientOptions, type Delivery, type Message, type ReceiveOptions, type Scale, type Settlement } from "./client.js";
export type { ConsumeOptions, Handler, HandlerContext, Outcome } from "./consumer.js";
export { CONNECTION_LOST, FilaError } from "./errors.js";
