// A thin promise-based hand on rhea: open, send, receive, settle, and requests to a management node.
import { EventEmitter, once } from "node:events";
import rhea from "rhea";
import { within } from "./harness.mjs";

const WAIT_MS = 10_000;
const { types, message } = rhea;

export const outcomes = {
  accepted: () => message.accepted().described(),
  released: () => message.released({}).described(),
  rejected: (error) => message.rejected(error ? { error } : {}).described(),
  modified: (fields) => message.modified(fields).described(),
};

// Opens a connection with SASL PLAIN. Every call below waits at most WAIT_MS.
export async function connect(options = {}) {
  const connection = rhea.create_container().connect({
    host: process.env.PARTIBUS_HOST,
    port: Number(process.env.PARTIBUS_PORT),
    username: process.env.PARTIBUS_KEY_NAME,
    password: process.env.PARTIBUS_KEY,
    reconnect: false,
    ...options,
  });
  await eventOf(connection, "connection_open", ["connection_close", "connection_error", "disconnected"]);
  connection.on("disconnected", () => {});
  return connection;
}

// The first such event's context; rejects on one of `failures`.
export function eventOf(emitter, name, failures = []) {
  const first = new Promise((resolve, reject) => {
    emitter.once(name, resolve);
    for (const failure of failures) {
      emitter.once(failure, (context) => reject(errorOf(failure, context)));
    }
  });
  return within(WAIT_MS, first, name);
}

function errorOf(event, context) {
  const error = context.sender?.error ?? context.receiver?.error ?? context.connection?.error ?? context.error;
  return Object.assign(new Error(`${event}: ${error?.condition} ${error?.description ?? error}`), { condition: error?.condition });
}

export async function openSender(connection, address) {
  const sender = connection.open_sender({ target: { address }, treat_modified_as_released: false });
  sender.on("sender_error", () => {});
  await eventOf(sender, "sendable", ["sender_close"]);
  return new Sender(sender);
}

export class Sender {
  constructor(link) {
    this.link = link;
    this.waiting = new Map();
    for (const outcome of ["accepted", "rejected", "released", "modified"]) {
      link.on(outcome, ({ delivery }) => this.waiting.get(delivery)?.({ outcome, error: delivery.remote_state?.error }));
    }
    link.on("sender_close", () => {
      for (const resolve of this.waiting.values()) resolve({ outcome: "closed", error: link.error });
    });
  }

  // Sends one message, or an encoded payload with a message format, and gives its outcome.
  async offer(content, format = undefined) {
    let delivery;
    const outcome = new Promise((resolve) => {
      delivery = this.link.send(content, undefined, format);
      this.waiting.set(delivery, resolve);
    });
    return within(WAIT_MS, outcome, "an outcome").finally(() => this.waiting.delete(delivery));
  }

  async send(...messages) {
    for (const { outcome, error } of await Promise.all(messages.map((each) => this.offer(each)))) {
      if (outcome !== "accepted") throw new Error(`${outcome}: ${error?.condition} ${error?.description}`);
    }
  }
}

export async function openReceiver(connection, address, options = {}) {
  const link = connection.open_receiver({
    source: { address },
    credit_window: 0,
    autoaccept: false,
    autosettle: true,
    rcv_settle_mode: 1,
    ...options,
  });
  const receiver = new Receiver(link);
  link.on("receiver_error", () => {});
  const closed = new Promise((resolve) => link.once("receiver_close", resolve));
  await eventOf(link, "receiver_open");
  // A link without a source is refused; the reason is in the detach that follows (AMQP 1.0 §2.6.3).
  if (!link.source?.address) throw errorOf("refused", await within(WAIT_MS, closed, "the reason of a refusal"));
  return receiver;
}

export class Receiver {
  constructor(link) {
    this.link = link;
    this.found = [];
    this.arrivals = new EventEmitter();
    link.on("message", ({ message, delivery }) => {
      this.found.push({ message, delivery });
      this.arrivals.emit("arrival");
    });
  }

  // Gives credit for `count` messages and waits until they are there.
  async receive(count) {
    this.link.add_credit(count);
    return this.take(count);
  }

  // Waits for `count` messages under the credit given before.
  async take(count) {
    const arrived = (async () => {
      while (this.found.length < count) await once(this.arrivals, "arrival");
    })();
    await within(WAIT_MS, arrived, `${count} messages (${this.found.length} so far)`);
    return this.found.splice(0, count);
  }

  // Settles as AMQP's second mode does: proposes the outcome and waits until the broker has settled. Gives the broker's outcome.
  async settle(delivery, outcome) {
    const settled = new Promise((resolve) => {
      const listener = (context) => {
        if (context.delivery !== delivery) return;
        this.link.removeListener("settled", listener);
        resolve({ outcome: delivery.remote_state?.constructor.composite_type, error: delivery.remote_state?.error });
      };
      this.link.on("settled", listener);
    });
    delivery.update(false, outcome);
    return within(WAIT_MS, settled, "the broker's settlement");
  }

  // Asks the broker to use up or give back the credit. Gives what came before it did.
  async drain(credit) {
    this.link.drain = false;
    this.link.add_credit(credit);
    const drained = eventOf(this.link, "receiver_drained");
    this.link.drain_credit();
    await drained;
    this.link.drain = false;
    return this.found.splice(0);
  }

  async close() {
    const closed = eventOf(this.link, "receiver_close");
    this.link.close();
    await closed;
  }
}

// One operation on a queue's management node (AMQP contract 7). Gives status code, condition and body of the answer.
export async function request(connection, queue, operation, body) {
  const node = `${queue}/$management`;
  const session = connection.create_session();
  session.begin();
  const receiver = session.open_receiver({ source: { address: node }, target: { address: "answers" } });
  await eventOf(receiver, "receiver_open", ["receiver_close"]);
  const sender = session.open_sender({ target: { address: node } });
  await eventOf(sender, "sendable", ["sender_close"]);
  const answer = eventOf(receiver, "message", ["receiver_close"]);
  sender.send({ message_id: "1", reply_to: "answers", application_properties: { operation }, body });
  const found = (await answer).message;
  session.close();
  if (found.correlation_id !== "1") throw new Error(`correlation id ${found.correlation_id}`);
  const { statusCode, errorCondition } = found.application_properties;
  return { statusCode, errorCondition, body: found.body };
}

export const sequenceNumbers = (...numbers) => types.wrap_array(numbers, 0x81);
export const lockTokens = (...tags) => types.wrap_array(tags.map(tokenOfTag), 0x98);
export const decode = (bytes) => message.decode(bytes);

// A lock token, as the `uuid` type has it, from a delivery tag in .NET's byte order (AMQP contract 5.3).
export function tokenOfTag(tag) {
  const token = Buffer.from(tag);
  token.subarray(0, 4).reverse();
  token.subarray(4, 6).reverse();
  token.subarray(6, 8).reverse();
  return token;
}
