// Transactions with rhea, which has the frames but no names for them: a link to the coordinator, declare and discharge (AMQP 1.0 §4).
import rhea from "rhea";
import { eventOf } from "./amqp.mjs";
import { within } from "./harness.mjs";

const WAIT_MS = 10_000;
const COORDINATOR = 0x30;
const DECLARE = 0x31;
const DISCHARGE = 0x32;
const DECLARED = 0x33;
const TRANSACTIONAL = 0x34;
const STATE = 7; // the place of the state among a transfer's fields; rhea's own setter for it fails
const { types } = rhea;

const described = (code, ...fields) => types.described(types.wrap_ulong(code), types.wrap_list(fields));
// A message whose value is a described list, encoded by hand: rhea does not nest descriptors.
const valueOf = (code, fields) =>
  Buffer.concat([Buffer.from([0x00, 0x53, 0x77, 0x00, 0x53, code, 0xc0, fields.length + 1, fields.length ? 2 : 0]), fields]);
const DECLARATION = valueOf(DECLARE, Buffer.alloc(0));
const discharging = (id, fail) => valueOf(DISCHARGE, Buffer.concat([Buffer.from([0xa0, id.length]), id, Buffer.from([fail ? 0x41 : 0x42])]));
const stateOf = (id, ...outcome) => described(TRANSACTIONAL, types.wrap_binary(id), ...outcome);

export async function openCoordinator(connection) {
  const link = connection.open_sender({ target: {} });
  link.local.attach.target = described(COORDINATOR);
  link.on("sender_error", () => {});
  await eventOf(link, "sendable", ["sender_close"]);
  return new Coordinator(link);
}

// Sends a message and gives its outcome: "accepted" also if it is accepted within a transaction.
async function offer(link, content) {
  const delivery = Buffer.isBuffer(content) ? link.send(content, undefined, 0) : link.send(content);
  const settled = new Promise((resolve) => {
    link.on("settled", function listener(context) {
      if (context.delivery !== delivery) return;
      link.removeListener("settled", listener);
      resolve(delivery.remote_state);
    });
  });
  return within(WAIT_MS, settled, "an outcome");
}

class Coordinator {
  constructor(link) {
    this.link = link;
  }

  async declare() {
    const state = await offer(this.link, DECLARATION);
    if (state.descriptor?.value !== DECLARED) throw new Error(`not declared: ${JSON.stringify(state)}`);
    return new Transaction(this.link, state.value[0].value);
  }
}

class Transaction {
  constructor(link, id) {
    this.link = link;
    this.id = id;
  }

  // rhea sends no state with a transfer, so it is put into the frame.
  async send(sender, content) {
    const { session } = sender.link;
    const { output } = session;
    session.output = (frame, payload) => {
      if (frame.delivery_tag !== undefined) frame.value[STATE] = stateOf(this.id);
      return output.call(session, frame, payload);
    };
    try {
      const state = await offer(sender.link, content);
      if (state.descriptor?.value !== TRANSACTIONAL) return { outcome: "rejected", error: state.error };
      return { outcome: state.value[1].descriptor.value === 0x24 ? "accepted" : "other" };
    } finally {
      session.output = output;
    }
  }

  async settle(receiver, delivery, outcome) {
    const { outcome: answer } = await receiver.settle(delivery, stateOf(this.id, outcome));
    if (answer !== undefined) throw new Error(`settled outside the transaction: ${answer}`);
  }

  // Commits, or rolls back with `fail`. Rejects with the broker's error if it rolls back instead.
  async discharge(fail) {
    const state = await offer(this.link, discharging(this.id, fail));
    if (state.constructor.composite_type === "accepted") return;
    throw Object.assign(new Error(`rejected: ${state.error?.description}`), { condition: state.error?.condition });
  }
}
